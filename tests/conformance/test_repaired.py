"""What LeRobot's own converter made drift loads in LeRobot, frame by frame, after a repair."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from comparison import DECODERS
from reference import convert_with_reference

from leconvert.dataset.check import check_dataset
from leconvert.run.repairing import repair_dataset
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

KEY = "observation.images.top"
EPISODES, FRAMES = 300, 31


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(path) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_every_frame_of_a_drifted_conversion_loads_after_a_repair(tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.video_utils import FrameTimestampError

    spec = DatasetSpec(
        episodes=EPISODES,
        frames=FRAMES,
        cameras=(CameraSpec(KEY, width=32, height=32),),
        distinct_clips=2,
    )
    source = make_dataset(tmp_path / "source", spec)
    root = convert_with_reference(source, tmp_path / "reference")
    (error,) = [found for found in check_dataset(root).findings if found.severity == "error"]
    assert error.code == "frame-times"
    counted = int(error.message.split("at least ")[1].split(" of ")[0].replace(",", ""))
    sample = range(0, EPISODES * FRAMES, 147)

    def refused(dataset: LeRobotDataset) -> int:
        count = 0
        for index in sample:
            try:
                dataset[index]
            except FrameTimestampError:
                count += 1
        return count

    share = {
        backend: refused(LeRobotDataset("test/set", root=root, video_backend=backend)) / len(sample)
        for backend in DECODERS
    }
    assert share["torchcodec"] > 0
    # The check counts those that LeRobot refuses; a sample is off by four deviations at most.
    assert 0 < share["pyav"] < 1
    assert abs(share["pyav"] - counted / (EPISODES * FRAMES)) < 4 * (0.25 / len(sample)) ** 0.5
    # Elsewhere, since LeRobot keeps decoders of files that it opened, by their paths.
    repaired = tmp_path / "repaired"
    report = repair_dataset(root, output=repaired)
    assert [video.how for video in report.plan.videos] == ["join"]
    assert check_dataset(repaired).count("error") == 0

    # The two clips that all episodes share, decoded from the files that they were recorded to.
    clips = [
        decoded(source / f"videos/chunk-000/{KEY}/episode_{episode:06d}.mp4") for episode in (0, 1)
    ]
    for backend in DECODERS:
        dataset = LeRobotDataset("test/set", root=repaired, video_backend=backend)
        for index in sample:
            item = dataset[index]
            episode, frame = divmod(index, FRAMES)
            assert (int(item["episode_index"]), int(item["frame_index"])) == (episode, frame)
            pixels = (item[KEY].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
            assert np.array_equal(pixels, clips[episode % 2][frame]), (backend, index)
