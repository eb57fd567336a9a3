"""`leconvert submit` to a real SLURM of two nodes, on a small scale; it runs by default.

The scenarios in which everything goes wrong are in `test_slurm_lab`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lab_kit import missing_packages, wait_until
from slurm_cluster import PACKAGES, SlurmCluster

from leconvert.api import convert
from leconvert.cli import main
from leconvert.report.status import run_status
from leconvert.workdir.run import open_run
from tests.trees import digest_of

_SECONDS = 90.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of two logical nodes; none of its daemons outlives the test."""
    if os.geteuid() != 0:
        pytest.skip("SLURM's daemons need root")
    if missing := missing_packages(PACKAGES):
        pytest.skip(f"needs the packages {' '.join(missing)}")
    # A short name: a socket's path has at most 107 bytes.
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=2)
    with cluster.running():
        daemons = cluster.daemons()
        assert set(daemons) == {"munged", "slurmctld", "n1", "n2"}
        yield cluster
    assert [name for name, pid in daemons.items() if psutil.pid_exists(pid)] == []


def test_an_array_of_workers_and_a_packer_convert_a_dataset(
    cluster: SlurmCluster,
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inline, result, work = tmp_path / "inline", tmp_path / "out", tmp_path / "work"
    convert(small_source, output=inline)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    plan = ["plan", "--root", str(small_source), "--output", str(result), "--work-dir", str(work)]
    assert main([*plan, "--episodes-per-batch", "1"]) == 0
    capsys.readouterr()
    submit = ["submit", str(work), "--nodes", "2", "--workers-per-node", "1", "--json"]
    program = ["--program", f"{sys.executable} -m leconvert", "--time", "00:10:00"]
    assert main([*submit, *program]) == 0
    sent = json.loads(capsys.readouterr().out)
    assert sent["workers"] == 2

    jobs = {job.role: job for job in run_status(work).jobs}
    assert [jobs[role].job_id for role in ("workers", "packer")] == [
        sent["worker_job"],
        sent["packer_job"],
    ]
    assert sum((jobs["workers"].states or {}).values()) == 2, "the controller knows both elements"

    wait_until(result.exists, _SECONDS, "The result")  # it comes by one rename
    assert digest_of(result) == digest_of(inline)
    ends = cluster.wait_for([sent["packer_job"]], _SECONDS)
    assert [end.state for end in ends] == ["COMPLETED"]
    logs = open_run(work, only_look=True).paths.logs_dir
    for element in range(2):
        assert (logs / f"slurm-{sent['worker_job']}_{element}.log").exists()
    assert main([*submit, *program]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] is True
