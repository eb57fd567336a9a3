"""Data files: the rows of many episodes in one file, a row group an episode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.errors import InterruptedRunError, TargetError, UnreadableSourceError
from leconvert.tables.alignment import align_table
from leconvert.tables.footers import open_parquet, unreadable

__all__ = ["JoinedTable", "RowRange", "footer_digest", "join_tables"]

# Freed memory goes back to the system once this much of it has passed through, so that a process
# that joins large episodes does not keep the allocator's leftovers of all of them.
_RELEASE_AFTER_BYTES = 64 * 1024**2
_FOOTER_TAIL_BYTES = 8  # little-endian length of the footer, then the magic
_WRITE_BUFFER_BYTES = 1024**2
_IMAGE_ROWS_PER_BATCH = 8
_IMAGE_READ_BUFFER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of one episode: a whole file, or one row group of a part file.

    Attributes:
        path: A parquet file.
        rows: Rows that the episode has.
        row_group: The row group to take, or None for the whole file.
    """

    path: str
    rows: int
    row_group: int | None = None


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """What a written data file is like.

    Attributes:
        size_bytes: Size on disk.
        rows: Rows of the file.
        row_groups: Row groups of the file, one an episode.
        footer_sha256: Hex digest over the footer, its length and the closing magic. The footer
            holds every column chunk's place, sizes and statistics.
    """

    size_bytes: int
    rows: int
    row_groups: int
    footer_sha256: str


def join_tables(
    episodes: Sequence[RowRange],
    destination: str | os.PathLike[str],
    *,
    schema: pa.Schema,
    on_rows: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> JoinedTable:
    """Write the rows of ``episodes`` into one new parquet file, a row group an episode, in order.

    The bytes depend on the rows, the schema and pyarrow's version alone: joining files that this
    function wrote, row group by row group, gives the bytes of joining their sources. Nothing is
    synced to disk. Memory is bounded by one episode. Images are carried as bytes, never decoded.

    Args:
        episodes: Where the rows are.
        destination: A file that does not exist yet; its folder does.
        schema: Schema of the result, see :func:`~leconvert.tables.schemas.output_schema`. Columns
            of another type are cast where that loses nothing, see
            :func:`~leconvert.tables.alignment.align_table`.
        on_rows: Called with the number of rows after each episode.
        should_stop: Asked before each episode; True ends the work.

    Raises:
        UnreadableSourceError: An episode's file cannot be read, has another number of rows, or
            columns that do not fit the schema.
        TargetError: ``destination`` exists.
        InterruptedRunError: ``should_stop`` said so.
        OSError: The file system failed while writing.

    No partial file is left behind by any of these.
    """
    target = Path(destination)
    try:
        with target.open("xb"):
            pass
    except FileExistsError as error:
        raise TargetError(
            f"The data file {target} exists already and is never replaced.",
            path=str(target),
            next_step="Remove it, or write elsewhere.",
        ) from error
    try:
        rows = _write(episodes, target, schema, on_rows, should_stop)
    except BaseException:
        # Half a file is of no use to anyone, and its name must be free for the next try.
        target.unlink(missing_ok=True)
        raise
    size_bytes, digest = footer_digest(target)
    return JoinedTable(size_bytes, rows, len(episodes), digest)


def footer_digest(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Return the size in bytes of a parquet file and the SHA-256 of its footer.

    Raises:
        UnreadableSourceError: The file does not end like a parquet file.
    """
    with Path(path).open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - _FOOTER_TAIL_BYTES))
        tail = file.read()
        footer_bytes = int.from_bytes(tail[:4], "little") + _FOOTER_TAIL_BYTES
        if tail[4:] != b"PAR1" or footer_bytes > size_bytes:
            raise UnreadableSourceError(
                f"The file {os.fspath(path)} does not end like a parquet file.",
                path=os.fspath(path),
                next_step="Write or fetch the file again.",
            )
        file.seek(size_bytes - footer_bytes)
        return size_bytes, hashlib.sha256(file.read()).hexdigest()


def _write(
    episodes: Sequence[RowRange],
    target: Path,
    schema: pa.Schema,
    on_rows: Callable[[int], None] | None,
    should_stop: Callable[[], bool] | None,
) -> int:
    pool = pa.default_memory_pool()
    total_rows = 0
    passed_bytes = 0
    with (
        pa.OSFile(str(target), "wb") as file,
        pa.BufferedOutputStream(file, _WRITE_BUFFER_BYTES) as sink,
        pq.ParquetWriter(sink, schema, compression="snappy", **_writer_options(schema)) as writer,
    ):
        for episode, table in _tables(episodes, target, schema, should_stop):
            # One row group however long the episode is: Arrow would cut after 2^20 rows.
            writer.write_table(table, row_group_size=max(1, episode.rows))
            total_rows += episode.rows
            passed_bytes += table.get_total_buffer_size()
            # Before the next one is read: otherwise two episodes are in memory.
            del table
            if passed_bytes >= _RELEASE_AFTER_BYTES:
                passed_bytes = 0
                pool.release_unused()
            if on_rows is not None:
                on_rows(episode.rows)
    return total_rows


def _writer_options(schema: pa.Schema) -> dict[str, Any]:
    """Return how the columns are encoded; the schema alone decides.

    A dictionary of encoded images helps nobody, and Arrow looks at a page's size only after each
    batch of rows: with its 1,024 rows a batch an episode's images would be one page, which is in
    memory several times over while it is written and whenever it is read.
    """
    if not any(map(_holds_bytes, schema.types)):
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


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds byte strings such as encoded images, at any depth."""
    if pa.types.is_nested(kind):
        return any(_holds_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _tables(
    episodes: Sequence[RowRange],
    target: Path,
    schema: pa.Schema,
    should_stop: Callable[[], bool] | None,
) -> Iterator[tuple[RowRange, pa.Table]]:
    """Yield each episode with its rows, holding one file open and one episode in memory."""
    buffer_bytes = _IMAGE_READ_BUFFER_BYTES if any(map(_holds_bytes, schema.types)) else 0
    reader: pq.ParquetReader | None = None
    open_path: str | None = None
    try:
        for episode in episodes:
            if should_stop is not None and should_stop():
                raise InterruptedRunError(
                    f"Stopped while writing {target}.",
                    path=str(target),
                    next_step="Run the same command again; it goes on from here.",
                )
            # A part file serves many episodes in a row, and its footer is long.
            if reader is None or episode.path != open_path:
                if reader is not None:
                    reader.close()
                reader = open_parquet(episode.path, buffer_bytes=buffer_bytes)
                open_path = episode.path
            yield episode, _read(reader, episode, schema)
    finally:
        if reader is not None:
            reader.close()


def _read(reader: pq.ParquetReader, episode: RowRange, schema: pa.Schema) -> pa.Table:
    metadata = reader.metadata
    if episode.row_group is None:
        rows = metadata.num_rows
    elif 0 <= episode.row_group < metadata.num_row_groups:
        rows = metadata.row_group(episode.row_group).num_rows
    else:
        raise UnreadableSourceError(
            f"The parquet file {episode.path} has {metadata.num_row_groups} row groups and no "
            f"row group {episode.row_group}.",
            path=episode.path,
        )
    if rows != episode.rows:
        raise UnreadableSourceError(
            f"The episode in {episode.path} has {rows} rows where {episode.rows} are expected.",
            path=episode.path,
            next_step="Plan again if the file changed, or repair the episode's length.",
        )
    try:
        if episode.row_group is None:
            table = reader.read_all(use_threads=False)
        else:
            table = reader.read_row_group(episode.row_group, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(episode.path, error) from error
    # Pages are cut at chunk boundaries, so chunks would show in the bytes.
    return align_table(table, schema, path=episode.path).combine_chunks()
