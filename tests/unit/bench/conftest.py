"""Small v3.0 datasets, converted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.api import convert
from leconvert.model.values import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset


def converted(folder: Path, spec: DatasetSpec, layout: LayoutOptions = LayoutOptions()) -> Path:
    make_dataset(folder / "v21", spec)
    convert(folder / "v21", output=folder / "v30", layout=layout)
    return folder / "v30"


@pytest.fixture(scope="session")
def several_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six uneven episodes; the first camera has several MP4s, the second has one."""
    spec = DatasetSpec(
        episodes=6,
        frames=[40, 55, 1, 30, 61, 12],
        cameras=(
            CameraSpec(
                key="observation.images.top", width=64, height=48,
                noise_amplitude=48, target_clip_bytes=60_000,
            ),
            CameraSpec(key="observation.images.wrist", width=32, height=32),
        ),
    )  # fmt: skip
    layout = LayoutOptions(video_file_size_in_mb=0.1)
    root = converted(tmp_path_factory.mktemp("several"), spec, layout)
    assert len(list(root.glob("videos/observation.images.top/*/*.mp4"))) > 2
    return root


@pytest.fixture(scope="session")
def without_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of numbers alone."""
    spec = DatasetSpec(episodes=2, frames=9, cameras=())
    return converted(tmp_path_factory.mktemp("numbers"), spec)


@pytest.fixture(scope="session")
def images_in_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes whose pictures are PNGs in the data files."""
    spec = DatasetSpec(
        episodes=2, frames=9, cameras=(), image_keys=("observation.images.top",),
        image_size=(32, 48),
    )  # fmt: skip
    return converted(tmp_path_factory.mktemp("images"), spec)
