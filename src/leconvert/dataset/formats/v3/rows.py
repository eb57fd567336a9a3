"""The rows of a v3.0 dataset: the files of each episode's rows, and the checks of these rows.

Faults are not raised: they are findings, and the caller decides their meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.findings import found, said_of_empty
from leconvert.dataset.formats.v3.episodes import EpisodeTable
from leconvert.dataset.formats.v3.meta import EPISODES_DIR, INFO_PATH, Declared
from leconvert.media import ClipIndex
from leconvert.model.repairs import DEFAULT_COLUMNS, VISUAL_DTYPES
from leconvert.model.values import (
    LEROBOT_TOLERANCE_SECONDS,
    Finding,
    FloatArray,
    IntArray,
)
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass
from leconvert.tables.arrow import floats, integers, lacks_value
from leconvert.tables.schemas import LANGUAGE_COLUMNS

# The rows and files of an episode.


@dataclass(frozen=True, slots=True, eq=False)
class RoutedFile:
    """One file and the episodes that name it, ascending.

    Attributes:
        stream: Its stream.
        path: The file, relative to the dataset.
        episodes: Rows of meta/episodes.
    """

    stream: str
    path: str
    episodes: IntArray

    def wrong(
        self, code: str, message: str, *, episode: int | None = None, severity: str | None = None
    ) -> Finding:
        """Return a finding about this file."""
        return found(
            code, message, episode=episode, stream=self.stream, path=self.path, severity=severity
        )

    def missing(self) -> Finding:
        """Return the finding that this file does not exist."""
        said = f"{self.path} is missing; {count(len(self.episodes), 'episode')} should be in it."
        return self.wrong("missing-file", said, episode=int(self.episodes[0]))


def files_of(
    table: EpisodeTable, declared: Declared, stream: str
) -> tuple[tuple[str, ...], IntArray]:
    """Return the files of a stream, and the index of each episode's file among them."""
    placed = table.placed[stream]
    pairs, file = np.unique(
        np.stack([placed.chunk, placed.file], axis=1), axis=0, return_inverse=True
    )
    paths = tuple(declared.path(stream, *pair) for pair in pairs.tolist())
    return paths, file.reshape(-1).astype(np.int64)


def check_ranges(table: EpisodeTable, declared: Declared) -> tuple[EpisodeTable, list[Finding]]:
    """Return the table with the lengths that count, and its contradictions, also to info.json.

    Lengths and ranges state the same facts twice. If they differ, the ones that add up to
    ``total_frames`` count.
    """
    findings: list[Finding] = []
    number = np.arange(len(table))
    rows = np.flatnonzero(table.episode_index != number)
    if len(rows):
        first = int(rows[0])
        message = (
            f"{len(rows):,} rows, first row {first}: episode_index is {table.episode_index[first]}."
        )
        findings.append(
            found("episode-order", message, episode=first, stream="episodes", path=EPISODES_DIR)
        )
    ends = np.cumsum(table.length)
    wrong = (
        (table.length < 1) | (table.from_index != ends - table.length) | (table.to_index != ends)
    )
    length = table.length
    if wrong.any():
        first = int(np.argmax(wrong))
        message = (
            f"{np.count_nonzero(wrong):,} episodes, first episode {first}: length "
            f"{length[first]}, rows {table.from_index[first]} to "
            f"{table.to_index[first]}, but the lengths before it add up to "
            f"{ends[first] - length[first]}."
        )
        findings.append(
            found("episode-range", message, episode=first, stream="episodes", path=EPISODES_DIR)
        )
        spans = table.to_index - table.from_index
        chained = np.array_equal(table.from_index[1:], table.to_index[:-1])
        if chained and table.from_index[0] == 0 and spans.min() > 0:
            total = declared.raw.get("total_frames")
            if length.min() < 1 or (ends[-1] != total and spans.sum() == total):
                length = spans
    length = np.maximum(length, 0)
    totals = {"total_episodes": len(table), "total_frames": int(length.sum())}
    for key, value in totals.items():
        said = declared.raw.get(key)
        if said != value:
            message = f"{key} is {said!r}, but meta/episodes has {value:,}."
            findings.append(found("stale-total", message, path=INFO_PATH))
    return replace(table, length=length), findings


def routed_files(table: EpisodeTable, declared: Declared, stream: str) -> list[RoutedFile]:
    """Return a stream's files in the order of their first episode."""
    paths, file = files_of(table, declared, stream)
    order = np.argsort(file, kind="stable")
    edges = np.flatnonzero(np.diff(file[order])) + 1
    files = [
        RoutedFile(stream, paths[file[episodes[0]]], episodes)
        for episodes in np.split(order, edges)
    ]
    return sorted(files, key=lambda routed: int(routed.episodes[0]))


# The first row or frame of each episode in its file.


class PlacedFrames(NamedTuple):
    """The places of episodes' frames in their video file, arrays of shape (K,).

    Attributes:
        first: First frame of each episode, in presentation order. It may be outside the file.
        frames: Number of its frames before the next episode. It is less than the episode's length
            if the video is shorter than its rows. Then it ends with the file, or at its
            ``to_timestamp`` if another episode begins there.
        is_counted: Whether the frames were counted. If not, `first` is from ``from_timestamp``.
        length: Number of frames of each episode by the tables.
        begin_seconds: ``from_timestamp`` of each episode.
    """

    first: IntArray
    frames: IntArray
    is_counted: bool
    length: IntArray
    begin_seconds: FloatArray


def place_frames(
    num_frames: int, routed: RoutedFile, table: EpisodeTable, fps: Fraction
) -> PlacedFrames:
    """Find the frames of a video file's episodes.

    If the lengths add up to the file's frames and the order of the episodes is certain, the frames
    are counted. Otherwise, as in trimmed files, ``from_timestamp`` gives them.
    """
    lengths, placed = table.length[routed.episodes], table.placed[routed.stream]
    begin_seconds = placed.begin_seconds[routed.episodes]
    adds_up = int(lengths.sum()) == num_frames
    order = _order_in_file(begin_seconds, lengths, fps) if adds_up else None
    if order is not None:
        counted = np.empty_like(lengths)
        counted[order] = np.cumsum(lengths[order]) - lengths[order]
        return PlacedFrames(counted, lengths, True, lengths, begin_seconds)
    first = np.rint(begin_seconds * float(fps)).astype(np.int64)
    stop = first + lengths
    seconds = np.nan_to_num(placed.end_seconds[routed.episodes] - begin_seconds)
    told = first + np.rint(seconds * float(fps)).astype(np.int64)
    has_end = (told < stop) & (told > first) & (np.isin(told, first) | (told == num_frames))
    own = np.minimum(np.where(has_end, told, stop), num_frames) - first
    own = np.where(first < 0, 0, np.clip(own, 0, lengths))
    return PlacedFrames(first, own, False, lengths, begin_seconds)


def _order_in_file(begin_seconds: FloatArray, lengths: IntArray, fps: Fraction) -> IntArray | None:
    """Return the order of the episodes in their video file; None if no order is certain.

    Usually ``from_timestamp`` and the numbers of the episodes agree. If not, some of the times are
    wrong: the order with more right times counts, if more than half of them are right.
    """
    by_number = np.arange(len(lengths))
    by_time = np.argsort(begin_seconds, kind="stable")
    if np.array_equal(by_time, by_number):
        return by_number
    begin = np.rint(begin_seconds * float(fps))

    def agreeing(order: IntArray) -> int:
        in_order = lengths[order]
        return int(np.count_nonzero(begin[order] == np.cumsum(in_order) - in_order))

    times, numbers = agreeing(by_time), agreeing(by_number)
    if times == numbers or 2 * max(times, numbers) <= len(lengths):
        return None
    return by_time if times > numbers else by_number


def with_leads(clip: ClipIndex, first: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Return the samples to cut out of a video file for each of its episodes.

    These are the episode's own samples if they can be decoded by themselves. A trimmed episode also
    needs the samples before it from a keyframe on, or some after it; they are taken if no episode
    has them.

    Args:
        clip: The index of the file.
        first: First frame of each episode in presentation order, shape (n,).
        stop: The frame after its last; episodes without frames are skipped.

    Returns:
        The first sample of each episode, -1 if it cannot be cut out, and the sample after its last.
    """
    begins, ends = first.copy(), stop.copy()
    order = np.lexsort((stop, first))
    order = order[stop[order] > first[order]]
    before = np.concatenate(([0], np.maximum.accumulate(stop[order])))[:-1]
    after = np.append(first[order], clip.num_samples)[1:]
    for place, left, right in zip(order.tolist(), before.tolist(), after.tolist(), strict=True):
        found = clip.cut_around(int(first[place]), int(stop[place]), begin=left, end=right)
        begins[place], ends[place] = (-1, -1) if found is None else found
    return begins, ends


def rows_by_column(file: pq.ParquetFile, episodes: IntArray) -> tuple[IntArray, IntArray]:
    """Return each episode's first row by its column, -1 for none, and its number of rows."""
    first = np.full(len(episodes), -1, dtype=np.int64)
    rows = np.zeros(len(episodes), dtype=np.int64)
    if "episode_index" not in file.schema_arrow.names:
        return first, rows
    place_of = {episode: place for place, episode in enumerate(episodes.tolist())}
    before, begin = None, 0
    for batch in file.iter_batches(ROWS_AT_A_TIME, columns=["episode_index"], use_threads=False):
        column = batch.column(0)
        if column.null_count and pa.types.is_integer(column.type):
            column = column.fill_null(-1)  # rows of no episode
        values = integers(column)
        if values is None:
            return np.full_like(first, -1), np.zeros_like(rows)
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        for start, stop in itertools.pairwise(edges):
            value = int(values[start])
            place = place_of.get(value)
            if place is not None:
                goes_on = start == 0 and value == before
                if not goes_on:
                    # Rows in several places are no slice.
                    first[place] = -1 if rows[place] else begin + start
                rows[place] += stop - start
            before = value
        begin += len(values)
    return first, rows


class PlacedRows(NamedTuple):
    """The places of episodes' rows in their data file, arrays of shape (K,).

    Attributes:
        first: First row of each episode in the file, -1 for none or several places.
        rows: Number of rows of each episode.
        is_whole: Whether all rows of an episode are there, side by side.
        wrong: Code, episode or None, and a sentence for each wrong number of rows.
    """

    first: IntArray
    rows: IntArray
    is_whole: npt.NDArray[np.bool_]
    wrong: Sequence[tuple[str, int | None, str]]

    def whole(self, routed: RoutedFile) -> tuple[RoutedFile, IntArray]:
        """Return the file with only its whole episodes, and the first row of each, ascending."""
        first = self.first[self.is_whole]
        order = np.argsort(first, kind="stable")
        episodes = routed.episodes[self.is_whole][order]
        return RoutedFile(routed.stream, routed.path, episodes), first[order]


def place_rows(file: pq.ParquetFile, routed: RoutedFile, lengths: IntArray) -> PlacedRows:
    """Find the rows of a file's episodes: by their order if all are there, else by their column."""
    total = file.metadata.num_rows
    if total == int(lengths.sum()):
        return PlacedRows(np.cumsum(lengths) - lengths, lengths, lengths > 0, ())
    first, rows = rows_by_column(file, routed.episodes)
    is_whole = (first >= 0) & (rows == lengths) & (lengths > 0)
    path, wrong = shown(routed.path), list[tuple[str, int | None, str]]()
    for place in np.flatnonzero((rows != lengths) | (first < 0)).tolist():
        episode, has = int(routed.episodes[place]), int(rows[place])
        where = "" if first[place] >= 0 or not has else ", not side by side"
        said = (
            f"{path} has {count(has, 'row')} of episode {episode}{where}, but {EPISODES_DIR} says "
        )
        wrong.append(("row-count", episode, f"{said}{int(lengths[place])}."))
    surplus = total - int(rows.sum())
    if rows.any() and surplus:
        said = f"{path} has {count(surplus, 'row')} that belong to no episode of {EPISODES_DIR}."
        wrong.append(("stray-rows", None, said))
    return PlacedRows(first, rows, is_whole, wrong)


# The rows of one data file: the five columns that identify a row's frame and episode.


ROWS_AT_A_TIME = 1 << 16
"""Number of rows of five columns that are in memory at a time."""

ROW_CODES = {
    "index": "global-index",
    "episode_index": "episode-index",
    "frame_index": "frame-index",
    "timestamp": "timestamps",
    "task_index": "task-index",
}
"""The columns that identify a row's frame and episode, with the finding about each."""

_ANEW = {
    "index": "--reindex",
    "episode_index": "--reindex",
    "frame_index": "--reindex",
    "timestamp": "--retime --declare-features",
}
"""The options of a conversion that computes a column, in the type that LeRobot declares."""
_WRITE_ANEW = (
    "`leconvert repair DATASET {}` writes all files again, with a type that holds the values."
)

_IN_ORDER = frozenset({"index", "episode_index", "frame_index", "timestamp"})


@dataclass(slots=True)
class WrongRows:
    """The wrong rows of one column: their number, their episodes, and the first."""

    count: int = 0
    episode: int = 0
    said: str = ""
    episodes: set[int] = field(default_factory=set)


class OtherTasks(NamedTuple):
    """The tasks of an episode by its rows and by ``meta/episodes``, if they differ."""

    of_rows: frozenset[int]
    listed: frozenset[int]


def columns_of_values(declared: Declared) -> list[str]:
    """Return the features whose columns hold numbers or texts of the recording."""
    return [
        name
        for name, feature in declared.features.items()
        if feature.dtype not in VISUAL_DTYPES
        and feature.dtype != "language"
        and name not in {*DEFAULT_COLUMNS, *LANGUAGE_COLUMNS}
    ]


def _with_empty_values(file: pq.ParquetFile, names: Sequence[str]) -> list[str]:
    """Return the columns with empty values by the footer, and those that it does not count."""
    metadata = file.metadata
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    found = set()
    for leaf in range(metadata.num_columns):
        path = metadata.schema.column(leaf).path
        of = [name for name in names if f"{path}.".startswith(f"{name}.") and name not in found]
        told = [group.column(leaf).statistics for group in groups] if of else []
        if any(each is None or not each.has_null_count or each.null_count for each in told):
            found.update(of)
    return [name for name in names if name in found]


def episode_tasks_finding(path: str, other: Mapping[int, OtherTasks]) -> Finding:
    """Return the finding for episodes whose rows have other tasks than ``meta/episodes`` lists."""
    episode, tasks = next(iter(other.items()))
    listed = [
        task if task >= 0 else "one that is not in tasks.parquet" for task in sorted(tasks.listed)
    ]
    return found(
        "task-mismatch",
        f"{count(len(other), 'episode')}, first episode {episode}: its rows have the tasks "
        f"{sorted(tasks.of_rows)}, but meta/episodes lists {listed}.",
        episode=episode,
        stream="episodes",
        path=path,
    )


def holds_counts(kind: pa.DataType, name: str, frames: int) -> bool:
    """Return whether a column of some type can hold the numbers, or times, of so many frames."""
    if name == "timestamp":
        return bool(kind in (pa.float32(), pa.float64()))
    if pa.types.is_floating(kind):
        return frames <= 2 << int(np.finfo(kind.to_pandas_dtype()).nmant)
    is_integer = bool(pa.types.is_integer(kind))
    return is_integer and frames <= int(np.iinfo(kind.to_pandas_dtype()).max)


class RowCheck:
    """Compares blocks of rows with the values that their position in the file demands.

    Args:
        routed: The file and its episodes.
        table: The content of meta/episodes, with the lengths that count.
        declared: The declarations of info.json.
        num_tasks: Number of tasks, None if unknown.
        first: First row of each of the file's episodes in it, ascending; by default they are
            consecutive from the first row to the last. Rows of no episode are skipped.
        rows: Number of rows of each of the file's episodes; by default its length.
        task_numbers: The number of each task in the rows, ascending; by default its row.

    Attributes:
        tasks: The tasks of the rows of each episode, as far as they were compared.
        other_tasks: The episodes for which ``meta/episodes`` lists other tasks.
    """

    def __init__(
        self,
        routed: RoutedFile,
        table: EpisodeTable,
        declared: Declared,
        num_tasks: int | None,
        first: IntArray | None = None,
        rows: IntArray | None = None,
        task_numbers: IntArray | None = None,
    ) -> None:
        self.tasks: dict[int, tuple[int, ...]] = {}
        self.other_tasks: dict[int, OtherTasks] = {}
        self._task_numbers = task_numbers
        self._routed = routed
        self._table = table
        self._start = table.start[routed.episodes]
        self._length = table.length[routed.episodes] if rows is None else rows
        self._begins = np.cumsum(self._length) - self._length
        self._first = self._begins if first is None else first
        self._fps = float(declared.fps)
        self._num_tasks = num_tasks
        self._has_video = bool(declared.cameras)
        self._values = columns_of_values(declared)
        self._with_empty: list[str] = []
        self._wrong: dict[str, WrongRows] = {}
        self._tasks_seen: dict[int, set[int]] = {}
        self._untimed: list[IntArray] = []
        # The frames at whose times some row is, of episodes with wrong times.
        self._frames_seen: dict[int, npt.NDArray[np.bool_]] = {}
        # The rows that some row is by its ``index``, and by its episode and frame.
        self._by_index = np.zeros(int(self._length.sum()), np.bool_)
        self._by_frame = np.zeros_like(self._by_index)

    @property
    def disordered(self) -> list[int]:
        """Episodes whose rows are in another order than their timestamps or their numbers.

        Each row belongs elsewhere if all rows together have every time of the episode, or every
        ``index`` of the file, and ``frame_index`` is wrong as well. Without a usable ``index``, so
        does each row if all rows together are every frame of every episode.
        """
        seen = self._frames_seen.items()
        found = {int(self._routed.episodes[place]) for place, frames in seen if frames.all()}
        found &= self.wrong_in("frame_index").keys()
        moved = {"episode_index", "frame_index"} & self._wrong.keys()
        if moved and self._by_index.all():
            found.update(self.wrong_in("index"))
        # At the right times, rows are only numbered in another order.
        elif self._by_frame.all() and {"episode_index", "timestamp"} & self._wrong.keys():
            found.update(*map(self.wrong_in, moved))
        return sorted(found)

    @property
    def untimed(self) -> IntArray:
        """Episodes with timestamps other than ``i / fps``, as far as rows were compared."""
        if not self._untimed:
            return np.empty(0, np.int64)
        together: IntArray = np.concatenate(self._untimed)
        return np.unique(together)

    def wrong_in(self, column: str) -> dict[int, str]:
        """Return the episodes with wrong rows in a column, with the first wrong value."""
        wrong = self._wrong.get(column)
        return {} if wrong is None else dict.fromkeys(sorted(wrong.episodes), wrong.said)

    @property
    def with_empty(self) -> dict[str, WrongRows]:
        """The columns with rows that have no value, or a list with an empty one."""
        return {name: self._wrong[name] for name in self._with_empty if name in self._wrong}

    def read(self, file: pq.ParquetFile, with_empty: Sequence[str] | None = None) -> None:
        """Compare all rows of the file.

        Args:
            file: The file.
            with_empty: The `columns_of_values` that may have empty values, if they are known.
        """
        names = [name for name in DEFAULT_COLUMNS if name in file.schema_arrow.names]
        if with_empty is None:
            with_empty = _with_empty_values(file, self._values)
        self._with_empty = [*with_empty]
        names += self._with_empty
        row = 0
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=names, use_threads=False):
            self._add(row, batch)
            row += batch.num_rows
        self._close_tasks(len(self._length))

    def check(self, file: pq.ParquetFile) -> Iterator[Finding]:
        """Yield a finding for each wrong column: how many rows are wrong, and the first of them."""
        self.read(file)
        # Without videos, no frame is found by its time.
        if disordered := self.disordered:
            yield self._routed.wrong(
                "row-order",
                f"{self._routed.path}: the rows of {count(len(disordered), 'episode')}, first "
                f"episode {disordered[0]}, are in another order than their times or numbers.",
                episode=disordered[0],
                severity=None if self._has_video else "warning",
            )
        for name, code in ROW_CODES.items():
            wrong = self._wrong.get(name)
            if wrong is not None and not (disordered and name in _IN_ORDER):
                mild = name == "timestamp" and not self._has_video
                finding = self._routed.wrong(
                    code,
                    f"{self._routed.path}: {wrong.count:,} rows, first {wrong.said}.",
                    episode=wrong.episode,
                    severity="warning" if mild else None,
                )
                kind = file.schema_arrow.field(name).type
                if name in _ANEW and not holds_counts(kind, name, int(self._table.length.sum())):
                    finding = replace(finding, remedy=_WRITE_ANEW.format(_ANEW[name]))
                yield finding
        for name, wrong in self.with_empty.items():
            where = f"{count(wrong.count, 'row')} of {shown(self._routed.path)}"
            said = said_of_empty(name, where)
            yield self._routed.wrong("empty-values", said, episode=wrong.episode)
        if self.other_tasks:
            yield episode_tasks_finding(self._routed.path, self.other_tasks)

    def _add(self, first_row: int, batch: pa.RecordBatch) -> None:
        rows = np.arange(first_row, first_row + batch.num_rows)
        place = np.searchsorted(self._first, rows, side="right") - 1
        frame = rows - self._first[place]
        has_episode = (place >= 0) & (frame < self._length[place])
        if not has_episode.all():
            batch = batch.take(pa.array(np.flatnonzero(has_episode)))
            place, frame = place[has_episode], frame[has_episode]
        if not len(place):
            return
        expected = {
            "index": self._start[place] + frame,
            "episode_index": self._routed.episodes[place],
            "frame_index": frame,
        }
        told = dict[str, npt.NDArray[Any]]()
        for name, wanted in expected.items():
            values = self._integers(batch, name, place, frame)
            if values is not None:
                self._note(name, values != wanted, values, wanted, place, frame)
                told[name] = values
        self._look_at_numbers(told)
        self._check_times(batch, place, frame)
        for name in self._with_empty:
            column = batch.column(name)
            self._note(name, lacks_value(column), frame, None, place, frame)
        tasks = self._integers(batch, "task_index", place, frame)
        if tasks is None or self._num_tasks is None:
            return
        if self._task_numbers is not None:
            at = np.searchsorted(self._task_numbers, tasks).clip(max=len(self._task_numbers) - 1)
            tasks = np.where(self._task_numbers[at] == tasks, at, -1)
        bad = ~((tasks >= 0) & (tasks < self._num_tasks) & (tasks == np.rint(tasks)))
        self._note("task_index", bad, tasks, None, place, frame)
        if not bad.any():
            self._gather_tasks(place, tasks)

    def _look_at_numbers(self, told: Mapping[str, npt.NDArray[Any]]) -> None:
        """Note which rows these rows are by their numbers."""
        if "index" in told:
            at = np.searchsorted(self._start, told["index"], side="right").clip(min=1) - 1
            self._note_rows(self._by_index, at, told["index"] - self._start[at])
        if {"episode_index", "frame_index"} <= told.keys():
            episode = told["episode_index"]
            at = np.searchsorted(self._routed.episodes, episode, side="right").clip(min=1) - 1
            is_here = self._routed.episodes[at] == episode
            self._note_rows(self._by_frame, at[is_here], told["frame_index"][is_here])

    def _note_rows(
        self, seen: npt.NDArray[np.bool_], place: IntArray, frame: npt.NDArray[Any]
    ) -> None:
        is_one = (frame >= 0) & (frame < self._length[place])
        seen[(self._begins[place] + frame)[is_one].astype(np.int64)] = True

    def _check_times(self, batch: pa.RecordBatch, place: IntArray, frame: IntArray) -> None:
        at = batch.schema.get_field_index("timestamp")
        if at < 0:
            return
        seconds = floats(batch.column(at))
        if seconds is None:
            self._unusable("timestamp", batch.column(at), place, frame)
            self._untimed.append(self._routed.episodes[np.unique(place)])
            return
        # Single precision is coarser than the tolerance from 2,048 s on, so the time that it stores
        # for i / fps is always right.
        wanted = (frame / self._fps).astype(np.float32).astype(np.float64)
        off = ~(np.abs(seconds - wanted) < LEROBOT_TOLERANCE_SECONDS)
        if off.any():
            self._untimed.append(self._routed.episodes[np.unique(place[off])])
        self._note("timestamp", off, seconds, wanted, place, frame)
        self._look_at_order(off, seconds, place, frame)

    def _look_at_order(
        self,
        off: npt.NDArray[np.bool_],
        seconds: npt.NDArray[Any],
        place: IntArray,
        frame: IntArray,
    ) -> None:
        """Note the frames at whose times the rows of episodes with wrong times are."""
        for at in {*np.unique(place[off]).tolist(), *(self._frames_seen.keys() & {int(place[0])})}:
            own = place == at
            seen = self._frames_seen.get(at)
            if seen is None:  # the rows before are right
                seen = np.arange(self._length[at]) < frame[own][0]
                self._frames_seen[at] = seen
            near = np.rint(np.nan_to_num(seconds[own] * self._fps, nan=-1)).clip(-1, len(seen))
            stored = (near / self._fps).astype(np.float32).astype(np.float64)
            is_one = (near >= 0) & (near < len(seen))
            is_one &= np.abs(seconds[own] - stored) < LEROBOT_TOLERANCE_SECONDS
            seen[near[is_one].astype(np.int64)] = True

    def _integers(
        self, batch: pa.RecordBatch, name: str, place: IntArray, frame: IntArray
    ) -> npt.NDArray[Any] | None:
        at = batch.schema.get_field_index(name)
        if at < 0:
            return None
        column = batch.column(at)
        values: npt.NDArray[Any] | None = integers(column)
        if pa.types.is_floating(column.type):  # LeRobot casts them if they are whole
            values = floats(column)
        if values is None:
            self._unusable(name, column, place, frame)
        return values

    def _unusable(self, name: str, column: pa.Array, place: IntArray, frame: IntArray) -> None:
        everywhere = np.ones(len(place), np.bool_)
        values = np.full(len(place), np.nan)
        is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        said = (
            "values are missing"
            if is_number
            else (f"it has the type {column.type}, which is not a number")
        )
        self._note(name, everywhere, values, None, place, frame, said=said)

    def _note(
        self,
        name: str,
        bad: npt.NDArray[np.bool_],
        values: npt.NDArray[Any],
        wanted: npt.NDArray[Any] | None,
        place: IntArray,
        frame: IntArray,
        said: str | None = None,
    ) -> None:
        num_bad = int(np.count_nonzero(bad))
        if not num_bad:
            return
        wrong = self._wrong.get(name)
        if wrong is None:
            at = int(np.argmax(bad))
            episode = int(self._routed.episodes[place[at]])
            shown = said or f"it is {values[at]}"
            if wanted is not None:
                shown += f" instead of {wanted[at]}"
            wrong = self._wrong[name] = WrongRows(
                0, episode, f"frame {frame[at]} of episode {episode}, where {shown}"
            )
        wrong.count += num_bad
        wrong.episodes.update(self._routed.episodes[np.unique(place[bad])].tolist())

    def _gather_tasks(self, place: IntArray, tasks: npt.NDArray[Any]) -> None:
        """Collect the tasks of each episode, and compare complete ones."""
        changes = np.flatnonzero((np.diff(place) != 0) | (np.diff(tasks) != 0)) + 1
        for at in [0, *changes.tolist()]:
            self._tasks_seen.setdefault(int(place[at]), set()).add(int(tasks[at]))
        self._close_tasks(int(place[-1]))

    def _close_tasks(self, below: int) -> None:
        for place in [place for place in self._tasks_seen if place < below]:
            seen = self._tasks_seen.pop(place)
            episode = int(self._routed.episodes[place])
            self.tasks[episode] = tuple(sorted(seen))
            if not len(self._table.task_ends):
                continue
            listed = self._table.tasks_of(episode)
            if listed != seen:
                self.other_tasks[episode] = OtherTasks(frozenset(seen), frozenset(listed))
