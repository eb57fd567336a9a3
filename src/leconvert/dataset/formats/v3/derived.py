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
import shlex
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
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
    EpisodeRecords,
    EpisodesReader,
    EpisodeTable,
    StreamPlaces,
    VideoSpans,
    seconds_of,
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
    template_problem,
    write_info,
    write_tasks,
)
from leconvert.dataset.formats.v3.rows import ROWS_AT_A_TIME
from leconvert.model.values import (
    DATA_STREAM,
    Finding,
    FloatArray,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION
from leconvert.support.errors import LeconvertError, SourceError, UnreadableSourceError
from leconvert.tables.arrow import integers

# With these an episode may have another file than ``meta/episodes`` says.
_FILES_IN_DOUBT = frozenset(
    {"missing-file", "row-count", "frame-count", "shared-frames", "episode-index", "file-order"}
)
_MOST_DIGITS = 18


def files_there(root: Path, declared: Declared, stream: str) -> list[tuple[int, int, str]]:
    """Return chunk, number and path of each file that the template of a stream finds, ascending."""
    template, pattern, names = declared.templates[stream], "", []
    for literal, name, _, _ in Formatter().parse(template):
        pattern += re.escape(literal)
        if name == "video_key":
            pattern += re.escape(str(camera_of(stream)))
        elif name is not None:
            pattern += f"([0-9]{{1,{_MOST_DIGITS}}})"
            names.append(name)
    folder = template.partition("{")[0].rpartition("/")[0]
    found = []
    for path, is_file in files_below(root, f"{folder}/" if folder else ""):
        match = re.fullmatch(pattern, path) if is_file else None
        if match is not None:
            at = dict(zip(names, map(int, match.groups()), strict=True))
            chunk, file = at["chunk_index"], at["file_index"]
            if declared.path(stream, chunk, file) == path:
                found.append((chunk, file, path))
    return sorted(found)


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
            said = f"{key} is {raw.get(key)!r}, but the files are named {template!r}."
            yield INFO_PATH, None, None, said
        for stream in sorted(self.places):
            episode, seen = wrong[stream]
            yield EPISODES_DIR, stream, episode, f"{EPISODES_DIR} names wrong files: {seen}"


NOTHING_LOCATED = Located()


def locate_files(
    root: Path,
    declared: Declared,
    table: EpisodeTable,
    lengths: IntArray,
    streams: Collection[str],
) -> Located:
    """Look for the files of streams with wrong ones, and return what differs from what is said.

    Args:
        lengths: Frames of each episode, shape (E,).
    """
    cameras = {stream_of_camera(key) for key in declared.cameras}
    info, templates = {}, dict(declared.templates)
    for key, own in (("data_path", {DATA_STREAM}), ("video_path", cameras)):
        # One template is for all cameras: where one of them has its files it stays.
        template = _other_template(root, declared, own) if own and own.issubset(streams) else None
        if template is not None:
            info[key] = template
            templates |= dict.fromkeys(own, template)
    declared = replace(declared, templates=templates)
    places = {}
    for stream in streams:
        if stream not in declared.templates or stream not in table.placed:
            continue
        found, stored = _located_places(root, declared, lengths, stream), table.placed[stream]
        if found is not None and not (
            np.array_equal(found.chunk, stored.chunk) and np.array_equal(found.file, stored.file)
        ):
            places[stream] = found
    return Located(info, places)


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


def _located_places(
    root: Path, declared: Declared, lengths: IntArray, stream: str
) -> StreamPlaces | None:
    """Return where all episodes are in the files of a stream; None where that is not certain.

    Args:
        lengths: Frames of each episode, shape (E,).
    """
    there = files_there(root, declared, stream)
    try:
        if camera_of(stream) is None:
            rows = [episodes_in(root / path) for _, _, path in there]
            file = np.repeat(np.arange(len(rows)), [len(episodes) for episodes, _ in rows])
            episodes, counts = (np.concatenate([each[at] for each in rows]) for at in (0, 1))
            if not np.array_equal(episodes, np.arange(len(lengths))):
                return None
            if not np.array_equal(counts, lengths):
                return None
            begin: FloatArray = np.zeros(0)
            end = begin
        else:
            frames = _frames_in([root / path for _, _, path in there])
            found = fitted(lengths, frames)
            if found is None:
                return None
            file, first = found
            begin, end = (seconds_of(at, declared.fps) for at in (first, first + lengths))
    except (UnreadableSourceError, OSError, ValueError, pa.ArrowException):
        return None
    chunks, numbers = (np.array([each[at] for each in there], np.int64)[file] for at in (0, 1))
    return StreamPlaces(chunks, numbers, begin, end)


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


def _frames_in(videos: Iterable[Path]) -> IntArray:
    """Return the number of frames of each file."""
    return np.array([media.count_tracks_and_frames(path)[1] for path in videos], np.int64)


_OLD_TASKS = "meta/tasks.jsonl"
_OLD_EPISODES = "meta/episodes.jsonl"
# More files than a chunk ever has: a number then names chunk and file.
_NAMES = USUAL_NAMES._replace(files_per_chunk=1 << 31)


class Derived(NamedTuple):
    """A dataset with derived tables.

    Attributes:
        root: A folder of links to the dataset's files, except the derived tables.
        raw: Its ``info.json``.
        info: Its changed keys.
        files: The tables that were derived, relative to the dataset.
        said: The faults, one sentence each, by their file.
    """

    root: Path
    raw: Mapping[str, Any]
    info: Mapping[str, Any]
    files: tuple[str, ...]
    said: tuple[tuple[str, str], ...]


def says_another_version(root: Path, raw: Mapping[str, Any]) -> bool:
    """Tell whether a dataset that lies in the files of v3.0 says v2.x, or no version."""
    return (
        raw.get("codebase_version") in (None, *SOURCE_VERSIONS)
        and isinstance(raw.get("features"), dict)
        and not (root / _OLD_EPISODES).exists()
        and (EpisodesReader(root).is_there or (root / TASKS_PATH).is_file())
    )


@contextmanager
def derived_meta(root: Path, raw: Mapping[str, Any]) -> Iterator[Derived | None]:
    """Yield the dataset with what can be derived of ``meta/``; None where nothing can or need be.

    Nothing is written into the dataset; the folder is gone at the end.
    """
    other_version = says_another_version(root, raw)
    if not other_version and EpisodesReader(root).is_there and _has_tasks(root):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leconvert-derived-") as folder:
        view = Path(folder) / root.name
        (view / "meta").mkdir(parents=True)
        info: dict[str, Any] = {"codebase_version": V3_VERSION} if other_version else {}
        said = []
        if other_version:
            version = raw.get("codebase_version")
            said.append(
                (INFO_PATH, f"codebase_version is {version!r}, but the files are those of v3.0.")
            )
        files = []
        if message := _derive_tasks(root, view):
            files.append(TASKS_PATH)
            said.append((TASKS_PATH, message))
        declared, _ = declaration({**raw, **info})
        is_folder = not (root / EPISODES_DIR).is_file()
        if declared is not None and is_folder and not EpisodesReader(root).is_there:
            texts_from = view if files else root
            with suppress(LeconvertError, OSError, ValueError, LookupError, pa.ArrowException):
                files += _derive_episodes(root, view, declared, _texts(texts_from))
                said.append((EPISODES_DIR, f"{EPISODES_DIR} has no table."))
        for place in (root, root / "meta"):
            for entry in place.iterdir():
                link = view / entry.relative_to(root)
                if not link.exists():
                    link.symlink_to(entry.absolute())
        if not (said and EpisodesReader(view).is_there and _has_tasks(view)):
            yield None  # one table alone is no help
            return
        if info:
            (view / INFO_PATH).unlink()
            write_info(view, {**raw, **info})
        yield Derived(view, {**raw, **info}, info, tuple(files), tuple(said))


def refuse_derivable(root: Path, raw: Mapping[str, Any]) -> None:
    """Refuse a dataset of which a repair derives tables."""
    with derived_meta(root, raw) as derived:
        if derived is not None:
            path, message = derived.said[0]
            again = "Then run this command again"
            if any(each.startswith(EPISODES_DIR) for each in derived.files):
                again += " with --fill-stats, which computes the statistics of episodes"
            raise SourceError(
                f"{root} cannot be read as it is. {message}",
                path=str(root / path),
                details=[f"{path}: {said}" for path, said in derived.said[1:]],
                next_step=f"`leconvert repair {shlex.quote(str(root))}` computes it from rows and "
                f"files. {again}.",
            )


def refuse_misnamed(root: Path, raw: Mapping[str, Any]) -> None:
    """Refuse a dataset that lies in the files of v3.0 and says another version."""
    if says_another_version(root, raw):
        refuse_derivable(root, raw)


def _has_tasks(root: Path) -> bool:
    try:
        return pandas_index(pq.read_schema(root / TASKS_PATH)) is not None
    except (OSError, pa.ArrowException):
        return False


def _derive_tasks(root: Path, view: Path) -> str | None:
    """Write the table with the texts as its index, and say what it was; None where it is right."""
    path = root / TASKS_PATH
    try:
        if path.exists():
            table = pq.read_table(path)
            if pandas_index(table.schema) is not None:
                return None
            rows = table.to_pylist()
            message = (
                f"The columns are {table.column_names}. The pandas index with the texts is missing."
            )
        else:
            lines = (root / _OLD_TASKS).read_text("utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
            message = f"{TASKS_PATH} is missing, but {_OLD_TASKS} has the tasks."
        tasks = [(row["task_index"], row["task"]) for row in rows]
        if not all(type(index) is int and isinstance(text, str) for index, text in tasks):
            return None
        write_tasks(view, tasks)
    except (LeconvertError, OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return None
    return message


def _texts(root: Path) -> list[str]:
    texts: list[str] = pq.read_table(root / TASKS_PATH).column("task").to_pylist()
    return texts


def _derive_episodes(root: Path, view: Path, declared: Declared, texts: list[str]) -> list[str]:
    """Write the table of episodes; raise where it does not follow from rows and frames."""
    number = _NAMES.files_per_chunk
    there = files_there(root, declared, DATA_STREAM)
    rows = [episodes_in(root / path) for _, _, path in there]
    episodes, length = (np.concatenate([each[at] for each in rows]) for at in (0, 1))
    if not np.array_equal(episodes, np.arange(len(episodes))):
        raise ValueError("the rows of episodes do not follow each other")
    files = np.array([chunk * number + file for chunk, file, _ in there])
    videos = []
    for camera in declared.cameras:
        clips = files_there(root, declared, stream_of_camera(camera))
        frames = _frames_in([root / path for _, _, path in clips])
        found = fitted(length, frames)
        if found is None:
            raise ValueError(f"the videos of {camera} have other frames than the episodes")
        file, first = found
        numbers = np.array([chunk * number + file for chunk, file, _ in clips])
        videos.append(VideoSpans(camera, numbers[file], first, first + length))
    records = EpisodeRecords(
        episode_index=episodes,
        data_file=np.repeat(files, [len(each) for each, _ in rows]),
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
    return write_episodes(view, lambda: [records], fps=declared.fps, names=_NAMES)


def _tasks_in(path: Path) -> list[list[int]]:
    """Return the tasks of each episode of a data file, in the order of their rows."""
    rows = pq.read_table(path, columns=["episode_index", "task_index"])
    episode, task = (integers(rows.column(name).combine_chunks()) for name in rows.column_names)
    if episode is None or task is None or task.min() < 0:
        raise ValueError(f"{path} has rows without a task")
    begins = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1))
    return [list(dict.fromkeys(part.tolist())) for part in np.split(task, begins[1:])]
