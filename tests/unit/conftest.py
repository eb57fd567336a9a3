"""Workers of other hosts, a holder on this one, and a clock that the test turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leconvert.run.leasing import LeaseStore, WorkerIdentity
from leconvert.workdir.records import RunPaths, WorkDir
from leconvert.workdir.run import OpenedRun


class TurnedClock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """The folder of a run in a work dir."""
    paths = WorkDir(tmp_path / "work").run("r1")
    paths.ensure()
    return paths


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def worker_on(planned: OpenedRun) -> Callable[..., LeaseStore]:
    """Make the leases of a worker on a host that nobody here can look into."""

    def make(host: str, pid: int = 7, *, max_attempts: int = 3) -> LeaseStore:
        identity = WorkerIdentity(f"{host}-{pid}-00000000", host, pid)
        return LeaseStore(planned.paths, identity, max_attempts=max_attempts)

    return make


@pytest.fixture
def holder_here(planned: OpenedRun) -> Iterator[subprocess.Popen[str]]:
    """A process of this host that holds batch 0 until it is killed."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from leconvert.run.leasing import LeaseStore, WorkerIdentity\n"
        "from leconvert.workdir.run import open_run\n"
        "run = open_run(Path(sys.argv[1]))\n"
        "identity = WorkerIdentity.of_this_process()\n"
        "lease = LeaseStore(run.paths, identity).claim(0)\n"
        "print(lease.batch_id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(planned.work_dir.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "0\n"
        yield holder
        holder.kill()
