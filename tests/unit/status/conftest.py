"""A planned run, workers of other hosts, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leconvert.leasing import LeaseStore, WorkerIdentity
from leconvert.model import LayoutOptions
from leconvert.planner import open_or_plan
from leconvert.workdir.opened import OpenedRun


class TurnedClock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 500.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def planned(small_source: Path, tmp_path: Path) -> OpenedRun:
    """A run of one batch an episode that nobody has worked on."""
    return open_or_plan(
        small_source, tmp_path / "out", tmp_path / "work", LayoutOptions(episodes_per_batch=1)
    )


@pytest.fixture
def worker_on(planned: OpenedRun) -> Callable[..., LeaseStore]:
    """Make the leases of a worker on a host that nobody here can look into."""

    def make(host: str, pid: int = 7, *, max_attempts: int = 3) -> LeaseStore:
        identity = WorkerIdentity(f"{host}-{pid}-00000000", host, pid)
        return LeaseStore(
            planned.paths, planned.manifest.run_id, identity, max_attempts=max_attempts
        )

    return make
