"""``meta/episodes`` of a v3.0 dataset: read once, a block of rows at a time, kept as arrays.

What is kept of an episode is numbers: where its rows are, where its frames are, which tasks it
names. A million episodes with four cameras take about 200 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.model import Finding, IntArray, camera_of
from leconvert.tables.paths import EPISODES_DIR
from leconvert.verify.catalogue import found
from leconvert.verify.columns import FloatArray, floats, integers
from leconvert.verify.episode_stats import EpisodeStats

__all__ = ["EpisodeTable", "Placed", "read_episode_table"]

_BLOCK_ROWS = 512
_RANGE_COLUMNS = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
_LOCATION_COLUMNS = ("meta/episodes/chunk_index", "meta/episodes/file_index")
_UNKNOWN_TASK = -1


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Where one stream's part of each episode is, arrays of shape (E,).

    Attributes:
        chunk: Number of the chunk folder.
        file: Number of the file in it.
        begin_seconds: ``from_timestamp``; empty for data.
        end_seconds: ``to_timestamp``; empty for data.
    """

    chunk: IntArray
    file: IntArray
    begin_seconds: FloatArray
    end_seconds: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTable:
    """What meta/episodes says; arrays have shape (E,).

    Attributes:
        episode_index: As stored; a reader goes by the row.
        length: Frames.
        from_index: First row in the dataset.
        to_index: Row after the last.
        placed: Each stream's places, for streams whose columns can be used.
        task_ends: Where each episode's tasks end in ``task_numbers``; empty where unknown.
        task_numbers: Rows of tasks.parquet, -1 for a text that is not there.
    """

    episode_index: IntArray
    length: IntArray
    from_index: IntArray
    to_index: IntArray
    placed: Mapping[str, Placed]
    task_ends: IntArray
    task_numbers: IntArray

    def __len__(self) -> int:
        return len(self.episode_index)

    def tasks_of(self, row: int) -> set[int]:
        """Return the tasks that the table lists for an episode."""
        first = int(self.task_ends[row - 1]) if row else 0
        return set(self.task_numbers[first : int(self.task_ends[row])].tolist())


def read_episode_table(
    root: Path, streams: Sequence[str], task_rows: Mapping[str, int] | None, stats: EpisodeStats
) -> tuple[EpisodeTable | None, list[Finding]]:
    """Read all files in text order, as loaders do.

    Args:
        root: The dataset.
        streams: The streams that every episode must be placed in.
        task_rows: Row of each task's text; None where texts do not lead to one row.
        stats: Is given the episodes' statistics.

    Returns:
        The table, None where nothing can be checked by it, and what is wrong with it.
    """
    folder = root / EPISODES_DIR
    paths = sorted(path for path in folder.glob("*/*.parquet"))
    if not paths:
        message = f"{EPISODES_DIR} holds no chunk-*/*.parquet."
        return None, [found("missing-file", message, stream="episodes", path=EPISODES_DIR)]
    gathering = _Gathering(streams, task_rows)
    for path in paths:
        relative = path.relative_to(root).as_posix()
        try:
            with pq.ParquetFile(path) as file:
                gathering.columns(relative, file.schema_arrow)
                names = gathering.wanted(file.schema_arrow.names)
                for batch in file.iter_batches(_BLOCK_ROWS, columns=names, use_threads=False):
                    gathering.add(relative, batch)
                    stats.add(batch)
        except (OSError, ValueError, pa.ArrowException) as error:
            gathering.wrong("unreadable-file", f"{relative} cannot be read: {error}", relative)
            return None, gathering.findings
    return gathering.table(), gathering.findings


@dataclass(slots=True)
class _Gathering:
    """Blocks of rows become arrays; what cannot become one is a finding and is left out."""

    streams: Sequence[str]
    task_rows: Mapping[str, int] | None
    findings: list[Finding] = field(default_factory=list)
    parts: dict[str, list[IntArray | FloatArray]] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)
    task_counts: list[IntArray] = field(default_factory=list)
    task_numbers: list[IntArray] = field(default_factory=list)
    rows: int = 0

    def wrong(
        self, code: str, message: str, path: str, *, row: int | None = None, mild: bool = False
    ) -> None:
        severity = "warning" if mild else None
        self.findings.append(
            found(code, message, episode=row, stream="episodes", path=path, severity=severity)
        )

    def needed(self) -> Iterator[str]:
        yield from _RANGE_COLUMNS
        for stream in self.streams:
            yield from (f"{stream}/chunk_index", f"{stream}/file_index")
            if camera_of(stream) is not None:
                yield from (f"{stream}/from_timestamp", f"{stream}/to_timestamp")

    def wanted(self, names: Sequence[str]) -> list[str]:
        known = {*self.needed(), *_LOCATION_COLUMNS, "tasks"} - self.unusable
        return [name for name in names if name in known or name.startswith("stats/")]

    def columns(self, path: str, schema: pa.Schema) -> None:
        """Find columns that are missing or of another type."""
        missing: list[str] = []
        for name in self.needed():
            if name in self.unusable:
                continue
            at = schema.get_field_index(name)
            kind = None if at < 0 else schema.field(at).type
            seconds = name.endswith("_timestamp")
            if kind is None:
                missing.append(name)
            elif not (pa.types.is_integer(kind) or (seconds and pa.types.is_floating(kind))):
                self.wrong("episodes-column", f"The column {name!r} is {kind}.", path)
                self.unusable.add(name)
        if missing:
            message = f"There is no column {', '.join(map(repr, missing))}."
            self.wrong("episodes-column", message, path)
            self.unusable.update(missing)
        optional = {*_LOCATION_COLUMNS, "tasks"} - self.unusable - set(schema.names)
        if optional:
            names = ", ".join(map(repr, sorted(optional)))
            message = f"There is no column {names}; tools that edit datasets need them."
            self.wrong("episodes-column", message, path, mild=True)
            self.unusable.update(optional)

    def add(self, path: str, batch: pa.RecordBatch) -> None:
        for name in self.needed():
            if name in self.unusable:
                continue
            column = batch.column(batch.schema.get_field_index(name))
            values = floats(column) if name.endswith("_timestamp") else integers(column)
            if values is None or (values.dtype.kind == "f" and not np.isfinite(values).all()):
                nulls = np.array([value is None for value in column.to_pylist()])
                row = self.rows + (int(np.argmax(nulls)) if nulls.any() else 0)
                self.wrong("episodes-null", f"{name} has no value.", path, row=row)
                self.unusable.add(name)
                continue
            self.parts.setdefault(name, []).append(values.copy())
        self._check_location(path, batch)
        self._add_tasks(path, batch)
        self.rows += batch.num_rows

    def _check_location(self, path: str, batch: pa.RecordBatch) -> None:
        digits = [part.partition("-")[2] for part in Path(path).with_suffix("").parts[-2:]]
        for name, number in zip(_LOCATION_COLUMNS, digits, strict=True):
            if name in self.unusable:
                continue
            values = integers(batch.column(batch.schema.get_field_index(name)))
            place = int(number) if number.isdecimal() and len(number) < 18 else -1
            if values is None or np.any(values != place):
                self.unusable.add(name)
                at = 0 if values is None else int(np.argmax(values != place))
                have = "no number" if values is None else int(values[at])
                message = f"{name} is {have}; the row is in {path}."
                self.wrong("episodes-location", message, path, row=self.rows + at)

    def _add_tasks(self, path: str, batch: pa.RecordBatch) -> None:
        if "tasks" in self.unusable:
            return
        if self.task_rows is None:
            self.unusable.add("tasks")
            return
        listed = batch.column(batch.schema.get_field_index("tasks")).to_pylist()
        if not all(isinstance(tasks, list) for tasks in listed):
            self.unusable.add("tasks")
            message = "tasks holds something other than lists."
            self.wrong("episodes-column", message, path, mild=True)
            return
        numbers = [
            self.task_rows.get(text, _UNKNOWN_TASK) if isinstance(text, str) else _UNKNOWN_TASK
            for tasks in listed
            for text in tasks
        ]
        self.task_counts.append(np.array([len(tasks) for tasks in listed], np.int64))
        self.task_numbers.append(np.array(numbers, np.int64))

    def table(self) -> EpisodeTable | None:
        if not self.rows or self.unusable.intersection(_RANGE_COLUMNS):
            return None
        nothing: FloatArray = np.empty(0)

        def whole(name: str) -> IntArray:
            return np.concatenate(self.parts.pop(name)).astype(np.int64, copy=False)

        placed = {}
        for stream in self.streams:
            if any(name.startswith(f"{stream}/") for name in self.unusable):
                continue
            begin, end = nothing, nothing
            if camera_of(stream) is not None:
                begin = np.concatenate(self.parts.pop(f"{stream}/from_timestamp"))
                end = np.concatenate(self.parts.pop(f"{stream}/to_timestamp"))
            placed[stream] = Placed(
                whole(f"{stream}/chunk_index"), whole(f"{stream}/file_index"), begin, end
            )
        no_tasks = "tasks" in self.unusable
        return EpisodeTable(
            episode_index=whole("episode_index"),
            length=whole("length"),
            from_index=whole("dataset_from_index"),
            to_index=whole("dataset_to_index"),
            placed=placed,
            task_ends=nothing.astype(np.int64)
            if no_tasks
            else np.cumsum(np.concatenate(self.task_counts)),
            task_numbers=nothing.astype(np.int64)
            if no_tasks
            else np.concatenate(self.task_numbers),
        )
