"""A tiny sound dataset that tests damage, and clips to put into it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from sound_dataset import SOUND

from leconvert.testing import DatasetSpec, make_dataset


@pytest.fixture(scope="session")
def sound_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes, two cameras, one task, a flag and a matrix; nothing is wrong with it."""
    return make_dataset(tmp_path_factory.mktemp("sound") / "dataset", SOUND)


@pytest.fixture
def source(sound_source: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(sound_source, tmp_path / "dataset"))


@pytest.fixture(scope="session")
def tableless_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes without cameras, two tasks that episodes take in turn."""
    spec = DatasetSpec(episodes=3, frames=4, cameras=())
    return make_dataset(tmp_path_factory.mktemp("plain") / "dataset", spec)


@pytest.fixture
def source_without_cameras(tableless_source: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(tableless_source, tmp_path / "plain"))


@pytest.fixture
def make_clip() -> Callable[..., None]:
    """Encode a clip of black frames of 64 x 48 as PyAV does it."""

    def make(
        path: Path,
        frames: int,
        *,
        codec: str = "libx264",
        pixel_format: str = "yuv420p",
        audio: bool = False,
        rate: int = 30,
        muxer: Mapping[str, str] | None = None,
    ) -> None:
        with av.open(str(path), "w", format="mp4", options=dict(muxer or {})) as output:
            video = output.add_stream(codec, rate=rate)
            video.width, video.height, video.pix_fmt = 64, 48, pixel_format
            video.options = {"bf": "0"}
            sound = output.add_stream("aac", rate=48000) if audio else None
            for number in range(frames):
                picture = np.full((48, 64, 3), 20 * number % 256, np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, rate)
                output.mux(video.encode(frame))
                if sound is not None:
                    samples = np.zeros((1, 48000 // rate), np.float32)
                    piece = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
                    piece.pts, piece.sample_rate = number * 48000 // rate, 48000
                    output.mux(sound.encode(piece))
            output.mux(video.encode())
            if sound is not None:
                output.mux(sound.encode())

    return make
