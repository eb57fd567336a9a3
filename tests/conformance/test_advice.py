"""Datasets as people publish them: each message followed to the letter, then judged by LeRobot.

A first try is refused or not; the second does what the message says. The result must load in
LeRobot, ``verify`` must find nothing on it, and something where the repaired part is changed.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.oddities import each_table, forget_version, lose_clips
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

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
LENGTHS = (6, 5, 4, 7)
SPEC = DatasetSpec(
    episodes=len(LENGTHS),
    frames=LENGTHS,
    cameras=(
        CameraSpec(key=TOP, width=64, height=48),
        CameraSpec(key=WRIST, width=32, height=32),
    ),
    tasks=("Pick up the cube.", "Put it down."),
    has_done=True,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("advice") / "sound", SPEC)


@pytest.fixture
def source(sound: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(sound, tmp_path / "source"))


class Tries:
    """Converts a dataset as a user does who reads what is said."""

    def __init__(self, leconvert: Leconvert, source: Path, result: Path) -> None:
        self._run = leconvert
        self._source = source
        self._results = result
        self.result = result

    def refused(self, *flags: str) -> list[dict[str, Any]]:
        """Convert; it must be refused. Return the errors, as ``--json`` lists them."""
        run = self._convert(*flags)
        assert run.returncode == 3, run.stderr
        assert not self.result.exists()
        record = json.loads(run.stdout)
        assert "un the command again with " in record["next_step"], record["next_step"]
        return [found for found in record["findings"] if found["severity"] == "error"]

    def follow(self, errors: list[dict[str, Any]], *, choice: int = 0) -> dict[str, Any]:
        """Convert with a remedy of each error; it must succeed and load. Return the report."""
        flags = {
            word: None
            for error in errors
            for word in [error["remedies"][min(choice, len(error["remedies"]) - 1)]["flag"]]
        }
        return self.succeed(*(part for flag in flags for part in shlex.split(flag)))

    def succeed(self, *flags: str) -> dict[str, Any]:
        """Convert; the result must load, and be its source's. Return the report."""
        # One folder a result: ``datasets`` keeps what it read from a path.
        tried = len(list(self._results.parent.glob(f"{self._results.name}*")))
        self.result = self._results.with_name(f"{self._results.name}{tried}")
        run = self._convert(*flags)
        assert run.returncode == 0, run.stderr
        self.differences_must_be(False)
        load(self.result, every=4)
        report: dict[str, Any] = json.loads(run.stdout)
        return report

    def differences_must_be(self, expected: bool) -> None:
        run = self._run("verify", self.result, "--source", self._source, "--bytes")
        assert run.returncode == (10 if expected else 0), run.stdout + run.stderr

    def _convert(self, *flags: str) -> Any:
        return self._run(
            "convert", "--root", self._source, "--output", self.result, "--json", *flags
        )


@pytest.fixture
def tries(leconvert_here: Leconvert, source: Path, tmp_path: Path) -> Tries:
    return Tries(leconvert_here, source, tmp_path / "result")


def load(root: Path, every: int = 1) -> list[dict[str, Any]]:
    """Load items through LeRobot, every so-manieth."""
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset("someone/something", root=root)
    return [dataset[place] for place in range(0, len(dataset), every)]


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def kept(remedy: dict[str, Any]) -> tuple[int, int, int]:
    keeps = remedy["keeps"]
    return keeps["episodes"], keeps["frames"], keeps["features"]


@pytest.mark.parametrize("absent", [(2,), (0, 1, 2)])
def test_a_camera_that_many_episodes_lack_can_go_instead_of_them(
    tries: Tries, source: Path, absent: tuple[int, ...]
) -> None:
    lose_clips(source, WRIST, *absent)
    errors = tries.refused()
    assert {error["code"] for error in errors} == {"missing-file"}
    camera = (f"--drop-feature {WRIST}", (4, 22, 9))
    episodes = ("--on-bad-episode drop", (4 - len(absent), 18 if absent == (2,) else 7, 10))
    said = [(remedy["flag"], kept(remedy)) for remedy in errors[0]["remedies"]]
    assert said == ([episodes, camera] if len(absent) == 1 else [camera, episodes])
    report = tries.follow(errors)
    assert (report["episodes"], report["frames"]) == said[0][1][:2]
    if len(absent) == 1:
        report = tries.follow(errors, choice=1)
        assert (report["episodes"], report["frames"]) == said[1][1][:2]


def test_nobody_is_told_to_drop_every_episode(tries: Tries, source: Path) -> None:
    lose_clips(source, WRIST, 0)
    for episode in range(1, len(LENGTHS)):
        path = source / f"videos/chunk-000/{WRIST}/episode_{episode:06d}.mp4"
        path.write_bytes(path.read_bytes()[:100])
    errors = tries.refused()
    assert {error["remedy"] for error in errors if error["code"] == "unreadable-file"} == {
        f"--drop-feature {WRIST}"
    }
    assert tries.follow([e for e in errors if e["code"] == "unreadable-file"])["episodes"] == 4


def test_columns_that_are_not_declared_are_declared_as_they_are_stored(
    tries: Tries, source: Path
) -> None:
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

    each_table(source, add)
    edit_info(source, lambda info: [info["features"].pop(key) for key in ("action", "index")])
    errors = tries.refused()
    assert {error["code"] for error in errors} == {"undeclared-column"}
    assert len(errors) == 6
    assert {error["remedy"] for error in errors} == {"--declare-features"}
    assert {kept(error["remedies"][0]) for error in errors} == {(4, 22, 14)}
    assert {kept(error["remedies"][-1])[2] for error in errors} == {13, 14}
    report = tries.follow(errors)
    declared = report["repairs"]["declared_features"]
    assert {name: (ft["dtype"], ft["shape"]) for name, ft in declared.items()} == {
        "action": ("float32", [6]),
        "index": ("int64", [1]),
        "effort": ("float64", [3]),
        "grid": ("int32", [2, 2]),
        "reward": ("float32", [1]),
        "note": ("string", [1]),
    }
    items = load(tries.result)
    assert items[7]["effort"].tolist() == [1, 1, 0.5]
    assert items[7]["note"] == "row 1"
    assert items[7]["grid"].tolist() == [[1, 1], [2, 1]]
    stats = json.loads((tries.result / "meta/stats.json").read_bytes())
    assert stats["effort"]["max"] == [6.0, 3.0, 0.5]

    def redeclare(record: dict[str, Any]) -> None:
        features = record.get("declared_features") or record["features"]
        features["effort"]["shape"] = [4]

    change_json(tries.result / "meta/repairs.json", redeclare)
    tries.differences_must_be(True)
    change_json(tries.result / "meta/info.json", redeclare)
    tries.differences_must_be(True)


def test_images_that_are_not_declared_are_declared_too(
    leconvert_here: Leconvert, tmp_path: Path
) -> None:
    key = "observation.image"
    spec = DatasetSpec(episodes=2, frames=3, cameras=(), image_keys=(key,), image_size=(24, 32))
    source = make_dataset(tmp_path / "source", spec)
    edit_info(source, lambda info: info["features"].pop(key))
    tries = Tries(leconvert_here, source, tmp_path / "result")
    report = tries.follow(tries.refused())
    assert report["repairs"]["declared_features"][key]["shape"] == [24, 32, 3]
    assert tuple(load(tries.result)[4][key].shape) == (3, 24, 32)


def test_a_column_that_lerobot_cannot_read_can_only_go(tries: Tries, source: Path) -> None:
    def add(episode: int, table: pa.Table) -> pa.Table:
        rows = range(table.num_rows)
        for name, values in {
            "ragged": pa.array([[1.0] * (1 + row % 2) for row in rows]),
            "blob": pa.array([b"?" for _ in rows]),
            "when": pa.array(list(rows), pa.timestamp("us")),
            "gaps": pa.array([row or None for row in rows]),
            "flag": pa.array([row == episode for row in rows]),
        }.items():
            table = with_column(table, name, values)
        return table

    each_table(source, add)
    errors = tries.refused()
    assert {error["remedy"] for error in errors} == {
        "--declare-features",
        *(f"--drop-feature {name}" for name in ("ragged", "blob", "when", "gaps")),
    }
    said = " ".join(error["message"] for error in errors)
    for why in (
        "differ in length",
        "are not image files",
        "cannot read timestamp[us]",
        "has empty values",
    ):
        assert why in said
    report = tries.follow(errors)
    assert list(report["repairs"]["declared_features"]) == ["flag"]


@pytest.mark.parametrize("said", ["v3.0", "2.1"])
def test_a_version_that_is_not_that_of_the_files_is_assumed(
    tries: Tries, source: Path, said: str
) -> None:
    def change(info: dict[str, Any]) -> None:
        del info["codebase_version"]
        if said == "2.1":  # as lerobot.js writes it
            info["version"] = said
        else:
            info["codebase_version"] = said
        info["data_path"] = info["data_path"].replace("episode_chunk", "chunk_index")
        info["video_path"] = info["video_path"].replace("episode_chunk", "chunk_index")

    edit_info(source, change)
    errors = tries.refused()
    assert [(error["code"], error["remedy"]) for error in errors] == [
        ("codebase-version", "--assume-version v2.1")
    ]
    report = tries.follow(errors)
    assert report["repairs"]["assumed_version"] == "v2.1"
    found = {finding["code"]: finding["severity"] for finding in report["findings"]}
    assert found == {"codebase-version": "repaired", "template-names": "info"}
    change_json(tries.result / "meta/repairs.json", lambda record: record.pop("assumed_version"))
    tries.differences_must_be(True)


def test_without_a_version_and_statistics_of_episodes_it_is_v20(tries: Tries, source: Path) -> None:
    forget_version(source)
    (source / "meta/episodes_stats.jsonl").unlink()
    errors = tries.refused()
    assert [error["remedy"] for error in errors] == ["--assume-version v2.0"]
    report = tries.follow(errors)
    assert "action" in report["repairs"]["computed_stats"]


def test_files_in_other_folders_are_taken_from_where_they_are(tries: Tries, source: Path) -> None:
    moved = {
        "data/chunk-000/episode_000001.parquet": "data/chunk-001/episode_000001.parquet",
        "data/chunk-000/episode_000003.parquet": "data/chunk-7/episode_3.parquet",
        f"videos/chunk-000/{WRIST}/episode_000002.mp4": f"videos/{WRIST}/chunk-0/episode_2.mp4",
    }
    for path, place in moved.items():
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        (source / path).rename(source / place)
    errors = tries.refused()
    assert [(error["code"], error["remedy"]) for error in errors] == [
        ("misplaced-file", "--locate-files")
    ] * 3
    assert [len(error["remedies"]) for error in errors] == [2, 3, 2]
    report = tries.follow(errors)
    assert report["episodes"] == 4
    located = report["repairs"]["located_files"]
    assert {file["path"] for file in located} == set(moved.values())
    found = {(f["code"], f["severity"]) for f in report["findings"]}
    assert found == {("misplaced-file", "repaired")}

    def swap(record: dict[str, Any]) -> None:
        first = next(file for file in record["located_files"] if file["episode"] == 1)
        first["path"] = "data/chunk-000/episode_000000.parquet"

    change_json(tries.result / "meta/repairs.json", swap)
    tries.differences_must_be(True)


def test_all_files_may_lie_elsewhere(tries: Tries, source: Path) -> None:
    (source / "data/chunk-000").rename(source / "data/train")
    report = tries.follow(tries.refused())
    assert (report["episodes"], len(report["repairs"]["located_files"])) == (4, 4)


def test_two_files_that_may_be_one_are_nobodys_guess(
    tries: Tries, source: Path, leconvert_here: Leconvert
) -> None:
    lost = source / "data/chunk-000/episode_000001.parquet"
    for chunk in (1, 2):
        (source / f"data/chunk-00{chunk}").mkdir()
        shutil.copy(lost, source / f"data/chunk-00{chunk}" / lost.name)
    lost.unlink()
    for flags in ((), ("--locate-files",)):
        (error,) = tries.refused(*flags)
        assert "data/chunk-001/episode_000001.parquet and data/chunk-002/" in error["message"]
        assert error["remedy"] == "--on-bad-episode drop"
    assert tries.follow([error])["episodes"] == 3


INSTRUCTIONS = ["Open the door.", "Close the door.", "Pick up the cube.", "Open the door."]


def instruct(source: Path) -> None:
    """Rows of task 0 alone, and an instruction an episode, most of them in no list of tasks."""
    edit_lines(
        source,
        "episodes",
        lambda lines: [
            line.update(tasks=[text]) for line, text in zip(lines, INSTRUCTIONS, strict=True)
        ],
    )
    each_table(
        source,
        lambda _, table: with_column(
            table, "task_index", pa.array([0] * table.num_rows, pa.int64())
        ),
    )
    edit_lines(
        source,
        "episodes_stats",
        lambda lines: [
            line["stats"]["task_index"].update(min=[0], max=[0], mean=[0], std=[0])
            for line in lines
        ],
    )


@pytest.mark.parametrize("tasks", ["gaps", "none"])
def test_instructions_of_episodes_become_the_tasks_of_their_rows(
    tries: Tries, source: Path, tasks: str
) -> None:
    instruct(source)
    if tasks == "none":
        (source / "meta/tasks.jsonl").unlink()
        edit_info(source, lambda info: info.update(total_tasks=3))
    if tasks == "gaps":
        edit_lines(source, "tasks", lambda lines: lines[1].update(task_index=5))
    errors = tries.refused()
    mismatch = ("task-mismatch", "--tasks-from episodes")
    assert {(error["code"], error["remedy"]) for error in errors} == {
        "gaps": {("task-gap", "--remap-tasks"), mismatch},
        "none": {("missing-tasks", "--tasks-from episodes")},
    }[tasks]
    assert {kept(error["remedies"][0]) for error in errors} == {(4, 22, 10)}
    report = tries.follow(errors)
    assert report["repairs"]["tasks_from"] == "episodes"
    said = [item["task"] for item in load(tries.result)]
    assert said == [
        text for text, length in zip(INSTRUCTIONS, LENGTHS, strict=True) for _ in range(length)
    ]
    stats = json.loads((tries.result / "meta/stats.json").read_bytes())
    assert stats["task_index"]["max"] != [0]
    rows = pq.read_table(tries.result / "data/chunk-000/file-000.parquet")
    wrong = with_column(rows, "task_index", pa.array([0] * len(rows), pa.int64()))
    pq.write_table(wrong, tries.result / "data/chunk-000/file-000.parquet")
    tries.differences_must_be(True)


def test_who_wants_the_rows_tasks_says_so(tries: Tries, source: Path) -> None:
    instruct(source)
    report = tries.succeed("--accept", "task-mismatch")
    assert report["repairs"] == {}
    assert {item["task"] for item in load(tries.result)} == {"Pick up the cube."}


def test_rows_without_a_task_index_get_the_tasks_of_their_episodes(
    tries: Tries, source: Path
) -> None:
    each_table(source, lambda _, table: table.drop_columns(["task_index"]))
    edit_info(source, lambda info: info["features"].pop("task_index"))
    errors = tries.refused()
    assert ("missing-column", "--tasks-from episodes") in {
        (error["code"], error["remedy"]) for error in errors
    }
    tries.follow(errors)
    assert [item["task"] for item in load(tries.result)][::6] == [
        "Pick up the cube.",
        "Put it down.",
        "Pick up the cube.",
        "Put it down.",
    ]


def test_a_rate_that_the_timestamps_do_not_step_at_is_assumed(tries: Tries, source: Path) -> None:
    rate = "29.97"

    def step(_: int, table: pa.Table) -> pa.Table:
        times = [row / float(rate) for row in range(table.num_rows)]
        return with_column(table, "timestamp", pa.array(times, pa.float32()))

    each_table(source, step)
    # 6 frames do not tell it from 30, within LeRobot's tolerance.
    edit_info(source, lambda info: info.update(fps=10))
    errors = tries.refused("--recompute-stats")
    assert {error["remedy"] for error in errors} == {f"--assume-fps {rate}"}
    assert {error["code"] for error in errors} == {"frame-rate", "timestamps"}
    assert [remedy["flag"] for remedy in errors[0]["remedies"]][1] == "--retime"
    report = tries.succeed("--recompute-stats", "--assume-fps", rate)
    assert float(report["repairs"]["assumed_fps"]) == float(rate)
    info = json.loads((tries.result / "meta/info.json").read_bytes())
    assert info["fps"] == float(rate)
    assert load(tries.result)[3]["timestamp"].item() == pytest.approx(3 / float(rate))
    change_json(tries.result / "meta/info.json", lambda record: record.update(fps=30))
    tries.differences_must_be(True)


def test_without_a_rate_one_can_be_given(
    tries: Tries, source: Path, leconvert_here: Leconvert
) -> None:
    edit_info(source, lambda info: info.pop("fps"))
    refused = leconvert_here("convert", "--root", source, "--output", tries.result)
    assert refused.returncode == 3
    assert "Run the command again with --assume-fps" in refused.stderr
    assert tries.succeed("--assume-fps", "30")["repairs"]["assumed_fps"] == "30.0"


def test_times_of_some_episodes_tell_no_other_rate(tries: Tries, source: Path) -> None:
    edit_table(
        source,
        1,
        lambda table: with_column(
            table, "timestamp", pa.array([row / 15 for row in range(5)], pa.float32())
        ),
    )
    (error,) = tries.refused("--recompute-stats")
    assert [remedy["flag"] for remedy in error["remedies"]] == ["--retime"]
