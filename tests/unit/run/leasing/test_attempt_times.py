"""Points in time are shown, durations are measured: the two never mix."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from leconvert.run.leasing import Lease, LeaseStore, WorkerIdentity, read_done
from leconvert.run.leasing.leases import utc_now
from leconvert.workdir.records import RunPaths

BEGIN = datetime(2025, 1, 31, 13, 0, 0, 1_999, timezone(timedelta(hours=1)))


def claimed(run: RunPaths, now: Callable[[], datetime], **given: Any) -> Lease:
    lease = LeaseStore(run, WorkerIdentity("w-1-0", "w", 1), now=now, **given).claim(0)
    assert lease is not None
    return lease


def beat(run: RunPaths) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(run.heartbeat(0, 1).read_bytes())
    return {name: record[name] for name in ("began", "beat")}


def test_times_are_those_of_utc_to_the_millisecond_whatever_the_zone_of_the_clock(
    run: RunPaths,
) -> None:
    wall = iter([BEGIN, datetime(2025, 1, 31, 12, 0, 2, 500_000, UTC)])
    claimed(run, lambda: next(wall)).heartbeat()
    assert beat(run) == {
        "began": "2025-01-31T12:00:00.001+00:00",
        "beat": "2025-01-31T12:00:02.500+00:00",
    }


def test_a_duration_is_that_of_the_monotonic_clock_though_the_wall_clock_jumps_back(
    run: RunPaths,
) -> None:
    wall = iter([BEGIN, BEGIN - timedelta(hours=3)])
    seconds = [100.0]
    lease = claimed(run, lambda: next(wall), clock=lambda: seconds[0])
    seconds[0] = 101.23456
    assert lease.publish_done({}) == "won"
    record = read_done(run, 0)
    assert {name: record[name] for name in ("began", "ended", "seconds")} == {
        "began": "2025-01-31T12:00:00.001+00:00",
        "ended": "2025-01-31T09:00:00.001+00:00",
        "seconds": 1.235,
    }


def test_times_do_not_depend_on_the_zone_of_the_host(
    monkeypatch: pytest.MonkeyPatch, run: RunPaths
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert utc_now().utcoffset() == timedelta(0)
        claimed(run, lambda: BEGIN).heartbeat()
        assert beat(run)["began"] == "2025-01-31T12:00:00.001+00:00"
    time.tzset()
