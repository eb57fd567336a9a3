"""LeRobot's own converter and recorder as the oracle: run, not copied."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import numpy as np

__all__ = ["convert_with_reference", "record_with_reference", "writable_copy"]


def writable_copy(source: Path, target: Path) -> Path:
    """Copy a dataset folder so that it can be changed, whatever the permissions of the source."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return target


def convert_with_reference(
    source: Path,
    target: Path,
    *,
    data_file_size_in_mb: float | None = None,
    video_file_size_in_mb: float | None = None,
) -> Path:
    """Convert a copy of a v2.1 dataset with LeRobot 0.6.1.

    Args:
        source: The dataset; it is not touched.
        target: Where the result shall be.
        data_file_size_in_mb: LeRobot's limit, which need not be whole; None for its default.
        video_file_size_in_mb: Likewise.

    Returns:
        ``target``, now a v3.0 dataset.
    """
    from datasets.fingerprint import Hasher
    from lerobot.scripts import convert_dataset_v21_to_v30

    writable_copy(source, target)
    # It names its cache by a digest of all episodes, which takes longer than the conversion. A name
    # that is never the same does as well: nothing may come from a cache here.
    with mock.patch.object(Hasher, "hash", staticmethod(lambda _: uuid4().hex)):
        convert_dataset_v21_to_v30.convert_dataset(
            "reference/dataset",
            root=target,
            push_to_hub=False,
            data_file_size_in_mb=data_file_size_in_mb,  # type: ignore[arg-type]
            video_file_size_in_mb=video_file_size_in_mb,  # type: ignore[arg-type]
        )
    shutil.rmtree(target.with_name(f"{target.name}_old"))
    return target


def record_with_reference(
    target: Path, tasks: Sequence[Sequence[str]], *, use_videos: bool = True, **options: Any
) -> Path:
    """Record a v3.0 dataset of two cameras with LeRobot 0.6.1's own class.

    Args:
        target: Where it shall be.
        tasks: The task of each frame of each episode.
        use_videos: Whether cameras are videos; else their images are in the tables.
        options: For ``LeRobotDataset.create``.
    """
    from lerobot.datasets import LeRobotDataset

    cameras = ("observation.images.top", "observation.images.wrist")
    kind = "video" if use_videos else "image"
    visual = {"dtype": kind, "shape": (48, 64, 3), "names": ["height", "width", "channels"]}
    vector = {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}
    dataset = LeRobotDataset.create(
        "reference/recorded",
        fps=30,
        features={"observation.state": vector, "action": vector} | dict.fromkeys(cameras, visual),
        root=target,
        robot_type="so101",
        use_videos=use_videos,
        **options,
    )
    random = np.random.default_rng(7)
    for episode, of_frames in enumerate(tasks):
        for frame, task in enumerate(of_frames):
            pictures = {
                camera: np.full((48, 64, 3), (20 * episode + 3 * frame + shade) % 256, np.uint8)
                for shade, camera in enumerate(cameras)
            }
            for picture in pictures.values():
                picture[:8, : 2 * frame % 64] = 255 - picture[0, 0]
            state = random.random(2, np.float32)
            dataset.add_frame(
                {"observation.state": state, "action": -state, "task": task, **pictures}
            )
        dataset.save_episode(parallel_encoding=False)
    dataset.finalize()
    return target
