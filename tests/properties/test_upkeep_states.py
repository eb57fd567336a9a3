"""Converting in place, undoing and cleaning, each killed anywhere, in any order: nothing is lost.

A dataset is converted, its conversion is undone, what runs left is cleaned away, and its user adds
episodes or overwrites a file. Every command runs in a process of its own, which may die at any of
its operations. At every moment the source lies in one place, unless a command that may remove it
put its conversion at the target and compared the two. In the end the command converts, or says
what to do, and doing that leads to the conversion.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.faults.afterwards import AFTERWARDS, Datasets, Scene, run_scene, to_the_end
from tests.faults.trials import CASES, Outcome, Place, make_source
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk

from leconvert.run.upkeep import clean_kept_source, clean_work_dir, undo_conversion
from leconvert.workdir.records import default_work_dir

# A number beyond the last operation lets the command end. A conversion has about 700 of them.
ends = st.integers(0, 100) | st.integers(0, 700)
deaths = st.none() | ends.map(lambda at: Fault(at, FaultKind.DIE))
datasets: Datasets


@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make what the machines start from, once."""
    global datasets  # noqa: PLW0603 - Hypothesis makes the machines, without arguments
    folder = tmp_path_factory.mktemp("upkeep")
    template = make_source(folder / "template")
    datasets = Datasets(folder / "datasets", template, ("grown", "overwritten"))


class Upkeep(RuleBasedStateMachine):
    """One dataset that is converted in place, and what its user and its commands do."""

    scene: Scene

    @initialize(case=st.sampled_from(["in-place", "two-renames", "deleting"]))
    def begin(self, case: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        place = Place(CASES[case], datasets.sources["planned"], self.folder / "trial")
        self.scene = Scene(place, datasets)

    def command(self, act: Callable[[], object], fault: Fault | None) -> None:
        def on(disk: WatchedDisk) -> None:
            with disk:
                act()

        self.check(run_scene(self.scene, on, fault))

    def check(self, outcome: Outcome) -> None:
        if outcome.how != "died":
            assert list(self.scene.ended(outcome)) == []

    @rule(fault=deaths)
    def convert(self, fault: Fault | None) -> None:
        outcome = run_scene(self.scene, None, fault)
        self.check(outcome)
        if outcome.how == "succeeded":
            assert list(self.scene.end(outcome)) == []

    @rule(fault=deaths)
    def undo(self, fault: Fault | None) -> None:
        self.command(lambda: undo_conversion(self.scene.target), fault)

    @rule(fault=deaths)
    def clean_the_source(self, fault: Fault | None) -> None:
        self.scene.cleaned = True
        self.command(lambda: clean_kept_source(self.scene.target), fault)

    @precondition(lambda self: default_work_dir(self.scene.target).exists())
    @rule(fault=deaths, give_up=st.booleans())
    def clean_the_work_dir(self, fault: Fault | None, give_up: bool) -> None:
        work_dir = default_work_dir(self.scene.target)
        self.command(lambda: clean_work_dir(work_dir, give_up=give_up), fault)

    @rule()
    def start_anew(self) -> None:
        self.scene.options["restart"] = True

    @precondition(lambda self: self.scene.version == "planned")
    @rule(what=st.sampled_from(["episodes added", "a file overwritten"]))
    def change_the_source(self, what: str) -> None:
        AFTERWARDS[what](self.scene)

    @rule()
    def edit_the_result(self) -> None:
        AFTERWARDS["card edited"](self.scene)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "scene"):
            assert list(self.scene.moment()) == []

    def teardown(self) -> None:
        if not hasattr(self, "scene"):
            return
        try:
            problems: list[str] = []
            to_the_end(self.scene, problems)
            assert problems == []
        finally:
            shutil.rmtree(self.folder)


def settings_of(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=8,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


class TestUpkeep(Upkeep.TestCase):  # type: ignore[valid-type, misc]
    settings = settings_of(3)


@pytest.mark.slow
class TestUpkeepForLonger(Upkeep.TestCase):  # type: ignore[valid-type, misc]
    settings = settings_of(60)
