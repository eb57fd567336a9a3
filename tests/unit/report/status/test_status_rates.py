"""Rates from what an observer saw on its own clock."""

from __future__ import annotations

import pytest

from leconvert.report.status import Progressed, RateWindow, seconds_left


def test_the_first_look_takes_the_workers_own_mean() -> None:
    window = RateWindow()
    window.add(1000.0, {"a": Progressed(size_bytes=500, cost=5000.0, frames=50, seconds=10.0)})
    assert window.rates("a") == (50.0, 500.0, 5.0)
    assert window.rates("nobody") == (0.0, 0.0, 0.0)


def test_later_looks_take_what_moved_while_it_was_watched() -> None:
    window = RateWindow()
    window.add(1000.0, {"a": Progressed(500, 500.0, 50, 10.0)})
    window.add(1002.0, {"a": Progressed(900, 700.0, 50, 12.0)})
    assert window.rates("a") == (200.0, 100.0, 0.0)


def test_a_worker_that_stopped_moving_has_no_rate_whatever_it_did_before() -> None:
    window = RateWindow()
    for second in range(0, 130, 10):
        window.add(1000.0 + second, {"a": Progressed(7000, 7000.0, 70, 10.0)})
    assert window.rates("a") == (0.0, 0.0, 0.0)


def test_only_the_last_minute_counts() -> None:
    window = RateWindow()
    for second in range(0, 200, 10):
        moved = 1000 * min(second, 100)
        window.add(float(second), {"a": Progressed(moved, 0.0, 0, float(second))})
    assert window.rates("a")[0] == 0.0


def test_a_worker_that_joined_late_is_measured_from_when_it_was_first_seen() -> None:
    window = RateWindow()
    window.add(0.0, {"a": Progressed(0, 0.0, 0, 1.0)})
    window.add(10.0, {"a": Progressed(0, 0.0, 0, 11.0), "b": Progressed(100, 0.0, 0, 0.5)})
    assert window.rates("b") == (200.0, 0.0, 0.0)
    window.add(14.0, {"a": Progressed(0, 0.0, 0, 15.0), "b": Progressed(500, 0.0, 0, 4.5)})
    assert window.rates("b") == (100.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("left", "rate", "expected"), [(0, 0.0, 0.0), (10, 0.0, None), (10, 4, 2.5)]
)
def test_time_left_is_unknown_where_nothing_moves(
    left: int, rate: float, expected: float | None
) -> None:
    assert seconds_left(left, rate) == expected
