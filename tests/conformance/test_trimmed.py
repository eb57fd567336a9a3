"""Trimmed episodes, as LeRobot loads them: every frame the source's of that episode and index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from comparison import V21Source
from lerobot.datasets import LeRobotDataset

import leconvert
from leconvert import media
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

Frames = dict[int, tuple[int, int]]
BOTH = ("pyav", "torchcodec")
GENERATED = {
    "h264": ("libx264", {"bf": "3", "g": "10"}, BOTH),
    # LeRobot's lookup of single frames by PyAV misses the frames that an open group of pictures
    # shows before its keyframe, trimmed or not.
    "h265 open": (
        "libx265",
        {"x265-params": "bframes=3:keyint=10:log-level=none"},
        ("torchcodec",),
    ),
    "av1": ("libsvtav1", {"preset": "12", "svtav1-params": "keyint=10"}, ("pyav",)),
}  # fmt: skip


def assert_frames_are_the_sources(
    out: Path, source: V21Source, trimmed: Frames, backend: str
) -> None:
    """Load every frame of the trimmed episodes, and those around the edges of the others."""
    dataset = LeRobotDataset("ours/trimmed", root=out, video_backend=backend, return_uint8=True)
    begin = 0
    for episode, length in zip(source.indices, source.lengths, strict=True):
        first, stop = trimmed.get(episode, (0, length))
        own = stop - first
        frames = range(own) if episode in trimmed else (0, own - 1)
        expected = {
            key: dict(
                media.decode_shown(source.clip_path(key, episode), [first + f for f in frames])
            )
            for key in source.camera_keys
        }
        for frame in frames:
            item = dataset[begin + frame]
            assert (item["episode_index"], item["frame_index"]) == (episode, frame)
            for key in source.camera_keys:
                picture = np.moveaxis(item[key].numpy(), 0, -1)
                assert np.array_equal(picture, expected[key][first + frame]), (key, episode, frame)
        begin += own
    assert len(dataset) == begin


@pytest.mark.parametrize("codec", GENERATED)
def test_clips_with_b_frames_are_trimmed_to_the_frame(tmp_path: Path, codec: str) -> None:
    encoder, options, backends = GENERATED[codec]
    camera = CameraSpec(
        width=64, height=64, codec=encoder, gop_size=10, options=options, noise_amplitude=20
    )
    spec = DatasetSpec(
        episodes=3,
        frames=[30, 27, 12],
        cameras=(camera,),
        image_keys=("observation.images.still",),
        image_size=(16, 16),
    )
    root = make_dataset(tmp_path / "source", spec)
    trimmed = {0: (13, 22), 1: (10, 21), 2: (0, 7)}
    out = tmp_path / "out"
    leconvert.trim(root, frames=dict(trimmed), output=out, proof=ProofOptions(verify="bytes"))
    assert verify_pair(out, root, depth="bytes").ok
    for backend in backends:
        assert_frames_are_the_sources(out, V21Source.open(root), trimmed, backend)
    dataset = LeRobotDataset("ours/trimmed", root=out)
    still = dataset[0]["observation.images.still"].numpy()
    whole = tmp_path / "whole"
    leconvert.convert(root, output=whole)
    before = LeRobotDataset("ours/whole", root=whole)
    assert np.array_equal(still, before[13]["observation.images.still"].numpy())


def test_frames_before_a_trimmed_episode_are_not_reached(tmp_path: Path) -> None:
    key = "observation.images.top"
    camera = CameraSpec(key=key, width=64, height=64, gop_size=20, noise_amplitude=20)
    root = make_dataset(tmp_path / "source", DatasetSpec(episodes=2, frames=40, cameras=(camera,)))
    out = tmp_path / "out"
    leconvert.trim(root, frames={1: (13, 33)}, output=out)
    dataset = LeRobotDataset(
        "ours/trimmed", root=out, delta_timestamps={key: [-2 / 30, -1 / 30, 0.0, 1 / 30]}
    )
    item = dataset[40]
    assert item["episode_index"] == 1
    assert item[f"{key}_is_pad"].tolist() == [True, True, False, False]
    pictures = item[key].numpy()
    assert np.array_equal(pictures[0], pictures[2])
    assert np.array_equal(pictures[1], pictures[2])
    last = dataset[59]
    assert last[f"{key}_is_pad"].tolist() == [False, False, False, True]
    assert np.array_equal(last[key].numpy()[3], last[key].numpy()[2])
