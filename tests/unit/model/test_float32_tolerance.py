"""What LeRobot's comparison in single precision refuses, counted without loading a frame."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from leconvert import media
from leconvert.model import float32_tolerance
from leconvert.model.float32_tolerance import (
    frames_always_in_reach,
    frames_out_of_reach,
    is_out_of_reach,
    placed_rate,
)
from leconvert.model.values import IntArray

RATES = [
    "30", "10", "15", "20", "24", "25", "50", "60", "100", "120", "12.5", "0.5", "7.3", "23.976",
    "29.97", "59.94", "29.97002997", "30.0000001", "1000", "16384",
]  # fmt: skip


def episodes_at(begins: IntArray, length: int, fps: Fraction) -> IntArray:
    return frames_out_of_reach(begins, np.full(len(begins), length), fps)


def places(seconds: int, rate: int) -> IntArray:
    """Every frame of a file of so many seconds."""
    return np.arange(seconds * rate)


@pytest.mark.parametrize("seconds", [2, 30, 128])
def test_short_episodes_at_30_fps_are_in_reach_wherever_they_begin(seconds: int) -> None:
    assert not episodes_at(places(8000, 30), seconds * 30, Fraction(30)).any()


def test_episodes_of_five_minutes_at_30_fps_lose_frames_from_724_seconds_on() -> None:
    begins = places(1200, 30)
    lost = episodes_at(begins, 300 * 30, Fraction(30))
    first = int(np.flatnonzero(lost)[0])
    assert (begins[first], lost[first]) == (21_728, 1)
    surely = int(np.flatnonzero(lost == 0)[-1]) + 1
    assert 768 < begins[surely] / 30 < 769
    assert episodes_at(np.array([900 * 30]), 300 * 30, Fraction(30)).tolist() == [688]


@pytest.mark.parametrize("fps", RATES)
def test_counts_are_those_of_every_single_frame(fps: str) -> None:
    rate = Fraction(fps)
    generator = np.random.default_rng(7)
    begins = (generator.uniform(0, 9000, 12) * float(rate)).astype(np.int64)
    longest = min(int(400 * rate), 60_000)
    lengths = 1 + (generator.uniform(0, 1, 12) ** 2 * longest).astype(np.int64)
    expected = [
        int(is_out_of_reach(np.full(length, begin), np.arange(length), rate).sum())
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]
    assert frames_out_of_reach(begins, lengths, rate).tolist() == expected


@pytest.mark.parametrize("fps", RATES)
def test_the_frames_that_are_always_in_reach_are(fps: str) -> None:
    rate = Fraction(fps)
    certain = frames_always_in_reach(rate)
    generator = np.random.default_rng(3)
    places_in_file = np.append(generator.integers(0, max(certain, 1), 20_000), max(certain, 1) - 1)
    frames = generator.integers(0, places_in_file + 1)
    assert certain == 0 or not is_out_of_reach(places_in_file - frames, frames, rate).any()


def test_long_lists_of_frames_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, lengths = np.array([27_000, 0, 50_000, 36_000]), np.array([9000, 900, 1, 9000])
    rate = Fraction(30)
    expected = frames_out_of_reach(begins, lengths, rate)
    assert expected.tolist() == [688, 0, 0, 688]
    asked = []

    def recording(
        begin_frame: IntArray, frame: IntArray, fps: Fraction
    ) -> float32_tolerance.BoolArray:
        asked.append(len(frame))
        return is_out_of_reach(begin_frame, frame, fps)

    monkeypatch.setattr(float32_tolerance, "is_out_of_reach", recording)
    monkeypatch.setattr(float32_tolerance, "_FRAMES_A_BLOCK", 300)
    assert frames_out_of_reach(begins, lengths, rate).tolist() == expected.tolist()
    assert max(asked) == 300
    assert sum(asked) < lengths.sum()


def test_a_million_short_episodes_at_a_common_rate_are_decided_without_their_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> float32_tolerance.BoolArray:
        raise AssertionError("a frame was evaluated")

    monkeypatch.setattr(float32_tolerance, "is_out_of_reach", refuse)
    begins = np.arange(1_000_000) % 1000 * 300  # files of up to eight hours
    for rate in (10, 15, 20, 24, 25, 30, 50, 60):
        assert not episodes_at(begins, 300, Fraction(rate)).any()


def test_a_neighbour_within_the_tolerance_is_no_find() -> None:
    # 32,768 frames a second are 3.1e-5 s apart; at 512 s a timestamp is off by half of 6.1e-5 s.
    frames = 512 * 32_768 + np.arange(8)
    assert is_out_of_reach(np.zeros(8, np.int64), frames, Fraction(32_768)).any()
    assert frames_always_in_reach(Fraction(32_768)) == 0


def test_the_documented_figures_are_these() -> None:
    text = (Path(__file__).parents[3] / "docs/layout.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.endswith("|")]
    figures = [[fps, *row[1:]] for row in rows for fps in row[0].split(", ") if fps in RATES]
    assert len(figures) == 10
    for fps, certain, *lost in figures:
        rate = Fraction(fps)
        if certain != "none":
            seconds = int(certain.removesuffix(" s"))
            begins = np.arange(0, int(7200 * rate), 7)
            assert not episodes_at(begins, int(seconds * rate), rate).any()
        for seconds, figure in zip((10, 60, 300), lost, strict=True):
            length = int(seconds * rate)
            begins = np.arange(7200 // seconds) * length
            found = int(episodes_at(begins, length, rate).sum())
            assert figure == (f"{found:,} of {len(begins) * length:,}" if found else "0"), fps


def test_no_episodes_lose_no_frames() -> None:
    none = np.array([], dtype=np.int64)
    assert frames_out_of_reach(none, none, Fraction(30)).tolist() == []


@pytest.mark.parametrize("fps", [*RATES, "29.97002997002997", "1e6", "0.000001", "33.333333333"])
def test_frames_are_placed_where_the_joiner_places_them(fps: str) -> None:
    rate = Fraction(fps)
    assert placed_rate(rate) == Fraction(*media.frame_ticks(rate))
