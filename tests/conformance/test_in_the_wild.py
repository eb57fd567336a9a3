"""Datasets as people publish them, made small: each message, followed, keeps what is there.

What was repaired is proven: ``verify`` finds nothing on the result, and something where the
repaired part is changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets import LeRobotDataset
from lerobot.policies.utils import make_robot_action
from tests.conformance.as_told import convert_as_told, why_it_does_not_load
from tests.oddities import CAMERA, IN_THE_WILD, LENGTHS, each_table
from tests.program import Leconvert

from leconvert.run.proof import verify_pair
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)

SPEC = DatasetSpec(
    episodes=len(LENGTHS), frames=LENGTHS, cameras=(CameraSpec(key=CAMERA, width=64, height=48),)
)


# --- kinds that `tests.oddities` has not ------------------------------------------------------


def columns_of_many_kinds(root: Path) -> None:
    make_dataset(root, SPEC)

    def add(episode: int, table: pa.Table) -> pa.Table:
        rows = range(table.num_rows)
        for name, values in {
            "effort": pa.array([[row, episode, 0.5] for row in rows], pa.list_(pa.float64())),
            "grid": pa.array(
                [[[row, 1], [2, episode]] for row in rows], pa.list_(pa.list_(pa.int32()))
            ),
            "reward": pa.array([float(row) for row in rows], pa.float32()),
            "note": pa.array([f"row {row}" for row in rows]),
        }.items():
            table = with_column(table, name, values)
        return table

    each_table(root, add)
    edit_info(root, lambda info: info["features"].pop("index"))


def images(root: Path) -> None:
    key = "observation.image"
    spec = DatasetSpec(
        episodes=3, frames=LENGTHS, cameras=(), image_keys=(key,), image_size=(24, 32)
    )
    edit_info(make_dataset(root, spec), lambda info: info["features"].pop(key))


def neither_version_nor_statistics(root: Path) -> None:
    IN_THE_WILD["no codebase_version"](root)
    (root / "meta/episodes_stats.jsonl").unlink()


def two_files_that_may_be_one(root: Path) -> None:
    lost = make_dataset(root, SPEC) / "data/chunk-000/episode_000001.parquet"
    for chunk in (1, 2):
        (root / f"data/chunk-00{chunk}").mkdir()
        shutil.copy(lost, root / f"data/chunk-00{chunk}" / lost.name)
    lost.unlink()


def no_task_index(root: Path) -> None:
    make_dataset(root, SPEC)
    each_table(root, lambda _, table: table.drop_columns(["task_index"]))
    edit_info(root, lambda info: info["features"].pop("task_index"))


def instructions_in_no_list(root: Path) -> None:
    IN_THE_WILD["instructions only in episodes.jsonl"](root)
    texts = ["Open the door.", "Close the door.", "Open the door."]
    edit_lines(
        root,
        "episodes",
        lambda lines: [line.update(tasks=[text]) for line, text in zip(lines, texts, strict=True)],
    )
    edit_lines(root, "tasks", lambda lines: lines[1].update(task_index=5))


def stepping_at(rate: float, *episodes: int) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        make_dataset(root, SPEC)
        for episode in episodes:
            times = pa.array(np.arange(LENGTHS[episode]) / rate, pa.float32())
            edit_table(root, episode, lambda table, t=times: with_column(table, "timestamp", t))
        if len(episodes) > 1:  # 6 frames do not tell it from 30, within LeRobot's tolerance
            edit_info(root, lambda info: info.update(fps=10))

    return make


# --- changes of a result that a proof must find ------------------------------------------------


def _json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def _declare_effort_anew(result: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        (record.get("declared_features") or record["features"])["effort"]["shape"] = [4]

    for name in ("repairs.json", "info.json"):
        _json(result / "meta" / name, change)


def _forget_the_version(result: Path) -> None:
    _json(result / "meta/repairs.json", lambda record: record.pop("assumed_version"))


def _take_another_file(result: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        first = next(file for file in record["located_files"] if file["episode"] == 1)
        first["path"] = "data/chunk-000/episode_000000.parquet"

    _json(result / "meta/repairs.json", change)


def _take_one_task(result: Path) -> None:
    path = result / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    pq.write_table(with_column(rows, "task_index", pa.array([0] * len(rows), pa.int64())), path)


def _another_rate(result: Path) -> None:
    _json(result / "meta/info.json", lambda info: info.update(fps=30))


# --- what is told of each kind ------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The outcome for a kind.

    Attributes:
        flags: Those that are asked for.
        gone: The features that go: those without data.
        repairs: What the report says of them, or a part.
        spoil: Changes what was repaired.
        episodes: Those that are left.
        tasks: Of the rows of each episode; None where nobody looks.
    """

    flags: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()
    repairs: dict[str, Any] = field(default_factory=dict)
    spoil: Callable[[Path], None] | None = None
    episodes: int = len(LENGTHS)
    tasks: Sequence[str] | None = None


def without(feature: str) -> Told:
    return Told((f"--drop-feature {feature}",), frozenset({feature}))


V21 = Told(("--assume-version v2.1",), repairs={"assumed_version": "v2.1"})
EPISODES_TASKS = ("--tasks-from episodes",)
TOLD: dict[str, Told] = {
    "no statistics of default columns": Told(("--fill-stats",)),
    "no statistics at all": Told(("--fill-stats",)),
    "wall-clock timestamps": Told(("--retime",)),
    "state and action are not declared": Told(("--declare-features",)),
    "a declared column is in no table": without("force"),
    "numbers in lists of one": Told(("--unwrap-scalars",)),
    "a binary column": without("raw"),
    "files in other chunks than the template says": Told(
        ("--locate-files",), spoil=_take_another_file
    ),
    "a camera that most episodes lack": without("observation.images.side"),
    "a task listed twice": Told(("--remap-tasks",)),
    "instructions only in episodes.jsonl": Told(EPISODES_TASKS, spoil=_take_one_task),
    "annotations that index tasks, one listed twice": Told(("--remap-tasks",)),
    "modality.json names a feature without data": without("observation.force"),
    "{chunk_index} in the templates": Told(),
    "no codebase_version": replace(V21, spoil=_forget_the_version),
    "version instead of codebase_version": V21,
    "says v3.0, lies in the files of v2.1": V21,
    "h264 declared, is mpeg4": Told(),
    "float32 declared, is double": Told(),
    "one name for all values, or for two": Told(),
}
OWN: dict[str, tuple[Callable[[Path], None], Told]] = {
    "columns of many kinds are not declared": (
        columns_of_many_kinds,
        Told(
            ("--declare-features",),
            repairs={
                "declared_features": {
                    name: {"dtype": dtype, "shape": shape, "names": None}
                    for name, (dtype, shape) in {
                        "index": ("int64", [1]),
                        "effort": ("float64", [3]),
                        "grid": ("int32", [2, 2]),
                        "reward": ("float32", [1]),
                        "note": ("string", [1]),
                    }.items()
                }
            },
            spoil=_declare_effort_anew,
        ),
    ),
    "images are not declared": (images, Told(("--declare-features",))),
    "neither version nor statistics": (
        neither_version_nor_statistics,
        Told(("--assume-version v2.0",)),
    ),
    "two files that may be one": (
        two_files_that_may_be_one,
        Told(("--on-bad-episode drop",), episodes=2),
    ),
    "no task_index": (
        no_task_index,
        Told(
            EPISODES_TASKS,
            tasks=["Pick up the cube.", "Put the cube into the bowl.", "Pick up the cube."],
        ),
    ),
    "instructions in no list": (
        instructions_in_no_list,
        Told(
            ("--remap-tasks", *EPISODES_TASKS),
            tasks=["Open the door.", "Close the door.", "Open the door."],
        ),
    ),
    "times of another rate": (
        stepping_at(29.97, 0, 1, 2),
        Told(("--assume-fps 29.97",), spoil=_another_rate),
    ),
    "times of another rate in one episode": (stepping_at(15, 1), Told(("--retime",))),
}


# Others show them: test_loads, test_odd_columns, the test of names below, and units.
_SHOWN_BY_OTHERS = {
    "h264 declared, is mpeg4", "float32 declared, is double", "a binary column",
    "one name for all values, or for two", "no statistics of default columns",
    "version instead of codebase_version",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in _SHOWN_BY_OTHERS else ())
        for name in [*TOLD, *OWN]
    ],
)
def test_two_tries_keep_what_can_be_kept_and_lerobot_loads_it(name: str, tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    make, told = OWN[name] if name in OWN else (IN_THE_WILD[name], TOLD[name])
    make(source)
    before = json.loads((source / "meta/info.json").read_bytes())["features"]
    ended = convert_as_told(source, result)
    assert (ended.trouble, ended.code, ended.flags) == (None, 0, told.flags), ended.said
    assert ended.tries == 1 + bool(told.flags)
    info = json.loads((result / "meta/info.json").read_bytes())
    assert info["total_episodes"] == told.episodes
    if told.episodes == len(LENGTHS):
        assert info["total_frames"] == sum(LENGTHS)
    assert before.keys() - info["features"].keys() == told.gone
    assert told.repairs.items() <= ended.record["repairs"].items()
    loads = {"backend": "torchcodec", "all_frames": True}
    assert why_it_does_not_load(result, told.episodes, **loads) is None
    if told.tasks is not None:
        dataset = LeRobotDataset("ours/tasks", root=result)
        firsts = dataset.meta.episodes["dataset_from_index"]
        assert tuple(dataset[first]["task"] for first in firsts) == tuple(told.tasks)
    assert verify_pair(result, source, depth="bytes").differences == ()
    if told.spoil is not None:
        told.spoil(result)
        assert verify_pair(result, source, depth="bytes").differences != ()


def test_without_a_rate_one_can_be_given(leconvert_here: Leconvert, tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "source", SPEC)
    edit_info(source, lambda info: info.pop("fps"))
    convert = ("convert", source, tmp_path / "result", "--json")
    assert "--assume-fps" in json.loads(leconvert_here(*convert, code=3).stdout)["next_step"]
    done = leconvert_here(*convert, "--assume-fps", "30", code=0)
    assert json.loads(done.stdout)["repairs"]["assumed_fps"] == "30.0"


def test_lerobot_pairs_names_with_values_and_so_loses_values_without_a_name(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    IN_THE_WILD["one name for all values, or for two"](source)
    ended = convert_as_told(source, result)
    dataset = LeRobotDataset("ours/named", root=result)
    assert dataset[0]["action"].shape == (6,)
    sent = make_robot_action(dataset[0]["action"][None], dataset.features)
    assert list(sent) == ["action"]
    state = {"action": dataset.features["observation.state"]}
    assert len(make_robot_action(dataset[0]["observation.state"][None], state)) == 3
    warned = {found["code"] for found in ended.record["findings"] if found["severity"] == "warning"}
    assert warned == {"feature-names"}
