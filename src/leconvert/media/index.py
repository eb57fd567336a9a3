"""Read the index of an MP4 clip: the positions of its coded samples, and their times.

Only ``moov`` is read, of one clip or of many at once. The result is a `ClipIndex`, or an error with
the reason. Every count and size is checked against its box and against the size of the file before
memory is allocated for it: a table costs at most a few times the file's size, and a hostile file
costs an error.

Most clips of a dataset are short, and reading their indices is a good part of a conversion. So
numbers that describe all samples stay numbers: an even frame duration is a `range`, and one chunk
is the offset of its first sample. No loop runs over samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import accumulate, batched, chain, pairwise
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import (
    IDENTITY_MATRIX,
    MOOV_LIMIT_BYTES,
    VIDEO,
    Moov,
    Span,
    UnsupportedClipError,
    box_of,
    broken,
    check_one_configuration,
    entry_and_digest,
    handler_of,
    read_moov,
    unreadable,
    wanted_boxes,
)
from leconvert.media.clip import BoolArray, ClipIndex, IntArray, as_array
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.file_calls import read_ahead
from leconvert.support.machine import queued_seconds
from leconvert.support.text import GET_AGAIN_OR_DROP

UnsignedArray = npt.NDArray[np.unsignedinteger]

# Number of clips that are fetched before the first is parsed; several threads fetch slow files.
_CLIPS_AT_ONCE = 64
# A larger index is read only when it is needed.
_HELD_INDEX_BYTES = 128 * 1024
_PIECE_BYTES = 1024 * 1024
_THREADS = 8
_CLIPS_A_THREAD = _CLIPS_AT_ONCE // _THREADS
# A file in the page cache or in memory takes about 12 microseconds; a disk or network takes more.
_SLOW_SECONDS = 60e-6
_SMALL_CLIP_BYTES = 1024**2
_READ_AHEAD_BYTES = 256 * 1024**2

SAMPLE_LIMIT = 2**24
# A coded frame is never smaller on average; it bounds a table whose samples all have one size.
_SMALLEST_UNIFORM_SAMPLE_BYTES = 8
_LONGEST_DURATION = 2**31
_MAX_TIMESCALE = 2**31 - 1
_NORMAL_RATE = 0x10000
_EDIT_LIMIT = 64

_U32 = Struct(">I")
_U32_PAIR = Struct(">II")
_U32_TRIPLE = Struct(">III")
_ONE = _U32.pack(1)
_BIG_U32: np.dtype[np.unsignedinteger] = np.dtype(">u4")
_BIG_U64: np.dtype[np.unsignedinteger] = np.dtype(">u8")

# By the version of a box: the timescale in mvhd or mdhd, the offset of the matrix in tkhd, and an
# entry of elst.
_MEDIA_HEADER = {0: Struct(">12xI4x"), 1: Struct(">20xI8x")}
_MATRIX_PLACE = {0: 40, 1: 52}
_EDIT = {0: Struct(">Iii"), 1: Struct(">Qqi")}
_MATRIX_BYTES = len(IDENTITY_MATRIX)
# Matrix, width and height.
_GEOMETRY_BYTES = _MATRIX_BYTES + 8

_ANYWHERE = 2**62
_LARGER_THAN_THE_FILE = "its frames are larger than the file; probably the file is cut off"
_OUTSIDE_THE_MEDIA = (
    "its index places frames outside its media data (mdat); the file is cut off, or the "
    "index is wrong"
)


class TruncatedClipError(UnreadableSourceError):
    """A file that was cut off after its index, so the index lists frames that the file lacks.

    Attributes:
        index: The index of the complete samples, a prefix in decoding order.
        whole_frames: Number of first frames, in presentation order, that are complete.
    """

    def __init__(self, index: ClipIndex, whole_frames: int, num_frames: int) -> None:
        said = f"{_LARGER_THAN_THE_FILE}: {whole_frames} of {num_frames} frames are there"
        error = broken(index.path, said)
        super().__init__(error.message, path=error.path, next_step=error.next_step)
        self.index = index
        self.whole_frames = whole_frames

    def __reduce__(self) -> tuple[Any, ...]:  # an index is too large to send
        plain = partial(UnreadableSourceError, path=self.path, next_step=self.next_step)
        return plain, (self.message,)


class StoredIndex(NamedTuple):
    """The stored index of a file.

    Attributes:
        path: The file.
        moov: Its index.
        size_bytes: Its size.
        status: The file's status when it was opened.
    """

    path: str
    moov: Moov
    size_bytes: int
    status: os.stat_result

    @property
    def head(self) -> bytes:
        """The first bytes of the file; none where the index was read from another place."""
        return b"" if self.moov.begin else self.moov.buffer


def read_clip_index(
    path: str | os.PathLike[str], *, pread: Callable[[int, int, int], bytes] = os.pread
) -> ClipIndex:
    """Read the index of a clip.

    Args:
        path: The clip.
        pread: As for `leconvert.media.boxes.read_moov`.

    Raises:
        UnreadableSourceError: The clip is missing or damaged.
        UnsupportedClipError: Its samples cannot be joined unchanged.
    """
    fetched = _fetch(os.fspath(path), MOOV_LIMIT_BYTES, pread=pread)
    assert fetched is not None
    (found,) = parse_indexes([fetched])
    if isinstance(found, UnreadableSourceError):
        raise found
    return found


def may_be_damaged(index: ClipIndex, *, pread: Callable[[int, int, int], bytes] = os.pread) -> bool:
    """Return whether an index and its media data contradict each other.

    Zeros may lie between samples: an episode of a joined file begins at the same offset within a
    block as in its source. A wrong size leaves bytes over or takes too many, which shows: a coded
    frame does not end with a 0 (except some of VP9), and no two frames overlap.

    Args:
        index: The index.
        pread: As for `leconvert.media.boxes.read_moov`.

    Raises:
        UnreadableSourceError: The clip cannot be read.
    """
    if index.unindexed_bytes <= 0:
        return index.unindexed_bytes < 0
    fetched = _fetch(index.path, MOOV_LIMIT_BYTES, pread=pread)
    assert fetched is not None
    first, end = fetched.moov.media
    stop = first
    try:
        with open(index.path, "rb", buffering=0) as file:  # noqa: PTH123 - by name
            read = partial(pread, file.fileno())
            for start, num_bytes in (*sorted(index.byte_runs(0, index.num_samples)), (end, 0)):
                if start < stop:
                    return True
                if start > stop:
                    ends_with_a_zero = stop > first and read(1, stop - 1) == b"\0"
                    if ends_with_a_zero or not _are_zeros(read, stop, start):
                        return True
                stop = start + num_bytes
    except OSError as error:
        raise unreadable(index.path, error) from error
    return False


def _are_zeros(read: Callable[[int, int], bytes], start: int, stop: int) -> bool:
    for place in range(start, stop, _PIECE_BYTES):
        num_bytes = min(stop - place, _PIECE_BYTES)
        if read(num_bytes, place).count(0) < num_bytes:
            return False
    return True


def read_clip_indexes(
    paths: Sequence[str], *, read_ahead: bool = False
) -> Iterator[ClipIndex | UnreadableSourceError]:
    """Read the indices of many clips; see `read_clips`."""
    return (index for _, index in read_clips(paths, read_ahead=read_ahead))


def read_clips(
    paths: Sequence[str],
    *,
    read_ahead: bool = False,
    waited_seconds: Callable[[], float] = lambda: (
        time.perf_counter() - time.process_time() - queued_seconds()
    ),
) -> Iterator[tuple[StoredIndex | None, ClipIndex | UnreadableSourceError]]:
    """Read the indices of many clips, each with the part of its file that was read.

    If files are slow to open, several are read at the same time. Few indices are held in memory.

    Args:
        paths: The files.
        read_ahead: Whether to prefetch small clips whole, since their frames are read next.
        waited_seconds: Returns a number that grows while this process waits, but not while any of
            its threads works: another thread may then be waiting for Python's lock, or for a
            processor.

    Yields:
        For each path, in order, a pair: the part of the file that was read, or None if it is not
        held; and the index, or the error that `read_clip_index` would raise.
    """
    slow = False
    left_bytes = _READ_AHEAD_BYTES if read_ahead else 0
    with ExitStack() as cleanup:
        pool: ThreadPoolExecutor | None = None
        for first in range(0, len(paths), _CLIPS_AT_ONCE):
            block = paths[first : first + _CLIPS_AT_ONCE]
            advise_bytes = min(_SMALL_CLIP_BYTES, left_bytes // len(block))
            if slow:
                if pool is None:
                    pool = cleanup.enter_context(ThreadPoolExecutor(_THREADS, "read-index"))
                fetch = partial(_fetch_all, advise_bytes=advise_bytes)
                parts = pool.map(fetch, batched(block, _CLIPS_A_THREAD))
                fetched = list(chain.from_iterable(parts))
            elif first + _CLIPS_AT_ONCE < len(paths):
                before = waited_seconds()
                fetched = _fetch_all(block, advise_bytes)
                slow = waited_seconds() - before > len(block) * _SLOW_SECONDS
            else:
                fetched = _fetch_all(block, advise_bytes)
            stored = [each for each in fetched if isinstance(each, StoredIndex)]
            parsed = iter(parse_indexes(stored))
            for path, found in zip(block, fetched, strict=True):
                if isinstance(found, StoredIndex):
                    yield found, next(parsed)
                    if found.size_bytes <= advise_bytes:
                        left_bytes -= found.size_bytes
                elif found is not None:
                    yield None, found
                else:
                    try:
                        yield None, read_clip_index(path)
                    except UnreadableSourceError as error:
                        yield None, error


def _fetch_all(
    paths: Iterable[str], advise_bytes: int
) -> list[StoredIndex | UnreadableSourceError | None]:
    return [_fetch_or_error(path, advise_bytes) for path in paths]


def _fetch_or_error(path: str, advise_bytes: int) -> StoredIndex | UnreadableSourceError | None:
    try:
        return _fetch(path, _HELD_INDEX_BYTES, advise_bytes)
    except UnreadableSourceError as error:
        return error


def _fetch(
    path: str,
    most_bytes: int,
    advise_bytes: int = 0,
    pread: Callable[[int, int, int], bytes] = os.pread,
) -> StoredIndex | None:
    """Read the index of a file; return None if it is larger than ``most_bytes``."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            size_bytes = status.st_size
            if size_bytes <= advise_bytes:
                read_ahead(descriptor, size_bytes)
            found = read_moov(descriptor, size_bytes, path, most_bytes=most_bytes, pread=pread)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableSourceError(
            f"{path} cannot be read: {error.strerror or error}.",
            path=path,
            next_step=GET_AGAIN_OR_DROP,
        ) from error
    return None if found is None else StoredIndex(path, found, size_bytes, status)


class _Track(NamedTuple):
    """The facts about a video track before the numbers of its samples are read.

    Attributes:
        stored: The stored index.
        boxes: The boxes of the track.
        other_tracks: Handlers of the other tracks.
        timescale: Ticks a second of its times.
        movie_timescale: Ticks a second of durations in the edit list; 0 without a movie header.
        num_samples: Number of its samples.
        uniform_bytes: Bytes of each sample; 0 if ``sizes`` has them.
        sizes: The rows of the stored table of sizes.
        keyframes: The rows of the stored table of keyframes; None if every sample is one.
    """

    stored: StoredIndex
    boxes: dict[bytes, Span]
    other_tracks: tuple[str, ...]
    timescale: int
    movie_timescale: int
    num_samples: int
    uniform_bytes: int
    sizes: Span
    keyframes: Span | None

    def rows(self, table: Span | None) -> bytes:
        """Return the rows of a stored table."""
        return b"" if table is None else self.stored.moov.buffer[table[0] : table[1]]


def parse_indexes(stored: Sequence[StoredIndex]) -> list[ClipIndex | UnreadableSourceError]:
    """Parse the indices of clips.

    The two tables that have a row per sample are turned into numbers for all clips at once, since
    each call of NumPy takes as long as the walk through three boxes. The result for a clip does not
    depend on the others.

    Returns:
        For each clip its index, or the error: an `UnreadableSourceError` if it is damaged or
        contradicts the size of the file; an `UnsupportedClipError` if it may be sound, but its
        samples cannot be joined unchanged.
    """
    tracks: list[_Track | UnreadableSourceError] = []
    for each in stored:
        try:
            tracks.append(_track(each))
        except UnreadableSourceError as error:
            tracks.append(error)
    whole = [track for track in tracks if isinstance(track, _Track)]
    # A file with many episodes has many numbers: no array is held for longer than it is needed, and
    # the sizes, which an index keeps, are in an array of their own.
    sizes, edges = _numbers([track.rows(track.sizes) for track in whole])
    have_zeros = np.count_nonzero(sizes) < len(sizes)
    begins = [first for first, stop in pairwise(edges) if first < stop]
    sums = iter(np.add.reduceat(sizes, begins).tolist() if begins else ())
    keyframes, keyframe_edges = _numbers([track.rows(track.keyframes) for track in whole])
    found: list[ClipIndex | UnreadableSourceError] = []
    at = 0
    for known in tracks:
        if isinstance(known, UnreadableSourceError):
            found.append(known)
            continue
        own = slice(edges[at], edges[at + 1])
        numbers = keyframes[keyframe_edges[at] : keyframe_edges[at + 1]]
        num_bytes = next(sums) if own.start < own.stop else 0
        at += 1
        try:
            found.append(_clip(known, sizes[own], num_bytes, numbers, have_zeros))
        except UnreadableSourceError as error:
            found.append(error)
    return found


def _numbers(tables: Sequence[bytes]) -> tuple[IntArray, list[int]]:
    """Return the numbers of several tables in one array, and where each table begins and ends."""
    numbers = np.frombuffer(b"".join(tables), _BIG_U32).astype(np.int64)
    return numbers, [size // 4 for size in accumulate(map(len, tables), initial=0)]


def _track(stored: StoredIndex) -> _Track:
    """Parse an index up to its tables of samples."""
    path, buffer = stored.path, stored.moov.buffer
    boxes, other_tracks, movie_timescale = _video_of(stored.moov, path)
    timescale = _timescale(buffer, box_of(boxes, b"mdhd", path), path)
    if b"stz2" in boxes:
        raise UnsupportedClipError("compact sample sizes (stz2)", path=path)
    if b"stps" in boxes:
        raise UnsupportedClipError("partial sync samples (stps)", path=path)
    start, stop = box_of(boxes, b"stsz", path)
    if stop - start < 12:
        raise broken(path, "its stsz table is cut off")
    uniform_bytes, count = _U32_PAIR.unpack_from(buffer, start + 4)
    if not count:
        raise broken(path, "its video track has no frames")
    if count > SAMPLE_LIMIT:
        raise UnsupportedClipError(f"more than {SAMPLE_LIMIT} frames", path=path)
    sizes, keyframes = (0, 0), None
    if uniform_bytes:
        if count * max(uniform_bytes, _SMALLEST_UNIFORM_SAMPLE_BYTES) > stored.size_bytes:
            raise broken(path, _LARGER_THAN_THE_FILE)
    elif start + 12 + count * 4 > stop:
        raise broken(path, "its stsz table is longer than the box that holds it")
    else:
        sizes = (start + 12, start + 12 + count * 4)
    if b"stss" in boxes:
        keyframes = _row_bytes(buffer, boxes, b"stss", path, 4)
    return _Track(
        stored,
        boxes,
        other_tracks,
        timescale,
        movie_timescale,
        count,
        uniform_bytes,
        sizes,
        keyframes,
    )


def _clip(
    track: _Track, sizes: IntArray, num_bytes: int, keyframe_numbers: IntArray, have_zeros: bool
) -> ClipIndex:
    """Return the index of a clip.

    Args:
        track: The track.
        sizes: The table of sizes.
        num_bytes: The sum of the sizes.
        keyframe_numbers: The table of keyframes.
        have_zeros: Whether there may be a zero in the table of sizes.
    """
    stored, boxes, other_tracks, timescale, movie_timescale, count, uniform, _, listed = track
    path, moov, file_size_bytes, _ = stored
    buffer = moov.buffer
    if uniform:
        sizes, num_bytes = np.full(count, uniform, np.int64), count * uniform
    elif have_zeros and np.count_nonzero(sizes) < count:
        raise UnsupportedClipError("frames without bytes", path=path)
    elif num_bytes > file_size_bytes and not moov.is_cut_off:
        raise broken(path, _LARGER_THAN_THE_FILE)
    media = (moov.media[0], _ANYWHERE) if moov.is_cut_off else moov.media
    places, descriptions = _places(buffer, boxes, path, sizes, num_bytes, media)
    decoded, duration = _decode_times(buffer, boxes, count, path)
    shown, first_shown, last_shown = _shown_times(buffer, boxes, decoded, path)
    keyframes = _keyframes(None if listed is None else keyframe_numbers, count, path)
    geometry = _geometry(buffer, boxes, path)
    matrix = geometry[:_MATRIX_BYTES] or IDENTITY_MATRIX
    entry, config_key = entry_and_digest(buffer, boxes, descriptions, matrix, path)
    if b"elst" in boxes:
        times = first_shown, last_shown, timescale, movie_timescale
        shift = _edit_shift(buffer, boxes[b"elst"], path, *times)
        if isinstance(shown, range):
            shown = range(shown.start + shift, shown.stop + shift, shown.step)
        else:
            shown += shift
    # Positional arguments: 15 names would take a thirtieth of the time of this function.
    found = ClipIndex(
        path,
        file_size_bytes,
        timescale,
        sizes,
        num_bytes,
        0 if other_tracks else moov.media_bytes - num_bytes,
        places,
        decoded.step if isinstance(decoded, range) else 0,
        shown,
        keyframes,
        entry,
        config_key,
        other_tracks,
        # Width and height are in 16.16.
        geometry or b"".join((matrix, entry[32:34], b"\0\0", entry[34:36], b"\0\0")),
        duration,
    )
    if moov.is_cut_off:
        _refuse_cut_off(found)
    return found


def _refuse_cut_off(index: ClipIndex) -> None:
    """Raise an error if a file ends before the last sample in its index."""
    beyond = np.flatnonzero(index.offsets + index.sizes > index.file_size_bytes)
    if not len(beyond):
        return
    count = int(beyond[0])
    if not count:
        raise broken(index.path, _LARGER_THAN_THE_FILE)
    ranks = np.sort(index.ranks[:count])
    gaps = np.flatnonzero(ranks != np.arange(count))
    sizes = index.sizes[:count]
    there = replace(
        index,
        sizes=sizes,
        num_bytes=int(sizes.sum()),
        unindexed_bytes=0,
        places=index.places if isinstance(index.places, int) else index.places[:count],
        shown=index.shown[:count],
        keyframes=index.keyframes[:count],
        duration=index.duration * count // index.num_samples,
    )
    raise TruncatedClipError(there, int(gaps[0]) if len(gaps) else count, index.num_samples)


def _video_of(moov: Moov, path: str) -> tuple[dict[bytes, Span], tuple[str, ...], int]:
    """Return the boxes of the one video track, the handlers of others, and the movie's timescale.

    The timescale is 0 if there is no movie header.
    """
    buffer = moov.buffer
    movie, tracks = wanted_boxes(moov, path)
    if b"cmov" in movie or b"rmra" in movie:
        raise UnsupportedClipError("a QuickTime file with a compressed or foreign index", path=path)
    movie_timescale = _timescale(buffer, movie[b"mvhd"], path) if b"mvhd" in movie else 0
    videos, others = [], []
    for boxes in tracks:
        handler = handler_of(buffer, boxes, path)
        if handler == VIDEO:
            videos.append(boxes)
        else:
            others.append(handler.decode("latin-1"))
    if b"mvex" in movie:
        for boxes in videos:
            check_one_configuration(buffer, boxes, path)
        raise UnsupportedClipError("fragmented MP4", path=path)
    if not videos:
        raise broken(path, "it has no video track")
    if len(videos) > 1:
        raise UnsupportedClipError(f"{len(videos)} video tracks", path=path)
    return videos[0], tuple(others), movie_timescale


def _timescale(buffer: bytes, span: Span, path: str) -> int:
    """Return the ticks a second in an ``mdhd`` or ``mvhd`` box."""
    start, stop = span
    layout = _MEDIA_HEADER.get(buffer[start]) if stop > start else None
    if layout is None or start + layout.size > stop:
        raise broken(path, "one of its media headers is too short or of an unknown version")
    timescale: int = layout.unpack_from(buffer, start)[0]
    if not 0 < timescale <= _MAX_TIMESCALE:
        raise broken(path, "its timescale is impossible")
    return timescale


def _places(
    buffer: bytes,
    boxes: dict[bytes, Span],
    path: str,
    sizes: IntArray,
    num_bytes: int,
    media: Span,
) -> tuple[IntArray | int, set[int]]:
    """Return the samples' offsets, as `ClipIndex.places`, and the numbers of their entries."""
    chunk = _only_row(buffer, boxes, b"stco", _U32)
    run = _only_row(buffer, boxes, b"stsc", _U32_TRIPLE)
    if chunk is not None and run is not None and run[:2] == (1, len(sizes)):
        if not media[0] <= chunk[0] <= media[1] - num_bytes:
            raise broken(path, _OUTSIDE_THE_MEDIA)
        return chunk[0], {run[2]}
    if b"stco" in boxes or b"co64" not in boxes:
        starts = _rows(buffer, boxes, b"stco", path)
    else:
        starts = _rows(buffer, boxes, b"co64", path, dtype=_BIG_U64)
    runs = _rows(buffer, boxes, b"stsc", path, columns=3)
    if not len(starts) or not len(runs):
        raise broken(path, "its chunk table is empty")
    firsts = runs[:, 0].astype(np.int64)
    chunks = np.concatenate((firsts[1:], [len(starts) + 1])) - firsts  # of each run
    if firsts[0] != 1 or int(chunks.min()) <= 0 or not runs[:, 1].all():
        raise broken(path, "its chunk table contradicts itself")
    samples = np.repeat(runs[:, 1].astype(np.int64), chunks)  # of each chunk
    stops = samples.cumsum()
    if stops[-1] != len(sizes):
        few = "fewer" if stops[-1] < len(sizes) else "more"
        raise broken(path, f"its chunks hold {few} frames than it has")
    heads = stops - samples
    # Keep the unsigned type: an offset may be 2**64 - 1.
    if int(starts.min()) < media[0] or int(starts.max()) > media[1]:
        raise broken(path, _OUTSIDE_THE_MEDIA)
    chunk_starts = starts.astype(np.int64)
    chunk_stops = chunk_starts + np.add.reduceat(sizes, heads)
    if int(chunk_stops.max()) > media[1]:
        raise broken(path, _OUTSIDE_THE_MEDIA)
    descriptions = set(runs[:, 2].tolist())
    if not np.count_nonzero(chunk_starts[1:] != chunk_stops[:-1]):
        return int(chunk_starts[0]), descriptions
    begins = sizes.cumsum()
    begins -= sizes
    begins += np.repeat(chunk_starts - begins[heads], samples)
    return begins, descriptions


def _decode_times(
    buffer: bytes, boxes: dict[bytes, Span], num_samples: int, path: str
) -> tuple[IntArray | range, int]:
    """Return when each sample is decoded, in ticks from the start, and the total duration."""
    run = _only_row(buffer, boxes, b"stts", _U32_PAIR)
    if run is not None and run[0] == num_samples and 0 < run[1] < _LONGEST_DURATION:
        return range(0, num_samples * run[1], run[1]), num_samples * run[1]
    runs = _rows(buffer, boxes, b"stts", path, columns=2)
    counts = runs[:, 0].astype(np.int64)
    if int(counts.sum()) != num_samples:
        raise broken(path, "its time table does not cover its frames")
    if int(runs[:, 1].max()) >= _LONGEST_DURATION:
        raise UnsupportedClipError("implausible frame durations", path=path)
    durations = np.repeat(runs[:, 1].astype(np.int64), counts)
    ends = durations.cumsum()
    return ends - durations, int(ends[-1])


def _shown_times(
    buffer: bytes, boxes: dict[bytes, Span], decoded: IntArray | range, path: str
) -> tuple[IntArray | range, int, int]:
    """Return when each sample is shown before any edit, with the first and the last time."""
    if b"ctts" in boxes:
        times = _composition_offsets(buffer, boxes, len(decoded), path)
        times += as_array(decoded)
        in_order = np.sort(times)
    elif isinstance(decoded, range):
        return decoded, decoded[0], decoded[-1]
    else:
        times = in_order = decoded
    if not (in_order[1:] > in_order[:-1]).all():
        raise UnsupportedClipError("two frames at the same time", path=path)
    return times, int(in_order[0]), int(in_order[-1])


def _composition_offsets(
    buffer: bytes, boxes: dict[bytes, Span], num_samples: int, path: str
) -> IntArray:
    """Return the offsets to add to the decode times."""
    runs = _rows(buffer, boxes, b"ctts", path, columns=2)
    counts = runs[:, 0].tolist()
    if sum(counts) != num_samples:
        raise broken(path, "its composition table does not cover its frames")
    # Signed whatever the version says: writers disagree, and no writer means an offset above 2**31.
    values = runs[:, 1].astype(np.uint32).view(np.int32).astype(np.int64)
    return np.repeat(values, counts)


def _keyframes(numbers: IntArray | None, num_samples: int, path: str) -> BoolArray:
    """Return whether decoding can start at each sample; None stands for all samples."""
    if numbers is None:
        return np.ones(num_samples, np.bool_)
    if not len(numbers):
        raise UnsupportedClipError("no keyframe is listed", path=path)
    keyframes = np.zeros(num_samples + 1, np.bool_)
    try:
        keyframes[numbers] = True
    except IndexError as error:
        raise broken(path, "its keyframe table points outside") from error
    if keyframes[0]:
        raise broken(path, "its keyframe table points outside")
    return keyframes[1:]


def _only_row(
    buffer: bytes, boxes: dict[bytes, Span], kind: bytes, row: Struct
) -> tuple[int, ...] | None:
    """Return the row of a counted table that has one; None for any other table."""
    start, stop = boxes.get(kind, (0, 0))
    if stop - start < 8 + row.size or buffer[start + 4 : start + 8] != _ONE:
        return None
    return row.unpack_from(buffer, start + 8)


def _rows(
    buffer: bytes,
    boxes: dict[bytes, Span],
    kind: bytes,
    path: str,
    *,
    columns: int = 1,
    dtype: np.dtype[np.unsignedinteger] = _BIG_U32,
) -> UnsignedArray:
    """Return a counted table of numbers, shape (rows,), or (rows, columns) for several columns."""
    start, stop = _row_bytes(buffer, boxes, kind, path, columns * dtype.itemsize)
    table: UnsignedArray = np.frombuffer(buffer, dtype, (stop - start) // dtype.itemsize, start)
    return table if columns == 1 else table.reshape(-1, columns)


def _row_bytes(
    buffer: bytes, boxes: dict[bytes, Span], kind: bytes, path: str, row_bytes: int
) -> Span:
    """Return the range of the rows of a counted table."""
    start, stop = box_of(boxes, kind, path)
    if stop - start < 8:
        raise broken(path, f"its {kind.decode()} table is cut off")
    end: int = start + 8 + _U32.unpack_from(buffer, start + 4)[0] * row_bytes
    if end > stop:
        raise broken(path, f"its {kind.decode()} table is longer than the box that holds it")
    return start + 8, end


def _geometry(buffer: bytes, boxes: dict[bytes, Span], path: str) -> bytes:
    """Return display matrix, width and height of a track; empty without a header."""
    if b"tkhd" not in boxes:
        return b""
    start, stop = boxes[b"tkhd"]
    place = _MATRIX_PLACE.get(buffer[start]) if stop > start else None
    if place is None or start + place + _GEOMETRY_BYTES > stop:
        raise broken(path, "its track header is too short or of an unknown version")
    return buffer[start + place : start + place + _GEOMETRY_BYTES]


def _edit_shift(
    buffer: bytes,
    span: Span,
    path: str,
    first_shown: int,
    last_shown: int,
    timescale: int,
    movie_timescale: int,
) -> int:
    """Return the ticks that the edit list adds to every time, in the track's timescale.

    Supported are the edits that a muxer writes for a plain clip: any empty edits (a late start),
    then one edit that shows every sample at normal speed. "Hidden" has FFmpeg's meaning, since
    loaders read the source through FFmpeg: an edit without duration hides everything.

    Raises:
        UnsupportedClipError: The list hides frames, has several parts, or changes the speed.
    """
    start, stop = span
    layout = _EDIT.get(buffer[start]) if stop >= start + 8 else None
    if layout is None:
        raise broken(path, "its edit list is too short or of an unknown version")
    count = _U32.unpack_from(buffer, start + 4)[0]
    if start + 8 + count * layout.size > stop:
        raise broken(path, "its edit list is longer than the box that holds it")
    delay = 0
    for number in range(min(count, _EDIT_LIMIT)):
        duration, media_time, rate = layout.unpack_from(buffer, start + 8 + number * layout.size)
        if media_time == -1:
            delay += duration
            continue
        if rate != _NORMAL_RATE:
            raise UnsupportedClipError("an edit list that changes the speed", path=path)
        if number + 1 != count:
            raise UnsupportedClipError("an edit list of several parts", path=path)
        if media_time < 0:
            raise broken(path, "its edit list begins before its media")
        if first_shown < media_time:
            raise UnsupportedClipError("an edit list that hides frames at the start", path=path)
        if not movie_timescale:
            raise broken(path, "it has no movie header")
        if last_shown >= media_time + _rescale(duration, timescale, movie_timescale):
            raise UnsupportedClipError("an edit list that hides frames at the end", path=path)
        shift: int = -media_time
        if delay:
            shift += _rescale(delay, timescale, movie_timescale)
        if abs(shift) >= 2**62:
            raise broken(path, "its edit list has impossible times")
        return shift
    if count:
        raise UnsupportedClipError("an edit list that shows nothing", path=path)
    return 0


def _rescale(ticks: int, to_timescale: int, from_timescale: int) -> int:
    """Convert ticks between timescales, rounded to the nearest."""
    return (2 * ticks * to_timescale + from_timescale) // (2 * from_timescale)
