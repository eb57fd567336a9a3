"""Conversions on a real Ray whose nodes die, are cut off and join; see docs/engines.md."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ray_scenarios import SCENARIOS, Cluster, build

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes in network namespaces and a small dataset, for all scenarios."""
    # The paths of Ray's sockets must be short.
    with TemporaryDirectory(prefix="leray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        with build(Namespace(folder=Path(folder))) as (_, cluster):
            assert len(cluster.processes) > 3 * 3
            yield cluster
        assert cluster.processes == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(cluster: Cluster, name: str) -> None:
    rows = list(SCENARIOS[name](cluster))
    assert rows
    assert all(rows)
