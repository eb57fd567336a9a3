"""Statistics of frames: exact whatever the frames, and of the pixels that LeRobot takes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leconvert.dataset.statistics import QUANTILES, ImageStats, rank_of, sample_indices

Array = np.ndarray[Any, Any]


def stats_of(frames: list[Array], *, scale: int = 255) -> dict[str, Any]:
    stats = ImageStats(quantiles=True, scale=scale)
    for frame in frames:
        stats.add(frame)
    return stats.result()


# A power of one half is another number than the square root of its variance.
SPARSE = np.full((1, 20, 3), 55, np.uint8)
SPARSE[0, 0, 0] = 0
FRAMES = st.lists(hnp.arrays(np.uint8, (5, 4, 3)), min_size=1, max_size=6)


@settings(max_examples=50)
@given(FRAMES)
@example([SPARSE])
def test_statistics_are_exact_to_the_last_bit(frames: list[Array]) -> None:
    stats = stats_of(frames)
    for channel in range(3):
        pixels = sorted(int(value) for frame in frames for value in frame[..., channel].ravel())
        mean = Fraction(sum(pixels), len(pixels) * 255)
        variance = Fraction(sum(value**2 for value in pixels), len(pixels) * 255**2) - mean**2
        assert stats["min"][channel] == [[pixels[0] / 255]]
        assert stats["max"][channel] == [[pixels[-1] / 255]]
        assert stats["mean"][channel] == [[float(mean)]]
        assert stats["std"][channel] == [[math.sqrt(variance)]]
        for name, level in QUANTILES.items():
            assert stats[name][channel] == [[pixels[rank_of(level, len(pixels))] / 255]]
    assert stats["count"] == [len(frames)]
    assert list(stats) == ["min", "max", "mean", "std", "count", *QUANTILES]


@given(hnp.arrays(np.uint16, (4, 3, 1)))
def test_depth_keeps_its_units_and_has_one_channel(frame: Array) -> None:
    stats = stats_of([frame], scale=1)
    assert stats["min"] == [[[float(frame.min())]]]
    assert stats["max"] == [[[float(frame.max())]]]
    assert np.shape(stats["mean"]) == (1, 1, 1)
    assert stats["mean"][0][0][0] == pytest.approx(frame.astype(float).mean(), rel=1e-15)
    assert stats["std"][0][0][0] == pytest.approx(frame.astype(float).std(), rel=1e-12, abs=1e-9)
    assert type(stats["min"][0][0][0]) is float


def test_an_episode_of_no_frames_has_no_samples() -> None:
    assert sample_indices(0) == []


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "no frames"),
        ([np.zeros((4, 4), np.uint8)], r"shape \(4, 4\)"),
        ([np.zeros((0, 4, 3), np.uint8)], r"shape \(0, 4, 3\)"),
        ([np.zeros((4, 4, 3), np.float32)], "float32"),
        ([np.zeros((4, 4, 3), np.uint16)], "uint16"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 1), np.uint8)], "numbers of channels"),
    ],
)
def test_what_are_no_frames_is_refused(frames: list[Array], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        stats_of(frames)
