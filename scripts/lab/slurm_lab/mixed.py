"""One work dir and three kinds of workers at once: SLURM's, Ray's, and two started by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from lab_kit import EPISODES, Row, demand, ends_of, leconvert, short_episodes, wait_until
from ray_lab import RayCluster
from tree_digest import tree_digest

from slurm_lab.cluster import JobEnd, SlurmCluster, under_the_name

SLURM_NODES = 2
"""How many nodes SLURM has; a worker runs on each."""

RAY_NODES = 1
"""How many nodes Ray has, whose start takes a while."""

_WAITING = Path(__file__).resolve().parent / "inside" / "waiting.py"
_SECONDS = 180.0
_BY_HAND = ("hand1", "hand2")
_RAY_WORKERS_A_NODE = 2
_LEASE = ("--lease-seconds", "10")
# A Ray worker's batch: so that it cannot have done all before the others have come.
_SECONDS_A_BATCH = 0.5
# The message of a packer that finds another one at work; its exit code is 12.
_PACKS_ALREADY = "the packer of this work dir"


def mixed(slurm: SlurmCluster, ray: RayCluster, folder: Path) -> Iterator[Row]:
    """Convert a dataset by workers of every kind, none of which can come too late.

    SLURM's and those started by hand wait in their first batch until all of them have one and a
    worker of Ray's has published.

    Args:
        slurm: A cluster of `SLURM_NODES` nodes with names of their own.
        ray: A cluster of `RAY_NODES` nodes.
        folder: For the datasets and the work dir; every node sees it.

    Raises:
        ScenarioFailedError: The result differs, or a kind published nothing.
        LabError: It takes too long.
    """
    run = _Run(slurm, ray, folder)
    with ExitStack() as begun:
        sent = run.submit()
        processes = [run.start_by_hand(host, begun) for host in _BY_HAND]
        ray.slow_down(_SECONDS_A_BATCH)
        processes.append(run.start_by_ray())
        kinds = {f"n{n}": "SLURM" for n in range(1, SLURM_NODES + 1)}
        kinds |= {f"h{n}": "Ray" for n in range(1, RAY_NODES + 1)}
        kinds |= dict.fromkeys(_BY_HAND, "by hand")
        waiting = sum(kind != "Ray" for kind in kinds.values())
        wait_until(
            lambda: len(list(run.waiting.iterdir())) == waiting and "Ray" in run.published(kinds),
            _SECONDS,
            "A first batch for every worker",
        )
        (run.waiting / "go").touch()
        ray.slow_down(0.0)
        codes = [process.wait(_SECONDS) for process in processes]
        demand(codes == [0] * len(codes), f"commands ended with {codes}: {run.said()}")
        (packer,) = slurm.wait_for([sent["packer_job"]], _SECONDS)
    ended = run.end_of_second_packer(packer)
    demand(tree_digest(run.result) == run.expected, "the result differs from the inline run's")
    published = run.published(kinds)
    demand(published.total() == EPISODES, f"of {EPISODES} batches {published} were published")
    missing = set(kinds.values()) - set(published)
    demand(not missing, f"nothing was published by {missing}: {published}")
    yield Row(
        "mixed",
        f"{EPISODES} batches; {SLURM_NODES} workers of SLURM, "
        f"{RAY_NODES * _RAY_WORKERS_A_NODE} of Ray and {len(_BY_HAND)} started by hand at the same "
        "time; `convert --engine ray` packs while they work, SLURM's packer comes when its workers "
        "have ended",
        f"byte-identical to the inline run; SLURM's packer {ended}; batches by the names in the "
        "done records: "
        + ", ".join(f"{kind} {number}" for kind, number in sorted(published.items())),
    )


class _Run:
    """A planned conversion that everybody may join."""

    def __init__(self, slurm: SlurmCluster, ray: RayCluster, folder: Path) -> None:
        self._slurm, self._ray, self._folder = slurm, ray, folder
        self.result, self._work = folder / "result", folder / "work"
        self.waiting = folder / "waiting"
        self.waiting.mkdir(parents=True)
        source, self.expected = short_episodes(folder)
        self._plan = (
            "--root", str(source), "--output", str(self.result), "--work-dir", str(self._work),
            "--episodes-per-batch", "1",
        )  # fmt: skip
        leconvert("plan", *self._plan, environment=slurm.environment)

    def submit(self) -> Mapping[str, str]:
        """Submit a worker a node, and a packer, to SLURM."""
        said = leconvert(
            "submit", str(self._work), "--json", "--program", f"{sys.executable} {_WAITING} "
            f"{self.waiting}", "--nodes", str(SLURM_NODES), "--workers-per-node", "1",
            "--cpus-per-task", "4", "--mem", "1G", "--time", "00:10:00", *_LEASE,
            environment=self._slurm.environment,
        )  # fmt: skip
        return dict(json.loads(said))

    def start_by_hand(self, host: str, begun: ExitStack) -> subprocess.Popen[bytes]:
        """Start a worker on a host of this name, as somebody who is logged in there would."""
        log = begun.enter_context((self._folder / f"{host}.log").open("wb"))
        command = [sys.executable, str(_WAITING), str(self.waiting), "work", str(self._work)]
        process = subprocess.Popen(
            [*under_the_name(host), *command, *_LEASE], stdout=log, stderr=subprocess.STDOUT
        )
        begun.callback(process.wait)
        begun.callback(process.kill)
        return process

    def start_by_ray(self) -> subprocess.Popen[bytes]:
        """Start a conversion that joins the run, has Ray start workers, and packs."""
        return self._ray.leconvert(
            "h1", "convert", *self._plan, *_LEASE, "--keep-work-dir", "--no-push",
            "--engine", "ray", "--ray-address", self._ray.address,
            "--workers-per-node", str(_RAY_WORKERS_A_NODE),
            log=self._folder / "by-ray.log",
        )  # fmt: skip

    def published(self, kinds: Mapping[str, str]) -> Counter[str]:
        """Return how many batches are done by each kind of worker.

        Raises:
            ScenarioFailedError: A host that is none of the lab's published one.
        """
        records = [json.loads(p.read_bytes()) for p in self._work.glob("runs/*/done/*.json")]
        hosts = Counter(record["token"].rsplit("-", 2)[0] for record in records)
        strangers = set(hosts) - set(kinds)
        demand(not strangers, f"batches were published by {strangers}")
        counts: Counter[str] = Counter()
        for host, number in hosts.items():
            counts[kinds[host]] += number
        return counts

    def end_of_second_packer(self, end: JobEnd) -> str:
        """Return how SLURM's packer ended, which met another one at work, or its result.

        Raises:
            ScenarioFailedError: It ended in another way.
        """
        if end.state == "COMPLETED":
            return "found the result in place"
        (log,) = self._work.glob(f"runs/*/logs/slurm-{end.job_id}-pack.log")
        busy = end.state == "FAILED" and _PACKS_ALREADY in log.read_text()
        demand(busy, f"SLURM's packer ended as {end}: {self.said()}")
        return "was refused, as another packed"

    def said(self) -> str:
        """Return the ends of all logs."""
        return ends_of([*self._folder.glob("*.log"), *self._work.glob("runs/*/logs/*.log")])
