"""The engine between a conversion and a scheduler that forgets, restarts and refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leconvert.run.engines.options import Site, SlurmOptions
from leconvert.run.engines.slurm import (
    SlurmEngine,
    job_states,
    packer_job,
    submission_script,
    submit,
    worker_job,
)
from leconvert.support.errors import EngineError, UsageError
from leconvert.workdir.activity import read_jobs
from leconvert.workdir.run import OpenedRun

if TYPE_CHECKING:
    from tests.slurm import Slurm
    from tests.unit.conftest import TurnedClock


@pytest.fixture
def engine(clock: TurnedClock) -> SlurmEngine:
    return SlurmEngine(SlurmOptions(workers_per_node=3), clock=clock)


def begin(engine: SlurmEngine, planned: OpenedRun) -> None:
    engine.start(engine.workers, [str(planned.work_dir.root)], planned.paths)


def test_waiting_workers_count_and_the_controller_is_asked_now_and_then(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    assert engine.running() == 0
    begin(engine, planned)
    slurm.has("41", "41_0|RUNNING|None", "41_1|PENDING|Resources", "41_2|COMPLETED|None")
    assert [engine.running() for _ in range(100)] == [2] * 100
    assert slurm.times_asked == 1
    for states, running in (
        # A worker that is put back into the queue has not failed.
        (("41_0|PREEMPTED|None", "41_1|RUNNING|None", "41_2|RUNNING|None"), 2),
        (("41_0|PENDING|BeginTime", "41_1|RUNNING|None", "41_2|RUNNING|None"), 3),
        (("41_0|COMPLETED|None", "41_1|COMPLETED|None", "41_2|COMPLETED|None"), 0),
    ):
        clock.seconds += 6.0
        slurm.has("41", *states)
        assert engine.running() == running
    assert engine.failures() == []


def test_a_controller_that_is_away_ends_nothing(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.flag("away")
    assert engine.running() == 3
    engine.stop()
    assert not (slurm.folder / "cancelled").exists()
    slurm.flag("away", on=False)
    clock.seconds += 6.0
    assert engine.running() == 0  # by now it has forgotten the job


def test_failures_come_with_the_end_of_their_logs_and_are_remembered_when_forgotten(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    (planned.paths.logs_dir / "slurm-41_1.log").write_text("a\nb\nleconvert: no space\n")
    slurm.has("41", "41_0|NODE_FAIL|None", "41_1|FAILED|NonZeroExitCode", "41_2|RUNNING|None")
    failures = [
        "job 41_0 ended as NODE_FAIL: no output",
        "job 41_1 ended as FAILED: a / b / leconvert: no space",
    ]
    assert (engine.running(), engine.failures()) == (1, failures)
    slurm.has("41", "41_2|RUNNING|None")
    clock.seconds += 600.0
    assert (engine.running(), engine.failures()) == (1, failures)


def test_a_second_run_knows_nothing_of_the_first(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.has("41", "41_0|FAILED|NonZeroExitCode", "41_1|COMPLETED|None", "41_2|COMPLETED|None")
    assert (engine.running(), len(engine.failures())) == (0, 1)
    begin(engine, planned)
    slurm.has("42", "42_0|RUNNING|None", "42_1|RUNNING|None", "42_2|RUNNING|None")
    clock.seconds += 6.0
    assert (engine.running(), engine.failures()) == (3, [])
    engine.stop()
    assert (slurm.folder / "cancelled").read_text() == "--quiet 42"


def test_a_refused_submission_leaves_no_record_and_one_that_cannot_be_read_is_left_out(
    slurm: Slurm, engine: SlurmEngine, planned: OpenedRun
) -> None:
    slurm.flag("full")
    with pytest.raises(EngineError):
        begin(engine, planned)
    assert read_jobs(planned.paths) == []
    assert engine.running() == 0
    slurm.flag("full", on=False)
    begin(engine, planned)
    planned.paths.job("slurm-1-torn").write_bytes(b'{"format": "leconvert/jo')
    (record,) = read_jobs(planned.paths)
    assert record.job_id == "42"


if TYPE_CHECKING:
    from tests.slurm import Slurm

OPTIONS = SlurmOptions(
    nodes=2, workers_per_node=3, cpus_per_task=2, mem="8G", time="01:00:00", constraint="fast",
    signal_seconds=60, extra=("--exclusive",),
    site=Site(account="robots", partition="cpu", qos="high", program="uv run leconvert"),
)  # fmt: skip
ARGUMENTS = ("/shared/a work", "--lease-seconds=60.0")


def test_an_array_of_workers_word_for_word() -> None:
    job = worker_job(OPTIONS, OPTIONS.workers, ARGUMENTS, log_dir="/logs")
    assert " ".join(job.words) == (
        "sbatch --parsable --job-name=leconvert-work --nodes=1 --ntasks=1 --cpus-per-task=2 "
        "--mem=8G --time=01:00:00 --constraint=fast --account=robots --partition=cpu --qos=high "
        "--requeue --open-mode=append --array=0-5 --signal=B:USR1@60 "
        "--output=/logs/slurm-%A_%a.log --exclusive"
    )
    assert job.script == (
        "#!/bin/bash\nset -euo pipefail\nexport PYTHONSAFEPATH=1\n"
        "exec uv run leconvert work '/shared/a work' --lease-seconds=60.0\n"
    )
    assert job.after is None
    job = worker_job(SlurmOptions(site=Site(conda_env="my env")), 1, ["w"], log_dir="l")
    assert job.script.splitlines()[1:4] == [
        'source "$(conda info --base)/etc/profile.d/conda.sh"',
        "conda activate 'my env'",
        "set -euo pipefail",
    ]


def test_the_packer_waits_for_workers_that_failed_too_and_for_no_batch() -> None:
    job = packer_job(OPTIONS, ("/shared/work", "--verify=bytes"), log_dir="/logs", after=0)
    assert "--output=/logs/slurm-%j-pack.log" in job.words
    assert not [word for word in job.words if word.startswith(("--array", "--signal"))]
    assert job.after == 0
    assert job.script.endswith("exec uv run leconvert pack /shared/work --verify=bytes --no-wait\n")


def test_the_printed_script_submits_the_very_same(slurm: Slurm, tmp_path: Path) -> None:
    log_dir = str(tmp_path / "a folder/logs")
    jobs = [
        worker_job(OPTIONS, 2, ARGUMENTS, log_dir=log_dir),
        packer_job(OPTIONS, ("w",), log_dir=log_dir, after=0),
    ]
    assert submit(jobs) == ["41", "42"]
    by_us = slurm.submitted
    assert by_us[1][0][-1] == "--dependency=afterany:41"
    (slurm.folder / "calls.jsonl").unlink()
    printed = submission_script(jobs, log_dir=log_dir)
    said = subprocess.run(["bash"], input=printed, capture_output=True, text=True, check=True)
    assert slurm.submitted == by_us
    assert said.stdout == "41 leconvert-work\n42 leconvert-pack\n"
    assert Path(log_dir).is_dir()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"workers_per_node": -1}, "--workers-per-node must be at least 1"),
        ({"mem": "much"}, "--slurm mem=much is not an amount of memory"),
        ({"time": "soon"}, "--slurm time=soon is not a duration"),
        ({"extra": ("exclusive",)}, "is not an option of sbatch"),
    ],
)
def test_what_sbatch_would_refuse_is_refused_before(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SlurmOptions(**wrong)  # type: ignore[arg-type]


def test_states_are_told_apart_from_silence_and_a_full_queue_is_a_sentence(slurm: Slurm) -> None:
    slurm.has("7", "7_0|RUNNING|None", "7_1|PENDING|Resources")
    states = job_states(["7", "8"])  # the controller has forgotten 8
    assert states is not None
    assert [(s.job_id, s.state, s.reason) for s in states] == [
        ("7_0", "RUNNING", "None"),
        ("7_1", "PENDING", "Resources"),
    ]
    slurm.flag("away")
    assert job_states(["7"]) is None
    slurm.flag("full")
    with pytest.raises(EngineError, match="Batch job submission failed") as refused:
        submit([worker_job(OPTIONS, 1, ["w"], log_dir="l")])
    assert refused.value.details == ("sbatch: error: AssocMaxSubmitJobLimit",)
    assert refused.value.exit_code == 18
