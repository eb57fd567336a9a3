"""A good result that the tests of a comparison share."""

from __future__ import annotations

from pathlib import Path

import pytest

import leconvert


@pytest.fixture(scope="session")
def converted(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good result; do not change it."""
    out = tmp_path_factory.mktemp("converted") / "out"
    leconvert.convert(small_source, output=out)
    return out
