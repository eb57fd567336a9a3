"""Commands one after the other, in random order, on one dataset: each keeps what it should keep.

What a dataset must hold is followed in a model: the frames of each episode, by the pixels that a
decoder gives for them, by their rows and the text of their task. After each command the dataset is
read by LeRobot's rules with pyarrow and PyAV alone, and must hold the model's episodes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.trees import snapshot

from leconvert.cli import main
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

FPS = 30
_COUNTED = {"timestamp", "frame_index", "episode_index", "index", "task_index"}
_LAYOUTS = ("reference", "streaming", "episode-files", "overlay")


@dataclass
class Episode:
    """What one episode must hold.

    Attributes:
        tasks: The text of each frame's task.
        rows: The columns that recordings bring along, by name; one entry a frame.
        frames: The pixels of each frame as a digest, by camera.
    """

    tasks: list[str]
    rows: dict[str, list[Any]]
    frames: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.tasks)

    def cut(self, start: int, stop: int) -> Episode:
        """Return the frames from ``start`` to before ``stop``."""
        return Episode(
            self.tasks[start:stop],
            {name: values[start:stop] for name, values in self.rows.items()},
            {key: frames[start:stop] for key, frames in self.frames.items()},
        )


# ------------------------------------------------------------------------------------------------
# Read a dataset by the rules of its version.


def read_dataset(root: Path) -> list[Episode]:
    """Return what a dataset of either version holds; asserts what both demand of numbering."""
    info = json.loads((root / "meta/info.json").read_text())
    cameras = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
    if info["codebase_version"] == "v3.0":
        episodes = _read_v3(root, info, cameras)
    else:
        episodes = _read_v2(root, info, cameras)
    assert info["total_episodes"] == len(episodes)
    assert info["total_frames"] == sum(map(len, episodes))
    return episodes


def _read_v2(root: Path, info: dict[str, Any], cameras: list[str]) -> list[Episode]:
    tasks = {
        line["task_index"]: line["task"]
        for line in map(json.loads, (root / "meta/tasks.jsonl").read_text().splitlines())
    }
    listed = list(map(json.loads, (root / "meta/episodes.jsonl").read_text().splitlines()))
    assert info["total_tasks"] == len(tasks)
    found, first = [], 0
    for number, line in enumerate(listed):
        assert line["episode_index"] == number
        place = {"episode_chunk": number // info["chunks_size"], "episode_index": number}
        rows = pq.read_table(root / info["data_path"].format(**place)).to_pydict()
        assert line["length"] == len(rows["index"])
        frames = {
            key: _frames_at(
                root / info["video_path"].format(video_key=key, **place), rows["timestamp"], 0.0
            )
            for key in cameras
        }
        found.append(_episode(rows, frames, tasks, number, first))
        assert set(line["tasks"]) == set(found[-1].tasks)
        first += line["length"]
    return found


def _read_v3(root: Path, info: dict[str, Any], cameras: list[str]) -> list[Episode]:
    table = pq.read_table(root / "meta/tasks.parquet").to_pydict()
    texts = table.get("task", table.get("__index_level_0__"))
    tasks = dict(zip(table["task_index"], texts, strict=True))
    assert info["total_tasks"] == len(tasks)
    listed = [
        row
        for path in sorted((root / "meta/episodes").rglob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    found = []
    data = [pq.read_table(path) for path in sorted((root / "data").glob("*/*.parquet"))]
    everything = {
        name: [value for part in data for value in part[name].to_pylist()]
        for name in data[0].column_names
    }
    for number, line in enumerate(listed):
        first, stop = line["dataset_from_index"], line["dataset_to_index"]
        assert (line["episode_index"], line["length"]) == (number, stop - first)
        rows = {name: values[first:stop] for name, values in everything.items()}
        place = {
            "chunk_index": line["data/chunk_index"],
            "file_index": line["data/file_index"],
        }
        assert first in pq.read_table(root / info["data_path"].format(**place))["index"].to_pylist()
        frames = {}
        for key in cameras:
            place = {
                "chunk_index": line[f"videos/{key}/chunk_index"],
                "file_index": line[f"videos/{key}/file_index"],
            }
            start = line[f"videos/{key}/from_timestamp"]
            assert line[f"videos/{key}/to_timestamp"] == pytest.approx(
                start + len(rows["index"]) / FPS
            )
            path = root / info["video_path"].format(video_key=key, **place)
            frames[key] = _frames_at(path, rows["timestamp"], start)
        found.append(_episode(rows, frames, tasks, number, first))
        assert set(line["tasks"]) == set(found[-1].tasks)
    assert len(everything["index"]) == info["total_frames"]
    _check_stats(root, everything, info)
    return found


def _check_stats(root: Path, rows: dict[str, list[Any]], info: dict[str, Any]) -> None:
    stats = json.loads((root / "meta/stats.json").read_text())
    assert set(stats) == set(info["features"])
    for name, values in rows.items():
        numbers = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        assert np.ravel(stats[name]["count"]).tolist() == [len(values)], name
        for word, expected in (
            ("min", numbers.min(axis=0)),
            ("max", numbers.max(axis=0)),
            ("mean", numbers.mean(axis=0)),
            ("std", numbers.std(axis=0)),
        ):
            np.testing.assert_allclose(
                np.ravel(stats[name][word]),
                expected,
                rtol=1e-5,
                atol=1e-5,
                err_msg=f"{name} {word}",
            )


def _episode(
    rows: dict[str, list[Any]],
    frames: dict[str, list[str]],
    tasks: dict[int, str],
    number: int,
    first: int,
) -> Episode:
    length = len(rows["index"])
    assert rows["index"] == list(range(first, first + length))
    assert rows["frame_index"] == list(range(length))
    assert set(rows["episode_index"]) == {number}
    np.testing.assert_allclose(rows["timestamp"], np.arange(length) / FPS, atol=1e-4)
    return Episode(
        [tasks[index] for index in rows["task_index"]],
        {name: values for name, values in rows.items() if name not in _COUNTED},
        frames,
    )


def _frames_at(path: Path, timestamps: list[float], start: float) -> list[str]:
    """Return the digest of the frame that LeRobot takes for each timestamp of an episode."""
    times, digests = [], []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            times.append(float(frame.pts * frame.time_base))
            pixels = frame.to_ndarray(format="rgb24").tobytes()
            digests.append(hashlib.sha1(pixels, usedforsecurity=False).hexdigest()[:12])
    taken = []
    for wanted in np.asarray(timestamps, dtype=np.float64) + start:
        nearest = int(np.abs(np.asarray(times) - wanted).argmin())
        assert abs(times[nearest] - wanted) < 1e-4, (path, wanted, times[nearest])
        taken.append(digests[nearest])
    return taken


# ------------------------------------------------------------------------------------------------
# The walk: a folder, what it must hold, and commands that change both.


@dataclass
class Walk:
    """A dataset on its way."""

    folder: Path
    bases: list[Path]
    chance: random.Random
    root: Path = field(init=False)
    must_hold: list[Episode] = field(init=False)
    before: list[tuple[list[Episode], dict[str, bytes]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.root = self.folder / "d0"
        shutil.copytree(self.chance.choice(self.bases), self.root)
        self.must_hold = read_dataset(self.root)

    @property
    def version(self) -> str:
        return str(json.loads((self.root / "meta/info.json").read_text())["codebase_version"])

    def step(self) -> None:
        """Give one command, and see that the dataset holds what it must."""
        moves: list[Callable[[], None]] = [
            self.convert_in_place,
            self.convert_beside,
            self.select,
            self.trim,
            self.merge,
            self.split,
            self.repair,
            self.undo,
            self.clean,
            self.rename,
        ]
        self.chance.choice(moves)()
        assert read_dataset(self.root) == self.must_hold, self.said[-3:]
        assert self._run("check", self.root), self.said[-3:]

    def _layout(self) -> list[str]:
        if self.chance.random() < 0.25:
            return ["--to", "v2.1"]
        words = ["--layout", self.chance.choice(_LAYOUTS)]
        if self.chance.random() < 0.5:
            words += ["--data-file-size-in-mb", "0.003", "--video-file-size-in-mb", "0.02"]
        return words

    def _run(self, *words: object) -> bool:
        """Return whether the command did what it was told; if not nothing may have changed."""
        listed = [str(word) for word in words]
        before = snapshot(self.folder)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*listed])
        self.said.append(f"{' '.join(listed)} -> {code} {err.getvalue().strip()[:600]}")
        assert code in (0, 2, 3, 5), self.said[-1]
        if code:
            after = snapshot(self.folder)
            assert {name: after.get(name) for name in before} == before, self.said[-1]
            self.refused.append(self.said[-1])
        return code == 0

    def _next(self) -> Path:
        self.number += 1
        return self.folder / f"d{self.number}"

    def _moved_to(self, root: Path, must_hold: list[Episode]) -> None:
        self.root, self.must_hold, self.before = root, must_hold, []

    def convert_in_place(self) -> None:
        kept = (copy.deepcopy(self.must_hold), snapshot(self.root))
        if self._run("convert", self.root, *self._layout()) and snapshot(self.root) != kept[1]:
            self.before.append(kept)

    def convert_beside(self) -> None:
        result = self._next()
        if self._run("convert", self.root, result, *self._layout()):
            assert self._run("verify", result, "--source", self.root), self.said[-1]
            self._moved_to(result, self.must_hold)

    def select(self) -> None:
        count = len(self.must_hold)
        taken = sorted(self.chance.sample(range(count), self.chance.randint(1, count)))
        result, numbers = self._next(), ",".join(map(str, taken))
        if self._run("convert", self.root, result, "--episodes", numbers, *self._layout()):
            self._moved_to(result, [self.must_hold[number] for number in taken])

    def split(self) -> None:
        if len(self.must_hold) < 3:
            return
        cut = self.chance.randint(1, len(self.must_hold) - 1)
        parts = self._next()
        into = f"a=0-{cut - 1},b={cut}-{len(self.must_hold) - 1}"
        if self._run("split", self.root, "--output-dir", parts, "--into", into, *self._layout()):
            assert read_dataset(parts / "a") == self.must_hold[:cut]
            self._moved_to(parts / "b", self.must_hold[cut:])

    def trim(self) -> None:
        number = self.chance.randrange(len(self.must_hold))
        length = len(self.must_hold[number])
        start = self.chance.randint(0, length - 1)
        stop = self.chance.randint(start + 1, length)
        trimmed = list(self.must_hold)
        trimmed[number] = trimmed[number].cut(start, stop)
        words = ["trim", self.root, "--episode", number, "--frames", f"{start}:{stop}"]
        if self.chance.random() < 0.5:
            result = self._next()
            if self._run(*words, "--output", result, *self._layout()):
                self._moved_to(result, trimmed)
            return
        kept = (copy.deepcopy(self.must_hold), snapshot(self.root))
        if self._run(*words, *self._layout()):
            self.before.append(kept)
            self.must_hold = trimmed

    def merge(self) -> None:
        other, result = self.chance.choice(self.bases), self._next()
        if self._run("merge", self.root, other, "--output", result, *self._layout()):
            self._moved_to(result, self.must_hold + read_dataset(other))

    def repair(self) -> None:
        words = self.chance.choice(([], ["--quantiles"], ["--recompute-stats"], ["--remap-tasks"]))
        if self.chance.random() < 0.5:
            result = self._next()
            if self._run("repair", self.root, "--output", result, *words) and result.exists():
                self._moved_to(result, self.must_hold)
            return
        kept = (copy.deepcopy(self.must_hold), snapshot(self.root))
        if self._run("repair", self.root, *words) and snapshot(self.root) != kept[1]:
            self.before.append(kept)

    def rename(self) -> None:
        result = self._next()
        words = ["--rename-feature", "observation.state=state", *self._layout()]
        if not self._run("convert", self.root, result, *words):
            return
        again = self._next()
        words = ["--rename-feature", "state=observation.state", *self._layout()]
        if self._run("convert", result, again, *words):
            self._moved_to(again, self.must_hold)

    def undo(self) -> None:
        if self._run("undo", self.root) and self.before:
            self.must_hold, tree = self.before.pop()
            # The meta/ of an overlay stays beside that of its source.
            there = {
                name: facts
                for name, facts in snapshot(self.root).items()
                if name in tree or not name.startswith(("meta_v30", "meta_v21"))
            }
            assert there == tree, self.said[-1]

    def clean(self) -> None:
        # What is not wholly in the dataset stays, as the source of a trimmed one does.
        if self._run("clean", "--of", self.root, "--old") and not self._is_kept():
            self.before = []

    def _is_kept(self) -> bool:
        kept = self.root.with_name(f"{self.root.name}_old"), self.root / "meta_old"
        return any(path.exists() for path in kept)


def make_bases(folder: Path) -> list[Path]:
    """Write the datasets that walks begin with; any two can be merged."""
    found = []
    for seed, lengths in enumerate(((7, 12, 5, 9), (6, 6, 11), (10, 4, 8, 13, 3))):
        cameras = [
            CameraSpec(
                key=f"observation.images.{name}",
                width=32,
                height=32,
                gop_size=gop,
                noise_amplitude=40,
                options={"bf": "2"} if name == "side" else {},
            )
            for name, gop in (("top", 2), ("side", 5))
        ]
        spec = DatasetSpec(
            episodes=len(lengths),
            frames=lengths,
            cameras=cameras,
            tasks=("Pick.", "Place.", f"Only here: {seed}."),
            tasks_per_episode=2,
            state_dim=3,
            seed=seed + 1,
        )
        make_dataset(folder / f"base{seed}", spec)
        found.append(folder / f"base{seed}")
    return found


def walk(folder: Path, bases: list[Path], seed: int, steps: int) -> Walk:
    """Give so many commands, as the seed decides."""
    made = Walk(folder, bases, random.Random(seed))
    for _ in range(steps):
        made.step()
    return made


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the datasets that walks begin with."""
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.parametrize("seed", range(2))
def test_a_dataset_holds_what_it_must_after_each_command(
    seed: int, bases: list[Path], tmp_path: Path
) -> None:
    made = walk(tmp_path, bases, seed, 5)
    assert len(made.said) > len(made.refused)


@pytest.mark.slow
@pytest.mark.parametrize("hundreds", range(10, 30))
def test_it_does_on_two_hundred_ways(bases: list[Path], tmp_path: Path, hundreds: int) -> None:
    for seed in range(hundreds * 100, hundreds * 100 + 10):
        home = tmp_path / str(seed)
        home.mkdir()
        walk(home, bases, seed, 12)
        shutil.rmtree(home)
