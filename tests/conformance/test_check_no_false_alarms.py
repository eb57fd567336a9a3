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
    **options: Any,
) -> Path:
    """Record episodes with LeRobot; each goes through all tasks."""
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
            for key, feature in features.items():
                if feature["dtype"] in ("image", "video"):
                    frame[key] = random.integers(0, 256, feature["shape"], dtype=np.uint8)
                elif feature["dtype"] == "string":
                    frame[key] = "a note"
                elif feature["dtype"] == "bool":
                    frame[key] = np.array([number == length - 1])
                else:
                    frame[key] = random.normal(size=feature["shape"]).astype(np.float32)
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
    from lerobot.datasets import LeRobotDataset

    random = np.random.default_rng(0)
    still = (random.normal(size=24) * 10.0 ** random.integers(-4, 4, 24)).astype(np.float32)
    joints = {"dtype": "float32", "shape": (24,), "names": None}
    features = {"observation.state": joints, "action": {**joints, "shape": (2,)}}

    def recorded(name: str, lengths: Iterable[int], more: dict[str, Any]) -> Path:
        root = tmp_path / name
        dataset = LeRobotDataset.create(
            "check/recorded", fps=30, features=features | more, root=root, rgb_encoder=h264(),
            use_videos=any(feature["dtype"] == "video" for feature in more.values()),
        )  # fmt: skip
        colour = random.integers(0, 256, 3).astype(np.uint8)
        pictures = {key: np.broadcast_to(colour, (64, 64, 3)).copy() for key in more}
        for length in lengths:
            for _ in range(length):
                frame = {"task": "Wait.", "observation.state": still, "action": still[:2]}
                dataset.add_frame(frame | pictures)
            dataset.save_episode(parallel_encoding=False)
        dataset.finalize()
        return root

    assert said_of(recorded("long", (5, 1000, 90), {})) == set()
    assert said_of(recorded("videos", LENGTHS, cameras("video"))) == set()


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


def remove_wrist(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import remove_feature

    remove_feature(opened(root), "observation.images.wrist", output_dir=out, repo_id="check/out")


def delete_second(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import delete_episodes

    delete_episodes(opened(root), [1], output_dir=out, repo_id="check/out")


def delete_first_day(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import delete_episodes

    delete_episodes(opened(root), [0, 1, 2], output_dir=out, repo_id="check/out")


def rename_tasks(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import modify_tasks

    shutil.copytree(root, out)
    modify_tasks(opened(out), new_task="Other.")


def compute_stats(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import recompute_stats

    shutil.copytree(root, out)
    recompute_stats(opened(out))


def compute_relative_stats(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import recompute_stats

    shutil.copytree(root, out)
    recompute_stats(opened(out), relative_action=True, chunk_size=3)


def merge_with_itself(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import merge_datasets

    merge_datasets([opened(root), opened(root)], "check/out", output_dir=out)


def encode_images(root: Path, out: Path) -> None:
    from lerobot.datasets.dataset_tools import convert_image_to_video_dataset

    convert_image_to_video_dataset(
        opened(root), output_dir=out, repo_id="check/out", rgb_encoder=h264()
    )


Edit = Callable[[Path, Path], None]

# These tools write each data file in one row group.
ONE_GROUP = {"warning row-groups"}
EDITS: dict[str, tuple[str, Edit, set[str]]] = {
    "an episode deleted": ("with_videos", delete_second, ONE_GROUP),
    "the first files deleted": ("resumed", delete_first_day, ONE_GROUP),
    "a camera removed": ("with_videos", remove_wrist, ONE_GROUP),
    "tasks renamed": ("with_videos", rename_tasks, ONE_GROUP),
    "statistics computed again": ("with_videos", compute_stats, set()),
    "statistics of relative actions": (
        "with_videos", compute_relative_stats, {"info stats-aggregate"},
    ),
    # The new meta/episodes has neither tasks nor statistics nor its own place, and stats.json
    # nothing of the cameras.
    "images encoded as videos": (
        "with_images",
        encode_images,
        ONE_GROUP
        | {"warning episodes-column", "warning episode-stats", "warning stats-missing"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_what_lerobots_tools_write_has_no_false_alarm(
    edit: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, run, expected = EDITS[edit]
    out = tmp_path / "out"
    run(request.getfixturevalue(source), out)
    # A keyframe where an episode begins is the encoder's choice after an edit.
    assert said_of(out) - {"warning no-keyframe", "info streaming-video"} == expected


def test_a_location_that_is_warned_of_breaks_lerobots_own_tools(
    resumed: Path, tmp_path: Path
) -> None:
    merge_with_itself(resumed, tmp_path / "merged")
    # meta/episodes/file_index counts the files of the first recording, not those of the result.
    said = said_of(tmp_path / "merged") - {"warning no-keyframe", "info streaming-video"}
    assert said == {"warning episodes-location"}
    with pytest.raises(FileNotFoundError, match="meta/episodes"):
        delete_second(tmp_path / "merged", tmp_path / "out")


def test_a_conversion_by_the_reference_passes(tmp_path: Path) -> None:
    spec = DatasetSpec(
        episodes=2, frames=(12, 7), image_keys=("observation.images.still",),
        tasks_per_episode=2, quantiles=True,
    )  # fmt: skip
    source = make_dataset(tmp_path / "source", spec)
    convert_with_reference(source, tmp_path / "reference")
    assert said_of(tmp_path / "reference") == ONE_GROUP
