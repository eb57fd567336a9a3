"""Find and walk the boxes of an ISO base media file (ISO/IEC 14496-12) without trusting it.

A file is hostile until proven sound: every size is checked against the enclosing box before it is
used, nothing recurses, every loop is bounded, and only the ``moov`` box and box headers are read.

Sample entries (8.5.2) describe how to decode a track. All samples of a track use one chosen entry.
It is copied into a joined file, and its digest shows which clips can share one file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from leconvert.support.errors import UnreadableSourceError
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
        return (_rebuild, (self.reason, self.path, self.next_step, self.details))


def _rebuild(
    reason: str, path: str | None, next_step: str | None, details: tuple[str, ...]
) -> UnsupportedClipError:
    return UnsupportedClipError(reason, path=path, next_step=next_step, details=details)


# Payload of a box: its first byte and the byte after the last, as indices into a buffer.
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
        raise broken(path, "it has no index (moov); probably the file is cut off")
    return Moov(*found, media or (0, 0), media_bytes, is_cut_off)


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


def wanted_boxes(moov: Moov, path: str) -> tuple[dict[bytes, Span], list[dict[bytes, Span]]]:
    """Find the boxes of an index that describe its video, in one pass.

    As in FFmpeg, the first of several boxes of one type in a track counts, except that the last
    edit list counts. The tables of a track that is known to be no video are skipped. Fewer than 8
    remaining bytes at the end of a box, and QuickTime's closing zero, are ignored.

    Returns:
        The payloads of the movie's own boxes by their type, and those of each track.

    Raises:
        UnreadableSourceError: A box reaches beyond the enclosing one, or there are too many.
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
    """Return a track's handler: `VIDEO`, or for example ``soun``."""
    start, stop = boxes.get(b"hdlr", (0, 0))
    if stop - start < 12:
        raise broken(path, "one of its tracks has no handler")
    return buffer[start + 8 : start + 12]


def box_of(boxes: Mapping[bytes, Span], kind: bytes, path: str) -> Span:
    """Return the payload of a box that every video track has.

    Raises:
        UnreadableSourceError: The box is missing.
    """
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


CHANGES_MIDWAY = "its decoder configuration changes midway"

# Box header (8) and the fixed fields of a visual sample entry (78); child boxes follow.
VISUAL_HEADER_BYTES = 86
_REFERENCE_INDEX = slice(14, 16)
_COMPRESSOR_NAME = slice(50, 82)

_U32 = Struct(">I")
_U32_PAIR = Struct(">II")
_ENTRY_LIMIT = 64
_SELF_CONTAINED = 1
IDENTITY_MATRIX = b"".join(
    _U32.pack(value) for value in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
)

_ES_DESCRIPTOR = 3
_DECODER_CONFIG_DESCRIPTOR = 4
_ES_RATES_BYTES = 11  # bufferSizeDB (3), maxBitrate (4), avgBitrate (4)
_BTRT_BYTES = 12  # bufferSizeDB, maxBitrate, avgBitrate


def entry_and_digest(
    buffer: bytes, boxes: dict[bytes, Span], used: set[int], matrix: bytes, path: str
) -> tuple[bytes, str]:
    """Return the `chosen_entry` of a track and its `config_digest`."""
    # The clips of a camera differ only in their bit rates, so the cache decides the rest once.
    if used == {1} and b"stsd" in boxes:
        start, stop = boxes[b"stsd"]
        first, last = boxes.get(b"dref", (0, 0))
        digest = _digest_but_for_rates(
            buffer[start : stop - _BTRT_BYTES], buffer[first:last], matrix
        )
        if digest is not None:
            return buffer[start + 8 : stop], digest
    entry = chosen_entry(buffer, boxes, used, path)
    return entry, config_digest(entry, matrix)


@lru_cache(maxsize=64)
def _digest_but_for_rates(descriptions: bytes, references: bytes, matrix: bytes) -> str | None:
    """Return the digest of a table's only entry, if it ends with the rates of a ``btrt`` box.

    Args:
        descriptions: The payload of ``stsd`` without these rates.
        references: The payload of ``dref``.
        matrix: The display matrix.

    Returns:
        None for any other table, and for one that is refused.
    """
    whole = descriptions + bytes(_BTRT_BYTES)
    buffer = whole + references
    spans = {b"stsd": (0, len(whole)), b"dref": (len(whole), len(buffer))}
    try:
        entry = chosen_entry(buffer, spans, {1}, "")
    except UnreadableSourceError:
        return None
    last = (b"btrt", len(entry) - 8 - _BTRT_BYTES, len(entry))
    if len(entry) + 8 != len(whole) or _child_boxes(entry)[-1:] != [last]:
        return None
    return config_digest(entry, matrix)


def chosen_entry(buffer: bytes, boxes: dict[bytes, Span], used: set[int], path: str) -> bytes:
    """Return the one sample entry of a track's samples, box header included.

    Args:
        boxes: The boxes of the track in the buffer.
        used: The numbers of the entries that its samples name, from 1.
    """
    entries = _entries(buffer, boxes, path)
    first, last = min(used), max(used)
    if first < 1 or last > len(entries):
        raise broken(path, "its frames use a sample description that is not there")
    entry = entries[first - 1]
    if len(entry) < VISUAL_HEADER_BYTES:
        raise broken(path, "its sample description is too short")
    if first < last:
        _check_same([entries[number - 1] for number in used], path)
    kind = entry[4:8]
    if kind == b"encv":
        raise broken(path, "its video is encrypted")
    if kind == b"resv":
        raise UnsupportedClipError("a restricted video scheme (resv)", path=path)
    _check_reference(buffer, boxes, int.from_bytes(entry[_REFERENCE_INDEX]), path)
    return entry


def check_one_configuration(buffer: bytes, boxes: dict[bytes, Span], path: str) -> None:
    """Refuse a track with sample entries for two decoders, since it may need both.

    It is for fragmented files, which state elsewhere which entries they use.
    """
    entries = _entries(buffer, boxes, path)
    if len(entries) > 1:
        _check_same(entries, path)


def _entries(buffer: bytes, boxes: dict[bytes, Span], path: str) -> list[bytes]:
    """Return the sample entries of a track, at least one."""
    start, stop = box_of(boxes, b"stsd", path)
    if stop - start < 8:
        raise broken(path, "its stsd table is cut off")
    count = _U32.unpack_from(buffer, start + 4)[0]
    if not 0 < count <= _ENTRY_LIMIT:
        raise broken(path, "it has no or implausibly many sample descriptions")
    entries = []
    position = start + 8
    for _ in range(count):
        if position + 8 > stop:
            raise broken(path, "its stsd table is cut off")
        size_bytes = _U32.unpack_from(buffer, position)[0]
        if size_bytes < 8 or position + size_bytes > stop:
            raise broken(path, "its stsd table is cut off")
        entries.append(buffer[position : position + size_bytes])
        position += size_bytes
    return entries


def _check_same(entries: list[bytes], path: str) -> None:
    if len({config_digest(entry, IDENTITY_MATRIX) for entry in entries}) > 1:
        raise UnsupportedClipError(CHANGES_MIDWAY, path=path)


def _check_reference(buffer: bytes, boxes: dict[bytes, Span], number: int, path: str) -> None:
    """Refuse media in another file, which the data reference would name."""
    if b"dref" not in boxes:
        return
    start, stop = boxes[b"dref"]
    if stop - start < 8:
        raise broken(path, "its data reference is cut off")
    count = _U32.unpack_from(buffer, start + 4)[0]
    position = start + 8
    for current in range(1, min(count, _ENTRY_LIMIT) + 1):
        if position + 12 > stop:
            raise broken(path, "its data reference is cut off")
        size_bytes, _ = _U32_PAIR.unpack_from(buffer, position)
        if size_bytes < 12 or position + size_bytes > stop:
            raise broken(path, "its data reference is cut off")  # FFmpeg would not read on
        flags = _U32.unpack_from(buffer, position + 8)[0]
        if current == number and not flags & _SELF_CONTAINED:
            raise broken(path, "its media lies in another file")
        position += size_bytes


def entry_for_output(entry: bytes) -> bytes:
    """Return a sample entry in the form for a joined file.

    The bit rates in ``btrt`` are those of one clip, so this box is removed. The data reference
    becomes 1, the only one that a joined file has.
    """
    return _rebuilt(entry, reference_index=1)


@lru_cache(maxsize=64)
def config_digest(entry: bytes, matrix: bytes) -> str:
    """Return a digest that two clips share exactly if one decoder set-up shows both correctly.

    Bit rates (``btrt``, and those inside ``esds``), buffer sizes and the name of the compressor do
    not count. A display matrix that turns or mirrors the picture does.
    """
    kept = bytearray(_rebuilt(entry, reference_index=0))
    kept[_COMPRESSOR_NAME] = bytes(32)
    for kind, start, stop in _child_boxes(bytes(kept)):
        if kind == b"esds":
            place = _rates_place(kept, start + 8, stop)
            if place is not None:
                kept[place : place + _ES_RATES_BYTES] = bytes(_ES_RATES_BYTES)
    digest = hashlib.sha256(kept)
    if matrix != IDENTITY_MATRIX:
        digest.update(matrix)
    return digest.hexdigest()


def _rebuilt(entry: bytes, *, reference_index: int) -> bytes:
    """Return an entry without its ``btrt`` boxes, with this data reference."""
    boxes = _child_boxes(entry)
    rest = boxes[-1][2] if boxes else VISUAL_HEADER_BYTES
    kept = [entry[start:stop] for kind, start, stop in boxes if kind != b"btrt"]
    rebuilt = bytearray(entry[:VISUAL_HEADER_BYTES]) + b"".join(kept) + entry[rest:]
    rebuilt[_REFERENCE_INDEX] = reference_index.to_bytes(2)
    rebuilt[:4] = _U32.pack(len(rebuilt))
    return bytes(rebuilt)


def _child_boxes(entry: bytes) -> list[tuple[bytes, int, int]]:
    """List (type, start of the box, its end); stop silently at bytes that are no box."""
    found = []
    position = VISUAL_HEADER_BYTES
    while position + 8 <= len(entry):
        size_bytes = _U32.unpack_from(entry, position)[0]
        stop = position + size_bytes
        if size_bytes < 8 or stop > len(entry):
            break
        found.append((entry[position + 4 : position + 8], position, stop))
        position = stop
    return found


def _rates_place(data: bytearray, start: int, stop: int) -> int | None:
    """Find the bit rates inside the payload of an ``esds`` box (ISO/IEC 14496-1, 7.2.6)."""
    position = start + 4
    body = _descriptor_body(data, position, stop, _ES_DESCRIPTOR)
    if body is None or body + 3 > stop:
        return None
    flags = data[body + 2]
    position = body + 3
    if flags & 0x80:  # depends on another stream
        position += 2
    if flags & 0x40:  # URL: a length byte and the text
        if position >= stop:
            return None
        position += 1 + data[position]
    if flags & 0x20:  # clock reference
        position += 2
    body = _descriptor_body(data, position, stop, _DECODER_CONFIG_DESCRIPTOR)
    if body is None or body + 2 + _ES_RATES_BYTES > stop:
        return None
    return body + 2


def _descriptor_body(data: bytearray, position: int, stop: int, tag: int) -> int | None:
    if position >= stop or data[position] != tag:
        return None
    position += 1
    for _ in range(4):  # the length takes up to four bytes of seven bits
        if position >= stop:
            return None
        position += 1
        if not data[position - 1] & 0x80:
            return position
    return None
