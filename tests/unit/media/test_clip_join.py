"""Joined files: the same coded bytes, exact times, whatever was joined and however."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from clip_recipes import RECIPES, ChangedClip, MakeClip, Recipe
from tests.mp4_boxes import Box, changed, parsed, stbl_of
from tests.packets import coded_packets
from tests.pictures import decoded_pictures
from tests.trees import open_below

from leconvert.media import (
    JoinedFile,
    UnsupportedClipError,
    copy_file,
    join_clips,
    may_be_damaged,
    read_clip_index,
    samples_sha256,
)
from leconvert.media import join as join_module
from leconvert.model.values import Slice
from leconvert.support.errors import (
    InterruptedRunError,
    SourceError,
    StorageError,
    TargetError,
    UnreadableSourceError,
    UsageError,
)

THIRTY = Fraction(30)


def joined(
    clips: Sequence[Path], destination: Path, fps: Fraction = THIRTY, block_align: int = 0
) -> JoinedFile:
    return join_clips(
        [Slice(str(clip)) for clip in clips], destination, fps=fps, block_align=block_align
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def family(make_clip: MakeClip, name: str, lengths: Sequence[int] = (12, 7, 1, 20)) -> list[Path]:
    """Encode clips of one configuration and different content and length."""
    recipe = RECIPES[name]
    if name == "x265-b-frames" and 1 in lengths:
        lengths = (12, 7, 3, 18)  # x265 gives a clip of one or two frames random decode times
    return [
        make_clip(Recipe(**{**vars(recipe), "frames": frames, "seed": seed}))
        for seed, frames in enumerate(lengths)
    ]


def assert_holds(result: Path, clips: Sequence[Path], fps: Fraction) -> None:
    """Compare a joined file with its clips, as FFmpeg demuxes and decodes them."""
    packets = list(coded_packets(result))
    sources = [packet for clip in clips for packet in coded_packets(clip)]
    assert [(p.sha256, p.size, p.keyframe) for p in packets] == [
        (p.sha256, p.size, p.keyframe) for p in sources
    ]
    shown = sorted(packet.pts * packet.time_base for packet in packets)
    assert shown == [number / fps for number in range(len(packets))]
    steps = {b.dts - a.dts for a, b in pairwise(packets)}
    assert {step * packets[0].time_base for step in steps} <= {1 / fps}
    assert all(packet.dts <= packet.pts for packet in packets)
    pictures = [
        hashlib.sha256(picture.tobytes()).digest()
        for clip in clips
        for picture in decoded_pictures(clip)
    ]
    assert len(set(pictures)) > len(pictures) / 2
    with av.open(str(result)) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.frames) == (fps, len(packets))
        assert stream.start_time == 0
        assert stream.duration * stream.time_base == len(packets) / fps
        times = []
        for frame, picture in zip(container.decode(stream), pictures, strict=True):
            times.append(frame.pts * stream.time_base)
            found = hashlib.sha256(frame.to_ndarray(format="rgb24").tobytes()).digest()
            assert found == picture
    assert times == [number / fps for number in range(len(packets))]


@pytest.mark.parametrize(
    ("name", "block_align"),
    [
        *((name, 4096) for name in RECIPES if name != "x264-one-frame"),
        *((name, 0) for name in ("x264", "x264-b-frames", "x264-audio", "mpeg4")),
    ],
)
def test_joined_clips_keep_their_packets_pixels_and_exact_times(
    name: str, block_align: int, make_clip: MakeClip, tmp_path: Path
) -> None:
    clips = family(make_clip, name)
    result = tmp_path / "joined.mp4"
    report = joined(clips, result, block_align=block_align)
    assert_holds(result, clips, THIRTY)
    indexes = [read_clip_index(clip) for clip in clips]
    assert report.size_bytes == result.stat().st_size
    header = parsed(result.read_bytes())[1]
    places = (("mvhd", 16), ("trak/tkhd", 20), ("trak/edts/elst", 8))
    assert len({header.find(path).payload[at : at + 4] for path, at in places}) == 1
    assert report.copied_bytes + report.cloned_bytes == sum(
        int(index.sizes.sum()) for index in indexes
    )
    index = read_clip_index(result)
    at = 0
    for clip in indexes:
        assert samples_sha256(index, at, at + clip.num_samples) == samples_sha256(clip)
        assert (index.ranks[at : at + clip.num_samples] - at == clip.ranks).all()
        at += clip.num_samples


@pytest.mark.parametrize(
    ("name", "block_align"),
    [("x264", 0), ("x264-b-frames", 512), ("x264-audio", 4096), ("mpeg4", 0)],
)
def test_joining_parts_that_were_joined_before_gives_the_same_bytes(
    name: str, block_align: int, make_clip: MakeClip, tmp_path: Path
) -> None:
    clips = family(make_clip, name)
    lengths = [read_clip_index(clip).num_samples for clip in clips]
    direct = tmp_path / "direct.mp4"
    report = joined(clips, direct, block_align=block_align)
    for cuts in [(0, 2, 4), (0, 1, 2, 3, 4), (0, 3, 4), (0, 4)]:
        ranges = []
        for first, stop in pairwise(cuts):
            part = tmp_path / f"part-{len(cuts)}-{first}-{stop}.mp4"
            joined(clips[first:stop], part, block_align=block_align)
            at = 0
            for length in lengths[first:stop]:
                ranges.append(Slice(str(part), at, length))
                at += length
        again = tmp_path / f"again-{'-'.join(map(str, cuts))}.mp4"
        second = join_clips(ranges, again, fps=THIRTY, block_align=block_align)
        assert again.read_bytes() == direct.read_bytes()
        assert second.header_bytes == report.header_bytes


def test_each_episode_lies_at_its_source_offset_modulo_the_block_and_gaps_are_zero(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    clips = family(make_clip, "x264-b-frames")
    result = tmp_path / "joined.mp4"
    report = joined(clips, result, block_align=512)
    index = read_clip_index(result)
    content = bytearray(result.read_bytes())
    at = 0
    for clip in map(read_clip_index, clips):
        assert (index.offsets[at] - clip.offsets[0]) % 512 == 0
        at += clip.num_samples
    content[: report.header_bytes] = bytes(report.header_bytes)
    for start, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True):
        content[start : start + size] = bytes(size)
    assert not any(content)


@pytest.mark.parametrize("name", ["x264-b-frames", "av1", "x265-b-frames", "mpeg4-b-frames"])
def test_zeros_between_episodes_are_no_damage_and_any_other_size_or_place_is(
    name: str, make_clip: MakeClip, tmp_path: Path
) -> None:
    sound, damaged = tmp_path / "joined.mp4", tmp_path / "damaged.mp4"
    joined(family(make_clip, name), sound, block_align=4096)
    assert read_clip_index(sound).unindexed_bytes > 3 * 40
    assert not may_be_damaged(read_clip_index(sound))

    def by(kind: str, begin: int, amount: int) -> Callable[[Box], None]:
        def change(top: Box) -> None:
            table = bytearray(stbl_of(top).find(kind).payload)
            (number,) = struct.unpack_from(">I", table, begin)
            struct.pack_into(">I", table, begin, number + amount)
            stbl_of(top).replace(kind, bytes(table))

        return change

    # The sizes of two samples of the first episode, and the place of the third episode.
    for kind, begin in (("stsz", 12), ("stsz", 12 + 4 * 5), ("stco", 8 + 4 * 2)):
        for amount in (-40, -1, 1, 40):
            damaged.write_bytes(changed(sound.read_bytes(), by(kind, begin, amount)))
            assert may_be_damaged(read_clip_index(damaged)), (kind, begin, amount)


@pytest.mark.parametrize(
    "fps",
    ["29.97", "30000/1001", "0.5", "1000", "23.976023976023978"],
)
def test_fractional_rates_are_kept_exactly(fps: str, make_clip: MakeClip, tmp_path: Path) -> None:
    clips = family(make_clip, "x264-b-frames")
    result = tmp_path / "joined.mp4"
    rate = Fraction(fps)
    joined(clips, result, rate)
    index = read_clip_index(result)
    timescale, duration = join_module.frame_ticks(rate)
    assert timescale < 2**31
    assert index.timescale == timescale
    assert (index.presentation_times == index.ranks * duration).all()
    # A millionth of a frame an hour.
    assert abs(Fraction(timescale, duration) - rate) * 3600 < Fraction(1, 10**6)
    assert [p.pts for p in coded_packets(result)] == index.presentation_times.tolist()
    if rate.numerator < 2**31 and rate.denominator < 2**23:
        assert Fraction(timescale, duration) == rate
        with av.open(str(result)) as container:
            assert container.streams.video[0].average_rate == rate


def test_long_files_use_wide_times(make_clip: MakeClip, tmp_path: Path) -> None:
    # A frame takes 8,200,001 ticks: more than 2**32 after 524 frames.
    fps = Fraction(3000017, 8_200_001)
    clips = family(make_clip, "x264-b-frames") * 14
    result = tmp_path / "joined.mp4"
    joined(clips, result, fps)
    header = parsed(result.read_bytes())[1]
    assert header.find("trak/mdia/mdhd").payload[0] == 1
    packets = list(coded_packets(result))
    _, duration = join_module.frame_ticks(fps)
    assert max(packet.pts for packet in packets) == 559 * duration > 2**32
    assert len(decoded_pictures(result)) == 560


def test_an_episode_that_ends_beyond_four_gib_is_really_there(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    # The alignment puts the second episode beyond 4 GiB; the hole between takes no space.
    clips = family(make_clip, "x264", (12, 7))
    result = tmp_path / "joined.mp4"
    report = joined(clips, result, block_align=5 * 1024**3)
    assert report.size_bytes > 2**32
    assert result.stat().st_blocks * 512 < 2**20
    assert_holds(result, clips, THIRTY)


def test_what_cannot_be_joined_as_it_lies_is_remuxed_and_reported(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    plain = family(make_clip, "x264-b-frames")
    fragmented = make_clip(
        Recipe(
            **{
                **vars(RECIPES["x264-b-frames"]),
                "muxer": (("movflags", "+frag_keyframe+empty_moov"),),
                "seed": 9,
            }
        )
    )
    clips = [plain[0], fragmented, plain[1], fragmented]
    result = tmp_path / "joined.mp4"
    joined(clips, result)
    assert_holds(result, clips, THIRTY)
    assert names(tmp_path) == ["joined.mp4"]


def test_a_remux_without_a_place_for_it_is_an_error_of_that_folder(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    fragmented = make_clip(Recipe(frames=2, muxer=(("movflags", "+frag_keyframe+empty_moov"),)))
    absent = tmp_path / "absent"
    with pytest.raises(StorageError, match="A temporary clip cannot be written to") as caught:
        join_clips(
            [Slice(str(fragmented))], tmp_path / "joined.mp4", fps=THIRTY, scratch_dir=absent
        )
    assert caught.value.path == str(absent)
    assert names(tmp_path) == []


def test_a_clip_that_a_remux_does_not_help_says_both_reasons(
    tmp_path: Path, changed_clip: ChangedClip
) -> None:
    def first_frame_last_in_groups(top: Box) -> None:
        rows = struct.pack(">IIII", 1, 512 * 20, 11, 512)
        stbl_of(top).replace("ctts", struct.pack(">II", 0, 2) + rows)
        stbl_of(top).children.append(Box(b"sbgp", bytes(4) + b"rap " + bytes(4)))
        top.find("moov/trak").remove("edts")

    path = changed_clip(first_frame_last_in_groups)
    words = "random access groups, and after a remux: an edit list that hides frames at the start"
    with pytest.raises(UnreadableSourceError, match=words) as caught:
        joined([path], tmp_path / "joined.mp4")
    assert not isinstance(caught.value, UnsupportedClipError), "nobody should try that again"
    assert caught.value.path == str(path)
    assert names(tmp_path) == ["clip.mp4"]


def test_coded_bytes_that_are_gone_when_their_turn_comes_are_named(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    clips = family(make_clip, "x264")[:2]
    absent = str(tmp_path / "gone.mp4")
    with pytest.raises(UnreadableSourceError, match=r"gone\.mp4 cannot be read: No such") as caught:
        join_clips(
            [Slice(str(clip)) for clip in clips],
            tmp_path / "joined.mp4",
            fps=THIRTY,
            coded=lambda place: absent if place else str(clips[0]),
        )
    assert caught.value.path == absent
    assert names(tmp_path) == []


def test_a_destination_in_a_folder_that_is_not_there_is_an_error_of_the_target(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    result = tmp_path / "absent" / "joined.mp4"
    words = r"absent/joined\.mp4 cannot be created: No such file"
    with pytest.raises(StorageError, match=words) as caught:
        joined([make_clip(RECIPES["x264"])], result)
    assert caught.value.path == str(result)
    assert "Check the folder" in (caught.value.next_step or "")


def test_a_clip_of_another_configuration_is_refused(make_clip: MakeClip, tmp_path: Path) -> None:
    small = make_clip(RECIPES["x264"])
    large = make_clip(Recipe(size=96, options=RECIPES["x264"].options))
    with pytest.raises(SourceError, match="another decoder configuration") as caught:
        joined([small, large], tmp_path / "joined.mp4")
    assert str(large) in str(caught.value)
    assert "--restart" in str(caught.value.next_step)
    assert names(tmp_path) == []


def test_an_existing_destination_is_not_overwritten(make_clip: MakeClip, tmp_path: Path) -> None:
    result = tmp_path / "joined.mp4"
    result.write_bytes(b"precious")
    with pytest.raises(TargetError, match="exists already"):
        joined([make_clip(RECIPES["x264"])], result)
    assert result.read_bytes() == b"precious"


def test_no_clips_and_a_negative_alignment_are_refused(make_clip: MakeClip, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        joined([], tmp_path / "joined.mp4")
    with pytest.raises(UsageError):
        joined([make_clip(RECIPES["x264"])], tmp_path / "joined.mp4", block_align=-1)


def test_an_episode_that_begins_without_a_keyframe_is_refused(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    clip = make_clip(RECIPES["x264-b-frames"])
    assert not read_clip_index(clip).keyframes[1]
    with pytest.raises(UnreadableSourceError, match="not a keyframe"):
        join_clips([Slice(str(clip), 1)], tmp_path / "joined.mp4", fps=THIRTY)


def test_an_episode_that_shows_a_frame_before_its_keyframe_is_refused(
    tmp_path: Path, changed_clip: ChangedClip
) -> None:
    def first_frame_last(top: Box) -> None:
        rows = struct.pack(">IIII", 1, 512 * 20, 11, 512)
        stbl_of(top).replace("ctts", struct.pack(">II", 0, 2) + rows)
        top.find("moov/trak").remove("edts")

    path = changed_clip(first_frame_last)
    with pytest.raises(UnreadableSourceError, match="before its first keyframe"):
        joined([path], tmp_path / "joined.mp4")


@pytest.mark.parametrize(("first", "count"), [(0, 13), (12, None), (-1, 2), (3, 0), (5, 8)])
def test_a_range_that_a_file_does_not_have_is_refused(
    first: int, count: int | None, make_clip: MakeClip, tmp_path: Path
) -> None:
    clip = make_clip(RECIPES["x264"])
    with pytest.raises(UnreadableSourceError, match="has 12 frames"):
        join_clips([Slice(str(clip), first, count)], tmp_path / "joined.mp4", fps=THIRTY)


def test_stopping_leaves_nothing_behind(make_clip: MakeClip, tmp_path: Path) -> None:
    clips = family(make_clip, "x264")
    arrived: list[int] = []
    with pytest.raises(InterruptedRunError):
        join_clips(
            [Slice(str(clip)) for clip in clips],
            tmp_path / "joined.mp4",
            fps=THIRTY,
            on_bytes=arrived.append,
            should_stop=lambda: len(arrived) >= 2,
        )
    assert arrived == [int(read_clip_index(clip).sizes.sum()) for clip in clips[:2]]
    assert names(tmp_path) == []


def test_a_source_that_became_shorter_is_an_error_and_leaves_nothing_behind(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    clips = family(make_clip, "x264-faststart")
    victim = tmp_path / "victim.mp4"
    victim.write_bytes(clips[1].read_bytes())

    def truncate(_: int) -> None:
        os.truncate(victim, victim.stat().st_size // 2)

    with pytest.raises(UnreadableSourceError, match="shorter than its index"):
        join_clips(
            [Slice(str(clips[0])), Slice(str(victim))],
            tmp_path / "joined.mp4",
            fps=THIRTY,
            on_bytes=truncate,
        )
    assert names(tmp_path) == ["victim.mp4"]


def test_one_source_is_open_at_a_time(
    make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, other, most = make_clip(RECIPES["x264"]), tmp_path / "other.mp4", 0
    other.write_bytes(clip.read_bytes())

    def count(_: int) -> None:
        nonlocal most
        most = max(most, len(open_below(clip, tmp_path)))

    slices = [Slice(str(clip)), Slice(str(other))] * 100
    join_clips(slices, tmp_path / "joined.mp4", fps=THIRTY, on_bytes=count)
    assert 0 < most <= 2
    assert read_clip_index(tmp_path / "joined.mp4").num_samples == 2400


def test_a_turned_picture_stays_turned(make_clip: MakeClip, tmp_path: Path) -> None:
    def turn(top: Box) -> None:
        payload = bytearray(top.find("moov/trak/tkhd").payload)
        payload[40:76] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 64 << 16, 0, 1 << 30)
        top.find("moov/trak").replace("tkhd", bytes(payload))

    upright = make_clip(RECIPES["x264"])
    turned = tmp_path / "turned.mp4"
    turned.write_bytes(changed(upright.read_bytes(), turn))
    assert read_clip_index(turned).config_key != read_clip_index(upright).config_key
    result = tmp_path / "joined.mp4"
    joined([turned, turned], result)
    assert read_clip_index(result).geometry == read_clip_index(turned).geometry
    assert read_clip_index(result).config_key == read_clip_index(turned).config_key


def test_interleaved_audio_is_left_out_and_named(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip(RECIPES["x264-audio"])
    index = read_clip_index(clip)
    assert index.other_tracks == ("soun",)
    assert (np.diff(index.offsets) != index.sizes[:-1]).any(), "audio should lie between"
    result = tmp_path / "joined.mp4"
    report = joined([clip, clip], result)
    assert read_clip_index(result).other_tracks == ()
    assert report.size_bytes == report.header_bytes + 2 * int(index.sizes.sum())


def test_a_copy_shares_no_inode_and_replaces_nothing(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip(RECIPES["x264"])
    copied = copy_file(clip, tmp_path / "copy.mp4")
    assert (tmp_path / "copy.mp4").read_bytes() == clip.read_bytes()
    assert copied.size_bytes == copied.copied_bytes + copied.cloned_bytes == clip.stat().st_size
    assert clip.stat().st_ino != (tmp_path / "copy.mp4").stat().st_ino
    with pytest.raises(TargetError, match="exists already"):
        copy_file(clip, tmp_path / "copy.mp4")
