"""What the end of a parquet file says, read without touching its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.errors import UnreadableSourceError

__all__ = ["DataFooter", "open_parquet", "read_data_footer", "read_data_schema"]


@dataclass(frozen=True, slots=True)
class DataFooter:
    """The counts of one parquet file, as its footer states them; no row was read.

    Attributes:
        rows: Rows of the file.
        row_groups: Row groups of the file.
        uncompressed_bytes: Sum of ``total_uncompressed_size`` over all column chunks of all row
            groups; this is what counts towards a data file's size limit.
        columns: Top-level column names, in file order.
    """

    rows: int
    row_groups: int
    uncompressed_bytes: int
    columns: tuple[str, ...]


def open_parquet(path: str | os.PathLike[str], *, buffer_bytes: int = 0) -> pq.ParquetReader:
    """Open a parquet file and parse its footer.

    Args:
        path: The file.
        buffer_bytes: Read columns page by page through a buffer of this size; 0 reads each column
            chunk in one go, which is faster where they are small.

    ``ParquetReader`` is what ``ParquetFile`` wraps: opening thousands of small files through the
    wrapper spends a third of its time in Python.

    Raises:
        UnreadableSourceError: The file is missing, truncated or no parquet file.
    """
    reader = pq.ParquetReader()
    try:
        reader.open(os.fspath(path), buffer_size=buffer_bytes, pre_buffer=False)
    except FileNotFoundError as error:
        raise UnreadableSourceError(
            f"The parquet file {os.fspath(path)} does not exist.",
            path=os.fspath(path),
            next_step="Restore the file, or leave its episode out.",
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    return reader


def read_data_footer(path: str | os.PathLike[str]) -> DataFooter:
    """Read the counts of a parquet file from its footer.

    Args:
        path: A v2.x episode file, or any other parquet file.

    Raises:
        UnreadableSourceError: The file is missing, truncated or no parquet file.
    """
    reader = open_parquet(path)
    metadata = reader.metadata
    num_columns = metadata.num_columns
    uncompressed_bytes = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(num_columns):
            uncompressed_bytes += row_group.column(column).total_uncompressed_size
    # A nested column has one leaf or more, all of which begin with its name.
    columns = tuple(dict.fromkeys(leaf[0] for leaf in reader.column_paths))
    footer = DataFooter(metadata.num_rows, metadata.num_row_groups, uncompressed_bytes, columns)
    reader.close()
    return footer


def read_data_schema(path: str | os.PathLike[str]) -> pa.Schema:
    """Read the Arrow schema of a parquet file, its metadata included.

    Raises:
        UnreadableSourceError: The file is missing, truncated or no parquet file.
    """
    reader = open_parquet(path)
    try:
        return reader.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    finally:
        reader.close()


def unreadable(path: str | os.PathLike[str], error: Exception) -> UnreadableSourceError:
    """Return the error for a parquet file that Arrow refuses."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} cannot be read: {reason}",
        path=os.fspath(path),
        next_step="Fetch or record the file again, or leave its episode out.",
    )
