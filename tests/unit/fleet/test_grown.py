"""Sources that grow between two runs of a fleet, and are converted anew each time."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.trees import digest_of, former_of

from leconvert import fleet
from leconvert.api import convert
from leconvert.cli import main
from leconvert.fleet import FleetStatus, clean_fleet, work
from leconvert.model.selection import EpisodeSelection, FrameInterval
from leconvert.run.conversion import Conversion, Places, PlanOptions, WorkerOptions
from leconvert.run.packer import run as packing
from leconvert.run.planner import open_or_plan
from leconvert.run.upkeep import clean_kept_source, undo_conversion
from leconvert.support.errors import BusyError, InterruptedRunError, TargetError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, make_dataset
from leconvert.workdir.records import WorkDir


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One dataset as it grows from two episodes to five, each with a task of its own."""
    folder, camera = tmp_path_factory.mktemp("stages"), CameraSpec(width=32, height=32)
    tasks = [f"Pick up cube {place}." for place in range(5)]
    return [
        make_dataset(
            folder / str(n), DatasetSpec(episodes=n, frames=6, cameras=(camera,), tasks=tasks[:n])
        )
        for n in (2, 3, 4, 5)
    ]


def become(source: Path, stage: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(stage, source)


def run(tmp_path: Path) -> FleetStatus:
    return fleet.run(
        [tmp_path / "in/set"],
        output_dir=tmp_path / "out",
        work_dir=tmp_path / "work",
        conversion=Conversion(workers=WorkerOptions(max_workers=1)),
    )


def test_a_source_grows_again_and_again_and_no_run_removes_what_another_put_aside(
    stages: list[Path], tmp_path: Path
) -> None:
    result, digests = tmp_path / "out/set", []
    for stage in stages:
        become(tmp_path / "in/set", stage)
        (one,) = run(tmp_path).datasets
        assert one.state.value == "converted", one.message
        digests.insert(0, digest_of(result))
    convert(stages[-1], output=tmp_path / "alone")
    assert digests[0] == digest_of(tmp_path / "alone")
    assert [digest_of(place) for place in former_of(result)] == digests[1:]
    # No other fleet takes them for datasets.
    said: list[str] = []
    globbed = [fleet.Line(str(tmp_path / "out/*"))]
    found = fleet.fleet_datasets(globbed, tmp_path / "more", say=said.append)
    assert [one.name for one in found] == ["set"]
    assert "left out 3 former states" in said[0]
    assert fleet.find_datasets(tmp_path / "out") == [result]
    # All are found from the fleet's work dir, and go after they were compared with the result.
    seen = clean_fleet(tmp_path / "work", dry_run=True)
    assert [row.path for row in seen.removed] == former_of(result)
    assert clean_fleet(tmp_path / "work").removed == seen.removed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["set"]


def test_undo_takes_the_newest_and_a_former_state_of_fewer_episodes_is_compared(
    stages: list[Path], tmp_path: Path
) -> None:
    result, digests = tmp_path / "out/set", []
    for stage in stages[:3]:
        become(tmp_path / "in/set", stage)
        run(tmp_path)
        digests.append(digest_of(result))
    done = undo_conversion(result)
    assert (done.episodes, done.rows) == (3, 18)
    assert digest_of(result) == digests[1]
    assert [digest_of(place) for place in former_of(result)] == [digests[0]]
    with pytest.raises(TargetError, match="set_v30 exists already"):
        undo_conversion(result)
    done.result.rename(tmp_path / "out/newest")
    assert undo_conversion(result).episodes == 2
    assert digest_of(result) == digests[0]
    assert undo_conversion(result).was_undone
    assert former_of(result) == []


def test_a_users_own_dataset_of_a_name_with_old_is_nobody_elses(
    stages: list[Path], tmp_path: Path
) -> None:
    """As in the issue: a fleet took ``NAME_old`` for what it had kept itself."""
    result, own = tmp_path / "out/set", tmp_path / "out/set_old"
    own.parent.mkdir()
    convert(stages[0], output=own)
    before = digest_of(own)
    for stage in stages[:3]:
        become(tmp_path / "in/set", stage)
        assert not run(tmp_path).set_aside
    assert digest_of(own) == before
    become(tmp_path / "in/set", stages[3])
    (tmp_path / "list.txt").write_text("in/set\n")
    places = ["-o", str(tmp_path / "out"), "--work-dir", str(tmp_path / "work")]
    assert main(["fleet", str(tmp_path / "list.txt"), *places, "--dry-run"]) == 0
    report = clean_fleet(tmp_path / "work")
    assert [row.path for row in report.kept] == [own]
    assert f"leconvert clean --of {result} --old" in report.kept[0].reason
    assert digest_of(own) == before
    assert former_of(result) == []


def test_lists_in_which_places_meet_are_refused_before_any_work(
    stages: list[Path], tmp_path: Path
) -> None:
    """``pick_old`` is where ``pick`` would be kept, whether a source or a result is there."""
    for name, stage in (("pick", stages[1]), ("pick_old", stages[0])):
        become(tmp_path / "in" / name, stage)
    both = [tmp_path / "in/pick", tmp_path / "in/pick_old"]
    renamed = fleet.Line(str(both[1]), name="pick")
    for given, output in ((both, tmp_path / "out"), ([renamed], tmp_path / "in")):
        before = digest_of(tmp_path / "in")
        (tmp_path / "in/pick").rename(tmp_path / "pick") if output.name == "in" else None
        with pytest.raises(UsageError, match="pick_old") as refused:
            fleet.run(given, output_dir=output, work_dir=tmp_path / "work")
        (tmp_path / "pick").rename(tmp_path / "in/pick") if output.name == "in" else None
        assert "--name" in str(refused.value.next_step)
        assert digest_of(tmp_path / "in") == before
        assert not (tmp_path / "work").exists()


def test_a_former_result_with_something_of_its_own_stays(
    stages: list[Path], tmp_path: Path
) -> None:
    result = tmp_path / "out/set"
    for stage in stages[:2]:
        become(tmp_path / "in/set", stage)
        run(tmp_path)
    (old,) = former_of(result)
    (old / "notes.txt").write_text("mine")
    kept = digest_of(old)
    become(tmp_path / "in/set", stages[2])
    assert not run(tmp_path).set_aside
    report = clean_fleet(tmp_path / "work")
    assert [row.path for row in report.kept] == [old]
    assert report.kept[0].reason == "it was changed after the run kept it"
    assert digest_of(old) == kept
    assert former_of(result) == [old]


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


def test_of_two_fleets_with_one_list_the_slower_finds_finished_what_the_other_did(
    stages: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other fleet does all of it between the slower one's look and its conversion."""
    for name in ("one", "two"):
        become(tmp_path / "in" / name, stages[0])
    assert _race(tmp_path, monkeypatch, "convert") == ["finished before", "finished before"]
    # Where the source has grown both convert anew: one replaces what the other made, and keeps it.
    before = digest_of(tmp_path / "out/one")
    become(tmp_path / "in/one", stages[1])
    assert _race(tmp_path, monkeypatch, "swap") == ["converted", "finished before"]
    after = digest_of(tmp_path / "out/one")
    assert [digest_of(place) for place in former_of(tmp_path / "out/one")] == [after, before]
    convert(stages[1], output=tmp_path / "alone")
    assert after == digest_of(tmp_path / "alone")


def _race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> list[str]:
    """Let a fleet do everything when a slower one comes to a point; return what that one says."""
    module: Any = {"convert": work, "swap": packing}[at]
    name = {"convert": "run_conversion", "swap": "target_lock"}[at]
    real, raced = getattr(module, name), []

    def later(*arguments: Any, **options: Any) -> Any:
        if not raced:
            raced.append(True)
            patched.undo()
            assert not fleet_of(tmp_path, "fast").set_aside
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, later)
        slower = fleet_of(tmp_path, "slow")
    assert [one.message for one in slower.set_aside] == []
    return sorted(one.state.value for one in slower.datasets)


def fleet_of(tmp_path: Path, name: str, *sources: str) -> FleetStatus:
    return fleet.run(
        [tmp_path / "in" / source for source in sources or ("one", "two")],
        output_dir=tmp_path / "out",
        work_dir=tmp_path / name,
        conversion=Conversion(workers=WorkerOptions(max_workers=1)),
    )


def test_another_list_waits_until_nobody_works_on_the_first(
    stages: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        become(tmp_path / "in" / name, stages[0])
    real, refused = work.run_conversion, []

    def convert_and_ask(*arguments: Any, **options: Any) -> Any:
        with pytest.raises(BusyError, match="the unfinished fleet") as error:
            fleet_of(tmp_path, "work", "one", "three")
        refused.append(error.value)
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(work, "run_conversion", convert_and_ask)
        assert not fleet_of(tmp_path, "work").set_aside
    assert len(refused) == 2
    assert "--restart" in str(refused[0].next_step)
    assert not (tmp_path / "out/three").exists()
    assert fleet_of(tmp_path, "work", "one", "three").is_settled
    assert (tmp_path / "out/three").exists()


def test_commands_count_list_and_remove_former_states(
    stages: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, work = tmp_path / "out/set", str(tmp_path / "work")
    for stage in stages[:3]:
        become(tmp_path / "in/set", stage)
        run(tmp_path)
    places = former_of(result)
    assert main(["status", work]) == 0
    assert "of results are kept" in capsys.readouterr().out
    assert main(["status", work, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    sizes = [path.stat().st_size for place in places for path in place.rglob("*") if path.is_file()]
    assert (told["former_states"], told["former_bytes"]) == (2, sum(sizes))
    (tmp_path / "list.txt").write_text("in/set\n")
    words = ["fleet", str(tmp_path / "list.txt"), "-o", str(tmp_path / "out"), "--dry-run"]
    assert main([*words, "--work-dir", work]) == 0
    assert "2 former states of the result" in capsys.readouterr().out
    assert main(["convert", str(stages[3]), str(result), "--force-conversion", "--dry-run"]) == 0
    assert "2 former states of the result" in capsys.readouterr().out
    assert main(["clean", work, "--old", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would remove former state") == 2
    assert former_of(result) == places
    assert main(["undo", str(result), "--dry-run"]) == 0
    assert f"Would put {places[0]} back as {result}" in capsys.readouterr().out
    assert main(["clean", work, "--old"]) == 0
    assert capsys.readouterr().out.count("removed former state") == 2
    assert former_of(result) == []
    assert main(["clean", work, "--old"]) == 0
    assert "There is nothing to remove." in capsys.readouterr().out


@pytest.mark.parametrize(
    "selection",
    [
        EpisodeSelection(exclude_tasks=("Pick up cube 1.",)),
        EpisodeSelection(frames=(FrameInterval(0, 1, 4), FrameInterval(1, 2))),
    ],
)
def test_a_fleet_with_a_selection_is_resumed_and_knows_its_results(
    stages: list[Path], tmp_path: Path, selection: EpisodeSelection
) -> None:
    """Lists of tasks and of frames come back from the fleet's records as they were given."""
    become(tmp_path / "in/set", stages[0])
    stop, ids = threading.Event(), set()
    conversion = Conversion(workers=WorkerOptions(max_workers=1), selection=selection)

    def run_once() -> FleetStatus:
        return fleet.run(
            [tmp_path / "in/set"],
            output_dir=tmp_path / "out",
            work_dir=tmp_path / "work",
            conversion=conversion,
            stop=stop,
        )

    stop.set()
    for _ in range(2):
        with pytest.raises(InterruptedRunError):
            run_once()
        ids.add(WorkDir(tmp_path / "work").current_run_id())
    assert len(ids) == 1  # options of the workers are no part of the list
    stop.clear()
    assert run_once().run_id in ids
    become(tmp_path / "in/set", stages[1])
    (one,) = run_once().datasets
    assert (one.state.value, one.message) == ("converted", "")


def test_a_fleet_that_gives_runs_up_is_resumed_without_restart(
    stages: list[Path], tmp_path: Path
) -> None:
    become(tmp_path / "in/set", stages[0])
    listed = [fleet.Line(str(tmp_path / "in/set"))]
    datasets = fleet.fleet_datasets(listed, tmp_path / "out")
    own = WorkDir(tmp_path / "work").dataset("set")
    (tmp_path / "out").mkdir()
    open_or_plan(Places([tmp_path / "in/set"], tmp_path / "out/set", own.root), Conversion())
    restart = PlanOptions(restart=True)
    begun = fleet.plan_fleet(datasets, tmp_path / "work", plan=restart)
    assert begun.datasets[0].discard == own.current_run_id()
    resumed = fleet.plan_fleet(datasets, tmp_path / "work")
    assert resumed.run_id == begun.run_id
    assert resumed.datasets == begun.datasets
