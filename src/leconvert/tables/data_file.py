"""Open parquet files: their bytes, their rows, and a data file as a check needs it.

Numbers that the footer states cost no further reading. To read a column takes Arrow as long as to
open the file.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN_OR_DROP
from leconvert.tables.arrow import (
    innermost_type,
    is_list,
    list_length,
    list_values,
    stored_numbers,
)
from leconvert.tables.footers import (
    FOOTERS,
    MAGIC,
    TRAILER_BYTES,
    FileFooter,
    RowGroupEntry,
    chunk_outside,
)
from leconvert.tables.schemas import list_sizes
from leconvert.tables.thrift import ThriftError

_WHOLE_FILE_BYTES = 128 * 1024
_TAIL_BYTES = 64 * 1024
LARGE_FOOTER_BYTES = 256 * 1024
"""Arrow does not parse larger footers if only the rows of row groups are needed."""

_HAS_EMPTY_VALUES = "empty values in its lists"
_DIFFERENT_LENGTHS = "lists that are empty, or of different lengths"
_ROWS_AT_A_TIME = 1 << 14
_KEPT_SCHEMAS = 16

Numbers = npt.NDArray[np.integer[Any] | np.floating[Any]]


class OpenedTable:
    """An open parquet file; small files are read at once.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: The file is missing, or the file system fails.

    Attributes:
        path: The file.
        descriptor: A descriptor of the file, open for reading.
        status: The file's status when it was opened.
        size_bytes: The file's size in ``status``.
        whole: All bytes of a small file, else None.
    """

    __slots__ = (
        "_held",
        "_held_at",
        "_tail",
        "descriptor",
        "path",
        "size_bytes",
        "status",
        "whole",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for a writer.
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise missing(path) from error
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self.status = os.fstat(self.descriptor)
            self.size_bytes = self.status.st_size
            is_small = self.size_bytes <= _WHOLE_FILE_BYTES
            tail_bytes = self.size_bytes if is_small else _TAIL_BYTES
            self._tail = self._read(self.size_bytes - tail_bytes, tail_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.whole = self._tail if is_small else None
        self._held, self._held_at = self._tail, self.size_bytes - tail_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def footer(self) -> bytes:
        """Return the footer, without the length and the magic after it."""
        start, footer_bytes = self.footer_range()
        first = self.size_bytes - len(self._tail)
        if start < first:
            return self._read(start, footer_bytes)
        return self._tail[start - first : -TRAILER_BYTES]

    def parsed_footer(self, *, outline: bool = False) -> FileFooter:
        """Return the footer, with ``outline`` without row groups; see `FooterReader.outline`.

        Raises:
            UnreadableSourceError: It is damaged.
        """
        try:
            if not outline:
                return FOOTERS.read(self.footer())
            start, footer_bytes = self.footer_range()
            return FOOTERS.outline(footer_bytes, lambda first, size: self.part(start + first, size))
        except ThriftError as error:
            raise unreadable(self.path, error) from error

    def footer_range(self) -> tuple[int, int]:
        """Return the footer's offset in the file, and its size without the length and the magic."""
        tail = self._tail
        footer_bytes = int.from_bytes(tail[-TRAILER_BYTES:-4], "little")
        start = self.size_bytes - TRAILER_BYTES - footer_bytes
        if tail[-4:] != MAGIC or start < len(MAGIC):
            raise ThriftError("it does not end like a parquet file")
        return start, footer_bytes

    def window(self, position: int, size: int) -> tuple[bytes, int]:
        """Return a buffer with ``size`` bytes from ``position`` on, and the index of the first."""
        at = position - self._held_at
        if self.whole is not None or (at >= 0 and at + size <= len(self._held)):
            return self._held, at
        return self._read(position, size), 0

    def hold(self, position: int, size: int) -> None:
        """Read a range of a large file; windows on it then need no further reading."""
        if self.whole is None:
            self._held, self._held_at = self._read(position, size), position

    def part(self, position: int, size: int) -> bytes:
        """Return a range; the bytes that follow are read with it, since they are wanted next."""
        if self.held(position, size) is None:
            self.hold(position, max(size, _TAIL_BYTES))
        buffer, at = self.window(position, size)
        return buffer[at : at + size]

    def held(self, position: int, size: int) -> memoryview | None:
        """Return a range that is in memory; None if it is not."""
        at = position - self._held_at
        is_held = at >= 0 and at + size <= len(self._held)
        return memoryview(self._held)[at : at + size] if is_held else None

    def _read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self.descriptor, size, position)
        except OSError as error:
            raise unreadable(self.path, error) from error


def missing(path: str | os.PathLike[str]) -> UnreadableSourceError:
    """Return the error for a missing parquet file."""
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} does not exist.",
        path=os.fspath(path),
        next_step=GET_AGAIN_OR_DROP,
        code="missing-file",
    )


def unreadable(path: str | os.PathLike[str], error: Exception) -> UnreadableSourceError:
    """Return the error for a parquet file that cannot be read."""
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} cannot be read: {why_unreadable(path, error)}",
        path=os.fspath(path),
        next_step="Download or record the file again, or leave its episode out.",
    )


def why_unreadable(path: str | os.PathLike[str], error: Exception) -> str:
    """Return why a parquet file cannot be read."""
    if not has_footer(path):
        return "it has no footer: it was cut off, or a recording ended without finalize()."
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def has_footer(path: str | os.PathLike[str]) -> bool:
    """Return whether a file does not begin as a parquet file, or ends as one."""
    with suppress(OSError):
        size_bytes = os.path.getsize(path)  # noqa: PTH202 - by name
        if os.path.isfile(path) and size_bytes > len(MAGIC):  # noqa: PTH113 - a pipe would wait
            with open(path, "rb") as file:  # noqa: PTH123 - by name
                begin = file.read(len(MAGIC))
                file.seek(-len(MAGIC), os.SEEK_END)
                return begin != MAGIC or file.read() == MAGIC
    return True


def with_unique_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema.

    Raises:
        pa.ArrowInvalid: Two columns share a name.
    """
    if len(set(schema.names)) < len(schema.names):
        name = next(name for name in schema.names if schema.names.count(name) > 1)
        raise pa.ArrowInvalid(f"two columns have the same name, {name}.")
    return schema


def open_parquet(path: str | os.PathLike[str], *, buffer_bytes: int = 0) -> pq.ParquetReader:
    """Open a parquet file through Arrow, which parses its footer.

    ``ParquetFile`` wraps ``ParquetReader``; for thousands of small files the wrapper would take a
    third of the time.
    """
    reader = pq.ParquetReader()
    try:
        reader.open(os.fspath(path), buffer_size=buffer_bytes, pre_buffer=False)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    return reader


def read_data_schema(path: str | os.PathLike[str]) -> pa.Schema:
    """Read the Arrow schema of a parquet file, its metadata included."""
    with closing(open_parquet(path)) as reader:
        # A schema that Arrow cannot convert was already refused by `open_parquet`.
        return reader.schema_arrow


def row_group_rows(path: str | os.PathLike[str]) -> list[int]:
    """Return the rows of each row group of a parquet file.

    Arrow reads small footers, up to tables with a hundred columns. From the large footers of files
    with thousands of row groups, only the numbers of rows are kept.
    """
    with OpenedTable(os.fspath(path)) as table:
        try:
            is_large = table.footer_range()[1] > LARGE_FOOTER_BYTES
        except ThriftError as error:
            raise unreadable(path, error) from error
        if is_large:
            return table.parsed_footer(outline=True).rows
    with closing(open_parquet(path)) as reader:
        metadata = reader.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the first byte of a column chunk in its file, and the byte after its last."""
    # Some writers give the offset 0 to a dictionary that does not exist.
    first = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return first, first + chunk.total_compressed_size


class DataFile:
    """An open data file.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: The file is missing, truncated or no parquet file.

    Attributes:
        path: The file.
        table: Its bytes.
        footer: Its footer.
        rows: Number of its rows.
        group_bytes: Sum of ``total_uncompressed_size`` over the column chunks of each row group.
        columns: Top-level column names, in file order.
    """

    __slots__ = (
        "_chunks",
        "_group",
        "_null_counts",
        "columns",
        "footer",
        "group_bytes",
        "path",
        "rows",
        "table",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self.table = OpenedTable(path)
        try:
            self.footer = self.table.parsed_footer()
            self.columns = self.footer.schema.columns
            size_bytes, groups = self.table.size_bytes, self.footer.row_groups
            # Files of several row groups are rare; their columns are read in full whenever needed.
            self._group: RowGroupEntry | None = groups[0] if len(groups) == 1 else None
            self._chunks = [] if self._group is None else self._group.chunks()
            self.group_bytes: list[int] = []
            for group in groups:
                chunks = self._chunks or group.chunks()
                if chunk_outside(chunks, size_bytes) is not None:
                    raise ThriftError("a column chunk does not lie within the file")
                self.group_bytes.append(sum([chunk.uncompressed_bytes for chunk in chunks]))
        except BaseException as error:
            self.table.close()
            if isinstance(error, ThriftError):
                raise unreadable(path, error) from error
            raise
        self.rows = sum(self.footer.rows)
        self._null_counts: list[int | None] = []  # of each leaf, once they are asked for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()

    @property
    def uncompressed_bytes(self) -> int:
        """Uncompressed bytes of all column chunks; they count towards a data file's size limit."""
        return sum(self.group_bytes)

    def schema(self) -> pa.Schema:
        """Return the Arrow schema."""
        return self.footer.arrow_schema

    @property
    def schema_key(self) -> tuple[object, bytes | None]:
        """A key that is the same for files with equal schemas."""
        return self.footer.schema_key

    @property
    def extremes(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of each column; elements of lists count, too.

        Columns without these values in the footer, and columns that are not numbers, are missing.
        NaN and empty values are ignored.
        """
        return {} if self._group is None else self._group.extremes()

    def num_values(self, column: str) -> int | None:
        """Return the number of a column's values, list elements and nulls included, if known."""
        leaf = self.footer.schema.places.get(column)
        if leaf is None or self._group is None:
            return None
        return self._chunks[leaf].num_values

    def null_count(self, column: str) -> int | None:
        """Return the number of a column's empty values, with list elements; None if not known."""
        return self._null_count(self.footer.schema.places.get(column))

    def missing_files(self, column: str) -> int | None:
        """Return how many images of a column have no bytes, but at most a path; None if not known.

        It is known only for columns that hold bytes and path of each image.
        """
        return self._null_count(self.footer.schema.image_files.get(column))

    def _null_count(self, leaf: int | None) -> int | None:
        if leaf is None:
            return None
        if not self._null_counts:
            groups = [group.null_counts() for group in self.footer.row_groups]
            counts = zip(*groups or [[0] * len(self.footer.schema.leaves)], strict=True)
            self._null_counts = [
                None if None in of_leaf else sum(filter(None, of_leaf)) for of_leaf in counts
            ]
        return self._null_counts[leaf]

    def raw(self, column: str) -> tuple[object, bytes] | None:
        """Return the stored form of a column in a small file; None if it is not in memory.

        Columns of different files with equal stored forms have equal values.
        """
        leaf, whole = self.footer.schema.places.get(column), self.table.whole
        if leaf is None or whole is None or self._group is None:
            return None
        chunk = self._chunks[leaf]
        return (self._group.form, leaf), whole[chunk.start : chunk.start + chunk.compressed_bytes]

    def has_footer_of(self, other: OpenedTable) -> bool:
        """Return whether a file of the same size has the same footer."""
        try:
            return self.table.footer() == other.footer()
        except ThriftError:
            return False

    def is_column_of(self, column: str, other: OpenedTable) -> bool:
        """Return whether a file with the same footer has the same bytes of a column."""
        leaf = self.footer.schema.places.get(column)
        if leaf is None or self._group is None:
            return False
        chunk = self._chunks[leaf]
        start, size = chunk.start, chunk.compressed_bytes
        (ours, at), (theirs, there) = self.table.window(start, size), other.window(start, size)
        return ours[at : at + size] == theirs[there : there + size]

    def lengths(self, schema: pa.Schema) -> dict[str, tuple[int, ...] | str]:
        """Return the lengths of the lists in columns whose type leaves them open.

        These columns are read, and columns of lists that may hold empty values. Rows without a list
        are ignored.

        Returns:
            Column to lengths, the outer list's first, or to the reason why the rows cannot all
            become arrays of one shape.
        """
        found: dict[str, tuple[int, ...] | str] = {}
        for name, is_open in _lists_of(schema):
            if is_open or self.null_count(name) != 0:
                lengths = self._common_lengths(name)
                if lengths is not None:
                    found[name] = lengths
        return found

    def _common_lengths(self, name: str) -> tuple[int, ...] | str | None:
        """Return the common lengths of the lists of a column; see `lengths`."""
        if self._group is not None:
            return _lengths_of(*self._read(name))
        # A file of many episodes is read in batches to bound memory.
        known: tuple[int, ...] | None = None
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=[name], use_threads=False):
                lengths = _lengths_of(pa.chunked_array([batch.column(0)]))
                if isinstance(lengths, str):
                    return lengths
                if None not in (known, lengths) and known != lengths:
                    return _DIFFERENT_LENGTHS
                known = known or lengths
        return known

    def numbers(self, *columns: str) -> list[Numbers]:
        """Return columns of one number a row, shape (rows,); a list of one number counts as it.

        Raises:
            UnreadableSourceError: A column is missing, has empty values, or has not one number for
                each row.
        """
        found: list[Numbers] = []
        for column, chunked in zip(columns, self._read(*columns), strict=True):
            is_one = chunked.num_chunks == 1
            values = chunked.chunk(0) if is_one else chunked.combine_chunks()
            if is_list(values.type) and _lengths_of(chunked) == (1,):
                values = list_values(values)
            kind = values.type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                error = TypeError(
                    f"column {column} of type {kind} does not have one number for each row"
                )
                raise unreadable(self.path, error) from error
            if values.null_count:
                raise unreadable(self.path, ValueError(f"column {column} has empty values"))
            found.append(stored_numbers(values))
        return found

    def _read(self, *columns: str) -> list[pa.ChunkedArray]:
        """Read some columns and return them in the given order."""
        with closing(open_parquet(self.path)) as reader:
            leaves = {path[0]: number for number, path in enumerate(reader.column_paths)}
            for column in columns:
                if column not in leaves:
                    said = f"{self.path} has no column {column}."
                    raise UnreadableSourceError(said, path=self.path)
            places = sorted(leaves[column] for column in columns)
            try:
                table = reader.read_all(column_indices=places, use_threads=False)
            except (OSError, pa.ArrowException) as error:
                raise unreadable(self.path, error) from error
            return [table.column(places.index(leaves[column])) for column in columns]


# Keyed by the identity of the schema, which is held: hashing takes as long as reading the columns.
_LISTS: dict[int, tuple[pa.Schema, list[tuple[str, bool]]]] = {}


def _lists_of(schema: pa.Schema) -> list[tuple[str, bool]]:
    """Return the columns of lists of values, each with whether its type leaves a length open."""
    known = _LISTS.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    found = [
        (name, None in sizes)
        for name, kind in zip(schema.names, schema.types, strict=True)
        if (sizes := list_sizes(kind)) and not pa.types.is_struct(innermost_type(kind))
    ]
    if len(_LISTS) >= _KEPT_SCHEMAS:
        _LISTS.clear()
    _LISTS[id(schema)] = schema, found
    return found


def _lengths_of(column: pa.ChunkedArray) -> tuple[int, ...] | str | None:
    """Return the common lengths of lists, or why there are none; None if there is no list."""
    kind, chunks = column.type, column.chunks
    # Take the storage first: not every version of pyarrow joins chunks of an extension type.
    if isinstance(kind, pa.BaseExtensionType):
        kind, chunks = kind.storage_type, [chunk.storage for chunk in chunks]
    array = pa.chunked_array(chunks, kind).combine_chunks()
    try:
        array = array.drop_null() if array.null_count else array
    except pa.ArrowNotImplementedError:  # some versions of pyarrow cannot drop nulls of views
        return _HAS_EMPTY_VALUES
    lengths: list[int] = []
    while is_list(array.type):
        if array.null_count:
            return _HAS_EMPTY_VALUES
        if not len(array):
            return None
        try:
            lengths.append(list_length(array))
        except ValueError:
            return _DIFFERENT_LENGTHS
        array = list_values(array)
    return tuple(lengths)
