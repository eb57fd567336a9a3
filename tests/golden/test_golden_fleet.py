"""Records of a fleet, versions 1 and 2, parse for ever, with more keys as well."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from leconvert import fleet
from leconvert.fleet import DatasetState, HubName, Policy, PolicyRule, open_fleet
from leconvert.fleet.results import read_made
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.support.text import GET_AGAIN
from leconvert.transfer.client import read_pause
from leconvert.transfer.options import PushOptions
from leconvert.workdir.records import WorkDir

GOLDEN = Path(__file__).parent / "v1_fleet"


def test_a_fleet_is_read(tmp_path: Path) -> None:
    root = Path(shutil.copytree(GOLDEN, tmp_path / "work"))
    head = WorkDir(root).run(str(WorkDir(root).current_run_id())).fleet
    head.write_text(json.dumps({**json.loads(head.read_bytes()), "of_a_later_release": 1}))
    # What no look needs to write, as on a disk that others own.
    (head.parent / "workers").mkdir()
    opened = open_fleet(root, only_look=True)
    assert opened.policy == Policy((PolicyRule(("--retime",), ("robot/*",), ("timestamps",)),))
    pick, place = opened.datasets
    assert (pick.name, pick.source, pick.target) == (
        "robot/pick",
        Path("/data/robot/pick"),
        Path("/out/robot/pick"),
    )
    assert (pick.cost_seconds, pick.discard) == (12.5, "20260101T000000-aaaaaa")
    assert pick.options.layout == LayoutOptions(to="v2.1")
    assert pick.options.repairs == RepairOptions(retime=True, drop_features=("x",))
    assert (place.name, place.discard) == ("place", None)

    status = fleet.status(root)
    done, aside = status.datasets
    assert (done.state, done.episodes, done.files, done.seconds) == (
        DatasetState.CONVERTED,
        50,
        150,
        12.25,
    )
    assert (aside.state, aside.remedies) == (DatasetState.SET_ASIDE, ("--on-bad-episode drop",))
    helps = f"{GET_AGAIN}. Or --on-bad-episode drop"
    assert status.why_set_aside() == [("missing-file", 1, helps)]


def test_a_fleet_of_the_hub_is_read(tmp_path: Path) -> None:
    root = Path(shutil.copytree(GOLDEN.with_name("v2_fleet"), tmp_path / "work"))
    for path in (root / "hub-pause.json", root / "datasets/robot/pick/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "of_a_later_release": 1}))
    pick, place = open_fleet(root, only_look=True).datasets
    assert (pick.source, pick.target) == (HubName("robot/pick", "v2.1"), None)
    assert pick.push == PushOptions(repo_id="lab/pick-v30", private=True)
    assert (place.source, place.push) == (Path("/data/place"), None)
    made = read_made(WorkDir(root).dataset("robot/pick"))
    assert made is not None
    assert (made.source_state, made.pushed) == (
        "a" * 40,
        {"repo_id": "lab/pick-v30", "commit": "c" * 40},
    )
    assert made.fields["episodes"] == 50
    assert read_pause(root / "hub-pause.json", 1000.0) == 0.5
    (WorkDir(root).run(str(WorkDir(root).current_run_id())).root / "workers").mkdir()
    done = fleet.status(root).datasets[0]
    assert done.pushed == f"https://huggingface.co/datasets/lab/pick-v30@{'c' * 40}"
