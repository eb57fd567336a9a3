"""Every single operation of a command on a disk goes wrong once; then the same command runs.

Of most every so many-th is tried here, of every stage; the complete set takes minutes and is behind
the marker ``slow``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaign import program
from tests.faults.trials import CASES, Place, make_source
from tests.faults.watched_disk import WatchedDisk, names_and_sizes
from tests.program import run_forked
from tests.trees import digest_of

from leconvert import api
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import WorkerOptions

Campaign = Callable[..., list[dict[str, Any]]]


CONVERSION = "plan,work,pack,swap,finish,clean,end"


@pytest.fixture(scope="module")
def smallest_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("smallest") / "template")


@pytest.fixture
def campaign(smallest_source: Path, tmp_path: Path) -> Campaign:
    """Run a campaign in a process of its own, which has no threads and so can be forked."""

    def run(*arguments: object, seconds: int = 300) -> list[dict[str, Any]]:
        rows = tmp_path / "rows.jsonl"
        # File systems in memory take the same operations in a tenth of the time.
        scratch = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
        words = ["campaign", "--rows", rows, "--scratch", scratch, "--source", smallest_source]
        done = run_forked(program, [*map(str, (*words, *arguments))], seconds=seconds)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in rows.read_text().splitlines()]

    return run


@pytest.mark.parametrize("name", ["output", "in-place", "one-host"])
def test_no_change_of_the_disk_goes_unseen(
    smallest_source: Path, tmp_path: Path, name: str
) -> None:
    """What the operations say they made is what is there: every name, every size."""
    case = CASES[name]
    place = Place(case, smallest_source, tmp_path / "place")
    before = {str(path) for path in place.root.rglob("*")}
    disk = WatchedDisk(place.root, has_links=case.has_links)
    with disk:
        api.convert(
            place.source, output=None if case.in_place else place.target,
            workers=WorkerOptions(max_workers=1),
            layout=LayoutOptions(episodes_per_batch=case.episodes_per_batch), keep_work_dir=True,
        )  # fmt: skip
    there = {
        str(path): -1 if path.is_dir() else path.stat().st_size for path in place.root.rglob("*")
    }
    moved = {path.replace("/set", "/set_old", 1) for path in before} if case.in_place else set()
    assert {path: size for path, size in there.items() if path not in moved} == names_and_sizes(
        disk.operations
    )


def test_two_runs_do_the_same_operations_in_the_same_order(
    smallest_source: Path, tmp_path: Path
) -> None:
    runs = []
    for number in range(3):
        place = Place(CASES["output"], smallest_source, tmp_path / str(number))
        disk = place.watched(None, None)
        place.convert(disk)
        runs.append([(operation.name, operation.stage) for operation in disk.operations])
    assert runs[1] == runs[2]  # the first one also fills caches
    assert len(runs[1]) > 500


def test_a_watched_conversion_writes_the_bytes_of_any_other(
    smallest_source: Path, tmp_path: Path
) -> None:
    api.convert(smallest_source, output=tmp_path / "plain")
    with WatchedDisk(tmp_path):
        api.convert(smallest_source, output=tmp_path / "watched")
    assert digest_of(tmp_path / "watched") == digest_of(tmp_path / "plain")


@pytest.mark.parametrize(
    ("stages", "every", "least"),
    [
        (CONVERSION, 83, {"output": 3}),
        ("swap,finish,clean,end", 9, {"in-place": 5}),
        ("swap,finish", 23, {"append": 2}),
        ("finish", 17, {"deleting": 2, "overlay-deleting": 1}),
        ("work,swap,finish", 31, {"repair-nfs": 2}),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else "",
)
def test_a_death_at_any_operation_costs_nothing_but_the_same_command(
    campaign: Campaign, stages: str, every: int, least: dict[str, int]
) -> None:
    """Each case is begun at so many operations at least, in every stage if it is tried densely.

    A case stands for its like: the other ways to swap, to repair and to undo are slow.
    """
    cases = [word for name in least for word in ("--case", name)]
    rows = campaign(*cases, "--kinds", "die", "--stages", stages, "--every", every)
    assert [(row["case"], row["number"]) for row in rows if row["problems"]] == []
    for name, number in least.items():
        ended = [row["first"] for row in rows if row["case"] == name]
        assert len(ended) >= number, name
        died = {first["stage"] for first in ended if first["how"] == "died"}
        assert name != "in-place" or died == set(stages.split(",")) - {"end"}


def test_half_a_write_is_never_taken_for_a_whole_one_and_is_continued_by_who_lives(
    campaign: Campaign,
) -> None:
    kinds = ("--kinds", "tear,short", "--stages", CONVERSION, "--every", 15)
    rows = campaign("--case", "output", *kinds)
    for fault, how in (("TEAR", "died"), ("SHORT", "succeeded")):
        ended = [row["first"]["how"] for row in rows if row["fault"] == fault]
        assert len(ended) >= 3
        assert set(ended) == {how}


def test_an_error_at_any_operation_is_a_sentence_or_is_overcome(campaign: Campaign) -> None:
    kinds = ("--kinds", "fail,last,lie", "--stages", CONVERSION)
    rows = campaign("--case", "output", *kinds, "--every", 451)
    assert len(rows) >= 6
    assert [row["number"] for row in rows if row["problems"]] == []
    assert {row["first"]["how"] for row in rows} == {"refused", "succeeded"}


def test_a_power_failure_loses_nothing_that_was_promised(campaign: Campaign) -> None:
    """Extremes of what was not forced to the disk, at states that differ; all of them are slow."""
    stages = "plan,work,pack,swap,finish,clean"
    rows = campaign("--case", "apart", "--kinds", "power", "--stages", stages, "--every", 23)
    assert len(rows) >= 5
    assert {row["first"]["how"] for row in rows} == {"died"}
    assert len({row["fault"] for row in rows}) > 1


def test_whatever_else_happens_after_a_swap_broke_leaves_old_or_new_whole(
    campaign: Campaign,
) -> None:
    """Some changes, damages and moves at an operation each; all of them are in the campaign."""
    rows = campaign("--case", "deleting", "--stages", "afterwards", "--every", 601)
    assert len({row["afterwards"] for row in rows}) > 1
    assert {row["ended"].split()[0] for row in rows} >= {"done"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["output", "forced", "renewed", "in-place", "two-renames"])
def test_whatever_else_happens_after_another_swap_broke(campaign: Campaign, name: str) -> None:
    rows = campaign("--case", name, "--stages", "afterwards", "--every", 403)
    assert len({row["afterwards"] for row in rows}) > 2
    assert {row["ended"].split()[0] for row in rows} >= {"done"}


@pytest.mark.slow
def test_a_source_is_not_removed_whenever_somebody_overwrites_it(campaign: Campaign) -> None:
    """Before each operation; tests/cli/test_proof_before_swap.py overwrites before chosen ones."""
    rows = campaign("--case", "deleting", "--stages", "overwritten", "--jobs", 2, seconds=3600)
    assert len(rows) > 3000
    assert [row["number"] for row in rows if row["problems"]] == []


# What all kinds of faults take together is longer than the limit of a test.
@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["die,tear,short", "fail", "last,lie", "power"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_everything_goes_wrong_everywhere(campaign: Campaign, name: str, kinds: str) -> None:
    rows = campaign("--case", name, "--kinds", kinds, "--jobs", 2, seconds=3600)
    assert rows
    assert [row["number"] for row in rows if row["problems"]] == []
