"""What is told of a dataset that was set aside, and what a rule that is not for it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leconvert.fleet import FleetDataset, Policy, PolicyRule, PricedDataset, alike
from leconvert.fleet.overview import (
    flags_for,
    for_these_lines,
    helps_with,
    next_step_of,
    reasons,
)
from leconvert.fleet.work import with_policy
from leconvert.model.repairs import RepairOptions
from leconvert.support.errors import FindingsError, UsageError
from leconvert.support.text import GET_AGAIN


def error(code: str, message: str = "It is wrong.", **fields: Any) -> dict[str, Any]:
    told = {"code": code, "severity": "error", "message": message, "episode": None, "stream": None}
    return {**told, "path": None, "remedy": None, "remedies": (), **fields}


def of(*errors: dict[str, Any]) -> dict[str, Any]:
    return FindingsError("refused", next_step="Run the command again.", findings=errors).as_record()


CLIP = error(
    "missing-file", episode=1, stream="videos/observation.images.top", path="videos/1.mp4",
    remedy="--drop-feature observation.images.top",
)  # fmt: skip


@pytest.mark.parametrize(
    ("record", "step"),
    [
        (
            of(error("timestamps", remedy="--retime")),
            "Write `--retime` after the dataset in LIST_FILE.",
        ),
        (
            of(CLIP),
            f"{GET_AGAIN}. Or write `{CLIP['remedy']}` after the dataset in LIST_FILE.",
        ),
        (
            of(
                error("task-conflict", path="meta/tasks.jsonl"),
                error("timestamps", remedy="--retime"),
            ),
            "No option repairs task-conflict: correct meta/tasks.jsonl. For the other "
            "errors write `--retime` after the dataset in LIST_FILE.",
        ),
        (
            {"error": "SourceError", "next_step": "Run the command again with --assume-fps and N."},
            "Write --assume-fps and N after the dataset in LIST_FILE.",
        ),
        (
            {"error": "PlanMismatchError", "next_step": "Run the command again with --restart."},
            "Run the command again with --restart.",
        ),
    ],
)
def test_each_dataset_that_was_set_aside_has_a_step(record: dict[str, Any], step: str) -> None:
    assert next_step_of(record, "/in/a b") == step
    assert "this line" not in for_these_lines(step)


def test_what_helps_in_a_row_helps_every_dataset_that_it_counts() -> None:
    rows = error("row-count", episode=0, stream="data", remedy="--on-bad-episode drop")
    frames = {**CLIP, "code": "frame-count"}
    # An episode that has to go needs no other repair.
    assert flags_for([rows, {**frames, "episode": 0}]) == ("--on-bad-episode drop",)
    assert flags_for([frames, rows, frames]) == (CLIP["remedy"], "--on-bad-episode drop")
    assert flags_for([error("timestamps", remedy="--retime"), error("x")]) == ("--retime",)
    force, torque = (
        error("unloadable-feature", remedy=f"--drop-feature {name}") for name in ("force", "torque")
    )
    told = [
        helps_with(errors)
        for errors in ([force], [torque, force], [CLIP], [{**rows, "code": "missing-file"}])
    ]
    assert reasons(told) == [
        ("unloadable-feature", 2, "--drop-feature {column}"),
        ("missing-file", 1, f"{GET_AGAIN}. Or --drop-feature {{camera}}"),
        ("missing-file", 1, f"{GET_AGAIN}. Or --on-bad-episode drop"),
    ]
    assert helps_with([error("task-conflict")])["task-conflict"]


def test_datasets_with_one_step_and_other_reasons_are_told_apart_in_a_dry_run() -> None:
    lost, new = "A file is missing.", "A file is new."
    priced = [
        PricedDataset(name, f"/in/{name}", f"/out/{name}", ("VerificationError",), said, "Look.")
        for name, said in (("a", lost), ("b", new), ("c", lost))
    ]
    assert [(names, said) for names, said, _ in alike(priced)] == [("a, c", lost), ("b", new)]


def test_a_rule_that_is_nothing_for_a_dataset_leaves_it_its_own_error() -> None:
    policy = Policy((PolicyRule(("--tasks-from episodes",), findings=("missing-tasks",)),))
    dataset = FleetDataset("x", Path("/in/x"), Path("/out/x"))
    found = FindingsError("refused", findings=[error("missing-tasks")])

    def attempt(repairs: RepairOptions) -> None:
        raise UsageError("--tasks-from is not for it.") if repairs.tasks_from else found

    with pytest.raises(FindingsError) as caught:
        with_policy(policy, dataset, attempt)
    assert caught.value is found

    def refuse(_: RepairOptions) -> None:
        raise UsageError("The options contradict each other.")

    with pytest.raises(UsageError, match="contradict"):
        with_policy(policy, dataset, refuse)
