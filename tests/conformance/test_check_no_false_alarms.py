"""What LeRobot 0.6.1 itself records, edits and converts passes the check.

No error, and of warnings those alone that are listed here, each with what LeRobot does to deserve
it. What the check calls unloadable, LeRobot does not load.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import convert_with_reference

from leconvert.dataset.check import check_dataset, check_feature_stats
from leconvert.dataset.formats.v2 import read_info
from leconvert.dataset.formats.v3 import declaration
from leconvert.testing import DatasetSpec, make_dataset

LENGTHS = (12, 7, 9)
TASKS = ("Pick é.", "Place.")
NUMBERS: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
    "action": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
}
MATRIX = {"observation.matrix": {"dtype": "float32", "shape": (2, 3), "names": None}}


def cameras(dtype: str) -> dict[str, Any]:
    names = ["height", "width", "channels"]
    return {
        f"observation.images.{place}": {"dtype": dtype, "shape": (64, 64, 3), "names": names}
        for place in ("top", "wrist")
    }


def h264() -> Any:
    from lerobot.configs.video import RGBEncoderConfig

    return RGBEncoderConfig(vcodec="h264")


def record(
    root: Path,
    features: dict[str, Any],
    lengths: Iterable[int] = LENGTHS,
    tasks: tuple[str, ...] = TASKS,
    *,
    resume: bool = False,
    is_still: bool = False,
    **options: Any,
) -> Path:
    """Record episodes with LeRobot; each goes through all tasks. Still ones have equal frames."""
    from lerobot.datasets import LeRobotDataset

    if resume:
        dataset = LeRobotDataset.resume("check/recorded", root=root, **options)
    else:
        dataset = LeRobotDataset.create(
            "check/recorded", fps=30, features=features, root=root, **options
        )
    random = np.random.default_rng(0)
    for length in lengths:
        for number in range(length):
            frame: dict[str, Any] = {"task": tasks[number * len(tasks) // length]}
            random = np.random.default_rng(0) if is_still else random
            for key, feature in features.items():
                if feature["dtype"] in ("image", "video"):
                    shape = (1, 1, 1) if is_still else feature["shape"]
                    colours = random.integers(0, 256, shape, dtype=np.uint8)
                    frame[key] = np.broadcast_to(colours, feature["shape"]).copy()
                elif feature["dtype"] == "string":
                    frame[key] = "a note"
                elif feature["dtype"] == "bool":
                    frame[key] = np.array([number == length - 1])
                else:
                    scale = 10.0 ** random.integers(-4, 4, feature["shape"]) if is_still else 1
                    frame[key] = (random.normal(size=feature["shape"]) * scale).astype(np.float32)
            dataset.add_frame(frame)
        dataset.save_episode(parallel_encoding=False)
    dataset.finalize()
    return root


@pytest.fixture(scope="module")
def with_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "videos"
    return record(root, NUMBERS | cameras("video"), rgb_encoder=h264())


@pytest.fixture(scope="module")
def with_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "images"
    return record(root, NUMBERS | cameras("image"), use_videos=False)


@pytest.fixture(scope="module")
def resumed(with_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording with videos, and two more episodes of another day."""
    root = tmp_path_factory.mktemp("recorded") / "resumed"
    shutil.copytree(with_videos, root)
    features = NUMBERS | cameras("video")
    return record(root, features, (5, 6), ("New.", "Place."), resume=True, rgb_encoder=h264())


def opened(root: Path) -> Any:
    from lerobot.datasets import LeRobotDataset

    return LeRobotDataset("check/recorded", root=root, video_backend="pyav")


def said_of(root: Path) -> set[str]:
    """Return severity and code of the findings; errors fail the test with their text."""
    report = check_dataset(root)
    assert report.count("error") == 0, report.findings
    return {f"{finding.severity} {finding.code}" for finding in report.findings}


def test_recordings_with_videos_or_images_have_no_findings(
    with_videos: Path, with_images: Path, tmp_path: Path
) -> None:
    assert said_of(with_videos) == set()
    assert said_of(with_images) == set()
    assert said_of(record(tmp_path / "numbers", NUMBERS | MATRIX, use_videos=False)) == set()


def test_videos_encoded_by_default_and_while_recording_have_no_findings(tmp_path: Path) -> None:
    features = NUMBERS | cameras("video")
    assert said_of(record(tmp_path / "default", features)) == set()
    streamed = record(tmp_path / "streamed", features, rgb_encoder=h264(), streaming_encoding=True)
    assert said_of(streamed) == set()


def test_joints_that_never_move_and_pictures_of_one_colour_have_no_findings(tmp_path: Path) -> None:
    """LeRobot's mean of equal values is off, the more the longer an episode is."""
    joints = {"observation.state": {"dtype": "float32", "shape": (24,), "names": None}}
    long = record(tmp_path / "long", joints, (5, 1000, 90), is_still=True, use_videos=False)
    assert said_of(long) == set()
    seen = record(tmp_path / "seen", joints | cameras("video"), is_still=True, rgb_encoder=h264())
    assert said_of(seen) == set()


def test_a_mean_that_is_really_below_the_least_value_is_found(with_videos: Path) -> None:
    stats = json.loads((with_videos / "meta/stats.json").read_bytes())
    feature = declaration(read_info(with_videos))[0].features["observation.state"]
    least = stats["observation.state"]["min"]
    for mean, expected in ((least, 0), ([value - 1e-3 * abs(value) - 0.02 for value in least], 1)):
        changed = stats["observation.state"] | {"mean": mean}
        assert len(list(check_feature_stats(feature, changed, None, max(LENGTHS)))) == expected


def test_a_resumed_recording_has_one_remark(resumed: Path) -> None:
    # LeRobot begins a second video file, which its own streaming reader cannot read.
    assert said_of(resumed) == {"info streaming-video"}


def copied(root: Path, out: Path) -> Any:
    shutil.copytree(root, out)
    return opened(out)


# LeRobot's tool as it is called, with the dataset's folder and that of the result.
Edit = Callable[[Any, Path, Path, dict[str, Any]], object]
WRIST = "observation.images.wrist"
# These tools write each data file in one row group.
ONE_GROUP = {"warning row-groups"}
EDITS: dict[str, tuple[str, Edit, set[str]]] = {
    "an episode deleted": (
        "with_videos",
        lambda tools, root, _, to: tools.delete_episodes(opened(root), [1], **to),
        ONE_GROUP,
    ),
    "the first files deleted": (
        "resumed",
        lambda tools, root, _, to: tools.delete_episodes(opened(root), [0, 1, 2], **to),
        ONE_GROUP,
    ),
    "a camera removed": (
        "with_videos",
        lambda tools, root, _, to: tools.remove_feature(opened(root), WRIST, **to),
        ONE_GROUP,
    ),
    "tasks renamed": (
        "with_videos",
        lambda tools, root, out, _: tools.modify_tasks(copied(root, out), new_task="Other."),
        ONE_GROUP,
    ),
    "statistics computed again": (
        "with_videos",
        lambda tools, root, out, _: tools.recompute_stats(copied(root, out)),
        set(),
    ),
    "statistics of relative actions": (
        "with_videos",
        lambda tools, root, out, _: tools.recompute_stats(
            copied(root, out), relative_action=True, chunk_size=3
        ),
        {"info stats-aggregate"},
    ),
    # The new meta/episodes has neither tasks nor statistics nor its own place, and stats.json
    # nothing of the cameras.
    "images encoded as videos": (
        "with_images",
        lambda tools, root, _, to: tools.convert_image_to_video_dataset(
            opened(root), rgb_encoder=h264(), **to
        ),
        ONE_GROUP | {"warning episodes-column", "warning episode-stats", "warning stats-missing"},
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_lerobots_tools_write_has_no_false_alarm(
    edit: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from lerobot.datasets import dataset_tools

    source, run, expected = EDITS[edit]
    out = tmp_path / "out"
    to = {"output_dir": out, "repo_id": "check/out"}
    run(dataset_tools, request.getfixturevalue(source), out, to)
    # A keyframe where an episode begins is the encoder's choice after an edit.
    assert said_of(out) - {"warning no-keyframe", "info streaming-video"} == expected


def test_a_location_that_is_warned_of_breaks_lerobots_own_tools(
    resumed: Path, tmp_path: Path
) -> None:
    from lerobot.datasets import dataset_tools as tools

    merged = tmp_path / "merged"
    tools.merge_datasets([opened(resumed), opened(resumed)], "check/out", output_dir=merged)
    # meta/episodes/file_index counts the files of the first recording, not those of the result.
    said = said_of(merged) - {"warning no-keyframe", "info streaming-video"}
    assert said == {"warning episodes-location"}
    with pytest.raises(FileNotFoundError, match="meta/episodes"):
        tools.delete_episodes(opened(merged), [1], output_dir=tmp_path / "out", repo_id="o/o")


def test_a_conversion_by_the_reference_passes(tmp_path: Path) -> None:
    spec = DatasetSpec(
        episodes=2, frames=(12, 7), image_keys=("observation.images.still",),
        tasks_per_episode=2, quantiles=True,
    )  # fmt: skip
    source = make_dataset(tmp_path / "source", spec)
    convert_with_reference(source, tmp_path / "reference")
    assert said_of(tmp_path / "reference") == ONE_GROUP
