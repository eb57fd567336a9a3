"""`probe submit` and `probe train --submit` on a real SLURM; see docs/probe-cluster.md."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lab_kit import processes_that, wait_until
from slurm_cluster import SlurmCluster
from slurm_scenarios import SCENARIOS, Ground, build

pytestmark = pytest.mark.lab

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "lab" / "run.py"
JOB = ["sleep", "61397"]  # a number that nobody else sleeps
DAEMONS = {"munged", "slurmctld", "slurmd"}


def daemons_of(folder: Path) -> list[str]:
    """Return the names of the daemons that were started with this cluster's configuration."""
    wanted = ("SLURM_CONF", str(folder / "slurm.conf"))
    found = processes_that(lambda one: one.name() in DAEMONS and wanted in one.environ().items())
    return sorted(daemon.name() for daemon in found)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A cluster of three logical nodes and a small dataset for all scenarios."""
    with build(Namespace(folder=tmp_path_factory.mktemp("slurm"))) as (_, ground):
        yield ground


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(ground: Ground, name: str) -> None:
    rows = list(SCENARIOS[name](ground))
    assert rows
    assert all(rows)


def test_a_cluster_ends_its_jobs_and_its_daemons(tmp_path: Path) -> None:
    with SlurmCluster(tmp_path, nodes=1).running() as cluster:
        assert daemons_of(tmp_path) == sorted(DAEMONS)
        subprocess.run(
            ["sbatch", f"--wrap={' '.join(JOB)}", "--output=/dev/null"],
            env=cluster.environment, check=True, capture_output=True,
        )  # fmt: skip
        wait_until(lambda: bool(jobs()), 30, "The start of the job")
    assert daemons_of(tmp_path) == []
    assert jobs() == []


def test_daemons_end_with_a_builder_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "slurm", "--folder", str(tmp_path)]
    with subprocess.Popen(command) as builder:
        folder = tmp_path / "cluster"
        wait_until(lambda: set(daemons_of(folder)) == DAEMONS, 60, "The start of all daemons")
        builder.kill()
    wait_until(lambda: not daemons_of(folder), 30, "The end of all daemons")


def jobs() -> list[psutil.Process]:
    return processes_that(lambda process: process.cmdline() == JOB)
