"""leconvert on real kernels over a real NFS server; see docs/lab.md.

Each scenario demands what must hold and fails where it does not; a row is what it found.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lab_kit import Network, processes_that, wait_until
from nfs_conversion import Ground
from nfs_hosts import NfsLab
from nfs_scenarios import SCENARIOS, brief, build

pytestmark = pytest.mark.lab

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "lab" / "run.py"


def kernels_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that were started with a lab's folder in their command line."""
    return processes_that(lambda one: any(f"uml_dir={folder}/" in word for word in one.cmdline()))


def test_two_hosts_race_and_one_of_them_loses_power(tmp_path: Path) -> None:
    with NfsLab(tmp_path, clients=2).running() as lab:
        rows = list(brief(Ground(lab)))
        assert not lab.clients[0].is_on
        assert lab.clients[1].shell("stat -f -c %T /mnt/work").strip() == "nfs"
        assert kernels_of(tmp_path)
    assert len(rows) == 2
    assert not lab.network.exists
    assert kernels_of(tmp_path) == []


def test_the_kernels_of_a_lab_end_with_a_builder_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "nfs", "--folder", str(tmp_path)]
    with subprocess.Popen(command) as builder:
        wait_until(lambda: bool(kernels_of(tmp_path)), 60, "The first kernel")
        builder.kill()
    wait_until(lambda: not kernels_of(tmp_path), 30, "The end of all kernels")
    namespaces = Path("/run/netns")
    assert list(namespaces.glob(f"lab-{builder.pid}-*"))
    other = Network()
    other.create()  # which removes what was left
    other.remove()
    assert not list(namespaces.glob(f"lab-{builder.pid}-*"))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A lab of three hosts for all scenarios."""
    with build(Namespace(folder=tmp_path_factory.mktemp("nfs"))) as (_, ground):
        yield ground


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(ground: Ground, name: str) -> None:
    rows = list(SCENARIOS[name](ground))
    assert rows
    assert all(rows)


@pytest.mark.slow
def test_bytes_are_shared_where_the_export_shares_extents(tmp_path: Path) -> None:
    with NfsLab(tmp_path, file_system="xfs").running() as lab:
        (outcome,) = SCENARIOS["whole-conversion"](Ground(lab))
    assert " 0 MiB shared" not in outcome
