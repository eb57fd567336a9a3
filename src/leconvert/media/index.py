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

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate, batched, chain, pairwise
from struct import Struct, unpack_from
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import (
    MATRIX_BYTES,
    VIDEO,
    Boxes,
    Moov,
    Span,
    StoredIndex,
    UnsupportedClipError,
    broken,
    stored_index,
    unreadable,
    wanted_boxes,
)
from leconvert.media.codecs import (
    IDENTITY_MATRIX,
    check_one_configuration,
    entry_and_digest,
    start_check,
)
from leconvert.model.values import LEROBOT_TOLERANCE_SECONDS, BoolArray, IntArray, Misfit
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.machine import queued_seconds
from leconvert.support.values import dataclass

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
# FFmpeg reads no composition offsets at all if one of them, but for the last two, is larger.
_LONGEST_OFFSET = 2**28
_U32 = Struct(">I")
_U32_PAIR = Struct(">II")
_U32_TRIPLE = Struct(">III")
_BIG_U64: np.dtype[np.unsignedinteger] = np.dtype(">u8")

_ANYWHERE = 2**62
_LARGER_THAN_THE_FILE = "its frames are larger than the file; probably the file is cut off"
_OUTSIDE_THE_MEDIA = (
    "its index places frames outside its media data (mdat); the file is cut off, or the "
    "index is wrong"
)

# The first four numbers of a display matrix (ISO/IEC 14496-12, 6.2.2), in 16.16.
_ROTATIONS = {
    (0x10000, 0, 0, 0x10000): 0,
    (0, 0x10000, -0x10000, 0): 90,
    (-0x10000, 0, 0, -0x10000): 180,
    (0, -0x10000, 0x10000, 0): 270,
}
_READ_BYTES = 4 * 1024**2
_SAMPLES_A_SUM = 1024
_SAFE_PRODUCT = 2**62
_FIT = Misfit(0)


@dataclass(eq=False)  # without slots, for its cached properties
class ClipIndex:
    """The index of a clip's one video track; arrays have shape (S,), in decode order.

    Guaranteed: every sample lies inside the file as it was when the index was read, no two samples
    have the same presentation time, at least one is a keyframe, and the samples' bytes together do
    not exceed the file. Not guaranteed: that the samples decode, and that the file stays unchanged.
    Do not change an index. Arrays that two numbers describe in a plain clip are made when they are
    needed.

    Attributes:
        path: The file.
        file_size_bytes: Its size.
        timescale: Ticks a second of the times below.
        sizes: Bytes of each sample.
        num_bytes: Sum of the sizes.
        unindexed_bytes: Bytes of the media data beyond that sum; 0 if another track has a part of
            it. Muxers leave no such bytes, and leconvert leaves only zeros; otherwise the index may
            be damaged (`may_be_damaged`, `check_decodes`).
        places: Offset of each sample in the file; a plain number is the offset of the first sample
            if all others follow without gaps.
        step: Ticks from each sample to the next in decode order; 0 if they differ.
        shown: Presentation times in ticks with the edit list applied: usually the first frame is at
            0.
        keyframes: Whether decoding can start at the sample.
        sample_entry: The stored sample entry, box header included.
        config_key: Clips with equal keys can share one file; see ``config_digest``.
        other_tracks: Handler types of tracks that are left out, such as ``soun``.
        geometry: Display matrix, width and height of the track as in ``tkhd``, 44 bytes.
        duration: Ticks of all samples together, by the table of decode times. Readers compute the
            average frame rate from it.
    """

    path: str
    file_size_bytes: int
    timescale: int
    sizes: IntArray
    num_bytes: int
    unindexed_bytes: int
    places: IntArray | int
    step: int
    shown: IntArray | range
    keyframes: BoolArray
    sample_entry: bytes
    config_key: str
    other_tracks: tuple[str, ...]
    geometry: bytes
    duration: int

    @property
    def num_samples(self) -> int:
        """Number of coded samples, S."""
        return len(self.sizes)

    @property
    def codec(self) -> str:
        """Four characters, such as ``avc1`` or ``av01``."""
        return self.sample_entry[4:8].decode("latin-1")

    @property
    def width(self) -> int:
        """Coded width in pixels."""
        return int.from_bytes(self.sample_entry[32:34])

    @property
    def height(self) -> int:
        """Coded height in pixels."""
        return int.from_bytes(self.sample_entry[34:36])

    @property
    def rotation(self) -> int | None:
        """Clockwise rotation of the shown frames in degrees; None for any other matrix."""
        a, b, _, c, d = unpack_from(">5i", self.geometry)
        return _ROTATIONS.get((a, b, c, d))

    @cached_property
    def offsets(self) -> IntArray:
        """Offset of each sample in the file."""
        if isinstance(self.places, int):
            offsets: IntArray = self.sizes.cumsum()
            offsets -= self.sizes
            offsets += self.places
            return offsets
        return self.places

    @cached_property
    def presentation_times(self) -> IntArray:
        """Ticks with the edit list applied: usually the first frame is at 0."""
        return as_array(self.shown)

    @cached_property
    def ranks(self) -> IntArray:
        """Rank of each sample in the order of presentation, shape (S,)."""
        if isinstance(self.shown, range):
            return np.arange(len(self.shown))
        return presentation_ranks(self.shown)

    def byte_runs(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return start and length in bytes of the ranges of samples ``first`` to ``stop``.

        Samples that follow each other in the file share a range; ranges are in the order of
        samples.
        """
        if first >= stop:
            return []
        if isinstance(self.places, int) and stop - first == len(self.sizes):
            return [(self.places, self.num_bytes)]
        sizes = self.sizes[first:stop]
        if isinstance(self.places, int):
            return [(self.places + self._bytes_before(first), int(np.add.reduce(sizes)))]
        offsets = self.places[first:stop]
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1])
        if not len(breaks):
            return [(int(offsets[0]), int(np.add.reduce(sizes)))]
        heads = np.concatenate(([0], breaks + 1))
        lengths = np.add.reduceat(sizes, heads)
        return list(zip(offsets[heads].tolist(), lengths.tolist(), strict=True))

    @cached_property
    def _sums(self) -> IntArray:
        """Bytes of all samples up to the end of each block of 1,024."""
        blocks = range(0, len(self.sizes), _SAMPLES_A_SUM)
        return np.add.reduceat(self.sizes, blocks).cumsum()

    def _bytes_before(self, sample: int) -> int:
        """Return the bytes of all samples before one. Offsets would take 8 bytes a sample."""
        block = sample // _SAMPLES_A_SUM
        before = int(self._sums[block - 1]) if block else 0
        return before + int(np.add.reduce(self.sizes[block * _SAMPLES_A_SUM : sample]))

    def reordering(self, first: int, stop: int) -> npt.NDArray[np.int32] | None:
        """Return the rank within samples ``first`` to ``stop`` minus the position in decode order.

        None means that the samples are shown in decode order.
        """
        if isinstance(self.shown, range):
            return None
        times = self.shown[first:stop]
        if not np.count_nonzero(times[1:] < times[:-1]):
            return None
        return (presentation_ranks(times) - np.arange(stop - first)).astype(np.int32)

    def can_cut(self, sample: int) -> bool:
        """Return whether all samples before ``sample`` are shown before all others."""
        if isinstance(self.shown, range) or not 0 < sample < len(self.shown):
            return True
        return bool(self._cuts[sample - 1])

    @cached_property
    def _cuts(self) -> BoolArray:
        """Whether the clip can be cut after each sample but the last, shape (S - 1,)."""
        times = self.presentation_times
        latest = np.maximum.accumulate(times[:-1])
        earliest = np.minimum.accumulate(times[:0:-1])[::-1]
        return latest <= earliest

    def misfit(self, fps: Fraction) -> Misfit:
        """Return why LeRobot would not find every frame in this file unchanged; nothing if it does.

        Its decoder torchcodec takes the frame at time *i* / average rate as frame *i*, and refuses
        all frames of a clip that starts later. PyAV takes the nearest frame, which is a wrong one
        if times are uneven. So every frame must have the same duration and the first must be at 0.
        The last must be less than 1e-4 s from its time at ``fps``, also if both times are rounded
        to single precision as LeRobot rounds them.
        """
        found = Misfit.OTHER_TRACKS if self.other_tracks else _FIT
        if self.is_at_rate(fps):
            return found
        count = self.num_samples
        times = self.shown if isinstance(self.shown, range) else np.sort(self.shown)
        first, last = int(times[0]), int(times[-1])
        if first:
            found |= Misfit.LATE_START
        step, rest = divmod(self.duration, count)
        is_even = not rest and last - first == step * (count - 1)
        if is_even and not isinstance(times, range):
            is_even = bool((times[1:] - times[:-1] == step).all())
        if not is_even or not step:
            return found | Misfit.UNEVEN_TIMES
        # The frame rate of the file, against the dataset's.
        if step * fps.numerator != self.timescale * fps.denominator:
            seconds = Fraction(count - 1) / fps
            off = abs(Fraction(step * (count - 1), self.timescale) - seconds)
            rounding = float(np.spacing(np.float32(seconds)))
            if float(off) + rounding >= LEROBOT_TOLERANCE_SECONDS:
                found |= Misfit.OTHER_RATE
        return found

    def is_at_rate(self, fps: Fraction) -> bool:
        """Return whether each frame is at exactly rank / ``fps``, with equal durations."""
        step, rest = divmod(self.timescale * fps.denominator, fps.numerator)
        if rest or step * self.num_samples != self.duration:
            return False
        if isinstance(self.shown, range):
            return self.shown == range(0, self.duration, step)
        return np.array_equal(np.sort(self.shown), np.arange(0, self.duration, step))

    def begins_at(self, sample: int) -> bool:
        """Return whether a cut beginning here decodes by itself, and shows this frame first."""
        is_first = bool(self.keyframes[sample]) and self.ranks[sample] == sample
        return is_first and self.can_cut(sample)

    def cut_around(
        self, first: int, stop: int, *, begin: int = 0, end: int | None = None
    ) -> tuple[int, int] | None:
        """Return the shortest cut from which some frames decode.

        Args:
            first: The first frame, in the order of presentation.
            stop: The frame after the last.
            begin: No sample before this one is taken.
            end: No sample from this one on is taken; None for no limit.

        Returns:
            The first sample, which is a keyframe from which on all frames are shown, and the sample
            after the last; None if there is no such cut.
        """
        heads = np.flatnonzero(self.keyframes[begin : first + 1]) + begin
        last = self.num_samples if end is None else min(end, self.num_samples)
        head = next((at for at in heads[::-1].tolist() if self.begins_at(at)), None)
        tail = next((at for at in range(stop, last + 1) if self.can_cut(at)), None)
        return None if head is None or tail is None else (head, tail)

    def false_keyframes(self, first: int, stop: int) -> list[int]:
        """Return the samples that are listed as keyframes although no decoder can start at them.

        Encoders that refresh a picture gradually over many frames (intra refresh) list the frames
        at which the refresh begins, and some programs write a wrong table. The samples are read,
        not decoded. For unknown codecs the list is empty.

        Raises:
            UnreadableSourceError: The file cannot be read.
        """
        starts = start_check(self.codec)
        if starts is None:
            return []
        try:
            with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123 (unbuffered, by name)
                return [
                    sample
                    for sample in (np.flatnonzero(self.keyframes[first:stop]) + first).tolist()
                    if not starts(
                        os.pread(file.fileno(), int(self.sizes[sample]), int(self.offsets[sample])),
                        self.sample_entry,
                    )
                ]
        except OSError as error:
            raise unreadable(self.path, error) from error

    def frames_off_their_place(self, fps: Fraction) -> IntArray:
        """Return ranks of frames whose stored time is half a frame or more from rank / ``fps``."""
        nowhere = np.empty(0, np.int64)
        if self.is_at_rate(fps):
            return nowhere
        # |time / timescale - rank / fps| >= 1 / (2 fps), in integers:
        # |2 time fps.num - 2 rank timescale fps.den| >= timescale fps.den
        frame = self.timescale * fps.denominator
        twice = 2 * fps.numerator
        if isinstance(self.shown, range):
            # The error is a linear function of the rank, so it is largest at one of the ends.
            last = len(self.shown) - 1
            ends = (self.shown[0] * twice, self.shown[last] * twice - 2 * last * frame)
            if max(ends) < frame and min(ends) > -frame:
                return nowhere
        times = np.sort(self.presentation_times)
        largest = max(abs(int(times[0])), abs(int(times[-1])))
        if largest * twice + 2 * len(times) * frame >= _SAFE_PRODUCT:
            times = times.astype(object)
        off = np.abs(times * twice - np.arange(len(times)).astype(times.dtype) * (2 * frame))
        return np.flatnonzero(off >= frame)


def presentation_ranks(presentation_times: IntArray) -> IntArray:
    """Return the rank of each time in ascending order; equal times keep their order."""
    order = np.argsort(presentation_times, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def order_digest(
    sizes: IntArray, keyframes: BoolArray, lead: npt.NDArray[np.signedinteger] | None
) -> str:
    """Return a digest of the facts that a join must preserve besides the coded bytes.

    Args:
        sizes: Bytes of each sample, shape (S,).
        keyframes: Whether decoding can start at the sample, shape (S,).
        lead: The result of `ClipIndex.reordering`.

    Returns:
        16 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(np.ascontiguousarray(sizes, np.int64), digest_size=8)
    digest.update(np.packbits(keyframes))
    if lead is not None and np.count_nonzero(lead):
        digest.update(np.ascontiguousarray(lead, np.int32))
    return digest.hexdigest()


def samples_sha256(index: ClipIndex, first: int = 0, stop: int | None = None) -> str:
    """Return the SHA-256 of coded samples, concatenated in decode order.

    Raises:
        UnreadableSourceError: The file cannot be read, or is shorter than its index says.
    """
    digest = hashlib.sha256()
    first, stop, _ = slice(first, stop).indices(index.num_samples)
    try:
        with open(index.path, "rb", buffering=0) as file:  # noqa: PTH123 (unbuffered, by name)
            for place, num_bytes in index.byte_runs(first, stop):
                done = 0
                while done < num_bytes:
                    piece = os.pread(
                        file.fileno(), min(num_bytes - done, _READ_BYTES), place + done
                    )
                    if not piece:
                        raise broken(index.path, "it is shorter than its index says")
                    digest.update(piece)
                    done += len(piece)
    except OSError as error:
        raise unreadable(index.path, error) from error
    return digest.hexdigest()


def as_array(times: IntArray | range) -> IntArray:
    """Return times as an array."""
    if isinstance(times, range):
        return np.arange(times.start, times.stop, times.step)
    return times


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
    fetched = stored_index(os.fspath(path), pread=pread)
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
    fetched = stored_index(index.path, pread=pread)
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
    """Return the stored index of each file, or the error; None for an index that is not held."""
    found: list[StoredIndex | UnreadableSourceError | None] = []
    for path in paths:
        try:
            index = stored_index(path, most_bytes=_HELD_INDEX_BYTES, advise_bytes=advise_bytes)
        except UnreadableSourceError as error:
            found.append(error)
        else:
            found.append(index)
    return found


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
    boxes: Boxes
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
    numbers = np.frombuffer(b"".join(tables), ">u4").astype(np.int64)
    return numbers, [size // 4 for size in accumulate(map(len, tables), initial=0)]


def _track(stored: StoredIndex) -> _Track:
    """Parse an index up to its tables of samples."""
    path, buffer = stored.path, stored.moov.buffer
    boxes, other_tracks, movie_timescale = _video_of(stored.moov, path)
    timescale = boxes.timescale(b"mdhd")
    if b"stz2" in boxes:
        raise UnsupportedClipError("compact sample sizes (stz2)", path=path)
    if b"stps" in boxes:
        raise UnsupportedClipError("partial sync samples (stps)", path=path)
    if b"stco" in boxes and b"co64" in boxes:
        raise UnsupportedClipError("two tables of offsets (stco and co64)", path=path)
    start, stop = boxes.needed(b"stsz")
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
        keyframes = boxes.row_span(b"stss", 4)
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
    if uniform:
        sizes, num_bytes = np.full(count, uniform, np.int64), count * uniform
    elif have_zeros and np.count_nonzero(sizes) < count:
        raise UnsupportedClipError("frames without bytes", path=path)
    elif num_bytes > file_size_bytes and not moov.is_cut_off:
        raise broken(path, _LARGER_THAN_THE_FILE)
    media = (moov.media[0], _ANYWHERE) if moov.is_cut_off else moov.media
    places, descriptions = _places(boxes, sizes, num_bytes, media)
    decoded, duration = _decode_times(boxes, count)
    shown, first_shown, last_shown = _shown_times(boxes, decoded)
    keyframes = _keyframes(None if listed is None else keyframe_numbers, count, path)
    geometry = boxes.geometry()
    matrix = geometry[:MATRIX_BYTES] or IDENTITY_MATRIX
    entry, config_key = entry_and_digest(boxes, descriptions, matrix)
    if b"elst" in boxes:
        times = first_shown, last_shown, timescale, movie_timescale
        shift = boxes.edit_shift(*times)
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


def _video_of(moov: Moov, path: str) -> tuple[Boxes, tuple[str, ...], int]:
    """Return the boxes of the one video track, the handlers of others, and the movie's timescale.

    The timescale is 0 if there is no movie header.
    """
    movie, tracks = wanted_boxes(moov, path)
    if b"cmov" in movie or b"rmra" in movie:
        raise UnsupportedClipError("a QuickTime file with a compressed or foreign index", path=path)
    movie_timescale = movie.timescale(b"mvhd") if b"mvhd" in movie else 0
    videos, others = [], []
    for boxes in tracks:
        if boxes.handler == VIDEO:
            videos.append(boxes)
        else:
            others.append(boxes.handler.decode("latin-1"))
    if b"mvex" in movie:
        for boxes in videos:
            check_one_configuration(boxes)
        raise UnsupportedClipError("fragmented MP4", path=path)
    if not videos:
        raise broken(path, "it has no video track")
    if len(videos) > 1:
        raise UnsupportedClipError(f"{len(videos)} video tracks", path=path)
    return videos[0], tuple(others), movie_timescale


def _places(
    boxes: Boxes,
    sizes: IntArray,
    num_bytes: int,
    media: Span,
) -> tuple[IntArray | int, set[int]]:
    """Return the samples' offsets, as `ClipIndex.places`, and the numbers of their entries."""
    chunk = boxes.only_row(b"stco", _U32)
    run = boxes.only_row(b"stsc", _U32_TRIPLE)
    if chunk is not None and run is not None and run[:2] == (1, len(sizes)):
        if not media[0] <= chunk[0] <= media[1] - num_bytes:
            raise broken(boxes.path, _OUTSIDE_THE_MEDIA)
        return chunk[0], {run[2]}
    is_wide = b"co64" in boxes
    starts = boxes.rows(b"co64", dtype=_BIG_U64) if is_wide else boxes.rows(b"stco")
    runs = boxes.rows(b"stsc", columns=3)
    if not len(starts) or not len(runs):
        raise broken(boxes.path, "its chunk table is empty")
    firsts = runs[:, 0].astype(np.int64)
    chunks = np.concatenate((firsts[1:], [len(starts) + 1])) - firsts  # of each run
    if firsts[0] != 1 or int(chunks.min()) <= 0 or not runs[:, 1].all():
        raise broken(boxes.path, "its chunk table contradicts itself")
    samples = np.repeat(runs[:, 1].astype(np.int64), chunks)  # of each chunk
    stops = samples.cumsum()
    if stops[-1] != len(sizes):
        few = "fewer" if stops[-1] < len(sizes) else "more"
        raise broken(boxes.path, f"its chunks hold {few} frames than it has")
    heads = stops - samples
    # Keep the unsigned type: an offset may be 2**64 - 1.
    if int(starts.min()) < media[0] or int(starts.max()) > media[1]:
        raise broken(boxes.path, _OUTSIDE_THE_MEDIA)
    chunk_starts = starts.astype(np.int64)
    chunk_stops = chunk_starts + np.add.reduceat(sizes, heads)
    if int(chunk_stops.max()) > media[1]:
        raise broken(boxes.path, _OUTSIDE_THE_MEDIA)
    descriptions = set(runs[:, 2].tolist())
    if not np.count_nonzero(chunk_starts[1:] != chunk_stops[:-1]):
        return int(chunk_starts[0]), descriptions
    begins = sizes.cumsum()
    begins -= sizes
    begins += np.repeat(chunk_starts - begins[heads], samples)
    return begins, descriptions


def _decode_times(boxes: Boxes, num_samples: int) -> tuple[IntArray | range, int]:
    """Return when each sample is decoded, in ticks from the start, and the total duration."""
    run = boxes.only_row(b"stts", _U32_PAIR)
    if run is not None and run[0] == num_samples and 0 < run[1] < _LONGEST_DURATION:
        return range(0, num_samples * run[1], run[1]), num_samples * run[1]
    runs = boxes.rows(b"stts", columns=2)
    counts = runs[:, 0].astype(np.int64)
    if int(counts.sum()) != num_samples:
        raise broken(boxes.path, "its time table does not cover its frames")
    used = np.flatnonzero(counts)
    if int(used[-1]) >= len(used) and num_samples > 1:
        # FFmpeg never gets past such a row: it takes the row's duration for all later frames.
        raise UnsupportedClipError("a row for no frames in its time table", path=boxes.path)
    if int(runs[:, 1].max()) >= _LONGEST_DURATION:
        raise UnsupportedClipError("implausible frame durations", path=boxes.path)
    durations = np.repeat(runs[:, 1].astype(np.int64), counts)
    ends = durations.cumsum()
    return ends - durations, int(ends[-1])


def _shown_times(boxes: Boxes, decoded: IntArray | range) -> tuple[IntArray | range, int, int]:
    """Return when each sample is shown before any edit, with the first and the last time."""
    if b"ctts" in boxes:
        times = _composition_offsets(boxes, len(decoded))
        times += as_array(decoded)
        in_order = np.sort(times)
    elif isinstance(decoded, range):
        return decoded, decoded[0], decoded[-1]
    else:
        times = in_order = decoded
    if not (in_order[1:] > in_order[:-1]).all():
        raise UnsupportedClipError("two frames at the same time", path=boxes.path)
    return times, int(in_order[0]), int(in_order[-1])


def _composition_offsets(boxes: Boxes, num_samples: int) -> IntArray:
    """Return the offsets to add to the decode times."""
    runs = boxes.rows(b"ctts", columns=2)
    counts = runs[:, 0].tolist()
    if sum(counts) != num_samples:
        raise broken(boxes.path, "its composition table does not cover its frames")
    # Signed whatever the version says: writers disagree, and no writer means an offset above 2**31.
    values = runs[:, 1].astype(np.uint32).view(np.int32).astype(np.int64)
    if np.any((np.abs(values) > _LONGEST_OFFSET)[:-2] & (runs[:-2, 0] > 0)):
        raise UnsupportedClipError("implausible composition offsets", path=boxes.path)
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
