"""Job scripts and sbatch lines, word for word; and what the printed script really submits."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from leconvert.bench.options import Resources
from leconvert.bench.submit import Job, batch_jobs, chain_script, submit_chain
from leconvert.run.engines.options import Site, site_from
from leconvert.support.errors import EngineError, UsageError

SITE = Site(account="robots", partition="gpu", qos="high", conda_env="lerobot")
ONE = Job("probe-one", ("probe", "run", "--root=a folder/set"), Resources())
TWO = Job("probe-two", ("probe", "run"), Resources(nodes=2, cpus=8, gpus=1))


def words_of(job: Job, site: Site, log_dir: str = "logs") -> tuple[str, ...]:
    return batch_jobs([job], site, log_dir=log_dir)[0].words


def script_of(job: Job, site: Site) -> str:
    return batch_jobs([job], site, log_dir="logs")[0].script


# Stands for SLURM's sbatch: writes down its words and its script, and answers with an id.
RECORDER = """\
#!/usr/bin/env python3
import json, pathlib, sys
calls = pathlib.Path(__file__).with_name("calls.jsonl")
number = 41 + (len(calls.read_text().splitlines()) if calls.exists() else 0)
with calls.open("a") as file:
    print(json.dumps([sys.argv[1:], sys.stdin.read()]), file=file)
if number == 43 and pathlib.Path(__file__).with_name("full").exists():
    sys.exit("sbatch: error: AssocMaxSubmitJobLimit\\nsbatch: error: Batch job submission failed")
print(f"{number};cluster1")
"""


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the PATH with an sbatch that records."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(RECORDER)
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def calls(bin_dir: Path) -> list[list[object]]:
    return [json.loads(line) for line in (bin_dir / "calls.jsonl").read_text().splitlines()]


def test_a_line_says_nothing_of_what_nobody_asked_for() -> None:
    line = " ".join(words_of(ONE, Site()))
    for word in ("gpus", "account", "partition", "qos", "dependency", "append"):
        assert word not in line


def test_a_training_job_may_be_requeued_and_goes_on_in_its_log() -> None:
    line = words_of(replace(ONE, trains=True), Site())
    assert line[-3:] == ("--requeue", "--open-mode=append", "--output=logs/%x-%j.out")


def test_a_training_has_a_rank_for_each_gpu_of_a_node() -> None:
    job = Job("train", ("probe", "train"), Resources(cpus=16, gpus=8), trains=True)
    assert {"--nodes=1", "--ntasks-per-node=8", "--cpus-per-task=2", "--gpus-per-node=8"} <= set(
        words_of(job, Site())
    )
    assert script_of(job, Site()).splitlines()[-1] == (
        "srun --nodes=1 --ntasks=8 --cpus-per-task=2 --kill-on-bad-exit=1 leconvert probe train"
    )
    two_nodes = replace(job, resources=replace(job.resources, nodes=2))
    assert "--nodes=2 --ntasks=16 --cpus-per-task=2" in script_of(two_nodes, Site())
    measured = replace(job, trains=False)  # a benchmark is one process a node, whatever it has
    assert "--ntasks-per-node=1" in words_of(measured, Site())
    assert "srun" not in script_of(measured, Site())


def test_account_partition_and_qos_come_from_the_environment_unless_given() -> None:
    environment = {"ACCOUNT": "robots", "PARTITION": "cpu", "QOS": ""}
    assert site_from(environment, Site(partition="gpu")) == Site(account="robots", partition="gpu")
    with pytest.raises(UsageError, match="--program"):
        site_from({}, Site(program=" "))


def test_a_chain_waits_for_each_job_however_it_ends(bin_dir: Path, tmp_path: Path) -> None:
    submitted = submit_chain([ONE, TWO, ONE], SITE, log_dir=str(tmp_path / "out/logs"))
    assert [(job.job_id, job.after) for job in submitted] == [
        ("41", None),
        ("42", "41"),
        ("43", "42"),
    ]
    assert submitted[1].log == f"{tmp_path}/out/logs/probe-two-42.out"
    assert (tmp_path / "out/logs").is_dir()
    words, script = calls(bin_dir)[2]
    asked = words_of(ONE, SITE, str(tmp_path / "out/logs"))
    assert words == [*asked[1:], "--dependency=afterany:42"]
    assert script == script_of(ONE, SITE)


@pytest.mark.parametrize("training", [False, True])
def test_the_printed_script_submits_the_very_same(
    bin_dir: Path, tmp_path: Path, training: bool
) -> None:
    log_dir = str(tmp_path / "a folder/logs")
    jobs = [replace(job, trains=training) for job in (ONE, TWO)]
    submit_chain(jobs, SITE, log_dir=log_dir)
    by_us = calls(bin_dir)
    (bin_dir / "calls.jsonl").unlink()
    printed = chain_script(jobs, SITE, log_dir=log_dir)
    said = subprocess.run(["bash"], input=printed, capture_output=True, text=True, check=True)
    assert calls(bin_dir) == by_us
    assert said.stdout == "41 probe-one\n42 probe-two\n"


def test_a_refused_job_names_what_is_queued_already(bin_dir: Path, tmp_path: Path) -> None:
    (bin_dir / "full").touch()
    with pytest.raises(EngineError, match="Batch job submission failed") as refused:
        submit_chain([ONE, TWO, ONE], SITE, log_dir=str(tmp_path))
    assert refused.value.details == ("sbatch: error: AssocMaxSubmitJobLimit",)
    assert refused.value.next_step == "`scancel 41 42` ends the jobs that are queued already."
