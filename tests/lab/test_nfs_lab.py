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
from lab_kit import LabError, missing_packages, wait_until
from nfs_lab import LabOptions, NfsLab
from nfs_lab.requirements import packages_for
from nfs_lab.scenarios import SCENARIOS, Ground, brief, build

pytestmark = pytest.mark.lab

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "lab" / "nfs.py"


def processes_of(lab: NfsLab) -> list[int]:
    """Return the processes that were started with this lab's folder in their command line."""
    return [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(f"uml_dir={lab.folder}/" in word for word in process.info["cmdline"] or [])
    ]


def test_two_hosts_race_and_one_of_them_loses_power(tmp_path: Path) -> None:
    with NfsLab(tmp_path / "lab").running(LabOptions(clients=2)) as lab:
        rows = list(brief(Ground(lab)))
    assert [row.scenario for row in rows] == ["brief", "worker power loss"]
    assert not lab.network.exists
    assert processes_of(lab) == []


@pytest.mark.parametrize("file_system", ["ext4"])
def test_a_lab_whose_builder_was_killed_half_way_is_taken_away(
    tmp_path: Path, file_system: str
) -> None:
    lab = NfsLab(tmp_path / "lab")
    builder = subprocess.Popen(
        [sys.executable, str(PROGRAM), "--folder", str(lab.folder), "up", "--fs", file_system]
    )
    wait_until(lambda: bool(processes_of(lab)), 60, "The first kernel")
    builder.kill()
    builder.wait()
    assert processes_of(lab) != []
    for _ in range(2):  # the second time there is nothing left to do
        lab.down()
        assert processes_of(lab) == []
        assert not lab.network.exists
        assert not lab.folder.exists()


def test_a_second_lab_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with NfsLab(tmp_path / "lab").running(LabOptions(clients=1)) as lab:
        with pytest.raises(LabError, match="already"):
            NfsLab(lab.folder).up(LabOptions())
        # The refusal did not touch the lab that is there.
        assert lab.clients[0].shell("stat -f -c %T /mnt/work").strip() == "nfs"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A lab of three hosts for all scenarios."""
    with build(Namespace(folder=tmp_path_factory.mktemp("nfs") / "lab")) as (_, ground):
        assert missing_packages(packages_for("ext4")) == []
        yield ground


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(ground: Ground, name: str) -> None:
    rows = list(SCENARIOS[name](ground))
    assert rows
    assert all(row.outcome for row in rows)


@pytest.mark.slow
def test_bytes_are_shared_where_the_export_shares_extents(tmp_path: Path) -> None:
    with NfsLab(tmp_path / "lab").running(LabOptions(clients=3, file_system="xfs")) as lab:
        (row,) = SCENARIOS["whole-conversion"](Ground(lab))
    assert " 0 MiB shared" not in row.outcome
