"""The jobs of a benchmark, their scripts word for word, and what the printed script submits."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.slurm import Slurm

from leconvert.bench.options import SCENARIOS, Resources, RunOptions
from leconvert.bench.submit import (
    Job,
    asked_resources,
    batch_jobs,
    chain_script,
    parse_places,
    plan_matrix,
    plan_scenarios,
    submit_chain,
)
from leconvert.run.engines.options import Site, site_from
from leconvert.support.errors import EngineError, UsageError

WANTED = RunOptions(repo_id="lab/set")


def test_a_local_dataset_may_be_found_by_its_name_but_a_bucket_without_one_must_be_named() -> None:
    (job,) = plan_scenarios("mmap_local", WANTED, places={})
    assert job.arguments == ("probe", "run", "--repo-id=lab/set", "--scenario=mmap_local")
    with pytest.raises(UsageError, match="the source 'bucket' is unknown") as refused:
        plan_scenarios(
            *("stream_bucket", WANTED),
            places=parse_places(["hub=hf://datasets/lab/set"], repo_id=None, root="set"),
        )
    assert refused.value.next_step == "Add --root-of bucket=URL."


@pytest.mark.parametrize(
    ("given", "repo_id", "places"),
    [
        pytest.param(
            [], "lab/set",
            {"hub": "hf://datasets/lab/set", "bucket": "hf://buckets/lab/set",
             "warmed_bucket": "hf://buckets/lab/set"},
            id="all-by-name",
        ),
        pytest.param(
            ["bucket=b"], None, {"bucket": "b", "warmed_bucket": "b"}, id="warmed-is-the-bucket"
        ),
        pytest.param(
            ["warmed-bucket=w", "bucket=b"], None, {"bucket": "b", "warmed_bucket": "w"},
            id="warmed-is-another",
        ),
    ],
)  # fmt: skip
def test_places_follow_from_the_name_unless_they_are_given(
    given: list[str], repo_id: str | None, places: Mapping[str, str]
) -> None:
    assert parse_places(given, repo_id=repo_id, root=None) == places


@pytest.mark.parametrize("text", ["moon=hf://x", "hub", "hub="])
def test_a_place_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form SOURCE=URL"):
        parse_places([text], repo_id=None, root=None)


def test_a_matrix_is_every_combination_with_a_gpu_only_where_one_decodes() -> None:
    jobs = plan_matrix(
        "hub,local",
        "sarm,single",
        "cpu,cuda",
        WANTED,
        places=parse_places([], repo_id="lab/set", root="set"),
        resources={"cpus": ["local=2"]},
    )
    assert [(job.name, job.resources.gpus, job.resources.cpus) for job in jobs] == [
        ("probe-local-sarm-cpu", 0, 2),
        ("probe-local-sarm-cuda", 1, 2),
        ("probe-local-single-cpu", 0, 2),
        ("probe-local-single-cuda", 1, 2),
        ("probe-hub-sarm-cpu", 0, 16),
        ("probe-hub-sarm-cuda", 1, 16),
        ("probe-hub-single-cpu", 0, 16),
        ("probe-hub-single-cuda", 1, 16),
    ]
    assert jobs[-1].arguments == (
        *("probe", "run", "--root=hf://datasets/lab/set", "--repo-id=lab/set", "--source=hub"),
        "--decode-device=cuda",
    )


def test_a_job_gets_a_gpu_where_its_run_wants_one_or_batches_go_to_one() -> None:
    wanted = [
        plan_scenarios("mmap_local", replace(WANTED, **device), places={})[0].resources.gpus
        for device in ({"decode_device": "cuda"}, {"device": "cuda:1"}, {"device": "cpu"})
    ]
    assert wanted == [1, 1, 0]
    (job,) = plan_matrix("local", "single", "cpu", replace(WANTED, device="cuda"), places={})
    assert job.resources.gpus == 1


@pytest.mark.parametrize(
    ("sources", "modes", "devices", "said"),
    [
        ("moon", "single", "cpu", "--sources moon"),
        ("local", "", "cpu", "--modes"),
        ("local", "single", "tpu", "--devices tpu"),
    ],
)
def test_a_matrix_of_something_unknown_is_refused(
    sources: str, modes: str, devices: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        plan_matrix(sources, modes, devices, WANTED, places={})


def test_what_is_meant_for_one_job_beats_what_is_meant_for_all() -> None:
    given = {
        "nodes": ["stream-hub=3"],
        "cpus": ["stream_hub=4", "8"],
        "mem": ["100G"],
        "time": ["1-00:00:00"],
        "gpus": ["0"],
    }
    of_hub, of_map = (
        asked_resources(given, SCENARIOS[name].resources, name, list(SCENARIOS))
        for name in ("stream_hub", "mmap_local")
    )
    assert of_hub == Resources(nodes=3, cpus=4, mem="100G", time="1-00:00:00")
    assert of_map == Resources(cpus=8, mem="100G", time="1-00:00:00")


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        ("cpus", "0"), ("cpus", "many"), ("nodes", "-1"), ("mem", "64 GB"),
        ("time", "an hour"), ("gpus", "x"), ("cpus", "moon=4"),
    ],
)  # fmt: skip
def test_a_resource_that_the_scheduler_would_refuse_is_refused_at_once(
    resource: str, text: str
) -> None:
    with pytest.raises(UsageError):
        asked_resources({resource: [text]}, Resources(), names=list(SCENARIOS))


# The jobs of a submission.

SITE = Site(account="robots", partition="gpu", qos="high", conda_env="lerobot")
ONE = Job("probe-one", ("probe", "run", "--root=a folder/set"), Resources())
TWO = Job("probe-two", ("probe", "run"), Resources(nodes=2, cpus=8, gpus=1))


def words_of(job: Job, site: Site, log_dir: str = "logs") -> tuple[str, ...]:
    return batch_jobs([job], site, log_dir=log_dir)[0].words


def script_of(job: Job, site: Site) -> str:
    return batch_jobs([job], site, log_dir="logs")[0].script


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


def test_a_chain_waits_for_each_job_however_it_ends(slurm: Slurm, tmp_path: Path) -> None:
    submitted = submit_chain([ONE, TWO, ONE], SITE, log_dir=str(tmp_path / "out/logs"))
    assert [(job.job_id, job.after) for job in submitted] == [
        ("41", None),
        ("42", "41"),
        ("43", "42"),
    ]
    assert submitted[1].log == f"{tmp_path}/out/logs/probe-two-42.out"
    assert (tmp_path / "out/logs").is_dir()
    words, script = slurm.submitted[2]
    asked = words_of(ONE, SITE, str(tmp_path / "out/logs"))
    assert words == [*asked[1:], "--dependency=afterany:42"]
    assert script == script_of(ONE, SITE)


def test_the_printed_script_submits_the_very_same(slurm: Slurm, tmp_path: Path) -> None:
    log_dir = str(tmp_path / "a folder/logs")
    jobs = [ONE, replace(TWO, trains=True)]
    submit_chain(jobs, SITE, log_dir=log_dir)
    by_us = slurm.submitted
    (slurm.folder / "calls.jsonl").unlink()
    printed = chain_script(jobs, SITE, log_dir=log_dir)
    said = subprocess.run(["bash"], input=printed, capture_output=True, text=True, check=True)
    assert slurm.submitted == by_us
    assert said.stdout == "41 probe-one\n42 probe-two\n"


def test_a_refused_job_names_what_is_queued_already(slurm: Slurm, tmp_path: Path) -> None:
    (slurm.folder / "full").write_text("43")
    with pytest.raises(EngineError, match="Batch job submission failed") as refused:
        submit_chain([ONE, TWO, ONE], SITE, log_dir=str(tmp_path))
    assert refused.value.details == ("sbatch: error: AssocMaxSubmitJobLimit",)
    assert refused.value.next_step == "`scancel 41 42` ends the jobs that are queued already."
