"""The tables and records under ``meta/`` of a result against those of its sources.

`V3Tables` and `V21Tables` read the tables of a result, each in its format, behind one interface.
They compare, in this order: ``info.json``, the tasks, the columns of ``meta/episodes``, the
repairs, and the source of each episode.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from leconvert import tables
from leconvert.dataset.formats import (
    BLOCK_EPISODES,
    PROVENANCE_PATH,
    TARGETS,
    Dataset,
    StatsBlock,
    Target,
    episode_digests,
    has_provenance,
    read_provenance,
    target_of,
    v2,
    v3,
    v3_target,
)
from leconvert.dataset.formats.v3 import (
    EPISODES_DIR,
    INFO_PATH,
    LOCATION_COLUMNS,
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    episodes_path,
    pandas_index,
)
from leconvert.dataset.scan.file_checks import ClipFacts, declared_as_encoded
from leconvert.dataset.scan.modality import read_modality, task_columns
from leconvert.model.repairs import Repairs
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    OVERLAY,
    FloatArray,
    IntArray,
    stream_of_camera,
)
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION, said_version
from leconvert.run.proof.difference import Difference, differing_keys, same_json
from leconvert.run.proof.expected import Expected
from leconvert.run.proof.statistics import (
    ResultStats,
    compare_stats,
    flat_columns,
    flattened,
    read_object,
)
from leconvert.support.errors import UnreadableSourceError, UsageError
from leconvert.tables.arrow import int64_values, nested_numbers
from leconvert.tables.schemas import feature_of_type, stored_entries
from leconvert.workdir.swap import has_source_tables


def compare_info(
    info: Mapping[str, Any] | Difference, expected: Mapping[str, Any], limits: Sequence[str] = ()
) -> Iterator[Difference]:
    """Compare ``info.json``: totals, rate, templates, every feature, and added keys.

    Args:
        info: The result's, or why it cannot be read.
        expected: The expected one.
        limits: Keys whose value the conversion may choose, a positive number.
    """
    if isinstance(info, Difference):
        yield info
        return
    for key in [*expected, *(key for key in info if key not in expected)]:
        if key == "features":
            yield from _compare_features(expected[key], info.get(key))
        elif key in limits:
            limit = info.get(key)
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
                yield Difference(key, INFO_PATH, "a positive number", _shown(info, key))
        elif not same_json(expected.get(key), info.get(key)) or (key in expected) != (key in info):
            yield Difference(key, INFO_PATH, _shown(expected, key), _shown(info, key))


def compare_cameras(
    features: Mapping[str, Any], cameras: Mapping[str, Mapping[ClipFacts, int]], fps: Fraction
) -> Iterator[Difference]:
    """Compare the declaration of each camera with the result's own files.

    Args:
        features: The features of the result.
        cameras: For each stream, the facts of its images, with the number of episodes that have
            them. Files with an unreadable header are left out.
        fps: Frames a second.
    """
    for camera, feature in features.items():
        clips = cameras.get(stream_of_camera(camera))
        if not clips:
            continue
        usual = max(clips, key=clips.__getitem__)
        expected = declared_as_encoded(feature, usual, fps)
        for key in [key for key in expected if key != "names"]:  # files have no names
            if not same_json(expected[key], feature.get(key)):
                what = f"{key} of camera {camera!r}, whose files differ"
                yield Difference(what, INFO_PATH, _shown(expected, key), _shown(feature, key))


def _compare_features(expected: Mapping[str, Any], found: object) -> Iterator[Difference]:
    if not isinstance(found, Mapping) or set(found) != set(expected):
        have = sorted(found) if isinstance(found, Mapping) else found
        yield Difference("features", INFO_PATH, str(sorted(expected)), str(have))
        return
    for name, feature in expected.items():
        have = found[name]
        if not isinstance(have, Mapping):
            yield Difference(f"feature {name!r}", INFO_PATH, str(feature), str(have))
            continue
        for key in differing_keys(feature, have):
            what = f"{key} of feature {name!r}"
            yield Difference(what, INFO_PATH, _shown(feature, key), _shown(have, key))


def _shown(record: Mapping[str, Any], key: str) -> str:
    return str(record[key]) if key in record else "no such key"


def compare_tasks(
    path: str, expected: Sequence[tuple[int, str]], found: Sequence[tuple[int, str]]
) -> Iterator[Difference]:
    """Compare the tasks, by index and text."""
    for have, wanted in zip_longest(found, expected):
        if have != wanted:
            yield Difference("tasks", path, _task(wanted), _task(have))


def _task(task: tuple[int, str] | None) -> str:
    return "no such row" if task is None else f"task {task[0]}, {task[1]!r}"


def compare_own_values(
    lines: Sequence[Mapping[str, Any]], rows: Mapping[str, Sequence[Any]], known: Sequence[str]
) -> Iterator[Difference]:
    """Compare the values of ``episodes.jsonl`` that are no positions with the result's rows."""
    passed = {*known, *LOCATION_COLUMNS}
    names = dict.fromkeys(name for line in lines for name in line if name not in passed)
    names |= dict.fromkeys(name for name in rows if name not in passed)
    for name in names:
        found = rows.get(name, [None] * len(lines))
        for line, have in zip(lines, found, strict=True):
            if not _same(line.get(name), have):
                yield Difference(
                    name, EPISODES_DIR, str(line.get(name)), str(have), int(line["episode_index"])
                )


def _same(expected: object, found: object) -> bool:
    """Return whether a column holds a JSON value, in the widest type that its column may need."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(_same(expected.get(key), found.get(key)) for key in {**expected, **found})
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(found, str) and expected is not None and not isinstance(expected, str):
        try:  # a value that shares a column with texts is written as text
            return bool(json.loads(found) == expected)
        except ValueError:
            return False
    if isinstance(found, float) and isinstance(expected, int | float):
        return float(expected) == found or (found != found and expected != expected)  # noqa: PLR0124
    return type(expected) is type(found) and expected == found


def compare_repairs(
    declared: Repairs, expected: Repairs | None, source: Dataset
) -> Iterator[Difference]:
    """Yield repairs in the result's record that were not made, or that are impossible."""
    if expected is not None and declared != expected:
        yield Difference("repairs", REPAIRS_PATH, str(expected), str(declared))
    if isinstance(source, v2.Dataset):
        yield from _compare_reading(declared, source)
    elif isinstance(source, v3.Dataset):
        yield from _compare_reading_of_v3(declared, source)
    names = {*source.stored_features, *source.columns_among({*declared.renamed_features})}
    strange = sorted(
        {old for old in declared.renamed_features if old not in names}
        | {new for new in declared.renamed_features.values() if new in names}
    )
    if strange:
        said = ", ".join(strange)
        yield Difference(
            "renamed features", REPAIRS_PATH, "features of the source with new names", said
        )
    indices = task_columns(
        read_modality(source.root),
        next(source.data_schemas(), None) if declared.task_columns else None,
    )
    if not set(declared.task_columns) <= set(indices) or (
        declared.task_columns and declared.task_map is None
    ):
        said = ", ".join(declared.task_columns)
        yield Difference("columns of task indices", REPAIRS_PATH, str(indices), said)
    features = {*source.features, *declared.added_columns}
    features |= source.columns_among({*declared.declared_features} - features)
    unknown = set(declared.dropped_features) - features
    # A column that is not declared can be dropped, too.
    unknown -= source.columns_among(unknown)
    named = {*declared.computed_stats, *declared.unwrapped_columns, *declared.cast_columns}
    strange = sorted(unknown | (named - features))
    if strange:
        yield Difference("repaired features", REPAIRS_PATH, "the source's", ", ".join(strange))
    episodes = set(source.episodes.episode_index.tolist())
    dropped = [dropped.episode for dropped in declared.dropped_episodes]
    selected = declared.selected_episodes
    ends = [] if selected is None else [end for pair in selected.ranges for end in pair]
    trimmed = list(declared.trimmed_episodes)
    for what, numbers in (
        ("episodes left out", dropped),
        ("selected episodes", ends),
        ("trimmed episodes", trimmed),
    ):
        lost = [episode for episode in dict.fromkeys(numbers) if episode not in episodes]
        if lost:
            said = ", ".join(map(str, lost))
            yield Difference(what, REPAIRS_PATH, "some of the source", said)
    lengths = dict(
        zip(source.episodes.episode_index.tolist(), source.episodes.length.tolist(), strict=True)
        if trimmed
        else ()
    )
    for episode, (first, stop) in declared.trimmed_episodes.items():
        # The files of an episode of v2.x may have more frames than it declares.
        if stop > lengths.get(episode, stop) and stop != _rows_in_file(source, episode):
            said, has = f"{first}:{stop}", f"frames of 0:{lengths[episode]}"
            yield Difference("trimmed episode", REPAIRS_PATH, has, said, episode)


def _compare_reading(declared: Repairs, source: v2.Dataset) -> Iterator[Difference]:
    """Compare the recorded way of reading a v2.x source with the right one."""
    version = source.info.get("codebase_version")
    if (declared.assumed_version is None) != (version in SOURCE_VERSIONS):
        said = f"{said_version(version)[5:]}; read as {declared.assumed_version}"
        yield Difference("version", REPAIRS_PATH, "that of the source", said)
    for file in declared.located_files:
        # Only a file that is not where its template says is taken from another path.
        template = source.paths.template_path(file.stream, file.episode)
        if (source.root / template).exists():
            yield Difference("place of a file", REPAIRS_PATH, template, file.path, file.episode)


def _compare_reading_of_v3(declared: Repairs, source: v3.Dataset) -> Iterator[Difference]:
    """Compare the recorded way of reading a v3.0 source with the right one."""
    stored = v3.read_json_object(source.root / INFO_PATH, in_any_utf=True)
    if (declared.assumed_version is None) != (stored.get("codebase_version") == V3_VERSION):
        said = f"{said_version(stored.get('codebase_version'))[5:]}; read as "
        said += str(declared.assumed_version)
        yield Difference("version", REPAIRS_PATH, "that of the source", said)
    lacking = v3.lacking_tables(source.root)
    if declared.derived_tables != lacking:
        said = ", ".join(declared.derived_tables) or "none"
        yield Difference("derived tables", REPAIRS_PATH, ", ".join(lacking) or "none", said)
    told, _ = v3.declaration({**stored, "fps": float(source.fps)})
    for stream in source.stored_streams:
        key = "data_path" if stream == DATA_STREAM else "video_path"
        template = declared.path_templates.get(key, stored.get(key))
        is_other = told is not None and template != stored.get(key) and stream in told.templates
        # Only if the stored template finds no file, another one is used.
        if is_other and told is not None and v3.files_there(source.root, told, stream):
            yield Difference("path template", REPAIRS_PATH, str(stored.get(key)), str(template))
    table, lengths = source.episodes, source.episodes.length
    for stream in sorted({file.stream for file in declared.located_files}):
        right = v3.located_places(source.root, source.declared, lengths, stream)
        placed = table.placed[stream]
        if right is None or not (
            np.array_equal(right.chunk, placed.chunk) and np.array_equal(right.file, placed.file)
        ):
            found = next(file for file in declared.located_files if file.stream == stream)
            wanted = "the files that the episodes' rows or frames fit"
            yield Difference("place of a file", REPAIRS_PATH, wanted, found.path, found.episode)


def _rows_in_file(source: Dataset, episode: int) -> int | None:
    """Return the rows of an episode's table; None if others are in it, or it cannot be read."""
    if not isinstance(source, v2.Dataset):
        return None
    (path,) = source.paths.absolute(DATA_STREAM, [episode])
    with suppress(UnreadableSourceError, OSError):
        return sum(tables.row_group_rows(path))
    return None


def compare_provenance(result: Path, expected: Expected) -> Iterator[Difference]:
    """Yield differences in the table that names the source episode of each episode.

    A result without this table passes here: the comparison of files knows whether it must exist.
    """
    provenance = read_provenance(result)
    if provenance is None or not has_provenance(expected.sources):
        return
    told = [source.repairs for source in provenance.sources]
    for number, source in enumerate(expected.sources):
        found = told[number] if number < len(told) else None
        if found != source.repairs:
            what = f"repairs of source {number + 1}"
            yield Difference(what, PROVENANCE_PATH, str(source.repairs), str(found))
    columns = (
        ("episode_index", np.arange(len(expected)), provenance.episode_index),
        ("source", expected.number, provenance.source),
        ("source_episode_index", expected.index, provenance.source_episode_index),
    )
    for name, wanted, have in columns:
        if len(wanted) != len(have):
            yield Difference("rows", PROVENANCE_PATH, str(len(wanted)), str(len(have)))
            return
        for row in np.flatnonzero(wanted != have).tolist():
            episode = int(expected.index[row])
            yield Difference(name, PROVENANCE_PATH, str(wanted[row]), str(have[row]), episode)
    digests = itertools.chain.from_iterable(map(episode_digests, expected.sources))
    rows = zip(expected.index.tolist(), digests, provenance.sha256, strict=True)
    for episode, wanted_digest, digest in rows:
        if wanted_digest != digest:
            what = "what the source's tables say of the episode (SHA-256)"
            yield Difference(what, PROVENANCE_PATH, wanted_digest, digest, episode)


# The conversion may choose these values; the source does not give them.
_SIZE_LIMITS = {
    "data_file_size_in_mb": "data_files_size_in_mb",
    "video_file_size_in_mb": "video_files_size_in_mb",
}
_TASK_COLUMNS = ["task", "task_index"]
# More chunks would be more files than any file system has.
_CHUNKS_STOP = 10**12


class Routes(NamedTuple):
    """The columns that name the files of episodes, by stream; arrays of shape (E,).

    Attributes:
        file_number: Number of the output file.
        from_timestamp: Start in a video file, in seconds; none for data, or if the result lacks it.
        to_timestamp: End in the video file, in seconds.
    """

    file_number: Mapping[str, IntArray]
    from_timestamp: Mapping[str, FloatArray]
    to_timestamp: Mapping[str, FloatArray]


class V3Tables:
    """The tables of a v3.0 result; reading an unreadable table raises."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def target(self) -> Target:
        """v3.0, with the names of the result's files."""
        info = _read_info(self.root)
        return v3_target({} if isinstance(info, Difference) else info)

    @cached_property
    def _episodes(self) -> v3.EpisodesReader:
        return v3.EpisodesReader(self.root)

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the result's table."""
        return self._episodes.num_rows

    def compare_info(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``info.json``."""
        info = _read_info(self.root)
        target: Target = TARGETS["v3.0"]
        if self.target != target:
            with suppress(UsageError):
                first = expected.sources[0].dataset
                overlay = target_of(target.version, OVERLAY, first, len(expected))
                target = overlay if overlay == self.target else target
        told = {} if isinstance(info, Difference) else info
        sizes = {name: told.get(key, float("nan")) for name, key in _SIZE_LIMITS.items()}
        wanted = target.info(expected.sources.info, expected.totals, sizes)
        yield from compare_info(info, wanted, tuple(_SIZE_LIMITS.values()))

    def compare_tasks(self, expected: Expected) -> Iterator[Difference]:
        """Compare the tasks, by index and text, and the table's pandas index."""
        yield from compare_tasks(TASKS_PATH, expected.sources.tasks, v3.read_tasks(self.root))
        schema = tables.read_data_schema(self.root / TASKS_PATH)
        if pandas_index(schema) != "task":
            found_layout = f"the columns {schema.names} without such an index"
            yield Difference("layout", TASKS_PATH, "texts as pandas index", found_layout)
        if sorted(schema.names) != _TASK_COLUMNS:
            yield Difference("columns", TASKS_PATH, str(_TASK_COLUMNS), str(sorted(schema.names)))
        elif (kind := schema.field("task_index").type) != pa.int64():
            yield Difference("type of column 'task_index'", TASKS_PATH, "int64", str(kind))

    def unusable(self, streams: Sequence[str]) -> Iterator[Difference]:
        """Yield columns that prevent any comparison: missing, incomplete, or of another type."""
        names = [*v3.placing_columns(streams), *LOCATION_COLUMNS]
        found: dict[str, Difference] = {}
        for path in self._episodes.paths:
            schema = self._episodes.schema(path)
            for name in [*names, "tasks"]:
                at = schema.get_field_index(name)
                kind = None if at < 0 else schema.field(at).type
                wanted = pa.float64() if name.endswith("_timestamp") else pa.int64()
                if kind is None:
                    said = "one such column", "none or several"
                elif name == "tasks" and not pa.types.is_list(kind):
                    said = "lists", str(kind)
                elif name != "tasks" and kind != wanted:
                    said = str(wanted), str(kind)
                else:
                    continue
                found.setdefault(name, Difference(f"column {name!r}", EPISODES_DIR, *said))
        yield from found.values() if found else self._unusable_values(names)

    def _unusable_values(self, names: Sequence[str]) -> Iterator[Difference]:
        """Yield columns with missing values, or with values that are no file numbers.

        Two wrong numbers together could give a right one.
        """
        missing: Counter[str] = Counter()
        impossible: dict[str, Difference] = {}
        row = 0
        for block in self._episodes.blocks(names.__contains__):
            for name in names:
                column = block.column(name)
                missing[name] += column.null_count
                if column.null_count or not name.endswith(("/chunk_index", "/file_index")):
                    continue
                counts_on = name not in LOCATION_COLUMNS and self.target != TARGETS[V3_VERSION]
                is_file = name.endswith("/file_index") and not counts_on
                stop = FILES_PER_CHUNK if is_file else _CHUNKS_STOP
                values = int64_values(column)
                wrong = np.flatnonzero((values < 0) | (values >= stop))
                if len(wrong):
                    what = f"column {name!r}, row {row + wrong[0]}"
                    said = f"a number from 0 to {stop - 1}", str(values[wrong[0]])
                    impossible.setdefault(name, Difference(what, EPISODES_DIR, *said))
            row += block.num_rows
        for name in names:
            if missing[name]:
                said = "a value for each episode", f"{missing[name]} missing"
                yield Difference(f"column {name!r}", EPISODES_DIR, *said)
            elif name in impossible:
                yield impossible[name]

    def compare_form(self) -> Iterator[Difference]:
        """Compare the positions and types that files of ``meta/episodes`` declare."""
        for number, path in enumerate(self._episodes.paths):
            if path != episodes_path(number):
                continue  # the comparison of files reports unexpected names
            values: dict[str, set[int]] = {name: set() for name in LOCATION_COLUMNS}
            for block in self._episodes.blocks(values.__contains__, path):
                for name, seen in values.items():
                    seen.update(np.unique(int64_values(block.column(name))).tolist())
            places = divmod(number, FILES_PER_CHUNK)
            for (name, seen), place in zip(values.items(), places, strict=True):
                if seen != {place}:
                    yield Difference(name, path, str(place), ", ".join(map(str, sorted(seen))))
            schema = self._episodes.schema(path)
            told = stored_entries(schema)  # the description of columns for `datasets`
            for field in schema:
                expected = feature_of_type(field.type)
                if told.get(field.name) != expected:
                    what = f"`huggingface` entry of column {field.name!r}"
                    yield Difference(what, path, str(expected), str(told.get(field.name)))

    def routes(self, streams: Sequence[str]) -> Routes:
        """Return the files of the episodes; the columns must be usable."""
        table, _ = v3.read_episode_table(self._episodes, streams)
        if table is None:
            nothing: FloatArray = np.empty(0)
            each = dict.fromkeys(streams, nothing)
            return Routes(dict.fromkeys(streams, np.empty(0, np.int64)), each, each)
        return Routes(
            {
                s: self.target.names.numbers(placed.chunk, placed.file)
                for s, placed in table.placed.items()
            },
            {s: placed.begin_seconds for s, placed in table.placed.items()},
            {s: placed.end_seconds for s, placed in table.placed.items()},
        )

    def compare_episodes(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``meta/episodes`` without its statistics and routes, row by row."""
        if self.num_episodes != len(expected):
            yield Difference("episodes", EPISODES_DIR, str(len(expected)), str(self.num_episodes))
            return
        placing = v3.placing_columns(expected.streams)
        wanted_columns = {
            "episode_index": np.arange(len(expected)),
            "length": expected.length,
            "dataset_from_index": expected.begins,
            "dataset_to_index": expected.begins + expected.length,
        }
        lines = expected.sources.lines()
        first = 0
        for block in self._episodes.blocks(lambda name: not name.startswith("stats/")):
            stop = first + block.num_rows
            for name, values in wanted_columns.items():
                wanted, found = values[first:stop], int64_values(block.column(name))
                for row in np.flatnonzero(wanted != found).tolist():
                    index = int(expected.index[first + row])
                    yield Difference(name, EPISODES_DIR, str(wanted[row]), str(found[row]), index)
            own = [name for name in block.column_names if name not in placing]
            rows = {name: block.column(name).to_pylist() for name in own}
            yield from compare_own_values(list(islice(lines, block.num_rows)), rows, placing)
            first = stop

    def compare_stats(self, expected: Expected) -> Iterator[Difference]:
        """Compare the statistics of episodes, and of the dataset with their aggregate."""
        yield from compare_stats(
            self.root, EPISODES_DIR, expected, self._stats(), partial(_data_files, self)
        )

    def _stats(self) -> Iterator[ResultStats]:
        for rows in self._episodes.blocks(lambda name: name.startswith("stats/")):
            columns = {
                name: nested_numbers(rows.column(number).combine_chunks())
                for number, name in enumerate(rows.column_names)  # a name may occur twice
            }
            whole = {name: array for name, array in columns.items() if array is not None}
            is_regular = len(whole) == len(columns)
            yield ResultStats(
                rows.num_rows, whole if is_regular else None, partial(_listed_rows, rows)
            )

    def own_files(self, there: Mapping[str, bool]) -> set[str]:
        """Return the tables that must exist, given all existing files."""
        number = sum(
            path.startswith(f"{EPISODES_DIR}/") and path.endswith(".parquet") for path in there
        )
        files = map(episodes_path, range(max(1, number)))
        return {INFO_PATH, STATS_PATH, TASKS_PATH, *files}

    def computed_stats(self, position: int) -> Mapping[str, Any]:
        """Return the statistics of an episode, by column ``stats/<feature>/<name>``."""
        rows = self._episodes.rows(position, position + 1, lambda name: name.startswith("stats/"))
        row: dict[str, Any] = next(rows).to_pylist()[0]
        return row

    def task_indices(self) -> dict[str, int]:
        """Return the index of each task's text; the first if a text occurs several times."""
        return {text: index for index, text in reversed(v3.read_tasks(self.root))}


class V21Tables:
    """The tables of a v2.1 result, with the methods of `V3Tables`."""

    target = TARGETS["v2.1"]

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def _episodes(self) -> v2.EpisodeLines:
        return v2.EpisodeLines(self.root / v2.EPISODES_PATH)

    @cached_property
    def _stats(self) -> v2.EpisodeLines:
        return v2.EpisodeLines(self.root / v2.STATS_PATH)

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the result's table."""
        return len(self._episodes)

    def compare_info(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``info.json``."""
        wanted = v2.converted_info(expected.sources.info, expected.totals)
        yield from compare_info(_read_info(self.root), wanted)

    def compare_tasks(self, expected: Expected) -> Iterator[Difference]:
        """Compare the tasks, by index and text."""
        yield from compare_tasks(v2.TASKS_PATH, expected.sources.tasks, v2.load_tasks(self.root))

    def unusable(self, streams: Sequence[str]) -> Iterator[Difference]:  # noqa: ARG002
        """Yield a wrong number of an episode, since nothing could be compared then."""
        index = self._episodes.episode_index
        wrong = np.flatnonzero(index != np.arange(len(index)))
        if len(wrong):
            at = int(wrong[0])
            yield Difference("episode_index", v2.EPISODES_PATH, str(at), str(index[at]))

    def compare_form(self) -> Iterator[Difference]:
        """Compare nothing: v2.1's lines have no such columns."""
        yield from ()

    def routes(self, streams: Sequence[str]) -> Routes:
        """Return the files of the episodes: one file each."""
        return Routes(dict.fromkeys(streams, self._episodes.episode_index), {}, {})

    def compare_episodes(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``episodes.jsonl`` line by line, every key."""
        path = v2.EPISODES_PATH
        if self.num_episodes != len(expected):
            yield Difference("episodes", path, str(len(expected)), str(self.num_episodes))
            return
        of_source = zip(
            expected.index.tolist(), expected.length.tolist(), expected.sources.lines(), strict=True
        )
        for have, (index, length, line) in zip(self._episodes, of_source, strict=True):
            wanted = v2.episode_line(line, int(have["episode_index"]), length)
            for key in differing_keys(wanted, have):
                theirs, ours = (str(row.get(key, "no such key")) for row in (wanted, have))
                yield Difference(key, path, theirs, ours, episode=index)

    def compare_stats(self, expected: Expected) -> Iterator[Difference]:
        """Compare the statistics of episodes, and of the dataset with their aggregate."""
        path = v2.STATS_PATH
        if not np.array_equal(self._stats.episode_index, self._episodes.episode_index):
            yield Difference("episodes", path, str(self.num_episodes), str(len(self._stats)))
            return
        yield from compare_stats(
            self.root, path, expected, self._stats_blocks(), partial(_data_files, self)
        )

    def _stats_blocks(self) -> Iterator[ResultStats]:
        lines = iter(self._stats)
        while found := [_stats_in(line) for line in islice(lines, BLOCK_EPISODES)]:
            columns = StatsBlock(found).columns
            yield ResultStats(
                len(found),
                None if columns is None else flat_columns(columns),
                partial(_flattened_rows, found),
            )

    def own_files(self, there: Mapping[str, bool]) -> set[str]:  # noqa: ARG002
        """Return the tables that must exist."""
        return set(v2.LEGACY_META_FILES)

    def computed_stats(self, position: int) -> Mapping[str, Any]:
        """Return the statistics of an episode, by column ``stats/<feature>/<name>``."""
        path = self._stats.path
        (line,) = v2.read_lines(path, self._stats.offsets_of(np.array([position])).tolist())
        record = {} if line is None else v2.parse_line(path, line)
        return dict(flattened(_stats_in(record), "stats"))

    def task_indices(self) -> dict[str, int]:
        """Return the index of each task's text; the first if a text occurs several times."""
        return {text: index for index, text in reversed(v2.load_tasks(self.root))}


type ResultTables = V3Tables | V21Tables
"""The tables of a result, each read in its format."""


def _data_files(result: ResultTables) -> list[str]:
    numbers = np.unique(result.routes([DATA_STREAM]).file_number[DATA_STREAM]).tolist()
    return [str(result.root / result.target.names.path(DATA_STREAM, number)) for number in numbers]


def _listed_rows(rows: pa.Table) -> list[Mapping[str, Any]]:
    columns = enumerate(rows.column_names)  # a name may occur twice
    block = {name: rows.column(number).to_pylist() for number, name in columns}
    return [{name: values[row] for name, values in block.items()} for row in range(rows.num_rows)]


def _flattened_rows(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [dict(flattened(stats, "stats")) for stats in found]


def _stats_in(line: Mapping[str, Any]) -> Mapping[str, Any]:
    stats = line.get("stats")
    return stats if isinstance(stats, Mapping) else {}


def tables_of(root: Path) -> ResultTables:
    """Return the tables of a result, by the version of its files."""
    is_v21 = has_source_tables(root) and not (root / EPISODES_DIR).is_dir()
    return V21Tables(root) if is_v21 else V3Tables(root)


def _read_info(root: Path) -> dict[str, Any] | Difference:
    return read_object(root, INFO_PATH, "readable metadata", "a JSON object")
