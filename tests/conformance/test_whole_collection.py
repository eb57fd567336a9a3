"""A fleet of datasets as people have them: found, converted, a policy suggested, and run again.

Every result loads in LeRobot with both of its decoders, each frame at its place, and nothing of the
source is lost; every dataset that stays behind says why, and what helps.

    scripts/test -m slow -s tests/conformance/test_whole_collection.py

runs the whole collection of `tests.collection` and prints what came of it.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.collection import KINDS, make_collection
from tests.conformance.as_told import BACKENDS
from tests.program import Leconvert

from leconvert.testing import read_label

_SHORT = (
    "sound, two cameras",
    "v3.0, wrong totals",
    "off the grid, and a column is not declared",
    "no codebase_version",
    "a camera that most episodes lack",
    "no video at all",
    "no info.json",
)


def test_a_suggested_policy_converts_what_loses_nothing(
    leconvert: Leconvert, tmp_path: Path
) -> None:
    told = _convert_all(leconvert, tmp_path, make_collection(tmp_path / "in", 7, 1, _SHORT))
    assert (told["listed"], told["before"], told["after"], told["obeyed"]) == (6, 2, 4, 6)


@pytest.mark.slow
def test_a_suggested_policy_converts_most_of_sixty_datasets(
    leconvert: Leconvert, tmp_path: Path
) -> None:
    made = make_collection(tmp_path / "in", 60, 60)
    assert len(set(made.values())) == min(60, len(KINDS))
    told = _convert_all(leconvert, tmp_path, made)
    print(json.dumps(told, indent=2))
    assert told["after"] >= 2 * told["before"] >= 30


def _convert_all(leconvert: Leconvert, folder: Path, made: dict[str, str]) -> dict[str, Any]:
    """Find, convert, let a policy be suggested, convert again; return figures."""
    found = leconvert("fleet", "find", folder / "in")
    assert found.returncode == 0, found.stderr
    for name in made:  # none is passed over in silence
        assert f"{folder / 'in' / name} --name {name}" in found.stdout
    (folder / "list.txt").write_text(found.stdout)
    listed = json.loads(leconvert("fleet", "find", folder / "in", "--json").stdout)["datasets"]
    assert all(one["remedies"] for one in listed if one["problem"])
    fleet = ("fleet", folder / "list.txt", "-o", folder / "out", "--work-dir", folder / "work")
    before = json.loads(leconvert(*fleet, "--json").stdout)
    suggested = leconvert("fleet", "suggest", folder / "work")
    assert suggested.returncode == 0, suggested.stderr
    (folder / "policy.toml").write_text(suggested.stdout)
    record = json.loads(leconvert("fleet", "suggest", folder / "work", "--json").stdout)
    fleet = (*fleet, "--json", "--policy", folder / "policy.toml")
    after = json.loads(leconvert(*fleet).stdout)

    done = {one["name"]: one for one in after["datasets"] if one["state"] != "set aside"}
    aside = {one["name"]: one for one in after["datasets"] if one["state"] == "set aside"}
    was_done = {one["name"] for one in before["datasets"] if one["state"] == "converted"}
    assert done.keys() == was_done | set(record["converts"])
    for one in aside.values():
        assert one["message"], one
        assert one["next_step"], one
        status = leconvert("status", folder / "work/datasets" / one["name"])
        assert status.returncode == 0
        assert "set aside" in status.stdout
    loaded = {name: _load(folder / "out" / name) for name in done}
    assert loaded == {name: _rows(folder / "in" / name) for name in done}

    obeyed = _obey(leconvert, folder / "list.txt", fleet, after)
    assert all(_load(folder / "out" / name) for name in obeyed - done.keys())
    return {
        "obeyed": len(obeyed),
        "datasets": len(made),
        "listed": len(after["datasets"]),
        "before": len(was_done),
        "after": len(done),
        "frames": sum(loaded.values()),
        "rules": len(record["policy"]),
        "set aside": {made[name]: one["next_step"] for name, one in sorted(aside.items())},
        "left out": sorted(set(made.values()) - {made[one["name"]] for one in after["datasets"]}),
    }


def _obey(
    leconvert: Leconvert, path: Path, fleet: tuple[Any, ...], told: dict[str, Any]
) -> set[str]:
    """Write what helps behind the line of each dataset, and run again; return what is converted.

    Commands that are told are run, too.
    """
    flags: dict[str, list[str]] = {}
    for _ in range(3):
        if all(one["state"] != "set aside" for one in told["datasets"]):
            break
        for one in told["datasets"]:
            if one["state"] == "set aside":
                for command in re.findall("`leconvert (.+?)`", one["next_step"]):
                    ran = leconvert(*shlex.split(command))
                    assert ran.returncode == 0, ran.stderr
                own = flags.setdefault(one["name"], [])
                own += [flag for flag in one["remedies"] if flag not in own]
                line = shlex.join([one["source"], "--name", one["name"]])
                with path.open("a") as file:
                    file.write(f"{line} {' '.join(own)}\n")
        told = json.loads(leconvert(*fleet).stdout)
    for one in told["datasets"]:  # nothing is told that was done already
        if one["state"] == "set aside":
            assert not set(one["remedies"]) - set(flags[one["name"]]), one
            assert "Write `" not in one["next_step"], one
    return {one["name"] for one in told["datasets"] if one["state"] != "set aside"}


def _rows(source: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in source.glob("data/*/*.parquet"))


def _load(root: Path) -> int:
    """Load every item with both decoders; each frame must say that it is the one of its place."""
    from lerobot.datasets import LeRobotDataset

    for backend in BACKENDS:
        dataset = LeRobotDataset("ours/c", root=root, video_backend=backend, return_uint8=True)
        said: dict[tuple[int, str], set[int]] = {}
        for place in range(len(dataset)):
            item: dict[str, Any] = dataset[place]
            assert int(item["index"]) == place
            assert isinstance(item["task"], str)
            for key in dataset.meta.camera_keys:
                picture = item[key].numpy().transpose(1, 2, 0)
                if picture.dtype != np.uint8:  # images of tables are not left as they are
                    picture = (picture * 255).round().astype(np.uint8)
                label = read_label(picture)
                assert label.frame == int(item["frame_index"])
                said.setdefault((int(item["episode_index"]), key), set()).add(label.episode)
        for key in dataset.meta.camera_keys:  # one episode of the source each, in their order
            origins = [said[episode, key] for episode in range(dataset.meta.total_episodes)]
            assert all(len(origin) == 1 for origin in origins)
            assert sorted(origins, key=min) == origins
    return len(dataset)
