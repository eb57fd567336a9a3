"""SLURM, Ray and workers by hand on one work dir; see docs/lab.md."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_lab import RayCluster
from slurm_lab import SlurmCluster
from slurm_lab.mixed import RAY_NODES, SLURM_NODES, mixed

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="lemix-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_every_kind_of_worker_has_a_share(folder: Path) -> None:
    slurm = SlurmCluster(folder / "slurm", SLURM_NODES, own_names=True)
    ray = RayCluster(folder / "ray", RAY_NODES)
    with slurm.running(), ray.running():
        (row,) = mixed(slurm, ray, folder / "run")
    assert "byte-identical" in row.outcome
