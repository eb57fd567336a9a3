"""LeRobot itself finds a pushed dataset by its tag, downloads it, and loads every frame."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError
from lerobot.datasets import LeRobotDataset
from tests.hub import StandIn
from tests.hub.fixtures import api_of, hub, lone_client, pauses

from leconvert.api import convert
from leconvert.remote.push import push
from leconvert.transfer.names import download_command
from leconvert.transfer.options import PushOptions

__all__ = ["api_of", "hub", "lone_client", "pauses"]


def test_a_folder_of_a_repository_loads_once_it_is_downloaded(
    hub: StandIn, api_of: Callable[..., HfApi], small_source: Path, tmp_path: Path
) -> None:
    hub.add_repo("tester/many")
    convert(small_source, output=tmp_path / "out", for_push=True)
    push(tmp_path / "out", PushOptions(repo_id="tester/many/path/to/arm"), api=api_of())
    with pytest.raises(HFValidationError):
        LeRobotDataset("tester/many/path/to/arm", root=tmp_path / "not")
    words = shlex.split(download_command("tester/many/path/to/arm", None, str(tmp_path / "DIR")))
    assert words[:5] == ["hf", "download", "--repo-type", "dataset", "tester/many"]
    (pattern,) = [words[at + 1] for at, word in enumerate(words) if word == "--include"]
    snapshot_download(
        words[4], repo_type="dataset", allow_patterns=pattern, local_dir=tmp_path / "DIR"
    )
    dataset = LeRobotDataset("tester/many", root=tmp_path / "DIR/path/to/arm")
    assert len(dataset) == 44
    assert int(dataset[43]["index"]) == 43
