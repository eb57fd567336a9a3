"""A small v3.0 dataset that tests of the loader share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leconvert.api import convert
from leconvert.loading import byte_cache
from leconvert.model import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

LENGTHS = [9, 4, 1, 12, 6]
CAMERAS = ("observation.images.top", "observation.images.wrist")


@pytest.fixture(autouse=True)
def _cache_of_fetched_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's own cache alone."""
    monkeypatch.setattr(byte_cache, "_own_folder", lambda: tmp_path / "fetched")


@pytest.fixture(scope="session")
def v30(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five uneven episodes, several data files, several MP4s a camera; do not change it."""
    folder = tmp_path_factory.mktemp("probe")
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=tuple(CameraSpec(key=key, width=48, height=32) for key in CAMERAS),
    )
    source = make_dataset(folder / "v21", spec)
    convert(
        source,
        output=folder / "v30",
        layout=LayoutOptions(data_file_size_in_mb=0.002, video_file_size_in_mb=0.002),
    )
    return folder / "v30"


@pytest.fixture
def v30_copy(v30: Path, tmp_path: Path) -> Path:
    """The dataset, for tests that damage it."""
    return Path(shutil.copytree(v30, tmp_path / "v30"))


@contextmanager
def uploaded(dataset: Path) -> Iterator[str]:
    """Put a dataset behind a URL, as remote ones are, for a while."""
    import fsspec

    system = fsspec.filesystem("memory")
    root = "/leconvert-probe-test"
    for path in sorted(dataset.rglob("*")):
        if path.is_file():
            system.pipe_file(f"{root}/{path.relative_to(dataset)}", path.read_bytes())
    yield f"memory:/{root}"
    system.rm(root, recursive=True)


@pytest.fixture
def in_memory(v30: Path) -> Iterator[str]:
    """The small dataset behind a URL."""
    with uploaded(v30) as url:
        yield url
