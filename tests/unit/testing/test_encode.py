"""Clips have the frames, times and keyframes that were asked for, and the same bytes each time."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from leconvert.media import codec_of
from leconvert.support.errors import UsageError
from leconvert.support.machine import own_scheduling
from leconvert.testing import FrameLabel, draw_frame, read_label
from leconvert.testing.encode import ENCODERS, encode_clip


def _frames(count: int, height: int = 64, width: int = 96) -> list[np.ndarray]:
    return [draw_frame(FrameLabel(1, 2, number), height, width) for number in range(count)]


@pytest.mark.parametrize("fps", [Fraction(30), Fraction(2997, 100)], ids=str)
@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("codec", ENCODERS)
def test_frame_i_of_a_clip_is_shown_at_exactly_i_over_fps(
    tmp_path: Path, codec: str, count: int, fps: Fraction
) -> None:
    path = tmp_path / "clip.mp4"
    before = os.sched_getscheduler(0), os.sched_getparam(0)

    assert encode_clip(path, _frames(count), fps=fps, codec=codec) == count

    assert (os.sched_getscheduler(0), os.sched_getparam(0)) == before
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name in (codec_of(codec), "libdav1d")
        assert stream.frames == count
        assert stream.average_rate == fps
        decoded = list(container.decode(stream))
        times = [frame.pts * stream.time_base for frame in decoded]
    assert times == [number / fps for number in range(count)]
    labels = [read_label(frame.to_ndarray(format="rgb24")) for frame in decoded]
    assert labels == [FrameLabel(1, 2, number) for number in range(count)]


def test_a_gop_of_n_has_a_keyframe_every_n_frames(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"

    encode_clip(path, _frames(9), fps=Fraction(30), gop_size=4, options={"sc_threshold": "0"})

    with av.open(str(path)) as container:
        keyframes = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
    assert keyframes == [number % 4 == 0 for number in range(9)]


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_the_same_frames_give_the_same_bytes(tmp_path: Path, codec: str) -> None:
    for name in ("a.mp4", "b.mp4"):
        encode_clip(tmp_path / name, _frames(12), fps=Fraction(30), codec=codec)

    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "there are no frames"),
        ([*_frames(2), *_frames(1, height=32)], "frame 2 has shape"),
        ([np.zeros((64, 96), np.uint8)], "must be uint8 of shape"),
        ([np.zeros((64, 96, 3), np.float32)], "must be uint8 of shape"),
        ([np.zeros((63, 96, 3), np.uint8)], "must be even"),
    ],
)
def test_frames_that_cannot_be_encoded_are_refused(
    tmp_path: Path, frames: list[np.ndarray], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        encode_clip(tmp_path / "clip.mp4", frames, fps=Fraction(30))


def test_a_rate_that_makes_no_sense_and_a_missing_encoder_are_refused(tmp_path: Path) -> None:
    for fps in (Fraction(0), Fraction(-30)):
        with pytest.raises(UsageError, match=f"{fps} frames a second make no sense"):
            encode_clip(tmp_path / "clip.mp4", _frames(1), fps=fps)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="no video encoder 'nosuch'") as caught:
        encode_clip(tmp_path / "clip.mp4", _frames(1), fps=Fraction(30), codec="nosuch")

    assert "libx264" in (caught.value.next_step or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make itself a real-time thread")
def test_scheduling_is_restored_whatever_happens() -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0)

    def fails() -> None:
        with own_scheduling():
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (os.sched_getscheduler(0), os.sched_getparam(0)) == before
