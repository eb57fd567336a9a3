"""Datasets that were never met, so made: each converts right, or is refused with the way out.

Right is: every packet is the source's; every item opens in LeRobot with both of its decoders; with
torchcodec its frame is the source's pixel by pixel, with PyAV it says itself that it is the frame
of that camera, episode and number.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.comparison import V21Source, assert_every_frame_is_the_sources
from tests.oddities import IMAGE, ODDITIES, embed_images
from tests.program import Leconvert

from leconvert.testing import FrameLabel, read_label

# What the first try says beyond what every made dataset has; nothing where it is not listed.
_WARNINGS = {
    "4 4 4 in some clips": {"codec-mismatch"},
    "variable frame rate": {"frame-times"},
    "late start": {"frame-times"},
    "late start in some clips": {"frame-times"},
    "late start by an empty edit": {"frame-times"},
    "audio in some clips": {"other-tracks"},
    "rotated": {"rotated-frames"},
    "rotated in some clips": {"rotated-frames"},
    "images as plain bytes": set[str](),
}
_DROPPED = {"empty episode": [1], "empty episode without files": [1]}
_REFUSED = {
    "images as paths",
    "images as paths of this machine",
    "images as paths in a text column",
}


# Others have their codec, their pixels, their way to be shown, or to be refused; of late starts and
# sound `test_episode_files` has each frame.
_SHOWN_BY_OTHERS = {
    "HEVC", "HEVC 4:4:4 12 bit", "H.264 4:4:4", "H.264 4:2:2", "H.264 10 bit", "late start",
    "late start in some clips", "rotated", "audio in some clips", "images as paths",
    "images as paths in a text column", "empty episode",
}  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in _SHOWN_BY_OTHERS else ())
        for name in sorted(ODDITIES)
    ]
)
def oddity(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(oddity: str, tmp_path: Path) -> Path:
    root = tmp_path / "source"
    ODDITIES[oddity](root)
    return root


def test_it_converts_right_or_is_refused_with_the_way_out(
    leconvert_here: Leconvert, oddity: str, source: Path, tmp_path: Path
) -> None:
    leconvert, result = leconvert_here, tmp_path / "result"
    convert = ("convert", "--root", source, "--output", result, "--json")
    first = leconvert(*convert)
    said = json.loads(first.stdout)
    errors = [found for found in said["findings"] if found["severity"] == "error"]
    if oddity in _REFUSED:
        assert first.returncode == 3
        assert {found["code"] for found in errors} == {"image-paths"}
        assert "Images as paths" in errors[0]["message"]
        assert said["next_step"].startswith("Repair the source and run the command again;")
        embed_images(source, IMAGE)
        last = leconvert(*convert)
    elif oddity in _DROPPED:
        assert first.returncode == 3
        flags = {error["remedies"][0]["flag"] for error in errors}
        assert flags == {"--on-bad-episode drop"}
        last = leconvert(*convert, *shlex.split(*flags))
    else:
        warned = {found["code"] for found in said["findings"] if found["severity"] == "warning"}
        assert warned == _WARNINGS.get(oddity, set())
        last = first
    assert last.returncode == 0, last.stderr
    verified = leconvert("verify", result, "--source", source, "--bytes")
    assert verified.returncode == 0, verified.stdout
    checked = leconvert("check", result)
    assert checked.returncode == 0, checked.stdout
    original = V21Source.open(source, dropped_episodes=_DROPPED.get(oddity, []))
    if original.camera_keys:
        assert_every_frame_is_the_sources(result, original, "torchcodec")
    _check_items(result, original)


def _check_items(root: Path, source: V21Source) -> None:
    """Load every item; each frame says itself which it is.

    PyAV leaves turned pictures as they are coded; both decoders' are the source's by now.
    """
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset("ours/odd", root=root, video_backend="pyav", return_uint8=True)
    assert len(dataset) == sum(source.lengths)
    wanted = [
        (episode, frame)
        for episode, length in zip(source.indices, source.lengths, strict=True)
        for frame in range(length)
    ]
    for place, (episode, frame) in enumerate(wanted):
        item: dict[str, Any] = dataset[place]
        for number, key in enumerate(dataset.meta.camera_keys):
            picture = item[key].numpy().transpose(1, 2, 0)
            if picture.dtype != np.uint8:  # images of tables are not left as they are
                picture = (picture * 255).round().astype(np.uint8)
            assert read_label(picture) == FrameLabel(number, episode, frame)
