"""``leconvert status`` as an operator reads it."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leconvert.cli.status import WIDTH, status_lines
from leconvert.report.status import (
    Failure,
    JobStatus,
    Liveness,
    PackerStatus,
    RunStatus,
    VideoBytes,
    WorkerStatus,
)
from leconvert.run.leasing import BatchState, BatchStatus
from tests.program import Leconvert, started

GIB = 1024**3


def worker(host: str, number: int, **changes: object) -> WorkerStatus:
    plain = WorkerStatus(
        token=f"{host}-{number}-0",
        host=host,
        pid=40_000 + number,
        liveness=Liveness.RUNNING,
        batch_id=19_000 + number,
        silent_seconds=12.0,
        batches=321,
        written_bytes=123 * GIB,
        bytes_per_second=1.4e9,
        frames_per_second=123_456.0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def status_of(workers: Sequence[WorkerStatus], failures: Sequence[Failure] = ()) -> RunStatus:
    unsettled = [
        BatchStatus(w.batch_id, BatchState.LEASED, 4, w.host, w.pid, w.token, 1.0, 2, 1)
        for w in workers
        if w.batch_id is not None
    ]
    return RunStatus(
        run_id="20251121T070000-abcdef",
        source="/a/rather/long/path" * 8,
        target="/another/rather/long/path" * 8,
        batches=20_000,
        pending=15_000,
        leased=len(workers),
        done=5_000 - len(workers),
        failed=0,
        total_bytes=4_000 * GIB,
        done_bytes=1_000 * GIB,
        total_frames=10**9,
        done_frames=25 * 10**7,
        packed=False,
        packer=PackerStatus(2, "packing", "node-with-a-name-that-never-ends.cluster.example", 7),
        video=VideoBytes(9 * GIB, 7 * GIB, 2_000),
        bytes_per_second=3e9,
        frames_per_second=2e6,
        seconds_left=12_345.0,
        observed_seconds=60.0,
        workers=workers,
        ended_workers=3,
        unsettled=unsettled,
        failures=failures,
    )


def test_a_thousand_hosts_still_fit_on_a_page() -> None:
    workers = [worker(f"host-{n:04d}-with-a-long-name.example.org", n) for n in range(1000)]
    lines = status_lines(status_of(workers), Path("/work"))
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) < 40
    assert any(line.startswith("and 980 more hosts") for line in lines)


def test_the_command_that_gives_batches_back_is_whole_wherever_the_run_is() -> None:
    work_dir = Path("/mnt/our shared disk", "a folder whose name is long " * 4, "work")
    failures = [Failure(1, 3, 0, "node", "UnreadableSourceError", "torn", None)]
    *others, release, work = status_lines(status_of([], failures), work_dir)
    assert max(map(len, others)) <= WIDTH
    commands = [shlex.split(line.split(": ")[1]) for line in (release, work)]
    assert commands == [
        ["leconvert", "release", str(work_dir), "--failed"],
        ["leconvert", "work", str(work_dir)],
    ]


def job(states: dict[str, int] | None) -> dict[str, object]:
    return {"jobs": [JobStatus("slurm", "12", "workers", 3, states, None)]}


FAILURES = [Failure(1, 3, 0, "node", "UnreadableSourceError", "torn", None)]
DONE = {"done": 20_000, "pending": 0}


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, ["work /w"]),
        ({"workers": [worker("n", 1, liveness=Liveness.ENDED)]}, ["work /w"]),
        *(
            ({"workers": [worker("n", 1, liveness=liveness)]}, [])
            for liveness in (Liveness.RUNNING, Liveness.SILENT, Liveness.UNKNOWN)
        ),
        ({"failures": FAILURES}, ["release /w --failed", "work /w"]),
        (
            {"failures": FAILURES, "failed": 1, "pending": 0, "done": 19_999},
            ["release /w --failed"],
        ),
        (DONE, ["pack /w"]),
        (DONE | {"packed": True}, []),
        (DONE | {"packer": PackerStatus(2, "packing", "n", 7, liveness=Liveness.RUNNING)}, []),
        (job(None), []),  # the scheduler does not answer
        (job({"PENDING": 1, "COMPLETED": 2}), []),
        (job({"COMPLETED": 2, "TIMEOUT": 1}), ["work /w"]),
        (job({}), ["work /w"]),
    ],
)
def test_the_next_command_is_named_where_nobody_may_be_at_work(
    changes: dict[str, Any], steps: list[str]
) -> None:
    lines = status_lines(replace(status_of([]), **changes), Path("/w"))
    assert [line.split(": leconvert ")[1] for line in lines if ": leconvert " in line] == steps


@pytest.fixture
def work_dir(leconvert_here: Leconvert, small_source: Path, tmp_path: Path) -> Path:
    work = tmp_path / "work"
    leconvert_here(
        "plan", "--root", small_source, "--output", tmp_path / "out", "--work-dir", work,
        "--episodes-per-batch", 1, code=0,
    )  # fmt: skip
    return work


def watching(work_dir: Path, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A watch in a process of its own."""
    return started("-m", "leconvert", "status", work_dir, "--watch", *options)


def test_a_watch_prints_one_json_object_a_line_and_ends_when_packed(
    leconvert_here: Leconvert, work_dir: Path
) -> None:
    with watching(work_dir, "0.1", "--json") as watch:
        first = json.loads(watch.stdout.readline())
        assert leconvert_here("work", work_dir).returncode == 0
        assert leconvert_here("pack", work_dir).returncode == 0
        rest = [json.loads(line) for line in watch.stdout]
    assert watch.returncode == 0
    assert (first["pending"], first["packed"]) == (5, False)
    assert (rest[-1]["done"], rest[-1]["packed"]) == (5, True)
    assert not any(status["packed"] for status in rest[:-1])


def test_a_watch_that_is_interrupted_says_130_and_no_traceback(work_dir: Path) -> None:
    with watching(work_dir, "60") as watch:
        assert watch.stdout.readline().startswith("run ")
        watch.terminate()
        _, said = watch.communicate(timeout=60)
    assert watch.returncode == 130
    assert said == ""
