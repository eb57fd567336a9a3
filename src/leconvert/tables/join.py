"""Data files: the rows of many episodes in one file, a row group an episode.

Where an episode's file is what Arrow writes by default, its pages are copied as they are and only
the footer is new. Other episodes are decoded and encoded; one file may hold both kinds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.errors import InterruptedRunError, TargetError, UnreadableSourceError
from leconvert.tables.alignment import align_table
from leconvert.tables.encode import RowGroupEncoder, holds_bytes
from leconvert.tables.file_footers import FileFooter
from leconvert.tables.footers import open_parquet
from leconvert.tables.opened import MAGIC, OpenedTable, unreadable
from leconvert.tables.output import SequentialOutput
from leconvert.tables.rewrite import RowRepair
from leconvert.tables.verbatim import TableCopier

__all__ = ["JoinedTable", "RowRange", "footer_digest", "join_tables"]

# Freed memory goes back to the system once this much of it has passed through, so that a process
# that joins large episodes does not keep the allocator's leftovers of all of them.
_RELEASE_AFTER_BYTES = 64 * 1024**2
_FOOTER_TAIL_BYTES = 8  # little-endian length of the footer, then the magic
_IMAGE_READ_BUFFER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of one episode: a whole file, or one row group of a part file.

    Attributes:
        path: A parquet file.
        rows: Rows that the episode has.
        row_group: The row group to take, or None for the whole file.
        repair: What becomes of the rows, or None to take them as they are.
    """

    path: str
    rows: int
    row_group: int | None = None
    repair: RowRepair | None = None


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """What a written data file is like.

    Attributes:
        size_bytes: Size on disk.
        rows: Rows of the file.
        row_groups: Row groups of the file, one an episode.
        footer_sha256: Hex digest over the footer, its length and the closing magic. The footer
            holds every column chunk's place, sizes and statistics.
        copied_row_groups: How many of them are copies of the source's pages.
        reencoded: Path and reason of each of the others.
    """

    size_bytes: int
    rows: int
    row_groups: int
    footer_sha256: str
    copied_row_groups: int = 0
    reencoded: tuple[tuple[str, str], ...] = ()


def join_tables(
    episodes: Iterable[RowRange],
    destination: str | os.PathLike[str],
    *,
    schema: pa.Schema,
    on_rows: Callable[[int], None] | None = None,
    on_table: Callable[[pa.Table], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> JoinedTable:
    """Write the rows of ``episodes`` into one new parquet file, a row group an episode, in order.

    The bytes depend on the sources, the schema and the versions of this program and pyarrow alone:
    joining files that this function wrote, row group by row group, gives the bytes of joining their
    sources. Nothing is synced to disk. Images are carried as bytes, never decoded.

    A row group is copied if it needs no repair, is an episode's only one, was written by Arrow with
    the schema's columns and types, and is compressed with Snappy and has statistics throughout.
    Whether it has dictionaries, how long its pages are and how exact its statistics is then as in
    the source. What
    the pages hold is not looked at, but their headers are: see
    :func:`~leconvert.tables.pages.check_pages`. All other episodes are decoded and encoded again
    with Snappy, dictionaries and statistics. Memory is bounded by one such episode.

    Args:
        episodes: Where the rows are. The next is asked for when the one before is written, and a
            whole file of it closed.
        destination: A file that does not exist yet; its folder does.
        schema: Schema of the result, see :func:`~leconvert.tables.schemas.output_schema`. Columns
            of another type are cast where that loses nothing, see
            :func:`~leconvert.tables.alignment.align_table`.
        on_rows: Called with the number of rows after each episode.
        on_table: Called with the rows of each episode as they are in the result; they are then
            read even where their pages are copied.
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
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError as error:
        raise TargetError(
            f"The data file {target} exists already and is never replaced.",
            path=str(target),
            next_step="Remove it, or write elsewhere.",
        ) from error
    try:
        with _Join(descriptor, target, schema, on_table) as join:
            for episode in episodes:
                if should_stop is not None and should_stop():
                    raise InterruptedRunError(
                        f"Stopped while writing {target}.",
                        path=str(target),
                        next_step="Run the same command again; it goes on from here.",
                    )
                join.add(episode)
                if on_rows is not None:
                    on_rows(episode.rows)
            return join.finish()
    except BaseException:
        # Half a file is of no use to anyone, and its name must be free for the next try.
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


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


class _Join:
    """A file that is being written, episode by episode.

    Memory holds the source file that was last used, one episode while it is decoded, and the
    entries of the footer.
    """

    def __init__(
        self,
        descriptor: int,
        target: Path,
        schema: pa.Schema,
        on_table: Callable[[pa.Table], None] | None,
    ) -> None:
        self._target = target
        self._schema = schema
        self._on_table = on_table
        self._copier = TableCopier(schema)
        self._output = SequentialOutput(descriptor)
        self._output.append(MAGIC)
        self._entries: list[bytes] = []
        self._rows = 0
        self._copied = 0
        self._reencoded: list[tuple[str, str]] = []
        # The file that is open, and its footer or why it is not for copying. A part file serves
        # many episodes in a row, and its footer is long.
        self._source: OpenedTable | None = None
        self._footer: FileFooter | str = ""
        self._reader: pq.ParquetReader | None = None
        self._encoder: RowGroupEncoder | None = None
        self._encoder_start = 0
        self._passed_bytes = 0
        self._buffer_bytes = _IMAGE_READ_BUFFER_BYTES if any(map(holds_bytes, schema.types)) else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_source()
        if self._encoder is not None:
            self._encoder.abandon()

    def add(self, episode: RowRange) -> None:
        """Append one episode."""
        source = self._source
        if source is None or source.path != episode.path:
            self._close_source()
            source = self._source = OpenedTable(episode.path)
            self._footer = self._copier.footer_of(source)
        if episode.repair is not None:
            reason: str | None = "its rows are repaired"
        elif isinstance(self._footer, str):
            reason = self._footer
        else:
            reason = self._copy(source, self._footer, episode)
        if reason is not None:
            self._reencoded.append((episode.path, reason))
        if reason is not None or self._on_table is not None:
            self._decode(episode, encode=reason is not None)
        self._rows += episode.rows
        if episode.row_group is None:
            self._close_source()  # it may be a file that goes before the next one comes

    def finish(self) -> JoinedTable:
        """Write the footer."""
        self._end_encoding()
        footer = self._copier.writer.footer(self._entries, self._rows)
        self._output.append(footer)
        self._output.flush()
        return JoinedTable(
            self._output.position,
            self._rows,
            len(self._entries),
            hashlib.sha256(footer).hexdigest(),
            self._copied,
            tuple(self._reencoded),
        )

    def _copy(self, source: OpenedTable, footer: FileFooter, episode: RowRange) -> str | None:
        """Copy an episode's row group, or say why that cannot be."""
        plan = self._copier.plan(source, footer, episode.row_group, episode.rows)
        if isinstance(plan, str):
            return plan
        self._end_encoding()
        self._entries.append(self._copier.writer.row_group(plan.row_group, self._output.position))
        for start, size in plan.ranges:
            self._output.copy(source, start, size)
        self._copied += 1
        return None

    def _decode(self, episode: RowRange, *, encode: bool) -> None:
        """Read an episode's rows; show them to whoever asked, and encode them where wanted."""
        if self._reader is None:
            self._reader = open_parquet(episode.path, buffer_bytes=self._buffer_bytes)
        table = _read(self._reader, episode, self._schema)
        if encode:
            if self._encoder is None:
                self._encoder = RowGroupEncoder(self._schema, self._output.append)
                self._encoder_start = self._output.position
            self._encoder.write(table)
        if self._on_table is not None:
            self._on_table(table)
        self._passed_bytes += table.get_total_buffer_size()
        # Before the next one is read: otherwise two episodes are in memory.
        del table
        if self._passed_bytes >= _RELEASE_AFTER_BYTES:
            self._passed_bytes = 0
            pa.default_memory_pool().release_unused()

    def _end_encoding(self) -> None:
        if self._encoder is None:
            return
        footer = self._copier.footers.read(self._encoder.finish())
        self._encoder = None
        for group in footer.row_groups:
            # Arrow put the row groups one behind the other, as they are here.
            start = self._encoder_start + group.chunks[0].start - RowGroupEncoder.OFFSET_BYTES
            self._entries.append(self._copier.writer.row_group(group, start))

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None


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
    if episode.repair is not None:
        table = episode.repair(table, path=episode.path)
    # Pages are cut at chunk boundaries, so chunks would show in the bytes.
    return align_table(table, schema, path=episode.path).combine_chunks()
