"""Commands with `--engine slurm`: each by itself, and a fleet with everything going wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab_kit import LabError, Row, demand, short_episodes, wait_until
from tree_digest import tree_digest

from leconvert.api import convert
from leconvert.fleet import DatasetState, FleetStatus
from leconvert.fleet import status as fleet_status
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from slurm_lab.ground import PROGRAM, Ground

_DATASETS = 40
_WORKERS = 6
_SECONDS = 300.0
_LARGE = "set-07"
_SETTLED = {DatasetState.CONVERTED, DatasetState.FINISHED, DatasetState.SET_ASIDE}
# Workers take their time over a shard: the datasets are small, and there must be a middle in which
# a node crashes, which takes SLURM many seconds.
_SLOW_WORKER = Path(__file__).resolve().parents[2] / "benches/slow_worker.py"
_SLOWLY = f"{sys.executable} {_SLOW_WORKER} 6 0"


def engine(ground: Ground) -> Iterator[Row]:
    """One command each: to v3.0, back to v2.1, and a merge."""
    source, _ = short_episodes(ground.folder)
    shutil.copytree(ground.dataset, ground.folder / "again", dirs_exist_ok=True)
    commands = {
        "convert": ("convert", str(source)),
        "convert --to v2.1": ("convert", "inline", "--to", "v2.1"),
        "merge": ("merge", str(ground.dataset), "again"),
    }
    for number, (name, words) in enumerate(commands.items()):
        result, alone, work = (ground.folder / f"{number}-{what}" for what in ("", "alone", "work"))
        ground.leconvert(*words, "-q", "--output", str(alone))
        ground.leconvert(
            *words, "-q", "--output", str(result), "--work-dir", str(work),
            *_engine_options(PROGRAM, nodes=2),
        )  # fmt: skip
        same = tree_digest(result) == tree_digest(alone)
        demand(same, f"{name}: the result differs from that without SLURM")
        jobs = len(list(work.glob("runs/*/jobs/*.json")))
        workers = len(list(work.glob("runs/*/workers/*.json")))
        yield Row(
            "engine",
            f"`leconvert {name} --engine slurm`",
            f"byte-identical to the result without it; {jobs} job array, {workers} workers came",
        )


def _engine_options(program: str, *, nodes: int) -> list[str]:
    return [
        *("--engine", "slurm", "--program", program, "--nodes", str(nodes)),
        *("--workers-per-node", "2", "--cpus-per-task", "2", "--mem", "1G"),
        *("--time", "00:10:00"),
    ]


def fleet(ground: Ground) -> Iterator[Row]:
    """A node loses its power; the controller, and then the command itself, are killed.

    The rest is then submitted, with nobody who watches.
    """
    expected = _make_datasets(ground)
    listed = ground.folder / "fleet.txt"
    listed.write_text(
        "".join(f"fleet-in/{name}{_options(name)}\n" for name in expected),
    )
    by_slurm = ["--lease-seconds", "4", *_engine_options(_SLOWLY, nodes=3)]
    words = ["fleet", str(listed), "-o", "fleet-out", "--work-dir", "fleet-work", "-q", *by_slurm]
    with (ground.folder / "fleet.log").open("wb") as log:
        command = subprocess.Popen(
            [sys.executable, "-m", "leconvert", *words],
            cwd=ground.folder, env=ground.cluster.environment, stderr=log,
        )  # fmt: skip
        try:
            _wait_for_settled(ground, 4)
            ground.cluster.crash_node("n1")
            wait_until(lambda: "down" in _state_of(ground, "n1"), _SECONDS, "The loss of n1")
            ground.cluster.restart_controller()
            wait_until(lambda: _answers(ground), 30, "The controller's return")
            ground.cluster.boot_node("n1")
            wait_until(lambda: _workers(ground) >= _WORKERS + 2, _SECONDS, "New workers for n1's")
        finally:
            command.kill()
            command.wait()
    left = _settled(_status(ground))
    ground.leconvert("submit", "fleet-work", *by_slurm)
    _wait_for_settled(ground, _DATASETS)
    ground.leconvert(*words)
    status = _status(ground)
    demand(status.counts[DatasetState.SET_ASIDE] == 0, f"set aside: {status.set_aside}")
    for name, digest in expected.items():
        demand(
            tree_digest(ground.folder / "fleet-out" / name) == digest,
            f"{name} differs from a single conversion",
        )
    workers = _workers(ground)
    batches = list((ground.folder / "fleet-work/datasets" / _LARGE).glob("runs/*/done/*.json"))
    writers = {json.loads(path.read_bytes())["token"] for path in batches}
    demand(len(writers) > 1, f"{_LARGE} was not shared: {writers}")
    yield Row(
        "fleet",
        f"{_DATASETS} datasets, {_WORKERS} workers on 3 nodes; n1 loses its power, the controller "
        f"is killed and restarted, then `leconvert fleet` itself is killed with {left} datasets "
        "done, and `leconvert submit` submits workers for the others",
        f"all {_DATASETS} results byte-identical to single conversions; {workers} workers came in "
        f"all, and wrote the {len(batches)} batches of the largest dataset in {len(writers)} turns",
    )


def _make_datasets(ground: Ground) -> dict[str, str]:
    """Make the datasets; return the digest of each one's conversion alone, by its name."""
    digests = {}
    (ground.folder / "fleet-alone").mkdir()
    for number in range(_DATASETS):
        name = f"set-{number:02d}"
        cameras = [CameraSpec(key="observation.images.top", width=64, height=48)][: number % 3]
        episodes = 30 if name == _LARGE else 2 + number % 5
        spec = DatasetSpec(
            episodes=episodes,
            frames=[5 + episode % 7 for episode in range(episodes)],
            cameras=cameras,
            quantiles=number % 4 == 0,
            codebase_version="v2.0" if number % 5 == 0 else "v2.1",
            seed=number,
        )
        source, alone = ground.folder / "fleet-in" / name, ground.folder / "fleet-alone" / name
        make_dataset(source, spec)
        convert(source, output=alone)
        digests[name] = tree_digest(alone)
    return digests


def _options(name: str) -> str:
    return " --episodes-per-batch 1" if name == _LARGE else ""


def _answers(ground: Ground) -> bool:
    """Tell whether the controller is there."""
    try:
        return "UP" in ground.cluster.run("scontrol", "ping")
    except LabError:  # as it says while the controller is away
        return False


def _state_of(ground: Ground, node: str) -> str:
    return ground.cluster.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T")


def _workers(ground: Ground) -> int:
    return len(list((ground.folder / "fleet-work/runs").glob("*/workers/*.json")))


def _status(ground: Ground) -> FleetStatus:
    return fleet_status(ground.folder / "fleet-work")


def _settled(status: FleetStatus) -> int:
    return sum(one.state in _SETTLED for one in status.datasets)


def _wait_for_settled(ground: Ground, count: int) -> None:
    def settled() -> bool:
        return (ground.folder / "fleet-work/current").exists() and (
            _settled(_status(ground)) >= count
        )

    wait_until(settled, _SECONDS, f"Dataset {count} of the fleet")
