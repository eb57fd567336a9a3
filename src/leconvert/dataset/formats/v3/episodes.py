"""``meta/episodes`` of a v3.0 dataset as it stands on disk: one row an episode.

It is read a block of rows at a time. What is kept of an episode is numbers: where its rows are,
where its frames are, which tasks it names. A million episodes with four cameras take about 200 MB.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.findings import found
from leconvert.dataset.formats.episode_stats import StatsBlock
from leconvert.dataset.formats.v3.info import EPISODES_DIR, episodes_path
from leconvert.model.values import Finding, FloatArray, IntArray, camera_of
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.storage_errors import storage_errors
from leconvert.tables.arrow import floats, integers, is_list, nested_numbers
from leconvert.tables.data_file import (
    open_parquet,
    row_group_rows,
    unreadable,
    with_unique_names,
)
from leconvert.workdir.fs import LOCAL

# The rows, a block at a time, for tables that are larger than memory should be.


_BLOCK_ROWS = 1000
STATS_PREFIX = "stats/"
_RANGE_COLUMNS = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
LOCATION_COLUMNS = ("meta/episodes/chunk_index", "meta/episodes/file_index")
"""The columns that say which file of ``meta/episodes`` a row is in."""


def placing_columns(streams: Sequence[str]) -> list[str]:
    """Return the columns that say where the episodes are, in the streams and in the dataset."""
    names = list(_RANGE_COLUMNS)
    for stream in streams:
        names += [f"{stream}/chunk_index", f"{stream}/file_index"]
        if camera_of(stream) is not None:
            names += [f"{stream}/from_timestamp", f"{stream}/to_timestamp"]
    return names


class EpisodesReader:
    """The rows of ``meta/episodes`` below a folder: all files in text order, rows in order.

    Nothing of them is kept. Files that do not go together show in the types of what is read. A file
    that is missing or damaged raises `UnreadableSourceError` as soon as it is needed, a folder that
    cannot be listed `StorageError` at once.

    Args:
        root: A v3.0 dataset's folder.

    Attributes:
        paths: Its files, relative to the dataset; the one that there should be where there is none.
        is_there: Whether there is any.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        paths = _tables_below(self._root)
        self.is_there = bool(paths)
        self.paths = tuple(paths or [episodes_path(0)])
        self._schemas: dict[str, pa.Schema] = {}

    @cached_property
    def _groups(self) -> list[tuple[str, int, int]]:
        return [
            (path, group, rows)
            for path in self.paths
            for group, rows in enumerate(row_group_rows(self._root / path))
            if rows
        ]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(rows for _, _, rows in self._groups))

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return self._ends[-1] if self._ends else 0

    def schema(self, path: str) -> pa.Schema:
        """Return the schema of one of the files."""
        if path not in self._schemas:
            with self._open(path):
                pass
        return self._schemas[path]

    def blocks(self, wanted: Callable[[str], bool], path: str | None = None) -> Iterator[pa.Table]:
        """Yield all rows, at most a thousand at a time.

        Args:
            wanted: Whether to read a column, by its name.
            path: One of the files, to read its rows alone.
        """
        for each in self.paths if path is None else [path]:
            with self._open(each) as reader:
                for batch in reader.iter_batches(
                    _BLOCK_ROWS,
                    range(reader.num_row_groups),
                    column_indices=_leaves(reader, wanted),
                    use_threads=False,
                ):
                    batch.validate(full=True)  # texts are texts, lists lie within their values
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])

    def rows(self, first: int, stop: int, wanted: Callable[[str], bool]) -> Iterator[pa.Table]:
        """Yield rows ``first`` to ``stop``, in one table or several."""
        group = bisect_right(self._ends, first)
        last = bisect_right(self._ends, stop - 1)
        begin = self._ends[group - 1] if group else 0
        for path, number, rows in self._groups[group : last + 1]:
            with self._open(path) as reader:
                table = reader.read_row_group(
                    number, column_indices=_leaves(reader, wanted), use_threads=False
                )
                table.validate(full=True)
            skipped = max(0, first - begin)
            yield table.slice(skipped, stop - begin - skipped)
            begin += rows

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetReader]:
        reader = open_parquet(self._root / path)
        try:
            if path not in self._schemas:
                self._schemas[path] = with_unique_names(reader.schema_arrow)
            yield reader
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self._root / path, error) from error
        finally:
            reader.close()


def _tables_below(root: Path) -> list[str]:
    """Return the files of the table. A glob passes over folders that the disk does not list."""
    return sorted(
        f"{EPISODES_DIR}/{chunk}/{name}"
        for chunk in _names_in(root / EPISODES_DIR)
        for name in _names_in(root / EPISODES_DIR / chunk)
        if name.endswith(".parquet")
    )


def _names_in(folder: Path) -> list[str]:
    with storage_errors(folder):
        try:
            return LOCAL.list_names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _leaves(reader: pq.ParquetReader, wanted: Callable[[str], bool]) -> list[int]:
    return [leaf for leaf, names in enumerate(reader.column_paths) if wanted(names[0])]


def stats_of_rows(rows: pa.Table) -> StatsBlock:
    """Return the statistics of some rows, one at least, as far as each has them."""
    columns: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for feature, statistic, column in _stats_columns(rows):
        array = nested_numbers(column.combine_chunks()) if is_list(column.type) else None
        # Empty lists have no type of their own.
        if array is None or not array.size:
            return StatsBlock(_stats_rows(rows))
        columns.setdefault(feature, {})[statistic] = array
    return StatsBlock.of_columns(columns, rows.num_rows)


def _stats_rows(rows: pa.Table) -> list[dict[str, dict[str, Any]]]:
    stats: list[dict[str, dict[str, Any]]] = [{} for _ in range(rows.num_rows)]
    for feature, statistic, column in _stats_columns(rows):
        for own, value in zip(stats, column.to_pylist(), strict=True):
            if value is not None:
                own.setdefault(feature, {})[statistic] = value
    return stats


def _stats_columns(rows: pa.Table) -> Iterator[tuple[str, str, pa.ChunkedArray]]:
    """Yield feature, statistic and values of each column of statistics."""
    for name in rows.column_names:
        if name.startswith(STATS_PREFIX):
            feature, _, statistic = name.removeprefix(STATS_PREFIX).rpartition("/")
            yield feature, statistic, rows.column(name)


# Where each episode is, as arrays.


_UNKNOWN_TASK = -1


class StreamPlaces(NamedTuple):
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
    placed: Mapping[str, StreamPlaces]
    task_ends: IntArray
    task_numbers: IntArray

    def __len__(self) -> int:
        return len(self.episode_index)

    def tasks_of(self, row: int) -> set[int]:
        """Return the tasks that the table lists for an episode."""
        first = int(self.task_ends[row - 1]) if row else 0
        return set(self.task_numbers[first : int(self.task_ends[row])].tolist())

    def in_order(self, rows: IntArray) -> EpisodeTable:
        """Return the table as if these rows stood in this order, each numbered by its place."""
        placed = {
            stream: StreamPlaces(
                places.chunk[rows],
                places.file[rows],
                places.begin_seconds[rows] if len(places.begin_seconds) else places.begin_seconds,
                places.end_seconds[rows] if len(places.end_seconds) else places.end_seconds,
            )
            for stream, places in self.placed.items()
        }
        ends, numbers = self.task_ends, self.task_numbers
        if len(ends):
            first = np.concatenate(([0], ends))
            parts = [numbers[first[row] : first[row + 1]] for row in rows.tolist()]
            ends = np.cumsum([len(part) for part in parts])
            numbers = np.concatenate(parts)
        return EpisodeTable(
            np.arange(len(self)),
            self.length[rows],
            self.from_index[rows],
            self.to_index[rows],
            placed,
            ends,
            numbers,
        )


def read_episode_table(
    reader: EpisodesReader,
    streams: Sequence[str],
    *,
    task_rows: Mapping[str, int] | None = None,
    add_stats: Callable[[pa.Table], object] | None = None,
) -> tuple[EpisodeTable | None, list[Finding]]:
    """Read all files in text order, as loaders do.

    Returns:
        The table, None where nothing can be read by it, and what is wrong with it.
    """
    if not reader.is_there:
        message = f"{EPISODES_DIR} holds no chunk-*/*.parquet."
        return None, [found("missing-file", message, stream="episodes", path=EPISODES_DIR)]
    gathering = _Gathering(streams, task_rows)
    for path in reader.paths:
        try:
            wanted = gathering.wanted(path, reader.schema(path))
            for block in reader.blocks(
                lambda name: (
                    name in wanted  # noqa: B023 (it is read in this turn)
                    or (add_stats is not None and name.startswith(STATS_PREFIX))
                ),
                path,
            ):
                gathering.add(path, block)
                if add_stats is not None:
                    add_stats(block)
        except UnreadableSourceError as error:
            gathering.wrong("unreadable-file", str(error), path)
            return None, gathering.findings
        except ValueError as error:
            gathering.wrong("unreadable-file", f"{path} cannot be read: {error}", path)
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

    def wanted(self, path: str, schema: pa.Schema) -> set[str]:
        """Return the columns to read of a file; those that lack or are of another type are told."""
        missing: list[str] = []
        for name in placing_columns(self.streams):
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
        optional = {*LOCATION_COLUMNS, "tasks"} - self.unusable - set(schema.names)
        if optional:
            names = ", ".join(map(repr, sorted(optional)))
            message = f"There is no column {names}; tools that edit datasets need them."
            self.wrong("episodes-column", message, path, mild=True)
            self.unusable.update(optional)
        if self.task_rows is None:
            self.unusable.add("tasks")
        return {*placing_columns(self.streams), *LOCATION_COLUMNS, "tasks"} - self.unusable

    def add(self, path: str, block: pa.Table) -> None:
        (batch,) = block.to_batches()
        for name in placing_columns(self.streams):
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
        for name, number in zip(LOCATION_COLUMNS, digits, strict=True):
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
        if "tasks" in self.unusable or self.task_rows is None:
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
            placed[stream] = StreamPlaces(
                whole(f"{stream}/chunk_index"), whole(f"{stream}/file_index"), begin, end
            )
        has_tasks = "tasks" not in self.unusable
        no_tasks = np.empty(0, np.int64)
        return EpisodeTable(
            episode_index=whole("episode_index"),
            length=whole("length"),
            from_index=whole("dataset_from_index"),
            to_index=whole("dataset_to_index"),
            placed=placed,
            task_ends=np.cumsum(np.concatenate(self.task_counts)) if has_tasks else no_tasks,
            task_numbers=np.concatenate(self.task_numbers) if has_tasks else no_tasks,
        )
