"""Read the index of an MP4 clip: where its coded samples lie, and when each is shown.

Only ``moov`` is read. Whatever the numbers in it say is checked against the file's size before
anything is allocated or computed from it, so that a broken or hostile file costs an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import batched, chain
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from leconvert.media.boxes import MOOV_LIMIT_BYTES, Moov, Span, read_moov, unreadable
from leconvert.media.clip import BoolArray, ClipIndex, IntArray
from leconvert.media.parse import (
    LONGEST_DURATION,
    MATRIX_BYTES,
    MAX_TIMESCALE,
    SAMPLE_LIMIT,
    chosen_entry,
    composition_offsets,
    config_digest,
    edit_shift,
    parse_moov,
    sample_offsets,
)
from leconvert.media.shapes import FEWEST_CLIPS, IndexShape, learn_shape
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.parallel import queued_seconds
from leconvert.support.text import GET_AGAIN

# ------------------------------------------------------------------------------------------------
# Read the index of a clip of the usual shape: one pass over its boxes, few arrays.
#
# Usual is what muxers write for one video stream: one track, every table once, a constant frame
# duration. Nothing is refused here: whatever is unusual, or looks wrong, is left to ``parse.py``,
# which either reads it or says what is wrong with it. So the two agree wherever this one answers.
# Converting 4,000 short episodes takes a tenth more CPU time without it
# (bench_logs/2026-11-22-media-plain.jsonl). Of many clips of one set-up it reads the first, and
# ``shapes.py`` the others.


_HEADER = Struct(">I4s")
_U32 = Struct(">I")
_U32_PAIR = Struct(">II")
_U32_TRIPLE = Struct(">III")
_U32_QUADRUPLE = Struct(">IIII")
_BOX_LIMIT = 64
_DESCRIPTION_LIMIT_BYTES = 4096
# Where the last child of the last sample entry is a btrt box: its header, and what it says.
_RATES_BOX = slice(-20, -12)
_RATES_HEADER = b"\0\0\0\x14btrt"
_RATES_BYTES = 12
_MEDIA_HEADER_BYTES = 20
_TRACK_HEADER_BYTES = 84
_GEOMETRY_PLACE = 40

# What may lie in each box: a mapping to enter it, _WANTED to note where it is, _IGNORED to go on.
# A box that is not listed makes a clip unusual.
_WANTED: dict[bytes, Any] = {}
_IGNORED: dict[bytes, Any] = {}
_PADDING = {b"free": _IGNORED, b"skip": _IGNORED, b"udta": _IGNORED}
_STBL = _PADDING | {
    b"stsd": _WANTED,
    b"stts": _WANTED,
    b"ctts": _WANTED,
    b"stss": _WANTED,
    b"stsc": _WANTED,
    b"stsz": _WANTED,
    b"stco": _WANTED,
    b"sdtp": _IGNORED,
}
_MINF = _PADDING | {b"vmhd": _IGNORED, b"dinf": {b"dref": _WANTED}, b"stbl": _STBL}
_MDIA = _PADDING | {b"mdhd": _WANTED, b"hdlr": _WANTED, b"minf": _MINF}
_TRAK = _PADDING | {b"tkhd": _WANTED, b"edts": {b"elst": _WANTED}, b"mdia": _MDIA}
_MOOV = _PADDING | {b"mvhd": _WANTED, b"trak": _TRAK}


class _Description(NamedTuple):
    entry_bytes: int
    codec: str
    width: int
    height: int
    config_key: str


def read_plainly(moov: Moov, path: str, size_bytes: int) -> ClipIndex | None:
    """Read the index of a clip, or return None where it is unusual."""
    boxes = _wanted_boxes(moov.buffer, moov.span)
    if boxes is None:
        return None
    try:
        return _read(moov, boxes, path, size_bytes)
    except (KeyError, UnreadableSourceError):
        # A box that is missing, or something wrong: the other reader says what, in its order.
        return None


def _wanted_boxes(buffer: bytes, moov: Span) -> dict[bytes, Span] | None:
    """Return the payloads of all boxes that matter, or None where boxes are unusual."""
    found: dict[bytes, Span] = {}
    position, end = moov
    allowed: dict[bytes, Any] = _MOOV
    around: list[tuple[int, dict[bytes, Any]]] = []
    unpack = _HEADER.unpack_from
    for _ in range(_BOX_LIMIT):
        while position == end:
            if not around:
                return found
            end, allowed = around.pop()
        body = position + 8
        if body > end:
            return None
        box_bytes, kind = unpack(buffer, position)
        inner = allowed.get(kind)
        stop = position + box_bytes
        if inner is None or box_bytes < 8 or stop > end:
            return None
        if inner is _IGNORED:
            position = stop
            continue
        if kind in found:
            return None
        found[kind] = body, stop
        if inner is _WANTED:
            position = stop
        else:
            around.append((end, allowed))
            position, end, allowed = body, stop, inner
    return None


def _read(moov: Moov, boxes: dict[bytes, Span], path: str, size_bytes: int) -> ClipIndex | None:
    buffer = moov.buffer
    movie_timescale = _timescale(buffer, boxes[b"mvhd"])
    timescale = _timescale(buffer, boxes[b"mdhd"])
    if not movie_timescale or not timescale:
        return None
    place, stop = boxes[b"hdlr"]
    if stop - place < 12 or buffer[place + 8 : place + 12] != b"vide":
        return None
    place, stop = boxes[b"tkhd"]
    if buffer[place] or stop - place < _TRACK_HEADER_BYTES:
        return None
    geometry = buffer[place + _GEOMETRY_PLACE : place + _TRACK_HEADER_BYTES]
    place, stop = boxes[b"stsd"]
    reference_place, reference_stop = boxes[b"dref"]
    if stop - place + reference_stop - reference_place > _DESCRIPTION_LIMIT_BYTES:
        return None
    described = _described(
        buffer[place:stop],
        buffer[reference_place:reference_stop],
        geometry[:MATRIX_BYTES],
    )
    if described is None:
        return None
    entry = buffer[place + 8 : place + 8 + described.entry_bytes]

    place, stop = boxes[b"stsz"]
    if stop - place < 12:
        return None
    uniform_bytes, count = _U32_PAIR.unpack_from(buffer, place + 4)
    if uniform_bytes or not 0 < count <= SAMPLE_LIMIT or place + 12 + count * 4 > stop:
        return None
    sizes: IntArray = np.frombuffer(buffer, ">u4", count, place + 12).astype(np.int64)
    total_bytes = int(np.add.reduce(sizes))
    if total_bytes > size_bytes or np.count_nonzero(sizes) != count:
        return None

    place, stop = boxes[b"stts"]
    if stop - place < 16:
        return None
    rows, covered, duration = _U32_TRIPLE.unpack_from(buffer, place + 4)
    if rows != 1 or covered != count or not 0 < duration < LONGEST_DURATION:
        return None
    decoded = range(0, count * duration, duration)
    first_shown, last_shown = 0, decoded[-1]
    shown = None
    if b"ctts" in boxes:
        shown = composition_offsets(buffer, boxes, count, path)
        shown += np.arange(0, count * duration, duration)
        in_order = np.sort(shown)
        if np.count_nonzero(in_order[1:] == in_order[:-1]):
            return None
        first_shown, last_shown = int(in_order[0]), int(in_order[-1])

    keyframes = _keyframes(buffer, boxes.get(b"stss"), count)
    if keyframes is None:
        return None
    places = _places(buffer, boxes, path, sizes=sizes, total_bytes=total_bytes, media=moov.media)
    if places is None:
        return None
    shift = edit_shift(
        buffer,
        boxes.get(b"elst"),
        path,
        first_shown=first_shown,
        last_shown=last_shown,
        timescale=timescale,
        movie_timescale=movie_timescale,
    )
    decoded = range(shift, shift + count * duration, duration)
    if shown is not None and shift:
        shown += shift
    return ClipIndex(
        path,
        size_bytes,
        described.codec,
        described.width,
        described.height,
        timescale,
        sizes,
        total_bytes,
        moov.media_bytes - total_bytes,
        places,
        decoded,
        decoded if shown is None else shown,
        keyframes,
        entry,
        described.config_key,
        (),
        geometry,
        count * duration,
    )


def _timescale(buffer: bytes, span: Span) -> int:
    """Return the timescale of a plain ``mvhd`` or ``mdhd`` box, 0 where it is unusual."""
    place, stop = span
    if stop - place < _MEDIA_HEADER_BYTES or buffer[place]:
        return 0
    timescale: int = _U32.unpack_from(buffer, place + 12)[0]
    return timescale if timescale <= MAX_TIMESCALE else 0


def _keyframes(buffer: bytes, span: Span | None, num_samples: int) -> BoolArray | None:
    """Return whether decoding can start at each sample; None where the table is unusual."""
    flags = np.zeros(num_samples + 1, np.bool_)
    if span is None:
        flags[:] = True
        return flags[1:]
    place, stop = span
    if stop - place < 12:
        return None
    count = _U32.unpack_from(buffer, place + 4)[0]
    if not count or place + 8 + count * 4 > stop:
        return None
    try:
        flags[np.frombuffer(buffer, ">u4", count, place + 8)] = True
    except IndexError:
        return None
    return None if flags[0] else flags[1:]


def _places(
    buffer: bytes,
    boxes: dict[bytes, Span],
    path: str,
    *,
    sizes: IntArray,
    total_bytes: int,
    media: Span,
) -> IntArray | int | None:
    """Return where the samples lie, as a ClipIndex has it; None where it is unusual."""
    place, stop = boxes[b"stco"]
    runs_place, runs_stop = boxes[b"stsc"]
    if stop - place < 12 or runs_stop - runs_place < 20:
        return None
    chunks, start = _U32_PAIR.unpack_from(buffer, place + 4)
    rows, first, samples, description = _U32_QUADRUPLE.unpack_from(buffer, runs_place + 4)
    if chunks == rows == first == description == 1:
        fits = samples == len(sizes) and media[0] <= start <= media[1] - total_bytes
        return int(start) if fits else None
    offsets, descriptions = sample_offsets(
        buffer,
        boxes,
        sizes.cumsum() - sizes,
        path,
        total_bytes=total_bytes,
        media=media,
    )
    return offsets if descriptions == {1} else None


def _described(descriptions: bytes, references: bytes, matrix: bytes) -> _Description | None:
    """Read the payloads of ``stsd`` and ``dref``; None where they are unusual."""
    if descriptions[_RATES_BOX] != _RATES_HEADER:
        return _described_as_is(descriptions, references, matrix)
    # All clips of a camera have the rest in common: it is looked at once.
    return _described_but_for_rates(descriptions[:-_RATES_BYTES], references, matrix)


@lru_cache(maxsize=64)
def _described_but_for_rates(
    descriptions: bytes, references: bytes, matrix: bytes
) -> _Description | None:
    """Describe all entries that end in some bit rates, if these make no difference."""
    least = _described_as_is(descriptions + bytes(_RATES_BYTES), references, matrix)
    most = _described_as_is(descriptions + b"\xff" * _RATES_BYTES, references, matrix)
    return least if least == most else None


@lru_cache(maxsize=64)
def _described_as_is(descriptions: bytes, references: bytes, matrix: bytes) -> _Description:
    buffer = descriptions + references
    boxes = {b"stsd": (0, len(descriptions)), b"dref": (len(descriptions), len(buffer))}
    entry = chosen_entry(buffer, boxes, {1}, "")
    return _Description(
        len(entry),
        entry[4:8].decode("latin-1"),
        int.from_bytes(entry[32:34], "big"),
        int.from_bytes(entry[34:36], "big"),
        config_digest(entry, matrix),
    )


# ------------------------------------------------------------------------------------------------
# Read the index of an MP4 clip: where its coded samples lie, and when each is shown.


# Reading some and then parsing these costs a quarter less than turn by turn: caches stay warm.
_CLIPS_AT_ONCE = 64
# What of them is held meanwhile; a larger index is read when its turn comes.
_HELD_INDEX_BYTES = 128 * 1024
_PIECE_BYTES = 1024 * 1024
_THREADS = 8
_CLIPS_A_THREAD = _CLIPS_AT_ONCE // _THREADS
# A file of the page cache or of memory takes about 12 microseconds; a disk or network more.
_SLOW_SECONDS = 60e-6
_SMALL_CLIP_BYTES = 1024**2
_READ_AHEAD_BYTES = 256 * 1024**2


class StoredIndex(NamedTuple):
    """The index of a file as it stands there.

    Attributes:
        path: The file.
        moov: Its index.
        status: Its size and what else is known of it, asked when it was opened.
    """

    path: str
    moov: Moov
    status: os.stat_result

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.status.st_size

    def parse(self) -> ClipIndex:
        """Return what the index says."""
        return read_plainly(self.moov, self.path, self.size_bytes) or parse_moov(
            self.moov, self.path, self.size_bytes
        )

    def equals(self, other: StoredIndex) -> bool:
        """Tell whether two files are equally long, with the same bytes as index in one place."""
        ours, theirs = self.moov, other.moov
        return (
            self.size_bytes == other.size_bytes
            and ours.media == theirs.media
            and ours.begin + ours.span[0] == theirs.begin + theirs.span[0]
            and ours.payload == theirs.payload
        )

    @property
    def head(self) -> bytes:
        """The first bytes of the file, as far as they were read."""
        return b"" if self.moov.begin else self.moov.buffer


def read_clip_index(
    path: str | os.PathLike[str], *, pread: Callable[[int, int, int], bytes] = os.pread
) -> ClipIndex:
    """Read the index of a clip.

    Args:
        pread: As for `leconvert.media.boxes.read_moov`.
    """
    fetched = _fetch(os.fspath(path), MOOV_LIMIT_BYTES, pread=pread)
    assert fetched is not None
    return fetched.parse()


def read_stored_index(path: str) -> StoredIndex | None:
    """Read the index of a clip as it stands; None for one that is too large to be held beside."""
    return _fetch(path, _HELD_INDEX_BYTES)


def may_be_damaged(index: ClipIndex, *, pread: Callable[[int, int, int], bytes] = os.pread) -> bool:
    """Tell whether an index and its media data do not fit each other.

    Zeros may lie between samples: an episode of a joined file begins at the place in a block at
    which it began in its source. What a wrong size leaves over or takes too much tells itself: a
    coded frame does not end with a 0 (but some of VP9 do), and none lies on another.

    Args:
        pread: As for `leconvert.media.boxes.read_moov`.
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


def read_alike(paths: Sequence[str], others: Sequence[str]) -> list[ClipIndex | None]:
    """Return the index of each file that has the index and the size of another file.

    Returns:
        None for a file of which this is not so, or not known without a closer look at it, which is
        as quick for a few. All are held at once: there are not to be many.
    """
    if len(paths) < FEWEST_CLIPS:
        return [None] * len(paths)
    files, twins = _fetch_all(paths, 0), _fetch_all(others, 0)
    return _parse_alike(
        [
            file
            if isinstance(file, StoredIndex) and isinstance(twin, StoredIndex) and file.equals(twin)
            else None
            for file, twin in zip(files, twins, strict=True)
        ]
    )


def read_clip_indexes(
    paths: Sequence[str], *, read_ahead: bool = False
) -> Iterator[ClipIndex | UnreadableSourceError]:
    """Read the indices of many clips, several times cheaper than one by one; see `read_clips`."""
    return (index for _, index in read_clips(paths, read_ahead=read_ahead))


def read_clips(
    paths: Sequence[str],
    *,
    read_ahead: bool = False,
    waited_seconds: Callable[[], float] = lambda: (
        time.perf_counter() - time.process_time() - queued_seconds()
    ),
) -> Iterator[tuple[os.stat_result | None, ClipIndex | UnreadableSourceError]]:
    """Read the indices of many clips, and with each the status of its file.

    Where files are slow to answer, several are asked at the same time. A few indices are held.

    Args:
        waited_seconds: What grows while this process waits, and not while any thread of it works,
            as Python's lock may be what another waits for, or has no processor.

    Yields:
        For each path, in order, its index or the error that `read_clip_index` would raise. The
        status is that of the file whose index was read; None where that has to be asked for.
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
            for path, found, clip in zip(block, fetched, _parse_alike(fetched), strict=True):
                if isinstance(found, UnreadableSourceError):
                    yield None, found
                    continue
                status = None if found is None else found.status
                if clip is not None:
                    yield status, clip
                else:
                    try:
                        yield status, read_clip_index(path) if found is None else found.parse()
                    except UnreadableSourceError as error:
                        yield status, error
                if found is not None and found.size_bytes <= advise_bytes:
                    left_bytes -= found.size_bytes


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
    """Read the index of a file unless it is larger than that."""
    try:
        # A named pipe would otherwise wait for somebody who writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            size_bytes = status.st_size
            if size_bytes <= advise_bytes:
                os.posix_fadvise(descriptor, 0, size_bytes, os.POSIX_FADV_WILLNEED)
            found = read_moov(descriptor, size_bytes, path, most_bytes=most_bytes, pread=pread)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableSourceError(
            f"{path} cannot be read: {error.strerror or error}.",
            path=path,
            next_step=f"{GET_AGAIN}. Otherwise leave its episode out (--on-bad-episode drop).",
        ) from error
    return None if found is None else StoredIndex(path, found, status)


# Cameras differ in the set-up of their decoders; strange indices must not fill the memory.
_KEPT_SHAPES = 16

# What the clips of a dataset have in common: what the first took time to learn, others are read by.
_shapes: tuple[IndexShape, ...] = ()


def _parse_alike(
    files: Sequence[StoredIndex | UnreadableSourceError | None],
) -> list[ClipIndex | None]:
    """Return what indices of known shapes say; None for what is to be read by itself."""
    global _shapes  # noqa: PLW0603 - threads may share it: at worst two learn the same
    found: list[ClipIndex | None] = [None] * len(files)
    left = [(place, file) for place, file in enumerate(files) if isinstance(file, StoredIndex)]
    shapes = iter(_shapes)
    while len(left) >= FEWEST_CLIPS:
        shape = next(shapes, None)
        is_new = shape is None
        if shape is None:
            shape = _shape_of(left[0][1])
            if shape is None:
                break
            _shapes = (shape, *_shapes)[:_KEPT_SHAPES]
        clips = shape.read([file for _, file in left])
        for (place, _), clip in zip(left, clips, strict=True):
            found[place] = clip
        left = [each for each, clip in zip(left, clips, strict=True) if clip is None]
        if is_new:
            break
    return found


def _shape_of(file: StoredIndex) -> IndexShape | None:
    """Return the shape of an index, None where it is unusual."""
    moov = file.moov
    boxes = _wanted_boxes(moov.buffer, moov.span)
    clip = None if boxes is None else read_plainly(moov, file.path, file.size_bytes)
    if boxes is None or clip is None:
        return None
    (place, stop), (other_place, other_stop) = boxes[b"stsd"], boxes[b"dref"]
    descriptions = moov.buffer[place:stop]
    rates_vary = descriptions[_RATES_BOX] == _RATES_HEADER and bool(
        _described_but_for_rates(
            descriptions[:-_RATES_BYTES],
            moov.buffer[other_place:other_stop],
            clip.geometry[:MATRIX_BYTES],
        )
    )
    return learn_shape(file, clip, boxes, rates_vary=rates_vary)
