"""Datasets as people publish them, made small: each message, followed, keeps what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lerobot.datasets import LeRobotDataset
from lerobot.policies.utils import make_robot_action
from tests.conformance.as_told import convert_as_told, why_it_does_not_load
from tests.oddities import IN_THE_WILD, LENGTHS

from leconvert.run.planner import plan_repairs

_VERSION = "--assume-version v2.1"
# The flags that are asked for, and the features that go: those without data.
_EXPECTED: dict[str, tuple[list[str], set[str]]] = {
    "no statistics of default columns": (["--fill-stats"], set()),
    "no statistics at all": (["--fill-stats"], set()),
    "wall-clock timestamps": (["--retime"], set()),
    "state and action are not declared": (["--declare-features"], set()),
    "a declared column is in no table": (["--drop-feature force"], {"force"}),
    "numbers in lists of one": (["--unwrap-scalars"], set()),
    "a binary column": (["--drop-feature raw"], {"raw"}),
    "files in other chunks than the template says": (["--locate-files"], set()),
    "a camera that most episodes lack": (
        ["--drop-feature observation.images.side"],
        {"observation.images.side"},
    ),
    "a task listed twice": (["--remap-tasks"], set()),
    "instructions only in episodes.jsonl": (["--tasks-from episodes"], set()),
    "annotations that index tasks, one listed twice": (["--remap-tasks"], set()),
    "modality.json names a feature without data": (
        ["--drop-feature observation.force"],
        {"observation.force"},
    ),
    "{chunk_index} in the templates": ([], set()),
    "no codebase_version": ([_VERSION], set()),
    "version instead of codebase_version": ([_VERSION], set()),
    "says v3.0, lies in the files of v2.1": ([_VERSION], set()),
    "h264 declared, is mpeg4": ([], set()),
    "float32 declared, is double": ([], set()),
    "one name for all values, or for two": ([], set()),
}


# Other tests of this folder load a result of each; here they are slow.
_SHOWN_BY_OTHERS = _EXPECTED.keys() - {
    "no statistics at all",
    "a declared column is in no table",
    "a task listed twice",
    "annotations that index tasks, one listed twice",
    "modality.json names a feature without data",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in _SHOWN_BY_OTHERS else ())
        for name in _EXPECTED
    ],
)
def test_two_tries_keep_what_can_be_kept_and_lerobot_loads_every_frame(
    name: str, tmp_path: Path
) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    IN_THE_WILD[name](source)
    before = json.loads((source / "meta/info.json").read_bytes())["features"]
    ended = convert_as_told(source, result)
    flags, gone = _EXPECTED[name]
    assert (ended.trouble, ended.code, list(ended.flags)) == (None, 0, flags), ended.said
    assert ended.tries == 1 + bool(flags)
    info = json.loads((result / "meta/info.json").read_bytes())
    assert (info["total_episodes"], info["total_frames"]) == (len(LENGTHS), sum(LENGTHS))
    assert before.keys() - info["features"].keys() == gone
    assert why_it_does_not_load(result, len(LENGTHS), backend="torchcodec", all_frames=True) is None


@pytest.mark.parametrize("name", sorted(_SHOWN_BY_OTHERS))
def test_the_planned_repairs_are_what_messages_ask_for(name: str, tmp_path: Path) -> None:
    IN_THE_WILD[name](tmp_path / "source")
    planned = plan_repairs(tmp_path / "source")
    assert list(planned.flags) == _EXPECTED[name][0]
    assert (planned.keeps.episodes, planned.keeps.frames) == (len(LENGTHS), sum(LENGTHS))


def test_lerobot_pairs_names_with_values_and_so_loses_values_without_a_name(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    IN_THE_WILD["one name for all values, or for two"](source)
    ended = convert_as_told(source, result)
    assert ended.code == 0, ended.said
    dataset = LeRobotDataset("ours/named", root=result)
    assert dataset[0]["action"].shape == (6,)
    sent = make_robot_action(dataset[0]["action"][None], dataset.features)
    assert list(sent) == ["action"]
    state = {"action": dataset.features["observation.state"]}
    assert len(make_robot_action(dataset[0]["observation.state"][None], state)) == 3
    warned = {found["code"] for found in ended.record["findings"] if found["severity"] == "warning"}
    assert warned == {"feature-names"}


def test_git_lfs_pointers_are_refused_with_what_gets_the_files(tmp_path: Path) -> None:
    IN_THE_WILD["Git LFS pointers instead of files"](tmp_path / "source")
    ended = convert_as_told(tmp_path / "source", tmp_path / "result")
    assert (ended.code, ended.trouble, ended.tries) == (3, None, 1)
    assert "6 of 10 files" in ended.said
    assert "Git LFS" in ended.said
