"""Copies row groups unchanged from one parquet file into another, and proves such copies.

Page headers hold no file offsets, so a column chunk can be moved: its bytes are copied, and only
its offsets in the footer are new. Both files need the same columns, types and nesting, and the
pages must be as the result should have them.

A copied chunk is not decoded. `check_pages` shows that the bytes agree with their footer entry:
pages from the first byte to the last, a dictionary only if one is stated, all values accounted for,
and in each page a Snappy block of the size that its header states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert._version import __version__
from leconvert.support.file_calls import RangeMover
from leconvert.tables.data_file import OpenedTable, unreadable
from leconvert.tables.footers import (
    FOOTERS,
    INTEGER,
    MAGIC,
    TRAILER_BYTES,
    ChunkEntry,
    FileFooter,
    FileSchema,
    FileTail,
    Leaf,
    RowGroupEntry,
    RowGroupForm,
    arrow_schema,
    chunk_outside,
)
from leconvert.tables.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    ThriftError,
    binary,
    field_header,
    list_header,
    unzigzag,
    varint,
    zigzag,
)

# Returns bytes of a file from a position on: a buffer, and the index of the position in it. The
# buffer holds at least as many bytes as asked for, unless the file ends.
type Window = Callable[[int, int], tuple[bytes, int]]

_HEADER_BYTES = 1024
_LONG_HEADER_BYTES = 256 * 1024
_SIZE_BYTES = 10

_DATA_PAGE, DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
# Fields of PageHeader.
_KIND, _UNCOMPRESSED, _COMPRESSED, _DATA, _DATA_V2 = 1, 2, 3, 5, 8
_NUM_VALUES = 1

# The two headers that Arrow writes, with or without checksum; any other is walked. Values of
# statistics have the widths of numbers. The groups are the size, the compressed size, and the
# number of values, which a dictionary does not add to the column.
_STATISTIC = rb"\x04.{4}|\x08.{8}|\x00|\x01.|\x0c.{12}|\x10.{16}"
_STATISTICS = (
    rb"\x1c(?:\x18(?:%(v)b)\x18(?:%(v)b))?+[\x16\x36]%(i)b(?:\x28(?:%(v)b)\x18(?:%(v)b))?+"
    rb"[\x11\x12]*+\x00" % {b"i": INTEGER, b"v": _STATISTIC}
)
_DATA_HEADER, _DICTIONARY_HEADER = (
    re.compile(expression % {b"i": INTEGER, b"s": _STATISTICS}, re.DOTALL)
    for expression in (
        rb"\x15\x00\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x1c|\x2c)\x15(%(i)b)\x15%(i)b\x15%(i)b"
        rb"\x15%(i)b(?:%(s)b)?+\x00\x00",
        rb"\x15\x04\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x3c|\x4c)\x15%(i)b\x15%(i)b()[\x11\x12]?\x00\x00",
    )
)


def check_pages(window: Window, chunks: Iterable[ChunkEntry]) -> tuple[int, str] | None:
    """Find a chunk of a row group that does not consist of whole pages compressed with Snappy.

    Args:
        window: Reads the file.
        chunks: The chunks, as the footer states them.

    Returns:
        The chunk's number and the reason; None if all are whole.
    """
    # The buffer read last, and its position in the file.
    buffer, first = b"", 0
    for place, chunk in enumerate(chunks):
        num_values, plain_bytes, chunk_bytes, data_offset, dictionary_offset, position = chunk
        has_dictionary = dictionary_offset != 0
        stop = position + chunk_bytes
        while position < stop:
            at = position - first
            if at < 0 or at + _HEADER_BYTES > len(buffer):
                buffer, at = window(position, _HEADER_BYTES)
                first = position - at
            found = (_DICTIONARY_HEADER if has_dictionary else _DATA_HEADER).match(buffer, at)
            if found is not None:
                size, stored, values = map(unzigzag, found.groups())
                is_dictionary, is_block, body = has_dictionary, True, found.end()
            else:
                try:
                    walked = walk_page(buffer, at)
                except ThriftError:
                    buffer, at = window(position, _LONG_HEADER_BYTES)
                    first = position - at
                    try:
                        walked = walk_page(buffer, at)
                    except ThriftError as error:
                        return place, f"a page header is damaged: {error}"
                kind, size, stored, values, body = walked
                is_dictionary, is_block = kind == DICTIONARY_PAGE, kind != _DATA_PAGE_V2
            if size < 0 or stored < 0 or values < 0:
                return place, "a page has a negative size"
            # Only the first page may be a dictionary, and it must be at the footer's offset.
            if is_dictionary != has_dictionary:
                return place, "its dictionary page is not where the footer says"
            has_dictionary = False
            num_values -= values
            plain_bytes -= body - at + size
            position = first + body + stored
            if is_block and stored:
                # A Snappy block begins with its uncompressed size.
                begin, block, start = _block_begin(size), buffer, body
                if body + len(begin) > len(buffer):
                    block, start = window(first + body, _SIZE_BYTES)
                if not block.startswith(begin, start):
                    return place, "a page is not a Snappy block of its size"
            if is_dictionary and position != data_offset:
                return place, "its first data page is not where the footer says"
        if position != stop:
            return place, "its last page ends behind it"
        if num_values:
            return place, "its pages hold another number of values"
        if plain_bytes:
            return place, "its pages have another size uncompressed"
    return None


_block_begin = lru_cache(maxsize=1 << 12)(varint)


def walk_page(buffer: bytes, at: int) -> tuple[int, int, int, int, int]:
    """Return kind, size, compressed size, values and end in the buffer of any page header."""
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
        raise ThriftError("the page header does not contain the sizes of the page") from error
    if kind not in (_DATA_PAGE, DICTIONARY_PAGE, _DATA_PAGE_V2):
        raise ThriftError("the page is of an unknown kind")
    return kind, size, stored, values, reader.position


CREATED_BY = f"leconvert version {__version__}".encode()

_SNAPPY = 1
# Number of templates that are kept.
_KEPT_LAYOUTS = 16
# Few enough to take little memory, enough to become small together.
_ENTRIES_TOGETHER = 64
# Row groups up to this size are read at once, however large the file is.
_HELD_GROUP_BYTES = 128 * 1024
_I64_NEXT = field_header(I64)
_I64_AFTER_NEXT = field_header(I64, 2)
_LIST_FIRST = field_header(LIST)


class CopyPlan(NamedTuple):
    """The ranges and entries for copying one row group.

    Attributes:
        row_group: The entry of the row group in the source's footer.
        chunks: Its chunks.
        ranges: Start and length of the byte ranges of the source, in the order in which they are
            written one after another.
    """

    row_group: RowGroupEntry
    chunks: list[ChunkEntry]
    ranges: tuple[tuple[int, int], ...]


type Template = tuple[bytes, Callable[[list[bytes]], tuple[bytes, ...]]]
"""A bytes format, and a function that selects the row group's groups for it."""


class RowGroupEntries:
    """The entries of a footer's row groups, until they are written.

    A file can have tens of thousands of entries of a kilobyte each. Entries are alike, so all but
    the last ones are held compressed.

    Attributes:
        count: Number of entries.
        size_bytes: Sum of their sizes.
    """

    def __init__(self) -> None:
        self.count = self.size_bytes = 0
        self._compressed: list[tuple[bytes, int]] = []
        self._last: list[bytes] = []

    def append(self, entry: bytes) -> None:
        """Take the entry of the next row group."""
        self.count += 1
        self.size_bytes += len(entry)
        self._last.append(entry)
        if len(self._last) == _ENTRIES_TOGETHER:
            whole = b"".join(self._last)
            packed = pa.compress(whole, codec="snappy", asbytes=True)
            self._compressed.append((packed, len(whole)))
            self._last.clear()

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of all entries, one after another."""
        for packed, size in self._compressed:
            yield pa.decompress(packed, size, codec="snappy", asbytes=True)
        yield from self._last


class TableCopier:
    """Copies row groups into files of one schema: which ones it can, and what their footers say.

    The decision depends on the source file and the schema alone. So every worker decides
    alike, and the same again for a part file that holds the copy.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._arrow_schema = schema
        self._verdicts: dict[tuple[FileSchema, bytes | None], str | None] = {}
        # Arrow knows the schema in parquet's terms.
        sample = pa.BufferOutputStream()
        with pq.ParquetWriter(sample, schema, compression="snappy"):
            pass
        raw = sample.getvalue().to_pybytes()
        footer_bytes = int.from_bytes(raw[-TRAILER_BYTES:-4], "little")
        empty = FOOTERS.read(raw[-TRAILER_BYTES - footer_bytes : -TRAILER_BYTES])
        self.schema: FileSchema = empty.schema
        self.tail: FileTail = empty.tail
        self._templates: dict[RowGroupForm, Template] = {}
        self._columns = _LIST_FIRST + list_header(STRUCT, len(self.schema.leaves))

    def row_group(self, group: RowGroupEntry, chunks: Sequence[ChunkEntry], position: int) -> bytes:
        """Return the entry of a row group whose chunks are stored from ``position`` on."""
        form, groups = group.form, list(group.groups)
        known = self._templates.get(form)
        if known is None:
            if len(self._templates) >= _KEPT_LAYOUTS:
                self._templates.clear()
            known = self._templates[form] = self._template(form)
        template, written = known
        stop, plain_bytes = position, 0
        for chunk, (data_at, dictionary_at) in zip(chunks, form.places, strict=True):
            _, chunk_plain_bytes, size, data_offset, dictionary_offset, start = chunk
            groups[data_at] = varint((data_offset - start + stop) << 1)
            # A dictionary, if there is one, is at the beginning of the chunk.
            if dictionary_offset:
                groups[dictionary_at] = varint(stop << 1)
            stop += size
            plain_bytes += chunk_plain_bytes
        return b"".join(
            [
                self._columns,
                template % written(groups),
                _I64_NEXT,
                varint(plain_bytes << 1),
                _I64_NEXT,
                varint(group.rows << 1),
                _I64_AFTER_NEXT,
                varint(position << 1),
                _I64_NEXT,
                varint((stop - position) << 1),
                b"\0",
            ]
        )

    def _template(self, form: RowGroupForm) -> Template:
        """Return the template for chunks of a form, with the names of this schema's columns."""
        leaves = iter(self.schema.leaves)
        template = bytearray()
        groups: list[int] = []
        for part in form.parts:
            if isinstance(part, int):
                groups.append(part)
                template += b"%b"
                continue
            if part is None:
                path = next(leaves).path
                part = list_header(BINARY, len(path)) + b"".join(map(binary, path))  # noqa: PLW2901
            template += part.replace(b"%", b"%%")
        return bytes(template), itemgetter(*groups) if groups else lambda _: ()

    def footer(self, row_groups: RowGroupEntries, rows: int) -> Iterator[bytes]:
        """Yield the end of a file in pieces: the footer, its length and the magic."""
        tail = self.tail
        before = b"".join(
            [
                self.schema.raw,
                _I64_NEXT,
                zigzag(rows),
                _LIST_FIRST,
                list_header(STRUCT, row_groups.count),
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
        footer_bytes = len(before) + row_groups.size_bytes + len(behind)
        yield before
        yield from row_groups.pieces()
        yield behind + footer_bytes.to_bytes(4, "little") + MAGIC

    def plan(
        self, table: OpenedTable, footer: FileFooter, row_group: int | None, rows: int
    ) -> CopyPlan | str:
        """Return how a row group is copied, or the reason why it cannot be.

        Args:
            table: The file.
            footer: Its footer.
            row_group: The row group; None for the only one.
            rows: The rows that it must have.
        """
        reason = self.reason_against_columns(footer)
        if reason is not None:
            return reason
        if row_group is None:
            if len(footer.row_groups) != 1:
                return f"it has {len(footer.row_groups)} row groups"
            row_group = 0
        if not 0 <= row_group < len(footer.row_groups):
            return "it lacks the row group"
        group = footer.row_groups[row_group]
        if group.rows != rows:
            return f"it has {group.rows} rows"
        if not rows:
            return "it has no rows"
        leaves, form = footer.schema.leaves, group.form
        if not form.is_plain:
            return "its footer is unusual"
        if form.codecs != {_SNAPPY}:
            return "it is not compressed with Snappy"
        if not form.have_statistics:
            return "it has no statistics"
        chunks = group.chunks()
        outside = chunk_outside(chunks, table.size_bytes)
        if outside is not None:
            return _about(leaves[outside], "it does not lie within the file")
        for leaf, chunk in zip(leaves, chunks, strict=True):
            if chunk.num_values != rows and not leaf.repetitions:
                return _about(leaf, "it has another number of values than rows")
        if table.whole is None:
            start = min([chunk.start for chunk in chunks])
            stop = max([chunk.start + chunk.compressed_bytes for chunk in chunks])
            if stop <= start + _HELD_GROUP_BYTES:
                table.hold(start, stop - start + _HEADER_BYTES)
        fault = check_pages(table.window, chunks)
        if fault is not None:
            return _about(leaves[fault[0]], fault[1])
        return CopyPlan(group, chunks, _ranges_of(chunks))

    def reason_against(self, path: str, rows: int) -> str | None:
        """Return why an episode with a file of its own is not copied; None if it is."""
        with OpenedTable(path) as table:
            plan = self.plan(table, table.parsed_footer(), None, rows)
        return plan if isinstance(plan, str) else None

    def reason_against_columns(self, footer: FileFooter) -> str | None:
        """Return why no row group of a file can stand in files of this schema; None if they can."""
        tail, key = footer.tail, footer.schema_key
        if not tail.is_of_known_writer:
            return f"it was written by {tail.created_by.decode(errors='replace') or 'nobody'}"
        if tail.column_orders_raw != self.tail.column_orders_raw:
            return "its statistics have another order"
        if key not in self._verdicts:
            self._verdicts[key] = self._compare(footer)
        return self._verdicts[key]

    def _compare(self, footer: FileFooter) -> str | None:
        """Return why the columns of a file are not those of the result; None if they are."""
        found, wanted = footer.arrow_schema, self._arrow_schema
        if not found.equals(wanted, check_metadata=False):
            for field in wanted:
                at = found.get_field_index(field.name)
                if at < 0 or not found.field(at).equals(field):
                    return f"column {field.name} is missing or has another type"
            return "it has further columns, or another order of columns"
        if footer.schema.structure != self.schema.structure:
            return "its columns are stored in another way"
        return None


def _ranges_of(chunks: Sequence[ChunkEntry]) -> tuple[tuple[int, int], ...]:
    """Return start and length of some column chunks; adjacent ones are merged."""
    ranges: list[tuple[int, int]] = []
    stop = -1
    for chunk in chunks:
        if chunk.start == stop:
            first, length = ranges[-1]
            ranges[-1] = (first, length + chunk.compressed_bytes)
        else:
            ranges.append((chunk.start, chunk.compressed_bytes))
        stop = chunk.start + chunk.compressed_bytes
    return tuple(ranges)


def _about(leaf: Leaf, reason: str) -> str:
    return f"column {b'.'.join(leaf.path).decode(errors='replace')}: {reason}"


_PENDING_BYTES = 1024**2
_PENDING_PIECES = 512  # one write takes 1024


class SequentialOutput:
    """Gathers small pieces into one write, and has large ranges moved from file to file.

    Nothing is written before `flush`, and nothing is synced.

    Args:
        descriptor: A file open for writing, at its beginning.
        path: Its name, for errors.

    Attributes:
        position: Bytes taken so far, including those still in memory.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.position = 0
        self._mover = RangeMover(descriptor, path)
        self._written = 0
        self._pending: list[bytes | memoryview] = []

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
        self._mover.move(source.descriptor, source.path, start, size, self._written)
        self.position = self._written = self._written + size

    def flush(self) -> None:
        """Write the bytes in memory."""
        self._mover.write(self._pending, self._written)
        self._pending, self._written = [], self.position


type StoredRanges = tuple[tuple[int, int], ...]
"""Start and length in bytes of the column chunks of a row group; adjacent ones are merged."""


class StoredGroups:
    """The footer of a result's data file; the file is not kept open.

    A conversion copies most row groups unchanged. Such a copy is proven without decoding: the
    result's footer states the same as the source's footer except for offsets, both files have the
    same columns, types and nesting, and the pages are the same bytes. The bytes then mean the same
    in both files. This proves nothing about the source itself: pages that are damaged there are
    equally damaged here, and only a check of the source finds them.

    Memory is that of a few numbers a row group; the rest of the footer is read when it is needed.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: The file is missing, truncated or no parquet file.

    Attributes:
        path: The file.
        size_bytes: Its size.
        rows: Rows of each row group.
        schema: Its Arrow schema.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with OpenedTable(path) as table:
            self.size_bytes = table.size_bytes
            footer, (self._start, _) = table.parsed_footer(outline=True), table.footer_range()
            try:
                self._copier = _copier_of(footer.schema.raw, footer.tail.raw)
            except pa.ArrowException as error:
                raise unreadable(path, error) from error
        self._schema, self.schema, self.rows = footer.schema, footer.arrow_schema, footer.rows
        self._places = footer.places
        self._end = len(MAGIC)

    def extremes(self) -> Iterator[dict[str, tuple[float, float]]]:
        """Yield the values of `DataFile.extremes` for each row group.

        One row group is held at a time.
        """
        with OpenedTable(self.path) as table:
            for group in range(len(self.rows)):
                yield self._entry(self._stated(table, group)).extremes()

    def copied_from(
        self, group: int, source: OpenedTable, table: OpenedTable
    ) -> tuple[StoredRanges, StoredRanges] | None:
        """Return the ranges whose bytes are equal if a row group is a copy of a file's only one.

        Args:
            group: Number of the row group in this file.
            source: The file with the one row group.
            table: This file.

        Returns:
            The ranges in the source and those in this file; None if the footers already show that
            it is no copy.
        """
        footer, copier = source.parsed_footer(), self._copier
        is_alike = footer.schema.structure == self._schema.structure
        if len(footer.row_groups) != 1 or not is_alike or copier.reason_against_columns(footer):
            return None
        wanted = footer.row_groups[0]
        chunks = wanted.chunks()
        are_outside = not chunks or chunk_outside(chunks, source.size_bytes) is not None
        if not wanted.form.is_plain or are_outside:
            return None
        stated = self._stated(table, group)
        # Usually the row group follows the previous one; its entry then need not be parsed.
        position = self._end
        if copier.row_group(wanted, chunks, position) != stated:
            position = self._entry(stated).chunks()[0].start
            if copier.row_group(wanted, chunks, position) != stated:
                return None
        size = sum(chunk.compressed_bytes for chunk in chunks)
        self._end = position + size
        return _ranges_of(chunks), ((position, size),)

    def _stated(self, table: OpenedTable, group: int) -> bytes:
        """Return the stored entry of a row group."""
        first, stop = self._places[group : group + 2]
        return table.part(self._start + first, stop - first)

    def _entry(self, stated: bytes) -> RowGroupEntry:
        try:
            return FOOTERS.row_group(stated, 0, self._schema)
        except ThriftError as error:  # the file has changed
            raise unreadable(self.path, error) from error


@lru_cache(maxsize=1 << 4)
def _copier_of(schema: bytes, tail: bytes) -> TableCopier:
    """Return the copier for files whose footers have these parts."""
    return TableCopier(arrow_schema(schema, tail))
