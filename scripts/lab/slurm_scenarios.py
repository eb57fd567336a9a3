"""Benchmarks, trainings and conversions on a SLURM cluster of logical nodes of one machine."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from lab_kit import REPOSITORY, Rows, demand, digest_of, run_tool, short_episodes, wait_until
from slurm_cluster import JobEnd, SlurmCluster

from leconvert.api import convert
from leconvert.bench import Job, Resources, submit_chain
from leconvert.fleet import DatasetState, FleetStatus
from leconvert.fleet import status as fleet_status
from leconvert.run.engines.options import Site

_SECONDS = 300.0
_PROGRAM = f"{sys.executable} -m leconvert"
# Workers take their time over a shard: the datasets are small, and there must be a middle in which
# a node crashes, which takes SLURM many seconds.
_SLOWLY = f"{sys.executable} {REPOSITORY / 'scripts/benches/slow_worker.py'} 6 0"
_SMALL = ("--cpus", "2", "--mem", "4G", "--time", "00:10:00", "--num-workers", "2")
_BRIEF = ("--duration-s", "1", "--warmup-batches", "1", "--probe-samples", "0")
_DATASETS, _LARGE = 40, "set-07"
_WORKERS = 6
_SETTLED = {DatasetState.CONVERTED, DatasetState.FINISHED, DatasetState.SET_ASIDE}
# One rank: writes down which frames it got in an epoch, and where it ran.
_RANK = """
import json, os, sys
from pathlib import Path
from leconvert.loading import EpisodeStream, StreamLoader
stream = EpisodeStream(sys.argv[1])
frames = [int(i) for batch in StreamLoader(stream, batch_size=4, num_workers=2)
          for i in batch["index"]]
said = {"rank": stream.rank, "world_size": stream.world_size, "frames": frames,
        "node": os.environ["SLURMD_NODENAME"]}
Path(sys.argv[2], f"rank{stream.rank}.json").write_text(json.dumps(said))
"""


@dataclass(frozen=True, slots=True)
class Ground:
    """The cluster and folders that scenarios use.

    Attributes:
        cluster: It runs.
        folder: For results; every node sees it.
        source: A v2.1 dataset.
        dataset: Its conversion.
    """

    cluster: SlurmCluster
    folder: Path
    source: Path
    dataset: Path

    def total(self, of: str) -> int:
        """Return how many episodes or frames the dataset has."""
        return int(json.loads((self.dataset / "meta/info.json").read_bytes())[f"total_{of}"])

    def leconvert(self, *arguments: str) -> str:
        """Run a command as a user on the login node would; returns what it said."""
        command = [sys.executable, "-m", "leconvert", *arguments]
        return run_tool(command, environment=self.cluster.environment, folder=self.folder)

    def submitted(self, *arguments: str) -> list[JobEnd]:
        """Send a chain with `probe submit` and wait for all of its jobs."""
        said = self.leconvert(
            "probe", "submit", "--json", "--program", _PROGRAM, *_SMALL, *_BRIEF, *arguments
        )
        return self.cluster.wait_for([job["job_id"] for job in json.loads(said)["jobs"]], _SECONDS)

    def results(self, out_dir: str) -> list[dict[str, Any]]:
        """Return the documents of `probe run` in a folder, in order of name."""
        paths = sorted((self.folder / out_dir).glob("*.json"))
        return [json.loads(path.read_bytes()) for path in paths]


@contextmanager
def build(options: Namespace) -> Iterator[tuple[str, Ground]]:
    """Have a cluster of three logical nodes and a dataset for the length of a ``with`` block."""
    folder = options.folder
    with SlurmCluster(folder / "cluster").running() as cluster:
        source, dataset, _ = short_episodes(folder)
        version = cluster.run("sinfo", "--version").strip()
        ground = Ground(cluster, folder, source, dataset)
        yield f"{version}, {len(cluster.nodes)} logical nodes", ground


def chain(ground: Ground) -> Rows:
    """Three scenarios and the summary as a chain of `afterany`; one fails, one has two nodes."""
    ends = ground.submitted(
        "--scenarios", "mmap_local,stream_hub,stream_bucket_2node", "--root", str(ground.dataset),
        "--root-of", f"hub=file://{ground.folder}/nothing", "--root-of", f"bucket={ground.dataset}",
        "--out-dir", "chain",
    )  # fmt: skip
    states = [end.state for end in ends]
    demand(states == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"], f"jobs ended as {ends}")
    demand(all(a.ended <= b.started for a, b in pairwise(ends)), f"jobs overlapped: {ends}")
    results = ground.results("chain")
    ranks = [(r["options"]["scenario"], r["options"]["rank"]) for r in results]
    expected = [("mmap_local", 0), ("stream_bucket_2node", 0), ("stream_bucket_2node", 1)]
    demand(ranks == expected, f"results are {ranks}")
    loaded = [r["loaded_episodes"] for r in results if r["options"]["world_size"] == 2]
    # Ranks get as many frames each, so the episode at the border is loaded in parts by both.
    all_of_them = ground.total("episodes")
    demand(
        all_of_them <= sum(loaded) <= all_of_them + 1 and max(loaded) < all_of_them,
        f"the two nodes loaded {loaded} episodes",
    )
    demand((ground.folder / "chain/summary.csv").exists(), "there is no summary.csv")
    names = [f"{end.name.removeprefix('probe-')} on {end.nodes}" for end in ends]
    yield (
        f"{', '.join(names)}; each began after the one before had ended, also after the one that "
        f"failed; one result a rank, {loaded[0]} + {loaded[1]} episodes on {ends[2].nodes}"
    )


def two_ranks(ground: Ground) -> Rows:
    """`srun` starts a rank on each of two nodes; together they stream one epoch."""
    out_dir = ground.folder / "ranks"
    out_dir.mkdir()
    resources = Resources(nodes=2, cpus=2, mem="4G", time="00:10:00")
    job = Job("ranks", ("-c", _RANK, str(ground.dataset), str(out_dir)), resources)
    with mock.patch.dict(os.environ, ground.cluster.environment):
        (sent,) = submit_chain([job], Site(program=sys.executable), log_dir=str(out_dir))
    (end,) = ground.cluster.wait_for([sent.job_id], _SECONDS)
    demand(end.state == "COMPLETED", f"the job ended as {end}: {Path(sent.log).read_text()}")
    said = [json.loads((out_dir / f"rank{rank}.json").read_bytes()) for rank in range(2)]
    frames = [len(rank["frames"]) for rank in said]
    together = sorted(said[0]["frames"] + said[1]["frames"])
    total = ground.total("frames")
    demand(together == list(range(total)), "frames are missing or came twice")
    demand(said[0]["node"] != said[1]["node"], f"both ranks ran on {said[0]['node']}")
    yield (
        f"{frames[0]} frames on {said[0]['node']}, {frames[1]} on {said[1]['node']}: disjoint and "
        f"together all {total}"
    )


def requeue(ground: Ground) -> Rows:
    """A training on two nodes is requeued after step 40 of 150."""
    arguments = (
        "probe", "train", "--submit", "--json", "--program", _PROGRAM, *_SMALL, "--nodes", "2",
        "--root", str(ground.dataset), "--batch-size", "4", "--steps", "150", "--save-every", "10",
        "--log-every", "1",
    )  # fmt: skip

    def losses(name: str) -> list[tuple[int, float]]:
        log = ground.folder / name / "train.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [(row["step"], row["loss"]) for row in rows]

    requeued, whole = (
        json.loads(ground.leconvert(*arguments, "--out-dir", name))
        for name in ("requeued", "whole")
    )
    wait_until(lambda: len(losses("requeued")) >= 40, _SECONDS, "Step 40")
    ground.cluster.run("scontrol", "requeue", requeued["job_id"])
    ends = ground.cluster.wait_for([requeued["job_id"], whole["job_id"]], 2 * _SECONDS)
    demand([end.state for end in ends] == ["COMPLETED"] * 2, f"jobs ended as {ends}")
    log = (ground.folder / requeued["log"]).read_text()
    begun = [line for line in log.splitlines() if line.startswith("steps ")]
    resumed = len(begun) == 1 and "resumed from step" in begun[0]
    demand(resumed, f"it did not continue from a checkpoint: {begun}")
    demand(len(losses("whole")) == 150, "the log of the whole run has gaps")
    demand(losses("requeued") == losses("whole"), "losses differ after the requeue")
    yield (
        f"SLURM starts it again, it says `{' '.join(begun[0].split())}`; its 150 losses are, to "
        "the last bit, those of a run that never stopped"
    )


def engine(ground: Ground) -> Rows:
    """`--engine slurm` converts to v3.0 and back to v2.1, and merges."""
    shutil.copytree(ground.dataset, ground.folder / "again", dirs_exist_ok=True)
    commands = {
        "convert": ("convert", str(ground.source)),
        "convert --to v2.1": ("convert", str(ground.dataset), "--to", "v2.1"),
        "merge": ("merge", str(ground.dataset), "again"),
    }
    for number, (name, words) in enumerate(commands.items()):
        result, alone, work = (ground.folder / f"{number}-{what}" for what in ("", "alone", "work"))
        ground.leconvert(*words, "-q", "--output", str(alone))
        ground.leconvert(
            *words, "-q", "--output", str(result), "--work-dir", str(work),
            *_engine_options(_PROGRAM, nodes=2),
        )  # fmt: skip
        same = digest_of(result) == digest_of(alone)
        demand(same, f"{name}: the result differs from that without SLURM")
        jobs, workers = (len(list(work.glob(f"runs/*/{of}/*.json"))) for of in ("jobs", "workers"))
        yield f"{name}: byte-identical without it; {jobs} job array, {workers} workers came"


def _engine_options(program: str, *, nodes: int) -> list[str]:
    return [
        *("--engine", "slurm", "--program", program, "--nodes", str(nodes)),
        *("--workers-per-node", "2", "--cpus-per-task", "2", "--mem", "1G"),
        *("--time", "00:10:00"),
    ]


def fleet(ground: Ground) -> Rows:
    """Workers are preempted, a node loses power, controller and command are killed; then `submit`.

    The datasets that are left are submitted, with nobody who watches.
    """
    cluster = ground.cluster
    expected = _make_datasets(ground)
    listed = ground.folder / "fleet.txt"
    options = {_LARGE: " --episodes-per-batch 1"}
    listed.write_text("".join(f"fleet-in/{name}{options.get(name, '')}\n" for name in expected))
    by_slurm = ["--lease-seconds", "4", *_engine_options(_SLOWLY, nodes=3)]
    words = ["fleet", str(listed), "-o", "fleet-out", "--work-dir", "fleet-work", "-q", *by_slurm]

    def status() -> FleetStatus:
        return fleet_status(ground.folder / "fleet-work")

    def settled() -> int:
        has_begun = (ground.folder / "fleet-work/current").exists()
        return sum(one.state in _SETTLED for one in status().datasets) if has_begun else 0

    def workers() -> int:
        return len(list((ground.folder / "fleet-work/runs").glob("*/workers/*.json")))

    def wait_for_workers(why: str, before: int) -> None:
        wait_until(lambda: workers() >= before + 2, _SECONDS, f"New workers for {why}")

    def is_down() -> bool:
        return "down" in cluster.run("sinfo", "--noheader", "--nodes=n1", "--format=%T")

    with (ground.folder / "fleet.log").open("wb") as log:
        command = subprocess.Popen(
            [sys.executable, "-m", "leconvert", *words],
            cwd=ground.folder, env=cluster.environment, stderr=log,
        )  # fmt: skip
        try:
            wait_until(lambda: settled() >= 2, _SECONDS, "Dataset 2 of the fleet")
            urgent = cluster.run(
                "sbatch", "--parsable", "--partition=urgent", "--nodelist=n2", "--exclusive",
                "--wrap=true", "--output=/dev/null",
            ).strip()  # fmt: skip
            (end,) = cluster.wait_for([urgent], _SECONDS)
            demand((end.state, end.nodes) == ("COMPLETED", "n2"), f"the urgent job ended as {end}")
            wait_for_workers("the preempted ones", _WORKERS)
            before = workers()
            cluster.crash_node("n1")
            wait_until(is_down, _SECONDS, "The loss of n1")
            cluster.restart_controller()
            wait_until(cluster.answers, 30, "The controller's return")
            cluster.boot_node("n1")
            wait_for_workers("n1's", before)
        finally:
            command.kill()
            command.wait()
    left = settled()
    ground.leconvert("submit", "fleet-work", *by_slurm)
    wait_until(lambda: settled() >= _DATASETS, _SECONDS, "The last dataset of the fleet")
    ground.leconvert(*words)
    aside = status().set_aside
    demand(not list(aside), f"set aside: {aside}")
    for name, digest in expected.items():
        same = digest_of(ground.folder / "fleet-out" / name) == digest
        demand(same, f"{name} differs from a single conversion")
    batches = list((ground.folder / "fleet-work/datasets" / _LARGE).glob("runs/*/done/*.json"))
    writers = {json.loads(path.read_bytes())["token"] for path in batches}
    demand(len(writers) > 1, f"{_LARGE} was not shared: {writers}")
    yield (
        f"the command killed with {left} of {_DATASETS} datasets done, all results byte-identical "
        f"to single conversions; {workers()} workers came in all, and wrote the {len(batches)} "
        f"batches of the largest dataset in {len(writers)} turns"
    )


def _make_datasets(ground: Ground) -> dict[str, str]:
    """Make the datasets; return the digest of each one's conversion alone, by its name."""
    from tests.collection import KINDS

    sound = [make for kind, make in KINDS.items() if kind.startswith("sound")]
    digests = {}
    (ground.folder / "fleet-alone").mkdir()
    for number in range(_DATASETS):
        name = f"set-{number:02d}"
        source, alone = (ground.folder / f"fleet-{of}" / name for of in ("in", "alone"))
        if name == _LARGE:
            shutil.copytree(ground.source, source)
        else:
            sound[number % len(sound)](source, random.Random(number))
        convert(source, output=alone)
        digests[name] = digest_of(alone)
    return digests


SCENARIOS: Mapping[str, Callable[[Ground], Rows]] = {
    "chain": chain,
    "two-ranks": two_ranks,
    "requeue": requeue,
    "engine": engine,
    "fleet": fleet,
}
"""Every scenario by name."""
