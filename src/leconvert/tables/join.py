"""Data files: the rows of many episodes in one file, with a row group for each episode.

If Arrow wrote an episode's file with its default settings, its pages are copied unchanged and only
the footer is new. Other episodes are decoded and encoded; one file may hold both kinds. A repair
changes rows of an episode on the way. `replace_columns` rewrites one file with new values in some
columns.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.model.repairs import DEFAULT_COLUMNS, Repairs
from leconvert.model.values import IntArray, Slice
from leconvert.support.errors import InterruptedRunError, TargetError, UnreadableSourceError
from leconvert.support.file_calls import full_sync
from leconvert.support.storage_errors import storage_errors
from leconvert.tables.arrow import (
    int64_array,
    int64_values,
    is_binary,
    is_list,
    list_length,
    list_values,
)
from leconvert.tables.data_file import OpenedTable, open_parquet, unreadable
from leconvert.tables.footers import FOOTERS, MAGIC, TRAILER_BYTES
from leconvert.tables.parquet_copy import RowGroupEntries, SequentialOutput, TableCopier
from leconvert.tables.schemas import align_table


def repaired_schema(schema: pa.Schema, repairs: Repairs) -> pa.Schema:
    """Return the schema of rows after a repair: without dropped columns, with added ones last.

    The columns may have their new names already.
    """
    computed = set(repairs.columns_computed(trimmed=bool(repairs.trimmed_episodes)))
    if repairs.tasks_from is not None:
        computed.add("task_index")
    return _schema_after(schema, repairs, computed)


def _schema_after(schema: pa.Schema, repairs: Repairs, computed: Collection[str]) -> pa.Schema:
    kept: list[pa.Field] = []
    for stored in schema:
        field = stored.with_name(repairs.renamed(stored.name))
        if field.name in computed:
            kept.append(pa.field(field.name, _computed_type(field.name, field.type)))
        elif field.name in repairs.cast_columns:
            kept.append(pa.field(field.name, pa.int64()))
        elif field.name in repairs.unwrapped_columns and is_list(field.type):
            kept.append(pa.field(field.name, field.type.value_type))
        elif field.name not in repairs.dropped_features:
            kept.append(field)
    missing = {*repairs.added_columns, *computed} - {field.name for field in kept}
    added = [
        pa.field(name, _computed_type(name, None)) for name in DEFAULT_COLUMNS if name in missing
    ]
    return pa.schema([*kept, *added], metadata=schema.metadata)


def frame_times(length: int, fps: Fraction, kind: pa.DataType) -> pa.Array:
    """Return the timestamps of an episode's frames in seconds: frame / fps, shape (length,).

    Each is the exact quotient rounded once to float64 and then, for a float32 column, to float32.
    LeRobot computes them in the same way when it records.
    """
    # Both factors are whole numbers far below 2**53, so only the division rounds.
    times = np.arange(length, dtype=np.float64) * fps.denominator / fps.numerator
    return pa.Array.from_buffers(pa.float64(), length, [None, pa.py_buffer(times)]).cast(
        kind, safe=False
    )


class RowRepair(NamedTuple):
    """The changes to the rows of one episode.

    Attributes:
        repairs: The changes of the conversion.
        fps: Frames a second.
        position: The episode's position in the result, which is its index there.
        first_index: Position of its first frame in the result.
        task: Result index of the task of all its rows; None if rows keep their own.
        is_trimmed: Whether the rows are only some of the episode's rows in the source.
    """

    repairs: Repairs
    fps: Fraction
    position: int
    first_index: int
    task: int | None = None
    is_trimmed: bool = False

    def __call__(self, table: pa.Table, *, path: str) -> pa.Table:
        """Return the repaired rows.

        Args:
            table: The rows of the episode.
            path: Their file, for errors.

        Raises:
            UnreadableSourceError: A list has several values, or a row a task that is not listed.
        """
        repairs, columns = self.repairs, []
        computed = set(repairs.columns_computed(trimmed=self.is_trimmed))
        if self.task is not None:
            computed.add("task_index")
        mapped = {*repairs.task_columns}
        if repairs.task_map is not None:
            mapped.add("task_index")
        stored = dict(zip(map(repairs.renamed, table.column_names), table.columns, strict=True))
        schema = _schema_after(table.schema, repairs, computed)
        for name, kind in zip(schema.names, schema.types, strict=True):
            if name in computed:
                columns.append(self._computed(name, table.num_rows, kind))
                continue
            values = stored[name]
            # Some files of a dataset may hold the value itself.
            if name in repairs.unwrapped_columns and is_list(values.type):
                values = pa.chunked_array([_unwrapped(values, name, path)])
            if name in repairs.cast_columns:
                # The scan refuses values that are not whole numbers, and so does Arrow.
                values = values.cast(pa.int64())
            columns.append(self._mapped(values, name, path) if name in mapped else values)
        return pa.Table.from_arrays(columns, schema=schema)

    def _computed(self, name: str, length: int, kind: pa.DataType) -> pa.Array:
        if name == "timestamp":
            return frame_times(length, self.fps, kind)
        if name in ("episode_index", "task_index"):
            task = self.repairs.added_task if self.task is None else self.task
            value = self.position if name == "episode_index" else task
            numbers = np.full(length, value, dtype=np.int64)
        else:
            first = self.first_index if name == "index" else 0
            numbers = np.arange(first, first + length, dtype=np.int64)
        return int64_array(numbers).cast(kind)

    def _mapped(self, column: pa.ChunkedArray, name: str, path: str) -> pa.Array:
        """Return the result's indices for a column of the source's indices of tasks."""
        task_map = self.repairs.task_map or {}
        values = int64_values(column.cast(pa.int64()))
        distinct, inverse = np.unique(values, return_inverse=True)
        unknown = [value for value in distinct.tolist() if value not in task_map]
        if unknown:
            raise UnreadableSourceError(
                f"{path} has rows with {name} {unknown[0]}, which tasks.jsonl does not list.",
                path=path,
                next_step="Add the task, or leave the episode out with --on-bad-episode drop.",
            )
        mapped = np.array([task_map[value] for value in distinct.tolist()], dtype=np.int64)
        return int64_array(mapped[inverse]).cast(column.type)


def _unwrapped(column: pa.ChunkedArray, name: str, path: str) -> pa.Array:
    """Return the values of a column of lists of one value; a row without a list gets null."""
    array = column.combine_chunks()
    there = array.drop_null() if array.null_count else array
    try:
        if len(there) and list_length(there) != 1:
            raise ValueError("its lists have several entries")
    except ValueError as error:
        raise UnreadableSourceError(
            f"Column {name} of {path} cannot be unwrapped: {error}.",
            path=path,
            next_step="Leave the episode out with --on-bad-episode drop, or the feature with "
            f"--drop-feature {shlex.quote(name)}.",
        ) from error
    if not array.null_count:
        return list_values(array)
    import pyarrow.compute as pc  # costs 50 ms, and only rows without a list need it

    return pc.list_element(array, 0)


def _computed_type(name: str, stored: pa.DataType | None) -> pa.DataType:
    """Return the type of a computed column: the stored one if it is wide enough, else LeRobot's."""
    holds = pa.types.is_floating if name == "timestamp" else pa.types.is_integer
    if stored is not None and holds(stored) and stored.bit_width >= 32:
        return stored
    return pa.type_for_alias(DEFAULT_COLUMNS[name])


_WRITE_BUFFER_BYTES = 1024**2
_IMAGE_ROWS_PER_BATCH = 8
# After this many bytes, freed memory is returned to the system. Otherwise a process that joins
# large episodes would keep the allocator's leftovers of all of them.
_RELEASE_AFTER_BYTES = 64 * 1024**2
_IMAGE_READ_BUFFER_BYTES = 64 * 1024
# Rows that are decoded at a time if a row group holds several episodes.
_ROWS_PER_BATCH = 1024


class RowGroupEncoder:
    """Lets Arrow encode row groups and passes on only their bytes.

    The bytes of a row group do not depend on its offset or its neighbours. Memory holds one table
    and a buffer. `finish` returns the footer that Arrow writes.

    Args:
        schema: Schema of the tables.
        put: Takes the bytes of the row groups one after another.

    Attributes:
        OFFSET_BYTES: Offsets in the footer exceed the distance from the first byte that was put by
            this number.
    """

    OFFSET_BYTES = len(MAGIC)

    def __init__(self, schema: pa.Schema, put: Callable[[bytes], None]) -> None:
        self._sink = _Sink(put)
        self._buffered = pa.BufferedOutputStream(
            pa.PythonFile(self._sink, mode="w"), _WRITE_BUFFER_BYTES
        )
        self._writer = pq.ParquetWriter(
            self._buffered, schema, compression="snappy", **writer_options(schema)
        )

    def write(self, table: pa.Table) -> None:
        """Encode a table as one row group."""
        # One row group for any length of an episode: Arrow would cut after 2^20 rows.
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self) -> bytes:
        """Put the rest of the row groups and return their footer."""
        self._buffered.flush()
        footer = bytearray()
        self._sink.put = footer.extend
        self._writer.close()
        self._buffered.flush()
        return bytes(footer[:-TRAILER_BYTES])

    def abandon(self) -> None:
        """Put nothing more, even if Arrow writes when it releases its writer."""
        self._sink.put = _forget


class _Sink(io.RawIOBase):
    """The file that Arrow writes to; it leaves out the magic at the beginning."""

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
    """Discard bytes."""


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a column holds byte strings such as encoded images, at any depth."""
    if pa.types.is_nested(kind):
        return any(holds_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return is_binary(kind)


def writer_options(schema: pa.Schema, **names: bool) -> dict[str, Any]:
    """Return the options for encoding the columns; they depend on the schema alone.

    A dictionary of encoded images has no use. Arrow checks a page's size only after each batch of
    rows. With its default of 1,024 rows a batch, an episode's images would be one page, which is in
    memory several times over while it is written and whenever it is read.
    """
    if not any(map(holds_bytes, schema.types)):
        return {"use_dictionary": True, **names}
    # Arrow knows the names of the leaves of nested columns.
    sample = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sample, **names)
    leaves = pq.read_metadata(pa.BufferReader(sample.getvalue())).schema
    columns = [leaves.column(number) for number in range(len(leaves))]
    small = [
        column.path
        for column in columns
        if column.physical_type != "BYTE_ARRAY" or column.logical_type.type != "NONE"
    ]
    return {"use_dictionary": small, "write_batch_size": _IMAGE_ROWS_PER_BATCH, **names}


class LastTable:
    """The open file from which a join took rows last, so that the next join need not open it.

    Use it for consecutive joins with one schema, while the files do not change. It holds at most
    one file until it is closed.

    Attributes:
        name: The name of the file, by which a slice tells files apart.
        source: The file; None if none is open.
    """

    def __init__(self) -> None:
        self.name = ""
        self.source: _Source | None = None
        self._copier: TableCopier | None = None

    def close(self) -> None:
        """Close the file, and forget what was learned from footers."""
        self._copier = None
        self.close_file()

    def close_file(self) -> None:
        """Close the file."""
        if self.source is not None:
            self.source.close()
            self.source = None

    def copier(self, schema: pa.Schema) -> TableCopier:
        """Return the copier of row groups; all joins use what it learned from footers."""
        if self._copier is None:
            self._copier = TableCopier(schema)
        return self._copier


class JoinedTable(NamedTuple):
    """Figures of a written data file.

    Attributes:
        size_bytes: Size on disk.
        rows: Rows of the file.
        row_groups: Row groups of the file, one per episode.
        copied_row_groups: Row groups that are copies of the source's pages.
    """

    size_bytes: int
    rows: int
    row_groups: int
    copied_row_groups: int = 0


def join_tables(
    episodes: Iterable[Slice],
    destination: str | os.PathLike[str],
    *,
    schema: pa.Schema,
    stored: Callable[[int], str] | None = None,
    repair: Callable[[int], RowRepair | None] | None = None,
    last_table: LastTable | None = None,
    on_table: Callable[[pa.Table], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sync: bool = False,
) -> JoinedTable:
    """Write the rows of ``episodes`` into one new parquet file, a row group an episode, in order.

    The bytes depend only on the sources, the schema and the versions of leconvert and pyarrow.
    Joining files that this function wrote, episode by episode, gives the same bytes as joining
    their sources. Images are carried as bytes, never decoded.

    A row group is copied if it needs no repair, if it holds all rows of the episode and no others,
    if Arrow wrote it with the schema's columns and types, and if it is compressed with Snappy and
    has statistics throughout. Its dictionaries, page lengths and exactness of statistics are then
    those of the source. The contents of the pages are not checked, but their headers are: see
    :func:`~leconvert.tables.parquet_copy.check_pages`. All other episodes are decoded and encoded
    again with Snappy, dictionaries and statistics. Memory is bounded by one such episode.

    Episodes that follow each other in one file are read in one pass. An episode that comes after a
    later one in the same row group makes that row group be read again.

    Args:
        episodes: The rows of each episode.
        destination: The new file; must not exist.
        schema: Schema of the new file.
        stored: Returns the path of an episode's file, given the episode's rank in ``episodes``. The
            path is valid until the next call. The paths in ``episodes`` then only tell files apart.
        repair: Returns the repair of an episode's rows, given its rank; None for no repair.
        last_table: The file that the previous join left open; this join leaves one for the next.
        on_table: Called with the result's rows of each episode; they are then read even if their
            pages are copied.
        should_stop: Called before each episode; True ends the work.
        sync: Whether to sync the file to disk.

    Raises:
        TargetError: The destination exists.
        UnreadableSourceError: A file cannot be read, or lacks rows.
        InterruptedRunError: ``should_stop`` returned true.

    After an error no partial file is left behind.
    """
    target = os.fspath(destination)
    try:
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError as error:
        raise TargetError(
            f"The data file {target} exists already. It is never replaced.",
            path=target,
            next_step="Write elsewhere.",
        ) from error
    try:
        with _Join(descriptor, target, schema, on_table, last_table) as join:
            for place, episode in enumerate(episodes):
                if should_stop is not None and should_stop():
                    raise InterruptedRunError(
                        f"Stopped while writing {target}.",
                        path=target,
                        next_step="Run the same command again. It continues from here.",
                    )
                join.add(
                    episode,
                    None if stored is None else partial(stored, place),
                    None if repair is None else repair(place),
                )
            joined = join.finish()
            if sync:
                full_sync(descriptor)
            return joined
    except BaseException:
        # Half a file is useless, and its name must be free for the next attempt.
        Path(target).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def read_rows(path: str | os.PathLike[str], schema: pa.Schema) -> pa.Table:
    """Return the rows of one episode's file as `join_tables` would write them.

    Raises:
        UnreadableSourceError: The file cannot be read, or does not fit the schema.
    """
    name = os.fspath(path)
    try:
        with pq.ParquetFile(name) as file:
            table = file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(name, error) from error
    return align_table(table, schema, path=name)


def read_columns(path: str | os.PathLike[str], names: Collection[str]) -> Iterator[pa.Table]:
    """Yield some columns of a file, in batches of rows."""
    name = os.fspath(path)
    try:
        with pq.ParquetFile(name) as file:
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=list(names), use_threads=False):
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise unreadable(name, error) from error


class _Join:
    """A file that is being written, episode by episode.

    Memory holds the source file used last, one episode while it is decoded, and the entries of the
    footer.
    """

    def __init__(
        self,
        descriptor: int,
        path: str,
        schema: pa.Schema,
        on_table: Callable[[pa.Table], None] | None,
        last: LastTable | None,
    ) -> None:
        self._schema = schema
        self._on_table = on_table
        # The open file may serve many episodes in a row, and its footer is long then.
        self._last = last or LastTable()
        self._is_kept = last is not None
        self._copier = self._last.copier(schema)
        self._output = SequentialOutput(descriptor, path)
        self._output.append(MAGIC)
        self._entries = RowGroupEntries()
        self._rows = 0
        self._copied = 0
        self._encoder: RowGroupEncoder | None = None
        self._encoder_start = 0
        self._passed_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None or not self._is_kept:
            self._last.close_file()
        if self._encoder is not None:
            self._encoder.abandon()

    def add(
        self, episode: Slice, where: Callable[[], str] | None, repair: RowRepair | None
    ) -> None:
        """Append one episode; ``where`` returns the path of a file to open."""
        last = self._last
        if last.source is None or last.name != episode.path:
            # Close first: to fetch the next file, the open one may have to be removed.
            last.close_file()
            path = episode.path if where is None else where()
            last.source, last.name = _Source(path, self._schema), episode.path
        source = last.source
        first, rows = episode.first, episode.frames
        if rows is None:
            rows = source.num_rows - (first or 0)
        is_copied = repair is None and self._copy(source, first, rows)
        if not is_copied or self._on_table is not None:
            self._decode(source, first, rows, repair, encode=not is_copied)
        self._rows += rows
        if first is None:
            last.close_file()

    def finish(self) -> JoinedTable:
        """Write the footer and return the figures of the file."""
        self._end_encoding()
        for piece in self._copier.footer(self._entries, self._rows):
            self._output.append(piece)
        self._output.flush()
        return JoinedTable(
            self._output.position,
            self._rows,
            self._entries.count,
            self._copied,
        )

    def _copy(self, source: _Source, first: int | None, rows: int) -> bool:
        """Copy an episode's row group; return False if it cannot be copied."""
        group = None
        if first is not None:
            group = source.row_group_of(first, rows)
            if group is None:  # the episode shares a row group, or has several
                return False
        plan = self._copier.plan(source.opened, source.footer, group, rows)
        if isinstance(plan, str):
            return False
        self._end_encoding()
        position = self._output.position
        self._entries.append(self._copier.row_group(plan.row_group, plan.chunks, position))
        for start, size in plan.ranges:
            self._output.copy(source.opened, start, size)
        self._copied += 1
        return True

    def _decode(
        self,
        source: _Source,
        first: int | None,
        rows: int,
        repair: RowRepair | None,
        *,
        encode: bool,
    ) -> None:
        """Read an episode's rows, encode them if ``encode``, and pass them to ``on_table``."""
        table = source.read(first, rows)
        if repair is not None:
            table = repair(table, path=source.path)
        # Arrow cuts pages at chunk boundaries, so chunks would change the bytes.
        table = align_table(table, self._schema, path=source.path).combine_chunks()
        if encode:
            if self._encoder is None:
                self._encoder = RowGroupEncoder(self._schema, self._output.append)
                self._encoder_start = self._output.position
            self._encoder.write(table)
        if self._on_table is not None:
            self._on_table(table)
        self._passed_bytes += table.get_total_buffer_size()
        # Free it before the next is read; otherwise two episodes are in memory.
        del table
        if self._passed_bytes >= _RELEASE_AFTER_BYTES:
            self._passed_bytes = 0
            pa.default_memory_pool().release_unused()

    def _end_encoding(self) -> None:
        if self._encoder is None:
            return
        footer = FOOTERS.read(self._encoder.finish())
        self._encoder = None
        for group in footer.row_groups:
            # Arrow wrote the row groups one after another, as they are here.
            chunks = group.chunks()
            start = self._encoder_start + chunks[0].start - RowGroupEncoder.OFFSET_BYTES
            self._entries.append(self._copier.row_group(group, chunks, start))


class _Source:
    """One file that rows are taken from.

    Memory holds its footer, and decoded rows of a row group that belong to the next episode.

    Attributes:
        path: Path of the file.
        opened: Its bytes.
        footer: Its footer.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        self.opened = OpenedTable(path)
        self._schema = schema
        self._buffer_bytes = 0
        self._reader: pq.ParquetReader | None = None
        # Decoded rows of a row group, batch by batch, and the file's row number of the next one.
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._next_row = 0
        self._last_row = 0
        try:
            self.footer = self.opened.parsed_footer()
        except BaseException:
            self.opened.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._batches, self._rest = iter(()), None
        self.opened.close()
        if self._reader is not None:
            self._reader.close()

    def row_group_of(self, first: int, rows: int) -> int | None:
        """Return the row group that holds exactly these rows; None if there is none."""
        starts = self._starts
        group = int(np.searchsorted(starts, first, side="right")) - 1
        # An earlier row group that begins with the same row is empty.
        is_one = rows > 0 and starts[group : group + 2].tolist() == [first, first + rows]
        return group if is_one else None

    @cached_property
    def _starts(self) -> IntArray:
        """First row of each row group and, last, the number of rows; shape (G + 1,)."""
        return np.concatenate(([0], np.cumsum(self.footer.rows, dtype=np.int64)))

    @property
    def num_rows(self) -> int:
        """Number of rows of the file."""
        return int(self._starts[-1])

    def read(self, first: int | None, rows: int) -> pa.Table:
        """Decode the rows of an episode: from ``first`` on, or the whole file if None.

        Raises:
            UnreadableSourceError: The file has other rows, or cannot be read.
        """
        if self._reader is None:
            if any(map(holds_bytes, self._schema.types)):
                self._buffer_bytes = _IMAGE_READ_BUFFER_BYTES
            self._reader = open_parquet(self.path, buffer_bytes=self._buffer_bytes)
        stored, begin = self._reader.metadata.num_rows, first or 0
        if not 0 <= begin <= begin + rows <= stored or (first is None and stored != rows):
            place = "" if first is None else f" from row {first} on"
            raise UnreadableSourceError(
                f"The parquet file {self.path} has {stored} rows. The conversion needs {rows} "
                f"rows{place}.",
                path=self.path,
                next_step="If the file changed, plan again with --restart. Otherwise correct "
                "the length of the episode.",
            )
        try:
            if first is None:
                return self._reader.read_all(use_threads=False)
            return self._read_range(self._reader, first, rows)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error

    def _read_range(self, reader: pq.ParquetReader, first: int, rows: int) -> pa.Table:
        """Decode some rows: whole row groups at once, others batch by batch."""
        starts = self._starts
        begin, end = np.searchsorted(starts, (first, first + rows), side="right").tolist()
        begin -= 1
        if not rows or (starts[begin] == first and starts[end - 1] == first + rows):
            groups = range(begin, end - 1) if rows else ()
            return reader.read_row_groups(list(groups), use_threads=False)
        pieces: list[pa.RecordBatch] = []
        if not self._next_row <= first < self._last_row:
            self._begin_batches(reader, begin)
        while rows:
            if self._rest is None:
                if self._next_row == self._last_row:
                    begin = int(np.searchsorted(starts, self._next_row, side="right")) - 1
                    self._begin_batches(reader, begin)
                self._rest = next(self._batches, None)
                if self._rest is None:
                    raise pa.ArrowInvalid(f"it ends before row {self._next_row}")
            skipped = min(first - self._next_row, len(self._rest))
            taken = min(rows, len(self._rest) - skipped)
            if taken:
                pieces.append(self._rest.slice(skipped, taken))
            used = skipped + taken
            self._rest = self._rest.slice(used) if used < len(self._rest) else None
            self._next_row += used
            first += taken
            rows -= taken
        return pa.Table.from_batches(pieces)

    def _begin_batches(self, reader: pq.ParquetReader, group: int) -> None:
        starts = self._starts
        batch_rows = _IMAGE_ROWS_PER_BATCH if self._buffer_bytes else _ROWS_PER_BATCH
        self._batches = reader.iter_batches(batch_rows, row_groups=[group], use_threads=False)
        self._rest = None
        self._next_row, self._last_row = int(starts[group]), int(starts[group + 1])


def replace_columns(
    source: Path,
    target: Path,
    columns: Mapping[str, npt.NDArray[Any] | pa.Array],
    *,
    row_groups: Sequence[int] | None = None,
    rows: pa.Table | None = None,
) -> None:
    """Rewrite a table with new values in some columns; types and metadata stay.

    Memory is bounded by a row group of the target and a batch of the source.

    Args:
        source: The table.
        target: The new file; must not exist.
        columns: Values of whole columns, arrays of shape (rows,), by the name of the column.
        row_groups: Rows of each row group of the new file; those of the source by default.
        rows: Rows to write in place of the source's, as many.

    Raises:
        UnreadableSourceError: The source cannot be read.
        StorageError: The target cannot be written.
    """
    try:
        with pq.ParquetFile(source) as file:
            schema = file.schema_arrow
            stored = file.metadata
            sizes = row_groups or [stored.row_group(n).num_rows for n in range(file.num_row_groups)]
            batches = _batches_of(file, source)
            if rows is not None:
                ordered = rows.replace_schema_metadata(schema.metadata)
                batches = iter(ordered.to_batches(_ROWS_PER_BATCH))
            # Keep the name of list elements; by default Arrow renames it to ``element``.
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
        yield from file.iter_batches(_ROWS_PER_BATCH, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error


def _array_of_kind(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    # From a buffer: Arrow's own conversion imports its compute functions, which takes seconds.
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
