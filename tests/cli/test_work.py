"""``leconvert work`` as a batch system meets it: signals, limits, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from leconvert.report.status import run_status
from leconvert.run.leasing import LeaseStore, WorkerIdentity
from leconvert.run.leasing.state import BatchState
from leconvert.workdir.run import OpenedRun
from tests.program import Leconvert, started

# What a batch system gives before it kills; a worker needs far less, this machine may be busy.
GRACE_SECONDS = 30

TELL_OF_WAITING = (
    "from leconvert.run.worker import Worker\n"
    "idle = Worker._idle\n"
    "def told(self):\n"
    "    print('waiting', flush=True)\n"
    "    idle(self)\n"
    "Worker._idle = told\n"
)


def store_of_another_host(run: OpenedRun) -> LeaseStore:
    return LeaseStore(run.paths, WorkerIdentity("far-1-00000000", "far", 1))


def working(code: str, *arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A worker process that runs some code first."""
    program = f"{code}\nimport sys; from leconvert.cli import main\nsys.exit(main())"
    return started("-c", program, "work", *arguments)


def test_a_signal_in_the_middle_of_a_batch_hands_it_back_in_time(planned: OpenedRun) -> None:
    code = (
        "import time\n"
        "from leconvert import media\n"
        "from leconvert.support.errors import InterruptedRunError\n"
        "def endless(*_, should_stop, **__):\n"
        "    print('in the middle', flush=True)\n"
        "    while not should_stop():\n"
        "        time.sleep(0.01)\n"
        "    raise InterruptedRunError('asked to stop')\n"
        "media.join_clips = endless\n"
    )
    with working(code, planned.work_dir.root) as worker:
        assert worker.stdout.readline() == "in the middle\n"
        [held] = run_status(planned.work_dir.root).unsettled
        assert held.state is BatchState.LEASED
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=GRACE_SECONDS)
    assert worker.returncode == 130, said
    assert "free for other workers" in said
    assert "Run the same command again" in said
    [row] = run_status(planned.work_dir.root).unsettled
    assert (row.state, row.errors, row.losses) == (BatchState.PENDING, 0, 0)
    assert not any(planned.paths.attempts_dir.glob("*/*")), "half an attempt is not left behind"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_worker_that_waits(planned: OpenedRun, number: signal.Signals) -> None:
    others = store_of_another_host(planned)
    assert all(others.claim(batch_id) for batch_id in range(5))
    with working(TELL_OF_WAITING, planned.work_dir.root) as worker:
        assert worker.stdout.readline() == "waiting\n"
        worker.send_signal(number)
        _, said = worker.communicate(timeout=GRACE_SECONDS)
    assert worker.returncode == 130, said


def test_a_worker_stops_after_waiting_for_so_long(
    leconvert_here: Leconvert, planned: OpenedRun
) -> None:
    others = store_of_another_host(planned)
    assert all(others.claim(batch_id) for batch_id in range(5))
    began = time.monotonic()
    done = leconvert_here(
        "work", planned.work_dir.root, "--max-idle-seconds", 0.5, "--json", code=0
    )
    assert json.loads(done.stdout)["batches_done"] == 0
    assert time.monotonic() - began >= 0.5


def test_a_worker_sets_a_batch_aside_after_so_many_errors(planned: OpenedRun) -> None:
    code = (
        "from leconvert import media\n"
        "from leconvert.support.errors import UnreadableSourceError\n"
        "def torn(*_, **__):\n"
        "    raise UnreadableSourceError('a clip is torn.')\n"
        "media.join_clips = torn\n"
    )
    with working(code, planned.work_dir.root, "--max-attempts", 1, "--json") as worker:
        said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert json.loads(said)["batches_failed"] == 5
    failures = run_status(planned.work_dir.root).failures
    assert [(failure.errors, failure.message) for failure in failures] == [
        (1, "a clip is torn.")
    ] * 5


def test_a_worker_that_comes_when_the_result_is_in_the_source_s_place_has_nothing_to_do(
    leconvert_here: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    leconvert_here("convert", "--root", source_copy, "--work-dir", work, code=0)
    late = leconvert_here("work", work, "--json", code=0)
    assert json.loads(late.stdout)["batches_done"] == 0
