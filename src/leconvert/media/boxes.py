"""Find and walk the boxes of an ISO base media file (ISO/IEC 14496-12) without trusting it.

A file is hostile until proven sound: every size is checked against what encloses it before it is
used, nothing recurses, every loop is bounded, and no more is read than the ``moov`` box.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN


class UnsupportedClipError(UnreadableSourceError):
    """A clip that may well be sound, but whose samples cannot be joined as they lie.

    A remux into a plain MP4 (:func:`leconvert.media.remux_clip`) may help; that it will is not
    promised.
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
            next_step=next_step or "Remux it into a plain MP4 (ffmpeg -i IN -c copy OUT.mp4).",
            details=details,
        )
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.reason, self.path, self.next_step, self.details))


def _rebuild(
    reason: str, path: str | None, next_step: str | None, details: tuple[str, ...]
) -> UnsupportedClipError:
    return UnsupportedClipError(reason, path=path, next_step=next_step, details=details)


# Payload of a box: first byte and the byte after the last, as places in a buffer.
Span = tuple[int, int]

MOOV_LIMIT_BYTES = 256 * 1024**2
_TOP_LEVEL_LIMIT = 4096
_BOX_LIMIT = 1024
_HEAD_BYTES = 4096
_TAIL_BYTES = 65536

_HEADER = Struct(">I4s")
_LARGE_SIZE = Struct(">Q")

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
        next_step=f"{GET_AGAIN}. Otherwise leave its episode out (--on-bad-episode drop).",
    )


def unreadable(path: str, error: OSError) -> UnreadableSourceError:
    """Return the error for a clip that the file system does not give out, ready to raise."""
    return UnreadableSourceError(
        f"{path} cannot be read: {error.strerror or error}.",
        path=path,
        next_step="Check the disk or the network and run the same command again.",
    )


class Moov(NamedTuple):
    """A ``moov`` box and where in the file it and the coded frames lie.

    Attributes:
        buffer: What was read.
        span: The place of the payload in the buffer.
        begin: Where in the file the buffer begins.
        media: Where in the file frames can lie: from the first ``mdat``'s payload on to the end of
            the last one's.
        media_bytes: Bytes in all of them.
    """

    buffer: bytes
    span: Span
    begin: int
    media: Span
    media_bytes: int

    @property
    def payload(self) -> bytes:
        """Its payload alone."""
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
        pread: Reads from the descriptor so many bytes at a position; another one reads a file
            that is not on this machine.

    Returns:
        The box; None where it is larger than ``most_bytes``.
    """
    head = pread(descriptor, _HEAD_BYTES, 0)
    _check_start(head, path)
    window, window_start = head, 0
    position = 0
    found: tuple[bytes, Span, int] | None = None
    media: Span | None = None
    media_bytes = 0
    for _ in range(_TOP_LEVEL_LIMIT):
        if position + 8 > size_bytes:
            break
        place = position - window_start
        if place + 16 > len(window) and window_start + len(window) < size_bytes:
            # Most likely what follows the media data: read so far that a usual moov is complete.
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
        if kind == b"moov" and found is None:
            if stop > size_bytes:
                raise broken(path, "its index (moov) reaches beyond the end of the file")
            if box_bytes > MOOV_LIMIT_BYTES:
                raise UnsupportedClipError("its index (moov) is larger than 256 MiB", path=path)
            if place + box_bytes <= len(window):
                span = place + header_bytes, place + box_bytes
                found = window, span, window_start
            elif box_bytes > most_bytes:
                return None
            else:
                begin = position + header_bytes
                payload = _pread_exactly(pread, descriptor, begin, box_bytes - header_bytes, path)
                found = payload, (0, len(payload)), begin
        position = stop
    if found is None:
        raise broken(path, "it has no index (moov); most likely it is truncated")
    return Moov(*found, media or (0, 0), media_bytes)


VIDEO = b"vide"

# What is wanted of an index: the boxes that say something of its video and, nested, where they lie.
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


def wanted_boxes(moov: Moov, path: str) -> tuple[dict[bytes, Span], list[dict[bytes, Span]]]:
    """Find the boxes of an index that say something of its video, in one pass.

    Of two boxes of one type in a track the first counts, and of edit lists the last, as in FFmpeg.
    The tables of a track that is known to be no video are passed over. Fewer than 8 bytes that are
    left over at the end of a box, and QuickTime's closing zero, are ignored.

    Returns:
        The payloads of the movie's own boxes by their type, and those of each track.
    """
    movie: dict[bytes, Span] = {}
    tracks: list[dict[bytes, Span]] = []
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
        body, stop = position + 8, position + box_bytes
        if stop > end or box_bytes < 8:
            if box_bytes == 0:
                stop = position if kind == b"\0\0\0\0" else end
            elif box_bytes == 1 and position + 16 <= end:
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
            if kind not in boxes or kind == b"elst":
                boxes[kind] = body, stop
        elif kind == b"sbgp":
            if buffer[body + 4 : min(body + 8, stop)] in inside:
                raise UnsupportedClipError("random access groups", path=path)
        elif kind != b"minf" or b"hdlr" not in boxes or handler_of(buffer, boxes, path) == VIDEO:
            if kind == b"trak":
                boxes = {}
                tracks.append(boxes)
            around.append((end, wanted))
            position, end, wanted = body, stop, inside
    raise broken(path, "its index has an implausible number of boxes")


def handler_of(buffer: bytes, boxes: Mapping[bytes, Span], path: str) -> bytes:
    """Return what a track is: `VIDEO`, or for example ``soun``."""
    start, stop = boxes.get(b"hdlr", (0, 0))
    if stop - start < 12:
        raise broken(path, "a track of it has no handler")
    return buffer[start + 8 : start + 12]


def box_of(boxes: Mapping[bytes, Span], kind: bytes, path: str) -> Span:
    """Return the payload of a box that every video track has."""
    if kind not in boxes:
        raise broken(path, f"its video track has no {kind.decode()} box")
    return boxes[kind]


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
