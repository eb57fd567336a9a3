"""Decoded pictures of both sides: the right frame, not only a frame."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert.errors import UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.verify import Sampling, verify_pair

DATA = "data/chunk-000/file-000.parquet"
CAMERA, IMAGE = "observation.images.top", "observation.images.wrist"
TOP = f"videos/{CAMERA}/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DatasetSpec(
        episodes=4,
        frames=[8, 5, 9, 6],
        cameras=(CameraSpec(key=CAMERA, width=64, height=48),),
        image_keys=(IMAGE,),
        image_size=(32, 32),
    )
    return make_dataset(tmp_path_factory.mktemp("source") / "pictures", spec)


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "out"
    leconvert.convert(source, output=out)
    return out


def rewrite(root: Path, column: str, moved: list[int]) -> None:
    """Take one column's values of the first episode from other rows; row groups stay."""
    with pq.ParquetFile(root / DATA) as file:
        groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
    place = groups[0].column_names.index(column)
    values = groups[0].column(column).take(pa.array(moved))
    groups[0] = groups[0].set_column(place, groups[0].schema.field(place), values)
    with pq.ParquetWriter(root / DATA, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)


def test_all_pictures_of_a_good_result_are_the_same(converted: Path, source: Path) -> None:
    report = verify_pair(converted, source, sampling=Sampling(decode=1000))
    assert report.ok
    assert report.pictures == 2 * 28


def test_a_row_whose_time_leads_to_the_neighbour_is_found(
    converted: Path, source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(converted, tmp_path / "out"))
    rewrite(root, "timestamp", [0, 1, 2, 4, 4, 5, 6, 7])  # the structure does not read rows
    assert verify_pair(root, source).ok
    (found,) = verify_pair(root, source, sampling=Sampling(decode=1000)).differences
    assert (found.what, found.path, found.episode, found.stream) == (
        f"pixels of frame 3 of {CAMERA!r}", TOP, 0, f"videos/{CAMERA}",
    )  # fmt: skip
    assert found.expected.startswith("48x64x3, mean ")
    assert found.expected != found.found


def test_an_image_in_the_wrong_row_is_found(converted: Path, source: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(converted, tmp_path / "out"))
    rewrite(root, IMAGE, [0, 1, 2, 3, 4, 6, 5, 7])
    found = verify_pair(root, source, sampling=Sampling(decode=1000)).differences
    assert [each.what for each in found] == [f"pixels of frame {n} of {IMAGE!r}" for n in (5, 6)]
    assert {(each.path, each.episode, each.stream) for each in found} == {(DATA, 0, "data")}


def test_only_episodes_of_the_sample_are_decoded(converted: Path, source: Path) -> None:
    report = verify_pair(converted, source, sampling=Sampling(share=0.25, decode=1000, seed=1))
    assert report.ok
    assert report.episodes == 1
    assert report.pictures == 2 * report.rows
    assert report.video_frames == report.rows in {8, 5, 9, 6}


def test_a_sample_looks_at_no_other_episode(converted: Path, source: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(converted, tmp_path / "out"))
    rewrite(root, "timestamp", [0, 1, 2, 4, 4, 5, 6, 7])
    outcomes = {
        verify_pair(root, source, depth="bytes", sampling=Sampling(share=0.5, seed=seed)).ok
        for seed in range(8)
    }
    assert outcomes == {True, False}


def test_without_lerobot_it_says_what_to_install(
    converted: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(UsageError, match="--deep loads samples through lerobot") as caught:
        verify_pair(converted, source, sampling=Sampling(deep=1))
    assert caught.value.next_step == (
        "Install it: pip install 'leconvert[deep]', or verify without --deep."
    )
