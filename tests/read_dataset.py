"""Reads a dataset of either version by LeRobot's rules, with pyarrow and PyAV alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

__all__ = ["Episode", "read_dataset"]

FPS = 30
_COUNTED = {"timestamp", "frame_index", "episode_index", "index", "task_index"}


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
