"""Rows of episodes out of data files, as arrays of the types that LeRobot gives them.

Where a row group holds one episode, that row group is read and nothing else. Where it holds several
(LeRobot's converter writes such files), it is read whole, the last few are kept, and an episode
gets a copy of its rows.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.loading.metadata import DatasetMeta
from leconvert.model.values import IntArray
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.text import GET_AGAIN
from leconvert.tables.arrow import is_number, stored_numbers
from leconvert.transfer.files import Files, OpenFile

Array = npt.NDArray[Any]

_OPEN_FILES = 8
_KEPT_GROUPS = 2
_FOOTER_BYTES = 64 * 1024
_TRAILER_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRows:
    """The rows of one episode."""

    # Numbers by feature: float32, int64 or bool, of shape (length, ...).
    arrays: Mapping[str, Array]
    images: Mapping[str, Sequence[pa.Buffer]]  # coded images by feature
    objects: Mapping[str, Sequence[Any]]  # everything else as Python's values


class _DataFile:
    """A data file, opened by the first that asks for its reader, and where its row groups begin."""

    source: OpenFile

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self.users = 0
        self.lock = threading.Lock()
        self._reader: pq.ParquetFile | None = None
        self.starts: IntArray = np.zeros(1, np.int64)

    def reader(self) -> pq.ParquetFile:
        with self.lock:
            if self._reader is None:
                self._reader = self._open()
        return self._reader

    def _open(self) -> pq.ParquetFile:
        source = self.source = self._files.open(self._path)
        size = source.size_bytes
        with ExitStack() as undone:
            undone.callback(source.close)  # who asks again opens it again
            try:
                source.need([(max(0, size - _FOOTER_BYTES), size)])
                with open(source.path, "rb") as file:  # noqa: PTH123 (a name, not a Path)
                    file.seek(max(0, size - _TRAILER_BYTES))
                    footer = int.from_bytes(file.read(4), "little") + _TRAILER_BYTES
                source.need([(max(0, size - footer), size)])
                reader = pq.ParquetFile(source.path)
            except (OSError, pa.ArrowException) as error:
                raise _unreadable(source.name, error) from error
            undone.pop_all()
        counts = [reader.metadata.row_group(n).num_rows for n in range(reader.num_row_groups)]
        self.starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return reader

    def groups(self, first: int, count: int) -> range:
        """Return the row groups that hold some rows."""
        if first + count > self.starts[-1]:
            raise SourceError(
                f"{self.source.name} has {self.starts[-1]} rows, but meta/episodes says that rows "
                f"up to {first + count} are in it.",
                path=self.source.name,
                next_step=f"{GET_AGAIN}, or convert the dataset again.",
            )
        head, last = np.searchsorted(self.starts, [first, first + count - 1], side="right")
        return range(int(head) - 1, int(last))

    def spans(self, groups: range) -> list[tuple[int, int]]:
        """Return where the bytes of row groups are."""
        metadata = self.reader().metadata
        spans = []
        for group in groups:
            chunks = metadata.row_group(group)
            columns = [chunks.column(number) for number in range(chunks.num_columns)]
            starts = [
                min(
                    column.data_page_offset,
                    column.dictionary_page_offset or column.data_page_offset,
                )
                for column in columns
            ]
            stops = [
                start + column.total_compressed_size
                for start, column in zip(starts, columns, strict=True)
            ]
            spans.append((min(starts), max(stops)))
        return spans

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self.source.close()


class RowReader:
    """Reads the rows of episodes. But for `need` it is for one thread."""

    def __init__(self, meta: DatasetMeta, files: Files) -> None:
        self._meta = meta
        self._files = files
        self._open: OrderedDict[int, _DataFile] = OrderedDict()
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._lock = threading.Lock()
        self._columns = [key for key, ft in meta.features.items() if ft["dtype"] != "video"]

    def need(self, place: int) -> int:
        """Fetch an episode's rows, once before they are read; from any thread.

        Returns:
            Bytes that were fetched; nothing is where the files are local.
        """
        if self._files.is_local:
            return 0
        file = self._file(place, users=1)
        file.reader()
        file.source.need(file.spans(self._groups(file, place)))
        return file.source.take_fetched_bytes()

    def file_of(self, place: int) -> int:
        """Return which data file an episode's rows are in."""
        return int(self._meta.episodes.data_file[place])

    def release(self, place: int) -> None:
        """Say that an episode's rows will not be read again."""
        if self._files.is_local:
            return
        file = self._file(place)
        file.source.release(file.spans(self._groups(file, place)))
        with self._lock:
            file.users -= 1
            is_unused = not file.users  # asked here: a thread may be about to fetch from it
            if is_unused:
                del self._open[self.file_of(place)]
        if is_unused:
            file.close()

    def read(self, place: int) -> EpisodeRows:
        """Read an episode."""
        file = self._file(place)
        reader = file.reader()
        groups = self._groups(file, place)
        first = int(self._meta.episodes.first_row[place])
        count = int(self._meta.episodes.length[place])
        name = file.source.name
        whole = int(file.starts[groups.start]) == first and len(groups) == 1
        whole = whole and int(file.starts[groups.stop]) == first + count
        try:
            if whole:
                table = reader.read_row_group(groups.start, use_threads=False)
            else:
                number = self.file_of(place)
                tables = [self._kept(number, group, reader) for group in groups]
                joined = pa.concat_tables(tables)
                table = joined.slice(first - int(file.starts[groups.start]), count)
            rows = self._rows(table, is_shared=not whole)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise _unreadable(name, error) from error
        self._check(rows, place, name)
        return rows

    def _file(self, place: int, *, users: int = 0) -> _DataFile:
        number = self.file_of(place)
        with self._lock:
            file = self._open.get(number)
            if file is None:
                path = self._meta.episodes.data_paths[number]
                file = self._open[number] = _DataFile(self._files, path)
            file.users += users
            self._open.move_to_end(number)
            while self._files.is_local and len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        return file

    def _groups(self, file: _DataFile, place: int) -> range:
        table = self._meta.episodes
        return file.groups(int(table.first_row[place]), int(table.length[place]))

    def _kept(self, number: int, group: int, reader: pq.ParquetFile) -> pa.Table:
        key = (number, group)
        if key not in self._tables:
            while len(self._tables) >= _KEPT_GROUPS:
                self._tables.popitem(last=False)
            self._tables[key] = reader.read_row_group(group, use_threads=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def _rows(self, table: pa.Table, *, is_shared: bool) -> EpisodeRows:
        arrays: dict[str, Array] = {}
        images: dict[str, list[pa.Buffer]] = {}
        objects: dict[str, list[Any]] = {}
        for key in self._columns:
            column = table.column(key).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks)
            if isinstance(column, pa.ExtensionArray):
                column = column.storage
            feature = self._meta.features[key]
            if feature["dtype"] == "image":
                images[key] = _coded_images(key, column, is_shared=is_shared)
                continue
            values = _numbers(column)
            if values is None:
                objects[key] = column.to_pylist()
                continue
            shape = tuple(feature["shape"])
            values = values.reshape(table.num_rows, *(() if shape == (1,) else shape))
            arrays[key] = _as_lerobot_types(values, copy=is_shared)
        return EpisodeRows(arrays, images, objects)

    def _check(self, rows: EpisodeRows, place: int, name: str) -> None:
        table = self._meta.episodes
        begin, count = int(table.from_index[place]), int(table.length[place])
        same_episode = np.array_equal(
            rows.arrays["episode_index"], np.full(count, table.index[place])
        )
        if not same_episode or not np.array_equal(
            rows.arrays["index"], np.arange(begin, begin + count)
        ):
            raise SourceError(
                f"{name} does not hold episode {table.index[place]} where meta/episodes says that "
                "it is.",
                path=name,
                next_step=f"{GET_AGAIN}, or convert the dataset again.",
            )


def _numbers(column: pa.Array) -> Array | None:
    """Return the numbers of a column in one row, however deep they are nested; None for others."""
    while isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        if column.null_count:
            raise ValueError("a list is missing")
        column = column.flatten()
    if not is_number(column.type):
        return None
    if column.null_count:
        raise ValueError("a number is missing")
    if column.buffers()[1] is None:
        return np.empty(0, np.int64)
    return stored_numbers(column)


def _as_lerobot_types(values: Array, *, copy: bool) -> Array:
    """Cast numbers to what ``torch.tensor`` makes of Python's."""
    if values.dtype == np.bool_:
        return values
    kind = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int64
    # Arrow's memory cannot be written to, and a part of it would keep all of it alive.
    return values.astype(kind, copy=copy)


def _coded_images(key: str, column: pa.Array, *, is_shared: bool) -> list[pa.Buffer]:
    """Return each image's bytes; without `is_shared` they are parts of the column's memory."""
    if not pa.types.is_struct(column.type):
        raise ValueError(f"{key} holds no images")
    cells = column.field("bytes")
    if cells.null_count or column.null_count:
        raise ValueError(f"{key} names images outside of the file")
    buffers = [cell.as_buffer() for cell in cells]
    return [pa.py_buffer(buffer.to_pybytes()) for buffer in buffers] if is_shared else buffers


def _unreadable(name: str, error: Exception) -> UnreadableSourceError:
    if isinstance(error, UnreadableSourceError):
        return error
    if isinstance(error, OSError) and error.errno and not os.path.exists(name):  # noqa: PTH110
        reason = "it is missing"
    else:
        reason = str(error).strip().partition("\n")[0].rstrip(".") or repr(error)
    return UnreadableSourceError(
        f"{name} cannot be read: {reason}.",
        path=name,
        next_step=f"{GET_AGAIN}, or convert the dataset again.",
    )
