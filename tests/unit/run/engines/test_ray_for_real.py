"""One real Ray on this machine, and workers that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.program import Leconvert
from tests.trees import digest_of

import leconvert as package
from leconvert.report.status import RunObserver
from leconvert.run.engines import RayEngine, RayOptions
from leconvert.support.errors import EngineError
from leconvert.workdir.activity import read_jobs
from leconvert.workdir.run import OpenedRun

SOURCES = Path(package.__file__).parents[2]
_SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # else it leaves a token in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
_HEAD = """
import ray, sys
found = ray.init(
    address="local", num_cpus=2, object_store_memory=75 * 2**20, include_dashboard=False,
    log_to_driver=False, _temp_dir=sys.argv[1], _node_ip_address="127.0.0.1",
)
print(found.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""
# Workers that hold their first batch until they are asked to hand it back.
_HOLDING = """
import sys
if "leconvert.run.engines.ray" in sys.orig_argv and "work" in sys.orig_argv:
    import pathlib, threading
    from leconvert.run.worker import ShardWriter
    write = ShardWriter.write
    def hold(self, shard, folder, **options):
        pathlib.Path({holding!r}).touch()
        while not options["should_stop"]():
            threading.Event().wait(0.01)
        return write(self, shard, folder, **options)
    ShardWriter.write = hold
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a Ray with one node and two cores, which ends with the module's tests."""
    # Ray's sockets need short paths.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as root:
        # It gives its own agents 15 s to start, which a busy machine may not keep. Who may not go
        # first goes on as ever. Shells start what is in the background with SIGINT ignored.
        for _ in range(3):
            with subprocess.Popen(
                ["sh", "-c", 'trap "" INT; exec nice -n -15 "$@"', "sh",
                 sys.executable, "-c", _HEAD, root],
                env=os.environ | _SETTINGS | {"PYTHONPATH": str(SOURCES)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            ) as head:  # fmt: skip
                said = head.stdout.readline().strip()
                if not said:
                    continue
                yield said
                head.stdin.close()
                assert head.wait(60.0) == 0
                return
        pytest.fail("Ray did not start in three tries")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in _SETTINGS.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, "PYTHONPATH": str(SOURCES)}


def test_a_conversion_has_its_workers_on_ray(
    address: str,
    environment: dict[str, str],
    leconvert: Leconvert,
    small_source: Path,
    small_result: Path,
    tmp_path: Path,
) -> None:
    work, site = tmp_path / "work", tmp_path / "site"
    site.mkdir()
    (site / "types.py").write_text("raise RuntimeError('of the folder that the user is in')")
    leconvert(
        "convert", "--root", small_source, "--output", tmp_path / "out", "--work-dir", work,
        "--episodes-per-batch", "1", "--engine", "ray", "--ray-address", address,
        "--num-workers", "2", "--ray-ship-package", env=environment, cwd=site, code=0,
    )  # fmt: skip
    assert digest_of(tmp_path / "out") == digest_of(small_result)
    # One of the two may have done everything before the other began.
    assert list(work.glob("runs/*/logs/ray-*-[12].log"))


# `test_ray_node` interrupts a task as Ray does it, and `test_ray_driver` ends a driver's workers.
@pytest.mark.slow
def test_workers_hand_back_when_they_are_stopped(
    address: str,
    environment: dict[str, str],
    planned: OpenedRun,
    tmp_path: Path,
) -> None:
    work, site, holding = planned.work_dir.root, tmp_path / "site", tmp_path / "holding"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_HOLDING.format(holding=str(holding)))
    found = {"env_vars": {"PYTHONPATH": f"{site}:{SOURCES}"}}
    engine = RayEngine(RayOptions(address, workers=1, runtime_env=found))
    engine.start(1, [str(work)], planned.paths)
    try:
        pause = threading.Event()
        while not holding.exists():
            assert engine.running() == 1, engine.failures()
            pause.wait(0.05)  # for a process of Ray's
        assert RunObserver(planned).look().leased == 1
    finally:
        engine.stop()
    assert (engine.running(), engine.failures()) == (0, [])
    seen = RunObserver(planned).look()
    assert (seen.leased, seen.pending, seen.done) == (0, 5, 0)
    assert [(row.errors, row.losses) for row in seen.unsettled] == [(0, 0)]  # one was touched
    (job,) = read_jobs(planned.paths)
    assert (job.engine, job.role, job.tasks) == ("ray", "workers", 1)


def test_nothing_at_an_address_is_said_at_once(
    environment: None, planned: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    engine = RayEngine(RayOptions("auto"))
    with pytest.raises(EngineError, match=r"answers at 127\.0\.0\.1:1 \(Connection refused"):
        engine.start(1, ["WORK"], planned.paths)
    assert engine.running() == 0
    engine.stop()
