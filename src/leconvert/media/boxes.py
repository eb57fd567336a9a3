"""Find and walk the boxes of an ISO base media file (ISO/IEC 14496-12) without trusting it.

A file is hostile until proven sound: every size is checked against the enclosing box before it is
used, nothing recurses, and every loop is bounded. Only the ``moov`` box, box headers and a few
kilobytes around them are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.support.errors import UnreadableSourceError
from leconvert.support.file_calls import read_ahead
from leconvert.support.storage_errors import CHECK_DISK
from leconvert.support.text import GET_AGAIN_OR_DROP


class UnsupportedClipError(UnreadableSourceError):
    """A clip that may well be sound, but whose samples cannot be joined unchanged.

    A remux into a plain MP4 (:func:`leconvert.media.remux_clip`) may help, without a guarantee.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | None = None,
        next_step: str | None = None,
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(
            f"{path} cannot be joined as it is: {reason}.",
            path=path,
            next_step=next_step
            or ("Copy it into a plain MP4 with `ffmpeg -i IN -c copy OUT.mp4`."),
            details=details,
        )
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        whole = partial(
            UnsupportedClipError, path=self.path, next_step=self.next_step, details=self.details
        )
        return whole, (self.reason,)


UnsignedArray = npt.NDArray[np.unsignedinteger]

# Payload of a box: its first byte and the byte after the last, as indices into a buffer.
Span = tuple[int, int]

MOOV_LIMIT_BYTES = 256 * 1024**2
_TOP_LEVEL_LIMIT = 4096
_BOX_LIMIT = 1024
# With the front of most clips, and a block of zeros before their first frame.
_HEAD_BYTES = 8192
_TAIL_BYTES = 65536
_HELD_HEAD_BYTES = 32 * 1024  # longer fronts are read again where they are compared

_HEADER = Struct(">I4s")
_LARGE_SIZE = Struct(">Q")
_U32 = Struct(">I")
_ONE = _U32.pack(1)
_BIG_U32: np.dtype[np.unsignedinteger] = np.dtype(">u4")

_MAX_TIMESCALE = 2**31 - 1
_NORMAL_RATE = 0x10000
_EDIT_LIMIT = 64
# By the version of a box: the timescale in mvhd or mdhd, the offset of the matrix in tkhd, and an
# entry of elst.
_MEDIA_HEADER = {0: Struct(">12xI4x"), 1: Struct(">20xI8x")}
_MATRIX_PLACE = {0: 40, 1: 52}
_EDIT = {0: Struct(">Iii"), 1: Struct(">Qqi")}
MATRIX_BYTES = 36
# Matrix, width and height.
_GEOMETRY_BYTES = MATRIX_BYTES + 8

_KNOWN_FIRST = frozenset(
    b"ftyp moov mdat free skip wide pnot uuid styp sidx moof meta udta prfl emsg".split()
)
_OTHER_CONTAINERS = (
    (b"\x1aE\xdf\xa3", "a Matroska or WebM file, not an MP4"),
    (b"RIFF", "an AVI file, not an MP4"),
    (b"FLV", "an FLV file, not an MP4"),
    (b"OggS", "an Ogg file, not an MP4"),
    (b"\x00\x00\x01\xba", "an MPEG program stream, not an MP4"),
)
_TRANSPORT_PACKET_BYTES = 188


def broken(path: str, what: str) -> UnreadableSourceError:
    """Return the error for a clip that is damaged or no video, ready to raise."""
    return UnreadableSourceError(
        f"{path} is not a readable video: {what}.",
        path=path,
        next_step=GET_AGAIN_OR_DROP,
    )


def unreadable(path: str, error: OSError) -> UnreadableSourceError:
    """Return the error for a clip that the file system cannot read, ready to raise."""
    return UnreadableSourceError(
        f"{path} cannot be read: {error.strerror or error}.",
        path=path,
        next_step=CHECK_DISK,
    )


class Moov(NamedTuple):
    """A ``moov`` box, with its position and that of the coded frames in the file.

    Attributes:
        buffer: The bytes that were read.
        span: The payload within the buffer.
        begin: Offset of the buffer in the file.
        media: The range of the file that can hold frames: from the first ``mdat``'s payload to the
            end of the last one's.
        media_bytes: Bytes of all ``mdat`` payloads.
        is_cut_off: Whether one of them ends beyond the file.
    """

    buffer: bytes
    span: Span
    begin: int
    media: Span
    media_bytes: int
    is_cut_off: bool = False

    @property
    def payload(self) -> bytes:
        """The payload alone."""
        return self.buffer[self.span[0] : self.span[1]]


def read_moov(
    descriptor: int,
    size_bytes: int,
    path: str,
    *,
    most_bytes: int = MOOV_LIMIT_BYTES,
    pread: Callable[[int, int, int], bytes] = os.pread,
) -> Moov | None:
    """Read the ``moov`` box of an open file, seeking over everything else.

    Args:
        descriptor: The file.
        size_bytes: Its size.
        path: Its name, for errors.
        most_bytes: Larger boxes are not read.
        pread: Reads a number of bytes at a position; by default from the descriptor. Another
            function can read a file that is not on this machine.

    Returns:
        The box; None if it is larger than ``most_bytes``.

    Raises:
        UnreadableSourceError: The file is damaged, or no MP4.
    """
    head = pread(descriptor, _HEAD_BYTES, 0)
    _check_start(head, path)
    window, window_start = head, 0
    position = 0
    found: tuple[bytes, Span, int] | None = None
    media: Span | None = None
    media_bytes = 0
    is_cut_off = False
    for _ in range(_TOP_LEVEL_LIMIT):
        if position + 8 > size_bytes:
            break
        place = position - window_start
        if place + 16 > len(window) and window_start + len(window) < size_bytes:
            # These bytes probably follow the media data: read enough for a complete moov of usual
            # size.
            count = min(_TAIL_BYTES if found is None else 16, size_bytes - position)
            window, window_start = pread(descriptor, count, position), position
            place = 0
        if place + 8 > len(window):
            break
        box_bytes, kind = _HEADER.unpack_from(window, place)
        header_bytes = 8
        if box_bytes == 1:
            if place + 16 > len(window):
                break
            box_bytes, header_bytes = _LARGE_SIZE.unpack_from(window, place + 8)[0], 16
        elif box_bytes == 0:
            box_bytes = size_bytes - position
        if box_bytes < header_bytes:
            if found is not None:
                break
            raise broken(path, f"the box at byte {position} has an impossible size")
        stop = position + box_bytes
        if kind == b"mdat":
            first, last = position + header_bytes, min(stop, size_bytes)
            media = (first if media is None else media[0], last)
            media_bytes += last - first
            is_cut_off |= stop > size_bytes
        if kind == b"moov" and found is None:
            if stop > size_bytes:
                raise broken(path, "its index (moov) reaches beyond the end of the file")
            if box_bytes > MOOV_LIMIT_BYTES:
                raise UnsupportedClipError("its index (moov) is larger than 256 MiB", path=path)
            if place + box_bytes > len(window):
                if box_bytes > most_bytes:
                    return None
                # Also what follows: the next box, and zeros up to a whole block, which a comparison
                # of the file's front needs.
                begin, end = window_start + len(window), min(stop + _HEAD_BYTES, size_bytes)
                window += _pread_exactly(pread, descriptor, begin, end - begin, path)
            found = window, (place + header_bytes, place + box_bytes), window_start
        position = stop
    if found is None:
        raise broken(path, "it has no index (moov); probably the file is cut off")
    return Moov(*found, media or (0, 0), media_bytes, is_cut_off)


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
        """The first bytes of the file; none if the index is long, or not among them."""
        is_held = not self.moov.begin and len(self.moov.buffer) <= _HELD_HEAD_BYTES
        return self.moov.buffer if is_held else b""


def stored_index(
    path: str,
    *,
    most_bytes: int = MOOV_LIMIT_BYTES,
    advise_bytes: int = 0,
    pread: Callable[[int, int, int], bytes] = os.pread,
) -> StoredIndex | None:
    """Read the stored index of a file; the arguments are those of `read_moov`.

    A file of at most ``advise_bytes`` is prefetched whole.
    """
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


VIDEO = b"vide"

# The boxes that describe the video, nested as in the file.
_NOTED: Mapping[bytes, Any] = {}
_TABLES = b"stsd stts ctts stss stsc stsz stco co64 stz2 stps".split()
_WANTED: Mapping[bytes, Any] = {
    **dict.fromkeys((b"mvhd", b"mvex", b"cmov", b"rmra"), _NOTED),
    b"trak": {
        b"tkhd": _NOTED,
        b"edts": {b"elst": _NOTED},
        b"mdia": {
            b"mdhd": _NOTED,
            b"hdlr": _NOTED,
            b"minf": {
                b"dinf": {b"dref": _NOTED},
                b"stbl": {**dict.fromkeys(_TABLES, _NOTED), b"sbgp": {b"rap ": _NOTED}},
            },
        },
    },
}


class Boxes(dict[bytes, Span]):
    """The payloads of the boxes of a track or a movie, by their type.

    Attributes:
        buffer: The bytes that were read.
        path: The file, for errors.
    """

    __slots__ = ("buffer", "path")

    def __init__(self, buffer: bytes, path: str, spans: Mapping[bytes, Span] = {}) -> None:
        super().__init__(spans)
        self.buffer = buffer
        self.path = path

    @property
    def handler(self) -> bytes:
        """The handler of a track: `VIDEO`, or for example ``soun``."""
        start, stop = self.get(b"hdlr", (0, 0))
        if stop - start < 12:
            raise broken(self.path, "one of its tracks has no handler")
        return self.buffer[start + 8 : start + 12]

    def needed(self, kind: bytes) -> Span:
        """Return the payload of a box that every video track has.

        Raises:
            UnreadableSourceError: The box is missing.
        """
        if kind not in self:
            raise broken(self.path, f"its video track has no {kind.decode()} box")
        return self[kind]

    def timescale(self, kind: bytes) -> int:
        """Return the ticks a second in an ``mdhd`` or ``mvhd`` box."""
        start, stop = self.needed(kind)
        layout = _MEDIA_HEADER.get(self.buffer[start]) if stop > start else None
        if layout is None or start + layout.size > stop:
            raise broken(
                self.path, "one of its media headers is too short or of an unknown version"
            )
        timescale: int = layout.unpack_from(self.buffer, start)[0]
        if not 0 < timescale <= _MAX_TIMESCALE:
            raise broken(self.path, "its timescale is impossible")
        return timescale

    def only_row(self, kind: bytes, row: Struct) -> tuple[int, ...] | None:
        """Return the row of a counted table that has one; None for any other table."""
        start, stop = self.get(kind, (0, 0))
        if stop - start < 8 + row.size or self.buffer[start + 4 : start + 8] != _ONE:
            return None
        return row.unpack_from(self.buffer, start + 8)

    def rows(
        self, kind: bytes, *, columns: int = 1, dtype: np.dtype[np.unsignedinteger] = _BIG_U32
    ) -> UnsignedArray:
        """Return a counted table of numbers, shape (rows,), or (rows, columns)."""
        start, stop = self.row_span(kind, columns * dtype.itemsize)
        count = (stop - start) // dtype.itemsize
        table: UnsignedArray = np.frombuffer(self.buffer, dtype, count, start)
        return table if columns == 1 else table.reshape(-1, columns)

    def row_span(self, kind: bytes, row_bytes: int) -> Span:
        """Return the range of the rows of a counted table."""
        start, stop = self.needed(kind)
        if stop - start < 8:
            raise broken(self.path, f"its {kind.decode()} table is cut off")
        end: int = start + 8 + _U32.unpack_from(self.buffer, start + 4)[0] * row_bytes
        if end > stop:
            raise broken(
                self.path, f"its {kind.decode()} table is longer than the box that holds it"
            )
        return start + 8, end

    def geometry(self) -> bytes:
        """Return display matrix, width and height of a track; empty without a header."""
        if b"tkhd" not in self:
            return b""
        start, stop = self[b"tkhd"]
        place = _MATRIX_PLACE.get(self.buffer[start]) if stop > start else None
        if place is None or start + place + _GEOMETRY_BYTES > stop:
            raise broken(self.path, "its track header is too short or of an unknown version")
        return self.buffer[start + place : start + place + _GEOMETRY_BYTES]

    def edit_shift(
        self, first_shown: int, last_shown: int, timescale: int, movie_timescale: int
    ) -> int:
        """Return the ticks that the edit list adds to every time, in the track's timescale.

        Supported are the edits that a muxer writes for a plain clip: any empty edits (a late
        start), then one edit that shows every sample at normal speed. Loaders read the source
        through FFmpeg, so its meaning counts: the first sample is shown right behind the empty
        edits, also if the edit begins before it, and an edit without duration hides everything.

        Raises:
            UnsupportedClipError: The list hides frames, has several parts, or changes the speed.
        """
        start, stop = self.needed(b"elst")
        layout = _EDIT.get(self.buffer[start]) if stop >= start + 8 else None
        if layout is None:
            raise broken(self.path, "its edit list is too short or of an unknown version")
        count = _U32.unpack_from(self.buffer, start + 4)[0]
        room = (stop - start - 8) // layout.size
        if count > room:
            raise broken(self.path, "its edit list is longer than the box that holds it")
        if count < room:  # FFmpeg takes them all
            raise UnsupportedClipError(
                f"an edit list that counts {count} of its {room} entries", path=self.path
            )
        delay = 0
        for number in range(min(count, _EDIT_LIMIT)):
            duration, media_time, rate = layout.unpack_from(
                self.buffer, start + 8 + number * layout.size
            )
            if media_time == -1:
                delay += duration
                continue
            if rate != _NORMAL_RATE:
                raise UnsupportedClipError("an edit list that changes the speed", path=self.path)
            if number + 1 != count:
                raise UnsupportedClipError("an edit list of several parts", path=self.path)
            if media_time < 0:
                raise broken(self.path, "its edit list begins before its media")
            if first_shown < media_time:
                raise UnsupportedClipError(
                    "an edit list that hides frames at the start", path=self.path
                )
            if not movie_timescale:
                raise broken(self.path, "it has no movie header")
            if last_shown >= media_time + _rescale(duration, timescale, movie_timescale):
                raise UnsupportedClipError(
                    "an edit list that hides frames at the end", path=self.path
                )
            shift = -first_shown
            if delay:
                shift += _rescale(delay, timescale, movie_timescale)
            if abs(shift) >= 2**62:
                raise broken(self.path, "its edit list has impossible times")
            return shift
        if count:
            raise UnsupportedClipError("an edit list that shows nothing", path=self.path)
        return 0


class _Walk(NamedTuple):
    """A walk through an index, for others whose boxes have the same sizes.

    Attributes:
        deciding: Selects the bytes that decided the walk.
        found: These bytes.
        movie: The movie's own boxes.
        tracks: The boxes of each track.
    """

    deciding: Struct
    found: tuple[bytes, ...]
    movie: Mapping[bytes, Span]
    tracks: Sequence[Mapping[bytes, Span]]


# By the range of the index. Clips of one length have boxes of the same sizes, unless their tables
# were compressed in runs. A walk takes ten times as long as to see that it would be the same.
_WALKS: dict[Span, _Walk] = {}
_KEPT_WALKS = 256


def wanted_boxes(moov: Moov, path: str) -> tuple[Boxes, list[Boxes]]:
    """Find the boxes of an index that describe its video, in one pass.

    As in FFmpeg, the last of several edit lists with entries counts. No other box may be there
    twice: in FFmpeg it depends on the type which one counts. The tables of a track that is known to
    be no video are skipped. Fewer than 8 remaining bytes at the end of a box, and QuickTime's
    closing zero, are ignored.

    Returns:
        The movie's own boxes, and those of each track.

    Raises:
        UnreadableSourceError: A box reaches beyond the enclosing one, or there are too many.
        UnsupportedClipError: A box is there twice.
    """
    known, buffer, begin = _WALKS.get(moov.span), moov.buffer, moov.span[0]
    if known is not None and known.deciding.unpack_from(buffer, begin) == known.found:
        tracks = [Boxes(buffer, path, spans) for spans in known.tracks]
        return Boxes(buffer, path, known.movie), tracks
    deciding = set[Span]()
    movie, tracks = _walk(moov, path, deciding)
    end, letters = begin, ""
    for first, stop in sorted(deciding):
        letters += f"{first - end}x{stop - first}s"
        end = stop
    layout = Struct(letters)
    if len(_WALKS) >= _KEPT_WALKS:
        _WALKS.clear()
    _WALKS[moov.span] = _Walk(
        layout,
        layout.unpack_from(buffer, begin),
        dict(movie),
        [dict(each) for each in tracks],
    )
    return movie, tracks


def _walk(moov: Moov, path: str, deciding: set[Span]) -> tuple[Boxes, list[Boxes]]:
    """Walk through an index, and note the ranges of all bytes that decide the result."""
    movie, tracks = Boxes(moov.buffer, path), list[Boxes]()
    boxes, wanted = movie, _WANTED
    around: list[tuple[int, Mapping[bytes, Any]]] = []
    buffer, (position, end) = moov.buffer, moov.span
    unpack = _HEADER.unpack_from
    for _ in range(_BOX_LIMIT):
        while position + 8 > end:
            if not around:
                return movie, tracks
            position = end
            end, wanted = around.pop()
            if not around:
                boxes = movie
        box_bytes, kind = unpack(buffer, position)
        deciding.add((position, position + 8))
        body, stop = position + 8, position + box_bytes
        if stop > end or box_bytes < 8:
            if box_bytes == 0:
                stop = position if kind == b"\0\0\0\0" else end
            elif box_bytes == 1 and position + 16 <= end:
                deciding.add((body, body + 8))
                body, stop = position + 16, position + _LARGE_SIZE.unpack_from(buffer, body)[0]
            if stop == position:
                position = end
                continue
            if not body <= stop <= end:
                raise broken(path, "a box of its index reaches beyond the one around it")
        inside = wanted.get(kind)
        position = stop
        if inside is None:
            continue
        if not inside:
            if kind in boxes and kind != b"elst":
                raise UnsupportedClipError(f"two {kind.decode()} boxes", path=path)
            if kind not in boxes or not 8 <= stop - body < _EDIT[0].size + 8:
                boxes[kind] = body, stop
        elif kind == b"sbgp":
            deciding.add((body, min(body + 8, stop)))
            if buffer[body + 4 : min(body + 8, stop)] in inside:
                raise UnsupportedClipError("random access groups", path=path)
        elif kind != b"minf" or b"hdlr" not in boxes or _is_video(boxes, deciding):
            if kind == b"trak":
                boxes = Boxes(buffer, path)
                tracks.append(boxes)
            around.append((end, wanted))
            position, end, wanted = body, stop, inside
    raise broken(path, "its index has an implausible number of boxes")


def _is_video(boxes: Boxes, deciding: set[Span]) -> bool:
    start, _ = boxes[b"hdlr"]
    deciding.add((start + 8, start + 12))
    return boxes.handler == VIDEO


def _check_start(head: bytes, path: str) -> None:
    if head[4:8] in _KNOWN_FIRST:
        return
    for magic, what in _OTHER_CONTAINERS:
        if head.startswith(magic):
            raise UnsupportedClipError(what, path=path)
    if len(head) > _TRANSPORT_PACKET_BYTES and head[0] == head[_TRANSPORT_PACKET_BYTES] == ord("G"):
        raise UnsupportedClipError("an MPEG transport stream, not an MP4", path=path)
    raise broken(path, "it is empty" if not head else "it does not begin like an MP4")


def _pread_exactly(
    pread: Callable[[int, int, int], bytes], descriptor: int, start: int, count: int, path: str
) -> bytes:
    data = pread(descriptor, count, start)
    if len(data) == count:
        return data
    pieces = [data]
    missing = count - len(data)
    while missing and data:
        data = pread(descriptor, missing, start + count - missing)
        pieces.append(data)
        missing -= len(data)
    if missing:
        raise broken(path, "it became shorter while it was read")
    return b"".join(pieces)


def _rescale(ticks: int, to_timescale: int, from_timescale: int) -> int:
    """Convert ticks between timescales, rounded to the nearest."""
    return (2 * ticks * to_timescale + from_timescale) // (2 * from_timescale)
