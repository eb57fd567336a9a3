"""The quick reader answers for usual clips alone: whatever else a clip is, it leaves it alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from clip_recipes import RECIPES, Recipe
from tests.mp4_boxes import Box, changed, stbl_of

from leconvert.media.boxes import Moov, read_moov
from leconvert.media.index import read_plainly
from leconvert.media.parse import parse_moov
from leconvert.support.errors import UnreadableSourceError

MakeClip = Callable[[Recipe], Path]


def moov_of(path: Path, content: bytes) -> Moov:
    path.write_bytes(content)
    with path.open("rb") as file:
        found = read_moov(file.fileno(), len(content), str(path))
    assert found is not None
    return found


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


def padding(top: Box) -> None:
    top.find("moov").children.insert(0, Box(b"free", bytes(9)))
    stbl_of(top).children.append(Box(b"sdtp", bytes(16)))


def a_box_of_another_kind(top: Box) -> None:
    top.find("moov/trak").children.append(Box(b"meta", bytes(12)))


def many_boxes(top: Box) -> None:
    top.find("moov").children += [Box(b"free")] * 64


def wide_clock(top: Box) -> None:
    old = top.find("moov/trak/mdia/mdhd").payload
    _, _, timescale, duration = struct.unpack_from(">4xIIII", old)
    new = struct.pack(">IQQIQ", 1 << 24, 0, 0, timescale, duration) + old[20:]
    top.find("moov/trak/mdia").replace("mdhd", new)


def uniform_sizes(top: Box) -> None:
    stbl_of(top).replace("stsz", struct.pack(">III", 0, 9, 12))


@pytest.mark.parametrize(
    "change",
    [
        many_references,
        a_box_of_another_kind,
        many_boxes,
        wide_clock,
        uniform_sizes,
        table("stts", struct.pack(">II4I", 0, 2, 6, 512, 6, 512)),
    ],
)
def test_a_sound_clip_of_another_shape_is_left_to_the_other_reader(
    change: Callable[[Box], None], make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    plain = make_clip(RECIPES["x264"]).read_bytes()
    assert read_plainly(moov_of(path, plain), str(path), len(plain)) is not None
    content = changed(plain, change)
    moov = moov_of(path, content)
    assert read_plainly(moov, str(path), len(content)) is None
    assert parse_moov(moov, str(path), len(content)).num_samples == 12


@pytest.mark.parametrize("change", [padding, bytes_behind_the_handler])
def test_what_says_nothing_of_the_samples_leaves_a_clip_usual(
    change: Callable[[Box], None], make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    content = changed(make_clip(RECIPES["x264"]).read_bytes(), change)
    index = read_plainly(moov_of(path, content), str(path), len(content))
    assert index is not None
    assert index.num_samples == 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (table("stsz", struct.pack(">II", 0, 0)), "its stsz table is cut off"),
        (table("stts", bytes(8)), "its time table does not cover its frames"),
        (table("stco", bytes(8)), "its chunk table is empty"),
        (table("stsc", bytes(8)), "its chunk table is empty"),
        (table("stsd", bytes(8)), "no or implausibly many sample descriptions"),
        (media_box("hdlr")(bytes(8)), "a track of it has no handler"),
        (media_box("mdhd")(bytes(4)), "media header of it is too short"),
        (media_box("mvhd")(bytes(4)), "media header of it is too short"),
        (media_box("tkhd")(bytes(40)), "track header is too short"),
        (media_box("dref")(bytes(4)), "its data reference is cut off"),
    ],
)
def test_a_broken_clip_is_left_to_the_reader_that_says_what_is_wrong(
    change: Callable[[Box], None], words: str, make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    content = changed(make_clip(RECIPES["x264"]).read_bytes(), change)
    moov = moov_of(path, content)
    assert read_plainly(moov, str(path), len(content)) is None
    with pytest.raises(UnreadableSourceError, match=words):
        parse_moov(moov, str(path), len(content))
