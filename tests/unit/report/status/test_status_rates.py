"""Rates from what an observer saw on its own clock."""

from __future__ import annotations

import pytest

from leconvert.report.status import Progressed, RateWindow, seconds_left

Looks = list[tuple[float, dict[str, tuple[int, float, int, float]]]]
STOPPED: Looks = [(1000.0 + n, {"a": (7000, 7000.0, 70, 10.0)}) for n in range(0, 130, 10)]
LONG_AGO: Looks = [
    (float(n), {"a": (1000 * min(n, 100), 0.0, 0, float(n))}) for n in range(0, 200, 10)
]
JOINED: Looks = [
    (0.0, {"a": (0, 0.0, 0, 1.0)}),
    (10.0, {"a": (0, 0.0, 0, 11.0), "b": (100, 0.0, 0, 0.5)}),
]


@pytest.mark.parametrize(
    ("looks", "token", "rates"),
    [
        pytest.param([(1000.0, {"a": (500, 5000.0, 50, 10.0)})], "a", (50, 500, 5), id="own mean"),
        pytest.param([(1000.0, {"a": (500, 5000.0, 50, 10.0)})], "b", (0, 0, 0), id="nobody"),
        pytest.param(
            [(1000.0, {"a": (500, 500.0, 50, 10.0)}), (1002.0, {"a": (900, 700.0, 50, 12.0)})],
            *("a", (200, 100, 0)),
            id="what moved meanwhile",
        ),
        pytest.param(STOPPED, "a", (0, 0, 0), id="a worker that stopped moving"),
        pytest.param(LONG_AGO, "a", (0, 0, 0), id="moved before the last minute"),
        pytest.param(JOINED, "b", (200, 0, 0), id="joined just now"),
        pytest.param(
            [*JOINED, (14.0, {"b": (500, 0.0, 0, 4.5)})], "b", (100, 0, 0), id="joined late"
        ),
    ],
)
def test_rates_are_those_of_the_last_minute(
    looks: Looks, token: str, rates: tuple[float, ...]
) -> None:
    window = RateWindow()
    for now, seen in looks:
        window.add(now, {worker: Progressed(*did) for worker, did in seen.items()})
    assert window.rates(token) == rates


@pytest.mark.parametrize(
    ("left", "rate", "expected"), [(0, 0.0, 0.0), (10, 0.0, None), (10, 4, 2.5)]
)
def test_time_left_is_unknown_where_nothing_moves(
    left: int, rate: float, expected: float | None
) -> None:
    assert seconds_left(left, rate) == expected
