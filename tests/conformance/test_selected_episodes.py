"""A part of a dataset, as LeRobot loads it: every frame the source's of that episode."""

from __future__ import annotations

from pathlib import Path

import comparison
import numpy as np
import pytest
from comparison import V21Source
from lerobot.datasets import LeRobotDataset
from tests.recordings import each

import leconvert
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import verify_pair


@pytest.mark.parametrize("recording", each("cr5_5ep", slow=True), indirect=True)
@pytest.mark.parametrize("layout", ["reference", "streaming"])
def test_selected_episodes_of_a_recording_load_frame_by_frame(
    recording: Path, tmp_path: Path, layout: str
) -> None:
    root, out = recording, tmp_path / "ours"
    leconvert.convert(
        root,
        output=out,
        selection=EpisodeSelection(episodes="1,3-4"),
        layout=LayoutOptions(layout=layout),
        proof=ProofOptions(verify="bytes"),
    )
    assert verify_pair(out, root, depth="bytes").differences == ()
    source = V21Source.open(root, dropped_episodes=(0, 2))
    assert source.indices == [1, 3, 4]
    assert comparison.assert_every_frame_is_the_sources(out, source, "torchcodec", window=64)
    dataset = LeRobotDataset("ours/dataset", root=out)
    assert dataset.num_episodes == 3
    assert len(dataset) == sum(source.lengths)
    ends = np.cumsum(source.lengths)
    for number, end in enumerate(ends.tolist()):
        for index in (end - source.lengths[number], end - 1):
            item = dataset[index]
            assert (item["index"], item["episode_index"]) == (index, number)
    stats = dataset.meta.stats
    assert stats["index"]["max"] == [len(dataset) - 1]
    assert stats["episode_index"]["max"] == [2]
    assert stats["timestamp"]["count"] == [len(dataset)]
