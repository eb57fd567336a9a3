"""Inputs that LeRobot's converter refuses or spoils, and that ours converts: judged by the source.

Each test first shows that the reference still fails, so that it is noticed when it no longer does.
"""

from __future__ import annotations

from pathlib import Path

import comparison
import pytest
from comparison import V21Source
from reference import convert_with_reference

import leconvert
from leconvert.testing import CameraSpec, DatasetSpec, FrameLabel, draw_frame, make_dataset
from leconvert.testing.encode import encode_clip


def _assert_sound(ours: Path, source: V21Source) -> None:
    comparison.assert_rows_are_the_sources(ours, source)
    comparison.assert_exact_times(comparison.episodes_table(ours), source)
    for backend in ("pyav", "torchcodec"):
        compared = comparison.assert_every_frame_is_the_sources(ours, source, backend)
        assert compared == sum(source.lengths) * len(source.camera_keys)


def test_matrices_in_the_rows_keep_their_type_and_load(tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDataset

    spec = DatasetSpec(episodes=3, frames=(4, 1, 6), matrix_shape=(2, 3))
    root = make_dataset(tmp_path / "source", spec)
    with pytest.raises(AttributeError, match="PandasArrayExtensionDtype"):
        convert_with_reference(root, tmp_path / "reference")

    leconvert.convert(root, output=tmp_path / "ours")

    _assert_sound(tmp_path / "ours", V21Source.open(root))
    dataset = LeRobotDataset("ours/dataset", root=tmp_path / "ours", video_backend="pyav")
    assert dataset[7]["observation.matrix"].shape == (2, 3)
    assert dataset.meta.stats["observation.matrix"]["mean"].shape == (2, 3)


def test_clips_of_one_frame_among_clips_that_reserve_b_frames(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=4, frames=(5, 1, 1, 7))
    root = make_dataset(tmp_path / "source", spec)
    with pytest.raises(ValueError, match="Invalid argument"):
        convert_with_reference(root, tmp_path / "reference")

    leconvert.convert(root, output=tmp_path / "ours")

    _assert_sound(tmp_path / "ours", V21Source.open(root))


def test_clips_with_real_b_frames(tmp_path: Path) -> None:
    camera = CameraSpec(gop_size=12, options={"bf": "3", "b-adapt": "0", "b-pyramid": "normal"})
    spec = DatasetSpec(episodes=4, frames=(13, 30, 2, 25), cameras=(camera,))
    root = make_dataset(tmp_path / "source", spec)

    leconvert.convert(root, output=tmp_path / "ours")

    source = V21Source.open(root)
    clip = source.clip_path(camera.key, 1)
    with comparison.av.open(str(clip)) as container:
        order = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert order != sorted(order), "the clip has no B-frames"
    _assert_sound(tmp_path / "ours", source)


def test_an_info_without_the_totals_of_old(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "source", DatasetSpec(episodes=2, frames=3))
    text = (root / "meta/info.json").read_text("utf-8")
    assert '"total_chunks": 1,\n' in text
    (root / "meta/info.json").write_text(text.replace('"total_chunks": 1,\n', ""), "utf-8")
    with pytest.raises(KeyError, match="total_chunks"):
        convert_with_reference(root, tmp_path / "reference")

    leconvert.convert(root, output=tmp_path / "ours")

    _assert_sound(tmp_path / "ours", V21Source.open(root))


def test_a_change_of_the_decoder_configuration_starts_a_new_file(tmp_path: Path) -> None:
    camera = CameraSpec(options={"bf": "0"})
    root = make_dataset(tmp_path / "source", DatasetSpec(episodes=5, frames=6, cameras=(camera,)))
    source = V21Source.open(root)
    frames = [draw_frame(FrameLabel(0, 2, number), 96, 96) for number in range(6)]
    encode_clip(
        source.clip_path(camera.key, 2),
        frames,
        fps=source.fps,
        options={"profile": "baseline", "preset": "ultrafast"},
    )

    leconvert.convert(root, output=tmp_path / "ours")

    numbers = comparison.episodes_table(tmp_path / "ours")[f"videos/{camera.key}/file_index"]
    assert numbers.to_pylist() == [0, 0, 1, 2, 2]
    _assert_sound(tmp_path / "ours", source)
