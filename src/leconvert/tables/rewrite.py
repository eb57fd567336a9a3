"""A table with some of its columns computed anew, and all others as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.support.storage_errors import storage_errors
from leconvert.tables.footers import unreadable
from leconvert.tables.join import writer_options

_BATCH_ROWS = 1024


def replace_columns(
    source: Path,
    target: Path,
    columns: Mapping[str, npt.NDArray[Any] | pa.Array],
    *,
    row_groups: Sequence[int] | None = None,
    rows: pa.Table | None = None,
) -> None:
    """Write a table again with other values in some columns; types and metadata stay.

    Memory is bounded by a row group of the target and a batch of the source.

    Args:
        source: The table.
        target: Where it goes; must not exist.
        columns: Values of whole columns, arrays of shape (rows,), by the name of the column.
        row_groups: Rows of each row group that is written; by default those that are there.
        rows: Rows that are written in place of its own, as many.
    """
    try:
        with pq.ParquetFile(source) as file:
            schema = file.schema_arrow
            stored = file.metadata
            sizes = row_groups or [stored.row_group(n).num_rows for n in range(file.num_row_groups)]
            batches = _batches_of(file, source)
            if rows is not None:
                ordered = rows.replace_schema_metadata(schema.metadata)
                batches = iter(ordered.to_batches(_BATCH_ROWS))
            # What lists hold keeps its name, too; by default Arrow calls it ``element``.
            options = writer_options(schema, use_compliant_nested_type=False)
            with (
                storage_errors(target),
                pq.ParquetWriter(target, schema, compression="snappy", **options) as writer,
            ):
                row = 0
                for group in regrouped(batches, schema, sizes):
                    for name, values in columns.items():
                        at = schema.get_field_index(name)
                        part = values[row : row + group.num_rows]
                        kind = schema.field(at).type
                        if isinstance(part, np.ndarray):
                            array = _array_of_kind(part, kind)
                        else:
                            array = part.cast(kind)
                        group = group.set_column(at, schema.field(at), array)  # noqa: PLW2901
                    writer.write_table(group, row_group_size=max(1, group.num_rows))
                    row += group.num_rows
    except (OSError, pa.ArrowException) as error:
        raise unreadable(source, error) from error


def _batches_of(file: pq.ParquetFile, path: Path) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(_BATCH_ROWS, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error


def _array_of_kind(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    # By its buffer: Arrow's own conversion imports all that computes, which takes seconds.
    buffer = pa.py_buffer(np.ascontiguousarray(values, kind.to_pandas_dtype()))
    return pa.Array.from_buffers(kind, len(values), [None, buffer])


def regrouped(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sizes: Sequence[int]
) -> Iterator[pa.Table]:
    """Yield the rows of all batches in tables of these sizes."""
    held: list[pa.RecordBatch] = []
    rest = iter(batches)
    rows = 0
    for size in sizes:
        while rows < size and (batch := next(rest, None)) is not None:
            held.append(batch)
            rows += batch.num_rows
        table = pa.Table.from_batches(held, schema)
        yield table.slice(0, size)
        held = table.slice(size).to_batches()
        rows -= size
