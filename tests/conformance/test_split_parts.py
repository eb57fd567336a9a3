"""The parts of a split dataset, as LeRobot loads them: every frame the source's."""

from __future__ import annotations

from pathlib import Path

import comparison
import pytest
from comparison import V21Source
from lerobot.datasets import LeRobotDataset
from tests.recordings import each

import leconvert
from leconvert.model.selection import EpisodeRanges


@pytest.mark.parametrize("recording", each("cr5_5ep", slow=True), indirect=True)
def test_every_part_of_a_recording_loads_frame_by_frame(recording: Path, tmp_path: Path) -> None:
    root = recording
    whole = V21Source.open(root)
    parts = leconvert.split(root, output_dir=tmp_path, into={"train": 0.6, "val": 0.4})
    seen: list[int] = []
    for part in parts:
        ranges = EpisodeRanges.of(
            (int(ends[0]), int(ends[-1]))
            for ends in (item.split("-") for item in part.episodes.split(","))
        )
        left = tuple(episode for episode in whole.indices if episode not in ranges)
        source = V21Source.open(root, dropped_episodes=left)
        assert comparison.assert_every_frame_is_the_sources(
            part.output, source, "torchcodec", window=64
        )
        dataset = LeRobotDataset(f"ours/{part.name}", root=part.output)
        assert len(dataset) == sum(source.lengths)
        seen += source.indices
    assert sorted(seen) == whole.indices
