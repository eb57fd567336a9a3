"""The right content of a v3.0 dataset's tables, derived from its files if they are wrong.

A data file holds the episodes that its column ``episode_index`` names. The count of frames
tells the episodes of a camera's file: if the files that the template finds, in the order of their
numbers, have together as many frames as all episodes, and no episode begins in one file and ends in
the next, each episode has its place. Anything less would be a guess.

The rows of an episode give its number, its length, its tasks and its data file. Statistics of
episodes need decoding, and are left out.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media
from leconvert.dataset.files import files_below
from leconvert.dataset.findings import Observation
from leconvert.dataset.formats.stats import StatsBlock
from leconvert.dataset.formats.v3.episodes import (
    STATS_PREFIX,
    DerivedEpisodes,
    EpisodeRecords,
    EpisodesReader,
    EpisodeTable,
    StreamPlaces,
    VideoSpans,
    seconds_of,
    stats_of_rows,
    write_episodes,
)
from leconvert.dataset.formats.v3.meta import (
    EPISODES_DIR,
    INFO_PATH,
    TASKS_PATH,
    USUAL_NAMES,
    Declared,
    declaration,
    pandas_index,
    task_table,
    template_problem,
    write_info,
    write_tasks,
)
from leconvert.dataset.formats.v3.rows import ROWS_AT_A_TIME
from leconvert.model.repairs import LocatedFile, Repairs
from leconvert.model.values import (
    DATA_STREAM,
    Finding,
    FloatArray,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION
from leconvert.support.errors import LeconvertError, UnreadableSourceError
from leconvert.support.text import count
from leconvert.tables import finish_table, has_footer
from leconvert.tables.arrow import integers

# With these an episode may have another file than ``meta/episodes`` says.
_FILES_IN_DOUBT = frozenset(
    {"missing-file", "row-count", "frame-count", "shared-frames", "episode-index", "file-order"}
)
_MOST_DIGITS = 18


def files_there(root: Path, declared: Declared, stream: str) -> list[tuple[int, int, str]]:
    """Return chunk, number and path of each file that the template of a stream finds, ascending."""
    numbers_of = _numbers_in_names(declared, stream)
    folder = declared.templates[stream].partition("{")[0].rpartition("/")[0]
    found = []
    for path, is_file in files_below(root, f"{folder}/" if folder else ""):
        numbers = numbers_of(path) if is_file else None
        if numbers is not None:
            found.append((*numbers, path))
    return sorted(found)


def _numbers_in_names(declared: Declared, stream: str) -> Callable[[str], tuple[int, int] | None]:
    """Return what tells chunk and number of a file of a stream by its name; None for others."""
    pattern, names = "", []
    for literal, name, _, _ in Formatter().parse(declared.templates[stream]):
        pattern += re.escape(literal)
        if name == "video_key":
            pattern += re.escape(str(camera_of(stream)))
        elif name is not None:
            pattern += f"([0-9]{{1,{_MOST_DIGITS}}})"
            names.append(name)

    def numbers_of(path: str) -> tuple[int, int] | None:
        match = re.fullmatch(pattern, path)
        if match is None:
            return None
        at = dict(zip(names, map(int, match.groups()), strict=True))
        chunk, file = at["chunk_index"], at["file_index"]
        return (chunk, file) if declared.path(stream, chunk, file) == path else None

    return numbers_of


def fitted(lengths: IntArray, frames: IntArray) -> tuple[IntArray, IntArray] | None:
    """Return the file of each episode and its first frame there; None where they do not fit.

    Args:
        lengths: Frames of each episode, shape (E,).
        frames: Frames of each file, in the order of the files, shape (F,).
    """
    stops, ends = np.cumsum(lengths), np.cumsum(frames)
    is_whole = len(stops) and len(ends) and stops[-1] == ends[-1]
    if not is_whole or lengths.min() < 1 or frames.min() < 1 or not np.isin(ends, stops).all():
        return None
    file = np.searchsorted(ends, stops - lengths, side="right")
    return file, stops - lengths - (ends - frames)[file]


InDoubt = Mapping[str, tuple[int | None, str]]
"""Streams that may have other files than they name: an episode, and the observation."""


def streams_in_doubt(seen: Iterable[Finding | Observation]) -> dict[str, tuple[int | None, str]]:
    """Return the streams of which something was seen that may come of wrong files."""
    wrong: dict[str, tuple[int | None, str]] = {}
    for each in seen:
        if each.stream and each.code in _FILES_IN_DOUBT:
            wrong.setdefault(each.stream, (each.episode, each.message))
    return wrong


class Located(NamedTuple):
    """The places of files that are not where a dataset says.

    Attributes:
        info: Path templates that find them, by their key in ``info.json``.
        places: The places of all episodes in streams of which other files are named.
    """

    info: Mapping[str, str] = MappingProxyType({})
    places: Mapping[str, StreamPlaces] = MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.info or self.places)

    def told(
        self, raw: Mapping[str, Any], wrong: InDoubt
    ) -> Iterator[tuple[str, str | None, int | None, str]]:
        """Yield each difference: the file that says it wrongly, stream, episode, and a sentence.

        Args:
            raw: The dataset's ``info.json``.
            wrong: The observations of the files that a stream names.
        """
        for key, template in self.info.items():
            yield INFO_PATH, None, None, said_of_template(raw, key, template)
        for stream in sorted(self.places):
            episode, seen = wrong[stream]
            yield EPISODES_DIR, stream, episode, f"{EPISODES_DIR} names wrong files: {seen}"

    def reading(self, reading: Repairs, declared: Declared, table: EpisodeTable) -> Repairs:
        """Return the repairs with which the dataset is read, these files included.

        Args:
            reading: The repairs so far.
            declared: The dataset's declarations, as the repairs so far read them.
            table: The stored places of episodes.
        """
        keys = {"data_path" if camera_of(each) is None else "video_path" for each in self.places}
        templates = {key: declared.raw[key] for key in sorted(keys)} | dict(self.info)
        declared = with_templates(declared, templates)
        files = []
        for stream, places in sorted(self.places.items()):
            stored = table.placed[stream]
            differs = (places.chunk != stored.chunk) | (places.file != stored.file)
            for episode in np.flatnonzero(differs).tolist():
                at = int(places.chunk[episode]), int(places.file[episode])
                files.append(LocatedFile(stream, episode, declared.path(stream, *at)))
        templates = {**reading.path_templates, **templates}
        return replace(reading, path_templates=templates, located_files=tuple(files))


NOTHING_LOCATED = Located()


def said_of_template(raw: Mapping[str, Any], key: str, template: str) -> str:
    """Return the message about a template that another one has to replace."""
    return f"{key} is {raw.get(key)!r}, but the files are named {template!r}."


def placed_as_located(
    declared: Declared, table: EpisodeTable, located: Iterable[LocatedFile]
) -> dict[str, StreamPlaces]:
    """Return the places of episodes in all streams, some of whose files were located.

    Args:
        declared: The declarations, with the templates that find the files.
        table: The places as stored.
        located: The files; see `Located.reading`.
    """
    by_stream: dict[str, list[LocatedFile]] = {}
    for file in located:
        by_stream.setdefault(file.stream, []).append(file)
    placed = dict(table.placed)
    for stream, files in by_stream.items():
        chunk, number = placed[stream].chunk.copy(), placed[stream].file.copy()
        numbers_of = _numbers_in_names(declared, stream)
        for file in files:
            numbers = numbers_of(file.path)
            if numbers is None:
                raise UnreadableSourceError(
                    f"{file.path} has no name of a file of {stream}.", path=file.path
                )
            chunk[file.episode], number[file.episode] = numbers
        placed[stream] = _counted(declared, stream, chunk, number, table.length)
    return placed


def _counted(
    declared: Declared, stream: str, chunk: IntArray, file: IntArray, lengths: IntArray
) -> StreamPlaces:
    """Return the places of episodes that follow each other in their files."""
    nothing: FloatArray = np.zeros(0)
    if camera_of(stream) is None:
        return StreamPlaces(chunk, file, nothing, nothing)
    start = np.cumsum(lengths) - lengths
    pairs = np.stack([chunk, file], axis=1)
    _, first, of_file = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    begin = start - start[first][of_file.reshape(-1)]
    times = (seconds_of(at, declared.fps) for at in (begin, begin + lengths))
    return StreamPlaces(chunk, file, *times)


def locate_files(
    root: Path, declared: Declared, table: EpisodeTable, streams: Collection[str]
) -> Located:
    """Look for the files of streams with wrong ones, and return what differs from what is said."""
    info = locate_templates(root, declared, streams)
    declared = with_templates(declared, info)
    places = {}
    for stream in streams:
        if stream not in declared.templates or stream not in table.placed:
            continue
        found = located_places(root, declared, table.length, stream)
        stored = table.placed[stream]
        if found is not None and not (
            np.array_equal(found.chunk, stored.chunk) and np.array_equal(found.file, stored.file)
        ):
            places[stream] = found
    return Located(info, places)


def locate_templates(root: Path, declared: Declared, streams: Collection[str]) -> dict[str, str]:
    """Return the path templates that find the files of streams where the stored ones find none.

    One template is for all cameras: if one of them has its files, the template stays.
    """
    cameras = {stream_of_camera(key) for key in declared.cameras}
    info = {}
    for key, own in (("data_path", {DATA_STREAM}), ("video_path", cameras)):
        template = _other_template(root, declared, own) if own and own.issubset(streams) else None
        if template is not None:
            info[key] = template
    return info


def nameless_templates(root: Path, declared: Declared | None) -> dict[str, str]:
    """Return the path templates that find the files of streams without a usable template."""
    if declared is None:
        return {}
    streams = {DATA_STREAM, *map(stream_of_camera, declared.cameras)}
    nameless = streams - declared.templates.keys()
    return locate_templates(root, declared, nameless) if nameless else {}


def with_templates(declared: Declared, info: Mapping[str, str]) -> Declared:
    """Return the declarations with other path templates, by their key in ``info.json``."""
    templates = dict(declared.templates)
    for key, template in info.items():
        cameras = map(stream_of_camera, declared.cameras)
        own = [DATA_STREAM] if key == "data_path" else cameras
        templates |= dict.fromkeys(own, template)
    return replace(declared, templates=templates)


def _other_template(root: Path, declared: Declared, streams: Collection[str]) -> str | None:
    """Return the one template that finds files of all of some streams where theirs finds none."""
    found: set[str] | None = None
    for stream in streams:
        if stream in declared.templates and files_there(root, declared, stream):
            return None
        camera = camera_of(stream)
        begin, end = ("data/", ".parquet") if camera is None else ("", ".mp4")
        names = {
            _template_of(path, camera)
            for path, is_file in files_below(root, begin)
            if is_file and path.endswith(end)
        }
        own = {each for each in names if each and template_problem(each, stream) is None}
        if own:  # of a camera that is wholly absent nothing tells
            found = own if found is None else found & own
    return found.pop() if found and len(found) == 1 else None


def _template_of(path: str, camera: str | None) -> str | None:
    """Return the template that a file's name is of, if it has a number of a chunk and of a file."""
    stem, dot, suffix = path.rpartition(".")
    begin, key, end = stem.partition(camera) if camera else ("", "", stem)
    if camera and not key:
        return None
    names = iter(("file_index", "chunk_index"))
    parts = []
    for part in reversed(re.split("([0-9]+)", f"{begin}\0{end}")):
        name = next(names, None) if part.isdecimal() else None
        parts.append(part if name is None else f"{{{name}:0{len(part)}d}}")
    template = "".join(reversed(parts)).replace("\0", "{video_key}" if camera else "")
    return template + dot + suffix


def located_places(
    root: Path, declared: Declared, lengths: IntArray, stream: str
) -> StreamPlaces | None:
    """Return where all episodes are in the files of a stream; None where that is not certain.

    Args:
        lengths: Frames of each episode, shape (E,).
    """
    there = files_there(root, declared, stream)
    try:
        if camera_of(stream) is None:
            episodes, counts, file = _rows_in(root, there)
            if not (
                np.array_equal(episodes, np.arange(len(lengths))) and (counts == lengths).all()
            ):
                return None
        else:
            file, _ = _fitted_clips(root, there, lengths)
    except (UnreadableSourceError, OSError, ValueError, pa.ArrowException):
        return None
    chunks, numbers = (np.array([each[at] for each in there], np.int64)[file] for at in (0, 1))
    return _counted(declared, stream, chunks, numbers, lengths)


Files = Sequence[tuple[int, int, str]]
"""Chunk, number and path of each file; see `files_there`."""


def _rows_in(root: Path, there: Files) -> tuple[IntArray, IntArray, IntArray]:
    """Return the episodes in data files, in the order of their rows: number, rows and file."""
    rows = [episodes_in(root / path) for _, _, path in there]
    file = np.repeat(np.arange(len(rows)), [len(episodes) for episodes, _ in rows])
    episodes, counts = (np.concatenate([each[at] for each in rows]) for at in (0, 1))
    return episodes, counts, file


def _fitted_clips(
    root: Path, there: Files, lengths: IntArray, *, further: int = 0
) -> tuple[IntArray, IntArray]:
    """Return the video file of each episode, and its first frame there; see `fitted`.

    Args:
        further: Frames of one more episode, which the videos may have.
    """
    frames = np.array([media.count_tracks_and_frames(root / path)[1] for _, _, path in there])
    found = fitted(lengths, frames)
    if found is None and further:
        found = fitted(np.append(lengths, further), frames)
        found = found and (found[0][:-1], found[1][:-1])
    if found is None:
        raise ValueError("the videos have other frames than the episodes")
    return found


def episodes_in(path: Path) -> tuple[IntArray, IntArray]:
    """Return the episodes of a data file in the order of their rows, and the rows of each."""
    blocks = []
    with pq.ParquetFile(path) as file:
        if "episode_index" not in file.schema_arrow.names or not file.metadata.num_rows:
            raise ValueError(f"{path} does not name the episodes of its rows")
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=["episode_index"]):
            values = integers(batch.column(0))
            if values is None:
                raise ValueError(f"{path} has rows of no episode")
            edges = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
            blocks.append((values[edges], np.diff(edges, append=len(values))))
    episodes, rows = (np.concatenate([block[at] for block in blocks]) for at in (0, 1))
    begins = np.flatnonzero(np.diff(episodes, prepend=episodes[0] - 1))
    return episodes[begins], np.add.reduceat(rows, begins)


_OLD_TASKS = "meta/tasks.jsonl"
_OLD_EPISODES = "meta/episodes.jsonl"
# More files than a chunk ever has: a number then names chunk and file.
_NAMES = USUAL_NAMES._replace(files_per_chunk=1 << 31)


class Derived(NamedTuple):
    """Tables below ``meta/`` that follow from rows and files.

    Attributes:
        tasks: Number and text of each task; None if the stored table is right.
        episodes: All episodes; None if there is a stored table.
        fps: Frames a second, for the times of episodes.
        said: The faults, one sentence each, by their file.
    """

    tasks: Sequence[tuple[int, str]] | None = None
    episodes: EpisodeRecords | None = None
    fps: Fraction = Fraction(1)
    said: tuple[tuple[str, str], ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The tables, relative to the dataset."""
        told = {TASKS_PATH: self.tasks, EPISODES_DIR: self.episodes}
        return tuple(path for path, found in told.items() if found is not None)

    def task_table(self) -> pa.Table | None:
        """Return the table of tasks as it would be stored."""
        return None if self.tasks is None else task_table(self.tasks)

    def reader(self) -> EpisodesReader | None:
        """Return a reader of the table of episodes."""
        return None if self.episodes is None else DerivedEpisodes(self.episodes, self.fps, _NAMES)

    def write(self, root: Path) -> tuple[str, ...]:
        """Write the tables below a folder; return their files."""
        files = []
        if self.tasks is not None:
            write_tasks(root, self.tasks)
            files.append(TASKS_PATH)
        if (episodes := self.episodes) is not None:
            files += write_episodes(root, lambda: [episodes], fps=self.fps, names=_NAMES)
        return tuple(files)


NOTHING_DERIVED = Derived()
# The columns of ``meta/episodes`` that follow from rows and files, and those of statistics.
_DERIVED_COLUMNS = re.compile(
    f"(episode_index|length|dataset_(from|to)_index)$|data/|videos/|{EPISODES_DIR}/|{STATS_PREFIX}"
)


def lacking_tables(root: Path) -> tuple[str, ...]:
    """Return the tables of a v3.0 dataset that are missing, or that lack index or footer."""
    episodes = EpisodesReader(root)
    has_episodes = episodes.is_there and all(has_footer(root / path) for path in episodes.paths)
    lacking = {TASKS_PATH: not _has_tasks(root), EPISODES_DIR: not has_episodes}
    return tuple(path for path, lacks in lacking.items() if lacks)


def derive_tables(root: Path, declared: Declared | None, *, further: int = 0) -> Derived:
    """Return the lacking tables of a v3.0 dataset; nothing if one of them does not follow.

    Args:
        root: The dataset.
        declared: The dataset's declarations; None if nothing can be read by them.
        further: Frames of one more episode, without rows, which the videos may have.
    """
    lacking = lacking_tables(root)
    found = NOTHING_DERIVED
    if TASKS_PATH in lacking:
        tasks, message = _derive_tasks(root)
        found = found._replace(tasks=tasks, said=((TASKS_PATH, message),))
    if EPISODES_DIR in lacking and declared is not None and not (root / EPISODES_DIR).is_file():
        with suppress(LeconvertError, OSError, ValueError, LookupError, pa.ArrowException):
            stored = None if TASKS_PATH in lacking else pq.read_table(root / TASKS_PATH)
            table = found.task_table() if stored is None else stored
            texts = [] if table is None else table.column("task").to_pylist()
            episodes = _derive_episodes(root, declared, texts, further)
            message = f"{EPISODES_DIR} has no table."
            said = (*found.said, (EPISODES_DIR, message))
            found = found._replace(episodes=episodes, fps=declared.fps, said=said)
    return found if found.paths == lacking else NOTHING_DERIVED  # one table alone is no help


def has_files_of_v3(root: Path) -> bool:
    """Tell whether the tables below ``meta/`` are those of v3.0, whatever ``info.json`` says."""
    return not (root / _OLD_EPISODES).exists() and (
        EpisodesReader(root).is_there or (root / TASKS_PATH).is_file()
    )


def says_another_version(root: Path, raw: Mapping[str, Any]) -> bool:
    """Tell whether a dataset that lies in the files of v3.0 says v2.x, or no version."""
    return (
        raw.get("codebase_version") in (None, *SOURCE_VERSIONS)
        and isinstance(raw.get("features"), dict)
        and has_files_of_v3(root)
    )


def said_of_version(raw: Mapping[str, Any]) -> str:
    """Return the message about a wrong ``codebase_version`` of a v3.0 dataset."""
    version = raw.get("codebase_version")
    return f"codebase_version is {version!r}, but the files are those of v3.0."


class DerivedView(NamedTuple):
    """A dataset with what was derived in its place.

    Attributes:
        root: A folder of links to the dataset's files, except the derived tables.
        raw: Its ``info.json``.
        info: Its changed keys.
        files: The files of derived tables, relative to the dataset.
        said: The faults: code, file, and one sentence.
    """

    root: Path
    raw: Mapping[str, Any]
    info: Mapping[str, Any]
    files: tuple[str, ...]
    said: tuple[tuple[str, str, str], ...]


@contextmanager
def derived_meta(root: Path, raw: Mapping[str, Any]) -> Iterator[DerivedView | None]:
    """Yield the dataset with what can be derived of ``meta/``; None where nothing can or need be.

    Nothing is written into the dataset; the folder is gone at the end.
    """
    info: dict[str, Any] = {}
    said: list[tuple[str, str, str]] = []
    if says_another_version(root, raw):
        info["codebase_version"] = V3_VERSION
        said.append(("derivable", INFO_PATH, said_of_version(raw)))
    declared: Declared | None = None
    unfinished: Sequence[str] = ()
    lacking = lacking_tables(root)
    listed = None if EPISODES_DIR in lacking else _too_short_table(root, raw)
    if listed is not None:
        lacking += (EPISODES_DIR,)
    if lacking:
        declared, _ = declaration({**raw, **info})
        for key, template in nameless_templates(root, declared).items():
            info[key] = template
            said.append(("path-template", INFO_PATH, said_of_template(raw, key, template)))
        declared, _ = declaration({**raw, **info})
        # With a table of episodes, a data file was cut off later: another copy may have all rows.
        unfinished = unfinished_tables(root, declared) if EPISODES_DIR in lacking else ()
    if not (lacking or said):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leconvert-derived-") as folder:
        view = Path(folder) / root.name
        is_folder = EPISODES_DIR in lacking and not (root / EPISODES_DIR).is_file()
        _link(root, view, without={*unfinished, *([EPISODES_DIR] if is_folder else [])})
        left_out = 0
        try:
            rows = {
                path: finish_table(root / path, raw["features"], view / path) for path in unfinished
            }
            derived = derive_tables(view, declared)
            if unfinished and not derived.said:  # some camera may lack the last episode
                last = unfinished[-1]
                left_out = rows[last].pop()
                most = sum(rows[last])
                finish_table(root / last, raw["features"], view / last, most_rows=most)
                derived = derive_tables(view, declared, further=left_out)
            if listed is not None:
                derived = _with_listed(derived, listed, raw["total_episodes"])
        except LeconvertError:
            yield None
            return
        for path in unfinished:
            message = f"{path} has no footer: a recording was not ended. "
            if left_out and path == unfinished[-1]:
                message += f"Its last {count(left_out, 'row')} are left out, "
                message += "since a camera lacks them. "
            said.append(("derivable", path, f"{message}It has {count(sum(rows[path]), 'row')}."))
        said += (("derivable", path, message) for path, message in derived.said)
        if not (derived.said if lacking else said):
            yield None
            return
        for path in derived.paths:
            (view / path).unlink(missing_ok=True)
        files = (*unfinished, *derived.write(view))
        if info:
            (view / INFO_PATH).unlink()
            write_info(view, {**raw, **info})
        yield DerivedView(view, {**raw, **info}, info, files, tuple(said))


def _too_short_table(root: Path, raw: Mapping[str, Any]) -> EpisodesReader | None:
    """Return ``meta/episodes`` if it lists fewer episodes than ``info.json`` counts."""
    reader, counted = EpisodesReader(root), raw.get("total_episodes")
    with suppress(LeconvertError):
        if type(counted) is int and reader.num_rows < counted:
            return reader
    return None


def _with_listed(derived: Derived, listed: EpisodesReader, counted: int) -> Derived:
    """Add what a stored table says of its episodes; return nothing if it does not go on in rows."""
    records = derived.episodes
    if records is None or len(records.length) < counted:
        return NOTHING_DERIVED
    lines, stats, at = list(records.legacy), list(records.stats.rows), 0
    for rows in listed.blocks(lambda _: True):
        own = slice(at, at := at + rows.num_rows)
        for name, found in (("episode_index", records.episode_index), ("length", records.length)):
            if (
                name not in rows.column_names
                or rows.column(name).to_pylist() != found[own].tolist()
            ):
                return NOTHING_DERIVED
        others = [name for name in rows.column_names if not _DERIVED_COLUMNS.match(name)]
        lines[own] = [
            {**line, **more}
            for line, more in zip(lines[own], rows.select(others).to_pylist(), strict=True)
        ]
        stats[own] = stats_of_rows(rows).rows
    message = f"{EPISODES_DIR} lists {at:,} episodes, but the files have {len(lines):,}."
    said = tuple(each for each in derived.said if each[0] != EPISODES_DIR)
    return derived._replace(
        episodes=records._replace(legacy=lines, stats=StatsBlock(stats)),
        said=(*said, (EPISODES_DIR, message)),
    )


def _link(root: Path, view: Path, *, without: Collection[str], below: str = "") -> None:
    """Link everything of a dataset into a view of it, except some files and folders."""
    (view / below).mkdir(parents=True)
    on_the_way = {str(folder) for path in (*without, TASKS_PATH) for folder in Path(path).parents}
    for entry in (root / below).iterdir():
        path = f"{below}{entry.name}"
        if path in on_the_way:
            _link(root, view, without=without, below=f"{path}/")
        elif path not in without:
            (view / path).symlink_to(entry.absolute())


def unfinished_tables(root: Path, declared: Declared | None) -> list[str]:
    """Return the data files without a footer."""
    if declared is None or DATA_STREAM not in declared.templates:
        return []
    there = files_there(root, declared, DATA_STREAM)
    return [path for _, _, path in there if not has_footer(root / path)]


def _has_tasks(root: Path) -> bool:
    path = root / TASKS_PATH
    try:  # a pipe must not be opened
        return path.is_file() and pandas_index(pq.read_schema(path)) is not None
    except (OSError, pa.ArrowException):
        return False


def _derive_tasks(root: Path) -> tuple[list[tuple[int, str]] | None, str]:
    """Return the tasks, None where they do not follow, and say what is wrong with their table."""
    path = root / TASKS_PATH
    message = f"{TASKS_PATH} is missing, but {_OLD_TASKS} has the tasks."
    try:
        if path.exists():
            table = pq.read_table(path)
            rows = table.to_pylist()
            message = (
                f"{TASKS_PATH} has the columns {table.column_names}. The pandas index with the "
                "texts is missing."
            )
        else:
            lines = (root / _OLD_TASKS).read_bytes().splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
        tasks = [(row["task_index"], row["task"]) for row in rows]
        if not all(type(index) is int and isinstance(text, str) for index, text in tasks):
            return None, message
        task_table(tasks)  # raises if the numbers do not run from 0 without gaps
    except (LeconvertError, OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return None, message
    return tasks, message


def _derive_episodes(
    root: Path, declared: Declared, texts: list[str], further: int
) -> EpisodeRecords:
    """Return all episodes; raise where they do not follow from rows and frames."""

    def places(there: Files) -> IntArray:
        return np.array([chunk * _NAMES.files_per_chunk + file for chunk, file, _ in there])

    there = files_there(root, declared, DATA_STREAM)
    episodes, length, data_file = _rows_in(root, there)
    if not np.array_equal(episodes, np.arange(len(episodes))):
        raise ValueError("the rows of episodes do not follow each other")
    videos = []
    for camera in declared.cameras:
        clips = files_there(root, declared, stream_of_camera(camera))
        file, first = _fitted_clips(root, clips, length, further=further)
        videos.append(VideoSpans(camera, places(clips)[file], first, first + length))
    return EpisodeRecords(
        episode_index=episodes,
        data_file=places(there)[data_file],
        dataset_from_index=np.cumsum(length) - length,
        length=length,
        videos=videos,
        legacy=[
            {"tasks": [texts[task] for task in tasks]}
            for _, _, path in there
            for tasks in _tasks_in(root / path)
        ],
        stats=StatsBlock([None] * len(episodes)),
    )


def _tasks_in(path: Path) -> list[list[int]]:
    """Return the tasks of each episode of a data file, in the order of their rows."""
    rows = pq.read_table(path, columns=["episode_index", "task_index"])
    episode, task = (integers(rows.column(name).combine_chunks()) for name in rows.column_names)
    if episode is None or task is None or task.min() < 0:
        raise ValueError(f"{path} has rows without a task")
    begins = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1))
    return [list(dict.fromkeys(part.tolist())) for part in np.split(task, begins[1:])]
