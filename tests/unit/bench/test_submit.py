"""Which jobs a benchmark is made of."""

from __future__ import annotations

import pytest

from leconvert.bench.options import SCENARIOS, Resources
from leconvert.bench.submit import (
    asked_resources,
    parse_places,
    plan_matrix,
    plan_scenarios,
)
from leconvert.support.errors import UsageError


def test_a_local_dataset_may_be_found_by_its_name_but_a_bucket_without_one_must_be_named() -> None:
    (job,) = plan_scenarios("mmap_local", places={})
    assert job.arguments == ("probe", "run", "--scenario=mmap_local")
    with pytest.raises(UsageError, match="the source 'bucket' is unknown") as refused:
        plan_scenarios(
            "stream_bucket",
            places=parse_places(["hub=hf://datasets/lab/set"], repo_id=None, root="set"),
        )
    assert refused.value.next_step == "Add --root-of bucket=URL."


def test_hub_and_bucket_follow_from_the_name() -> None:
    assert parse_places([], repo_id="lab/set", root=None) == {
        "hub": "hf://datasets/lab/set",
        "bucket": "hf://buckets/lab/set",
        "warmed_bucket": "hf://buckets/lab/set",
    }


def test_a_warmed_bucket_is_the_bucket_unless_told_otherwise() -> None:
    assert parse_places(["bucket=b"], repo_id=None, root=None)["warmed_bucket"] == "b"
    told = parse_places(["warmed-bucket=w", "bucket=b"], repo_id=None, root=None)
    assert told == {"bucket": "b", "warmed_bucket": "w"}


@pytest.mark.parametrize("text", ["moon=hf://x", "hub", "hub="])
def test_a_place_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form SOURCE=URL"):
        parse_places([text], repo_id=None, root=None)


def test_a_matrix_is_every_combination_with_a_gpu_only_where_one_decodes() -> None:
    jobs = plan_matrix(
        "hub,local",
        "sarm,single",
        "cpu,cuda",
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
        *("probe", "run", "--source=hub", "--mode=single", "--decode-device=cuda"),
        "--root=hf://datasets/lab/set",
    )


def test_a_scenario_gets_a_gpu_where_the_run_wants_one() -> None:
    wanted = [
        plan_scenarios("mmap_local", places={}, passed_on=passed_on)[0].resources.gpus
        for passed_on in (("--decode-device=cuda",), ("--device=cuda",), ("--device=cpu",))
    ]
    assert wanted == [1, 1, 0]


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
        plan_matrix(sources, modes, devices, places={})


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
        ("cpus", "0"),
        ("cpus", "many"),
        ("nodes", "-1"),
        ("mem", "64 GB"),
        ("time", "an hour"),
        ("gpus", "x"),
        ("cpus", "moon=4"),
    ],
)
def test_a_resource_that_the_scheduler_would_refuse_is_refused_at_once(
    resource: str, text: str
) -> None:
    with pytest.raises(UsageError):
        asked_resources({resource: [text]}, Resources(), names=list(SCENARIOS))
