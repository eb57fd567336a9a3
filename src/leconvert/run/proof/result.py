"""What the tables of a result say, each read by its format: one interface for all versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert import tables
from leconvert.dataset.formats import (
    BLOCK_EPISODES,
    TARGETS,
    StatsBlock,
    Target,
    target_of,
    v2,
    v3,
    v3_target,
)
from leconvert.dataset.formats.v3 import (
    EPISODES_DIR,
    INFO_PATH,
    STATS_PATH,
    TASKS_PATH,
    episodes_path,
    pandas_index,
    read_json_object,
)
from leconvert.model.values import DATA_STREAM, OVERLAY
from leconvert.run.proof.difference import Difference
from leconvert.run.proof.equality import differing_keys
from leconvert.run.proof.expected import Expected, Routes, read_routes
from leconvert.run.proof.metadata import (
    compare_info,
    compare_location,
    compare_own_values,
    compare_tasks,
    unusable_columns,
)
from leconvert.run.proof.statistics import ResultStats, compare_stats, flat_columns, flattened
from leconvert.support.errors import UsageError
from leconvert.support.storage_errors import raise_storage_trouble
from leconvert.tables.arrow import int64_values, nested_numbers
from leconvert.workdir.swap import has_source_tables

# The conversion's own choice, which the source does not tell.
_SIZE_LIMITS = {
    "data_file_size_in_mb": "data_files_size_in_mb",
    "video_file_size_in_mb": "video_files_size_in_mb",
}
_EPISODES = "meta/episodes"
_TASK_COLUMNS = ["task", "task_index"]


class V3Tables:
    """The tables of a v3.0 result; what cannot be read of them raises."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def target(self) -> Target:
        """v3.0, with the names that the result's files have."""
        info = _read_info(self.root)
        return v3_target({} if isinstance(info, Difference) else info)

    @cached_property
    def _episodes(self) -> v3.EpisodesReader:
        return v3.EpisodesReader(self.root)

    @property
    def num_episodes(self) -> int:
        """Episodes that the result lists."""
        return self._episodes.num_rows

    def compare_info(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``info.json``."""
        info = _read_info(self.root)
        if isinstance(info, Difference):
            yield info
            return
        target: Target = TARGETS["v3.0"]
        if self.target != target:
            with suppress(UsageError):
                first = expected.sources[0].dataset
                overlay = target_of(target.version, OVERLAY, first, len(expected))
                target = overlay if overlay == self.target else target
        nan = float("nan")
        sizes = {name: info.get(key, nan) for name, key in _SIZE_LIMITS.items()}
        wanted = target.info(expected.sources.info, expected.totals, sizes)
        yield from compare_info(info, wanted, tuple(_SIZE_LIMITS.values()))

    def compare_tasks(self, expected: Expected) -> Iterator[Difference]:
        """Compare the tasks, by index and text, and how the table presents them to pandas."""
        yield from compare_tasks(TASKS_PATH, expected.tasks, v3.read_tasks(self.root))
        schema = tables.read_data_schema(self.root / TASKS_PATH)
        if pandas_index(schema) != "task":
            found_layout = f"the columns {schema.names} without such an index"
            yield Difference("layout", TASKS_PATH, "texts as pandas index", found_layout)
        if sorted(schema.names) != _TASK_COLUMNS:
            yield Difference("columns", TASKS_PATH, str(_TASK_COLUMNS), str(sorted(schema.names)))
        elif (kind := schema.field("task_index").type) != pa.int64():
            yield Difference("type of column 'task_index'", TASKS_PATH, "int64", str(kind))

    def unusable(self, streams: Sequence[str]) -> Iterator[Difference]:
        """Yield columns without which nothing can be compared."""
        yield from unusable_columns(self._episodes, streams, self.target)

    def compare_form(self) -> Iterator[Difference]:
        """Compare what files of ``meta/episodes`` say of themselves with their names and types."""
        yield from compare_location(self._episodes)

    def routes(self, streams: Sequence[str]) -> Routes:
        """Return which files hold the episodes."""
        return read_routes(self._episodes, streams, self.target)

    def compare_episodes(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``meta/episodes`` without its statistics and routes, row by row."""
        if self.num_episodes != len(expected):
            yield Difference("episodes", _EPISODES, str(len(expected)), str(self.num_episodes))
            return
        placing = v3.placing_columns(expected.streams)
        wanted_columns = {
            "episode_index": np.arange(len(expected)),
            "length": expected.length,
            "dataset_from_index": expected.begins,
            "dataset_to_index": expected.begins + expected.length,
        }
        lines = expected.lines()
        first = 0
        for block in self._episodes.blocks(lambda name: not name.startswith("stats/")):
            stop = first + block.num_rows
            for name, values in wanted_columns.items():
                wanted, found = values[first:stop], int64_values(block.column(name))
                for row in np.flatnonzero(wanted != found).tolist():
                    index = int(expected.index[first + row])
                    yield Difference(name, _EPISODES, str(wanted[row]), str(found[row]), index)
            own = [name for name in block.column_names if name not in placing]
            rows = {name: block.column(name).to_pylist() for name in own}
            yield from compare_own_values(list(islice(lines, block.num_rows)), rows, placing)
            first = stop

    def compare_stats(self, expected: Expected) -> Iterator[Difference]:
        """Compare the statistics of episodes, and those of the dataset with their aggregate."""
        yield from compare_stats(
            self.root, _EPISODES, expected, self._stats(), partial(_data_files, self)
        )

    def _stats(self) -> Iterator[ResultStats]:
        for rows in self._episodes.blocks(lambda name: name.startswith("stats/")):
            columns = {
                name: nested_numbers(rows.column(number).combine_chunks())
                for number, name in enumerate(rows.column_names)  # a name may be there twice
            }
            whole = {name: array for name, array in columns.items() if array is not None}
            is_regular = len(whole) == len(columns)
            yield ResultStats(
                rows.num_rows, whole if is_regular else None, partial(_listed_rows, rows)
            )

    def own_files(self, there: Mapping[str, bool]) -> set[str]:
        """Return the tables that there must be, given all files that there are."""
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
        """Return the index of each task's text, the first where a text has several."""
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
        """Episodes that the result lists."""
        return len(self._episodes)

    def compare_info(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``info.json``."""
        info = _read_info(self.root)
        if isinstance(info, Difference):
            yield info
            return
        wanted = v2.converted_info(
            expected.sources.info,
            expected.totals,
        )
        yield from compare_info(info, wanted)

    def compare_tasks(self, expected: Expected) -> Iterator[Difference]:
        """Compare the tasks, by index and text."""
        yield from compare_tasks(v2.TASKS_PATH, expected.tasks, v2.load_tasks(self.root))

    def unusable(self, streams: Sequence[str]) -> Iterator[Difference]:  # noqa: ARG002
        """Yield where episodes are not numbered, so that nothing can be compared."""
        index = self._episodes.episode_index
        wrong = np.flatnonzero(index != np.arange(len(index)))
        if len(wrong):
            at = int(wrong[0])
            yield Difference("episode_index", v2.EPISODES_PATH, str(at), str(index[at]))

    def compare_form(self) -> Iterator[Difference]:
        """Compare nothing: a line says nothing of its table."""
        yield from ()

    def routes(self, streams: Sequence[str]) -> Routes:
        """Return which files hold the episodes: each its own."""
        return Routes(dict.fromkeys(streams, self._episodes.episode_index), {}, {})

    def compare_episodes(self, expected: Expected) -> Iterator[Difference]:
        """Compare ``episodes.jsonl`` line by line, every key."""
        path = v2.EPISODES_PATH
        if self.num_episodes != len(expected):
            yield Difference("episodes", path, str(len(expected)), str(self.num_episodes))
            return
        of_source = zip(
            expected.index.tolist(), expected.length.tolist(), expected.lines(), strict=True
        )
        for have, (index, length, line) in zip(self._episodes, of_source, strict=True):
            wanted = v2.episode_line(line, int(have["episode_index"]), length)
            for key in differing_keys(wanted, have):
                theirs, ours = (str(row.get(key, "no such key")) for row in (wanted, have))
                yield Difference(key, path, theirs, ours, episode=index)

    def compare_stats(self, expected: Expected) -> Iterator[Difference]:
        """Compare the statistics of episodes, and those of the dataset with their aggregate."""
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
        """Return the tables that there must be."""
        return set(v2.LEGACY_META_FILES)

    def computed_stats(self, position: int) -> Mapping[str, Any]:
        """Return the statistics of an episode, by column ``stats/<feature>/<name>``."""
        path = self._stats.path
        (line,) = v2.read_lines(path, self._stats.offsets_of(np.array([position])).tolist())
        record = {} if line is None else v2.parse_line(path, line)
        return dict(flattened(_stats_in(record), "stats"))

    def task_indices(self) -> dict[str, int]:
        """Return the index of each task's text, the first where a text has several."""
        return {text: index for index, text in reversed(v2.load_tasks(self.root))}


type ResultTables = V3Tables | V21Tables
"""The tables of a result, each read by its format."""


def _data_files(result: ResultTables) -> list[str]:
    numbers = np.unique(result.routes([DATA_STREAM]).file_number[DATA_STREAM]).tolist()
    return [str(result.root / result.target.path(DATA_STREAM, number)) for number in numbers]


def _listed_rows(rows: pa.Table) -> list[Mapping[str, Any]]:
    columns = enumerate(rows.column_names)  # a name may be there twice
    block = {name: rows.column(number).to_pylist() for number, name in columns}
    return [{name: values[row] for name, values in block.items()} for row in range(rows.num_rows)]


def _flattened_rows(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [dict(flattened(stats, "stats")) for stats in found]


def _stats_in(line: Mapping[str, Any]) -> Mapping[str, Any]:
    stats = line.get("stats")
    return stats if isinstance(stats, Mapping) else {}


def tables_of(root: Path) -> ResultTables:
    """Return the tables of a result, by the version that its files are of."""
    is_v21 = has_source_tables(root) and not (root / EPISODES_DIR).is_dir()
    return V21Tables(root) if is_v21 else V3Tables(root)


def _read_info(root: Path) -> dict[str, Any] | Difference:
    try:
        return read_json_object(root / INFO_PATH)
    except (OSError, ValueError) as error:
        raise_storage_trouble(error, root / INFO_PATH)
        return Difference("readable metadata", INFO_PATH, "a JSON object", str(error))
