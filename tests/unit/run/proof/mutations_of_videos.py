"""Damage to the joined videos: packets, their index, and what decoders go by."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from mutation import (
    AV1,
    BYTES,
    HEVC,
    SPARE_TOP,
    STRUCTURE,
    TOP,
    WRIST,
    Mutation,
    bytes_of,
    cut,
    exchange,
)
from tests.dataset_damage import Damage
from tests.mp4_boxes import Box, changed, stbl_of

from leconvert import media
from leconvert.model.values import Slice

__all__ = ["MUTATIONS"]

_FPS = Fraction(30)
_LENGTHS = (6, 4, 4, 1)  # of the episodes in the first file

Edit = Callable[[Box], None]


def _boxes(change: Edit, path: str = TOP) -> Damage:
    """Change the tree of boxes; sizes and places of what follows are mended."""

    def damage(root: Path) -> None:
        (root / path).write_bytes(changed((root / path).read_bytes(), change))

    return damage


def _number(box: str, at: int, add: int, size: int = 4) -> Damage:
    """Add to a number in a box's payload."""

    def change(top: Box) -> None:
        found = top.find(box)
        value = int.from_bytes(found.payload[at : at + size], "big") + add
        number = value.to_bytes(size, "big")
        found.payload = found.payload[:at] + number + found.payload[at + size :]

    return _boxes(change)


def _tables(change: Edit) -> Damage:
    return _boxes(lambda top: change(stbl_of(top)))


def swap_contents(root: Path) -> None:
    """Exchange the bytes of two packets as far as both reach; sizes stay."""
    index = media.read_clip_index(root / TOP)
    size = int(index.sizes[4:6].min())
    one, other = (slice(begin, begin + size) for begin in index.offsets[4:6].tolist())
    with bytes_of(root / TOP) as content:
        assert content[one] != content[other]
        content[one], content[other] = content[other], content[one]


def swap_neighbours(root: Path) -> None:
    """Exchange two packets that follow each other, and their sizes."""
    index = media.read_clip_index(root / TOP)
    begin, (one, other) = int(index.offsets[0]), index.sizes[:2].tolist()
    end = begin + one + other
    with bytes_of(root / TOP) as content:
        content[begin:end] = content[begin + one : end] + content[begin : begin + one]
    _sizes(lambda sizes: sizes.__setitem__(slice(0, 2), [other, one]))(root)


def _sizes(change: Callable[[list[int]], object]) -> Damage:
    def edit(stbl: Box) -> None:
        payload = stbl.find("stsz").payload
        count = struct.unpack_from(">I", payload, 8)[0]
        sizes = list(struct.unpack_from(f">{count}I", payload, 12))
        change(sizes)
        stbl.replace("stsz", payload[:12] + struct.pack(f">{count}I", *sizes))

    return _tables(edit)


def _table(kind: str, *rows: tuple[int, ...]) -> Damage:
    """Write a table anew."""
    body = b"".join(struct.pack(f">{len(row)}I", *row) for row in rows)
    return _tables(lambda stbl: stbl.replace(kind, struct.pack(">II", 0, len(rows)) + body))


def _offsets_of(stbl: Box) -> list[int]:
    """Return how much later than decoded each frame is shown (`ctts`)."""
    payload = stbl.find("ctts").payload
    return [
        offset for number, offset in struct.iter_unpack(">II", payload[8:]) for _ in range(number)
    ]


def _set_offsets(stbl: Box, offsets: list[int]) -> None:
    body = b"".join(struct.pack(">II", 1, offset) for offset in offsets)
    stbl.replace("ctts", struct.pack(">II", 0, len(offsets)) + body)


def late_frame(stbl: Box) -> None:
    """Show one frame a tick later: its row of ctts is parted off."""
    offsets = _offsets_of(stbl)
    offsets[3] += 1
    _set_offsets(stbl, offsets)


def late_decoding(stbl: Box) -> None:
    """Decode one frame a tick later and show it at its time all the same."""
    rows = [(3, 512), (1, 513), (1, 511), (sum(_LENGTHS) - 5, 512)]
    body = b"".join(struct.pack(">II", *row) for row in rows)
    stbl.replace("stts", struct.pack(">II", 0, len(rows)) + body)
    offsets = _offsets_of(stbl)
    offsets[4] -= 1  # the fourth duration delays the fifth frame
    _set_offsets(stbl, offsets)


def _keyframes(*numbers: int) -> Damage:
    return _table("stss", *((number,) for number in numbers))


def _join(*ranges: tuple[int, int]) -> Damage:
    """Join parts of the first file anew, (first frame, frames) each."""

    def damage(root: Path) -> None:
        path, joined = root / TOP, root / "joined.mp4"
        parts = [Slice(str(path), *part) for part in ranges]
        media.join_clips(parts, joined, fps=_FPS, block_align=512)
        joined.replace(path)

    return damage


def flip_packet_bit(root: Path) -> None:
    index = media.read_clip_index(root / TOP)
    with bytes_of(root / TOP) as content:
        content[int(index.offsets[7] + index.sizes[7]) - 2] ^= 16


def mark_padding(root: Path) -> None:
    """Write into the zeros between two episodes."""
    index = media.read_clip_index(root / TOP)
    ends = (index.offsets + index.sizes)[:-1]
    (gaps,) = (index.offsets[1:] > ends).nonzero()
    with bytes_of(root / TOP) as content:
        content[int(ends[gaps[0]])] = 1


def mark_front(root: Path) -> None:
    """Write into the zeros between the header and the first episode."""
    at = int(media.read_clip_index(root / TOP).offsets[0]) - 1
    with bytes_of(root / TOP) as content:
        assert content[at] == 0
        content[at] = 1


def _move_chunk(by: int) -> Damage:
    """Let the second episode begin elsewhere."""

    def change(stbl: Box) -> None:
        payload = bytearray(stbl.find("stco").payload)
        (place,) = struct.unpack_from(">I", payload, 12)
        struct.pack_into(">I", payload, 12, place + by)
        stbl.replace("stco", bytes(payload))

    return _tables(change)


def _configuration(kind: bytes, at: int) -> Edit:
    """Flip a bit of the decoder configuration, ``at`` bytes behind its type."""

    def change(top: Box) -> None:
        stsd = stbl_of(top).find("stsd")
        payload = bytearray(stsd.payload)
        payload[payload.index(kind) + 4 + at] ^= 1
        stsd.payload = bytes(payload)

    return change


def flip_configuration(path: str, kind: bytes) -> Damage:
    """Flip a bit of a decoder configuration box of a file."""
    return _boxes(_configuration(kind, 3), path)


def _dimension(top: Box) -> None:
    stsd = stbl_of(top).find("stsd")
    payload = bytearray(stsd.payload)
    (width,) = struct.unpack_from(">H", payload, 8 + 32)
    struct.pack_into(">H", payload, 8 + 32, width + 2)
    stsd.payload = bytes(payload)


def _append(tail: bytes) -> Damage:
    return lambda root: (root / TOP).write_bytes((root / TOP).read_bytes() + tail)


def co64(stbl: Box) -> None:
    """Write the places of the episodes as 64-bit numbers, which players read as well."""
    payload = stbl.find("stco").payload
    places = struct.unpack_from(f">{(len(payload) - 8) // 4}I", payload, 8)
    stbl.remove("stco")
    stbl.children.append(Box(b"co64", payload[:8] + struct.pack(f">{len(places)}Q", *places)))


_TIME = "presentation time"
_HEADER = "header, box moov/trak"

MUTATIONS = [
    # Packets.
    Mutation("the bytes of two packets are exchanged, as if of one size", BYTES, swap_contents,
             TOP, "coded bytes", episode=0),
    Mutation("two neighbouring packets are exchanged, with their sizes", STRUCTURE,
             swap_neighbours, TOP, "packet sizes", episode=0),
    Mutation("the sizes of two packets are exchanged", STRUCTURE,
             _sizes(lambda sizes: sizes.insert(1, sizes.pop(2))), TOP, "packet sizes", episode=0),
    Mutation("a bit of a packet is flipped", BYTES, flip_packet_bit, TOP, "coded bytes",
             episode=1),
    Mutation("a frame amid the file is dropped", STRUCTURE, _join((0, 5), (6, 9)), TOP,
             "number of frames", "15", "14"),
    Mutation("a frame is dropped and another one repeated", STRUCTURE,
             _join((0, 5), (0, 1), (6, 9)), TOP, "packet sizes", episode=0),
    Mutation("the last frame is dropped", STRUCTURE, _join((0, 14)), TOP, "number of frames",
             "15", "14"),
    Mutation("an episode is repeated in place of the next of equal length", STRUCTURE,
             _join((0, 6), (6, 4), (6, 4), (14, 1)), TOP, "packet sizes", episode=2),
    Mutation("two episodes of equal length are exchanged", STRUCTURE,
             _join((0, 6), (10, 4), (6, 4), (14, 1)), TOP, "packet sizes", episode=1),
    Mutation("the files of two cameras are exchanged", STRUCTURE, exchange(TOP, WRIST), WRIST,
             "packet sizes", episode=0),
    Mutation("two files of one camera are exchanged", STRUCTURE, exchange(TOP, SPARE_TOP),
             SPARE_TOP, "number of frames", "9", "15"),
    # Times.
    Mutation("one frame is shown a tick late (`ctts`)", STRUCTURE, _tables(late_frame), TOP,
             f"{_TIME} of 1 frames, first at sample 3", episode=0),
    Mutation("one frame lasts a tick longer (`stts`)", STRUCTURE,
             _table("stts", (8, 512), (1, 513), (6, 512)), TOP, _TIME, episode=1),
    Mutation("every frame lasts a tick longer (`stts`)", STRUCTURE, _table("stts", (15, 513)),
             TOP, _TIME, episode=0),
    Mutation("one frame is decoded a tick late and shown in time (`stts`, `ctts`)", STRUCTURE,
             _tables(late_decoding), TOP, f"{_HEADER}/mdia/minf/stbl/stts"),
    # FFmpeg shows the first frame at 0 all the same.
    Mutation("the edit list begins a tick late (`elst`)", STRUCTURE,
             _number("moov/trak/edts/elst", 12, -1), TOP, f"{_HEADER}/edts/elst"),
    Mutation("the edit list is gone", STRUCTURE,
             _boxes(lambda top: top.find("moov/trak").remove("edts")), TOP, _TIME, episode=0),
    Mutation("the edit list hides the last frame", STRUCTURE,
             _number("moov/trak/edts/elst", 8, -513), TOP, "readable MP4", "an index", "hides"),
    Mutation("the edit list lasts a tick longer", STRUCTURE,
             _number("moov/trak/edts/elst", 8, 1), TOP, f"{_HEADER}/edts/elst"),
    Mutation("the track's timescale is another (`mdhd`)", STRUCTURE,
             _number("moov/trak/mdia/mdhd", 12, 1), TOP, "timescale", "15360", "15361"),
    Mutation("the movie's timescale is another (`mvhd`)", STRUCTURE, _number("moov/mvhd", 12, 1),
             TOP, "header, box moov/mvhd"),
    Mutation("the track's duration is a tick longer (`tkhd`)", STRUCTURE,
             _number("moov/trak/tkhd", 20, 1), TOP, f"{_HEADER}/tkhd"),
    # Keyframes.
    Mutation("a keyframe is not listed (`stss`)", STRUCTURE, _keyframes(1, 7, 15), TOP,
             "first frame", "a keyframe", episode=2),
    Mutation("a frame is listed as a keyframe that is none (`stss`)", STRUCTURE,
             _keyframes(1, 4, 7, 11, 15), TOP, "keyframes", episode=0),
    Mutation("every frame counts as a keyframe (`stss` is gone)", STRUCTURE,
             _tables(lambda stbl: stbl.remove("stss")), TOP, "keyframes", episode=0),
    # Places.
    Mutation("an episode's packets begin a byte early (`stco`)", STRUCTURE, _move_chunk(-1), TOP,
             "padding", "zeros"),
    Mutation("an episode's packets begin a byte late (`stco`)", BYTES, _move_chunk(1), TOP,
             "coded bytes", episode=1),
    Mutation("the table of places is of another kind (`co64`)", STRUCTURE, _tables(co64), TOP,
             f"{_HEADER}/mdia/minf/stbl"),
    Mutation("a byte of the padding is not zero", STRUCTURE, mark_padding, TOP, "padding", "zeros"),
    Mutation("a byte before the first packet is not zero", STRUCTURE, mark_front, TOP, "padding",
             "zeros"),
    # What decoders go by.
    Mutation("a bit of the decoder configuration is flipped (`avcC`)", STRUCTURE,
             flip_configuration(TOP, b"avcC"), TOP, "box moov/trak/mdia/minf/stbl/stsd"),
    Mutation("a bit of the decoder configuration is flipped (`hvcC`)", STRUCTURE,
             flip_configuration(HEVC, b"hvcC"), HEVC, "box moov/trak/mdia/minf/stbl/stsd",
             pair="pair_of_codecs"),
    Mutation("a bit of the decoder configuration is flipped (`av1C`)", STRUCTURE,
             flip_configuration(AV1, b"av1C"), AV1, "box moov/trak/mdia/minf/stbl/stsd",
             pair="pair_of_codecs"),
    Mutation("frames are declared wider (sample entry)", STRUCTURE, _boxes(_dimension), TOP,
             "box moov/trak/mdia/minf/stbl/stsd"),
    Mutation("frames are shown wider (`tkhd`)", STRUCTURE, _number("moov/trak/tkhd", 76, 2, 2),
             TOP, f"{_HEADER}/tkhd"),
    Mutation("the picture is turned (`tkhd`)", STRUCTURE, _number("moov/trak/tkhd", 40, 1, 2),
             TOP, f"{_HEADER}/tkhd"),
    Mutation("the track is of another kind (`hdlr`)", STRUCTURE,
             _number("moov/trak/mdia/hdlr", 8, 1), TOP, "readable MP4", "an index", "video track"),
    # The file.
    Mutation("a video loses its last byte", STRUCTURE, cut(TOP, lambda size: size - 1), TOP,
             "readable MP4", "an index"),
    Mutation("a video loses its second half", STRUCTURE, cut(TOP, lambda size: size // 2), TOP,
             "readable MP4", "an index"),
    Mutation("a video is empty", STRUCTURE, cut(TOP, lambda _: 0), TOP, "readable MP4",
             "an index", "it is empty"),
    Mutation("zeros are appended to a video", STRUCTURE, _append(bytes(16)), TOP,
             "size of the file"),
    Mutation("a box is appended to a video", STRUCTURE, _append(b"\0\0\0\x08free"), TOP,
             "padding", "zeros"),
]  # fmt: skip
