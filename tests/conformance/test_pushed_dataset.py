"""LeRobot itself finds a pushed dataset by its tag, downloads it, and loads every frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from lerobot.datasets import LeRobotDataset
from tests.hub import StandIn
from tests.hub.fixtures import api_of, hub, lone_client, pauses

from leconvert.api import convert
from leconvert.remote.options import PushOptions
from leconvert.remote.push import push
from leconvert.testing import read_label

__all__ = ["api_of", "hub", "lone_client", "pauses"]


def test_every_frame_of_a_pushed_dataset_loads_from_the_hub(
    hub: StandIn, api_of: Callable[..., HfApi], small_source: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hub.add_repo("tester/arm", small_source, tags=("v2.1",))
    convert(small_source, output=tmp_path / "out", for_push=True)
    push(tmp_path / "out", PushOptions(repo_id="tester/arm"), api=api_of())

    dataset = LeRobotDataset("tester/arm", root=tmp_path / "downloaded")
    assert dataset.revision == "v3.0"
    assert len(dataset) == 44
    key = "observation.images.top"
    for index in range(len(dataset)):
        item = dataset[index]
        label = read_label((item[key].permute(1, 2, 0).numpy() * 255).round().astype("uint8"))
        assert (label.episode, label.frame) == (
            int(item["episode_index"]),
            int(item["frame_index"]),
        )
