"""Decoded pictures of both sides: the right frame, not only a frame."""

from __future__ import annotations

import shutil
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from tests.dataset_damage import edit_feature, rewrite, set_cells
from tests.pictures import CAMERA, DATA, IMAGE, move_rows

import leconvert
from leconvert.run.proof import Sampling, verify_pair
from leconvert.support.errors import InstallationError
from leconvert.support.extras import command_for_extra
from leconvert.testing import DatasetSpec, edit_info, make_dataset

TOP = f"videos/{CAMERA}/chunk-000/file-000.mp4"


def test_all_pictures_of_a_good_result_match(picture_result: Path, picture_source: Path) -> None:
    report = verify_pair(picture_result, picture_source, sampling=Sampling(decode=1000))
    assert report.ok
    assert report.pictures == 2 * 28


def test_a_row_whose_time_leads_to_the_neighbour_is_found(
    picture_result: Path, picture_source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(picture_result, tmp_path / "out"))
    move_rows(root, "timestamp", [0, 1, 2, 4, 4, 5, 6, 7])  # the structure does not read rows
    assert verify_pair(root, picture_source).ok
    (found,) = verify_pair(root, picture_source, sampling=Sampling(decode=1000)).differences
    assert (found.what, found.path, found.episode, found.stream) == (
        f"pixels of frame 3 of {CAMERA!r}", TOP, 0, f"videos/{CAMERA}",
    )  # fmt: skip
    assert found.expected.startswith("48x64x3, mean ")
    assert found.expected != found.found


def test_a_misplaced_image_is_found(
    picture_result: Path, picture_source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(picture_result, tmp_path / "out"))
    move_rows(root, IMAGE, [0, 1, 2, 3, 4, 6, 5, 7])
    found = verify_pair(root, picture_source, sampling=Sampling(decode=1000)).differences
    assert [each.what for each in found] == [f"pixels of frame {n} of {IMAGE!r}" for n in (5, 6)]
    assert {(each.path, each.episode, each.stream) for each in found} == {(DATA, 0, "data")}


def test_an_odd_description_of_a_camera_is_no_hindrance(
    picture_source: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(picture_source, tmp_path / "source"))
    edit_info(source, lambda info: info["features"][CAMERA].update(info="none"))
    leconvert.convert(source, output=tmp_path / "out")
    assert verify_pair(tmp_path / "out", source, sampling=Sampling(decode=4)).pictures == 4


def test_depth_is_known_by_a_mark_in_either_table(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=2, frames=3, cameras=(), image_keys=(IMAGE,), image_size=(16, 16))
    source = make_dataset(tmp_path / "v21", spec)
    marks = {"info": {"fps": 30}, "video_info": {"video.is_depth_map": True}}
    edit_feature(IMAGE, shape=[16, 16, 1], **marks)(source)
    deep = {"bytes": _grey_png(np.arange(4000, 4256, dtype=np.uint16).reshape(16, 16))}
    for path in (source / "data").rglob("*.parquet"):
        rewrite(str(path), set_cells(IMAGE, r0=deep, r1=deep, r2=deep))(source)
    leconvert.convert(source, output=tmp_path / "v30")
    report = verify_pair(tmp_path / "v30", source, sampling=Sampling(decode=9))
    assert report.ok
    assert report.pictures == 6


def _grey_png(distances: npt.NDArray[np.uint16]) -> bytes:
    context = av.CodecContext.create("png", "w")
    context.height, context.width = distances.shape
    context.pix_fmt, context.time_base = "gray16be", Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(distances, format="gray16le")
    packets = [*context.encode(frame.reformat(format="gray16be")), *context.encode(None)]
    return b"".join(map(bytes, packets))


def test_a_sample_decodes_and_looks_at_no_other_episode(
    picture_result: Path, picture_source: Path, tmp_path: Path
) -> None:
    report = verify_pair(
        picture_result, picture_source, sampling=Sampling(share=0.25, decode=1000, seed=1)
    )
    assert report.ok
    assert report.episodes == 1
    assert report.pictures == 2 * report.rows
    assert report.video_frames == report.rows in {8, 5, 9, 6}
    root = Path(shutil.copytree(picture_result, tmp_path / "out"))
    move_rows(root, "timestamp", [0, 1, 2, 4, 4, 5, 6, 7])
    outcomes = {
        verify_pair(root, picture_source, depth="bytes", sampling=Sampling(share=0.5, seed=seed)).ok
        for seed in range(8)
    }
    assert outcomes == {True, False}


def test_without_lerobot_it_says_what_to_install(
    picture_result: Path, picture_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(InstallationError, match="--deep needs lerobot") as caught:
        verify_pair(picture_result, picture_source, sampling=Sampling(deep=1))
    assert caught.value.next_step == (
        f"Install it with `{command_for_extra('deep')}`, or leave --deep out."
    )
