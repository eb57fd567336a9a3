"""Merged datasets, as LeRobot loads them: every frame, task and statistic that of its source."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.datasets import LeRobotDataset
from lerobot.datasets.aggregate import aggregate_datasets

import leconvert
from leconvert import LayoutOptions, ProofOptions, RepairOptions
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
        make_dataset(root, DatasetSpec(**{**vars_of(spec), "codebase_version": version}))
    return root


def vars_of(spec: DatasetSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


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


VERSIONS = [("v2.1", "v2.1"), ("v2.1", "v3.0"), ("v2.0", "v3.0"), ("v3.0", "v2.0", "v2.1")]
IN_CI = {("reference", VERSIONS[-1]), ("streaming", VERSIONS[1])}


@pytest.mark.parametrize(
    ("versions", "layout"),
    [
        pytest.param(
            versions,
            layout,
            marks=() if (layout, versions) in IN_CI else pytest.mark.slow,
        )
        for layout in ("reference", "streaming")
        for versions in VERSIONS
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_each_frame_of_a_merge_loads_as_that_of_its_source(
    tmp_path: Path, versions: tuple[str, ...], layout: str
) -> None:
    sources = [member(tmp_path, number, version) for number, version in enumerate(versions)]
    out = tmp_path / "out"
    leconvert.merge(sources, output=out, layout=LayoutOptions(layout=layout), proof=BYTES)
    assert_frames_are_the_sources(out, sources, tmp_path / "alone")
    assert leconvert.verify_pair(out, sources, depth="bytes").ok


def test_each_frame_of_a_merge_under_new_names_is_that_of_its_source(tmp_path: Path) -> None:
    head = CameraSpec(key="observation.images.head", width=64, height=48)
    other = replace(SPECS[1], cameras=(head,))
    sources = [member(tmp_path, 0, "v3.0"), make_dataset(tmp_path / "other", other)]
    old, new = "observation.images.head", "observation.images.top"
    repairs = RepairOptions(rename_features=(f"{old}={new}",))
    out = leconvert.merge(sources, output=tmp_path / "out", repairs=repairs, proof=BYTES).output
    merged = LeRobotDataset("ours/dataset", root=out)
    parts = [loaded(source, tmp_path / "alone") for source in sources]
    expected = [part[place] for part in parts for place in range(len(part))]
    assert len(merged) == len(expected)
    for number, source_frame in enumerate(expected):
        frame = {new if key == old else key: value for key, value in source_frame.items()}
        found = merged[number]
        assert set(found) == set(frame)
        for key in set(frame) - RENUMBERED:
            same = frame[key] == found[key]
            assert torch.all(same) if isinstance(same, torch.Tensor) else same, key


def test_the_statistics_are_those_of_lerobots_own_merge(tmp_path: Path) -> None:
    sources = [member(tmp_path, number, "v3.0") for number in range(3)]
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


def test_a_dataset_whose_clips_are_coded_in_two_ways_is_merged(tmp_path: Path) -> None:
    """One clip of a v2.1 dataset is AV1; merged, that is a v3.0 member with two codecs."""
    mixed, other = member(tmp_path, 0, "v2.1"), member(tmp_path, 1, "v3.0")
    av1 = replace(SPECS[0], cameras=(replace(CAMERA, codec="libsvtav1"),))
    clip = "videos/chunk-000/observation.images.top/episode_000001.mp4"
    shutil.copy(make_dataset(tmp_path / "av1", av1) / clip, mixed / clip)
    out, again = tmp_path / "out", tmp_path / "again"
    leconvert.merge([other, mixed], output=out, proof=BYTES)
    assert_frames_are_the_sources(out, [other, mixed], tmp_path / "scratch")
    assert len(list(out.glob("videos/*/*/*.mp4"))) == 3
    third = member(tmp_path, 2, "v2.1")
    leconvert.merge([out, third], output=again, proof=BYTES)
    assert_frames_are_the_sources(again, [out, third], tmp_path / "scratch")
