"""Frames of long files through LeRobot itself: it refuses exactly those that we say it will."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leconvert
from leconvert.model.float32_tolerance import frames_out_of_reach, is_out_of_reach
from leconvert.model.values import IntArray, LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset, read_label

_CAMERA = CameraSpec(
    key="observation.images.tiny",
    width=16,
    height=16,
    gop_size=10,
    options={"preset": "ultrafast", "bf": "0", "crf": "10"},
)


@dataclass(frozen=True)
class LongFile:
    """A dataset whose one camera has one file of well over 1,024 s.

    Attributes:
        root: The converted dataset.
        fps: Its rate.
        lengths: Frames of each episode, shape (E,).
    """

    root: Path
    fps: Fraction
    lengths: IntArray

    @property
    def begins(self) -> IntArray:
        """First frame of each episode, shape (E,)."""
        return np.cumsum(self.lengths) - self.lengths

    def predicted(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each frame of the file is out of reach, shape (frames,)."""
        begins = np.repeat(self.begins, self.lengths)
        return is_out_of_reach(begins, np.arange(len(begins)) - begins, self.fps)


FPS = "29.97"
LENGTHS = (1500,) * 30 + (40,) * 30


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> LongFile:
    folder: Path = tmp_path_factory.mktemp("reach")
    spec = DatasetSpec(
        episodes=len(LENGTHS), frames=LENGTHS, fps=FPS, cameras=(_CAMERA,), state_dim=1,
        action_dim=1, distinct_clips=1, stats_samples=2,
    )  # fmt: skip
    make_dataset(folder / "source", spec)
    layout = LayoutOptions(video_file_size_in_mb=10_000)
    leconvert.convert(folder / "source", output=folder / "ours", layout=layout)
    assert len(list((folder / "ours/videos").rglob("*.mp4"))) == 1
    return LongFile(folder / "ours", Fraction(FPS), np.array(LENGTHS))


def _sampled(predicted: np.ndarray[Any, np.dtype[np.bool_]], samples: int) -> list[int]:
    """Pick refused frames, the frames beside them, the first and last ones, and some others."""
    generator = np.random.default_rng(0)
    last = len(predicted) - 1
    refused = np.flatnonzero(predicted)
    chosen = {0, last, *refused[:5].tolist(), *refused[-5:].tolist()}
    if len(refused):
        for frame in generator.choice(refused, samples // 4).tolist():
            chosen.update((frame, frame - 1, min(frame + 1, last)))
    others = generator.choice(len(predicted), 2 * samples, replace=False).tolist()
    while len(chosen) < samples:
        chosen.add(others.pop())
    return sorted(chosen)


def _refused(long_file: LongFile, frames: list[int], backend: str) -> list[int]:
    """Load frames of the file; what loads must be the frame itself."""
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.video_utils import FrameTimestampError

    dataset = LeRobotDataset(
        "ours/dataset", root=long_file.root, return_uint8=True, video_backend=backend
    )
    refused = []
    for frame in frames:
        try:
            item = dataset[frame]
        except FrameTimestampError:
            refused.append(frame)
            continue
        label = read_label(item[_CAMERA.key].permute(1, 2, 0).numpy())
        assert label.frame == int(item["frame_index"])
    return refused


@pytest.mark.parametrize(("backend", "samples"), [("torchcodec", 100), ("pyav", 20)])
def test_lerobot_refuses_exactly_the_frames_out_of_reach(
    long_file: LongFile, backend: str, samples: int
) -> None:
    predicted = long_file.predicted()
    frames = _sampled(predicted, samples)
    refused = _refused(long_file, frames, backend)
    assert refused == [frame for frame in frames if predicted[frame]]
    assert refused


def test_an_episodes_count_is_that_of_its_frames(long_file: LongFile) -> None:
    predicted = long_file.predicted()
    counts = frames_out_of_reach(long_file.begins, long_file.lengths, long_file.fps)
    assert counts.tolist() == np.add.reduceat(predicted, long_file.begins, dtype=int).tolist()
    assert counts.any()
