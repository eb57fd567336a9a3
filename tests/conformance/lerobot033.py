"""What LeRobot 0.3.3 loads of a v2.1 dataset, frame by frame, beside the files it was made from.

It runs in an environment of its own (Python 3.10, lerobot 0.3.3), without leconvert: `job.json`
says where the dataset is and where each frame of it comes from. It prints what it found as JSON.
"""

import io
import json
import sys
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from PIL import Image

_FRAMES_AT_A_TIME = 32


def source_frames(path, first, count):
    """Return the pictures of an episode's clip by rank, or of its part of a file."""
    with av.open(path) as container:
        frames = sorted(container.decode(video=0), key=lambda frame: frame.pts)
        return [frame.to_ndarray(format="rgb24") for frame in frames[first : first + count]]


def as_bytes(tensor):
    """Return a picture of LeRobot's as it was decoded."""
    return np.round(tensor.numpy() * 255).astype(np.uint8).transpose(1, 2, 0)


def main(job):
    """Compare every frame and row."""
    fps = job["fps"]
    steps = [step / fps for step in range(_FRAMES_AT_A_TIME)]
    dataset = LeRobotDataset(
        job["repo_id"],
        root=job["result"],
        video_backend="pyav",
        delta_timestamps=dict.fromkeys(job["cameras"], steps) or None,
    )
    found = {"rows": 0, "frames": 0, "different": [], "stats": sorted(dataset.meta.stats)}
    start = 0
    for position, episode in enumerate(job["episodes"]):
        length, path, first = episode["length"], *episode["data"]
        rows = pq.read_table(path).slice(first, length)
        theirs = {
            camera: source_frames(*part, length) for camera, part in episode["videos"].items()
        }
        for at in range(0, length, _FRAMES_AT_A_TIME):
            sample = dataset[start + at]
            for camera, pictures in theirs.items():
                for step, wanted in enumerate(pictures[at : at + _FRAMES_AT_A_TIME]):
                    found["frames"] += 1
                    if not np.array_equal(as_bytes(sample[camera][step]), wanted):
                        found["different"].append([position, at + step, camera])
        for at in range(length):
            row = dataset.hf_dataset[start + at]
            found["rows"] += 1
            for name in job["columns"]:
                wanted = np.asarray(rows.column(name)[at].as_py(), np.float32)
                if not np.array_equal(np.asarray(row[name], np.float32), wanted, equal_nan=True):
                    found["different"].append([position, at, name])
            for name in job["images"]:
                found["frames"] += 1
                stored = Image.open(io.BytesIO(rows.column(name)[at].as_py()["bytes"]))
                if not np.array_equal(as_bytes(row[name]), np.asarray(stored)):
                    found["different"].append([position, at, name])
            text = dataset.meta.tasks[int(row["task_index"])]
            if (int(row["episode_index"]), text) != (position, episode["tasks"][at]):
                found["different"].append([position, at, "task"])
        start += length
    if len(dataset) != start:
        found["different"].append([len(dataset), start, "frames of the dataset"])
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_bytes()))
