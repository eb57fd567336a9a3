"""Load every frame of a v3.0 dataset through LeRobot, and count what does not come back right.

    python scripts/check_loading.py DATASET --processes 2

Two counts a camera. *Off their time*: frames that LeRobot would refuse, because no coded frame is
within its tolerance of the episode's start plus the row's timestamp, in its float32; these are
found from the packets' times alone. *Wrong*: frames that do not load, or that are not the frame
asked for; generated datasets carry the number of each frame in its pixels.

Needs LeRobot with torchcodec (`scripts/ffmpeg_libs.py`). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from leconvert.media.pyav import packet_times

TOLERANCE_SECONDS = 1e-4


def episodes_of(root: Path) -> list[dict[str, Any]]:
    """Return the rows of ``meta/episodes`` without statistics."""
    rows: list[dict[str, Any]] = []
    for path in sorted(root.glob("meta/episodes/*/*.parquet")):
        names = [n for n in pq.read_schema(path).names if not n.startswith("stats/")]
        rows += pq.read_table(path, columns=names).to_pylist()
    return rows


def frames_off_their_time(root: Path, camera: str, fps: float) -> int:
    """Count frames without a coded frame within LeRobot's tolerance, reckoned in float32."""
    files: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in episodes_of(root):
        place = row[f"videos/{camera}/chunk_index"], row[f"videos/{camera}/file_index"]
        files.setdefault(place, []).append(row)
    off = 0
    for (chunk, file), rows in files.items():
        path = root / f"videos/{camera}/chunk-{chunk:03d}/file-{file:03d}.mp4"
        shown = [seconds for seconds, _ in packet_times(path) if seconds is not None]
        times = np.sort(np.array(shown)).astype(np.float32)
        for row in rows:
            wanted = row[f"videos/{camera}/from_timestamp"] + (
                np.arange(row["length"], dtype=np.float64) / fps
            ).astype(np.float32).astype(np.float64)
            wanted32 = wanted.astype(np.float32)
            after = np.searchsorted(times, wanted32).clip(1, len(times) - 1)
            distance = np.minimum(
                np.abs(times[after] - wanted32), np.abs(times[after - 1] - wanted32)
            )
            off += int(np.count_nonzero(distance >= TOLERANCE_SECONDS))
    return off


def load_episodes(root: Path, episodes: range) -> dict[str, int]:
    """Load episodes whole through `LeRobotDataset` and read the frames' numbers."""
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from leconvert.testing import read_label

    torch.set_num_threads(1)
    rows = episodes_of(root)
    info = json.loads((root / "meta/info.json").read_text())
    cameras = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
    longest = max(row["length"] for row in rows)
    deltas = [frame / info["fps"] for frame in range(longest)]
    dataset = LeRobotDataset(
        "check/loading",
        root=root,
        video_backend="torchcodec",
        return_uint8=True,
        delta_timestamps=dict.fromkeys(cameras, deltas),
    )
    counts: Counter[str] = Counter()
    for number in episodes:
        row = rows[number]
        length = row["length"]
        try:
            item = dataset[row["dataset_from_index"]]
        except Exception as error:  # noqa: BLE001 - whatever LeRobot raises, the frames did not load
            counts["wrong"] += length * len(cameras)
            counts[f"episodes with {type(error).__name__}"] += 1
            continue
        for camera in cameras:
            frames = item[camera][:length].permute(0, 2, 3, 1).numpy()
            right = sum(read_label(frame).frame == index for index, frame in enumerate(frames))
            counts["right"] += right
            counts["wrong"] += length - right
    return dict(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    root: Path = options.dataset
    info = json.loads((root / "meta/info.json").read_text())
    cameras = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
    started = time.monotonic()
    result: dict[str, Any] = {
        "frames": info["total_frames"] * len(cameras),
        "off_their_time": {
            camera: frames_off_their_time(root, camera, info["fps"]) for camera in cameras
        },
    }
    total = info["total_episodes"]
    edges = [total * part // options.processes for part in range(options.processes + 1)]
    counts: Counter[str] = Counter({"right": 0, "wrong": 0})
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        parts = [
            pool.submit(load_episodes, root, range(first, stop)) for first, stop in pairwise(edges)
        ]
        for part in parts:
            counts.update(part.result())
    result["loaded"] = dict(counts)
    result["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(result))
    failed = sum(result["off_their_time"].values()) + counts["wrong"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
