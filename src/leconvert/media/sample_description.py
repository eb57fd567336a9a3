"""Which sample entry the samples of a track use, and where it says that their media lies."""

from __future__ import annotations

from struct import Struct

from leconvert.media.boxes import Span, broken, table_span
from leconvert.media.errors import UnsupportedClipError
from leconvert.media.sample_entry import IDENTITY_MATRIX, VISUAL_HEADER_BYTES, config_digest

__all__ = ["CHANGES_MIDWAY", "check_one_configuration", "chosen_entry"]

CHANGES_MIDWAY = "its decoder configuration changes midway"

_U32 = Struct(">I")
_U32_PAIR = Struct(">II")
_SELF_CONTAINED = 1
_ENTRY_LIMIT = 64


def chosen_entry(buffer: bytes, boxes: dict[bytes, Span], used: set[int], path: str) -> bytes:
    """Return the one sample entry of a track's samples, box header included.

    Args:
        buffer: Holds the boxes.
        boxes: Payloads of the boxes in ``stbl`` and of ``dref``, by type.
        used: Numbers of the entries that samples name, from 1; not empty.
        path: For errors.

    Raises:
        UnreadableSourceError: Entries are cut off, missing or encrypted, or the media is elsewhere.
        UnsupportedClipError: Samples need decoders of different configuration.
    """
    entries = _entries(buffer, boxes, path)
    if min(used) < 1 or max(used) > len(entries):
        raise broken(path, "its frames use a sample description that is not there")
    entry = entries[min(used) - 1]
    if len(entry) < VISUAL_HEADER_BYTES:
        raise broken(path, "its sample description is too short")
    _check_same([entries[number - 1] for number in used], path)
    if entry[4:8] == b"encv":
        raise broken(path, "its video is encrypted")
    if entry[4:8] == b"resv":
        raise UnsupportedClipError("a restricted video scheme (resv)", path=path)
    _check_reference(buffer, boxes, int.from_bytes(entry[14:16], "big"), path)
    return entry


def check_one_configuration(buffer: bytes, boxes: dict[bytes, Span], path: str) -> None:
    """Refuse a track with sample entries for two decoders, for it may need both.

    For fragments, which say elsewhere what they use.

    Args:
        buffer: Holds the boxes.
        boxes: Payloads of the boxes in ``stbl``, by type.
        path: For errors.

    Raises:
        UnreadableSourceError: Entries are cut off or missing.
        UnsupportedClipError: They are of different configuration.
    """
    _check_same(_entries(buffer, boxes, path), path)


def _entries(buffer: bytes, boxes: dict[bytes, Span], path: str) -> list[bytes]:
    """Return the sample entries of a track, of which there is one at least."""
    start, stop = table_span(boxes, b"stsd", path)
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
    if len(entries) > 1 and len({config_digest(entry, IDENTITY_MATRIX) for entry in entries}) > 1:
        raise UnsupportedClipError(CHANGES_MIDWAY, path=path)


def _check_reference(buffer: bytes, boxes: dict[bytes, Span], number: int, path: str) -> None:
    """Refuse media that lies in another file, which the data reference would name."""
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
        flags = _U32.unpack_from(buffer, position + 8)[0]
        if current == number and not flags & _SELF_CONTAINED:
            raise broken(path, "its media lies in another file")
        position += max(size_bytes, 12)
