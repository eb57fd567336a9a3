"""The words and scripts that workers and a packer are submitted with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leconvert.run.engines.options import Site, SlurmOptions
from leconvert.run.engines.slurm import (
    job_states,
    packer_job,
    submission_script,
    submit,
    worker_job,
)
from leconvert.support.errors import EngineError, UsageError

if TYPE_CHECKING:
    from tests.slurm import Slurm

OPTIONS = SlurmOptions(
    nodes=2,
    workers_per_node=3,
    cpus_per_task=2,
    mem="8G",
    time="01:00:00",
    constraint="fast",
    signal_seconds=60,
    extra=("--exclusive",),
    site=Site(account="robots", partition="cpu", qos="high", program="uv run leconvert"),
)
ARGUMENTS = ("/shared/a work", "--lease-seconds=60.0")


def test_an_array_of_workers_word_for_word() -> None:
    job = worker_job(OPTIONS, OPTIONS.workers, ARGUMENTS, log_dir="/logs")
    assert job.words == (
        "sbatch",
        "--parsable",
        "--job-name=leconvert-work",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=2",
        "--mem=8G",
        "--time=01:00:00",
        "--constraint=fast",
        "--account=robots",
        "--partition=cpu",
        "--qos=high",
        "--requeue",
        "--open-mode=append",
        "--array=0-5",
        "--signal=B:USR1@60",
        "--output=/logs/slurm-%A_%a.log",
        "--exclusive",
    )
    assert job.script == (
        "#!/bin/bash\nset -euo pipefail\nexport PYTHONSAFEPATH=1\n"
        "exec uv run leconvert work '/shared/a work' --lease-seconds=60.0\n"
    )
    assert job.after is None


def test_the_packer_waits_for_workers_that_failed_too_and_for_no_batch() -> None:
    job = packer_job(OPTIONS, ("/shared/work", "--verify=bytes"), log_dir="/logs", after=0)
    assert "--output=/logs/slurm-%j-pack.log" in job.words
    assert not [word for word in job.words if word.startswith(("--array", "--signal"))]
    assert job.after == 0
    assert job.script.endswith("exec uv run leconvert pack /shared/work --verify=bytes --no-wait\n")


def test_a_conda_environment_comes_before_strictness() -> None:
    job = worker_job(SlurmOptions(site=Site(conda_env="my env")), 1, ["w"], log_dir="l")
    assert job.script.splitlines()[1:4] == [
        'source "$(conda info --base)/etc/profile.d/conda.sh"',
        "conda activate 'my env'",
        "set -euo pipefail",
    ]


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


def test_a_full_queue_is_a_sentence(slurm: Slurm) -> None:
    slurm.flag("full")
    with pytest.raises(EngineError, match="Batch job submission failed") as refused:
        submit([worker_job(OPTIONS, 1, ["w"], log_dir="l")])
    assert refused.value.details == ("sbatch: error: AssocMaxSubmitJobLimit",)
    assert refused.value.exit_code == 18


def test_states_are_told_apart_from_silence(slurm: Slurm) -> None:
    slurm.has("7", "7_0|RUNNING|None", "7_1|PENDING|Resources")
    states = job_states(["7", "8"])  # the controller has forgotten 8
    assert states is not None
    assert [(s.job_id, s.state, s.reason) for s in states] == [
        ("7_0", "RUNNING", "None"),
        ("7_1", "PENDING", "Resources"),
    ]
    slurm.flag("away")
    assert job_states(["7"]) is None
