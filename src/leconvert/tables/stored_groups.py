"""Row groups of a data file as they are stored, and whether they are copies of a source's.

A conversion copies most row groups as they stand. Such a copy is proven without decoding: the
result's footer states of it exactly what the source's footer states, moved to another place, both
files have the same columns, types and nesting, and its pages are the same bytes. Whatever those
bytes mean in the source they then mean in the result. That says nothing about the source itself:
pages that were damaged there already are the same damaged pages here, which is for a check of the
source to find.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.tables.chunk_shapes import ChunkEntry
from leconvert.tables.file_footers import FileFooter, FooterReader
from leconvert.tables.file_schema import FileSchema
from leconvert.tables.footers import LARGE_FOOTER_BYTES, read_data_schema, row_group_rows
from leconvert.tables.opened import MAGIC, TRAILER_BYTES, OpenedTable, unreadable
from leconvert.tables.thrift import (
    I64,
    LIST,
    STRUCT,
    ContradictionError,
    ThriftError,
    list_header,
    zigzag,
)
from leconvert.tables.verbatim import FooterWriter

__all__ = ["StoredGroups", "StoredRanges"]

type StoredRanges = tuple[tuple[int, int], ...]
"""Begin and length in bytes of the column chunks of a row group, neighbours together."""

_I64_NEXT = bytes((1 << 4 | I64,))
_LIST_FIRST = bytes((1 << 4 | LIST,))


class StoredGroups:
    """A data file of a result; of it only the footer is read, and the file is not kept open.

    Memory is that of the footer and a few numbers a row group.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: It is missing, truncated or no parquet file.

    Attributes:
        path: The file.
        rows: Rows of each row group.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._reader = FooterReader()
        self._places: npt.NDArray[np.int64] | None = None
        self._end = len(MAGIC)
        self._writer: FooterWriter | None = None
        self._alike: dict[tuple[FileSchema, bytes | None], bool] = {}
        with OpenedTable(path) as table:
            try:
                self._footer = table.footer()
                outline = self._reader.outline(self._footer)
                schema = _empty_file_schema(self._footer, outline.schema, outline.places[-1])
                self._writer = FooterWriter(schema)
            except ContradictionError as error:
                raise unreadable(path, error) from error
            except (ThriftError, pa.ArrowException):
                # Where Arrow can read it, its rows can be compared, if not its bytes.
                self.rows: list[int] = row_group_rows(path)
                return
        is_large = len(self._footer) > LARGE_FOOTER_BYTES
        self.rows = outline.rows if is_large else row_group_rows(path)
        self._arrow_schema = schema
        self._file_schema = outline.schema
        self._places = np.array(outline.places, np.int64)

    def copied_from(
        self, group: int, source: OpenedTable
    ) -> tuple[StoredRanges, StoredRanges] | None:
        """Return the ranges that are the same bytes if a row group is a copy of a file's only one.

        Args:
            group: The row group.
            source: The file.

        Returns:
            The ranges in the source and those here; None where the footers already say that it is
            no copy.

        Raises:
            UnreadableSourceError: The source cannot be read.
        """
        if self._places is None or self._writer is None:
            return None
        try:
            footer = self._reader.read(source.footer())
        except ContradictionError as error:
            raise unreadable(source.path, error) from error
        except ThriftError:
            return None  # Arrow knows more kinds of footers
        if len(footer.row_groups) != 1 or not self._is_alike(footer, source.path):
            return None
        wanted = footer.row_groups[0]
        if not wanted.chunks or not all(_is_inside(c, source.size_bytes) for c in wanted.chunks):
            return None
        first, stop = self._places[group : group + 2].tolist()
        stated = self._footer[first:stop]
        # Mostly it stands behind the one before; its entry need then not be taken apart.
        position = self._end
        if self._writer.row_group(wanted, position) != stated:
            entry = self._reader.row_group_at(self._footer, first, self._file_schema)
            position = entry.chunks[0].start
            if self._writer.row_group(wanted, position) != stated:
                return None
        ranges: list[tuple[int, int]] = []
        for chunk in wanted.chunks:
            if ranges and sum(ranges[-1]) == chunk.start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + chunk.compressed_bytes)
            else:
                ranges.append((chunk.start, chunk.compressed_bytes))
        size = sum(length for _, length in ranges)
        self._end = position + size
        return tuple(ranges), ((position, size),)

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


def _is_inside(chunk: ChunkEntry, size_bytes: int) -> bool:
    """Tell whether a column chunk lies in a file of this size, its pages one behind the other."""
    start, size = chunk.start, chunk.compressed_bytes
    return 0 < size <= size_bytes - start and 0 <= start <= chunk.data_offset


def _empty_file_schema(footer: bytes, schema: FileSchema, end_of_groups: int) -> pa.Schema:
    """Return the Arrow schema of a file: Arrow reads its footer, but without the row groups."""
    empty = b"".join(
        [
            schema.raw,
            _I64_NEXT,
            zigzag(0),
            _LIST_FIRST,
            list_header(STRUCT, 0),
            footer[end_of_groups:],
        ]
    )
    file = MAGIC + empty + len(empty).to_bytes(TRAILER_BYTES - len(MAGIC), "little") + MAGIC
    try:
        return pq.read_schema(io.BytesIO(file))
    except OSError as error:
        raise ThriftError(str(error)) from error
