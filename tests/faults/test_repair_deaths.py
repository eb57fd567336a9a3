"""A repair in place dies before each of its operations on a disk; then the same command runs.

Deaths are complete: each trial is a process of its own that ends at once, with no ``finally``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.drift import drift_in_place
from tests.faults.trials import CASES, Place, in_a_process
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk
from tests.trees import digest_of

import leconvert
from leconvert.check import check_dataset
from leconvert.repairing import repair_dataset
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.upkeep import undo_conversion


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v3.0 dataset whose frames are off their times; do not change it."""
    folder = tmp_path_factory.mktemp("deaths")
    spec = DatasetSpec(episodes=2, frames=[9, 8], cameras=(CameraSpec(width=32, height=32),))
    leconvert.convert(make_dataset(folder / "source", spec), output=folder / "drifted")
    drift_in_place(folder / "drifted")
    return folder / "drifted"


Act = Callable[[WatchedDisk], None]


def on_disk(act: Callable[[Path], object], root: Path) -> Act:
    """Return what does it on the disk of a trial."""

    def do(disk: WatchedDisk) -> None:
        with disk:
            act(root)

    return do


@pytest.mark.parametrize("name", ["in-place", "two-renames"])
def test_a_repair_that_died_anywhere_left_the_old_or_the_new(
    drifted: Path, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    old = digest_of(drifted)

    quiet = Place(case, drifted, tmp_path / "quiet")
    disk = WatchedDisk(quiet.root, can_exchange=case.can_exchange)
    with disk:
        repair_dataset(quiet.target)
    new = digest_of(quiet.target)
    assert new != old
    assert check_dataset(quiet.target).count("error") == 0
    kept = quiet.target.with_name(f"{quiet.target.name}_old")
    assert digest_of(kept) == old
    changing = [number for number, done in enumerate(disk.operations) if done.changes]
    assert len(changing) > 40, len(changing)
    seen = set()
    for number in [*changing, len(disk.operations)]:
        root = tmp_path / f"{number}"
        place = Place(case, drifted, root)
        died = in_a_process(
            place, Fault(number, FaultKind.DIE), on_disk(repair_dataset, place.target)
        )
        assert died.how in {"died", "succeeded"}, died
        beside = place.target.with_name(f"{place.target.name}_old")
        found = digest_of(place.target) if place.target.exists() else None
        if found is None:  # between two renames, where names cannot be exchanged
            assert not case.can_exchange
            assert digest_of(beside) == old
        seen.add({old: "old", new: "new", None: "between"}.get(found, "other"))
        again = in_a_process(place, None, on_disk(repair_dataset, place.target))
        assert again.how == "succeeded", (number, again)
        assert digest_of(place.target) == new
        assert digest_of(beside) == old
        names = sorted(path.name for path in place.target.parent.iterdir())
        assert names == [place.target.name, beside.name], number
        shutil.rmtree(root)
    wanted = {"old", "new"} if case.can_exchange else {"old", "between", "new"}
    assert wanted <= seen
    assert seen <= {*wanted, "other"}  # other: the new one with its mark


def test_an_undo_of_a_repair_that_died_is_ended_by_the_same_command(
    drifted: Path, tmp_path: Path
) -> None:
    case = CASES["two-renames"]
    old = digest_of(drifted)

    def prepared(root: Path) -> Place:
        place = Place(case, drifted, root)
        repair_dataset(place.target)
        return place

    quiet = prepared(tmp_path / "quiet")
    disk = WatchedDisk(quiet.root, can_exchange=False)
    with disk:
        undo_conversion(quiet.target)
    changing = [number for number, done in enumerate(disk.operations) if done.changes]
    for number in changing:
        place = prepared(tmp_path / f"{number}")
        at = place.target
        in_a_process(place, Fault(number, FaultKind.DIE), on_disk(undo_conversion, at))
        again = in_a_process(place, None, on_disk(undo_conversion, at))
        assert again.how == "succeeded", (number, again)
        assert digest_of(at) == old
        shutil.rmtree(tmp_path / f"{number}")
