"""The pages of a column chunk, counted by their headers.

A chunk that is copied as it stands is not decoded, so this is what shows that a footer's entry and
the bytes belong together: pages from the first byte to the last, a dictionary only where one is
claimed, all values accounted for, and in each page a Snappy block of the size that its header says.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from leconvert.tables.chunk_shapes import INTEGER, ChunkEntry
from leconvert.tables.thrift import I32, STRUCT, CompactReader, ThriftError, unzigzag

__all__ = ["Window", "check_pages"]

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
_COMMON = re.compile(
    rb"\x15(?:"
    rb"\x00\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x1c|\x2c)\x15(%(i)b)(?:\x15%(i)b){3}%(s)b\x00\x00|"
    rb"\x04\x15(%(i)b)\x15(%(i)b)(?:\x15%(i)b\x3c|\x4c)(?:\x15%(i)b){2}[\x11\x12]?\x00\x00)"
    % {b"i": INTEGER, b"s": _STATISTICS},
    re.DOTALL,
)


def check_pages(window: Window, chunk: ChunkEntry) -> str | None:
    """Say why a chunk is not a row of whole pages compressed by Snappy; None where it is.

    Args:
        window: Gives the bytes of the file.
        chunk: The entry; it must lie within the file.
    """
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
