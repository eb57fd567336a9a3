"""Row groups taken from one parquet file into another as they stand.

Page headers hold no places in the file, so a column chunk can be moved by copying its bytes and
writing its places anew. That needs the same columns, types and nesting on both sides, and pages as
the result is to have them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, le
from struct import Struct
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert._version import __version__
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.arrow import innermost_type, is_list, list_length, list_values
from leconvert.tables.footers import (
    LARGE_FOOTER_BYTES,
    MAGIC,
    TRAILER_BYTES,
    DataFooter,
    OpenedTable,
    arrow_schema,
    data_footer,
    open_parquet,
    read_data_schema,
    read_schema_and_rows,
    stored_schema,
    unreadable,
)
from leconvert.tables.lerobot_reader import list_sizes
from leconvert.tables.raw_footer import (
    INTEGER,
    ChunkEntry,
    ChunkNumbers,
    ChunkShape,
    ChunksWriter,
    FileFooter,
    FileSchema,
    FileTail,
    FooterReader,
    Leaf,
    RowGroupEntry,
    RowGroupKind,
)
from leconvert.tables.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    ContradictionError,
    ThriftError,
    binary,
    list_header,
    unzigzag,
    varint,
    zigzag,
)

__all__ = [
    "DataFile",
    "ExpectedCopies",
    "SequentialOutput",
    "StoredGroups",
    "StoredRanges",
    "TableCopier",
    "Window",
    "check_pages",
]


# ------------------------------------------------------------------------------------------------
# The pages of a column chunk, counted by their headers.
#
# A chunk that is copied as it stands is not decoded, so this is what shows that a footer's entry
# and the bytes belong together: pages from the first byte to the last, a dictionary only where
# one is claimed, all values accounted for, and in each page a Snappy block of the size that its
# header says.


# Bytes of a file from a position on: a buffer, and where in it the position is. It holds at least
# as many bytes as asked for, unless the file ends.
type Window = Callable[[int, int], tuple[bytes, int]]

_HEADER_BYTES = 1024
_LONG_HEADER_BYTES = 256 * 1024
_SIZE_BYTES = 10

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
# Fields of PageHeader.
_KIND, _UNCOMPRESSED, _COMPRESSED, _DATA, _DATA_V2 = 1, 2, 3, 5, 8
_NUM_VALUES = 1

# The two headers that Arrow writes, checksum or not; any other is walked. Values of statistics are
# as wide as numbers are.
_STATISTICS = (
    rb"(?:\x1c(?:[\x18\x28\x38\x48\x58\x68]"
    rb"(?:\x00|\x01.|\x04.{4}|\x08.{8}|\x0c.{12}|\x10.{16})|[\x16\x26\x36]%b|[\x11\x12])*+\x00)?"
) % INTEGER
_DATA_HEADER = (
    rb"\x15\x00\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x1c|\x2c)\x15(%(i)b)(?:\x15%(i)b){3}%(s)b\x00\x00"
    % {b"i": INTEGER, b"s": _STATISTICS}
)
_DICTIONARY_HEADER = (
    rb"\x15\x04\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x3c|\x4c)(?:\x15%(i)b){2}[\x11\x12]?\x00\x00"
    % {b"i": INTEGER}
)
_COMMON = re.compile(_DATA_HEADER + b"|" + _DICTIONARY_HEADER, re.DOTALL)
# With the size that a Snappy block begins with.
_DATA_PAGE_BEGIN = re.compile(_DATA_HEADER + b"(%b)" % INTEGER, re.DOTALL)
_DICTIONARY_PAGE_BEGIN = re.compile(_DICTIONARY_HEADER + b"(%b)" % INTEGER, re.DOTALL)


def check_pages(window: Window, chunk: ChunkEntry) -> str | None:
    """Say why a chunk is not a row of whole pages compressed by Snappy; None where it is."""
    position = chunk.start
    stop = position + chunk.compressed_bytes
    values = uncompressed_bytes = 0
    while position < stop:
        buffer, at = window(position, _HEADER_BYTES)
        found = _COMMON.match(buffer, at)
        if found is not None:
            plain, packed, count, dictionary_plain, dictionary_packed = found.groups()
            is_dictionary = count is None
            size = unzigzag(dictionary_plain if is_dictionary else plain)
            stored = unzigzag(dictionary_packed if is_dictionary else packed)
            header_bytes = found.end() - at
            count_here = 0 if is_dictionary else unzigzag(count)
            whole = True
        else:
            try:
                walked = _walk(buffer, at)
            except ThriftError:
                buffer, at = window(position, _LONG_HEADER_BYTES)
                try:
                    walked = _walk(buffer, at)
                except ThriftError as error:
                    return f"a page header is damaged: {error}"
            kind, size, stored, count_here, header_bytes = walked
            is_dictionary = kind == _DICTIONARY_PAGE
            whole = kind != _DATA_PAGE_V2
        if size < 0 or stored < 0 or count_here < 0:
            return "a page has a negative size"
        # Only the first page may be a dictionary, and must be one where the footer has its place.
        if is_dictionary != (position == chunk.start and chunk.dictionary_offset is not None):
            return "its dictionary page is not where the footer says"
        values += count_here
        uncompressed_bytes += header_bytes + size
        body = position + header_bytes
        if whole and stored and not _is_block(window, body, at, buffer, header_bytes, size):
            return "a page is no Snappy block of its size"
        position = body + stored
        if is_dictionary and position != chunk.data_offset:
            return "its first data page is not where the footer says"
    if position != stop:
        return "its last page ends behind it"
    if values != chunk.num_values:
        return "its pages hold another number of values"
    if uncompressed_bytes != chunk.uncompressed_bytes:
        return "its pages have another size uncompressed"
    return None


def _has_plain_pages(
    buffer: bytes, shift: int, numbers: ChunkNumbers, dictionaries: tuple[bool, ...]
) -> bool:
    """Tell whether `check_pages` has nothing against the chunks of a row group that is in memory.

    Only where each is a data page as Arrow writes them, behind a dictionary page where one is
    stated: so are the tables of short episodes. False where in doubt.

    Args:
        buffer: Holds all chunks.
        shift: What to add to a place in the file for the same place in the buffer.
        numbers: Those of the chunks.
        dictionaries: Whether the place of a dictionary is stated, a column each.
    """
    for values, plain_bytes, size, data, start, has_dictionary in zip(
        *numbers, dictionaries, strict=True
    ):
        place = data + shift
        found = _DATA_PAGE_BEGIN.match(buffer, place)
        if found is None:
            return False
        plain, packed, count, block = found.groups()
        stored, body = unzigzag(packed), found.start(4)
        if (
            stored <= 0
            or body + stored != start + size + shift
            or unzigzag(count) != values
            or _block_begin(plain) != block
        ):
            return False
        total = unzigzag(plain) + body - place
        if has_dictionary:
            found = _DICTIONARY_PAGE_BEGIN.match(buffer, start + shift)
            if found is None:
                return False
            plain, packed, block = found.groups()
            stored, body = unzigzag(packed), found.start(3)
            if stored <= 0 or body + stored != place or _block_begin(plain) != block:
                return False
            total += unzigzag(plain) + body - start - shift
        if total != plain_bytes:
            return False
    return True


@lru_cache(maxsize=1 << 12)
def _block_begin(plain: bytes) -> bytes:
    """Return how a Snappy block of a size in a page's header begins; empty where there is none."""
    size = unzigzag(plain)
    return b"" if size < 0 else varint(size)


def _is_block(
    window: Window, body: int, at: int, buffer: bytes, header_bytes: int, size: int
) -> bool:
    """Whether a page's body begins with its uncompressed size, as Snappy blocks do."""
    start = at + header_bytes
    if start + _SIZE_BYTES > len(buffer):
        buffer, start = window(body, _SIZE_BYTES)
    value = shift = 0
    for byte in buffer[start : start + _SIZE_BYTES]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value == size
        shift += 7
    return False


def _walk(buffer: bytes, at: int) -> tuple[int, int, int, int, int]:
    """Return kind, size, compressed size, values and length of any page header."""
    reader = CompactReader(buffer, at)
    facts: dict[int, int] = {}
    values = 0
    for number, kind in reader.fields():
        if kind == I32:
            facts[number] = reader.integer()
        elif number in (_DATA, _DATA_V2) and kind == STRUCT:
            for inner, inner_kind in reader.fields():
                if inner == _NUM_VALUES and inner_kind == I32:
                    values = reader.integer()
                else:
                    reader.skip(inner_kind)
        else:
            reader.skip(kind)
    try:
        kind, size, stored = facts[_KIND], facts[_UNCOMPRESSED], facts[_COMPRESSED]
    except KeyError as error:
        raise ThriftError("it lacks its sizes") from error
    if kind not in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2):
        raise ThriftError("it is of a kind that is not known")
    return kind, size, stored, values, reader.position - at


# ------------------------------------------------------------------------------------------------
# Row groups taken from one parquet file into another as they stand.


CREATED_BY = f"leconvert version {__version__}".encode()

_SNAPPY = 1
# Of what is learned of files that are alike, so much is kept.
_KEPT_LAYOUTS = 16
# A row group of this size is read at once, however large its file is.
_HELD_GROUP_BYTES = 128 * 1024
_I64_NEXT = bytes((1 << 4 | I64,))
_I64_AFTER_NEXT = bytes((2 << 4 | I64,))
_LIST_FIRST = bytes((1 << 4 | LIST,))


class CopyPlan(NamedTuple):
    """How one row group is copied.

    Attributes:
        row_group: The row group as the source's footer states it.
        ranges: Start and length of the byte ranges of the source, in the order in which they come
            to stand one behind the other.
    """

    row_group: RowGroupEntry
    ranges: tuple[tuple[int, int], ...]


class FooterWriter:
    """Writes the footer of a file with a given schema, and the row groups in it."""

    def __init__(self, schema: pa.Schema) -> None:
        # What the schema is in parquet's terms is best asked from Arrow.
        sample = pa.BufferOutputStream()
        with pq.ParquetWriter(sample, schema, compression="snappy"):
            pass
        raw = sample.getvalue().to_pybytes()
        footer_bytes = int.from_bytes(raw[-TRAILER_BYTES:-4], "little")
        empty = FooterReader().read(raw[-TRAILER_BYTES - footer_bytes : -TRAILER_BYTES])
        self.schema: FileSchema = empty.schema
        self.tail: FileTail = empty.tail
        self._writers: dict[tuple[ChunkShape, ...], ChunksWriter] = {}
        self._columns = _LIST_FIRST + list_header(STRUCT, len(self.schema.leaves))

    def row_group(self, group: RowGroupEntry, position: int) -> bytes:
        """Return the entry of a row group whose chunks stand one behind the other."""
        numbers, shapes = group.numbers, group.kind.shapes
        writer = self._writers.get(shapes)
        if writer is None:
            if len(self._writers) >= _KEPT_LAYOUTS:
                self._writers.clear()
            writer = group.kind.writer(leaf.path for leaf in self.schema.leaves)
            self._writers[shapes] = writer
        return b"".join(
            [
                self._columns,
                writer.write(group, position),
                _I64_NEXT,
                varint(sum(numbers.uncompressed_bytes) << 1),
                _I64_NEXT,
                varint(group.rows << 1),
                _I64_AFTER_NEXT,
                varint(position << 1),
                _I64_NEXT,
                varint(sum(numbers.compressed_bytes) << 1),
                b"\0",
            ]
        )

    def footer(self, row_groups: list[bytes], rows: int) -> list[bytes]:
        """Return the end of a file: the footer, its length and the magic.

        In pieces: the entries of tens of thousands of row groups take a kilobyte each.
        """
        tail = self.tail
        before = b"".join(
            [
                self.schema.raw,
                _I64_NEXT,
                zigzag(rows),
                _LIST_FIRST,
                list_header(STRUCT, len(row_groups)),
            ]
        )
        behind = b"".join(
            [
                _LIST_FIRST,
                tail.key_values_raw,
                b"\x18",
                binary(CREATED_BY),
                _LIST_FIRST,
                tail.column_orders_raw,
                b"\0",
            ]
        )
        footer_bytes = len(before) + sum(map(len, row_groups)) + len(behind)
        return [before, *row_groups, behind + footer_bytes.to_bytes(4, "little") + MAGIC]


def _ranges_of(numbers: ChunkNumbers) -> tuple[tuple[int, int], ...]:
    """Return begin and length of some column chunks, neighbours together."""
    stops = list(map(add, numbers.start, numbers.compressed_bytes))
    if stops[:-1] == numbers.start[1:] and stops:
        first = numbers.start[0]
        return ((first, stops[-1] - first),)
    ranges: list[tuple[int, int]] = []
    stop = -1
    for start, size in zip(numbers.start, numbers.compressed_bytes, strict=True):
        if start == stop:
            first, length = ranges[-1]
            ranges[-1] = (first, length + size)
        else:
            ranges.append((start, size))
        stop = start + size
    return tuple(ranges)


class _CopiedLeaves(NamedTuple):
    """Which leaves have one value a row, and of each whether a dictionary is stated."""

    single: tuple[int, ...]
    dictionaries: tuple[bool, ...]


@lru_cache(maxsize=_KEPT_LAYOUTS)
def _copied_leaves(schema: FileSchema, shapes: tuple[ChunkShape, ...]) -> _CopiedLeaves | None:
    """Return what to know of chunks of some shapes; None where they are not copied."""
    if not all(shape.codec == _SNAPPY and shape.has_statistics for shape in shapes):
        return None
    return _CopiedLeaves(
        tuple(place for place, leaf in enumerate(schema.leaves) if not leaf.repeated),
        tuple(shape.has_dictionary_offset for shape in shapes),
    )


class TableCopier:
    """Decides what can be copied into a file of a given schema.

    The decision depends on the source file and the schema alone, so that it is the same whichever
    worker makes it, and the same again for a part file that holds the copy.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.writer = FooterWriter(schema)
        self._arrow_schema = schema
        self.footers = FooterReader()
        self._verdicts: dict[tuple[FileSchema, bytes | None], str | None] = {}

    def footer_of(self, table: OpenedTable) -> FileFooter | str:
        """Return the footer of a file; where row groups cannot be taken from it, why."""
        try:
            footer = self.footers.read(table.footer())
        except ContradictionError as error:
            raise unreadable(table.path, error) from error
        except ThriftError as error:
            return f"its footer is unusual: {error}"
        tail = footer.tail
        if not tail.is_of_known_writer:
            return f"it was written by {tail.created_by.decode(errors='replace') or 'nobody'}"
        if tail.column_orders_raw != self.writer.tail.column_orders_raw:
            return "its statistics have another order"
        key = (footer.schema, tail.arrow_schema)
        if key not in self._verdicts:
            self._verdicts[key] = self._compare(footer, table.path)
        return self._verdicts[key] or footer

    def plan(
        self, table: OpenedTable, footer: FileFooter, row_group: int | None, rows: int
    ) -> CopyPlan | str:
        """Return how a row group is copied, or why it cannot be."""
        if row_group is None:
            if len(footer.row_groups) != 1:
                return f"it has {len(footer.row_groups)} row groups"
            row_group = 0
        if not 0 <= row_group < len(footer.row_groups):
            return "it lacks the row group"
        group = footer.row_groups[row_group]
        if group.rows != rows:
            return f"it has {group.rows} rows"
        numbers = group.numbers
        start = min(numbers.start, default=0)
        stop = max(map(add, numbers.start, numbers.compressed_bytes), default=0)
        is_held = 0 <= start < stop <= start + _HELD_GROUP_BYTES
        if is_held:
            table.hold(start, stop - start + _HEADER_BYTES)
        is_plain = False
        leaves = _copied_leaves(footer.schema, group.kind.shapes)
        if is_held and leaves is not None and group.rows:
            buffer, at = table.window(start, stop - start)
            is_plain = (
                len(MAGIC) <= start
                and stop <= table.size_bytes
                and min(numbers.num_values) >= 0
                and {numbers.num_values[leaf] for leaf in leaves.single} <= {rows}
                and _has_plain_pages(buffer, at - start, numbers, leaves.dictionaries)
            )
        if not is_plain:
            reason = self._reason_against(table, footer, group)
            if reason is not None:
                return reason
        return CopyPlan(group, _ranges_of(numbers))

    def _reason_against(
        self, table: OpenedTable, footer: FileFooter, group: RowGroupEntry
    ) -> str | None:
        if not group.rows:
            return "it has no rows"
        for leaf, chunk in zip(footer.schema.leaves, group.chunks, strict=True):
            reason = None
            if chunk.shape.codec != _SNAPPY:
                reason = "it is not compressed with Snappy"
            elif not chunk.shape.has_statistics:
                reason = "it has no statistics"
            elif not leaf.repeated and chunk.num_values != group.rows:
                reason = "it has another number of values than rows"
            elif (
                chunk.start < len(MAGIC)
                or chunk.data_offset < chunk.start
                or chunk.num_values < 0
                or chunk.uncompressed_bytes < 0
                or chunk.compressed_bytes <= 0
                or chunk.start + chunk.compressed_bytes > table.size_bytes
            ):
                reason = "it does not lie within the file"
            else:
                reason = check_pages(table.window, chunk)
            if reason is not None:
                return f"column {b'.'.join(leaf.path).decode(errors='replace')}: {reason}"
        return None

    def _compare(self, footer: FileFooter, path: str) -> str | None:
        """Say why the columns of a file are not those of the result; None where they are."""
        found = read_data_schema(path)
        wanted = self._arrow_schema
        if not found.equals(wanted, check_metadata=False):
            for field in wanted:
                at = found.get_field_index(field.name)
                if at < 0 or not found.field(at).equals(field):
                    return f"column {field.name} is another"
            return "its columns are others, or in another order"
        if footer.schema.structure != self.writer.schema.structure:
            return "its columns are stored in another way"
        return None


# ------------------------------------------------------------------------------------------------
# A file that is written from front to back, from memory and from other files.


_PENDING_BYTES = 1024**2
_PENDING_PIECES = 512  # writev takes 1024
_STEP_BYTES = 64 * 1024**2
_BUFFER_BYTES = 1024**2
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])


class SequentialOutput:
    """Gathers small pieces, and copies large ones in the kernel where it can.

    Nothing is on its way to the disk before :meth:`flush`, and nothing is synced.

    Args:
        descriptor: A file open for writing, at its beginning.

    Attributes:
        position: Bytes taken so far, those still in memory included.
    """

    def __init__(self, descriptor: int) -> None:
        self.position = 0
        self._descriptor = descriptor
        self._written = 0
        self._pending: list[bytes | memoryview] = []
        # Also where they moved nothing without an error: some file systems do.
        self._refused: set[str] = set()

    def append(self, content: bytes | memoryview) -> None:
        """Take bytes from memory, which must not change until the next flush."""
        self._pending.append(content)
        self.position += len(content)
        if self.position - self._written >= _PENDING_BYTES or len(self._pending) >= _PENDING_PIECES:
            self.flush()

    def copy(self, source: OpenedTable, start: int, size: int) -> None:
        """Take a range of another file."""
        held = source.held(start, size)
        if held is not None:
            self.append(held)
            return
        self.flush()
        done = 0
        while done < size:
            count = min(size - done, _STEP_BYTES)
            moved = self._in_kernel(source, start + done, count)
            if not moved:
                moved = self._through_memory(source, start + done, min(count, _BUFFER_BYTES))
            done += moved
            self._written += moved
            self.position += moved

    def flush(self) -> None:
        """Write what is in memory."""
        pieces, self._pending = self._pending, []
        missing = self.position - self._written
        while missing:
            count = os.pwritev(self._descriptor, pieces, self._written)
            self._written += count
            missing -= count
            if missing:
                # Rare: a write that was cut short.
                pieces = [b"".join(pieces)[count:]]

    def _in_kernel(self, source: OpenedTable, start: int, count: int) -> int:
        """Copy some of a range; 0 where the kernel will not, for whatever reason."""
        if "copy_file_range" not in self._refused:
            try:
                moved = os.copy_file_range(
                    source.descriptor, self._descriptor, count, start, self._written
                )
            except OSError as error:
                _raise_if_full(error)
                moved = 0
            if moved:
                return moved
            self._refused.add("copy_file_range")
        if "sendfile" not in self._refused:
            try:
                os.lseek(self._descriptor, self._written, os.SEEK_SET)
                moved = os.sendfile(self._descriptor, source.descriptor, start, count)
            except OSError as error:
                _raise_if_full(error)
                moved = 0
            if moved:
                return moved
            self._refused.add("sendfile")
        return 0

    def _through_memory(self, source: OpenedTable, start: int, count: int) -> int:
        try:
            content = os.pread(source.descriptor, count, start)
        except OSError as error:
            raise unreadable(source.path, error) from error
        if not content:
            raise UnreadableSourceError(
                f"The parquet file {source.path} is shorter than its footer says.",
                path=source.path,
                next_step="Fetch or record the file again, or leave its episode out.",
            )
        return os.pwrite(self._descriptor, content, self._written)


def _raise_if_full(error: OSError) -> None:
    """Let a full disk be one: any other way of writing would find the same."""
    if error.errno in _FULL:
        raise error


# ------------------------------------------------------------------------------------------------
# Row groups of a data file as they are stored, and whether they are copies of a source's.
#
# A conversion copies most row groups as they stand. Such a copy is proven without decoding: the
# result's footer states of it exactly what the source's footer states, moved to another place,
# both files have the same columns, types and nesting, and its pages are the same bytes. Whatever
# those bytes mean in the source they then mean in the result. That says nothing about the source
# itself: pages that were damaged there already are the same damaged pages here, which is for a
# check of the source to find.


type StoredRanges = tuple[tuple[int, int], ...]
"""Begin and length in bytes of the column chunks of a row group, neighbours together."""


class StoredGroups:
    """A data file of a result; of it only the footer is read, and the file is not kept open.

    Memory is that of the footer and a few numbers a row group.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: It is missing, truncated or no parquet file.

    Attributes:
        path: The file.
        size_bytes: Its size.
        rows: Rows of each row group.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._footer = b""
        self._parts: FileFooter | None = None
        self._places: npt.NDArray[np.int64] | None = None
        self._end = len(MAGIC)
        self._writer: FooterWriter | None = None
        self._alike: dict[tuple[FileSchema, bytes | None], bool] = {}
        self._is_large = False
        with OpenedTable(path) as table:
            self.size_bytes = table.size_bytes
            try:
                self._footer = table.footer()
                if table.whole is not None:
                    self._parts = data_footer(table).parts
                if self._parts is not None:
                    file_schema, tail = self._parts.schema, self._parts.tail.raw
                    rows = [group.rows for group in self._parts.row_groups]
                else:
                    outline = _FOOTERS.outline(self._footer)
                    file_schema, tail = outline.schema, self._footer[outline.places[-1] :]
                    rows = outline.rows
                    self._places = np.array(outline.places, np.int64)
                schema, self._writer = _schema_and_writer(file_schema.raw, tail)
            except ContradictionError as error:
                raise unreadable(path, error) from error
            except ThriftError:
                # Where Arrow can read it, its rows can be compared, if not its bytes.
                self._arrow_schema, self.rows = read_schema_and_rows(path)
                return
        self._file_schema = file_schema
        self._is_large = len(self._footer) > LARGE_FOOTER_BYTES
        self._arrow_schema, self.rows = schema, rows
        if self._parts is None and not self._is_large:
            self._arrow_schema, self.rows = read_schema_and_rows(path)

    def schema_and_rows(self) -> tuple[pa.Schema, list[int]]:
        """Return the schema and the rows of each row group as Arrow reads them.

        Where the footer is large it is asked here: it holds ten times as much meanwhile.
        """
        if self._is_large:
            return read_schema_and_rows(self.path)
        return self._arrow_schema, self.rows

    def extremes(self, columns: Sequence[str]) -> Iterator[dict[str, tuple[Number, Number]]]:
        """Yield the least and the greatest value of columns, as `DataFile.extremes`, a row group.

        One row group is held at a time. What the footer of a file says in an unusual way is not
        told: there may be fewer of them than row groups.
        """
        with suppress(ThriftError):
            wanted = _columns_of(_FOOTERS.schema(self._footer)).some(tuple(columns))
            groups: Iterable[RowGroupEntry] = (
                _FOOTERS.row_groups(self._footer) if self._parts is None else self._parts.row_groups
            )
            for group in groups:
                yield _extremes(group, wanted)

    def copied_from(
        self, group: int, source: OpenedTable
    ) -> tuple[StoredRanges, StoredRanges] | None:
        """Return the ranges that are the same bytes if a row group is a copy of a file's only one.

        Returns:
            The ranges in the source and those here; None where the footers already say that it is
            no copy.
        """
        if self._writer is None:
            return None
        if self._places is None:
            self._places = np.array(_FOOTERS.outline(self._footer).places, np.int64)
        try:
            footer = _FOOTERS.read(source.footer())
        except ContradictionError as error:
            raise unreadable(source.path, error) from error
        except ThriftError:
            return None  # Arrow knows more kinds of footers
        if len(footer.row_groups) != 1 or not self._is_alike(footer, source.path):
            return None
        wanted = footer.row_groups[0]
        numbers = wanted.numbers
        if not numbers.start or not _are_inside(numbers, source.size_bytes):
            return None
        first, stop = self._places[group : group + 2].tolist()
        stated = self._footer[first:stop]
        # Mostly it stands behind the one before; its entry need then not be taken apart.
        position = self._end
        if self._writer.row_group(wanted, position) != stated:
            entry = _FOOTERS.row_group_at(self._footer, first, self._file_schema)
            position = entry.numbers.start[0]
            if self._writer.row_group(wanted, position) != stated:
                return None
        ranges, size = _ranges_of(numbers), sum(numbers.compressed_bytes)
        self._end = position + size
        return ranges, ((position, size),)

    def _is_alike(self, footer: FileFooter, path: str) -> bool:
        """Tell whether a file has the same columns, types and nesting."""
        assert self._writer is not None
        key = (footer.schema, footer.tail.arrow_schema)
        if key not in self._alike:
            self._alike[key] = (
                footer.schema.structure == self._file_schema.structure
                and read_data_schema(path).equals(self._arrow_schema, check_metadata=False)
            )
        return self._alike[key]


def _are_inside(numbers: ChunkNumbers, size_bytes: int) -> bool:
    """Tell whether column chunks lie in a file of this size, their pages one behind the other."""
    return (
        min(numbers.compressed_bytes) > 0
        and min(numbers.start) >= 0
        and max(map(add, numbers.start, numbers.compressed_bytes)) <= size_bytes
        and all(map(le, numbers.start, numbers.data_offset))
    )


@lru_cache(maxsize=1 << 4)
def _schema_and_writer(schema_raw: bytes, tail: bytes) -> tuple[pa.Schema, FooterWriter]:
    """Return the Arrow schema of files that begin and end their footers so, and their writer."""
    schema = arrow_schema(schema_raw, tail)
    try:
        return schema, FooterWriter(schema)
    except pa.ArrowException as error:
        raise ThriftError(str(error)) from error


# ------------------------------------------------------------------------------------------------
# Which row groups of a data file had to be copies of their sources, byte for byte.


class ExpectedCopies:
    """Says again what :func:`~leconvert.tables.join.join_tables` decided of a source."""

    def __init__(self, schema: pa.Schema) -> None:
        self._copier = TableCopier(schema)

    @staticmethod
    def can_say(created_by: str) -> bool:
        """Tell whether a file is of this version; another may have decided otherwise."""
        return created_by.encode() == CREATED_BY

    def is_due(self, source: str, rows: int) -> bool:
        """Tell whether an episode that needs no repair is copied from its file as it stands."""
        with OpenedTable(source) as table:
            footer = self._copier.footer_of(table)
            if isinstance(footer, str):
                return False
            return not isinstance(self._copier.plan(table, footer, None, rows), str)


# ------------------------------------------------------------------------------------------------
# One data file as a check looks at it: what its footer says, and columns only where it must.
#
# The numbers that a footer states for a column cost nothing further. A column whose values all
# differ, as times do, lies in its dictionary page: that is read without Arrow, which takes ten
# times as long to open a file.


_BOOL, _INT32, _INT64, _FLOAT, _DOUBLE = 0, 1, 2, 4, 5
_FORMS = {_BOOL: "?", _INT32: "i", _INT64: "q", _FLOAT: "f", _DOUBLE: "d"}
_UNSIGNED, _SIGNED = range(11, 15), range(15, 19)  # 8, 16, 32 and 64 bits
_DTYPES: dict[str, np.dtype[Any]] = {form: np.dtype(f"<{form}") for form in "iIqQfd"}
_PLAIN_CODEC, _SNAPPY_CODEC = 0, 1
# A dictionary page whose values are plain, in the order in which they first appear.
_PLAIN_DICTIONARY = re.compile(
    rb"\x15\x04\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x3c|\x4c)\x15(%(i)b)\x15[\x00\x04]\x12?\x00\x00"
    % {b"i": INTEGER},
    re.DOTALL,
)
_DICTIONARY_HEADER_BYTES = 64
_HAS_EMPTY_VALUES = "empty values in its lists"
_DIFFERENT_LENGTHS = "lists that are empty, or of different lengths"
_ROWS_AT_A_TIME = 1 << 14

Number = int | float | bool
Numbers = npt.NDArray[np.integer[Any] | np.floating[Any]]


class DataFile:
    """An open data file.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: It is missing, truncated or no parquet file.

    Attributes:
        path: The file.
        table: Its bytes.
        counts: What its footer says.
    """

    __slots__ = ("_columns", "_group", "counts", "path", "table")

    def __init__(self, path: str) -> None:
        self.path = path
        self.table = OpenedTable(path)
        try:
            self.counts: DataFooter = data_footer(self.table)
        except BaseException:
            self.table.close()
            raise
        self._group = _NO_ROW_GROUP
        self._columns = _NO_COLUMNS
        parts = self.counts.parts
        # Files of several row groups are rare, and read whole where anything is asked of them.
        if parts is not None and len(parts.row_groups) == 1:
            self._group = parts.row_groups[0]
            self._columns = _columns_of(parts.schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()

    def schema(self) -> pa.Schema:
        """Return its Arrow schema."""
        return stored_schema(self.path, self.counts.parts)

    @property
    def schema_key(self) -> tuple[bytes, bytes | None] | None:
        """What equal schemas have in common; None where the footer is of an unknown kind.

        Lists of one length and of any are stored alike, and texts and dictionaries of texts: only
        what Arrow adds to the file tells them apart.
        """
        parts = self.counts.parts
        return None if parts is None else (parts.schema.raw, parts.tail.arrow_schema)

    @property
    def extremes(self) -> dict[str, tuple[Number, Number]]:
        """The least and the greatest value of each column, elements of lists alike.

        Columns of which the footer does not say it, or which are no numbers, are not in it. NaN
        and empty values take no part.
        """
        return _extremes(self._group, self._columns)

    def num_values(self, column: str) -> int | None:
        """Return the values of a column, elements of lists and nulls alike; None if not known."""
        leaf = self._columns.places.get(column)
        return None if leaf is None else self._group.num_values(leaf)

    def null_count(self, column: str) -> int | None:
        """Return the empty values of a column, elements of lists alike; None if not known."""
        leaf = self._columns.places.get(column)
        return None if leaf is None else self._group.null_count(leaf)

    def missing_files(self, column: str) -> int | None:
        """Return how many images of a column have no bytes, but a path at best; None if not known.

        Only of columns that hold bytes and path of each image.
        """
        leaf = self._columns.files.get(column)
        return None if leaf is None else self._group.null_count(leaf)

    def raw(self, column: str) -> tuple[object, bytes] | None:
        """Return a column as it stands in a small file; None where that is not at hand.

        Columns of different files with equal raw forms have equal values.
        """
        leaf = self._columns.places.get(column)
        whole, parts = self.table.whole, self.counts.parts
        if leaf is None or whole is None or parts is None:
            return None
        group = self._group
        return (parts.schema, group.kind.shapes[leaf]), whole[group.pages(leaf)]

    def has_footer_of(self, other: OpenedTable) -> bool:
        """Tell whether a file of the same size has the same footer."""
        try:
            return self.table.footer() == other.footer()
        except ThriftError:
            return False

    def is_column_of(self, column: str, other: OpenedTable) -> bool:
        """Tell whether a file with the same footer has the same bytes of a column."""
        leaf = self._columns.places.get(column)
        if leaf is None:
            return False
        pages = self._group.pages(leaf)
        start, size = pages.start, pages.stop - pages.start
        (ours, at), (theirs, there) = self.table.window(start, size), other.window(start, size)
        return ours[at : at + size] == theirs[there : there + size]

    def lengths(self, schema: pa.Schema) -> dict[str, tuple[int, ...] | str]:
        """Return the lengths of the lists in columns whose type does not say them.

        Such columns are read, and those of lists that may hold empty values. Rows without a list
        take no part.

        Returns:
            Column to lengths, the outer list's first, or to what forbids that all rows become
            arrays of one shape.
        """
        found: dict[str, tuple[int, ...] | str] = {}
        for name, is_open in _lists_of(schema):
            if is_open or self.null_count(name) != 0:
                lengths = self._common_lengths(name)
                if lengths is not None:
                    found[name] = lengths
        return found

    def _common_lengths(self, name: str) -> tuple[int, ...] | str | None:
        """Return the lengths that the lists of a column have in common; see `lengths`."""
        if self.counts.row_groups == 1:
            return _lengths_of(self._read(name))
        # A file of many episodes is not held at once.
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

    def numbers(self, column: str) -> Numbers:
        """Return a column of one number a row, shape (rows,); a list of one counts as its number.

        Where as many values stand in the dictionary as there are rows, that is the column: Arrow's
        dictionaries hold values in the order of their first appearance, so each row is the first,
        and only, appearance of its value.
        """
        found = self._dictionary(column)
        if found is not None and len(found) == self.counts.rows:
            return found
        return self.decoded_numbers(column)

    def decoded_numbers(self, column: str) -> Numbers:
        """Return the same from the column's pages, not from its dictionary alone."""
        values = self._read(column)
        if is_list(values.type) and _lengths_of(values) == (1,):
            values = values.combine_chunks().flatten()
        kind = values.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            error = TypeError(f"column {column} is {kind}, no number a row")
            raise unreadable(self.path, error) from error
        if values.null_count:
            raise unreadable(self.path, ValueError(f"column {column} has empty values"))
        numbers: Numbers = values.to_numpy()
        return numbers

    def distinct(self, column: str) -> list[Number]:
        """Return the different values of a column of one number a row, ascending."""
        found = self._dictionary(column)
        if found is None or not self._group.chunks[self._columns.places[column]].is_all_dictionary:
            found = self.numbers(column)
        distinct: list[Number] = np.unique(found).tolist()
        return distinct

    def _dictionary(self, column: str) -> Numbers | None:
        """Return the values in a column's dictionary page; None where there is none to be had.

        Nor is there one of a writer whose dictionaries may be sorted, or hold what is in no row.
        """
        leaf, parts = self._columns.places.get(column), self.counts.parts
        if leaf is None or parts is None or not parts.tail.is_of_known_writer:
            return None
        (chunk,) = self._group.chunks_of([leaf])
        shape = chunk.shape
        dtype = _DTYPES.get(self._columns.forms[leaf] or "")
        if (
            dtype is None
            or chunk.dictionary_offset is None
            or chunk.num_values != self.counts.rows
            or len(shape.path) != 1
            or shape.codec not in (_PLAIN_CODEC, _SNAPPY_CODEC)
        ):
            return None
        size = chunk.data_offset - chunk.dictionary_offset
        if not 0 < size <= chunk.compressed_bytes:
            return None
        buffer, at = self.table.window(chunk.dictionary_offset, size)
        header = _PLAIN_DICTIONARY.match(buffer, at, at + min(size, _DICTIONARY_HEADER_BYTES))
        if header is None:
            return None
        plain_bytes, body_bytes, num_values = map(unzigzag, header.groups())
        if (
            not 0 < num_values <= self.counts.rows
            or plain_bytes != num_values * dtype.itemsize
            or body_bytes != size - (header.end() - at)
        ):
            return None
        body = buffer[header.end() : header.end() + body_bytes]
        if shape.codec == _SNAPPY_CODEC:
            try:
                body = bytes(_SNAPPY_DECODER.decompress(body, plain_bytes, asbytes=True))
            except (OSError, pa.ArrowException):
                return None  # Arrow says what is wrong with it
        if len(body) != plain_bytes:
            return None
        values: Numbers = np.frombuffer(body, dtype)
        return values

    def _read(self, column: str) -> pa.ChunkedArray:
        reader = open_parquet(self.path)
        try:
            leaf = {path[0]: number for number, path in enumerate(reader.column_paths)}.get(column)
            if leaf is None:
                raise UnreadableSourceError(f"{self.path} has no column {column}.", path=self.path)
            return reader.read_all(column_indices=[leaf], use_threads=False).column(0)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error
        finally:
            reader.close()


def _lists_of(schema: pa.Schema) -> list[tuple[str, bool]]:
    """Return the columns of lists of values, and whether their types leave a length open."""
    known = _LISTS.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    found = [
        (name, None in sizes)
        for name, kind in zip(schema.names, schema.types, strict=True)
        if (sizes := list_sizes(kind)) and not pa.types.is_struct(innermost_type(kind))
    ]
    if len(_LISTS) >= _KEPT_LAYOUTS:
        _LISTS.clear()
    _LISTS[id(schema)] = schema, found
    return found


def _lengths_of(column: pa.ChunkedArray) -> tuple[int, ...] | str | None:
    """Return the lengths of lists, or why they have none in common; None without any list."""
    kind, chunks = column.type, column.chunks
    # Before they become one: not every version of pyarrow joins chunks of an extension type.
    if isinstance(kind, pa.BaseExtensionType):
        kind, chunks = kind.storage_type, [chunk.storage for chunk in chunks]
    array = pa.chunked_array(chunks, kind).combine_chunks()
    try:
        array = array.drop_null() if array.null_count else array
    except pa.ArrowNotImplementedError:  # of views, in some versions of pyarrow
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
    return _HAS_EMPTY_VALUES if array.null_count else tuple(lengths)


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """The columns that have but one leaf.

    Attributes:
        places: The place of each one's leaf, by the column's name.
        forms: How the values of each leaf are packed, of all columns; None where they are no
            numbers.
        files: The place of the leaf ``bytes`` of columns of images.
    """

    places: dict[str, int]
    forms: tuple[str | None, ...]
    files: Mapping[str, int] = field(default_factory=dict)

    @lru_cache(maxsize=_KEPT_LAYOUTS)  # noqa: B019 - few are kept
    def some(self, names: tuple[str, ...]) -> _Columns:
        """Return those of some names."""
        places = {name: self.places[name] for name in names if name in self.places}
        return _Columns(places, self.forms)


def _extremes(group: RowGroupEntry, columns: _Columns) -> dict[str, tuple[Number, Number]]:
    shapes = group.kind.shapes
    plan = _PLANS.get((shapes, columns))
    if plan is None:
        plan = _plan_for(shapes, columns)
    groups, edges = group.groups, group.kind.edges
    found = plan.form.unpack(b"".join([groups[edges[leaf] + at] for leaf, at in plan.places]))
    return dict(zip(plan.columns, zip(found[::2], found[1::2], strict=True), strict=True))


class _Plan(NamedTuple):
    """Where the extremes of some columns stand in entries of some shapes, and how to read them.

    Attributes:
        columns: Columns that have extremes.
        places: Leaf and group of the least and the greatest value of each in turn.
        form: Reads all of them, one after the other.
    """

    columns: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    form: Struct


def _plan_for(shapes: tuple[ChunkShape, ...], columns: _Columns) -> _Plan:
    names: list[str] = []
    places: list[tuple[int, int]] = []
    form = "<"
    for name, leaf in columns.places.items():
        extremes, letter = shapes[leaf].extremes, columns.forms[leaf]
        if extremes is not None and letter is not None:
            names.append(name)
            places += [(leaf, extremes[0]), (leaf, extremes[1])]
            form += 2 * letter
    if len(_PLANS) >= _KEPT_LAYOUTS:
        _PLANS.clear()
    plan = _PLANS[shapes, columns] = _Plan(tuple(names), tuple(places), Struct(form))
    return plan


# Files of a dataset are alike: what the first took time to learn, the others are read by.
_FOOTERS = FooterReader()
_SNAPPY_DECODER = pa.Codec("snappy")
_PLANS: dict[tuple[tuple[ChunkShape, ...], _Columns], _Plan] = {}
_COLUMNS: dict[FileSchema, _Columns] = {}
_NO_COLUMNS = _Columns({}, ())
_NO_ROW_GROUP = RowGroupEntry(0, RowGroupKind((), (0,)), ())
# By the identity of the schema, which is held: to hash one takes as long as to look at it.
_LISTS: dict[int, tuple[pa.Schema, list[tuple[str, bool]]]] = {}


def _columns_of(schema: FileSchema) -> _Columns:
    known = _COLUMNS.get(schema)
    if known is not None:
        return known
    leaves: dict[str, int] = {}
    several: set[str] = set()
    for place, leaf in enumerate(schema.leaves):
        name = leaf.path[0].decode(errors="replace")
        if name in leaves:
            several.add(name)
        leaves[name] = place
    places = {name: place for name, place in leaves.items() if name not in several}
    files = {
        leaf.path[0].decode(errors="replace"): place
        for place, leaf in enumerate(schema.leaves)
        if leaf.path[1:] == (b"bytes",)
    }
    found = _Columns(places, tuple(map(_form_of, schema.leaves)), files)
    if len(_COLUMNS) >= _KEPT_LAYOUTS:
        _COLUMNS.clear()
    _COLUMNS[schema] = found
    return found


def _form_of(leaf: Leaf) -> str | None:
    """Return how the values of a leaf are packed; None where they are no numbers."""
    form = _FORMS.get(leaf.physical_type)
    if leaf.converted_type is None or form is None:
        return form
    if leaf.converted_type in _SIGNED:
        return form
    return form.upper() if leaf.converted_type in _UNSIGNED else None
