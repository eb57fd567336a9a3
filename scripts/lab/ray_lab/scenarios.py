"""Conversions by `--engine ray` on nodes that are killed, cut off and added meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lab_kit import Row, ScenarioFailedError, demand, short_episodes, wait_until
from tree_digest import tree_digest

from ray_lab.cluster import HEAD, RayCluster

__all__ = ["SCENARIOS", "build"]

_SECONDS = 300.0
_SECONDS_A_BATCH = 3.0


@dataclass(frozen=True, slots=True)
class Ground:
    """The cluster and folders that scenarios use.

    Attributes:
        cluster: It runs.
        folder: For results; every node sees it.
        source: A v2.1 dataset.
        expected: The digest of its conversion by one process.
    """

    cluster: RayCluster
    folder: Path
    source: Path
    expected: str


class Conversion:
    """A conversion under way."""

    def __init__(self, ground: Ground, name: str, *options: str, host: str = HEAD) -> None:
        self._ground = ground
        self.work, self.result = ground.folder / f"{name}-work", ground.folder / name
        self._log = ground.folder / f"{name}.log"
        self._began = time.monotonic()
        self._process: subprocess.Popen[bytes] = ground.cluster.leconvert(
            host, "convert", "--root", str(ground.source), "--output", str(self.result),
            "--work-dir", str(self.work), "--episodes-per-batch", "1", "--lease-seconds", "4",
            "--engine", "ray", "--ray-address", ground.cluster.address, *options, log=self._log,
        )  # fmt: skip

    @property
    def done(self) -> int:
        """How many batches are done."""
        return len(list(self.work.glob("runs/*/done/*.json")))

    def wait_for_done(self, count: int) -> None:
        """Wait until so many batches are done."""

        def enough() -> bool:
            if self._process.poll() is not None and self.done < count:
                raise ScenarioFailedError(f"convert ended early: {self._log.read_text()[-2000:]}")
            return self.done >= count

        wait_until(enough, _SECONDS, f"Batch {count} of {self.work.name}")

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers came, and one batch is done."""
        wait_until(lambda: self.workers().total() >= count, _SECONDS, f"{count} workers")
        self.wait_for_done(1)

    def wait_for_worker(self, host: str, *, since: int) -> None:
        """Wait until a host has more workers than it had."""
        wait_until(lambda: self.workers()[host] > since, _SECONDS, f"A worker on {host}")

    def seconds_until_replaced(self, before: Counter[str]) -> float:
        """Wait until a worker more came than there were, and return the seconds it took."""
        began = time.monotonic()
        wait_until(lambda: self.workers().total() > before.total(), _SECONDS, "A replacement")
        return time.monotonic() - began

    def workers(self) -> Counter[str]:
        """Return how many workers ever came, by host."""
        return Counter(
            json.loads(path.read_bytes())["host"]
            for path in self.work.glob("runs/*/workers/*.json")
        )

    def end(self) -> float:
        """Wait for the end, demand the right bytes, and return the seconds it took."""
        try:
            code = self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ScenarioFailedError(f"convert did not end: {self._log.read_text()}") from error
        seconds = time.monotonic() - self._began
        demand(code == 0, f"convert ended with {code}: {self._log.read_text()[-3000:]}")
        same = tree_digest(self.result) == self._ground.expected
        demand(same, "the result differs from the inline run's")
        return seconds


def node_killed(ground: Ground) -> Iterator[Row]:
    """A node loses its power in the middle; its workers are started on other nodes."""
    return _lost(ground, "node-killed", "loses its power", ground.cluster.kill)


def link_cut(ground: Ground) -> Iterator[Row]:
    """A node's link is cut without a reset; its processes go on behind the cut."""
    what = "loses its link without a reset, and stays cut off"
    return _lost(ground, "link-cut", what, ground.cluster.cut)


def _lost(ground: Ground, name: str, what: str, lose: Callable[[str], object]) -> Iterator[Row]:
    cluster = ground.cluster
    cluster.slow_down(_SECONDS_A_BATCH)
    conversion = Conversion(ground, name, "--nodes", "2", "--workers-per-node", "2")
    conversion.wait_for_workers(4)
    before = conversion.workers()
    # Ray may have put no worker on one of the nodes.
    host = max(before.keys() - {HEAD}, key=before.__getitem__)
    lose(host)
    replaced = conversion.seconds_until_replaced(before)
    seconds = conversion.end()
    came = conversion.workers()
    cluster.kill(host)
    cluster.boot(host)
    yield Row(
        name,
        f"4 workers on 3 nodes; {host} {what}",
        f"result byte-identical to the inline run's after {seconds:.0f} s; the {before[host]} of "
        f"{host} replaced within {replaced:.0f} s; workers by host: {_said(came)}",
    )


def node_joins(ground: Ground) -> Iterator[Row]:
    """A node joins in the middle and gets workers of its own."""
    cluster = ground.cluster
    cluster.slow_down(_SECONDS_A_BATCH)
    conversion = Conversion(ground, "joined", "--workers-per-node", "1")
    conversion.wait_for_done(2)
    cluster.boot("h4")
    began = time.monotonic()
    conversion.wait_for_worker("h4", since=0)
    joined = time.monotonic() - began
    seconds = conversion.end()
    came = conversion.workers()
    cluster.kill("h4")
    yield Row(
        "node-joins",
        "a worker on each of 3 nodes; h4 joins when some batches are done",
        f"result byte-identical to the inline run's after {seconds:.0f} s; h4 had a worker "
        f"{joined:.0f} s after Ray had the node; workers by host: {_said(came)}",
    )


SCENARIOS: Mapping[str, Callable[[Ground], Iterator[Row]]] = {
    "node-killed": node_killed,
    "link-cut": link_cut,
    "node-joins": node_joins,
}


@contextmanager
def build(options: Namespace) -> Iterator[tuple[str, Ground]]:
    """Have a cluster and a converted dataset for the length of a ``with`` block."""
    with RayCluster(options.folder / "c").running() as cluster:
        what = f"Ray {version('ray')}, {cluster.nodes} nodes in network namespaces"
        yield what, Ground(cluster, options.folder, *short_episodes(options.folder))


def _said(workers: Counter[str]) -> str:
    return ", ".join(f"{host} {count}" for host, count in sorted(workers.items()))
