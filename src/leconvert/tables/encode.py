"""Row groups encoded anew, into the middle of a file that is being written."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.tables.opened import MAGIC, TRAILER_BYTES

__all__ = ["RowGroupEncoder", "holds_bytes"]

_WRITE_BUFFER_BYTES = 1024**2
_IMAGE_ROWS_PER_BATCH = 8


class RowGroupEncoder:
    """Lets Arrow encode row groups and passes on their bytes alone.

    The bytes of a row group do not depend on where it stands or on what is beside it. Memory holds
    one table and a buffer; the footer that Arrow writes comes back from :meth:`finish`.

    Args:
        schema: What the tables hold.
        put: Takes the bytes of the row groups one after another.

    Attributes:
        OFFSET_BYTES: Places in the footer are this much greater than distances from the first byte
            that was put.
    """

    OFFSET_BYTES = len(MAGIC)

    def __init__(self, schema: pa.Schema, put: Callable[[bytes], None]) -> None:
        self._sink = _Sink(put)
        self._buffered = pa.BufferedOutputStream(
            pa.PythonFile(self._sink, mode="w"), _WRITE_BUFFER_BYTES
        )
        self._writer = pq.ParquetWriter(
            self._buffered, schema, compression="snappy", **_writer_options(schema)
        )

    def write(self, table: pa.Table) -> None:
        """Encode a table as one row group."""
        # However long the episode is: Arrow would cut after 2^20 rows.
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self) -> bytes:
        """Put what is left of the row groups and return their footer."""
        self._buffered.flush()
        footer = bytearray()
        self._sink.put = footer.extend
        self._writer.close()
        self._buffered.flush()
        return bytes(footer[:-TRAILER_BYTES])

    def abandon(self) -> None:
        """Put nothing more, whatever Arrow does when it lets go of its writer."""
        self._sink.put = _forget


class _Sink(io.RawIOBase):
    """What Arrow writes to; it leaves out the magic at the beginning."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self.put = put
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        data = bytes(content)
        skipped = max(0, len(MAGIC) - self._position)
        self._position += len(data)
        self.put(data[skipped:])
        return len(data)


def _forget(_content: bytes) -> None:
    """Take bytes that nobody wants."""


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds byte strings such as encoded images, at any depth."""
    if pa.types.is_nested(kind):
        return any(holds_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _writer_options(schema: pa.Schema) -> dict[str, Any]:
    """Return how the columns are encoded; the schema alone decides.

    A dictionary of encoded images helps nobody, and Arrow looks at a page's size only after each
    batch of rows: with its 1,024 rows a batch an episode's images would be one page, which is in
    memory several times over while it is written and whenever it is read.
    """
    if not any(map(holds_bytes, schema.types)):
        return {"use_dictionary": True}
    # How parquet names the leaves of nested columns is best asked from Arrow.
    sample = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sample)
    leaves = pq.read_metadata(pa.BufferReader(sample.getvalue())).schema
    columns = [leaves.column(number) for number in range(len(leaves))]
    small = [
        column.path
        for column in columns
        if column.physical_type != "BYTE_ARRAY" or column.logical_type.type != "NONE"
    ]
    return {"use_dictionary": small, "write_batch_size": _IMAGE_ROWS_PER_BATCH}
