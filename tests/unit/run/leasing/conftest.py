"""A run with workers whose clocks the test turns."""

from __future__ import annotations

import pytest
from lease_fakes import MakeStore, TurnedClock

from leconvert.run.leasing import LeaseStore, WorkerIdentity
from leconvert.workdir.fs import LOCAL, FileSystem
from leconvert.workdir.records import RunPaths


@pytest.fixture
def make_store(run: RunPaths, clock: TurnedClock) -> MakeStore:
    def make(name: str, *, fs: FileSystem = LOCAL, max_attempts: int = 3) -> LeaseStore:
        return LeaseStore(
            run.using(fs),
            WorkerIdentity(f"{name}-1-00000000", name, 1),
            lease_seconds=60.0,
            max_attempts=max_attempts,
            clock=clock,
        )

    return make
