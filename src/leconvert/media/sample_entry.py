"""Sample entries: the part of a track that says how to decode it (ISO/IEC 14496-12, 8.5.2)."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from struct import Struct

__all__ = ["IDENTITY_MATRIX", "VISUAL_HEADER_BYTES", "config_digest", "entry_for_output"]

# Box header (8) and the fixed fields of a visual sample entry (78); child boxes follow.
VISUAL_HEADER_BYTES = 86
_REFERENCE_INDEX = slice(14, 16)
_COMPRESSOR_NAME = slice(50, 82)

_U32 = Struct(">I")
IDENTITY_MATRIX = b"".join(
    _U32.pack(value) for value in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
)

_ES_DESCRIPTOR = 3
_DECODER_CONFIG_DESCRIPTOR = 4
_RATES_BYTES = 11  # bufferSizeDB (3), maxBitrate (4), avgBitrate (4)


def entry_for_output(entry: bytes) -> bytes:
    """Return a sample entry as a joined file carries it.

    The bit rates that ``btrt`` states are those of one clip, so the box goes; the reference to
    where the media lies becomes 1, the only one that a joined file has.
    """
    return _rebuilt(entry, _without_btrt(entry), reference_index=1)


def config_digest(entry: bytes, matrix: bytes) -> str:
    """Return a digest that two clips share exactly when one decoder set-up shows both rightly.

    Bit rates (``btrt``, and those inside ``esds``), buffer sizes and the name of the compressor do
    not count. A display matrix that turns or mirrors the picture does.

    Args:
        entry: The sample entry, box header included.
        matrix: The track's display matrix, 36 bytes.
    """
    return _digest(_rebuilt(entry, _without_btrt(entry), reference_index=0), matrix)


@lru_cache(maxsize=64)
def _digest(entry: bytes, matrix: bytes) -> str:
    kept = bytearray(entry)
    kept[_COMPRESSOR_NAME] = bytes(32)
    for kind, start, stop in _child_boxes(entry):
        if kind == b"esds":
            place = _rates_place(kept, start + 8, stop)
            if place is not None:
                kept[place : place + _RATES_BYTES] = bytes(_RATES_BYTES)
    digest = hashlib.sha256(kept)
    if matrix != IDENTITY_MATRIX:
        digest.update(matrix)
    return digest.hexdigest()


def _rebuilt(entry: bytes, child_boxes: bytes, *, reference_index: int) -> bytes:
    rebuilt = bytearray(entry[:VISUAL_HEADER_BYTES])
    rebuilt[_REFERENCE_INDEX] = reference_index.to_bytes(2, "big")
    rebuilt += child_boxes
    rebuilt[:4] = _U32.pack(len(rebuilt))
    return bytes(rebuilt)


def _without_btrt(entry: bytes) -> bytes:
    boxes = _child_boxes(entry)
    if not any(kind == b"btrt" for kind, _, _ in boxes):
        return entry[VISUAL_HEADER_BYTES:]
    kept = [entry[start:stop] for kind, start, stop in boxes if kind != b"btrt"]
    return b"".join(kept) + entry[boxes[-1][2] :]


def _child_boxes(entry: bytes) -> list[tuple[bytes, int, int]]:
    """List (type, start of the box, its end); stops silently at what is no box."""
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
    if body is None or body + 2 + _RATES_BYTES > stop:
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
