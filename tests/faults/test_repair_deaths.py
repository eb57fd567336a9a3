"""A repair in place dies before each of its operations on a disk; then the same command runs.

Deaths are complete: each trial is a process of its own that ends at once, with no ``finally``.
Of operations within a tree every so many-th is tried, all of them with the marker ``slow``; all of
those that change names beside the dataset are tried always.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.drift import drift_in_place

import leconvert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

ROOT = Path(__file__).resolve().parents[2]
STEPS = [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v3.0 dataset whose frames are off their times; do not change it."""
    folder = tmp_path_factory.mktemp("deaths")
    spec = DatasetSpec(episodes=2, frames=[9, 8], cameras=(CameraSpec(width=32, height=32),))
    leconvert.convert(make_dataset(folder / "source", spec), output=folder / "drifted")
    drift_in_place(folder / "drifted")
    return folder / "drifted"


def tried(*arguments: object) -> dict[str, Any]:
    """Return what came of the trials, made in a process without threads, which can be forked."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.repair_deaths", *map(str, arguments)],
        cwd=ROOT, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["in-place", "two-renames"])
def test_a_repair_that_died_anywhere_left_the_old_or_the_new(
    drifted: Path, tmp_path: Path, name: str, step: int
) -> None:
    result = tried(name, drifted, tmp_path / "trials", "--step", step)
    assert result["problems"] == []
    wanted = {"before", "after"} | ({"nothing"} if name == "two-renames" else set())
    assert wanted <= result["seen"].keys()


@pytest.mark.parametrize("step", STEPS)
def test_an_undo_of_a_repair_that_died_is_ended_by_the_same_command(
    drifted: Path, tmp_path: Path, step: int
) -> None:
    result = tried("two-renames", drifted, tmp_path / "trials", "--undo", "--step", step)
    assert result["problems"] == []
    assert {"before", "after", "nothing"} <= result["seen"].keys()
