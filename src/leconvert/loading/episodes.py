"""The episodes that a worker mixes: rows from data files, frames from videos, and their pool.

If a row group holds one episode, only that row group is read. If it holds several (LeRobot's
converter writes such files), it is read whole, the latest few stay in memory, and an episode gets a
copy of its rows.
"""

from __future__ import annotations

import os
import shlex
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import islice, zip_longest
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from leconvert.dataset.formats import v3
from leconvert.loading.decoders import Backend, Clip, ClipDecoder, Codecs, open_clip, open_decoder
from leconvert.loading.metadata import DatasetMeta
from leconvert.loading.tensors import WorkerCounters
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.values import LEROBOT_TOLERANCE_SECONDS, IntArray
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.text import GET_AGAIN
from leconvert.support.values import dataclass
from leconvert.tables import chunk_range
from leconvert.tables.arrow import is_binary, is_number, stored_numbers
from leconvert.tables.schemas import NUMBER_DTYPES, dtype_name
from leconvert.transfer.files import Files, OpenFile

Array = npt.NDArray[Any]

_OPEN_FILES = 8
_KEPT_GROUPS = 2
_FOOTER_BYTES = 64 * 1024
_TRAILER_BYTES = 8
_Ranges = list[tuple[int, int]]  # each from a byte to the byte after the last


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRows:
    """The rows of one episode."""

    # Numbers by feature: float32, int64 or bool, shape (length, ...).
    arrays: Mapping[str, Array]
    images: Mapping[str, Sequence[pa.Buffer]]  # encoded images by feature
    objects: Mapping[str, Sequence[Any]]  # everything else, as Python's values


class _DataFile:
    """An open data file and the first rows of its row groups."""

    def __init__(self, source: OpenFile) -> None:
        self.source = source
        size = source.size_bytes
        source.need([(max(0, size - _FOOTER_BYTES), size)])
        try:
            with open(source.path, "rb") as file:  # noqa: PTH123 (a name, not a Path)
                file.seek(max(0, size - _TRAILER_BYTES))
                footer = int.from_bytes(file.read(4), "little") + _TRAILER_BYTES
            source.need([(max(0, size - footer), size)])
            self.reader = pq.ParquetFile(source.path)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(source.name, error) from error
        metadata = self.reader.metadata
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self.starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    def groups(self, first: int, count: int) -> range:
        """Return the row groups that contain some rows."""
        if first + count > self.starts[-1]:
            raise SourceError(
                f"{self.source.name} has {self.starts[-1]} rows, but meta/episodes expects "
                f"rows up to {first + count} in it.",
                path=self.source.name,
                next_step=f"{GET_AGAIN}, or convert the dataset again.",
            )
        head, last = np.searchsorted(self.starts, [first, first + count - 1], side="right")
        return range(int(head) - 1, int(last))

    def spans(self, groups: range) -> _Ranges:
        """Return the byte ranges of row groups."""
        spans = []
        for group in groups:
            chunks = self.reader.metadata.row_group(group)
            columns = map(chunks.column, range(chunks.num_columns))
            starts, stops = zip(*map(chunk_range, columns), strict=True)
            spans.append((min(starts), max(stops)))
        return spans


class _Reader[Key, Opened: (_DataFile, Clip)](ABC):
    """Opens the files of episodes, and fetches the bytes of remote files that episodes need.

    A remote file is open while an episode needs it. Only `_need` may be called from several
    threads.
    """

    def __init__(self, meta: DatasetMeta, files: Files) -> None:
        self._meta = meta
        self._files = files
        self._opened: OrderedDict[Key, Opened] = OrderedDict()
        self._opening: dict[Key, threading.Lock] = {}
        self._users: dict[Key, int] = {}
        # By episode: files, and the byte ranges of each that are in use.
        self._held: dict[int, list[tuple[Key, OpenFile, _Ranges]]] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def _path(self, key: Key) -> str:
        """Return the path of a file, relative to the dataset."""

    @abstractmethod
    def _open(self, source: OpenFile, key: Key) -> Opened:
        """Read the index of a file."""

    def _file(self, key: Key) -> Opened:
        file = self._opened.get(key)
        if file is None:
            source = self._files.open(self._path(key))
            with ExitStack() as undone:
                undone.callback(source.close)  # a later caller opens it again
                file = self._opened[key] = self._open(source, key)
                undone.pop_all()
        return file

    def _need(self, place: int, key: Key, spans_of: Callable[[Opened], _Ranges]) -> int:
        """Fetch bytes of a file for an episode; from any thread.

        Returns:
            Number of bytes fetched; 0 for local files.
        """
        if self._files.is_local:
            return 0
        with self._lock:
            self._users[key] = self._users.get(key, 0) + 1
            opening = self._opening.setdefault(key, threading.Lock())
        with ExitStack() as undone:
            undone.callback(self._leave, key)
            with opening:
                file = self._file(key)
            spans = spans_of(file)
            undone.pop_all()
        with self._lock:
            self._held.setdefault(place, []).append((key, file.source, spans))
        file.source.need(spans)
        return file.source.take_fetched_bytes()

    def release(self, place: int) -> None:
        """Release the bytes of an episode, which are no longer needed."""
        for key, source, spans in self._held.pop(place, []):
            source.release(spans)
            self._leave(key)

    def _leave(self, key: Key) -> None:
        with self._lock:
            self._users[key] -= 1
            # Checked under the lock: a thread may be about to fetch from the file.
            if not self._users[key]:
                del self._users[key], self._opening[key]
                self._forget(key)

    def _forget(self, key: Key) -> None:
        file = self._opened.pop(key, None)
        if file is not None:
            file.source.close()


class RowReader(_Reader[int, _DataFile]):
    """Reads the rows of episodes. Only `need` may be called from several threads."""

    def __init__(self, meta: DatasetMeta, files: Files) -> None:
        super().__init__(meta, files)
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._columns = [key for key, ft in meta.features.items() if ft["dtype"] != "video"]
        self._slices = meta.table.data
        self._rows_in = np.zeros(len(self._slices.paths), np.int64)
        np.add.at(self._rows_in, self._slices.file, meta.table.length)

    def need(self, place: int) -> int:
        """Fetch an episode's rows, once before they are read; see `_need`."""

        def spans(file: _DataFile) -> _Ranges:
            return file.spans(self._groups(file, place))

        return self._need(place, self.file_of(place), spans)

    def file_of(self, place: int) -> int:
        """Return the number of the data file with an episode's rows."""
        return int(self._slices.file[place])

    def _path(self, key: int) -> str:
        return self._slices.paths[key]

    def _open(self, source: OpenFile, _: int) -> _DataFile:
        file = _DataFile(source)
        # LeRobot refuses such a file. Samples without the column would train something else.
        if more := sorted({*file.reader.schema_arrow.names} - {*self._columns}):
            raise SourceError(
                f"{source.name} has the column {', '.join(map(repr, more))}, which {v3.INFO_PATH} "
                "does not declare.",
                path=source.name,
                next_step=self._what_helps(),
            )
        return file

    def read(self, place: int) -> EpisodeRows:
        """Return the rows of an episode.

        Raises:
            SourceChangedError: Its file has changed since the stream was made.
            SourceError: The rows are not the episode's.
            UnreadableSourceError: The file cannot be read.
        """
        try:
            return self._read(place)
        finally:
            if self._files.is_local:  # else it was checked when its bytes were fetched
                self._files.check(self._path(self.file_of(place)))

    def _read(self, place: int) -> EpisodeRows:
        number = self.file_of(place)
        file = self._file(number)
        if self._files.is_local:
            self._opened.move_to_end(number)
            while len(self._opened) > _OPEN_FILES:
                self._opened.popitem(last=False)
        groups = self._groups(file, place)
        first = int(self._slices.first[place])
        count = int(self._meta.table.length[place])
        name = file.source.name
        whole = int(file.starts[groups.start]) == first and len(groups) == 1
        whole = whole and int(file.starts[groups.stop]) == first + count
        try:
            if whole:
                table = file.reader.read_row_group(groups.start, use_threads=False)
            else:
                tables = [self._kept(number, group, file.reader) for group in groups]
                joined = pa.concat_tables(tables)
                table = joined.slice(first - int(file.starts[groups.start]), count)
            rows = self._rows(table, is_shared=not whole)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise _unreadable(name, error) from error
        if file.starts[-1] != self._rows_in[number]:
            raise SourceError(
                f"{name} has {file.starts[-1]} rows, but its episodes have "
                f"{self._rows_in[number]}.",
                path=name,
                next_step=self._what_helps(),
            )
        self._check(rows, place, name)
        return rows

    def _groups(self, file: _DataFile, place: int) -> range:
        return file.groups(int(self._slices.first[place]), int(self._meta.table.length[place]))

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
            values = _numbers(key, column, feature["dtype"])
            if (values is None) == (feature["dtype"] in NUMBER_DTYPES):
                raise ValueError(f"{key} is declared as {feature['dtype']}, but is {column.type}")
            if values is None:
                objects[key] = column.to_pylist()
                continue
            shape = tuple(feature["shape"])
            values = values.reshape(table.num_rows, *(() if shape == (1,) else shape))
            arrays[key] = _as_lerobot_types(values, copy=is_shared)
        return EpisodeRows(arrays, images, objects)

    def _check(self, rows: EpisodeRows, place: int, name: str) -> None:
        table = self._meta.table
        begin, count = int(table.from_index[place]), int(table.length[place])
        frame = np.arange(count)
        columns = rows.arrays
        if gone := DEFAULT_COLUMNS.keys() - columns.keys():
            raise SourceError(
                f"{name} has no numbers in {', '.join(sorted(gone))}, or {v3.INFO_PATH} declares "
                "none.",
                path=name,
                next_step=self._what_helps(),
            )
        expected = {"episode_index": table.index[place], "index": begin + frame}
        if not all(np.all(columns[key] == values) for key, values in expected.items()):
            raise SourceError(
                f"{name} does not contain episode {table.index[place]} at the place that "
                "meta/episodes gives.",
                path=name,
                next_step=f"{GET_AGAIN}, or convert the dataset again.",
            )
        # LeRobot finds frames and tasks by these columns; this loader does not.
        wrong = [] if np.all(columns["frame_index"] == frame) else ["frame_index"]
        tasks = columns["task_index"]
        if np.any((tasks < 0) | (tasks >= len(self._meta.task_texts))):
            wrong.append("task_index")
        late = np.abs(columns["timestamp"] - (frame / self._meta.fps).astype(np.float32))
        if self._meta.video_keys and not np.all(late < LEROBOT_TOLERANCE_SECONDS):
            wrong.append("timestamp")
        if wrong:
            raise SourceError(
                f"{name}: {' and '.join(wrong)} of episode {table.index[place]} is wrong.",
                path=name,
                next_step=self._what_helps(),
            )

    def _what_helps(self) -> str:
        command = f"leconvert check {shlex.quote(self._meta.root)} --plan-repairs"
        return f"`{command}` prints the command that makes the dataset right."


def _numbers(key: str, column: pa.Array, dtype: str) -> Array | None:
    """Return a column's numbers in one dimension, whatever their nesting; None for other types.

    They are cast to the declared type, as LeRobot does.
    """
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
    if dtype in NUMBER_DTYPES and dtype != dtype_name(column.type):
        try:
            column = column.cast(dtype)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{key} is declared as {dtype}: {error}") from error
    return stored_numbers(column)


def _as_lerobot_types(values: Array, *, copy: bool) -> Array:
    """Cast numbers to the types that ``torch.tensor`` chooses for Python's numbers."""
    if values.dtype == np.bool_:
        return values
    kind = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int64
    # Arrow's memory is read-only, and a part of it would keep all of it in memory.
    return values.astype(kind, copy=copy)


def _coded_images(key: str, column: pa.Array, *, is_shared: bool) -> list[pa.Buffer]:
    """Return each image's bytes; unless `is_shared`, they are parts of the column's memory."""
    if not pa.types.is_struct(column.type) and not is_binary(column.type):
        raise ValueError(f"{key} contains no images")
    cells = column if is_binary(column.type) else column.field("bytes")
    if cells.null_count or column.null_count:
        raise ValueError(f"{key} names images outside of the file")
    buffers = [cell.as_buffer() for cell in cells]
    return [pa.py_buffer(buffer.to_pybytes()) for buffer in buffers] if is_shared else buffers


def _unreadable(name: str, error: Exception) -> UnreadableSourceError:
    if isinstance(error, OSError) and error.errno and not os.path.exists(name):  # noqa: PTH110
        reason = "it is missing"
    else:
        reason = str(error).strip().partition("\n")[0].rstrip(".") or repr(error)
    return UnreadableSourceError(
        f"{name} cannot be read: {reason}.",
        path=name,
        next_step=f"{GET_AGAIN}, or convert the dataset again.",
    )


_FileKey = tuple[str, int]
# Threads that fetch for the current batch; stores answer this many at once.
_URGENT_THREADS = 16


# Called with positions in a request, shape (n,), and their frames, shape (n, H, W, C), or one frame
# for all of them, shape (1, H, W, C).
Writer = Callable[[IntArray, torch.Tensor], None]
# Called with the positions in a request that cannot be decoded, and the error.
Trouble = Callable[[IntArray, UnreadableSourceError], None]


@dataclass(frozen=True, slots=True, eq=False)
class FrameRequest:
    """Frames of one camera, and the functions that receive them."""

    camera: str  # the video feature
    places: IntArray  # position of each frame's episode, shape (N,)
    frames: IntArray  # number of each frame within its episode, shape (N,)
    write: Writer
    trouble: Trouble


class _Group(NamedTuple):
    """The part of a request that is in one file."""

    key: _FileKey
    members: IntArray
    ranks: IntArray
    request: FrameRequest


class FrameReader(_Reader[_FileKey, Clip]):
    """Decodes frames by episode and number.

    Guaranteed: each frame is the requested one. Its position in the file is counted and its time is
    checked, never guessed. At most ``cache_size`` decoders are open.

    If there are more files than decoders, a random one of the less recently used half is closed. A
    shuffled order uses the files of the pool in turn, so the least recently used one would always
    be the next. Only `need` and `need_frames` may be called from several threads.
    """

    def __init__(
        self,
        meta: DatasetMeta,
        files: Files,
        *,
        backend: Backend,
        device: str,
        cache_size: int,
        threads: int,
        is_strict: bool,
        counters: WorkerCounters,
    ) -> None:
        super().__init__(meta, files)
        self._backend = backend
        self._is_strict = is_strict
        self._device = device
        self._threads = threads
        self._cache_size = max(cache_size, threads, 1)
        self._counters = counters
        self._decoders: OrderedDict[_FileKey, ClipDecoder] = OrderedDict()
        self._random = Random(0)  # noqa: S311 (no secret)
        self._codecs = Codecs(self._cache_size)
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None

    def need(self, place: int) -> int:
        """Fetch the bytes of all frames of an episode; see `_need`."""
        table, fetched = self._meta.table, 0
        for camera, files in table.cameras.items():
            first, count = int(files.first[place]), int(table.length[place])
            spans = partial(Clip.spans, first=first, count=count)
            fetched += self._need(place, self.file_of(place, camera), spans)
        return fetched

    def need_frames(self, place: int, camera: str, frames: IntArray) -> int:
        """Fetch the bytes that some frames of an episode need; see `_need`."""
        ranks = int(self._meta.table.cameras[camera].first[place]) + frames
        spans = partial(Clip.frame_spans, ranks=ranks, uses_pyav=self._uses_pyav(camera))
        return self._need(place, self.file_of(place, camera), spans)

    def file_of(self, place: int, camera: str) -> _FileKey:
        """Return the file with an episode's frames: the camera, and the file's number."""
        return camera, int(self._meta.table.cameras[camera].file[place])

    def _path(self, key: _FileKey) -> str:
        return self._meta.table.cameras[key[0]].paths[key[1]]

    def _open(self, source: OpenFile, key: _FileKey) -> Clip:
        keep = not self._files.is_local or self._uses_pyav(key[0])
        return open_clip(source, keep_index=keep)

    def read(self, requests: Sequence[FrameRequest]) -> None:
        """Decode frames and pass them to the writers, in any order.

        Frames that cannot be decoded are passed to ``trouble``, and the others still come. With
        threads, writers are called from several threads at once.
        """
        groups = [group for request in requests for group in self._grouped(request)]
        if self._pool is None:
            for group in groups:
                self._serve(group, self._decoder(group))
            return
        for first in range(0, len(groups), self._threads):
            # The decoders of this part cannot close each other.
            part = groups[first : first + self._threads]
            opened = [self._decoder(group) for group in part]
            _finish(
                [self._pool.submit(self._serve, *each) for each in zip(part, opened, strict=True)]
            )

    def _grouped(self, request: FrameRequest) -> list[_Group]:
        camera = self._meta.table.cameras[request.camera]
        files = camera.file[request.places]
        ranks = camera.first[request.places] + request.frames
        order = np.lexsort((ranks, files))
        heads = np.flatnonzero(np.diff(files[order])) + 1
        return [
            _Group((request.camera, int(files[members[0]])), members, ranks[members], request)
            for members in np.split(order, heads)
        ]

    def _uses_pyav(self, camera: str) -> bool:
        return self._backend == "pyav" or self._meta.is_depth(camera)

    def _decoder(self, group: _Group) -> ClipDecoder | UnreadableSourceError:
        decoder = self._decoders.get(group.key)
        if decoder is not None:
            self._counters.add("cache_hits")
            self._decoders.move_to_end(group.key)
            return decoder
        self._counters.add("cache_misses")
        try:
            decoder = open_decoder(
                self._file(group.key),
                self._backend,
                device=self._device,
                is_depth=self._meta.is_depth(group.key[0]),
                is_strict=self._is_strict,
                codecs=self._codecs,
            )
        except UnreadableSourceError as error:
            return error
        self._decoders[group.key] = decoder
        if len(self._decoders) > self._cache_size:
            # Not a decoder that is about to be used at the same time.
            most = min(len(self._decoders) // 2, len(self._decoders) - max(1, self._threads))
            chosen = next(islice(self._decoders, self._random.randrange(max(1, most)), None))
            del self._decoders[chosen]
            self._counters.add("cache_evictions")
            if self._files.is_local:
                self._opened.pop(chosen, None)
        self._counters.put("cache_size", len(self._decoders))
        return decoder

    def _forget(self, key: _FileKey) -> None:
        self._decoders.pop(key, None)
        self._counters.put("cache_size", len(self._decoders))
        super()._forget(key)

    def _serve(self, group: _Group, decoder: ClipDecoder | UnreadableSourceError) -> None:
        """Give a group its frames, and check that the file is still the noted one."""
        try:
            self._give(group, decoder)
        finally:
            if self._files.is_local:  # else it was checked when its bytes were fetched
                self._files.check(self._path(group.key))

    def _give(self, group: _Group, decoder: ClipDecoder | UnreadableSourceError) -> None:
        if isinstance(decoder, UnreadableSourceError):
            group.request.trouble(group.members, decoder)
            return
        clip = self._opened[group.key]
        right = clip.is_right(group.ranks, float(self._meta.fps))
        members, ranks = group.members, group.ranks
        if not right.all():
            wrong = int(ranks[~right][0])
            group.request.trouble(
                members[~right],
                UnreadableSourceError(
                    f"{clip.source.name} has no frame {wrong} at its time.",
                    path=clip.source.name,
                    next_step=f"{GET_AGAIN}, or convert the dataset again.",
                ),
            )
            members, ranks = members[right], ranks[right]
        if len(ranks):
            self._decode(group, decoder, members, ranks)

    def _decode(
        self, group: _Group, decoder: ClipDecoder, members: IntArray, ranks: IntArray
    ) -> None:
        """Decode frames of a group, each once even if it is wanted several times."""
        distinct, heads = np.unique(ranks, return_index=True)  # ranks ascend
        bounds = [*heads.tolist(), len(ranks)]
        try:
            for part, frames in decoder.decode(distinct):
                mine = members[bounds[part.start] : bounds[part.stop]]
                if len(mine) > len(frames) > 1:
                    counts = np.diff(bounds[part.start : part.stop + 1])
                    places = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
                    group.request.write(mine, frames[places])
                else:
                    group.request.write(mine, frames)
        except UnreadableSourceError as error:
            if len(distinct) == 1:
                group.request.trouble(members, error)
                return
            # One of them is damaged; the others are still wanted.
            for rank in distinct.tolist():
                mine = ranks == rank
                self._decode(group, decoder, members[mine], ranks[mine])


def _finish(tasks: Sequence[Future[None]]) -> None:
    """Wait for the tasks of a batch; after the first error, too, and then raise it.

    A task that went on would write into the memory of a later batch, or into a file of the same
    number that was opened since its own was closed.
    """
    try:
        for task in tasks:
            task.result()
    except BaseException:
        for task in tasks:
            task.cancel()
        wait(tasks)
        raise


# The episodes that a worker mixes: their rows, and the bytes of their frames.


class EpisodePool:
    """Holds an episode from its first frame of an epoch until all ranks are past its last frame.

    A batch waits only for its rows and for the bytes of its own frames. With threads, these are
    fetched side by side; the other frames of the episodes, and the next episodes, are fetched while
    frames are decoded. This changes when bytes arrive, but not which sample is next.
    """

    def __init__(
        self,
        rows: RowReader,
        frames: FrameReader,
        *,
        fetch_workers: int,
        counters: WorkerCounters,
    ) -> None:
        self._row_reader = rows
        self._frame_reader = frames
        self._counters = counters
        self._held: dict[int, EpisodeRows] = {}
        self._last_numbers: dict[int, int] = {}
        self._expected: Sequence[int] = ()
        # By episode: the tasks that fetch its rows, and all of its frames.
        self._rows_coming: dict[int, Future[None]] = {}
        self._frames_coming: dict[int, Future[None]] = {}
        self._urgent: ThreadPoolExecutor | None = None
        if fetch_workers:
            self._urgent = ThreadPoolExecutor(_URGENT_THREADS, "fetch")
            self._ahead = ThreadPoolExecutor(fetch_workers, "fetch-ahead")

    def stop(self) -> None:
        """Cancel fetches that have not begun; after this, nothing more is fetched."""
        if self._urgent is not None:
            for fetchers in (self._urgent, self._ahead):
                fetchers.shutdown(wait=False, cancel_futures=True)

    def bring(self, places: IntArray, frames: Mapping[str, IntArray]) -> None:
        """Fetch the data of a batch, and begin to fetch the next episodes.

        Args:
            places: The episode of each sample, shape (N,).
            frames: The wanted frames of each video feature, shape (N, T).
        """
        if self._urgent is None:
            return
        needed = np.unique(places).tolist()
        waiting: list[Future[None]] = []
        # By file: the first fetch opens the file, and the others wait for it. So the first fetches
        # of all files begin first, or all threads would wait for one file.
        begins: dict[object, list[Callable[[], None]]] = {}

        def begin(need: Callable[[], int]) -> None:
            assert self._urgent is not None
            waiting.append(self._urgent.submit(self._fetch, need))

        for place in needed:
            rows_file = self._row_reader.file_of(place)
            begins.setdefault(rows_file, []).append(partial(self._bring_rows, place))
            coming = self._frames_coming.get(place)
            if coming is not None and coming.done():
                coming.result()  # raises its error
                continue
            samples = places == place
            for camera, wanted in frames.items():
                chosen = np.unique(wanted[samples])
                need = partial(self._frame_reader.need_frames, place, camera, chosen)
                file = self._frame_reader.file_of(place, camera)
                begins.setdefault(file, []).append(partial(begin, need))
        for turn in zip_longest(*begins.values()):
            for start in turn:
                if start is not None:
                    start()
        _finish(waiting)
        # Only now, since it would take bandwidth that the batch is waiting for.
        for place in [*needed, *self._expected]:
            self._bring_rows(place)
            if place not in self._frames_coming:
                need = partial(self._frame_reader.need, place)
                self._frames_coming[place] = self._ahead.submit(self._fetch, need)

    def _bring_rows(self, place: int) -> None:
        assert self._urgent is not None
        if place not in self._held and place not in self._rows_coming:
            need = partial(self._row_reader.need, place)
            self._rows_coming[place] = self._urgent.submit(self._fetch, need)

    def _fetch(self, need: Callable[[], int]) -> None:
        self._counters.add("fetched_bytes", need())

    def rows(self, place: int) -> EpisodeRows:
        """Return an episode's rows; the episode enters the pool if necessary."""
        found = self._held.get(place)
        if found is None:
            coming = self._rows_coming.pop(place, None)
            if coming is not None:
                coming.result()
            else:
                self._fetch(partial(self._row_reader.need, place))
                self._fetch(partial(self._frame_reader.need, place))
            found = self._held[place] = self._row_reader.read(place)
            self._counters.add("episodes")
        return found

    def expect(self, places: Sequence[int]) -> None:
        """Note the episodes that are wanted soon, the first one first."""
        self._expected = places

    def keep_until(self, places: IntArray, last_numbers: IntArray) -> None:
        """Note each episode's last sample in the order; for a repeated episode, the last one."""
        self._last_numbers.update(zip(places.tolist(), last_numbers.tolist(), strict=True))

    def leave_before(self, number: int) -> None:
        """Release episodes that ended before this sample of the order."""
        ended = [place for place, last in self._last_numbers.items() if last < number]
        for place in ended:
            self._leave(place)

    def _leave(self, place: int) -> None:
        self._held.pop(place, None)
        self._last_numbers.pop(place, None)
        for coming in (self._rows_coming, self._frames_coming):
            fetch = coming.pop(place, None)
            # Errors of bytes that are no longer needed do not matter.
            if fetch is not None and not fetch.cancel():
                wait([fetch])
        self._row_reader.release(place)
        self._frame_reader.release(place)

    def clear(self) -> None:
        """Release all episodes."""
        self._expected = ()
        for coming in (*self._rows_coming.values(), *self._frames_coming.values()):
            coming.cancel()  # all of them, before waiting for any
        for place in {*self._held, *self._rows_coming, *self._frames_coming}:
            self._leave(place)
