"""The rows of one data file: the five columns that say which frame of which episode a row is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.model import DATA_STREAM, Finding, IntArray
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.verify.catalogue import found
from leconvert.verify.columns import floats, integers
from leconvert.verify.dataset_routes import Ranges, RoutedFile
from leconvert.verify.declared import Declared
from leconvert.verify.episode_rows import EpisodeTable

__all__ = ["ROWS_AT_A_TIME", "RowCheck"]

ROWS_AT_A_TIME = 1 << 16
"""Rows of five columns that are held at a time."""

_TOLERANCE_SECONDS = 1e-4
_CODES = {
    "index": "index-column",
    "episode_index": "episode-column",
    "frame_index": "frame-column",
    "timestamp": "timestamp-column",
    "task_index": "task-column",
}


@dataclass(slots=True)
class _Wrong:
    """The rows of one column that are wrong: how many, and the first."""

    count: int = 0
    episode: int = 0
    said: str = ""


class RowCheck:
    """Compares blocks of rows with what their place in the file demands.

    Args:
        routed: The file and its episodes.
        table: What meta/episodes says.
        ranges: The rows of each episode; the file must have as many as its episodes.
        declared: What info.json declares.
        num_tasks: Number of tasks, None where unknown.
    """

    def __init__(
        self,
        routed: RoutedFile,
        table: EpisodeTable,
        ranges: Ranges,
        declared: Declared,
        num_tasks: int | None,
    ) -> None:
        self._routed = routed
        self._table = table
        self._start = ranges.start[routed.episodes]
        self._length = ranges.length[routed.episodes]
        self._ends = np.cumsum(self._length)
        self._fps = float(declared.fps)
        self._num_tasks = num_tasks
        self._has_video = bool(declared.cameras)
        self._wrong: dict[str, _Wrong] = {}
        self._tasks_seen: dict[int, set[int]] = {}
        self._tasks_differ = _Wrong()
        self._untimed: list[IntArray] = []

    @property
    def untimed(self) -> IntArray:
        """Episodes with timestamps that are not ``i / fps``, as far as rows were compared."""
        if not self._untimed:
            return np.empty(0, np.int64)
        together: IntArray = np.concatenate(self._untimed)
        return np.unique(together)

    def check(self, file: pq.ParquetFile) -> Iterator[Finding]:
        """Yield a finding for each column that is wrong somewhere: how often, and where first."""
        names = [name for name in DEFAULT_COLUMNS if name in file.schema_arrow.names]
        row = 0
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=names, use_threads=False):
            self._add(row, batch)
            row += batch.num_rows
        self._close_tasks(len(self._length))
        for name, code in _CODES.items():
            wrong = self._wrong.get(name)
            if wrong is not None:
                # Without videos nothing is looked up by time.
                mild = name == "timestamp" and not self._has_video
                yield found(
                    code,
                    f"{self._routed.path}: {wrong.count:,} rows, first {wrong.said}.",
                    episode=wrong.episode,
                    stream=DATA_STREAM,
                    path=self._routed.path,
                    severity="warning" if mild else None,
                )
        if self._tasks_differ.count:
            yield found(
                "episode-tasks",
                f"{self._tasks_differ.count:,} episodes, first {self._tasks_differ.said}.",
                episode=self._tasks_differ.episode,
                stream="episodes",
                path=self._routed.path,
            )

    def _add(self, first_row: int, batch: pa.RecordBatch) -> None:
        rows = np.arange(first_row, first_row + batch.num_rows)
        place = np.searchsorted(self._ends, rows, side="right")
        frame = rows - (self._ends[place] - self._length[place])
        expected = {
            "index": self._start[place] + frame,
            "episode_index": self._routed.episodes[place],
            "frame_index": frame,
        }
        for name, wanted in expected.items():
            values = self._integers(batch, name, place, frame)
            if values is not None:
                self._note(name, values != wanted, values, wanted, place, frame)
        self._check_times(batch, place, frame)
        tasks = self._integers(batch, "task_index", place, frame)
        if tasks is None or self._num_tasks is None:
            return
        bad = ~((tasks >= 0) & (tasks < self._num_tasks) & (tasks == np.rint(tasks)))
        self._note("task_index", bad, tasks, None, place, frame)
        if not bad.any():
            self._gather_tasks(place, tasks)

    def _check_times(self, batch: pa.RecordBatch, place: IntArray, frame: IntArray) -> None:
        at = batch.schema.get_field_index("timestamp")
        if at < 0:
            return
        seconds = floats(batch.column(at))
        if seconds is None:
            if batch.column(at).null_count:
                self._unusable("timestamp", place, frame)
                self._untimed.append(self._routed.episodes[np.unique(place)])
            return
        # Single precision is coarser than the tolerance from 2,048 s on: the time that it stores
        # for i / fps is right wherever it is.
        wanted = (frame / self._fps).astype(np.float32).astype(np.float64)
        off = ~(np.abs(seconds - wanted) < _TOLERANCE_SECONDS)
        if off.any():
            self._untimed.append(self._routed.episodes[np.unique(place[off])])
        self._note("timestamp", off, seconds, wanted, place, frame)

    def _integers(
        self, batch: pa.RecordBatch, name: str, place: IntArray, frame: IntArray
    ) -> npt.NDArray[Any] | None:
        at = batch.schema.get_field_index(name)
        if at < 0:
            return None
        column = batch.column(at)
        values: npt.NDArray[Any] | None = integers(column)
        if pa.types.is_floating(column.type):  # LeRobot casts them, where they are whole
            values = floats(column)
        if values is None and (column.null_count or pa.types.is_integer(column.type)):
            self._unusable(name, place, frame)  # another type is a finding of its own
        return values

    def _unusable(self, name: str, place: IntArray, frame: IntArray) -> None:
        everywhere = np.ones(len(place), np.bool_)
        values = np.full(len(place), np.nan)
        self._note(name, everywhere, values, None, place, frame, said="values are missing")

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
        count = int(np.count_nonzero(bad))
        if not count:
            return
        wrong = self._wrong.get(name)
        if wrong is None:
            at = int(np.argmax(bad))
            episode = int(self._routed.episodes[place[at]])
            shown = said or f"it is {values[at]}"
            if wanted is not None:
                shown += f" and not {wanted[at]}"
            wrong = self._wrong[name] = _Wrong(
                0, episode, f"frame {frame[at]} of episode {episode}, where {shown}"
            )
        wrong.count += count

    def _gather_tasks(self, place: IntArray, tasks: npt.NDArray[Any]) -> None:
        """Collect the tasks of each episode; one that is complete is compared and forgotten."""
        if not len(self._table.task_ends):
            return
        changes = np.flatnonzero((np.diff(place) != 0) | (np.diff(tasks) != 0)) + 1
        for at in [0, *changes.tolist()]:
            self._tasks_seen.setdefault(int(place[at]), set()).add(int(tasks[at]))
        self._close_tasks(int(place[-1]))

    def _close_tasks(self, below: int) -> None:
        for place in [place for place in self._tasks_seen if place < below]:
            seen = self._tasks_seen.pop(place)
            episode = int(self._routed.episodes[place])
            listed = self._table.tasks_of(episode)
            if listed != seen:
                if not self._tasks_differ.count:
                    self._tasks_differ.episode = episode
                    self._tasks_differ.said = (
                        f"episode {episode}: its rows have the tasks {sorted(seen)}, "
                        f"meta/episodes lists {_listed(listed)}"
                    )
                self._tasks_differ.count += 1


def _listed(tasks: set[int]) -> str:
    return str(
        [task if task >= 0 else "one that is not in tasks.parquet" for task in sorted(tasks)]
    )
