"""LeRobot resumes recording on a result with quantiles, and on none without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets.exceptions import DatasetGenerationError
from datasets.table import CastError

from leconvert import RepairOptions, convert, merge, split
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.model.selection import parse_parts

CREATED_BY_LEROBOT = {"timestamp", "frame_index", "episode_index", "index", "task_index"}


def record_one_more(root: Path) -> None:
    """Add an episode of six frames as LeRobot's recorder does."""
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset.resume(
        "tester/resumed", root=root, rgb_encoder=RGBEncoderConfig(vcodec="h264")
    )
    random = np.random.default_rng(0)
    for _ in range(6):
        frame: dict[str, Any] = {"task": "Another task."}
        for name, feature in dataset.meta.features.items():
            if name in CREATED_BY_LEROBOT:
                continue
            if feature["dtype"] == "video":
                frame[name] = random.integers(0, 256, feature["shape"], dtype=np.uint8)
            else:
                frame[name] = random.normal(size=feature["shape"]).astype(feature["dtype"])
        dataset.add_frame(frame)
    dataset.save_episode(parallel_encoding=False)
    dataset.finalize()


def merged_of_parts_with_quantiles(source: Path, folder: Path) -> Path:
    """Nothing is computed but the statistics of columns that are numbered anew."""
    whole = convert(source, output=folder / "out", repairs=RepairOptions(quantiles=True)).output
    into = parse_parts(["first=0-1,second=2-4"])
    parts = [part.output for part in split(whole, output_dir=folder / "parts", into=into)]
    return merge(parts, output=folder / "merged").output


def repaired_in_place(source: Path, folder: Path) -> Path:
    root = convert(source, output=folder / "out").output
    assert main(["repair", str(root), "--quantiles"]) == 0
    return root


@pytest.mark.parametrize("made", [merged_of_parts_with_quantiles, repaired_in_place])
def test_recording_is_resumed_on_a_result_with_quantiles(
    small_source: Path, tmp_path: Path, made: Callable[[Path, Path], Path]
) -> None:
    from lerobot.datasets import LeRobotDataset

    root = made(small_source, tmp_path)
    before = LeRobotDataset("tester/resumed", root=root, video_backend="pyav")
    old = [before[index] for index in (0, len(before) - 1)]
    record_one_more(root)

    after = LeRobotDataset("tester/resumed", root=root, video_backend="pyav")
    assert (len(after), after.num_episodes) == (len(before) + 6, before.num_episodes + 1)
    assert after[len(after) - 1]["task"] == "Another task."
    for index, item in zip((0, len(before) - 1), old, strict=True):
        again = after[index]
        assert again.keys() == item.keys()
        for key, value in item.items():
            same = again[key] == value
            assert same if isinstance(value, str) else bool(same.all()), key
    assert check_dataset(root).count("error") == 0


def test_without_quantiles_lerobot_cannot_resume_recording(
    small_source: Path, tmp_path: Path
) -> None:
    """As on every v3.0 dataset without them, also on those of LeRobot's own converter."""
    from lerobot.datasets import LeRobotDataset

    root = convert(small_source, output=tmp_path / "out").output
    record_one_more(root)
    with pytest.raises(DatasetGenerationError) as refused:
        LeRobotDataset("tester/resumed", root=root)
    cause = refused.value.__cause__
    assert isinstance(cause, CastError)
    fresh = set(cause.table_column_names) - set(cause.requested_column_names)
    assert {name.rpartition("/")[2] for name in fresh} == {"q01", "q10", "q50", "q90", "q99"}

    found = {each.code: each for each in check_dataset(root).findings if each.severity == "error"}
    assert found.keys() == {"schema-mismatch"}
    assert f"`leconvert convert {root} NEW`" in str(found["schema-mismatch"].remedy)
    assert main(["convert", str(root), str(tmp_path / "new")]) == 0
    mended = LeRobotDataset("tester/resumed", root=tmp_path / "new", video_backend="pyav")
    assert mended[len(mended) - 1]["task"] == "Another task."
