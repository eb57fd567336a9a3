"""What the end of a parquet file says, read without touching its rows."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN
from leconvert.tables.raw_footer import (
    FileFooter,
    FileSchema,
    FooterReader,
    uncompressed_sizes,
)
from leconvert.tables.thrift import STRUCT, ContradictionError, ThriftError, list_header

__all__ = [
    "LARGE_FOOTER_BYTES",
    "DataFooter",
    "OpenedTable",
    "data_footer",
    "open_parquet",
    "read_data_footer",
    "read_data_schema",
    "read_schema_and_rows",
    "row_group_rows",
    "unreadable",
    "with_unique_names",
]


# ------------------------------------------------------------------------------------------------
# A parquet file as bytes: its footer, and windows onto the rest.


MAGIC = b"PAR1"
TRAILER_BYTES = 8  # little-endian length of the footer, then the magic
# The number of rows, and the list of row groups, as they stand between schema and tail.
_NO_ROW_GROUPS = b"\x16\0\x19" + list_header(STRUCT, 0)

_WHOLE_FILE_BYTES = 128 * 1024
_TAIL_BYTES = 64 * 1024


class OpenedTable:
    """An open parquet file; small ones are read at once.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: It is missing, or the file system fails.

    Attributes:
        path: The file.
        descriptor: It, open for reading.
        status: What is known of it, asked when it was opened.
        size_bytes: Its size by that.
        whole: All its bytes if they are few, else None.
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
            # A named pipe would otherwise wait for somebody who writes.
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
        self._held, self._held_at = (self._tail if is_small else b""), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def footer(self) -> bytes:
        """Return the footer, without the length and the magic behind it."""
        tail = self._tail
        footer_bytes = int.from_bytes(tail[-TRAILER_BYTES:-4], "little")
        start = self.size_bytes - TRAILER_BYTES - footer_bytes
        if tail[-4:] != MAGIC or start < len(MAGIC):
            raise ThriftError("it does not end like a parquet file")
        first = self.size_bytes - len(tail)
        if start < first:
            return self._read(start, footer_bytes)
        return tail[start - first : -TRAILER_BYTES]

    def window(self, position: int, size: int) -> tuple[bytes, int]:
        """Return a buffer that holds ``size`` bytes from ``position`` on, and where they begin."""
        at = position - self._held_at
        if self.whole is not None or (at >= 0 and at + size <= len(self._held)):
            return self._held, at
        return self._read(position, size), 0

    def hold(self, position: int, size: int) -> None:
        """Read a range of a large file, so that windows on it need no reading of their own."""
        if self.whole is None:
            self._held, self._held_at = self._read(position, size), position

    def held(self, position: int, size: int) -> memoryview | None:
        """Return a range that is in memory, None where it is not."""
        at = position - self._held_at
        is_held = at >= 0 and at + size <= len(self._held)
        return memoryview(self._held)[at : at + size] if is_held else None

    def _read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self.descriptor, size, position)
        except OSError as error:
            raise unreadable(self.path, error) from error


def missing(path: str | os.PathLike[str]) -> UnreadableSourceError:
    """Return the error for a parquet file that is not there."""
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} does not exist.",
        path=os.fspath(path),
        next_step=f"{GET_AGAIN}. Otherwise leave its episode out (--on-bad-episode drop).",
        code="missing-file",
    )


def unreadable(path: str | os.PathLike[str], error: Exception) -> UnreadableSourceError:
    """Return the error for a parquet file that cannot be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} cannot be read: {reason}",
        path=os.fspath(path),
        next_step="Fetch or record the file again, or leave its episode out.",
    )


def with_unique_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema; raise `pa.ArrowInvalid` where two columns share a name."""
    if len(set(schema.names)) < len(schema.names):
        name = next(name for name in schema.names if schema.names.count(name) > 1)
        raise pa.ArrowInvalid(f"two columns have the same name, {name}.")
    return schema


# ------------------------------------------------------------------------------------------------
# What the end of a parquet file says, read without touching its rows.


_KEPT_PARTS = 10_000
LARGE_FOOTER_BYTES = 256 * 1024
"""From here on a footer is not handed to Arrow for its counts alone."""


@dataclass(frozen=True, slots=True)
class DataFooter:
    """The counts of one parquet file, as its footer states them; no row was read.

    Attributes:
        rows: Rows of the file.
        row_groups: Row groups of the file.
        uncompressed_bytes: Sum of ``total_uncompressed_size`` over all column chunks of all row
            groups; this is what counts towards a data file's size limit.
        columns: Top-level column names, in file order.
        parts: The footer itself, where it is of a known kind: its entries lie within the file and
            are like those that Arrow reads.
    """

    rows: int
    row_groups: int
    uncompressed_bytes: int
    columns: tuple[str, ...]
    parts: FileFooter | None = field(default=None, compare=False, repr=False)


def open_parquet(path: str | os.PathLike[str], *, buffer_bytes: int = 0) -> pq.ParquetReader:
    """Open a parquet file and parse its footer.

    ``ParquetReader`` is what ``ParquetFile`` wraps: opening thousands of small files through the
    wrapper spends a third of its time in Python.
    """
    reader = pq.ParquetReader()
    try:
        reader.open(os.fspath(path), buffer_size=buffer_bytes, pre_buffer=False)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    return reader


def read_data_footer(path: str | os.PathLike[str]) -> DataFooter:
    """Read the counts of a parquet file from its footer.

    Arrow reads the footers that are unlike those before; where only counts and statistics differ,
    which is so for all but the first few files of a dataset, they are found several times faster.
    """
    with OpenedTable(os.fspath(path)) as table:
        return data_footer(table)


def data_footer(table: OpenedTable) -> DataFooter:
    """Return the counts of an open parquet file, as `read_data_footer` does."""
    footer: FileFooter | None = None
    found: DataFooter | None = None
    try:
        footer = _FOOTERS.read(table.footer())
    except ContradictionError as error:
        raise unreadable(table.path, error) from error
    except ThriftError:
        # Arrow knows more kinds of footers, and says what is wrong with a damaged one.
        pass
    else:
        found = _counts(footer, table.size_bytes)
        if found is not None and _TRUSTED.holds(footer):
            return found
    if footer is None or found is None:
        return _counts_by_walking(table.path)
    known = _counts_by_walking(table.path, footer)
    if known != found:
        return known
    _TRUSTED.add(footer)
    return found


def _counts(footer: FileFooter, size_bytes: int) -> DataFooter | None:
    """Return the counts that a footer states; None where they make no sense."""
    uncompressed_bytes = 0
    for group in footer.row_groups:
        found = group.uncompressed_within(size_bytes)
        if found is None:
            return None
        uncompressed_bytes += found
    names = _column_names(footer.schema)
    if names is None:
        return None
    groups = len(footer.row_groups)
    return DataFooter(footer.rows, groups, uncompressed_bytes, names, footer)


@lru_cache(maxsize=1 << 4)
def _column_names(schema: FileSchema) -> tuple[str, ...] | None:
    """Return the names of the columns, None where one cannot be decoded."""
    # A nested column has one leaf or more, all of which begin with its name.
    try:
        return tuple(dict.fromkeys(leaf.path[0].decode() for leaf in schema.leaves))
    except UnicodeDecodeError:
        return None


def _counts_by_walking(
    path: str | os.PathLike[str], taken_apart: FileFooter | None = None
) -> DataFooter:
    """Let Arrow say whether it can read a file, and add up its column chunks.

    Arrow is not asked for the chunks: where their entries contradict the schema, it ends the
    process.

    Args:
        taken_apart: The footer, where it could be taken apart.
    """
    reader = open_parquet(path)
    try:
        rows, row_groups = reader.metadata.num_rows, reader.metadata.num_row_groups
        columns = tuple(dict.fromkeys(leaf[0] for leaf in reader.column_paths))
    except UnicodeDecodeError as error:
        raise unreadable(path, error) from error
    finally:
        reader.close()
    try:
        with OpenedTable(os.fspath(path)) as table:
            sizes = _walked(table.footer(), taken_apart)
    except ThriftError as error:
        raise unreadable(path, error) from error
    if rows < 0 or len(sizes) != row_groups or any(size < 0 for size in sizes):
        raise unreadable(path, ThriftError("its counts contradict each other"))
    return DataFooter(rows, row_groups, sum(sizes), columns)


def _walked(footer: bytes, taken_apart: FileFooter | None) -> list[int]:
    """Return the uncompressed bytes of each row group.

    Entries of the same shapes have the same fields in the same order: where a footer could be taken
    apart, only up to the last row group that has a new shape is it walked.
    """
    walked = uncompressed_sizes(footer)
    if taken_apart is None:
        return list(walked)
    groups = taken_apart.row_groups
    kinds = [group.kind.shapes for group in groups]
    firsts = {kind: place for place, kind in reversed(list(enumerate(kinds)))}
    sizes = list(islice(walked, max(firsts.values(), default=-1) + 1))
    known = groups[len(sizes) :]
    return sizes + [sum(group.numbers.uncompressed_bytes) for group in known]


class _Trusted:
    """What was in footers that Arrow read, with the same answer as ours.

    A footer of known parts is read without Arrow: it cannot be one that Arrow refuses. Beside the
    counts only metadata that Arrow does not look at may be new.
    """

    def __init__(self) -> None:
        self._parts: set[object] = set()

    def holds(self, footer: FileFooter) -> bool:
        return self._parts.issuperset(_parts(footer))

    def add(self, footer: FileFooter) -> None:
        if len(self._parts) > _KEPT_PARTS:
            self._parts.clear()
        self._parts.update(_parts(footer))


def _parts(footer: FileFooter) -> list[object]:
    tail = footer.tail
    return [
        footer.schema,
        (tail.created_by, tail.column_orders_raw, tail.arrow_schema),
        *[shape for group in footer.row_groups for shape in group.kind.shapes],
    ]


_FOOTERS = FooterReader()
_TRUSTED = _Trusted()


def row_group_rows(path: str | os.PathLike[str]) -> list[int]:
    """Return the rows of each row group of a parquet file.

    Arrow holds ten times the size of a footer. It reads small ones; in large ones, of files with
    thousands of row groups, nothing but the rows is kept.
    """
    with OpenedTable(os.fspath(path)) as table:
        try:
            footer = table.footer()
            if len(footer) > LARGE_FOOTER_BYTES:
                return FooterReader().rows(footer)
        except ContradictionError as error:
            raise unreadable(path, error) from error
        except ThriftError:
            pass  # Arrow says what is wrong
    return read_schema_and_rows(path)[1]


def read_schema_and_rows(path: str | os.PathLike[str]) -> tuple[pa.Schema, list[int]]:
    """Read, through Arrow, the schema of a parquet file and the rows of each row group."""
    reader = open_parquet(path)
    try:
        metadata = reader.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return reader.schema_arrow, rows
    finally:
        reader.close()


def read_data_schema(path: str | os.PathLike[str]) -> pa.Schema:
    """Read the Arrow schema of a parquet file, its metadata included."""
    with OpenedTable(os.fspath(path)) as table:
        return stored_schema(path, None if table.whole is None else data_footer(table).parts)


def stored_schema(path: str | os.PathLike[str], parts: FileFooter | None) -> pa.Schema:
    """Return the Arrow schema of a file, given its footer where that is of a known kind."""
    if parts is not None:
        with suppress(ThriftError):
            return arrow_schema(parts.schema.raw, parts.tail.raw)
    reader = open_parquet(path)
    try:
        # A schema that Arrow cannot convert was refused when the file was opened.
        return reader.schema_arrow
    finally:
        reader.close()


@lru_cache(maxsize=1 << 4)
def arrow_schema(schema: bytes, tail: bytes) -> pa.Schema:
    """Return the Arrow schema of files whose footers begin and end so.

    Arrow reads such a footer without row groups: the schema does not depend on these.

    Raises:
        ThriftError: Arrow cannot read it.
    """
    empty = b"".join([schema, _NO_ROW_GROUPS, tail])
    file = MAGIC + empty + len(empty).to_bytes(TRAILER_BYTES - len(MAGIC), "little") + MAGIC
    try:
        return pq.read_schema(pa.BufferReader(file))
    except (OSError, pa.ArrowException) as error:
        raise ThriftError(str(error)) from error
