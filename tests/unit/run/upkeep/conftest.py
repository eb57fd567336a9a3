"""A dataset that was converted in place, with its source beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import leconvert


@pytest.fixture(scope="session")
def converted_once(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``small`` and ``small_old``; do not change it."""
    folder = tmp_path_factory.mktemp("in-place")
    leconvert.convert(Path(shutil.copytree(small_source, folder / "small")))
    return folder


@pytest.fixture
def converted(converted_once: Path, tmp_path: Path) -> Path:
    """A copy of the dataset, and of its source, that a test may change."""
    shutil.copytree(converted_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "small"
