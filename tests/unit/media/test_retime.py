"""`leconvert.media.retime`: exact times in the place of the old ones, and nothing else changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import pytest
from clip_recipes import RECIPES, Recipe
from tests.drift import drifted
from tests.mp4_boxes import Box, changed, edit_list, parsed, stbl_of, top_bytes

from leconvert import media
from leconvert.support.errors import SourceChangedError, TargetError

MakeClip = Callable[[Recipe], Path]
FPS = Fraction(30)
REORDERED = ["x264-b-frames", "x265-b-frames", "mpeg4-b-frames"]
IN_ORDER = ["x264", "x264-one-frame", "x264-timescale-90000", "x265", "av1", "mpeg4", "vp9"]


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def shown_pictures(path: Path) -> list[tuple[Fraction, bytes]]:
    """Return time and pixels of each frame in the order of presentation, as FFmpeg sees them."""
    with av.open(path) as container:
        frames = list(container.decode(video=0))
    return [(frame.pts * frame.time_base, frame.to_ndarray().tobytes()) for frame in frames]


@pytest.mark.parametrize("name", IN_ORDER + REORDERED)
def test_every_frame_gets_its_exact_time_and_no_packet_moves(
    make_clip: MakeClip, tmp_path: Path, name: str
) -> None:
    content = drifted(make_clip(RECIPES[name]).read_bytes())
    source = put(tmp_path / "drifted.mp4", content)
    patch = media.retiming(source, FPS)
    assert patch is not None
    media.copy_file(source, tmp_path / "exact.mp4", patch=patch)
    exact = (tmp_path / "exact.mp4").read_bytes()
    assert source.read_bytes() == content
    stop = patch.offset + len(patch.old)
    assert exact == content[: patch.offset] + patch.new + content[stop:]
    assert stop < len(content)
    assert patch.old == content[patch.offset : stop]
    before, after = (media.read_clip_index(path) for path in (source, tmp_path / "exact.mp4"))
    ticks = Fraction(after.timescale) / FPS
    assert after.presentation_times.tolist() == [rank * ticks for rank in before.ranks.tolist()]
    assert after.offsets.tolist() == before.offsets.tolist()
    assert after.keyframes.tolist() == before.keyframes.tolist()
    pictures = shown_pictures(tmp_path / "exact.mp4")
    assert [seconds for seconds, _ in pictures] == [i / FPS for i in range(len(pictures))]
    assert [shown for _, shown in pictures] == [shown for _, shown in shown_pictures(source)]


def test_what_is_exact_needs_no_bytes(make_clip: MakeClip) -> None:
    patch = media.retiming(make_clip(RECIPES["x264"]), FPS)
    assert patch is not None
    assert patch.old == patch.new == b""


def test_the_durations_say_how_long_the_frames_are(make_clip: MakeClip, tmp_path: Path) -> None:
    source = put(tmp_path / "a.mp4", drifted(make_clip(RECIPES["x264-b-frames"]).read_bytes()))
    media.copy_file(source, tmp_path / "b.mp4", patch=media.retiming(source, FPS))
    with av.open(tmp_path / "b.mp4") as container:
        stream = container.streams.video[0]
        assert stream.average_rate == FPS
        assert container.duration == pytest.approx(stream.frames / 30 * av.time_base, abs=1000)
    top = Box(b"", children=parsed((tmp_path / "b.mp4").read_bytes()))
    assert any(child.kind == b"free" for child in stbl_of(top).children)


def test_durations_of_64_bits_are_written_as_such(make_clip: MakeClip, tmp_path: Path) -> None:
    def widen(top: Box) -> None:
        moov = top.find("moov")
        for path, head in (("mvhd", 4), ("trak/tkhd", 4), ("trak/mdia/mdhd", 4)):
            box = moov.find(path)
            old = box.payload
            if path == "trak/tkhd":
                times = struct.unpack_from(">IIIII", old, head)
                box.payload = b"\1" + old[1:4] + struct.pack(">QQIIQ", *times) + old[24:]
            else:
                times = struct.unpack_from(">IIII", old, head)
                box.payload = b"\1" + old[1:4] + struct.pack(">QQIQ", *times) + old[20:]
        elst = moov.find("trak/edts/elst")
        duration, media_time, rate = struct.unpack_from(">IiI", elst.payload, 8)
        elst.payload = struct.pack(">BxxxIQqI", 1, 1, duration, media_time, rate)

    wide = changed(drifted(make_clip(RECIPES["x264-b-frames"]).read_bytes()), widen)
    source = put(tmp_path / "wide.mp4", wide)
    patch = media.retiming(source, FPS)
    assert patch is not None
    media.copy_file(source, tmp_path / "exact.mp4", patch=patch)
    pictures = shown_pictures(tmp_path / "exact.mp4")
    assert [seconds for seconds, _ in pictures] == [i / FPS for i in range(len(pictures))]


def test_a_timescale_that_does_not_hold_the_rate_has_no_patch(make_clip: MakeClip) -> None:
    assert media.retiming(make_clip(RECIPES["x264"]), Fraction("29.97")) is None


def test_a_late_start_has_no_patch(make_clip: MakeClip, tmp_path: Path) -> None:
    def delay(top: Box) -> None:
        elst = top.find("moov/trak/edts/elst")
        elst.payload = edit_list((100, -1, 0x10000), (100000, 0, 0x10000))

    content = changed(make_clip(RECIPES["x264"]).read_bytes(), delay)
    assert media.retiming(put(tmp_path / "late.mp4", content), FPS) is None


def test_reordered_frames_without_an_edit_list_have_no_patch(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    clip = make_clip(RECIPES["x264-b-frames-no-edit-list"])
    content = changed(clip.read_bytes(), lambda top: top.find("moov/trak").remove("edts"))
    assert media.retiming(put(tmp_path / "bare.mp4", content), FPS) is None


def test_a_table_without_room_has_no_patch(make_clip: MakeClip, tmp_path: Path) -> None:
    """Three runs of offsets whose ranks need four: the fourth frame is shown before the third."""

    def cross(top: Box) -> None:
        stbl = stbl_of(top)
        count, ticks = struct.unpack_from(">II", stbl.find("stts").payload, 8)
        runs = ((3, 0), (1, -ticks - ticks // 2), (count - 4, 0))
        rows = b"".join(struct.pack(">Ii", *run) for run in runs)
        stbl.find("ctts").payload = struct.pack(">BxxxI", 1, 3) + rows
        duration = struct.unpack_from(">I", top.find("moov/trak/edts/elst").payload, 8)[0]
        top.find("moov/trak/edts/elst").payload = edit_list((duration, 0, 0x10000))

    content = changed(make_clip(RECIPES["x264-b-frames"]).read_bytes(), cross)
    source = put(tmp_path / "crossed.mp4", content)
    assert media.read_clip_index(source).ranks.tolist()[:5] == [0, 1, 3, 2, 4]
    assert media.retiming(source, FPS) is None


def test_another_track_keeps_its_length(make_clip: MakeClip, tmp_path: Path) -> None:
    source = put(tmp_path / "a.mp4", drifted(make_clip(RECIPES["x264-audio"]).read_bytes()))
    with av.open(source) as container:
        sound = [bytes(packet) for packet in container.demux(audio=0)]
    patch = media.retiming(source, FPS)
    assert patch is not None
    media.copy_file(source, tmp_path / "b.mp4", patch=patch)
    with av.open(tmp_path / "b.mp4") as container:
        assert [bytes(packet) for packet in container.demux(audio=0)] == sound


def test_a_copy_shares_no_inode_and_replaces_nothing(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip(RECIPES["x264"])
    copied = media.copy_file(clip, tmp_path / "copy.mp4")
    assert (tmp_path / "copy.mp4").read_bytes() == clip.read_bytes()
    assert copied.size_bytes == copied.copied_bytes + copied.cloned_bytes == clip.stat().st_size
    assert clip.stat().st_ino != (tmp_path / "copy.mp4").stat().st_ino
    with pytest.raises(TargetError, match="exists already"):
        media.copy_file(clip, tmp_path / "copy.mp4")


def test_a_file_that_changed_since_is_not_patched(make_clip: MakeClip, tmp_path: Path) -> None:
    source = put(tmp_path / "a.mp4", drifted(make_clip(RECIPES["x264"]).read_bytes()))
    patch = media.retiming(source, FPS)
    put(source, drifted(make_clip(RECIPES["x264"]).read_bytes(), ticks=5))
    with pytest.raises(SourceChangedError, match="was changed while it was repaired"):
        media.copy_file(source, tmp_path / "b.mp4", patch=patch)
    assert not (tmp_path / "b.mp4").exists()


def test_a_patched_file_parses_the_same_when_its_boxes_are_walked(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    source = put(tmp_path / "a.mp4", drifted(make_clip(RECIPES["x264"]).read_bytes()))
    media.copy_file(source, tmp_path / "b.mp4", patch=media.retiming(source, FPS))
    content = (tmp_path / "b.mp4").read_bytes()
    assert top_bytes(Box(b"", children=parsed(content))) == content
