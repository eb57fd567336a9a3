"""Frames off their place are counted exactly, by short cuts for even times as by plain sums."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from leconvert.media import ClipIndex


def index_of(shown: npt.NDArray[np.int64] | range, timescale: int) -> ClipIndex:
    count = len(shown)
    return ClipIndex(
        path="",
        file_size_bytes=count,
        timescale=timescale,
        sizes=np.ones(count, np.int64),
        num_bytes=count,
        unindexed_bytes=0,
        places=0,
        step=0,
        shown=shown,
        keyframes=np.ones(count, np.bool_),
        sample_entry=b"",
        config_key="",
        other_tracks=(),
        geometry=b"",
        duration=count,
    )


RATES = st.one_of(
    st.integers(1, 240).map(Fraction),
    st.floats(0.01, 1000).map(lambda value: Fraction(repr(value))),
)


def naive_off_their_place(index: ClipIndex, fps: Fraction) -> int:
    times = sorted(index.presentation_times.tolist())
    return sum(
        abs(Fraction(time, index.timescale) - rank / fps) >= 1 / (2 * fps)
        for rank, time in enumerate(times)
    )


@settings(max_examples=100, deadline=None)
@given(
    first=st.integers(-(2**40), 2**40) | st.integers(-3000, 3000),
    step=st.integers(1, 2**31) | st.integers(400, 600),
    count=st.integers(1, 40),
    timescale=st.sampled_from([1000, 15360, 90000, 2**31 - 1]),
    fps=RATES,
)
def test_frames_of_even_times_off_their_place_are_counted_exactly(
    first: int, step: int, count: int, timescale: int, fps: Fraction
) -> None:
    index = index_of(range(first, first + step * count, step), timescale)
    assert len(index.frames_off_their_place(fps)) == naive_off_their_place(index, fps)


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.integers(-(2**60), 2**60) | st.integers(0, 9000), min_size=1, unique=True),
    timescale=st.sampled_from([1000, 15360, 2**31 - 1]),
    fps=RATES,
)
def test_frames_of_any_times_off_their_place_are_counted_exactly(
    times: list[int], timescale: int, fps: Fraction
) -> None:
    index = index_of(np.array(times, np.int64), timescale)
    assert len(index.frames_off_their_place(fps)) == naive_off_their_place(index, fps)


def test_the_frames_of_a_steady_clip_are_where_they_belong() -> None:
    steady = index_of(range(0, 60 * 512, 512), 15360)
    assert len(steady.frames_off_their_place(Fraction(30))) == 0
    assert len(steady.frames_off_their_place(Fraction(29))) == 60 - 15
    late = index_of(range(256, 256 + 60 * 512, 512), 15360)
    assert len(late.frames_off_their_place(Fraction(30))) == 60
