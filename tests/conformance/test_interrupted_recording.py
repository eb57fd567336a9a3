"""A recording that LeRobot never ended: after a repair, LeRobot loads every saved episode."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import record_with_reference

from leconvert.dataset.check import check_dataset
from leconvert.run.repairing import repair_dataset
from leconvert.run.upkeep import undo_conversion

# LeRobot writes the lines of ten episodes together.
TASKS = [["fold", "fold", "fold"], *([["lift", "lift"]] * 10)]


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, *, at: str, use_videos: bool) -> Path:
    """Record a dataset; return a copy of it, made at a call of LeRobot in the last episode."""
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.dataset_writer import DatasetWriter

    owner: Any = LeRobotDataset if at == "finalize" else DatasetWriter
    real = getattr(owner, at)

    def seen(self: Any, *args: Any, **options: Any) -> Any:
        if at == "finalize" or args[1] == len(TASKS) - 1:
            shutil.copytree(folder / "whole", folder / "cut", dirs_exist_ok=True)
        return real(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, at, seen)
        record_with_reference(folder / "whole", TASKS, use_videos=use_videos)
    return folder / "cut"


def assert_same_items(found: Any, wanted: Any) -> None:
    """Compare all items of a dataset of LeRobot's with the first ones of another."""
    for index in range(len(found)):
        item, other = found[index], wanted[index]
        assert item.keys() == other.keys()
        assert item.pop("task") == other.pop("task")
        assert all(torch.equal(item[key], other[key]) for key in item)


@pytest.mark.parametrize(
    ("at", "use_videos", "kept"),
    [
        ("finalize", True, len(TASKS)),
        ("finalize", False, len(TASKS)),
        ("_save_episode_video", True, len(TASKS) - 1),  # rows are saved before videos
    ],
    ids=["videos", "images", "before a video"],
)
def test_every_saved_episode_of_an_interrupted_recording_loads_after_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, use_videos: bool, kept: int
) -> None:
    from lerobot.datasets import LeRobotDataset

    root = record(tmp_path, monkeypatch, at=at, use_videos=use_videos)
    before = {path: path.read_bytes() for path in root.rglob("*.parquet")}
    errors = [found for found in check_dataset(root).findings if found.severity == "error"]
    assert {found.code for found in errors} == {"derivable"}
    assert any("no footer" in found.message for found in errors)
    repair_dataset(root, output=tmp_path / "mended")
    assert {path: path.read_bytes() for path in root.rglob("*.parquet")} == before
    assert [f for f in check_dataset(tmp_path / "mended").findings if f.severity == "error"] == []
    found, wanted = (
        LeRobotDataset("test/set", root=tmp_path / name, video_backend="pyav")
        for name in ("mended", "whole")
    )
    assert found.num_episodes == kept
    assert len(found) == sum(map(len, TASKS[:kept]))
    assert_same_items(found, wanted)
    repair_dataset(root)
    undo_conversion(root)
    assert {path: path.read_bytes() for path in root.rglob("*.parquet")} == before


@pytest.mark.parametrize("resumed", [1, 10], ids=["no line of them", "ten lines without a footer"])
def test_episodes_of_a_resumed_session_load_after_a_repair(tmp_path: Path, resumed: int) -> None:
    from lerobot.datasets import LeRobotDataset

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    record_with_reference(whole, TASKS[:2], use_videos=False)
    dataset = LeRobotDataset.resume("test/resumed", root=whole)
    for episode in range(resumed):
        for frame in range(2):
            item: dict[str, Any] = {"task": "resumed"}
            for name, feature in dataset.meta.features.items():
                if name in ("observation.state", "action"):
                    item[name] = np.full(feature["shape"], episode + frame, np.float32)
                elif feature["dtype"] == "image":
                    item[name] = np.full(feature["shape"], 9 * episode + frame, np.uint8)
            dataset.add_frame(item)
        dataset.save_episode()
    shutil.copytree(whole, cut)
    dataset.finalize()
    errors = [found for found in check_dataset(cut).findings if found.severity == "error"]
    assert {found.code for found in errors} == {"derivable"}
    repair_dataset(cut)
    assert [f for f in check_dataset(cut).findings if f.severity == "error"] == []
    found, wanted = (LeRobotDataset("test/resumed", root=root) for root in (cut, whole))
    assert len(found) == len(wanted) == sum(map(len, TASKS[:2])) + 2 * resumed
    assert_same_items(found, wanted)
    undo_conversion(cut)
