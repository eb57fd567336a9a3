"""A remux keeps every coded frame and gives it the one time rule's times, or refuses."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from clip_recipes import RECIPES, ChangedClip, MakeClip, Recipe
from tests.drift import drifted
from tests.mp4_boxes import Box, changed, edit_list, media_start, parsed, stbl_of, top_bytes
from tests.packets import coded_packets
from tests.pictures import decoded_pictures

from leconvert.media import (
    UnsupportedClipError,
    carried_tracks,
    decode_shown,
    has_exact_times,
    join_clips,
    other_tracks_sha256,
    read_clip_index,
    remux_clip,
    samples_sha256,
)
from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError

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
    before = [picture.tobytes() for picture in decoded_pictures(source)]
    assert [picture.tobytes() for picture in decoded_pictures(plain)] == before
    if recipe.container != "mpegts":  # which frames its packets differently
        assert [p.sha256 for p in coded_packets(plain)] == [p.sha256 for p in coded_packets(source)]
    assert [p.keyframe for p in coded_packets(plain)] == [p.keyframe for p in coded_packets(source)]


def test_frames_cut_off_at_the_end_stay_away(tmp_path: Path, changed_clip: ChangedClip) -> None:
    def cut(top: Box) -> None:
        top.find("moov/trak/edts/elst").payload = edit_list((200, 0, 1 << 16))

    source = changed_clip(cut, "x264")
    shown = [picture.tobytes() for picture in decoded_pictures(source)]
    assert len(shown) == 6
    plain = tmp_path / "plain.mp4"
    remux_clip(source, plain, fps=Fraction(30))
    assert [picture.tobytes() for picture in decoded_pictures(plain)] == shown


def test_hidden_frames_that_others_need_are_refused(
    tmp_path: Path, changed_clip: ChangedClip
) -> None:
    def hide_the_first(top: Box) -> None:
        top.find("moov/trak/edts/elst").payload = edit_list((400, 1536, 1 << 16))

    source = changed_clip(hide_the_first)
    with pytest.raises(UnreadableSourceError, match="hides frames"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))
    assert not (tmp_path / "plain.mp4").exists()


def test_times_that_do_not_order_reordered_frames_are_refused(
    tmp_path: Path, changed_clip: ChangedClip
) -> None:
    def same_time_twice(top: Box) -> None:
        payload = bytearray(stbl_of(top).find("ctts").payload)
        # The second row's offset, so that two frames fall on one tick.
        payload[20:24] = payload[12:16]
        stbl_of(top).replace("ctts", bytes(payload))

    source = changed_clip(same_time_twice)
    with pytest.raises(UnsupportedClipError, match="same time"):
        read_clip_index(source)
    with pytest.raises(UnreadableSourceError, match="same time"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))


def test_sound_without_pictures_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "sound.mp4"
    with av.open(str(source), "w") as output:
        stream = output.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 48000
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    with pytest.raises(UnreadableSourceError, match="no video"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))


def one_after_the_other(first: Path, second: Path) -> bytes:
    """Put two clips into one track that has the sample entries of both."""
    indexes = [read_clip_index(path) for path in (first, second)]
    contents = [
        path.read_bytes()[int(index.offsets[0]) :][: index.num_bytes]
        for path, index in zip((first, second), indexes, strict=True)
    ]
    counts = [index.num_samples for index in indexes]
    total = sum(counts)
    top = Box(b"", children=parsed(first.read_bytes()))
    top.children = [box for box in top.children if box.kind != b"free"]
    top.find("moov/trak").remove("edts")
    top.find("mdat").payload = b"".join(contents)
    sizes = np.concatenate([index.sizes for index in indexes]).astype(">u4").tobytes()
    tables = {
        b"stsd": struct.pack(">II", 0, 2) + b"".join(index.sample_entry for index in indexes),
        b"stts": struct.pack(">IIII", 0, 1, total, 512),
        b"stss": struct.pack(">IIII", 0, 2, 1, counts[0] + 1),
        b"stsc": struct.pack(">II6I", 0, 2, 1, counts[0], 1, 2, counts[1], 2),
        b"stsz": struct.pack(">III", 0, 0, total) + sizes,
        b"stco": struct.pack(">IIII", 0, 2, 0, 0),
    }
    stbl_of(top).children = [Box(kind, payload) for kind, payload in tables.items()]
    start = media_start(top_bytes(top))
    stbl_of(top).replace("stco", struct.pack(">IIII", 0, 2, start, start + len(contents[0])))
    return top_bytes(top)


def test_a_clip_that_needs_two_decoders_is_refused_and_not_cut_to_one(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    recipe = Recipe(frames=6, gop=6, options=(("bf", "0"),))
    small, large = make_clip(recipe), make_clip(Recipe(**{**vars(recipe), "size": 96}))
    source = tmp_path / "clip.mp4"
    source.write_bytes(one_after_the_other(small, large))
    assert [p.shape[0] for p in decoded_pictures(source)] == [64] * 6 + [96] * 6
    result = tmp_path / "out.mp4"
    words = r"clip\.mp4 .*decoder configuration changes midway"
    with pytest.raises(UnreadableSourceError, match=words) as caught:
        remux_clip(source, result, fps=Fraction(30))
    assert not isinstance(caught.value, UnsupportedClipError), "a remux does not help"
    with pytest.raises(UnreadableSourceError, match=words):
        join_clips([Slice(str(source))], result, fps=Fraction(30))
    assert not result.exists()


def test_fragments_that_may_need_two_decoders_are_refused(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    fragments = (("movflags", "+frag_keyframe+empty_moov+default_base_moof"),)
    recipe = Recipe(frames=6, options=(("bf", "0"),), muxer=fragments)
    whole = make_clip(recipe)
    large = read_clip_index(make_clip(Recipe(frames=6, size=96, options=recipe.options)))
    small = parsed(whole.read_bytes())
    own = stbl_of(Box(b"", children=small)).find("stsd").payload[8:]

    def written(*entries: bytes, is_first: bool = False) -> Path:
        def with_entries(top: Box) -> None:
            payload = struct.pack(">II", 0, len(entries)) + b"".join(entries)
            stbl_of(top).replace("stsd", payload)
            if is_first:
                top.find("moov").children.sort(key=lambda box: box.kind != b"mvex")

        path = tmp_path / "clip.mp4"
        path.write_bytes(changed(whole.read_bytes(), with_entries))
        return path

    result = tmp_path / "out.mp4"
    for is_first in (False, True):
        with pytest.raises(UnreadableSourceError, match="configuration changes midway"):
            remux_clip(
                written(own, large.sample_entry, is_first=is_first), result, fps=Fraction(30)
            )
        assert not result.exists()
    remux_clip(written(own, own), result, fps=Fraction(30))
    assert read_clip_index(result).num_samples == 6


def test_a_joined_clip_that_is_missing_is_named(make_clip: MakeClip, tmp_path: Path) -> None:
    clips = [make_clip(RECIPES["x264"]), tmp_path / "absent.mp4"]
    with pytest.raises(UnreadableSourceError, match=r"absent\.mp4 cannot be read") as caught:
        join_clips([Slice(str(clip)) for clip in clips], tmp_path / "out.mp4", fps=Fraction(30))
    assert caught.value.path == str(clips[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("codec", "container"), [("ffv1", "matroska"), ("rawvideo", "avi")])
def test_a_codec_that_no_mp4_holds_is_refused_by_name(
    codec: str, container: str, make_clip: MakeClip, tmp_path: Path
) -> None:
    source = make_clip(Recipe(codec=codec, container=container, frames=2))
    with pytest.raises(UnreadableSourceError, match=f"cannot be put into an MP4: .*{codec}") as at:
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))
    assert at.value.path == str(source)
    assert str(source) in str(at.value)


def test_frames_without_times_are_refused(make_clip: MakeClip, tmp_path: Path) -> None:
    source = make_clip(Recipe(container="h264", frames=2))
    with pytest.raises(UnreadableSourceError, match="its frames have no times"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))
    assert not (tmp_path / "plain.mp4").exists()


def test_a_fragmented_clip_that_lost_its_fragments_is_refused(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    whole = make_clip(Recipe(frames=2, muxer=(("movflags", "+frag_keyframe+empty_moov"),)))
    source = tmp_path / "clip.mp4"
    source.write_bytes(b"".join(box.encoded() for box in parsed(whole.read_bytes())[:2]))
    with pytest.raises(UnreadableSourceError, match="FFmpeg finds no frames in it"):
        remux_clip(source, tmp_path / "plain.mp4", fps=Fraction(30))


def test_what_ffmpeg_cannot_read_is_an_error_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"not a video at all" * 100)
    for read in (
        lambda: list(coded_packets(path)),
        lambda: list(decode_shown(path, [0])),
        lambda: remux_clip(path, tmp_path / "out.mp4", fps=Fraction(30)),
    ):
        with pytest.raises(UnreadableSourceError) as caught:
            read()
        assert str(path) in str(caught.value)
    with pytest.raises(UnreadableSourceError, match=r"absent\.mp4"):
        list(coded_packets(tmp_path / "absent.mp4"))


def test_sound_comes_along_where_it_is_asked_for(make_clip: MakeClip, tmp_path: Path) -> None:
    source, fps = tmp_path / "source.mp4", Fraction(30)
    source.write_bytes(drifted(make_clip(RECIPES["x264-audio"]).read_bytes()))
    before = read_clip_index(source)
    assert not has_exact_times(before, fps)
    for name, tracks in (("with", 1), ("without", 0)):
        remux_clip(source, tmp_path / name, fps=fps, other_tracks=bool(tracks))
        after = read_clip_index(tmp_path / name)
        assert has_exact_times(after, fps)
        assert samples_sha256(after) == samples_sha256(before)
        assert np.array_equal(after.keyframes, before.keyframes)
        assert carried_tracks(tmp_path / name) == len(after.other_tracks) == tracks
    assert other_tracks_sha256(tmp_path / "with") == other_tracks_sha256(source)
    assert other_tracks_sha256(tmp_path / "without") == []
    with av.open(str(source)) as container:
        sound = next(packet for packet in container.demux(audio=0) if packet.size)
        place = sound.pos + sound.size // 2
    content = bytearray(source.read_bytes())
    content[place] ^= 1
    (tmp_path / "other").write_bytes(content)
    assert other_tracks_sha256(tmp_path / "other") != other_tracks_sha256(source)
