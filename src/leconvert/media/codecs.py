"""Facts about codecs: names, sample entries, and the samples at which decoding can start.

Sample entries (ISO/IEC 14496-12, 8.5.2) describe how to decode a track. All samples of a track use
one chosen entry. It is copied into a joined file, and its digest shows which clips can share one
file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct

from leconvert.media.boxes import Boxes, UnsupportedClipError, broken
from leconvert.support.errors import UnreadableSourceError

_U32 = Struct(">I")
_U32_PAIR = Struct(">II")


# Names that FFmpeg, its encoders and MP4 use for the same codec.
_CODECS = {
    "h264": ("avc1", "avc3", "avc", "x264", "libx264", "h264_nvenc", "h264_videotoolbox"),
    "hevc": ("hvc1", "hev1", "h265", "x265", "libx265", "hevc_nvenc", "hevc_videotoolbox"),
    "av1": ("av01", "libsvtav1", "libaom-av1", "svt-av1", "libdav1d", "av1_nvenc"),
    "vp9": ("vp09", "libvpx-vp9"),
    "vp8": ("vp08", "libvpx"),
    "mpeg4": ("mp4v", "libxvid"),
    "ffv1": ("FFV1",),
    "mjpeg": ("jpeg", "mjpg"),
}
_CODEC_OF = {alias.lower(): codec for codec, names in _CODECS.items() for alias in (codec, *names)}


def codec_of(name: str) -> str | None:
    """Return FFmpeg's name of a codec, given any of its names; None if it is not known."""
    return _CODEC_OF.get(name.lower())


CHANGES_MIDWAY = "its decoder configuration changes midway"

# Box header (8) and the fixed fields of a visual sample entry (78); child boxes follow.
VISUAL_HEADER_BYTES = 86
_REFERENCE_INDEX = slice(14, 16)
_COMPRESSOR_NAME = slice(50, 82)
_ENTRY_LIMIT = 64
_SELF_CONTAINED = 1
IDENTITY_MATRIX = b"".join(
    _U32.pack(value) for value in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
)

_ES_DESCRIPTOR = 3
_DECODER_CONFIG_DESCRIPTOR = 4
_ES_RATES_BYTES = 11  # bufferSizeDB (3), maxBitrate (4), avgBitrate (4)
_BTRT_BYTES = 12  # bufferSizeDB, maxBitrate, avgBitrate


def entry_and_digest(boxes: Boxes, used: set[int], matrix: bytes) -> tuple[bytes, str]:
    """Return the `chosen_entry` of a track and its `config_digest`."""
    # The clips of a camera differ only in their bit rates, so the cache decides the rest once.
    if used == {1} and b"stsd" in boxes:
        buffer, (start, stop) = boxes.buffer, boxes[b"stsd"]
        first, last = boxes.get(b"dref", (0, 0))
        digest = _digest_but_for_rates(
            buffer[start : stop - _BTRT_BYTES], buffer[first:last], matrix
        )
        if digest is not None:
            return buffer[start + 8 : stop], digest
    entry = chosen_entry(boxes, used)
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
        entry = chosen_entry(Boxes(buffer, "", spans), {1})
    except UnreadableSourceError:
        return None
    last = (b"btrt", len(entry) - 8 - _BTRT_BYTES, len(entry))
    if len(entry) + 8 != len(whole) or _child_boxes(entry)[-1:] != [last]:
        return None
    return config_digest(entry, matrix)


def chosen_entry(boxes: Boxes, used: set[int]) -> bytes:
    """Return the one sample entry of a track's samples, box header included.

    Args:
        boxes: The boxes of the track.
        used: The numbers of the entries that its samples name, from 1.
    """
    entries = _entries(boxes)
    first, last = min(used), max(used)
    if first < 1 or last > len(entries):
        raise broken(boxes.path, "its frames use a sample description that is not there")
    entry = entries[first - 1]
    if len(entry) < VISUAL_HEADER_BYTES:
        raise broken(boxes.path, "its sample description is too short")
    if first < last:
        _check_same([entries[number - 1] for number in used], boxes.path)
    kind = entry[4:8]
    if kind == b"encv":
        raise broken(boxes.path, "its video is encrypted")
    if kind == b"resv":
        raise UnsupportedClipError("a restricted video scheme (resv)", path=boxes.path)
    _check_reference(boxes, int.from_bytes(entry[_REFERENCE_INDEX]))
    return entry


def check_one_configuration(boxes: Boxes) -> None:
    """Refuse a track with sample entries for two decoders, since it may need both.

    It is for fragmented files, which state elsewhere which entries they use.
    """
    entries = _entries(boxes)
    if len(entries) > 1:
        _check_same(entries, boxes.path)


def _entries(boxes: Boxes) -> list[bytes]:
    """Return the sample entries of a track, at least one."""
    start, stop = boxes.needed(b"stsd")
    if stop - start < 8:
        raise broken(boxes.path, "its stsd table is cut off")
    count = _U32.unpack_from(boxes.buffer, start + 4)[0]
    if not 0 < count <= _ENTRY_LIMIT:
        raise broken(boxes.path, "it has no or implausibly many sample descriptions")
    entries = []
    position = start + 8
    for _ in range(count):
        if position + 8 > stop:
            raise broken(boxes.path, "its stsd table is cut off")
        size_bytes = _U32.unpack_from(boxes.buffer, position)[0]
        if size_bytes < 8 or position + size_bytes > stop:
            raise broken(boxes.path, "its stsd table is cut off")
        entries.append(boxes.buffer[position : position + size_bytes])
        position += size_bytes
    return entries


def _check_same(entries: list[bytes], path: str) -> None:
    if len({config_digest(entry, IDENTITY_MATRIX) for entry in entries}) > 1:
        raise UnsupportedClipError(CHANGES_MIDWAY, path=path)


def _check_reference(boxes: Boxes, number: int) -> None:
    """Refuse media in another file, which the data reference would name."""
    if b"dref" not in boxes:
        return
    start, stop = boxes[b"dref"]
    if stop - start < 8:
        raise broken(boxes.path, "its data reference is cut off")
    count = _U32.unpack_from(boxes.buffer, start + 4)[0]
    position = start + 8
    for current in range(1, min(count, _ENTRY_LIMIT) + 1):
        if position + 12 > stop:
            raise broken(boxes.path, "its data reference is cut off")
        size_bytes, _ = _U32_PAIR.unpack_from(boxes.buffer, position)
        if size_bytes < 12 or position + size_bytes > stop:
            raise broken(boxes.path, "its data reference is cut off")  # FFmpeg would not read on
        flags = _U32.unpack_from(boxes.buffer, position + 8)[0]
        if current == number and not flags & _SELF_CONTAINED:
            raise broken(boxes.path, "its media lies in another file")
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


# Whether a decoder can start at a sample, by its first bits. A sample whose bits make no sense, or
# begin in an unknown way, counts as a start.

_IDR, _SLICE = 5, 1  # NAL units of H.264
_INTRA_SLICES = frozenset({2, 4, 7, 9})  # I and SI
_FRAME_HEADER, _FRAME = 3, 6  # units of AV1
_VOP = b"\0\0\1\xb6"


def _starts_h264(sample: bytes, entry: bytes) -> bool:
    units = _units(sample, entry, b"avcC", 4)
    kinds = {unit[0] & 0x1F for unit in units}
    if _IDR in kinds or _SLICE not in kinds:
        return True
    return all(_slice_type(unit[1:]) in _INTRA_SLICES for unit in units if unit[0] & 0x1F == _SLICE)


def _slice_type(header: bytes) -> int:
    """Return the second number in a slice's header; both are Exp-Golomb codes."""
    bits = f"{int.from_bytes(header[:16]):0{8 * len(header[:16])}b}"
    value = at = 0
    for _ in range(2):
        zeros = bits.find("1", at) - at
        at += 2 * zeros + 1
        value = int(bits[at - zeros - 1 : at] or "1", 2) - 1
    return value


def _starts_hevc(sample: bytes, entry: bytes) -> bool:
    kinds = [unit[0] >> 1 & 0x3F for unit in _units(sample, entry, b"hvcC", 21)]
    pictures = [kind for kind in kinds if kind < 32]
    return not pictures or all(16 <= kind <= 23 for kind in pictures)


def _units(sample: bytes, entry: bytes, config: bytes, place: int) -> list[bytes]:
    """Return the NAL units of a sample; the decoder's configuration gives the lengths' width."""
    at = entry.find(config) + 4 + place
    width = (entry[at] & 3) + 1 if 4 + place <= at < len(entry) else 4
    units, at = [], 0
    while at + width < len(sample):
        size_bytes = int.from_bytes(sample[at : at + width])
        at += width
        if size_bytes:
            units.append(sample[at : at + size_bytes])
        at += size_bytes
    return units


def _starts_av1(sample: bytes, _: bytes) -> bool:
    at = 0
    while at + 1 < len(sample):
        head = sample[at]
        kind, at = head >> 3 & 15, at + 1 + (head >> 2 & 1)
        size_bytes, shift = len(sample) - at, 0
        if head & 2:  # its size follows, 7 bits a byte
            size_bytes = 0
            while at < len(sample):
                byte, at = sample[at], at + 1
                size_bytes |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
        if kind in (_FRAME_HEADER, _FRAME) and at < len(sample):
            # A new frame rather than one that is shown again, and a key frame.
            return sample[at] >> 5 == 0
        at += size_bytes
    return True


def _starts_vp9(sample: bytes, _: bytes) -> bool:
    head = sample[0] if sample else 0
    is_longer = head & 0x30 == 0x30  # profile 3 has a reserved bit
    return (head << 1 if is_longer else head) & 0x0C == 0


def _starts_mpeg4(sample: bytes, _: bytes) -> bool:
    at = sample.find(_VOP) + len(_VOP)
    return not len(_VOP) <= at < len(sample) or sample[at] >> 6 == 0


_STARTS: Mapping[str | None, Callable[[bytes, bytes], bool]] = {
    "h264": _starts_h264,
    "hevc": _starts_hevc,
    "av1": _starts_av1,
    "vp9": _starts_vp9,
    "mpeg4": _starts_mpeg4,
}


def start_check(codec: str) -> Callable[[bytes, bytes], bool] | None:
    """Return whether decoding can start at a sample, as a function of it and its sample entry.

    None for a codec whose samples are not understood.
    """
    return _STARTS.get(codec_of(codec))
