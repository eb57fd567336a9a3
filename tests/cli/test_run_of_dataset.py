"""Commands that look at a run take a dataset of it as well as its work dir."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leconvert.support.errors import UsageError, WorkDirError
from leconvert.workdir.records import default_work_dir
from leconvert.workdir.run import find_work_dir
from tests.plans import open_or_plan
from tests.program import Leconvert


def plan(source: Path, target: Path) -> Path:
    work_dir = default_work_dir(target)
    open_or_plan(source, target, work_dir)
    return work_dir


def test_source_and_target_stand_for_the_run_that_lies_beside_them(source_copy: Path) -> None:
    target = source_copy.with_name("out")
    work_dir = plan(source_copy, target)
    for path in (work_dir, source_copy, target):
        assert find_work_dir(path) == work_dir


def test_a_kept_source_stands_for_the_run_that_replaced_it(source_copy: Path) -> None:
    work_dir = plan(source_copy, source_copy)
    assert find_work_dir(source_copy.with_name(f"{source_copy.name}_old")) == work_dir


def test_several_runs_of_a_dataset_are_listed(source_copy: Path) -> None:
    work_dirs = [plan(source_copy, source_copy.with_name(name)) for name in ("one", "two")]
    with pytest.raises(UsageError, match="2 runs") as caught:
        find_work_dir(source_copy)
    assert caught.value.details == tuple(map(str, work_dirs))
    assert "work dir of one of them" in str(caught.value.next_step)
    assert find_work_dir(source_copy.with_name("one")) == work_dirs[0]


def test_a_damaged_run_of_another_dataset_does_not_stand_in_the_way(source_copy: Path) -> None:
    work_dir = plan(source_copy, source_copy.with_name("one"))
    other = plan(source_copy, source_copy.with_name("two"))
    (other / "current").write_text("torn")
    assert find_work_dir(source_copy) == work_dir
    with pytest.raises(WorkDirError):
        find_work_dir(source_copy.with_name("two"))


def test_a_dataset_without_a_run_says_what_to_give(
    source_copy: Path, leconvert_here: Leconvert
) -> None:
    with pytest.raises(WorkDirError, match="contains no work dir of a conversion of"):
        find_work_dir(source_copy)
    assert leconvert_here("convert", "--root", source_copy).returncode == 0
    with pytest.raises(WorkDirError) as caught:
        find_work_dir(source_copy)
    assert "leconvert check" in str(caught.value.next_step)
    with pytest.raises(WorkDirError) as caught:
        find_work_dir(source_copy.with_name("typo"))
    assert "does not exist" in str(caught.value.next_step)


def test_every_command_of_a_run_takes_its_dataset(
    leconvert_here: Leconvert, source_copy: Path
) -> None:
    target = source_copy.with_name("out")
    work_dir = plan(source_copy, target)
    shown = leconvert_here("status", source_copy, code=0)
    assert f"leconvert work {work_dir}" in shown.stdout
    released = leconvert_here("release", target, 0, "--json")
    assert json.loads(released.stdout)["batches"][0]["reason"] == ("it already waits for a worker")
    page = source_copy.with_name("page.html")
    told = leconvert_here("report", source_copy, "-o", page, "--json")
    assert (
        json.loads(told.stdout)["run_id"]
        == json.loads(leconvert_here("status", work_dir, "--json").stdout)["run_id"]
    )
    assert "not finished" in leconvert_here("clean", source_copy).stdout
    assert "removed run" in leconvert_here("clean", target, "--give-up").stdout
    assert leconvert_here("clean", source_copy).stdout == "There is nothing to remove.\n"
    assert leconvert_here("clean", source_copy.with_name("typo")).returncode == 7
