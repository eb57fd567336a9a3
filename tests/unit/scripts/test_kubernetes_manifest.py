"""The manifest of the how-to: three Jobs whose commands leconvert understands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from leconvert.cli.main import build_parser
from leconvert.support import errors

_MANIFEST = Path(__file__).parents[3] / "docs/howto/leconvert.yaml"


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    """The Jobs by their step."""
    documents = yaml.safe_load_all(_MANIFEST.read_text("utf-8"))
    found = {job["metadata"]["labels"]["step"]: job for job in documents}
    assert all((job["apiVersion"], job["kind"]) == ("batch/v1", "Job") for job in found.values())
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return dict(only)


def parsed(words: list[str]) -> argparse.Namespace:
    program, *arguments = words
    assert program == "leconvert"
    return build_parser().parse_args(arguments)


def test_every_command_is_one_of_ours_on_the_same_work_dir(jobs: dict[str, Any]) -> None:
    assert list(jobs) == ["plan", "work", "pack"]
    options = {step: parsed(container(job)["command"]) for step, job in jobs.items()}
    assert {str(each.work_dir) for each in options.values()} == {"/data/work"}
    assert options["work"].trouble_seconds == 300


def test_the_volume_is_all_that_pods_share(jobs: dict[str, Any]) -> None:
    for step, job in jobs.items():
        pod = job["spec"]["template"]["spec"]
        (volume,) = pod["volumes"]
        (mount,) = container(job)["volumeMounts"]
        assert set(volume) == {"name", "persistentVolumeClaim"}, step
        assert mount == {"name": volume["name"], "mountPath": "/data"}
        assert pod["restartPolicy"] == "Never"  # which a podFailurePolicy asks for
        assert container(job)["name"] == step


def test_what_fails_a_job_at_once_is_no_passing_trouble(jobs: dict[str, Any]) -> None:
    codes = {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.LeconvertError)
    }
    passing = {
        errors.StorageError.exit_code,
        errors.BusyError.exit_code,
        errors.IncompleteError.exit_code,
        errors.InterruptedRunError.exit_code,
        errors.HubError.exit_code,
    }
    for step in ("work", "pack"):
        ignored, fails = jobs[step]["spec"]["podFailurePolicy"]["rules"]
        assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        named = fails["onExitCodes"]
        assert (fails["action"], named["operator"]) == ("FailJob", "In")
        assert named["containerName"] == step
        assert set(named["values"]) <= codes - passing
        assert named["values"] == sorted(set(named["values"]))


def test_every_worker_has_an_index_and_time_to_hand_back(jobs: dict[str, Any]) -> None:
    spec = jobs["work"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
