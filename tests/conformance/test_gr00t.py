"""GR00T's files beside LeRobot's tables keep their meaning: results are read by its loader's rules.

The rules: ``state`` and ``action`` groups of ``modality.json`` are slices ``start`` to ``end`` of
the column ``original_key``, ``observation.state`` or ``action`` where there is none; an
``annotation`` entry is the column ``original_key``, or ``annotation.`` and its name, of indices
into the table of tasks; a ``video`` entry is the feature ``original_key``, or
``observation.images.`` and its name. ``stats.json`` must be there, with numbers for each feature
of floats. ``stats_gr00t.json`` has a key a column, ``relative_stats_N.json`` one an action group.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.program import Leconvert

from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)

LENGTHS = (6, 5, 4)
MODALITY = {
    "state": {"arm": {"start": 0, "end": 4}, "hand": {"start": 4, "end": 6}},
    "action": {
        "arm": {"start": 0, "end": 4},
        "hand": {"start": 4, "end": 6, "original_key": "action"},
        "force": {"start": 0, "end": 2, "original_key": "effort"},
    },
    "video": {"ego": {"original_key": "observation.images.top"}, "wrist": {}},
    "annotation": {"human.task": {}, "human.validity": {"original_key": "annotation.valid"}},
}
STATS = {name: {"mean": [0.0]} for name in ("observation.state", "action", "effort")}
RELATIVE = {name: {"max": [[1.0]]} for name in ("arm", "force")}
# Gaps and a repetition: "valid" is 4 and 6.
TASKS = [(1, "Pick the pear."), (4, "valid"), (6, "valid"), (9, "Pick the cup.")]
FORCE = pa.list_(pa.float32(), 3)
FILES = ("modality.json", "stats_gr00t.json", "relative_stats_16.json")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=(
            CameraSpec(key="observation.images.top", width=64, height=48),
            CameraSpec(key="observation.images.wrist", width=32, height=32),
        ),
        tasks=("Pick the pear.",),
        extra_files={
            "meta/modality.json": json.dumps(MODALITY),
            "meta/stats_gr00t.json": json.dumps(STATS),
            "meta/relative_stats_16.json": json.dumps(RELATIVE),
        },
    )
    root = make_dataset(tmp_path / "source", spec)
    for episode, length in enumerate(LENGTHS):
        task = pa.array([9 if episode else 1] * length, pa.int64())
        columns = {
            "task_index": task,
            "annotation.human.task": task,
            "annotation.valid": pa.array([4 + 2 * (row % 2) for row in range(length)], pa.int32()),
            "effort": pa.array([[float(row), 1, 2] for row in range(length)], FORCE),
        }
        for name, values in columns.items():
            edit_table(root, episode, lambda table, n=name, v=values: with_column(table, n, v))
    one = {"shape": [1], "names": None}
    declared = {
        "annotation.human.task": {"dtype": "int64", **one},
        "annotation.valid": {"dtype": "int32", **one},
        "effort": {"dtype": "float32", "shape": [3], "names": None},
    }
    edit_info(root, lambda info: info["features"].update(declared))
    tasks = [{"task_index": index, "task": text} for index, text in TASKS]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
    edit_lines(
        root, "episodes", lambda lines: [one.update(tasks=["Pick the cup."]) for one in lines]
    )
    edit_lines(root, "episodes", lambda lines: lines[0].update(tasks=["Pick the pear."]))
    return root


def load(root: Path) -> dict[str, list[Any]]:
    """Load every row by GR00T's rules, from the tables of either version."""
    meta = root / "meta"
    modality = json.loads((meta / "modality.json").read_bytes())
    info = json.loads((meta / "info.json").read_bytes())
    if (meta / "tasks.jsonl").exists():
        lines = (json.loads(line) for line in (meta / "tasks.jsonl").read_text().splitlines())
        tasks = {line["task_index"]: line["task"] for line in lines}
    else:
        stats = json.loads((meta / "stats.json").read_bytes())
        for name, feature in info["features"].items():
            if "float" in feature["dtype"]:
                assert {"mean", "std", "min", "max", "q01", "q99"} <= stats[name].keys()
        table = pq.read_table(meta / "tasks.parquet").to_pylist()
        tasks = {row["task_index"]: row["task"] for row in table}
    paths = sorted(root.glob("data/*/*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    found: dict[str, list[Any]] = {}
    for kind, column in (("state", "observation.state"), ("action", "action")):
        for name, entry in modality[kind].items():
            key = entry.get("original_key", column)
            cut = slice(entry["start"], entry["end"])
            found[f"{kind}.{name}"] = [row[key][cut] for row in rows]
    for name, entry in modality["annotation"].items():
        key = entry.get("original_key", f"annotation.{name}")
        found[f"annotation.{name}"] = [tasks[row[key]] for row in rows]
    for name, entry in modality["video"].items():
        key = entry.get("original_key", f"observation.images.{name}")
        assert info["features"][key]["dtype"] == "video"
        found[f"video.{name}"] = [len(list(root.glob(f"videos/**/*{key}*")))]
    return found


REPAIRS = ("--remap-tasks", "--quantiles")


@pytest.fixture
def converted(source: Path, tmp_path: Path, leconvert_here: Leconvert) -> Callable[..., Any]:
    """Convert with some flags, and return the report."""

    def convert(*flags: str, code: int = 0) -> Any:
        words = ("convert", source, tmp_path / "result", "--json", *flags)
        return json.loads(leconvert_here(*words, code=code).stdout)

    return convert


def test_annotations_are_numbered_anew_with_the_tasks(
    source: Path, tmp_path: Path, leconvert_here: Leconvert, converted: Callable[..., Any]
) -> None:
    before, result = load(source), tmp_path / "result"
    refused = converted(code=3)["findings"]
    flags = {found["remedy"] for found in refused if found["severity"] == "error"}
    assert flags == {"--remap-tasks", "--fill-stats"}
    named = ["annotation.human.task", "annotation.valid"]
    assert converted(*REPAIRS)["repairs"]["task_columns"] == named
    after = load(result)
    assert after.keys() == before.keys()
    for name, values in before.items():
        if not name.startswith("video."):
            assert after[name] == values, name
    assert after["annotation.human.validity"] == ["valid"] * sum(LENGTHS)
    assert after["annotation.human.task"][-1] == "Pick the cup."
    verify = ["verify", result, "--source", source, "--bytes"]
    leconvert_here(*verify, code=0)
    path = result / "data/chunk-000/file-000.parquet"
    sound = path.read_bytes()
    table = pq.read_table(path)
    for values in ([0] * len(table), [4, 6] * 7 + [4]):
        wrong = with_column(table, "annotation.valid", pa.array(values, pa.int32()))
        pq.write_table(wrong, path)
        leconvert_here(*verify, code=10)
    path.write_bytes(sound)
    record = json.loads((result / "meta/repairs.json").read_bytes())
    record["task_columns"] = ["annotation.valid"]
    (result / "meta/repairs.json").write_text(json.dumps(record))
    leconvert_here(*verify, code=10)


def test_an_annotation_that_nobody_names_stays_and_is_told(
    source: Path, converted: Callable[..., Any]
) -> None:
    (source / "meta/modality.json").unlink()
    report = converted(*REPAIRS)
    told = [f["message"] for f in report["findings"] if f["code"] == "annotation-tasks"]
    named = ["annotation.human.task", "annotation.valid"]
    assert [message.split(" ")[0] for message in told] == named
    assert report["repairs"]["task_columns"] == []


def test_what_is_left_out_goes_from_the_files_of_gr00t_too(
    source: Path, tmp_path: Path, leconvert_here: Leconvert, converted: Callable[..., Any]
) -> None:
    gone, result = ("effort", "observation.images.wrist", "annotation.valid"), tmp_path / "result"
    report = converted(*REPAIRS, *(f"--drop-feature={name}" for name in gone))
    assert {f["severity"] for f in report["findings"] if f["code"] == "modality"} == {"repaired"}
    assert sorted(load(result)) == [
        "action.arm", "action.hand", "annotation.human.task", "state.arm", "state.hand",
        "video.ego",
    ]  # fmt: skip
    kept = [json.loads((result / "meta" / name).read_bytes()).keys() for name in FILES]
    assert [set(keys) for keys in kept[1:]] == [{"observation.state", "action"}, {"arm"}]
    verify = ["verify", result, "--source", source, "--bytes"]
    leconvert_here(*verify, code=0)
    for name in FILES:
        path = result / "meta" / name
        sound = path.read_bytes()
        shutil.copy(source / "meta" / name, path)
        leconvert_here(*verify, code=10)
        path.write_bytes(sound)


def test_what_gr00t_could_not_read_in_the_result_is_told(
    source: Path, converted: Callable[..., Any]
) -> None:
    modality = json.loads(json.dumps(MODALITY))
    modality["video"]["left"] = {}
    modality["state"]["arm"]["end"] = 40
    (source / "meta/modality.json").write_text(json.dumps(modality))
    (source / "videos/chunk-000/observation.images.top/episode_000001.mp4").unlink()
    findings = converted(*REPAIRS, "--on-bad-episode", "drop")["findings"]
    told = " ".join(f["message"] for f in findings if f["code"] == "modality")
    assert "names observation.images.left for video left, which the dataset does not have" in told
    assert "for state arm as its values up to 40, of which there are 6" in told
    stale = sorted(f["path"] for f in findings if f["code"] == "gr00t-stats")
    assert stale == ["meta/relative_stats_16.json", "meta/stats_gr00t.json"]
