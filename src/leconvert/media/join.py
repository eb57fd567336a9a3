"""Join clips into one MP4 in one pass, without touching a coded byte.

The front of the file (``ftyp``, ``moov`` and the header of ``mdat``) is new. The one time rule: a
sample's time is its rank times the frame duration. Everything follows from the frame rate and the
order of presentation; no source time reaches the output.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from fractions import Fraction
from functools import lru_cache, partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from struct import Struct, pack
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import UnsupportedClipError, broken, unreadable
from leconvert.media.codecs import entry_for_output
from leconvert.media.index import (
    ClipIndex,
    TruncatedClipError,
    order_digest,
    read_clip_index,
    read_clip_indexes,
)
from leconvert.model.float32_tolerance import placed_rate
from leconvert.model.values import BoolArray, IntArray, Slice
from leconvert.support.errors import (
    SourceError,
    StorageError,
    TargetError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.file_calls import RangeMover, full_sync
from leconvert.support.values import dataclass

_TICKS_PER_FRAME = 512
# FFmpeg keeps time bases and frame rates as signed 32-bit fractions.
_INT32_MAX = 2**31 - 1
# FFmpeg considers a table with a larger composition offset broken, and ignores all of it.
_LARGEST_OFFSET = 2**28
# Allows a frame to be shown 32 frames after it is decoded.
_LONGEST_FRAME_TICKS = _LARGEST_OFFSET // 32
_UINT32_MAX = 2**32 - 1
# A longer file needs 64-bit offsets.
_WIDE_FROM_BYTES = _UINT32_MAX

_BOX = Struct(">I4s")
_LARGE_BOX = Struct(">I4sQ")
_UNDETERMINED_LANGUAGE = 0x55C4

# Size, type, version and flags, then the contents; for each version mvhd, tkhd, edts with elst,
# mdhd.
_HEADERS = [
    (
        Struct(f">I4sI {time}{time}I{time} 80s"),
        Struct(f">I4sI {time}{time}I4x{time} 16x44s"),
        Struct(f">I4s I4sII {time}{time.lower()}HH"),
        Struct(f">I4sI {time}{time}I{time} H2x"),
    )
    for time in "IQ"
]
_TABLE_OF_TIMES = Struct(">I4sIIII")
_TABLE_OF_SIZES = Struct(">I4sIII")
_COUNTED = Struct(">I4sII")
_CHUNKS = Struct(">III")


class FileSamples:
    """The samples of a file, collected episode by episode.

    It keeps five bytes a sample and some numbers an episode, but no reference to its arguments. It
    does not check that the numbers agree with each other.

    Attributes:
        source_offsets: Offset of each episode's first sample in its source file; decides its
            alignment.
        num_bytes: Bytes of each episode's samples.
        num_samples: Samples of all episodes.
    """

    def __init__(self) -> None:
        # Columns of numbers, and tables in their written form. A file can have tens of thousands of
        # episodes: an object for each would take more memory than these bytes.
        self.source_offsets, self.num_bytes = array("q"), array("q")
        self.num_samples = 0
        self._counts = array("q")
        self._sizes = bytearray()
        self._keyframes = bytearray()
        self._leads: list[tuple[int, npt.NDArray[np.int32]]] = []

    def add(
        self,
        sizes: IntArray,
        keyframes: BoolArray,
        lead: npt.NDArray[np.int32] | None,
        *,
        source_offset: int,
        num_bytes: int,
    ) -> None:
        """Append an episode; arrays have shape (S,), S > 0."""
        if lead is not None:
            self._leads.append((self.num_samples, lead))
        self._sizes += sizes.astype(">u4").tobytes()
        self._keyframes += keyframes.tobytes()
        self._counts.append(len(sizes))
        self.source_offsets.append(source_offset)
        self.num_bytes.append(num_bytes)
        self.num_samples += len(sizes)

    @property
    def largest_lag(self) -> int:
        """The largest number of frames by which a sample is shown later than it is decoded."""
        return max((-int(lead.min()) for _, lead in self._leads), default=0)

    def tables(self, *, shift: int, frame_duration: int) -> list[bytes | bytearray]:
        """Write ``ctts`` and ``stss`` if they are needed, ``stsc`` and ``stsz``."""
        tables: list[bytes | bytearray] = []
        if self._leads:
            tables.append(self._composition_table(shift, frame_duration))
        keyframes = np.frombuffer(bytes(self._keyframes), np.bool_)
        numbers = (keyframes.nonzero()[0] + 1).astype(">u4")
        if len(numbers) < self.num_samples:
            tables.append(_counted(b"stss", numbers))
        tables.append(self._chunk_table())
        size = _TABLE_OF_SIZES.size + 4 * self.num_samples
        tables += (_TABLE_OF_SIZES.pack(size, b"stsz", 0, 0, self.num_samples), self._sizes)
        return tables

    def _composition_table(self, shift: int, frame_duration: int) -> bytes:
        offsets = np.zeros(self.num_samples, np.int64)
        for first, lead in self._leads:
            offsets[first : first + len(lead)] = lead
        offsets *= frame_duration
        offsets += shift
        if int(offsets.max()) > _LARGEST_OFFSET:
            raise SourceError(
                "A clip has impossible times: the display time of a frame is too long after its "
                "decoding time."
            )
        heads = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
        rows = np.empty((len(heads), 2), ">u4")
        rows[:, 0] = np.diff(heads, append=len(offsets))
        rows[:, 1] = offsets[heads]
        return _counted(b"ctts", rows)

    def _chunk_table(self) -> bytes:
        """Return ``stsc``: one chunk an episode, a row for each change of its samples."""
        rows: list[bytes] = []
        chunk = 1
        for samples, run in groupby(self._counts):
            rows.append(_CHUNKS.pack(chunk, samples, 1))
            chunk += sum(1 for _ in run)
        size = _COUNTED.size + len(rows) * _CHUNKS.size
        return b"".join((_COUNTED.pack(size, b"stsc", 0, len(rows)), *rows))


class FileHeader(NamedTuple):
    """The first bytes of a joined file, and the offsets of the episodes.

    Attributes:
        content: ``ftyp``, ``moov`` and the header of ``mdat``.
        positions: Offset of each episode's first sample, ascending.
        size_bytes: Size of the whole file.
    """

    content: bytes
    positions: Sequence[int]
    size_bytes: int


@lru_cache(maxsize=16)
def frame_ticks(fps: Fraction) -> tuple[int, int]:
    """Return timescale and frame duration of a joined file: frame *i* is at i * duration / scale.

    The timescale is 512 times the numerator of the frame rate, the duration 512 times its
    denominator. A smaller power of two replaces 512 if the timescale would not fit 31 bits
    (FFmpeg's limit) or the duration 23 bits (so that 32 reordered frames fit the offsets that
    FFmpeg accepts). A rate whose own fraction is too large, such as a long decimal, is replaced by
    the nearest possible one: the only case in which times are not exactly i / fps. See
    `leconvert.model.float32_tolerance.placed_rate` for the difference.

    Raises:
        UsageError: The rate is below 2**-20 or above 2**20.
    """
    if not Fraction(1, 2**20) <= fps <= 2**20:
        raise UsageError(
            f"A frame rate of {fps} is impossible.",
            next_step="Correct fps in meta/info.json.",
        )
    fps = placed_rate(fps)
    factor = _TICKS_PER_FRAME
    while factor * fps.numerator > _INT32_MAX or factor * fps.denominator > _LONGEST_FRAME_TICKS:
        factor //= 2
    return fps.numerator * factor, fps.denominator * factor


def has_exact_times(index: ClipIndex, fps: Fraction) -> bool:
    """Return whether frame *i* is at i / fps, as in a joined file, with equal durations."""
    return index.is_at_rate(Fraction(*frame_ticks(fps)))


def build_header(
    samples: FileSamples,
    *,
    fps: Fraction,
    sample_entry: bytes,
    geometry: bytes,
    block_align: int,
) -> FileHeader:
    """Return the header of a file that holds these episodes in this order.

    Args:
        samples: The episodes' samples.
        fps: Frames a second.
        sample_entry: The sample entry of all samples.
        geometry: Display matrix, width and height, 44 bytes.
        block_align: As for `join_clips`.
    """
    num_episodes = len(samples.num_bytes)
    for large in (False, True):
        # The episodes' offsets are last in it, so the rest is written only once.
        front = _front(samples, fps=fps, sample_entry=sample_entry, geometry=geometry, large=large)
        place_bytes = num_episodes * (8 if large else 4)
        media_header = _LARGE_BOX if large else _BOX
        header_bytes = sum(map(len, front)) + place_bytes + media_header.size
        positions = array("q")
        end = header_bytes
        for source_offset, num_bytes in zip(samples.source_offsets, samples.num_bytes, strict=True):
            if block_align:
                end += (source_offset - end) % block_align
            positions.append(end)
            end += num_bytes
        if end <= _WIDE_FROM_BYTES:
            break
    media_bytes = end - header_bytes + media_header.size
    media_box = (
        _LARGE_BOX.pack(1, b"mdat", media_bytes) if large else _BOX.pack(media_bytes, b"mdat")
    )
    places = np.array(positions).astype(">u8" if large else ">u4").tobytes()
    content = b"".join((*front, places, media_box))
    return FileHeader(content, positions, end)


def _front(
    samples: FileSamples,
    *,
    fps: Fraction,
    sample_entry: bytes,
    geometry: bytes,
    large: bool,
) -> list[bytes | bytearray]:
    """Return ``ftyp`` and ``moov`` in pieces, up to the episodes' offsets, which end it."""
    timescale, frame_duration = frame_ticks(fps)
    num_samples = samples.num_samples
    duration = num_samples * frame_duration
    # One shift for the whole file keeps every composition offset at or above zero.
    shift = max(0, samples.largest_lag) * frame_duration
    media_duration = duration + shift
    # Version 1 of a box has times of 64 bits.
    version = int(media_duration > _UINT32_MAX)
    movie_header, track_header, edits, media_header = _HEADERS[version]
    kind = version << 24

    num_places = len(samples.num_bytes)
    places_bytes = num_places * (8 if large else 4)
    tables = [
        _descriptions(sample_entry),
        _TABLE_OF_TIMES.pack(_TABLE_OF_TIMES.size, b"stts", 0, 1, num_samples, frame_duration),
        *samples.tables(shift=shift, frame_duration=frame_duration),
        _COUNTED.pack(_COUNTED.size + places_bytes, b"co64" if large else b"stco", 0, num_places),
    ]
    table_box = 8 + sum(map(len, tables)) + places_bytes
    information_box = 8 + len(_MEDIA_INFORMATION) + table_box
    media_box = 8 + media_header.size + len(_HANDLER) + information_box
    track_box = 8 + track_header.size + edits.size + media_box
    movie_box = 8 + movie_header.size + track_box
    return [
        _file_type(sample_entry[4:8]),
        _BOX.pack(movie_box, b"moov"),
        movie_header.pack(
            movie_header.size, b"mvhd", kind, 0, 0, timescale, duration, _END_OF_MOVIE_HEADER
        ),
        _BOX.pack(track_box, b"trak"),
        track_header.pack(track_header.size, b"tkhd", kind | 3, 0, 0, 1, duration, geometry),
        edits.pack(edits.size, b"edts", edits.size - 8, b"elst", kind, 1, duration, shift, 1, 0),
        _BOX.pack(media_box, b"mdia"),
        media_header.pack(
            media_header.size,
            b"mdhd",
            kind,
            0,
            0,
            timescale,
            media_duration,
            _UNDETERMINED_LANGUAGE,
        ),
        _HANDLER,
        _BOX.pack(information_box, b"minf"),
        _MEDIA_INFORMATION,
        _BOX.pack(table_box, b"stbl"),
        *tables,
    ]


@lru_cache(maxsize=16)
def _descriptions(sample_entry: bytes) -> bytes:
    return _full(b"stsd", 0, 0, pack(">I", 1), entry_for_output(sample_entry))


@lru_cache(maxsize=16)
def _file_type(codec: bytes) -> bytes:
    brands = [b"isom", b"iso2", b"mp41"]
    if codec in {b"avc1", b"av01"}:
        brands.insert(2, codec)
    return _box(b"ftyp", b"isom", pack(">I", 512), *brands)


def _counted(kind: bytes, rows: npt.NDArray[np.unsignedinteger]) -> bytes:
    content = rows.tobytes()
    return _COUNTED.pack(_COUNTED.size + len(content), kind, 0, len(rows)) + content


def _full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(kind, pack(">I", version << 24 | flags), *parts)


def _box(kind: bytes, *parts: bytes) -> bytes:
    return b"".join((_BOX.pack(8 + sum(map(len, parts)), kind), *parts))


# The same in every file.
_END_OF_MOVIE_HEADER = b"".join(
    [
        pack(">IHxx8x", 0x10000, 0x100),
        pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000),
        bytes(24),
        pack(">I", 2),
    ]
)
_HANDLER = _full(b"hdlr", 0, 0, bytes(4), b"vide", bytes(12), b"VideoHandler\0")
_MEDIA_INFORMATION = b"".join(
    [
        _full(b"vmhd", 0, 1, bytes(8)),
        _box(b"dinf", _full(b"dref", 0, 0, pack(">I", 1), _full(b"url ", 0, 1))),
    ]
)


# Whole blocks of this size are shared if the file system can; smaller parts are copied.
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """How the bytes of a copy were moved.

    Attributes:
        size_bytes: Size of the file.
        copied_bytes: Bytes that were copied.
        cloned_bytes: Bytes whose blocks are shared with the source.
    """

    size_bytes: int
    copied_bytes: int
    cloned_bytes: int


def copy_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    on_bytes: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sync: bool = False,
) -> CopiedFile:
    """Copy a file, sharing its blocks if the file system can.

    The source is only read, and shares no inode with the copy. After an error the target is
    removed.

    Args:
        source: The file; a link to a file is followed.
        target: The copy; must not exist.
        on_bytes: Called with the number of bytes as they arrive.
        should_stop: Called now and then; True ends the copy.
        sync: Whether to sync the copy to disk.

    Raises:
        UnreadableSourceError: The source cannot be read to its end.
        TargetError: The target exists.
        StorageError: The target cannot be written.
        InterruptedRunError: ``should_stop`` returned true.
    """
    name, new_name = os.fspath(source), os.fspath(target)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(name, error) from error
    try:
        size_bytes = os.fstat(descriptor).st_size
        destination = create_file(new_name)
        try:
            mover = RangeMover(
                destination,
                new_name,
                block_align=_BLOCK_BYTES,
                on_bytes=on_bytes,
                should_stop=should_stop,
            )
            mover.move(descriptor, name, 0, size_bytes, 0)
            if sync:
                full_sync(destination)
        except BaseException:
            Path(new_name).unlink(missing_ok=True)
            raise
        finally:
            os.close(destination)
    finally:
        os.close(descriptor)
    return CopiedFile(size_bytes, mover.copied_bytes, mover.cloned_bytes)


class LastIndex:
    """The index of the file that a join cut last, so that the next join need not read it again.

    Use it for consecutive joins while the files do not change. It holds at most one index.
    """

    def __init__(self) -> None:
        self._index: ClipIndex | None = None

    def forget(self) -> None:
        """Hold no index."""
        self._index = None

    def of(self, path: str) -> ClipIndex | None:
        """Return the index if it is of this file, else None."""
        return self._index if self._index is not None and self._index.path == path else None

    def keep(self, index: ClipIndex, stop: int) -> None:
        """Hold an index if the file has samples after those that were cut out."""
        self._index = index if stop < index.num_samples else None


@dataclass(frozen=True, slots=True)
class JoinedFile(CopiedFile):
    """The outcome of :func:`join_clips`; of its bytes, only coded ones are copied or shared.

    Attributes:
        header_bytes: Bytes before the first byte of media data: ``ftyp``, ``moov`` and the header
            of ``mdat``.
        clip_digests: `order_digest` of each clip as it was read, in the order of clips.
    """

    header_bytes: int
    clip_digests: tuple[str, ...]


def join_clips(
    clips: Sequence[Slice],
    destination: str | os.PathLike[str],
    *,
    fps: Fraction,
    block_align: int = 0,
    scratch_dir: str | os.PathLike[str] | None = None,
    coded: Callable[[int], str] | None = None,
    last_index: LastIndex | None = None,
    is_whole: bool = False,
    on_bytes: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sync: bool = False,
) -> JoinedFile:
    """Join episodes into one MP4 whose frame *i* is shown at exactly i / fps.

    The bytes of the result depend only on the clips, ``fps`` and ``block_align``. They do not
    depend on the file system, on how bytes were moved, or on whether the samples came from the
    original clips or from parts that this function joined before. After an error the destination is
    removed.

    Args:
        clips: Episodes in order; all of one decoder configuration.
        destination: The new file; must not exist.
        fps: Frames a second.
        block_align: 0, or a block size in bytes: each episode then begins at its source offset
            modulo this size (with zeros between), so that whole blocks can be shared with the
            source.
        scratch_dir: Folder for clips that must be remuxed, without re-encoding; by default the
            folder of the destination. It needs room for these clips.
        coded: Returns the path of a clip's coded bytes, given its index in ``clips``. The path is
            valid until the next call. It is for clips whose own files hold the index only.
        last_index: The index that the previous join kept; this join keeps one for the next.
        is_whole: Whether the single clip is a file that is copied with all its samples. Then it may
            begin with any frame, as before, since no part is cut off and no clip follows.
        on_bytes: Called with the number of coded bytes as they arrive.
        should_stop: Called now and then; True ends the join.
        sync: Whether to sync the file to disk.

    Returns:
        Size and frames of the file, and how its bytes were moved.

    Raises:
        UnreadableSourceError: A clip is missing, damaged, shorter than its index says, does not
            begin with a keyframe, or shows a frame before it.
        SourceError: The clips do not share one decoder configuration.
        TargetError: The destination exists.
        StorageError: The destination cannot be written.
        InterruptedRunError: ``should_stop`` returned true.
        UsageError: No clips, or an impossible frame rate or alignment.
    """
    if not clips:
        raise UsageError("There are no clips to join.", path=os.fspath(destination))
    if block_align < 0:
        raise UsageError(f"A block alignment of {block_align} bytes is impossible.")
    target = os.fspath(destination)
    with ExitStack() as cleanup:
        scratch = _Scratch(scratch_dir, target, fps, cleanup)
        coded_bytes, digests, samples, first = _read_episodes(
            clips, scratch, LastIndex() if last_index is None else last_index, is_whole=is_whole
        )
        header = build_header(
            samples,
            fps=fps,
            sample_entry=first.sample_entry,
            geometry=first.geometry,
            block_align=block_align,
        )
        descriptor = create_file(target)
        try:
            mover = RangeMover(
                descriptor,
                target,
                block_align=block_align,
                on_bytes=on_bytes,
                should_stop=should_stop,
            )
            mover.write([header.content], 0)
            with _OpenedSource() as source:
                for place, (clip, runs, position) in enumerate(
                    zip(clips, coded_bytes.runs(), header.positions, strict=True)
                ):
                    # A remuxed clip was read whole, and is in the scratch folder.
                    remuxed = coded_bytes.remuxed.get(place)
                    where = None if coded is None or remuxed else partial(coded, place)
                    source.open(remuxed or clip.path, where)
                    arrived = position
                    for start, length in runs:
                        mover.move(source.descriptor, source.path, start, length, arrived)
                        arrived += length
            if sync:
                full_sync(descriptor)
        except BaseException:
            with suppress(OSError):
                Path(target).unlink()
            raise
        finally:
            os.close(descriptor)
    return JoinedFile(
        size_bytes=header.size_bytes,
        header_bytes=len(header.content),
        copied_bytes=mover.copied_bytes,
        cloned_bytes=mover.cloned_bytes,
        clip_digests=tuple(digests),
    )


class _Scratch:
    """Remuxes clips that need it into a folder that is removed when the join ends."""

    def __init__(
        self,
        parent: str | os.PathLike[str] | None,
        target: str,
        fps: Fraction,
        cleanup: ExitStack,
    ) -> None:
        self._num_remuxed = 0
        self._parent = parent
        self._target = target
        self._fps = fps
        self._cleanup = cleanup
        self._folder: Path | None = None

    def remuxed_index(self, path: str, reason: str) -> ClipIndex:
        from leconvert.media.pyav import remux_clip

        if self._folder is None:
            parent = Path(self._parent or Path(self._target).parent)
            try:
                self._folder = Path(
                    self._cleanup.enter_context(TemporaryDirectory(prefix=".remux-", dir=parent))
                )
            except OSError as error:
                raise StorageError(
                    f"A temporary clip cannot be written to {parent}: {error.strerror or error}.",
                    path=str(parent),
                    next_step="Free disk space or check the disk, then run the same command again.",
                ) from error
        plain = self._folder / f"{self._num_remuxed:06d}.mp4"
        remux_clip(path, plain, fps=self._fps)
        self._num_remuxed += 1
        try:
            return read_clip_index(plain)
        except UnsupportedClipError as error:
            raise broken(path, f"{reason}, and after a remux: {error.reason}") from error


_path = attrgetter("path")


class _CodedBytes:
    """The ranges of each episode's coded bytes in its file.

    A file can have tens of thousands of episodes, so these are columns of numbers.

    Attributes:
        remuxed: The files of clips that were remuxed, by the episode's rank.
    """

    def __init__(self) -> None:
        self.remuxed: dict[int, str] = {}
        self._starts, self._lengths, self._stops = array("q"), array("q"), array("q")

    def add(self, runs: list[tuple[int, int]], remuxed: str | None) -> None:
        """Append an episode."""
        if remuxed is not None:
            self.remuxed[len(self._stops)] = remuxed
        for start, length in runs:
            self._starts.append(start)
            self._lengths.append(length)
        self._stops.append(len(self._starts))

    def runs(self) -> Iterator[Iterator[tuple[int, int]]]:
        """Yield start and length of each range of bytes of each episode."""
        runs, first = zip(self._starts, self._lengths, strict=True), 0
        for stop in self._stops:
            yield islice(runs, stop - first)
            first = stop


def _read_episodes(
    clips: Sequence[Slice], scratch: _Scratch, last: LastIndex, *, is_whole: bool
) -> tuple[_CodedBytes, list[str], FileSamples, ClipIndex]:
    """Return the ranges of each episode's bytes, its digest, all samples, and the first index."""
    coded_bytes = _CodedBytes()
    digests: list[str] = []
    samples = FileSamples()
    first: ClipIndex | None = None
    path, stop = clips[0].path, 0
    index = last.of(path)
    last.forget()
    # Episodes of one file follow each other, so its index is read once for all.
    names = [name for name, _ in groupby(clips, _path)]
    found = read_clip_indexes(names if index is None else names[1:], read_ahead=True)
    for clip in clips:
        if index is None or clip.path != path:
            path, answer = clip.path, next(found)
            if isinstance(answer, UnsupportedClipError):
                index = scratch.remuxed_index(path, answer.reason)
            elif isinstance(answer, TruncatedClipError) and clip.frames is not None:
                index = answer.index  # the slices must be inside it
            elif isinstance(answer, UnreadableSourceError):
                raise answer
            else:
                index = answer
        if first is None:
            first = index
        elif index.config_key != first.config_key:
            raise SourceError(
                f"{clip.path} needs another decoder configuration than {clips[0].path}.",
                path=clip.path,
                next_step="Run the command again with --restart: a new plan puts the two clips "
                "into separate files.",
            )
        num_samples, start = index.num_samples, clip.first or 0
        count = num_samples - start if clip.frames is None else clip.frames
        stop = start + count
        holds_others = clip.first is None and count < num_samples
        if start < 0 or count < 1 or stop > num_samples or holds_others:
            raise UnreadableSourceError(
                f"{clip.path} has {num_samples} frames. The conversion needs "
                f"{'exactly ' if holds_others else ''}{count} frames from frame {start} on.",
                path=clip.path,
            )
        sizes, keyframes = index.sizes[start:stop], index.keyframes[start:stop]
        if count < num_samples:
            _check_cut(index, clip.path, start, stop)
        elif not (keyframes[0] or is_whole):
            raise broken(clip.path, "it does not begin with a keyframe")
        lead = index.reordering(start, stop)
        if lead is not None and lead[0] and not is_whole:
            raise broken(clip.path, "it shows a frame before its first keyframe")
        runs = index.byte_runs(start, stop)
        samples.add(
            sizes,
            keyframes,
            lead,
            source_offset=runs[0][0],
            num_bytes=sum([length for _, length in runs]),
        )
        coded_bytes.add(runs, None if index.path == clip.path else index.path)
        digests.append(order_digest(sizes, keyframes, lead))
    assert first is not None
    assert index is not None
    last.keep(index, stop)
    return coded_bytes, digests, samples, first


def _check_cut(index: ClipIndex, path: str, start: int, stop: int) -> None:
    """Refuse to cut out samples that need others to decode, or among which others are shown."""
    if not index.keyframes[start]:
        reason = f"frame {start} begins an episode but is not a keyframe"
    elif not (index.can_cut(start) and index.can_cut(stop)):
        reason = f"other frames are shown between frames {start} and {stop - 1} of an episode"
    else:
        return
    raise UnreadableSourceError(
        f"{path} cannot be cut without encoding it again: {reason}.",
        path=path,
        next_step="Leave the episode out with --on-bad-episode drop.",
    )


class _OpenedSource:
    """The file that coded bytes are read from; it stays open while its episodes follow."""

    def __init__(self) -> None:
        self.descriptor = -1
        self.path = ""
        self._name: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def open(self, name: str, where: Callable[[], str] | None) -> None:
        """Open a file if it is not open; ``where`` returns another path of its coded bytes."""
        if name == self._name:
            return
        # Close first: to fetch the next file, the open one may have to be removed.
        self._close()
        self.path = name if where is None else where()
        try:
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._name = name

    def _close(self) -> None:
        if self._name is not None:
            self._name = None
            os.close(self.descriptor)


def create_file(target: str) -> int:
    """Create a file that must not exist, and return its descriptor.

    Raises:
        TargetError: The file exists.
        StorageError: It cannot be created.
    """
    try:
        return os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise TargetError(
                f"{target} exists already. It was not overwritten.", path=target
            ) from error
        raise StorageError(
            f"{target} cannot be created: {error.strerror or error}.",
            path=target,
            next_step="Check the folder and its permissions, then run the same command again.",
        ) from error
