"""Points in time are shown, durations are measured: the two never mix."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from leconvert.run.leasing.leases import AttemptTimes, utc_now

BEGIN = datetime(2025, 1, 31, 13, 0, 0, 1_999, timezone(timedelta(hours=1)))


def test_times_are_those_of_utc_to_the_millisecond_whatever_the_zone_of_the_clock() -> None:
    wall = iter([BEGIN, datetime(2025, 1, 31, 12, 0, 2, 500_000, UTC)])
    times = AttemptTimes(lambda: next(wall), lambda: 0.0)
    assert times.of_beat() == {
        "began": "2025-01-31T12:00:00.001+00:00",
        "beat": "2025-01-31T12:00:02.500+00:00",
    }


def test_a_duration_is_that_of_the_monotonic_clock_though_the_wall_clock_jumps_back() -> None:
    wall = iter([BEGIN, BEGIN - timedelta(hours=3)])
    monotonic = iter([100.0, 101.23456])
    times = AttemptTimes(lambda: next(wall), lambda: next(monotonic))
    assert times.of_end() == {
        "began": "2025-01-31T12:00:00.001+00:00",
        "ended": "2025-01-31T09:00:00.001+00:00",
        "seconds": 1.235,
    }


def test_times_do_not_depend_on_the_zone_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert utc_now().utcoffset() == timedelta(0)
        assert AttemptTimes(lambda: BEGIN).of_beat()["began"] == "2025-01-31T12:00:00.001+00:00"
    time.tzset()
