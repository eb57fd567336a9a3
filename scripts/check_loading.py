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
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from leconvert.media.pyav import packet_times
from leconvert.testing import read_label

NAME = "check/loading"
TOLERANCE_SECONDS = 1e-4


def frames_off_their_time(meta: LeRobotDatasetMetadata, camera: str) -> int:
    """Count frames without a coded frame within LeRobot's tolerance, reckoned in float32."""
    files: dict[Path, list[dict[str, Any]]] = defaultdict(list)
    for row in meta.episodes:
        files[meta.get_video_file_path(row["episode_index"], camera)].append(row)
    off = 0
    for path, rows in files.items():
        packets = packet_times(meta.root / path)
        shown = [seconds for seconds, _ in packets if seconds is not None]
        times = np.sort(np.array(shown)).astype(np.float32)
        for row in rows:
            wanted = row[f"videos/{camera}/from_timestamp"] + (
                np.arange(row["length"], dtype=np.float64) / meta.fps
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
    torch.set_num_threads(1)
    meta = LeRobotDatasetMetadata(NAME, root=root)
    deltas = [frame / meta.fps for frame in range(max(meta.episodes["length"]))]
    dataset = LeRobotDataset(
        NAME,
        root=root,
        video_backend="torchcodec",
        return_uint8=True,
        delta_timestamps=dict.fromkeys(meta.video_keys, deltas),
    )
    counts: Counter[str] = Counter()
    for number in episodes:
        row = meta.episodes[number]
        length = row["length"]
        try:
            item = dataset[row["dataset_from_index"]]
        except Exception as error:  # noqa: BLE001 - whatever LeRobot raises, the frames did not load
            counts["wrong"] += length * len(meta.video_keys)
            counts[f"episodes with {type(error).__name__}"] += 1
            continue
        for camera in meta.video_keys:
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
    meta = LeRobotDatasetMetadata(NAME, root=options.dataset)
    started = time.monotonic()
    off = {camera: frames_off_their_time(meta, camera) for camera in meta.video_keys}
    parts = [
        range(part, meta.total_episodes, options.processes) for part in range(options.processes)
    ]
    counts: Counter[str] = Counter({"right": 0, "wrong": 0})
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for found in pool.map(load_episodes, [options.dataset] * len(parts), parts):
            counts.update(found)
    result = {
        "frames": meta.total_frames * len(meta.video_keys),
        "off_their_time": off,
        "loaded": dict(counts),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result))
    return 1 if sum(off.values()) + counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
