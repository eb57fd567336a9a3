"""Row groups taken from one parquet file into another as they stand.

Page headers hold no places in the file, so a column chunk can be moved by copying its bytes and
writing its places anew. That needs the same columns, types and nesting on both sides, and pages as
the result is to have them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert._version import __version__
from leconvert.tables.chunk_shapes import ChunkShape, ChunkWriter
from leconvert.tables.file_footers import FileFooter, FooterReader, RowGroupEntry
from leconvert.tables.file_schema import FileSchema, FileTail
from leconvert.tables.footers import read_data_schema
from leconvert.tables.opened import MAGIC, TRAILER_BYTES, OpenedTable, unreadable
from leconvert.tables.pages import check_pages
from leconvert.tables.thrift import (
    I64,
    LIST,
    STRUCT,
    ContradictionError,
    ThriftError,
    binary,
    list_header,
    varint,
    zigzag,
)

__all__ = ["CopyPlan", "FooterWriter", "TableCopier"]

CREATED_BY = f"leconvert version {__version__}".encode()

_SNAPPY = 1
_I64_NEXT = bytes((1 << 4 | I64,))
_I64_AFTER_NEXT = bytes((2 << 4 | I64,))
_LIST_FIRST = bytes((1 << 4 | LIST,))


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How one row group is copied.

    Attributes:
        row_group: The row group as the source's footer states it.
        ranges: Start and length of the byte ranges of the source, in the order in which they come
            to stand one behind the other.
    """

    row_group: RowGroupEntry
    ranges: tuple[tuple[int, int], ...]


class FooterWriter:
    """Writes the footer of a file with a given schema, and the row groups in it.

    Args:
        schema: The Arrow schema of the file.
    """

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
        self._writers: dict[tuple[ChunkShape, int], ChunkWriter] = {}
        self._columns = _LIST_FIRST + list_header(STRUCT, len(self.schema.leaves))

    def row_group(self, group: RowGroupEntry, position: int) -> bytes:
        """Return the entry of a row group whose chunks stand one behind the other.

        Args:
            group: The row group as it was in another file.
            position: Where its first chunk stands now.
        """
        start = position
        pieces = [self._columns]
        uncompressed = 0
        for number, chunk in enumerate(group.chunks):
            writer = self._writers.get((chunk.shape, number))
            if writer is None:
                path = self.schema.leaves[number].path
                writer = self._writers[chunk.shape, number] = chunk.shape.writer(path)
            pieces.append(writer.write(chunk, position - chunk.start))
            uncompressed += chunk.uncompressed_bytes
            position += chunk.compressed_bytes
        pieces += (
            _I64_NEXT,
            varint(uncompressed << 1),
            _I64_NEXT,
            varint(group.rows << 1),
            _I64_AFTER_NEXT,
            varint(start << 1),
            _I64_NEXT,
            varint(position - start << 1),
            b"\0",
        )
        return b"".join(pieces)

    def footer(self, row_groups: list[bytes], rows: int) -> bytes:
        """Return the end of a file: the footer, its length and the magic."""
        tail = self.tail
        footer = b"".join(
            [
                self.schema.raw,
                _I64_NEXT,
                zigzag(rows),
                _LIST_FIRST,
                list_header(STRUCT, len(row_groups)),
                *row_groups,
                _LIST_FIRST,
                tail.key_values_raw,
                b"\x18",
                binary(CREATED_BY),
                _LIST_FIRST,
                tail.column_orders_raw,
                b"\0",
            ]
        )
        return footer + len(footer).to_bytes(4, "little") + MAGIC


class TableCopier:
    """Decides what can be copied into a file of a given schema.

    The decision depends on the source file and the schema alone, so that it is the same whichever
    worker makes it, and the same again for a part file that holds the copy.

    Args:
        schema: The Arrow schema of the result.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.writer = FooterWriter(schema)
        self._arrow_schema = schema
        self.footers = FooterReader()
        self._verdicts: dict[tuple[FileSchema, bytes | None], str | None] = {}

    def footer_of(self, table: OpenedTable) -> FileFooter | str:
        """Return the footer of a file; where row groups cannot be taken from it, why.

        Raises:
            UnreadableSourceError: The footer is so damaged that nothing should be read from it.
        """
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
        """Return how a row group is copied, or why it cannot be.

        Args:
            table: The source.
            footer: Its footer.
            row_group: The row group, or None for that of a file with one.
            rows: Rows that it is to have.
        """
        if row_group is None:
            if len(footer.row_groups) != 1:
                return f"it has {len(footer.row_groups)} row groups"
            row_group = 0
        if not 0 <= row_group < len(footer.row_groups):
            return "it lacks the row group"
        group = footer.row_groups[row_group]
        if group.rows != rows:
            return f"it has {group.rows} rows"
        reason = self._reason_against(table, footer, group)
        if reason is not None:
            return reason
        ranges: list[tuple[int, int]] = []
        stop = -1
        for chunk in group.chunks:
            start, size = chunk.start, chunk.compressed_bytes
            if start == stop:
                first, length = ranges[-1]
                ranges[-1] = (first, length + size)
            else:
                ranges.append((start, size))
            stop = start + size
        return CopyPlan(group, tuple(ranges))

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
