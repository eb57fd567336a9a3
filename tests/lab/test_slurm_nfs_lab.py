"""`leconvert submit` on hosts that share an NFS mount alone; see docs/lab.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_kit import require
from nfs_lab import LabOptions, NfsLab
from nfs_lab.scenarios import Ground
from slurm_lab.cluster import PACKAGES
from slurm_lab.guests import GuestCluster
from slurm_lab.over_nfs import HOSTS, MEMORY_MB, SCENARIOS

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestCluster]:
    """A controller and three nodes, each a host with a kernel of its own."""
    require("SLURM's daemons start jobs for others", PACKAGES)
    folder = tmp_path_factory.mktemp("slurm-nfs") / "lab"
    with NfsLab(folder).running(LabOptions(clients=HOSTS, memory_mb=MEMORY_MB)) as lab:
        cluster = GuestCluster(lab)
        cluster.start()
        yield cluster


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, cluster: GuestCluster) -> None:
    rows = list(SCENARIOS[name](Ground(cluster.lab), cluster))
    assert rows
    assert all(row.outcome for row in rows)
