"""LeRobot reads a result to which episodes were appended as it reads a fresh conversion."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_resumed_recording import record_one_more
from tests.trees import digest_of

from leconvert import LayoutOptions, RepairOptions, convert
from leconvert.dataset.check import check_dataset
from leconvert.support.errors import TargetError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir.former import former_states

LENGTHS = [4, 2, 3, 2]
QUANTILES = RepairOptions(quantiles=True)
APPEND = LayoutOptions(append=True)


def grown(source: Path, episodes: int) -> Path:
    if source.exists():
        shutil.rmtree(source)
    spec = DatasetSpec(
        episodes=episodes,
        frames=LENGTHS[:episodes],
        cameras=[CameraSpec(key=f"observation.images.{n}", width=32, height=32) for n in "ab"],
        tasks=[f"Task {number}." for number in range(episodes)],
    )
    return make_dataset(source, spec)


def frames_of(root: Path) -> list[dict[str, Any]]:
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset("tester/appended", root=root, video_backend="pyav")
    assert len(dataset) == dataset.meta.total_frames
    return [dataset[index] for index in range(len(dataset))]


def assert_equal(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert len(some) == len(others)
    for frame, other in zip(some, others, strict=True):
        assert frame.keys() == other.keys()
        for key, value in frame.items():
            same = other[key] == value
            assert same if isinstance(value, str) else bool(same.all()), key


def test_every_frame_is_that_of_a_fresh_conversion_and_recording_is_resumed(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "out"
    convert(grown(source, 2), output=result, layout=APPEND, repairs=QUANTILES)
    before = frames_of(result)
    for episodes in (3, 4):
        convert(grown(source, episodes), output=result, layout=APPEND, repairs=QUANTILES)
    fresh = convert(source, output=tmp_path / "fresh", repairs=QUANTILES).output
    after = frames_of(result)
    assert_equal(after, frames_of(fresh))
    assert_equal(after[: len(before)], before)
    assert check_dataset(result).count("error") == 0

    # Recording goes on where episodes were appended, and leaves alone what shares files with it.
    newest = former_states([result])[result][0].path
    former = digest_of(newest)
    record_one_more(result)
    recorded = frames_of(result)
    assert len(recorded) == sum(LENGTHS) + 6
    assert_equal(recorded[: len(after)], after)
    assert check_dataset(result).count("error") == 0
    assert digest_of(newest) == former

    # What was recorded into the result is not the source's: it stays, and nothing is added.
    with pytest.raises(TargetError, match="it has 5 episodes"):
        convert(source, output=result, layout=APPEND, repairs=QUANTILES)
