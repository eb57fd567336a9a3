"""An index that no muxer of ours writes is read as it is meant, or refused with the reason."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from clip_recipes import RECIPES, ChangedClip, MakeClip
from tests.mp4_boxes import Box, stbl_of

from leconvert.media import ClipIndex, read_clip_index
from leconvert.support.errors import UnreadableSourceError


def media_box(kind: str) -> Callable[[bytes], Callable[[Box], None]]:
    """Return what replaces a box of the track by one of other content."""
    paths = {
        "mvhd": "moov",
        "tkhd": "moov/trak",
        "mdhd": "moov/trak/mdia",
        "hdlr": "moov/trak/mdia",
        "dref": "moov/trak/mdia/minf/dinf",
    }

    def replacing(payload: bytes) -> Callable[[Box], None]:
        return lambda top: top.find(paths[kind]).replace(kind, payload)

    return replacing


def table(kind: str, payload: bytes) -> Callable[[Box], None]:
    return lambda top: stbl_of(top).replace(kind, payload)


def many_references(top: Box) -> None:
    here = struct.pack(">I4sI", 12, b"url ", 1)
    references = struct.pack(">II", 0, 400) + here * 400
    top.find("moov/trak/mdia/minf/dinf").replace("dref", references)


def bytes_behind_the_handler(top: Box) -> None:
    top.find("moov/trak/mdia/hdlr").payload += bytes(8)


def a_box_of_another_kind(top: Box) -> None:
    top.find("moov/trak").children.append(Box(b"meta", bytes(12)))


def many_boxes(top: Box) -> None:
    top.find("moov").children += [Box(b"free")] * 64


def wide_clock(top: Box) -> None:
    old = top.find("moov/trak/mdia/mdhd").payload
    _, _, timescale, duration = struct.unpack_from(">4xIIII", old)
    new = struct.pack(">IQQIQ", 1 << 24, 0, 0, timescale, duration) + old[20:]
    top.find("moov/trak/mdia").replace("mdhd", new)


def facts(index: ClipIndex) -> tuple[object, ...]:
    tables = (index.sizes, index.presentation_times, index.keyframes)
    runs = index.byte_runs(0, index.num_samples)
    lengths = [length for _, length in runs]
    return index.config_key, index.duration, lengths, *(table.tolist() for table in tables)


@pytest.mark.parametrize(
    "change",
    [
        *(bytes_behind_the_handler, many_references, a_box_of_another_kind, many_boxes, wide_clock),
        pytest.param(table("stts", struct.pack(">II4I", 0, 2, 6, 512, 6, 512)), id="two rows"),
    ],
)
def test_another_way_to_say_the_same_is_read_the_same(
    change: Callable[[Box], None], make_clip: MakeClip, changed_clip: ChangedClip
) -> None:
    plain = make_clip(RECIPES["x264"])
    path = changed_clip(change, "x264")
    assert facts(read_clip_index(path)) == facts(read_clip_index(plain))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (media_box("hdlr")(bytes(8)), "one of its tracks has no handler"),
        (media_box("mdhd")(bytes(4)), "one of its media headers is too short"),
        (media_box("mvhd")(bytes(4)), "one of its media headers is too short"),
        (media_box("tkhd")(bytes(40)), "track header is too short"),
        (media_box("dref")(bytes(4)), "its data reference is cut off"),
    ],
)
def test_a_broken_box_is_named(
    change: Callable[[Box], None], words: str, changed_clip: ChangedClip
) -> None:
    path = changed_clip(change, "x264")
    with pytest.raises(UnreadableSourceError, match=words):
        read_clip_index(path)
