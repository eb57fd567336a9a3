"""A run's folder that the tests of a work dir share."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.workdir.records import RunPaths, WorkDir


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = WorkDir(tmp_path / "work").run("r1")
    paths.ensure()
    return paths
