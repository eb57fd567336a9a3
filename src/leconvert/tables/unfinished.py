"""Parquet files that were never ended, so that they have no footer.

A writer adds a row group at a time, and the footer at the end. LeRobot 0.4 to 0.6 keeps a data file
open while it records, with a row group for each episode, until ``finalize()`` is called. After a
crash the rows of every saved episode are in the file, but no reader finds them.

The footer follows from the pages and the schema. Each page begins with its kind, its size and the
number of its values, and a row has a known number of values in each column. LeRobot's writer begins
every column chunk with a dictionary, except those of truth values, which never have one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.tables.data_file import unreadable
from leconvert.tables.footers import MAGIC, Leaf, shown_to_arrow
from leconvert.tables.parquet_copy import DICTIONARY_PAGE, TableCopier, walk_page
from leconvert.tables.schemas import IMAGE_TYPE, output_schema
from leconvert.tables.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftError,
    binary,
    field_header,
    list_header,
    zigzag,
)

_HEADER_BYTES = 64 * 1024
_BOOL = 0
_SNAPPY = 1
_ENCODINGS = (0, 3, 8)  # PLAIN, RLE, RLE_DICTIONARY: readers take those of the pages


class _Page(NamedTuple):
    """A page: where it begins and ends, its uncompressed size with header, and its values."""

    begin: int
    end: int
    plain_bytes: int
    values: int
    is_dictionary: bool


def recorded_schema(features: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """Return the columns that LeRobot records, in the order of the features of ``info.json``.

    Raises:
        ValueError: A feature has a dtype that Arrow does not know, or no shape.
    """
    fields = []
    for name, feature in features.items():
        if feature["dtype"] == "image":
            kind = IMAGE_TYPE
        elif feature["dtype"] != "video":
            kind = pa.type_for_alias(feature["dtype"])
            shape = tuple(feature["shape"])
            if len(shape) == 1 and shape != (1,):
                kind = pa.list_(kind, shape[0])
            elif len(shape) > 1:
                for _ in shape:
                    kind = pa.list_(kind)
        else:
            continue
        fields.append(pa.field(name, kind))
    return output_schema(pa.schema(fields), features)


def finish_table(
    path: Path,
    features: Mapping[str, Mapping[str, Any]],
    to: Path,
    *,
    most_rows: float = math.inf,
) -> list[int]:
    """Write the rows of an unfinished data file into a new one, with the same row groups.

    Rows of a row group that is not complete are left out.

    Args:
        path: The file.
        features: The features of its dataset, as in ``info.json``.
        to: The new file.
        most_rows: Row groups that would make the file longer are left out.

    Returns:
        Number of rows of each row group of the new file.

    Raises:
        UnreadableSourceError: The pages do not fit these features.
    """
    rows, left = list[int](), most_rows
    try:
        schema = recorded_schema(features)
        file = _opened(path, schema, features)
        with pq.ParquetWriter(to, schema, compression="snappy", use_dictionary=True) as writer:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, use_threads=False)
                left -= group.num_rows
                if left < 0:
                    break
                writer.write_table(group)
                rows.append(group.num_rows)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    return rows


def _opened(
    path: Path, schema: pa.Schema, features: Mapping[str, Mapping[str, Any]]
) -> pq.ParquetFile:
    """Open a file with the footer that follows from its pages."""
    known = TableCopier(schema)
    leaves = known.schema.leaves
    # How many values a row has in each leaf.
    widths = [
        1
        if features[leaf.column]["dtype"] == "image"
        else math.prod(features[leaf.column]["shape"])
        for leaf in leaves
    ]
    pages = list(_pages(path))
    groups: list[bytes] = []
    at = 0
    while (found := _row_group(pages, at, leaves, widths)) is not None:
        rows, chunks = found
        groups.append(_entry(rows, chunks, pages, leaves, widths))
        at = chunks[-1].stop
    if not groups:
        raise ValueError("it has no complete row group of the declared features")
    metadata = shown_to_arrow(known.schema.raw, groups, known.tail.raw).metadata
    return pq.ParquetFile(path, metadata=metadata)


def _pages(path: Path) -> Iterator[_Page]:
    """Yield the complete pages of a file, from its first byte behind the magic."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered
        size_bytes = os.fstat(file.fileno()).st_size
        position = len(MAGIC)
        while position < size_bytes:
            header = os.pread(file.fileno(), _HEADER_BYTES, position)
            try:
                kind, size, stored, values, end = walk_page(header, 0)
            except ThriftError:
                return
            stop = position + end + stored
            if min(size, stored, values) < 0 or stop > size_bytes:
                return
            yield _Page(position, stop, end + size, values, kind == DICTIONARY_PAGE)
            position = stop


def _row_group(
    pages: Sequence[_Page], at: int, leaves: Sequence[Leaf], widths: Sequence[int]
) -> tuple[int, list[slice]] | None:
    """Return the rows, and the pages of each chunk, of a row group; None if none begins here.

    How many pages the first chunk has decides how many rows there are. All others must agree.
    """
    values, stop = 0, at + int(at < len(pages) and pages[at].is_dictionary)
    while stop < len(pages) and not pages[stop].is_dictionary:
        values += pages[stop].values
        stop += 1
        rows, rest = divmod(values, widths[0])
        if rest or not rows:
            continue
        chunks, begin = list[slice](), at
        for leaf, width in zip(leaves, widths, strict=True):
            chunk = _chunk(pages, begin, leaf, rows * width)
            if chunk is None:
                break
            chunks.append(chunk)
            begin = chunk.stop
        else:
            return rows, chunks
    return None


def _chunk(pages: Sequence[_Page], at: int, leaf: Leaf, values: int) -> slice | None:
    """Return the pages of the chunk of a leaf that begins at a page and has so many values."""
    stop = at
    if leaf.physical_type != _BOOL:
        if at >= len(pages) or not pages[at].is_dictionary:
            return None
        stop += 1
    while values > 0 and stop < len(pages) and not pages[stop].is_dictionary:
        values -= pages[stop].values
        stop += 1
    return None if values else slice(at, stop)


def _entry(
    rows: int,
    chunks: Sequence[slice],
    pages: Sequence[_Page],
    leaves: Sequence[Leaf],
    widths: Sequence[int],
) -> bytes:
    """Return the entry of a row group in a footer."""
    entries = [
        _chunk_entry(leaf, rows * width, pages[chunk])
        for leaf, width, chunk in zip(leaves, widths, chunks, strict=True)
    ]
    plain_bytes = sum(page.plain_bytes for page in pages[chunks[0].start : chunks[-1].stop])
    head = field_header(LIST) + list_header(STRUCT, len(entries))
    return b"".join([head, *entries, _long(plain_bytes), _long(rows), b"\0"])


def _chunk_entry(leaf: Leaf, values: int, pages: Sequence[_Page]) -> bytes:
    """Return the entry of a column chunk."""
    begin, data = pages[0].begin, pages[int(pages[0].is_dictionary)].begin
    facts = [
        field_header(I32) + zigzag(leaf.physical_type),
        field_header(LIST) + list_header(I32, len(_ENCODINGS)) + b"".join(map(zigzag, _ENCODINGS)),
        field_header(LIST) + list_header(BINARY, len(leaf.path)) + b"".join(map(binary, leaf.path)),
        field_header(I32) + zigzag(_SNAPPY),
        _long(values),
        _long(sum(page.plain_bytes for page in pages)),
        _long(pages[-1].end - begin),
        _long(data, 2),
        _long(begin, 2) if data != begin else b"",
        b"\0",
    ]
    # The chunk's own offset is in a field of the entry as well.
    return b"".join([_long(begin, 2), field_header(STRUCT), *facts, b"\0"])


def _long(value: int, after: int = 1) -> bytes:
    """Return a field of a struct, some numbers after the previous one."""
    return field_header(I64, after) + zigzag(value)
