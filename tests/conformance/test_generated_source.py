"""LeRobot takes a generated dataset for one of its own: it converts it, and every frame loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference import convert_with_reference

from leconvert.testing import CameraSpec, DatasetSpec, FrameLabel, make_dataset, read_label

SPEC = DatasetSpec(
    episodes=5,
    frames=(6, 1, 9, 4, 7),
    # B-frames give a clip of one frame times that the reference's joiner refuses.
    cameras=(
        CameraSpec(key="observation.images.top", options={"bf": "0"}),
        CameraSpec(key="observation.images.wrist", width=64, height=48, codec="libsvtav1"),
    ),
    image_keys=("observation.images.still",),
    has_done=True,
    nested_names=True,
    tasks=("one", "two", "three"),
    tasks_per_episode=2,
    quantiles=True,
    extra_episode_keys={"operator": ["ann", "bob"]},
    chunks_size=2,
)
CAMERAS = ("observation.images.top", "observation.images.wrist", "observation.images.still")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    return convert_with_reference(make_dataset(folder / "source", SPEC), folder / "converted")


@pytest.mark.parametrize("backend", ["pyav", "torchcodec"])
def test_every_frame_that_the_reference_made_loads_and_says_who_it_is(
    converted: Path, backend: str
) -> None:
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset("generated/dataset", root=converted, video_backend=backend)

    assert len(dataset) == sum(SPEC.lengths())
    place = 0
    for episode, length in enumerate(SPEC.lengths()):
        for frame in range(length):
            item = dataset[place]
            place += 1
            assert int(item["episode_index"]) == episode
            assert int(item["frame_index"]) == frame
            assert item["task"] == SPEC.tasks[SPEC.task_indices(episode, length)[frame]]
            for number, key in enumerate(CAMERAS):
                image = item[key].permute(1, 2, 0).numpy() * 255
                assert read_label(image) == FrameLabel(number, episode, frame)


def test_lerobot_reads_the_stats_and_shapes_as_generated(converted: Path) -> None:
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset("generated/dataset", root=converted, video_backend="pyav")

    stats = dataset.meta.stats
    rows = np.stack([dataset.hf_dataset[place]["action"] for place in range(len(dataset))])
    np.testing.assert_allclose(stats["action"]["mean"], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(stats["action"]["std"], rows.std(axis=0), rtol=1e-4)
    assert np.array_equal(stats["action"]["max"].astype(np.float32), rows.max(axis=0))
    assert stats["action"]["count"] == [len(dataset)]
    for key in CAMERAS:
        assert stats[key]["mean"].shape == (3, 1, 1)
        assert 0 <= stats[key]["min"].min() <= stats[key]["max"].max() <= 1
    assert set(stats["action"]) >= {"q01", "q10", "q50", "q90", "q99"}
    assert dataset.meta.episodes[1]["operator"] == "bob"
    assert dataset[0]["action"].shape == (SPEC.action_dim,)
