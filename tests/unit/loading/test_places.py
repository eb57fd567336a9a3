"""Guessed places are those that a search gives, or are searched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.unit.loading.trajectories import trajectory

from leconvert.loading import resampling as kernel
from leconvert.loading.resampling import Packed, even_targets, find_places, pack
from leconvert.loading.trajectories import FloatArray

HZ = 50.0


def are_right(packed: Packed, clocks: Sequence[FloatArray]) -> None:
    """Assert that every target has the samples and the weight that NumPy's search gives."""
    targets = even_targets(packed, HZ)
    found = find_places(packed, targets)
    beside, weight = found.beside.numpy(), found.weight.numpy()
    begin = 0
    for row, clock in enumerate(clocks):
        times = clock - clock[0]
        aims = np.arange(int(targets.counts[row])) / HZ
        span = slice(begin, begin + len(aims))
        begin += len(aims)
        low = np.searchsorted(times, aims, side="right") - 1
        wanted = np.minimum(low, max(len(times) - 2, 0))
        assert np.array_equal(beside[span, 0] - packed.first_row[row], wanted)
        high = np.minimum(wanted + 1, len(times) - 1)
        assert np.array_equal(beside[span, 1] - packed.first_row[row], high)
        ends = times[high] - times[wanted]
        shares = np.divide(aims - times[wanted], ends, out=np.ones_like(aims), where=ends > 0)
        assert np.array_equal(weight[span], np.minimum(shares, 1))
    assert begin == len(targets)


def wandering(generator: np.random.Generator, rate: float, steps: float) -> FloatArray:
    """A clock that is off by up to so many steps; its first and last sample are at their times."""
    even = np.arange(int(rate * generator.uniform(1, 3)))
    times = np.sort(even + generator.uniform(-steps, steps, len(even)) * (even > 0)) / rate
    started: FloatArray = np.maximum(times - times[0], 0)
    return started


@pytest.mark.parametrize("steps", [0.0, 0.3, 1.0])
def test_a_clock_that_wanders_a_little_is_not_searched(
    steps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_search", lambda *_: pytest.fail("it was searched"))
    generator = np.random.default_rng(int(steps * 10))
    clocks = [wandering(generator, rate, steps) for rate in (30.0, 50.0, 61.7, 333.0)]

    are_right(pack([trajectory(clock) for clock in clocks]), clocks)


def test_single_samples_and_times_that_repeat_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "_search", lambda *_: pytest.fail("it was searched"))
    clocks = [
        np.array(clock)
        for clock in ([5.0], [0.0, 0.0], [7.0], [0.0, 0.02, 0.02, 0.04], [0.0, 0.02, 0.02], [1.0])
    ]

    are_right(pack([trajectory(clock) for clock in clocks]), clocks)


def test_a_clock_that_stood_still_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    search, searched = kernel._search, []
    monkeypatch.setattr(kernel, "_search", lambda *given: searched.append(1) or search(*given))
    gap = np.concatenate((np.arange(40) / 100, 5 + np.arange(10) / 100))
    clocks = [gap, np.arange(30) / 100, np.array([2.0])]

    are_right(pack([trajectory(clock) for clock in clocks]), clocks)

    assert searched
