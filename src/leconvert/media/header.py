"""Lay out and write the front of a joined MP4: ``ftyp``, ``moov`` and the header of ``mdat``.

The one time rule: a sample's time is its rank times the frame duration. Everything follows from
the frame rate and the order of presentation; no source time reaches the output.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from struct import Struct, pack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.media.clip import ClipIndex
from leconvert.media.sample_entry import entry_for_output
from leconvert.model.float32_tolerance import placed_rate
from leconvert.support.errors import SourceError, UsageError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_TICKS_PER_FRAME = 512
# FFmpeg keeps time bases and frame rates as signed 32-bit fractions.
_INT32_MAX = 2**31 - 1
# FFmpeg takes a table with a larger composition offset for broken and passes over all of it.
_LARGEST_OFFSET = 2**28
# So that a frame may be shown 32 frames after it is decoded.
_LONGEST_FRAME_TICKS = _LARGEST_OFFSET // 32
_UINT32_MAX = 2**32 - 1
# A file whose end lies beyond this needs 64-bit offsets.
_WIDE_FROM_BYTES = _UINT32_MAX

_BOX = Struct(">I4s")
_LARGE_BOX = Struct(">I4sQ")
_UNDETERMINED_LANGUAGE = 0x55C4

# Size, type, version and flags, then what each says; by version mvhd, tkhd, edts with elst, mdhd.
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
    """The samples of a file, collected one episode after the other.

    It keeps five bytes a sample, some numbers an episode, and nothing of what it was given. It does
    not check that the numbers agree with each other.

    Attributes:
        source_offsets: Where each episode's first sample lies in its source file; decides its
            alignment.
        num_bytes: Bytes of each episode's samples.
        num_samples: Samples of all episodes.
    """

    def __init__(self) -> None:
        self.source_offsets: list[int] = []
        self.num_bytes: list[int] = []
        self.num_samples = 0
        self._counts: list[int] = []
        # Tables as they are written. A file can have tens of thousands of episodes: an object of
        # its own for each would take more than the bytes in it.
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
        """How many frames later than it is decoded the latest sample is shown, if all wait."""
        return max((-int(lead.min()) for _, lead in self._leads), default=0)

    def tables(self, *, shift: int, frame_duration: int) -> list[bytes | bytearray]:
        """Write ``ctts`` and ``stss`` where they are needed, ``stsc`` and ``stsz``."""
        tables: list[bytes | bytearray] = []
        if self._leads:
            tables.append(self._composition_table(shift, frame_duration))
        keyframes = np.frombuffer(bytes(self._keyframes), np.bool_)
        numbers = np.flatnonzero(keyframes) + 1
        if len(numbers) < self.num_samples:
            tables.append(_counted(b"stss", numbers.astype(">u4")))
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
            raise SourceError("A clip shows frames implausibly long after they are decoded.")
        heads = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
        rows = np.empty((len(heads), 2), ">u4")
        rows[:, 0] = np.diff(heads, append=len(offsets))
        rows[:, 1] = offsets[heads]
        return _counted(b"ctts", rows)

    def _chunk_table(self) -> bytes:
        """One chunk an episode; a row where the number of samples changes."""
        rows: list[bytes] = []
        chunk = 1
        for samples, run in groupby(self._counts):
            rows.append(_CHUNKS.pack(chunk, samples, 1))
            chunk += sum(1 for _ in run)
        size = _COUNTED.size + len(rows) * _CHUNKS.size
        return b"".join((_COUNTED.pack(size, b"stsc", 0, len(rows)), *rows))


class FileHeader(NamedTuple):
    """The first bytes of a joined file, and where each episode's samples go.

    Attributes:
        content: ``ftyp``, ``moov`` and the header of ``mdat``.
        positions: Where each episode's first sample goes, ascending.
        size_bytes: Size of the whole file.
    """

    content: bytes
    positions: tuple[int, ...]
    size_bytes: int


@lru_cache(maxsize=16)
def frame_ticks(fps: Fraction) -> tuple[int, int]:
    """Return timescale and frame duration of a joined file: frame *i* is at i * duration / scale.

    The timescale is 512 times the numerator of the frame rate, the duration 512 times its
    denominator. Where the timescale would not fit 31 bits (which is what FFmpeg keeps) or the
    duration 23 (so that 32 reordered frames fit the offsets that FFmpeg believes), a smaller power
    of two takes the place of 512. A rate whose own fraction is too large, such as a long decimal,
    is replaced by the nearest that is not: the only case in which times are not exactly i / fps.
    See `leconvert.model.float32_tolerance.placed_rate` for how near it is.
    """
    if not Fraction(1, 2**20) <= fps <= 2**20:
        raise UsageError(
            f"A frame rate of {fps} is impossible.",
            next_step="Mend fps in meta/info.json.",
        )
    fps = placed_rate(fps)
    factor = _TICKS_PER_FRAME
    while factor * fps.numerator > _INT32_MAX or factor * fps.denominator > _LONGEST_FRAME_TICKS:
        factor //= 2
    return fps.numerator * factor, fps.denominator * factor


def has_exact_times(index: ClipIndex, fps: Fraction) -> bool:
    """Tell whether frame *i* is shown at i / fps, as in a joined file, and all equally long."""
    scale, ticks = frame_ticks(fps)
    # time / timescale == rank * ticks / scale, in whole numbers of any size
    shown = index.presentation_times.astype(object) * scale
    exact = index.ranks.astype(object) * ticks * index.timescale
    end = index.num_samples * ticks * index.timescale
    return np.array_equal(shown, exact) and index.duration * scale == end


def build_header(
    samples: FileSamples,
    *,
    fps: Fraction,
    sample_entry: bytes,
    geometry: bytes,
    block_align: int,
) -> FileHeader:
    """Write the header of a file that holds these episodes in this order."""
    num_episodes = len(samples.num_bytes)
    for large in (False, True):
        # Where the episodes lie comes last in it, so that the rest is written only once.
        front = _front(samples, fps=fps, sample_entry=sample_entry, geometry=geometry, large=large)
        place_bytes = num_episodes * (8 if large else 4)
        media_header = _LARGE_BOX if large else _BOX
        header_bytes = sum(map(len, front)) + place_bytes + media_header.size
        positions = []
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
    places = pack(f">{num_episodes}{'Q' if large else 'I'}", *positions)
    content = b"".join((*front, places, media_box))
    return FileHeader(content, tuple(positions), end)


def _front(
    samples: FileSamples,
    *,
    fps: Fraction,
    sample_entry: bytes,
    geometry: bytes,
    large: bool,
) -> list[bytes | bytearray]:
    """Write ``ftyp`` and ``moov`` up to the places of the episodes, which end it, in pieces."""
    timescale, frame_duration = frame_ticks(fps)
    num_samples = samples.num_samples
    duration = num_samples * frame_duration
    # One shift for the whole file keeps every composition offset at or above zero.
    shift = max(0, samples.largest_lag) * frame_duration
    media_duration = duration + shift
    # In version 1 of a box its times have 64 bits.
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


# What is the same in every file.
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
