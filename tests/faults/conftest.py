"""What several campaigns compare with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trees import digest_of

import leconvert


@pytest.fixture(scope="session")
def quiet_digest(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed conversion."""
    out = tmp_path_factory.mktemp("quiet") / "out"
    leconvert.convert(small_source, output=out)
    return digest_of(out)
