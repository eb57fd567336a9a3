"""``leconvert work`` as a batch system meets it: signals, limits, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from leconvert.model.values import LayoutOptions
from leconvert.report.status import run_status
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.leasing import LeaseStore, WorkerIdentity, list_batches
from leconvert.run.leasing.state import BatchState
from leconvert.run.planner import open_or_plan
from leconvert.workdir.run import OpenedRun
from tests.program import Leconvert, started

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
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
    return LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity("far-1-00000000", "far", 1))


def working(code: str, *arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A worker process that runs some code first."""
    program = f"{code}\nimport sys; from leconvert.cli import main\nsys.exit(main())"
    return started("-c", program, "work", *arguments)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_the_middle_of_a_batch_hands_it_back_in_time(
    planned: OpenedRun, number: signal.Signals
) -> None:
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
        assert worker.stdout is not None
        assert worker.stdout.readline() == "in the middle\n"
        [held] = run_status(planned.work_dir.root).unsettled
        assert held.state is BatchState.LEASED
        worker.send_signal(number)
        _, said = worker.communicate(timeout=GRACE_SECONDS)
    assert worker.returncode == 130, said
    assert "handed back" in said
    assert "Run the same command again" in said
    [row] = run_status(planned.work_dir.root).unsettled
    assert (row.state, row.errors, row.losses) == (BatchState.PENDING, 0, 0)
    assert not any(planned.paths.attempts_dir.glob("*/*")), "half an attempt is not left behind"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_worker_that_waits(planned: OpenedRun, number: signal.Signals) -> None:
    others = store_of_another_host(planned)
    assert all(others.claim(batch_id) for batch_id in range(5))
    with working(TELL_OF_WAITING, planned.work_dir.root) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "waiting\n"
        worker.send_signal(number)
        _, said = worker.communicate(timeout=GRACE_SECONDS)
    assert worker.returncode == 130, said


def test_a_signal_ends_a_worker_whose_disk_fails(planned: OpenedRun) -> None:
    code = (
        "import errno\n"
        "from leconvert.workdir.locks import Backoff\n"
        "from leconvert.run.leasing import Board\n"
        "def broken(self):\n"
        "    raise OSError(errno.EIO, 'Input/output error', 'the work dir')\n"
        "Board.next_lease = broken\n"
        "pause = Backoff.next_pause\n"
        "def told(self):\n"
        "    print('trouble', flush=True)\n"
        "    return pause(self) and 3600.0\n"
        "Backoff.next_pause = told\n"
    )
    with working(code, planned.work_dir.root) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "trouble\n"
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=GRACE_SECONDS)
    assert worker.returncode == 130, said


def test_a_worker_stops_after_so_many_batches(leconvert: Leconvert, planned: OpenedRun) -> None:
    done = leconvert("work", planned.work_dir.root, "--max-batches", 2, "--json")
    assert json.loads(done.stdout)["batches_done"] == 2
    assert len(list_batches(planned.paths.done_dir)) == 2


def test_a_worker_stops_after_waiting_for_so_long(leconvert: Leconvert, planned: OpenedRun) -> None:
    others = store_of_another_host(planned)
    assert all(others.claim(batch_id) for batch_id in range(5))
    began = time.monotonic()
    done = leconvert("work", planned.work_dir.root, "--max-idle-seconds", 0.5, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["batches_done"] == 0
    assert time.monotonic() - began >= 0.5


def test_a_worker_takes_over_what_was_silent_for_the_lease_it_was_given(
    leconvert: Leconvert, planned: OpenedRun
) -> None:
    assert store_of_another_host(planned).claim(3) is not None
    done = leconvert("work", planned.work_dir.root, "--lease-seconds", 0.5, "--json")
    assert json.loads(done.stdout)["batches_done"] == 5


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


def test_a_disk_that_stays_broken_ends_a_worker_after_the_time_it_was_given(
    planned: OpenedRun,
) -> None:
    code = (
        "import errno\n"
        "from leconvert.run.leasing import Board\n"
        "def broken(self):\n"
        "    raise OSError(errno.ESTALE, 'Stale file handle', 'the work dir')\n"
        "Board.next_lease = broken\n"
    )
    with working(code, planned.work_dir.root, "--max-trouble-seconds", 0.2) as worker:
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 11
    assert "stale handle" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "option",
    [
        ("--max-batches", -1),
        ("--max-idle-seconds", -1),
        ("--lease-seconds", 0),
        ("--max-attempts", 0),
        ("--max-trouble-seconds", -1),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    leconvert: Leconvert, planned: OpenedRun, option: tuple[str, int]
) -> None:
    refused = leconvert("work", planned.work_dir.root, *option)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert list_batches(planned.paths.leases_dir) == set()


def test_a_worker_of_a_run_that_is_restarted_ends_with_the_reason(
    planned: OpenedRun, small_source: Path, tmp_path: Path
) -> None:
    others = store_of_another_host(planned)
    assert all(others.claim(batch_id) for batch_id in range(5))
    with working(TELL_OF_WAITING, planned.work_dir.root) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "waiting\n"
        options = LayoutOptions(episodes_per_batch=1)
        open_or_plan(
            small_source,
            tmp_path / "out",
            tmp_path / "work",
            Conversion(layout=options, plan=PlanOptions(restart=True)),
        )
        _, said = worker.communicate(timeout=GRACE_SECONDS)
    assert worker.returncode == 6, said
    assert "was discarded" in said
    assert planned.manifest.run_id in planned.work_dir.list_runs(), "its folder is not used again"
    assert len(planned.work_dir.list_runs()) == 2


def test_a_worker_that_comes_when_the_result_is_in_the_source_s_place_has_nothing_to_do(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    done = leconvert("convert", "--root", source_copy, "--work-dir", work)
    assert done.returncode == 0, done.stderr
    late = leconvert("work", work, "--json")
    assert late.returncode == 0, late.stderr
    assert json.loads(late.stdout)["batches_done"] == 0
