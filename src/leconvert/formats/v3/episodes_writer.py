"""``meta/episodes``: one row an episode, in as many files as the size limit asks for.

Columns are the routing columns, those of each camera, the source's own line of ``episodes.jsonl``,
the episode's statistics and, last, the file that the row itself is in. The types of the source's
values are found while writing: the writer goes by the first block of rows and, where a later row
needs more (an integer column gets a fraction, a new key appears), takes the types of all rows and
starts over. So the types never depend on where blocks end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.arrow import (
    MixedKindsError,
    array_of,
    array_of_numbers,
    repeated_int64,
    type_of,
    type_of_numbers,
)
from leconvert.errors import SourceError
from leconvert.formats.v3.info import USUAL_NAMES, FileNames, episodes_path
from leconvert.model import FILES_PER_CHUNK
from leconvert.tables.schemas import feature_of_type, huggingface_metadata
from leconvert.workdir.fs import make_folders_below

__all__ = ["EpisodeRecord", "VideoSpan", "write_episodes"]


# ------------------------------------------------------------------------------------------------
# Columns of a table whose types are found in JSON values.


_STATS_PREFIX = "stats/"


class RowBlock:
    """Some rows of Python values that become columns; a row that lacks a column is null there.

    The order of the columns is that of their first appearance, statistics after all others.
    """

    def __init__(self) -> None:
        self._rows: list[Mapping[str, Any]] = []
        self._stats: list[Mapping[str, Any] | None] = []
        self._stats_columns: dict[str, list[Any]] | None = None
        # Statistics are most of the values and nearly always regular: one conversion gives a
        # column's type and its numbers.
        self._numbers: dict[str, npt.NDArray[Any]] = {}

    def add(self, row: Mapping[str, Any], stats: Mapping[str, Any] | None) -> None:
        """Append a row."""
        self._rows.append(row)
        self._stats.append(stats)
        self._stats_columns = None

    def schema(self) -> pa.Schema:
        """Return the narrowest types that hold the rows.

        Integers and fractions in one column make it float64. Mappings are structs. Values that no
        column type holds together, a number and a text for example, make it text: a text stays as
        it is and everything else is written as JSON.
        """
        fields: list[pa.Field] = []
        for name in _names(self._rows):
            try:
                found = type_of([row.get(name) for row in self._rows])
            except MixedKindsError:
                found = pa.string()
            fields.append(pa.field(name, found))
        for name, values in self._statistics().items():
            numbers = _numbers(values)
            if numbers is not None:
                self._numbers[name] = numbers
                found = type_of_numbers(numbers)
            else:
                try:
                    found = type_of(values, truth_counts=True)
                except MixedKindsError as error:
                    raise _no_common_type(name, error) from error
            fields.append(pa.field(name, found))
        return pa.schema(fields)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the rows in the columns and types of ``schema``, which must hold them."""
        arrays = []
        for field in schema:
            numbers = self._numbers.get(field.name)
            try:
                if numbers is not None:
                    arrays.append(array_of_numbers(numbers, field.type))
                    continue
                if field.name.startswith(_STATS_PREFIX):
                    values = self._statistics().get(field.name) or [None] * len(self._rows)
                else:
                    values = [row.get(field.name) for row in self._rows]
                if pa.types.is_string(field.type):
                    values = [_text(value) for value in values]
                arrays.append(array_of(values, field.type))
            except MixedKindsError as error:
                raise _no_common_type(field.name, error) from error
        return pa.Table.from_arrays(arrays, schema=schema)

    def _statistics(self) -> dict[str, list[Any]]:
        """Return the columns of the statistics."""
        if self._stats_columns is None:
            columns = _regular_columns(self._stats)
            if columns is None:
                flat: list[dict[str, Any]] = [{} for _ in self._stats]
                for stats, row in zip(self._stats, flat, strict=True):
                    if stats is not None:
                        _flatten(_STATS_PREFIX, stats, row)
                columns = {name: [row.get(name) for row in flat] for name in _names(flat)}
            self._stats_columns = columns
        return self._stats_columns


def widened(schema: pa.Schema | None, other: pa.Schema) -> pa.Schema:
    """Return a schema that holds what either holds, columns in order of first appearance."""
    if schema is None or schema.equals(other):
        return other
    fields: dict[str, pa.Field] = {field.name: field for field in schema}
    for field in other:
        known = fields.get(field.name)
        if known is None or known.type.equals(field.type):
            fields.setdefault(field.name, field)
            continue
        pair = [known, field]
        if field.name.startswith(_STATS_PREFIX):
            pair = [
                known.with_type(_as_number(known.type, field.type)),
                field.with_type(_as_number(field.type, known.type)),
            ]
        try:
            merged = pa.unify_schemas(
                [pa.schema([one]) for one in pair], promote_options="permissive"
            ).field(0)
        except pa.ArrowException as error:
            if field.name.startswith(_STATS_PREFIX):
                raise _no_common_type(field.name, error) from error
            merged = pa.field(field.name, pa.string())
        fields[field.name] = merged
    # Statistics stay behind the columns that appear late.
    ordered = sorted(fields.values(), key=lambda field: field.name.startswith(_STATS_PREFIX))
    return pa.schema(ordered)


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the types in which parquet stores columns of the types found.

    Mappings that are always empty have no column type and become JSON text; statistics that are
    always empty become float64, as NumPy has it.
    """
    fields: list[pa.Field] = []
    for field in schema:
        stored = field.type
        if field.name.startswith(_STATS_PREFIX):
            stored = _with_numbers(stored)
        elif _has_empty_struct(stored):
            stored = pa.string()
        fields.append(pa.field(field.name, stored))
    return pa.schema(fields)


def _regular_columns(
    rows: Sequence[Mapping[str, Any] | None],
) -> dict[str, list[Any]] | None:
    """Return the columns of statistics that all rows have, as lists, two levels deep.

    Nearly all do, and then nothing is flattened row by row. None where they do not.
    """
    columns: dict[str, list[Any]] = {}
    first = rows[0] if rows else None
    if first is None or any(row is None or row.keys() != first.keys() for row in rows):
        return None
    for feature, example in first.items():
        values = [row[feature] for row in rows if row is not None]
        if set(map(type, values)) != {dict} or any(
            value.keys() != example.keys() for value in values
        ):
            return None
        for statistic in example:
            column = [value[statistic] for value in values]
            name = f"{_STATS_PREFIX}{feature}/{statistic}"
            if set(map(type, column)) != {list} or name in columns:
                return None
            columns[name] = column
    return columns


def _flatten(prefix: str, stats: Mapping[str, Any], flat: dict[str, Any]) -> None:
    for key, value in stats.items():
        if type(value) is list:
            flat[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            _flatten(f"{prefix}{key}/", value, flat)
        else:
            plain = value.tolist() if hasattr(value, "tolist") else value
            # A statistic is an array of one dimension at least.
            flat[f"{prefix}{key}"] = plain if isinstance(plain, list) else [plain]


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(rows)))


def _numbers(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return regular lists of numbers as an array; None where they are not that."""
    try:
        numbers = np.array(values)
    except (ValueError, OverflowError):
        return None
    # Object arrays hold None among the values; empty lists have no type of their own.
    return numbers if numbers.dtype.kind in "bif" and numbers.ndim > 1 and numbers.size else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _with_numbers(found: pa.DataType) -> pa.DataType:
    """Type the innermost values of statistics that are empty everywhere, as NumPy types them."""
    if pa.types.is_list(found):
        return pa.list_(_with_numbers(found.value_type))
    return pa.float64() if pa.types.is_null(found) else found


def _as_number(found: pa.DataType, beside: pa.DataType) -> pa.DataType:
    """Return truth values as the numbers that stand beside them, other types as they are."""
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
        next_step="Correct the values in the metadata of the source.",
    )


# ------------------------------------------------------------------------------------------------
# ``meta/episodes``: one row an episode, in as many files as the size limit asks for.


# Rows of a row group.
_GROUP_ROWS = 1000
# Rows that are held as Python's values before they become columns; those take ten times the room.
_BLOCK_ROWS = 125
_FILE_COLUMNS = ("meta/episodes/chunk_index", "meta/episodes/file_index")


class VideoSpan(NamedTuple):
    """Where one camera's frames of an episode are.

    Attributes:
        key: The video feature.
        file: Number of the camera's output file, from 0.
        from_frame: First frame of the episode within that file.
        to_frame: Frame after the last.
    """

    key: str
    file: int
    from_frame: int
    to_frame: int


class EpisodeRecord(NamedTuple):
    """All that ``meta/episodes`` says about one episode.

    Attributes:
        episode_index: Its index in the result.
        data_file: Number of the data file that holds its rows, from 0.
        dataset_from_index: First of its rows in the whole dataset.
        length: Number of its rows.
        videos: One span a camera, sorted by key.
        legacy: Its line of ``episodes.jsonl``; keys keep their order. ``episode_index`` and
            ``length`` above take precedence over what it says.
        stats: Its statistics, feature to statistic to value; None where the source has none.
    """

    episode_index: int
    data_file: int
    dataset_from_index: int
    length: int
    videos: tuple[VideoSpan, ...]
    legacy: Mapping[str, Any]
    stats: Mapping[str, Any] | None


def write_episodes(
    root: str | os.PathLike[str],
    episodes: Callable[[], Iterable[EpisodeRecord]],
    *,
    fps: Fraction,
    names: FileNames = USUAL_NAMES,
    file_size_limit_bytes: int = 100 * 1024**2,
) -> list[str]:
    """Write ``meta/episodes`` below ``root``.

    Memory is bounded by one block of rows and one file's footer, not by the number of episodes.

    Args:
        episodes: Gives the records in order, the same ones each time; called once, or three times
            where a later record needs wider types than the first hundred or so.

    Returns:
        The files written, relative to ``root``, in row order.
    """
    writer = _EpisodesWriter(Path(root), file_size_limit_bytes)
    if not writer.write(_blocks(episodes(), fps, names), None):
        schema: pa.Schema | None = None
        for block in _blocks(episodes(), fps, names):
            schema = widened(schema, block.schema())
        writer.discard()
        complete = writer.write(_blocks(episodes(), fps, names), schema)
        assert complete, "the schema of all rows holds every row"
    if not writer.paths:
        raise SourceError(
            f"There is no episode to write below {os.fspath(root)}.",
            path=os.fspath(root),
            next_step="Convert a dataset that has episodes.",
        )
    return writer.paths


def _blocks(
    episodes: Iterable[EpisodeRecord], fps: Fraction, names: FileNames
) -> Iterator[RowBlock]:
    remaining = iter(episodes)
    while records := list(islice(remaining, _BLOCK_ROWS)):
        yield _block(records, fps, names)


def _block(records: Sequence[EpisodeRecord], fps: Fraction, names: FileNames) -> RowBlock:
    block = RowBlock()
    for record in records:
        # Plain integers: numbers that come out of NumPy arrays are of another type.
        start = int(record.dataset_from_index)
        chunk, file = names.indices(int(record.data_file))
        row: dict[str, Any] = {
            "episode_index": int(record.episode_index),
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": start,
            "dataset_to_index": start + int(record.length),
        }
        for span in record.videos:
            prefix = f"videos/{span.key}/"
            row[prefix + "chunk_index"], row[prefix + "file_index"] = names.indices(int(span.file))
            row[prefix + "from_timestamp"] = _seconds(span.from_frame, fps)
            row[prefix + "to_timestamp"] = _seconds(span.to_frame, fps)
        row |= {key: value for key, value in record.legacy.items() if key not in row}
        row["length"] = int(record.length)
        block.add(row, record.stats)
    return block


def _seconds(frame: int, fps: Fraction) -> float:
    # Python divides integers exactly and rounds once; NumPy's operands would be rounded before.
    return int(frame) * fps.denominator / fps.numerator


class _EpisodesWriter:
    """Writes blocks of rows and starts new files.

    ``write`` says False as soon as a block does not fit the types it goes by; what it wrote until
    then is void and ``discard`` removes it.
    """

    def __init__(self, root: Path, file_size_limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = file_size_limit_bytes
        self._file_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.paths: list[str] = []

    def write(self, blocks: Iterable[RowBlock], schema: pa.Schema | None) -> bool:
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
                if rows >= _GROUP_ROWS:
                    self._append(pa.concat_tables(group).combine_chunks())
                    group.clear()
                    rows = 0
            if group:
                self._append(pa.concat_tables(group).combine_chunks())
        finally:
            self._close()
            # The writer held a page for each of a hundred columns; what comes next has none.
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
        for name, number in zip(_FILE_COLUMNS, (chunk, file), strict=True):
            rows = rows.append_column(
                pa.field(name, pa.int64()), repeated_int64(number, rows.num_rows)
            )
        if self._writer is None:
            features = {field.name: feature_of_type(field.type) for field in rows.schema}
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
