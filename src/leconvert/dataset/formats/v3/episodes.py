"""``meta/episodes`` of a v3.0 dataset, read and written: one row for each episode.

It is read a block of rows at a time. Only numbers are kept: the places of an episode's rows and
frames, and its tasks. A million episodes with four cameras take about 200 MB.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.findings import found
from leconvert.dataset.formats.dataset import Episodes
from leconvert.dataset.formats.stats import StatsBlock
from leconvert.dataset.formats.v3.meta import EPISODES_DIR, USUAL_NAMES, FileNames, episodes_path
from leconvert.model.values import FILES_PER_CHUNK, Finding, FloatArray, IntArray, camera_of
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.values import dataclass
from leconvert.tables.arrow import (
    MixedKindsError,
    array_of,
    array_of_numbers,
    floats,
    integers,
    is_list,
    nested_numbers,
    repeated_int64,
    type_of,
    type_of_numbers,
)
from leconvert.tables.data_file import open_parquet, row_group_rows, unreadable, with_unique_names
from leconvert.tables.schemas import feature_of_type, huggingface_metadata
from leconvert.workdir.fs import make_folders_below, names_in

# The rows, a block at a time: tables may be larger than memory.


_BLOCK_ROWS = 1000
STATS_PREFIX = "stats/"
_RANGE_COLUMNS = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
LOCATION_COLUMNS = ("meta/episodes/chunk_index", "meta/episodes/file_index")
"""The columns with the file of ``meta/episodes`` that contains the row."""


def placing_columns(streams: Sequence[str]) -> list[str]:
    """Return the columns with the places of episodes, in the streams and in the dataset."""
    names = list(_RANGE_COLUMNS)
    for stream in streams:
        names += [f"{stream}/chunk_index", f"{stream}/file_index"]
        if camera_of(stream) is not None:
            names += [f"{stream}/from_timestamp", f"{stream}/to_timestamp"]
    return names


class EpisodesReader:
    """The rows of ``meta/episodes`` below a folder: all files in text order, rows in order.

    No row is kept. Files that do not fit each other show in the types of the rows. A missing or
    damaged file raises `UnreadableSourceError` when it is read. A folder that cannot be listed
    raises `StorageError` at once.

    Args:
        root: A v3.0 dataset's folder.

    Attributes:
        paths: Its files, relative to the dataset; the expected first one if there is none.
        is_there: Whether there is any file.
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

    @cached_property
    def rows_of_files(self) -> Mapping[str, range]:
        """The rows of each file, counted over all files."""
        sizes = [sum(row_group_rows(self._root / path)) for path in self.paths]
        ends = accumulate(sizes)
        return {
            path: range(end - size, end)
            for path, size, end in zip(self.paths, sizes, ends, strict=True)
        }

    def schema(self, path: str) -> pa.Schema:
        """Return the schema of one of the files."""
        if path not in self._schemas:
            with self._open(path):
                pass
        return self._schemas[path]

    def misfits(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each file with columns that LeRobot cannot cast to those of the first file."""
        first, *others = self.paths
        wanted = self.schema(first)
        for path in others:
            names = [each.name for each in self.schema(path) if not self._fits(path, each, wanted)]
            if names:
                yield path, names

    def _fits(self, path: str, found: pa.Field, wanted: pa.Schema) -> bool:
        at = wanted.get_field_index(found.name)
        if at < 0:
            return False
        kind = wanted.field(at).type
        if found.type.equals(kind):
            return True
        try:
            for block in self.blocks(lambda name: name == found.name, path):
                block.column(0).cast(kind)
        except pa.ArrowException:
            return False
        return True

    def blocks(self, wanted: Callable[[str], bool], path: str | None = None) -> Iterator[pa.Table]:
        """Yield all rows, at most a thousand at a time.

        Args:
            wanted: Returns whether to read a column, by its name.
            path: One of the files, to read only its rows.
        """
        for each in self.paths if path is None else [path]:
            with self._open(each) as reader:
                for batch in reader.iter_batches(
                    _BLOCK_ROWS,
                    range(reader.num_row_groups),
                    column_indices=_leaves(reader, wanted),
                    use_threads=False,
                ):
                    batch.validate(full=True)  # texts are texts, and lists lie within their values
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
    """Return the files of the table. A glob ignores folders that cannot be listed."""
    return sorted(
        f"{EPISODES_DIR}/{chunk}/{name}"
        for chunk in names_in(root / EPISODES_DIR)
        for name in names_in(root / EPISODES_DIR / chunk)
        if name.endswith(".parquet")
    )


def _leaves(reader: pq.ParquetReader, wanted: Callable[[str], bool]) -> list[int]:
    return [leaf for leaf, names in enumerate(reader.column_paths) if wanted(names[0])]


def stats_of_rows(rows: pa.Table) -> StatsBlock:
    """Return the statistics of some rows, at least one, as far as each row has them."""
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


# The place of each episode, as arrays.


_UNKNOWN_TASK = -1


class StreamPlaces(NamedTuple):
    """The place of each episode in one stream, arrays of shape (E,).

    Attributes:
        chunk: Number of the chunk folder.
        file: Number of the file in that folder.
        begin_seconds: ``from_timestamp``; empty for data.
        end_seconds: ``to_timestamp``; empty for data.
    """

    chunk: IntArray
    file: IntArray
    begin_seconds: FloatArray
    end_seconds: FloatArray


@dataclass(frozen=True, eq=False)
class EpisodeTable(Episodes):
    """The content of meta/episodes; arrays have shape (E,).

    Attributes:
        from_index: First row in the dataset.
        to_index: Row after the last one.
        placed: The places in each stream whose columns can be used.
        task_ends: The end of each episode's tasks in ``task_numbers``; empty if unknown.
        task_numbers: Rows of tasks.parquet; -1 for a text that is not listed.
    """

    from_index: IntArray
    to_index: IntArray
    placed: Mapping[str, StreamPlaces]
    task_ends: IntArray
    task_numbers: IntArray

    @cached_property
    def start(self) -> IntArray:
        """First row of each episode in the dataset, by the lengths."""
        return np.cumsum(self.length) - self.length

    def tasks_of(self, row: int) -> set[int]:
        """Return the tasks that the table lists for an episode."""
        first = int(self.task_ends[row - 1]) if row else 0
        return set(self.task_numbers[first : int(self.task_ends[row])].tolist())

    def in_order(self, rows: IntArray) -> EpisodeTable:
        """Return the table with these rows in this order, numbered by their position."""
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
        The table (None if nothing can be read by it), and the findings.
    """
    if not reader.is_there:
        message = f"{EPISODES_DIR} contains no file chunk-*/*.parquet."
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
    """Turns blocks of rows into arrays; a column that does not fit is a finding, and left out."""

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
        """Return the columns to read from a file; missing ones and other types are reported."""
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
                self.wrong("episodes-column", f"The column {name!r} has the type {kind}.", path)
                self.unusable.add(name)
        if missing:
            message = f"The column {', '.join(map(repr, missing))} is missing."
            self.wrong("episodes-column", message, path)
            self.unusable.update(missing)
        optional = {*LOCATION_COLUMNS, "tasks"} - self.unusable - set(schema.names)
        if optional:
            names = ", ".join(map(repr, sorted(optional)))
            message = f"The column {names} is missing. Tools that edit datasets need it."
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
                message = f"{name} is {have}, but the row is in {path}."
                self.wrong("episodes-location", message, path, row=self.rows + at)

    def _add_tasks(self, path: str, batch: pa.RecordBatch) -> None:
        if "tasks" in self.unusable or self.task_rows is None:
            return
        listed = batch.column(batch.schema.get_field_index("tasks")).to_pylist()
        if not all(isinstance(tasks, list) for tasks in listed):
            self.unusable.add("tasks")
            message = "tasks does not consist of lists."
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


# The table as written, in as many files as the size limit needs.
#
# Columns are those that say where the episodes are, those of each camera, the source's own line of
# ``episodes.jsonl``, the episode's statistics and, last, the file of the row itself. The types of
# the source's values are found while writing. The writer begins with the types of the first block.
# If a later row needs more (an integer column gets a fraction, or a new key appears), the writer
# takes the types of all rows and starts over. So the types never depend on where blocks end.


# Integers below this are exact as floats, so their quotient is rounded once.
_EXACT_BELOW = 2**53


class _Rows:
    """Rows of `EpisodeRecords` that become columns; a missing column is null in a row.

    Columns are in the order of their first appearance, statistics after all others.
    """

    def __init__(self, records: EpisodeRecords, fps: Fraction, names: FileNames) -> None:
        self._legacy = records.legacy
        self._stats = records.stats
        self._numbers = _routing_columns(records, fps, names)
        first, *others = records.legacy
        own = chain(self._numbers, first, ("length",), chain.from_iterable(others))
        self._names = list(dict.fromkeys(own))
        self._numbers["length"] = records.length
        self._other_stats: dict[str, list[Any]] = {}
        self._add_stats()

    def schema(self) -> pa.Schema:
        """Return the narrowest types that hold the rows.

        Integers and fractions in one column make it float64. Mappings are structs. If no column
        type can hold all values, such as a number and a text, the column is text: texts stay
        unchanged, and everything else is written as JSON.
        """
        fields: list[pa.Field] = []
        for name in self._names:
            numbers = self._numbers.get(name)
            if numbers is not None:
                found = type_of_numbers(numbers)
            elif name in self._other_stats:
                try:
                    found = type_of(self._other_stats[name], truth_counts=True)
                except MixedKindsError as error:
                    raise _no_common_type(name, error) from error
            else:
                try:
                    found = type_of(self._legacy_values(name))
                except MixedKindsError:
                    found = pa.string()
            fields.append(pa.field(name, found))
        return pa.schema(fields)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the rows in the columns and types of ``schema``, which must hold them."""
        arrays = []
        for column in schema:
            numbers = self._numbers.get(column.name)
            try:
                if numbers is not None:
                    arrays.append(array_of_numbers(numbers, column.type))
                    continue
                if column.name.startswith(STATS_PREFIX):
                    values = self._other_stats.get(column.name) or [None] * len(self._legacy)
                else:
                    values = self._legacy_values(column.name)
                if pa.types.is_string(column.type):
                    values = [_text(value) for value in values]
                arrays.append(array_of(values, column.type))
            except MixedKindsError as error:
                raise _no_common_type(column.name, error) from error
        return pa.Table.from_arrays(arrays, schema=schema)

    def _legacy_values(self, name: str) -> list[Any]:
        return [line.get(name) for line in self._legacy]

    def _add_stats(self) -> None:
        """Add the columns of the statistics, which nearly always are arrays already."""
        if (found := self._stats.columns) is not None:
            columns = {
                f"{STATS_PREFIX}{feature}/{statistic}": array
                for feature, arrays in found.items()
                for statistic, array in arrays.items()
            }
            # The name of a feature with a slash may give a column the name of another column.
            if len(columns) == sum(map(len, found.values())):
                self._numbers |= columns
                self._names += columns
                return
        flat: list[dict[str, Any]] = [{} for _ in self._legacy]
        for stats, row in zip(self._stats.rows, flat, strict=True):
            if stats is not None:
                _flatten(STATS_PREFIX, stats, row)
        for name in dict.fromkeys(chain.from_iterable(flat)):
            self._names.append(name)
            self._other_stats[name] = [row.get(name) for row in flat]


def _routing_columns(
    records: EpisodeRecords, fps: Fraction, names: FileNames
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns with the places of episodes, except their length."""
    start = records.dataset_from_index
    chunk, file = names.indices(records.data_file)
    columns: dict[str, npt.NDArray[Any]] = {
        "episode_index": records.episode_index,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": start,
        "dataset_to_index": start + records.length,
    }
    for spans in records.videos:
        prefix = f"videos/{spans.key}/"
        columns[prefix + "chunk_index"], columns[prefix + "file_index"] = names.indices(spans.file)
        columns[prefix + "from_timestamp"] = seconds_of(spans.from_frame, fps)
        columns[prefix + "to_timestamp"] = seconds_of(spans.to_frame, fps)
    return columns


def seconds_of(frames: IntArray, fps: Fraction) -> FloatArray:
    """Return the exact times of frames, each rounded once, in seconds."""
    if max(int(frames.max(initial=0)) * fps.denominator, fps.numerator) < _EXACT_BELOW:
        return frames * fps.denominator / fps.numerator
    # Python divides integers exactly and rounds once. NumPy would round the operands first.
    return np.array([frame * fps.denominator / fps.numerator for frame in frames.tolist()])


def widened(schema: pa.Schema | None, other: pa.Schema) -> pa.Schema:
    """Return a schema that can hold both, columns in order of first appearance."""
    if schema is None or schema.equals(other):
        return other
    fields: dict[str, pa.Field] = {column.name: column for column in schema}
    for column in other:
        known = fields.get(column.name)
        if known is None or known.type.equals(column.type):
            fields.setdefault(column.name, column)
            continue
        pair = [known, column]
        if column.name.startswith(STATS_PREFIX):
            pair = [
                known.with_type(_as_number(known.type, column.type)),
                column.with_type(_as_number(column.type, known.type)),
            ]
        try:
            merged = pa.unify_schemas(
                [pa.schema([one]) for one in pair], promote_options="permissive"
            ).field(0)
        except pa.ArrowException as error:
            if column.name.startswith(STATS_PREFIX):
                raise _no_common_type(column.name, error) from error
            merged = pa.field(column.name, pa.string())
        fields[column.name] = merged
    # Statistics stay after columns that appear late.
    ordered = sorted(fields.values(), key=lambda column: column.name.startswith(STATS_PREFIX))
    return pa.schema(ordered)


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the types in which parquet stores columns of the types found.

    Mappings that are always empty have no column type and become JSON text. Statistics that are
    always empty become float64, as in NumPy.
    """
    fields: list[pa.Field] = []
    for column in schema:
        stored = column.type
        if column.name.startswith(STATS_PREFIX):
            stored = _with_numbers(stored)
        elif _has_empty_struct(stored):
            stored = pa.string()
        fields.append(pa.field(column.name, stored))
    return pa.schema(fields)


def _flatten(prefix: str, stats: Mapping[str, Any], flat: dict[str, Any]) -> None:
    for key, value in stats.items():
        if type(value) is list:
            flat[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            _flatten(f"{prefix}{key}/", value, flat)
        else:
            plain = value.tolist() if hasattr(value, "tolist") else value
            # A statistic is an array with at least one dimension.
            flat[f"{prefix}{key}"] = plain if isinstance(plain, list) else [plain]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _with_numbers(found: pa.DataType) -> pa.DataType:
    """Give the innermost values of always empty statistics the type that NumPy gives them."""
    if pa.types.is_list(found):
        return pa.list_(_with_numbers(found.value_type))
    return pa.float64() if pa.types.is_null(found) else found


def _as_number(found: pa.DataType, beside: pa.DataType) -> pa.DataType:
    """Return truth values as the numbers beside them, other types unchanged."""
    if pa.types.is_list(found) and pa.types.is_list(beside):
        return pa.list_(_as_number(found.value_type, beside.value_type))
    is_number = pa.types.is_int64(beside) or pa.types.is_float64(beside)
    return beside if pa.types.is_boolean(found) and is_number else found


def _has_empty_struct(found: pa.DataType) -> bool:
    if pa.types.is_list(found):
        return _has_empty_struct(found.value_type)
    if pa.types.is_struct(found):
        children = [found.field(number).type for number in range(found.num_fields)]
        return not children or any(_has_empty_struct(child) for child in children)
    return False


def _no_common_type(column: str, error: Exception) -> SourceError:
    reason = str(error).splitlines()[0]
    return SourceError(
        f"The values of {column} have no common type: {reason}",
        next_step="Correct these values in the metadata of the source.",
    )


# Rows of a row group.
_GROUP_ROWS = 1000


class VideoSpans(NamedTuple):
    """The places of some episodes' frames of one camera; arrays have shape (n,).

    Attributes:
        key: The video feature.
        file: Number of the camera's output file, from 0.
        from_frame: First frame of the episode in that file.
        to_frame: Frame after the last one.
    """

    key: str
    file: IntArray
    from_frame: IntArray
    to_frame: IntArray


class EpisodeRecords(NamedTuple):
    """Everything in ``meta/episodes`` about n episodes, at least one; arrays have shape (n,).

    Attributes:
        episode_index: Their indices in the result.
        data_file: Number of the data file with the rows of each, from 0.
        dataset_from_index: First of its rows in the whole dataset.
        length: Number of its rows.
        videos: The spans of each camera, sorted by key.
        legacy: The lines of ``episodes.jsonl``; keys keep their order. ``episode_index`` and
            ``length`` above take precedence over those in a line.
        stats: The statistics; None for an episode without any in the source.
    """

    episode_index: IntArray
    data_file: IntArray
    dataset_from_index: IntArray
    length: IntArray
    videos: Sequence[VideoSpans]
    legacy: Sequence[Mapping[str, Any]]
    stats: StatsBlock


class DerivedEpisodes(EpisodesReader):
    """Rows of ``meta/episodes`` that are not on the disk, read block by block as stored ones are.

    All of them are in memory.
    """

    def __init__(self, records: EpisodeRecords, fps: Fraction, names: FileNames) -> None:
        rows = _Rows(records, fps, names)
        self._table = rows.table(storable(rows.schema()))
        for name in LOCATION_COLUMNS:
            zeros = repeated_int64(0, self._table.num_rows)
            self._table = self._table.append_column(pa.field(name, pa.int64()), zeros)
        self.is_there = True
        self.paths = (episodes_path(0),)

    def schema(self, path: str) -> pa.Schema:  # noqa: ARG002 - there is one file
        """Return the types of the rows."""
        return self._table.schema

    def blocks(
        self,
        wanted: Callable[[str], bool],
        path: str | None = None,  # noqa: ARG002
    ) -> Iterator[pa.Table]:
        """Yield all rows, at most a thousand at a time; see `EpisodesReader.blocks`."""
        names = [name for name in self._table.column_names if wanted(name)]
        for batch in self._table.select(names).to_batches(_BLOCK_ROWS) if names else ():
            yield pa.Table.from_batches([batch])


def write_episodes(
    root: str | os.PathLike[str],
    episodes: Callable[[], Iterable[EpisodeRecords]],
    *,
    fps: Fraction,
    names: FileNames = USUAL_NAMES,
    file_size_limit_bytes: int = 100 * 1024**2,
) -> list[str]:
    """Write ``meta/episodes`` below ``root``.

    Memory is bounded by one block of rows and one file's footer, not by the number of episodes.

    Args:
        episodes: Gives the records in order, always the same ones. It is called once, or three
            times if a later record needs wider types than the first ones.

    Returns:
        The files written, relative to ``root``, in row order.
    """
    writer = _EpisodesWriter(Path(root), file_size_limit_bytes)

    def blocks() -> Iterator[_Rows]:
        return (_Rows(records, fps, names) for records in episodes())

    if not writer.write(blocks(), None):
        schema: pa.Schema | None = None
        for block in blocks():
            schema = widened(schema, block.schema())
        writer.discard()
        complete = writer.write(blocks(), schema)
        assert complete, "the schema of all rows holds every row"
    if not writer.paths:
        raise SourceError(
            f"There is no episode to write below {os.fspath(root)}.",
            path=os.fspath(root),
            next_step="Convert a dataset that has episodes.",
        )
    return writer.paths


class _EpisodesWriter:
    """Writes blocks of rows and starts new files.

    ``write`` returns False as soon as a block does not fit the types. Everything written until then
    is void, and ``discard`` removes it.
    """

    def __init__(self, root: Path, file_size_limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = file_size_limit_bytes
        self._file_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.paths: list[str] = []

    def write(self, blocks: Iterable[_Rows], schema: pa.Schema | None) -> bool:
        group: list[pa.Table] = []
        rows = 0
        try:
            for block in blocks:
                found = block.schema()
                if schema is None:
                    schema = found
                elif widened(schema, found) != schema:
                    return False
                group.append(block.table(storable(schema)))
                rows += group[-1].num_rows
                while rows >= _GROUP_ROWS:
                    together = pa.concat_tables(group)
                    self._append(together.slice(0, _GROUP_ROWS).combine_chunks())
                    rows -= _GROUP_ROWS
                    group = [together.slice(_GROUP_ROWS)]
            if rows:
                self._append(pa.concat_tables(group).combine_chunks())
        finally:
            self._close()
            # The writer held a page for each of a hundred columns. The next step needs none of
            # them.
            pa.default_memory_pool().release_unused()
        return True

    def discard(self) -> None:
        for path in self.paths:
            (self._root / path).unlink()
        self.paths.clear()

    def _append(self, rows: pa.Table) -> None:
        done = 0
        # The file columns add two integers to each row.
        row_bytes = max(1, -(-rows.nbytes // rows.num_rows)) + 2 * 8
        while done < rows.num_rows:
            fitting = (self._limit_bytes - self._file_bytes) // row_bytes
            if self._writer is not None and fitting < 1:
                self._close()
                continue
            count = min(rows.num_rows - done, max(1, fitting))
            self._write_rows(rows.slice(done, count))
            self._file_bytes += count * row_bytes
            done += count

    def _write_rows(self, rows: pa.Table) -> None:
        if self._writer is None:
            self.paths.append(episodes_path(len(self.paths)))
        chunk, file = divmod(len(self.paths) - 1, FILES_PER_CHUNK)
        for name, number in zip(LOCATION_COLUMNS, (chunk, file), strict=True):
            rows = rows.append_column(
                pa.field(name, pa.int64()), repeated_int64(number, rows.num_rows)
            )
        if self._writer is None:
            features = {column.name: feature_of_type(column.type) for column in rows.schema}
            entries = {name: entry for name, entry in features.items() if entry is not None}
            schema = rows.schema.with_metadata(huggingface_metadata(entries))
            path = self._root / self.paths[-1]
            make_folders_below(self._root, path.parent)
            self._writer = pq.ParquetWriter(str(path), schema, compression="snappy")
        self._writer.write_table(rows.combine_chunks())

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._file_bytes = 0
