"""``leconvert merge`` as a user gives it: priced, made, given again, and killed on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import leconvert as library
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.program import Leconvert
from tests.trees import digest_of, snapshot

CAMERA = CameraSpec(key="observation.images.top", width=64, height=48)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A v2.1 dataset and a v3.0 one, with one task in common; do not change them."""
    folder = tmp_path_factory.mktemp("merge")
    first = DatasetSpec(episodes=3, frames=[7, 5, 9], cameras=(CAMERA,), tasks=("lift", "place"))
    second = DatasetSpec(episodes=2, frames=[6, 8], cameras=(CAMERA,), tasks=("push", "lift"))
    library.convert(make_dataset(folder / "b21", second), output=folder / "b")
    return make_dataset(folder / "a", first), folder / "b"


@pytest.fixture(scope="module")
def merged(two: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a merge that nobody disturbed."""
    output = tmp_path_factory.mktemp("quiet") / "merged"
    library.merge(two, output=output)
    return digest_of(output)


def test_a_merge_is_priced_made_and_given_again(
    leconvert: Leconvert, two: tuple[Path, Path], merged: str, tmp_path: Path
) -> None:
    out, before = tmp_path / "out", [snapshot(root) for root in two]
    command = ("merge", *two, "--output", out)
    dry = leconvert(*command, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "5 episodes" in dry.stdout
    assert "Nothing was written." in dry.stdout
    assert list(tmp_path.iterdir()) == []
    done = leconvert(*command, "-j", "2")
    assert done.returncode == 0, done.stderr
    assert "Converted 5 episodes" in done.stdout
    assert digest_of(out) == merged
    names = [word for root in two for word in ("--source", root)]
    verified = leconvert("verify", out, *names, "--bytes")
    assert verified.returncode == 0, verified.stdout
    again = leconvert(*command, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == {"already_converted": str(out)}
    refused = leconvert("merge", *reversed(two), "--output", out)
    assert refused.returncode == 5, refused.stderr
    assert digest_of(out) == merged
    assert [snapshot(root) for root in two] == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_makes_no_sense_is_refused_with_2(
    leconvert: Leconvert, two: tuple[Path, Path], tmp_path: Path
) -> None:
    for words, said in (
        ([two[0]], "two datasets at least"),
        ([two[0], two[0]], "is given twice"),
        ([two[0], tmp_path / "nothing"], "is not a folder"),
    ):
        refused = leconvert("merge", *words, "--output", tmp_path / "out")
        assert refused.returncode == 2, refused.stderr
        assert said in refused.stderr
    assert leconvert("merge", *two, "--output", two[1]).returncode == 2
    assert list(tmp_path.iterdir()) == []


@contextmanager
def halting(call: str, *command: object) -> Iterator[None]:
    """Run a command that stops for ever at its first call of a function; kill it afterwards."""
    module, _, name = call.rpartition(".")
    code = (
        f"import signal, sys, {module} as module\n"
        "def halt(*_, **__):\n"
        "    print('halted', flush=True)\n"
        "    while True: signal.pause()\n"
        f"module.{name} = halt\n"
        "from leconvert.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", code, *map(str, command)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "halted\n"
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    "call",
    [
        "leconvert.planner.write_plan",
        "leconvert.media.join_clips",
        "leconvert.packer.run.swap_into_place",
    ],
)
def test_a_merge_that_is_killed_is_finished_by_the_same_command(
    leconvert: Leconvert, two: tuple[Path, Path], merged: str, tmp_path: Path, call: str
) -> None:
    out, before = tmp_path / "out", [snapshot(root) for root in two]
    command = ("merge", *two, "--output", out)
    with halting(call, *command):
        assert not out.exists()
    assert [snapshot(root) for root in two] == before
    done = leconvert(*command)
    assert done.returncode == 0, done.stderr
    assert digest_of(out) == merged
    assert [snapshot(root) for root in two] == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_lock_of_a_planner_that_died_before_its_plan_is_cleaned(
    leconvert: Leconvert, two: tuple[Path, Path], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    command = ("merge", *two, "-o", tmp_path / "out", "--work-dir", work)
    with halting("leconvert.planner._write", *command):
        assert (work / "planner.lock").exists()
        held = leconvert("clean", work)
        assert held.returncode == 0
        assert (work / "planner.lock").exists()
    assert leconvert("clean", work, "--dry-run").returncode == 0
    assert (work / "planner.lock").exists()
    assert leconvert("clean", work).returncode == 0
    assert list(work.iterdir()) == []
