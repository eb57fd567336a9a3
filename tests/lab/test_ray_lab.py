"""Conversions on a real Ray whose nodes die, are cut off and join; see docs/engines.md."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ray_lab.scenarios import SCENARIOS, Ground, build

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Three nodes in network namespaces and a small dataset, for all scenarios."""
    # The paths of Ray's sockets must be short.
    with TemporaryDirectory(prefix="leray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        with build(Namespace(folder=Path(folder))) as (_, ground):
            assert len(ground.cluster.processes) > 3 * 3
            yield ground
        assert ground.cluster.processes == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(ground: Ground, name: str) -> None:
    rows = list(SCENARIOS[name](ground))
    assert rows
    assert all(row.outcome for row in rows)
