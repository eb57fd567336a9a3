"""A remux keeps every coded frame and gives it the one time rule's times, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from clip_recipes import RECIPES, Recipe
from tests.mp4_boxes import Box, changed, edit_list, stbl_of

from leconvert.errors import UnreadableSourceError
from leconvert.media import (
    UnsupportedClipError,
    coded_packets,
    decode_frames,
    read_clip_index,
    remux_clip,
)

MakeClip = Callable[[Recipe], Path]
B_FRAMES = RECIPES["x264-b-frames"].options


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (Recipe(options=B_FRAMES, muxer=(("movflags", "+frag_keyframe+empty_moov"),)), "fragment"),
        (Recipe(options=B_FRAMES, muxer=(("movflags", "+frag_every_frame"),)), "fragment"),
        (Recipe(options=B_FRAMES, container="matroska"), "Matroska"),
        (Recipe(options=B_FRAMES, container="mpegts"), "transport stream"),
        (Recipe(codec="mpeg4", container="avi"), "AVI"),
        (Recipe(codec="libvpx-vp9", options=RECIPES["vp9"].options, container="webm"), "WebM"),
        (Recipe(options=(("bf", "0"),), container="flv"), "FLV"),
    ],
)
@pytest.mark.parametrize("fps", [Fraction(30), Fraction(2997, 100)])
def test_other_containers_and_fragments_become_plain_clips(
    recipe: Recipe, reason: str, fps: Fraction, make_clip: MakeClip, tmp_path: Path
) -> None:
    source = make_clip(recipe)
    with pytest.raises(UnsupportedClipError, match=reason):
        read_clip_index(source)
    plain = tmp_path / "plain.mp4"
    remux_clip(source, plain, fps=fps)
    index = read_clip_index(plain)
    assert index.num_samples == recipe.frames
    times = [Fraction(ticks, index.timescale) for ticks in sorted(index.presentation_times)]
    assert times == [number / fps for number in range(recipe.frames)]
    before = [picture.tobytes() for _, picture in decode_frames(source)]
    assert [picture.tobytes() for _, picture in decode_frames(plain)] == before
    if recipe.container != "mpegts":  # which frames its packets differently
        assert [p.sha256 for p in coded_packets(plain)] == [p.sha256 for p in coded_packets(source)]
    assert [p.keyframe for p in coded_packets(plain)] == [p.keyframe for p in coded_packets(source)]


def test_frames_cut_off_at_the_end_stay_away(make_clip: MakeClip, tmp_path: Path) -> None:
    def cut(top: Box) -> None:
        top.find("moov/trak/edts/elst").payload = edit_list((200, 0, 1 << 16))

    source = tmp_path / "clip.mp4"
    source.write_bytes(changed(make_clip(RECIPES["x264"]).read_bytes(), cut))
    shown = [picture.tobytes() for _, picture in decode_frames(source)]
    assert len(shown) == 6
    plain = tmp_path / "plain.mp4"
    remux_clip(source, plain, fps=Fraction(30))
    assert [picture.tobytes() for _, picture in decode_frames(plain)] == shown


def test_hidden_frames_that_others_need_are_refused(make_clip: MakeClip, tmp_path: Path) -> None:
    def hide_the_first(top: Box) -> None:
        top.find("moov/trak/edts/elst").payload = edit_list((400, 1536, 1 << 16))

    source = tmp_path / "clip.mp4"
    plain = make_clip(RECIPES["x264-b-frames"])
    source.write_bytes(changed(plain.read_bytes(), hide_the_first))
    with pytest.raises(UnreadableSourceError, match="hides frames"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))
    assert not (tmp_path / "plain.mp4").exists()


def test_times_that_do_not_order_reordered_frames_are_refused(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    def same_time_twice(top: Box) -> None:
        payload = bytearray(stbl_of(top).find("ctts").payload)
        # The second row's offset, so that two frames fall on one tick.
        payload[20:24] = payload[12:16]
        stbl_of(top).replace("ctts", bytes(payload))

    source = tmp_path / "clip.mp4"
    plain = make_clip(RECIPES["x264-b-frames"])
    source.write_bytes(changed(plain.read_bytes(), same_time_twice))
    with pytest.raises(UnsupportedClipError, match="same time"):
        read_clip_index(source)
    with pytest.raises(UnreadableSourceError, match="same time"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))


def test_sound_without_pictures_is_refused(tmp_path: Path) -> None:
    import av
    import numpy as np

    source = tmp_path / "sound.mp4"
    with av.open(str(source), "w") as output:
        stream = output.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 48000
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    with pytest.raises(UnreadableSourceError, match="no video"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))
