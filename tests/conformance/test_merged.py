"""Merged datasets, as LeRobot loads them: every frame, task and statistic that of its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lerobot.datasets import LeRobotDataset
from lerobot.datasets.aggregate import aggregate_datasets

import leconvert
from leconvert import ProofOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

BYTES = ProofOptions(verify="bytes")
RENUMBERED = {"index", "episode_index", "task_index"}
CAMERA = CameraSpec(key="observation.images.top", width=64, height=48)
LIFT, PLACE, PUSH = "Lift it.", "Place it.", "Push it."
SPECS = (
    DatasetSpec(episodes=3, frames=[7, 5, 9], cameras=(CAMERA,), tasks=(LIFT, PLACE), seed=1),
    DatasetSpec(episodes=2, frames=[6, 8], cameras=(CAMERA,), tasks=(PUSH, LIFT), seed=2),
    DatasetSpec(episodes=2, frames=[4, 6], cameras=(CAMERA,), tasks=(PLACE, PUSH, LIFT), seed=3),
)


def member(folder: Path, number: int, version: str) -> Path:
    """Make a dataset of a version."""
    spec, root = SPECS[number], folder / f"source{number}"
    if version == "v3.0":
        make_dataset(folder / f"before{number}", spec)
        leconvert.convert(folder / f"before{number}", output=root)
    else:
        make_dataset(root, replace(spec, codebase_version=version))
    return root


def loaded(root: Path, scratch: Path) -> LeRobotDataset:
    """Load a source, which is converted by itself where LeRobot would not read it."""
    if (root / "meta/episodes").is_dir():
        return LeRobotDataset("source/dataset", root=root)
    scratch.mkdir(exist_ok=True)
    leconvert.convert(root, output=scratch / root.name)
    return LeRobotDataset("source/dataset", root=scratch / root.name)


def assert_frames_are_the_sources(out: Path, sources: list[Path], scratch: Path) -> None:
    merged = LeRobotDataset("ours/dataset", root=out)
    number = episode = 0
    for source in sources:
        dataset = loaded(source, scratch)
        for place in range(len(dataset)):
            expected, found = dataset[place], merged[number]
            assert set(found) == set(expected)
            for key in set(expected) - RENUMBERED:
                same = expected[key] == found[key]
                assert torch.all(same) if isinstance(same, torch.Tensor) else same, key
            assert int(found["index"]) == number
            assert int(found["episode_index"]) == episode + int(expected["episode_index"])
            number += 1
        episode += dataset.num_episodes
    assert (len(merged), merged.num_episodes) == (number, episode)


def test_each_frame_of_a_merge_loads_as_that_of_its_source(tmp_path: Path) -> None:
    versions = ("v3.0", "v2.0", "v2.1")
    sources = [member(tmp_path, number, version) for number, version in enumerate(versions)]
    out = tmp_path / "out"
    leconvert.merge(sources, output=out, proof=BYTES)
    assert_frames_are_the_sources(out, sources, tmp_path / "alone")


def test_the_statistics_are_those_of_lerobots_own_merge(tmp_path: Path) -> None:
    sources = [member(tmp_path, number, "v3.0") for number in range(2)]
    leconvert.merge(sources, output=tmp_path / "ours", proof=BYTES)
    aggregate_datasets(
        [f"local/{source.name}" for source in sources],
        "local/merged",
        roots=sources,
        aggr_root=tmp_path / "theirs",
    )
    ours = LeRobotDataset("ours/dataset", root=tmp_path / "ours").meta
    theirs = LeRobotDataset("theirs/dataset", root=tmp_path / "theirs").meta
    assert ours.total_frames == theirs.total_frames
    assert set(ours.tasks.index) == set(theirs.tasks.index)
    assert ours.stats.keys() == theirs.stats.keys()
    # LeRobot adds up those of columns that it has numbered anew as they were before.
    for feature in ours.stats.keys() - RENUMBERED:
        for name in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(
                ours.stats[feature][name], theirs.stats[feature][name], rtol=1e-9, atol=1e-12
            )
    assert ours.stats["index"]["max"].tolist() == [ours.total_frames - 1]
    assert ours.stats["episode_index"]["max"].tolist() == [ours.total_episodes - 1]
    assert ours.stats["task_index"]["max"].tolist() == [len(ours.tasks) - 1]
