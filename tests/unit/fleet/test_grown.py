"""Sources that grow between two runs of a fleet, and are converted anew each time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.trees import digest_of

from leconvert import fleet
from leconvert.api import convert
from leconvert.fleet import FleetStatus
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, make_dataset
from leconvert.upkeep import clean_kept_source
from leconvert.worker_pool import WorkerOptions


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One dataset as it grows from two episodes to five, each with a task of its own."""
    folder, camera = tmp_path_factory.mktemp("stages"), CameraSpec(width=32, height=32)
    return [
        make_dataset(
            folder / str(number),
            DatasetSpec(
                episodes=number,
                frames=6,
                cameras=(camera,),
                tasks=[f"Pick up cube {place}." for place in range(number)],
            ),
        )
        for number in (2, 3, 4, 5)
    ]


def become(source: Path, stage: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(stage, source)


def run(tmp_path: Path) -> FleetStatus:
    return fleet.run(
        [tmp_path / "in/set"],
        output_dir=tmp_path / "out",
        work_dir=tmp_path / "work",
        workers=WorkerOptions(max_workers=1),
    )


def test_a_source_grows_again_and_again_and_nobody_has_to_make_way(
    stages: list[Path], tmp_path: Path
) -> None:
    """What is removed is the result before the last one: the last one has all of it."""
    result, former = tmp_path / "out/set", ""
    for stage in stages:
        become(tmp_path / "in/set", stage)
        (one,) = run(tmp_path).datasets
        assert one.state.value == "converted", one.message
        if former:
            assert digest_of(tmp_path / "out/set_old") == former
        former = digest_of(result)
    convert(stages[-1], output=tmp_path / "alone")
    assert former == digest_of(tmp_path / "alone")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["set", "set_old"]


def test_a_former_result_with_something_of_its_own_stays_and_the_advice_leads_on(
    stages: list[Path], tmp_path: Path
) -> None:
    old = tmp_path / "out/set_old"
    for stage in stages[:2]:
        become(tmp_path / "in/set", stage)
        run(tmp_path)
    (old / "notes.txt").write_text("mine")
    kept = digest_of(old)
    become(tmp_path / "in/set", stages[2])
    (aside,) = run(tmp_path).set_aside
    assert aside.error == "TargetError"
    assert "it differs from the episodes of the result: notes.txt" in aside.message
    assert f"mv {old} " in str(aside.next_step)
    assert digest_of(old) == kept
    words = str(aside.next_step).split("`")[1].split()
    assert words[0] == "mv"
    Path(words[1]).rename(words[2])
    assert run(tmp_path).is_settled
    assert digest_of(Path(words[2])) == kept
    assert not run(tmp_path).set_aside


def test_a_former_result_of_which_an_episode_changed_is_never_removed(
    stages: list[Path], tmp_path: Path
) -> None:
    new, old = tmp_path / "set", tmp_path / "set_old"
    changed = Path(shutil.copytree(stages[0], tmp_path / "changed"))
    edit_info(changed, lambda info: info.update(robot_type="another"))
    for former, why in ((changed, "robot_type"), (stages[2], "it has 4 episodes")):
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(new, ignore_errors=True)
        convert(former, output=old)
        convert(stages[1], output=new)
        before = digest_of(old)
        (kept,) = clean_kept_source(new).kept
        assert why in kept.reason
        assert digest_of(old) == before
