"""How to encode the clips that the tests of ``leconvert.media`` use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np


@dataclass(frozen=True)
class Recipe:
    """How to encode a clip; every frame of it differs from every other."""

    codec: str = "libx264"
    frames: int = 12
    fps: Fraction = Fraction(30)
    gop: int = 4
    size: int = 64
    seed: int = 0
    options: tuple[tuple[str, str], ...] = ()
    muxer: tuple[tuple[str, str], ...] = ()
    audio: bool = False
    container: str = "mp4"
    timescale: int | None = None


MakeClip = Callable[[Recipe], Path]
ChangedClip = Callable[..., Path]

B_FRAMES = (("x264-params", "bframes=2:b-adapt=0:scenecut=0:keyint=6"),)
QUIET_X265 = "log-level=error:pools=none:frame-threads=1"

RECIPES: Mapping[str, Recipe] = {
    "x264": Recipe(options=(("bf", "0"),)),
    "x264-b-frames": Recipe(options=B_FRAMES),
    "x264-b-frames-negative-offsets": Recipe(
        options=B_FRAMES, muxer=(("movflags", "+negative_cts_offsets"),)
    ),
    "x264-b-frames-no-edit-list": Recipe(options=B_FRAMES, muxer=(("use_editlist", "0"),)),
    "x264-faststart": Recipe(options=B_FRAMES, muxer=(("movflags", "+faststart"),)),
    "x264-audio": Recipe(options=B_FRAMES, audio=True, frames=60),
    "x264-one-frame": Recipe(frames=1),
    "x264-timescale-90000": Recipe(muxer=(("video_track_timescale", "90000"),)),
    "x264-quicktime": Recipe(options=B_FRAMES, container="mov"),
    "x265": Recipe(codec="libx265", options=(("x265-params", f"{QUIET_X265}:bframes=0"),)),
    "x265-b-frames": Recipe(
        codec="libx265", options=(("x265-params", f"{QUIET_X265}:bframes=3:b-adapt=0"),), gop=6
    ),
    "av1": Recipe(codec="libsvtav1", options=(("svtav1-params", "lp=1"), ("preset", "12"))),
    "mpeg4": Recipe(codec="mpeg4"),
    "mpeg4-b-frames": Recipe(codec="mpeg4", options=(("bf", "2"),)),
    "vp9": Recipe(codec="libvpx-vp9", options=(("cpu-used", "8"), ("deadline", "realtime"))),
}


def pictures(recipe: Recipe) -> list[np.ndarray]:
    """Draw smooth pictures whose brightness encodes the frame number."""
    rng = np.random.default_rng(recipe.seed)
    noise = rng.integers(0, 60, (recipe.size, recipe.size, 3))
    steps = np.linspace(0, 190, recipe.frames).astype(np.int64)
    return [np.roll(noise + step, 3 * i, axis=1).astype(np.uint8) for i, step in enumerate(steps)]


def encode(path: Path, recipe: Recipe) -> Path:
    with av.open(str(path), "w", format=recipe.container, options=dict(recipe.muxer)) as output:
        video = output.add_stream(recipe.codec, rate=recipe.fps)
        video.width = video.height = recipe.size
        video.pix_fmt = "yuv420p"
        video.gop_size = recipe.gop
        video.options = dict(recipe.options)
        video.codec_context.thread_count = 1
        audio = output.add_stream("aac", rate=48000) if recipe.audio else None
        for number, picture in enumerate(pictures(recipe)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, 1 / recipe.fps
            output.mux(video.encode(frame))
            if audio is not None:
                samples = np.zeros((1, 1600), np.float32)
                sound = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
                sound.pts, sound.sample_rate = number * 1600, 48000
                output.mux(audio.encode(sound))
        output.mux(video.encode())
        if audio is not None:
            output.mux(audio.encode())
    return path
