"""Conversions by `--engine ray` on nodes that are killed, cut off and added meanwhile.

Each node is on a host with a network namespace of its own. All hosts are this machine under several
names: its cores are only Ray's bookkeeping, and its files are the shared file system. Nothing is
ever stopped with ``ray stop``, which ends whatever Ray runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from lab_kit import (
    REPOSITORY,
    LabError,
    Network,
    Rows,
    demand,
    digest_of,
    require,
    run_tool,
    short_episodes,
    wait_until,
)

_HEAD = "h1"
_NODES = 3
_SUBNET, _BRIDGE, _PORT = "10.98.0", "bridge0", 6379
_PACKAGES = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_SECONDS, _UP_SECONDS = 300.0, 120.0
_SECONDS_A_BATCH = 6.0
# Ray gives its own agents 15 s to start, which a busy machine may not keep.
_MOST_STARTS = 4
_OBJECT_STORE_BYTES = 75 * 2**20  # Ray's least
_RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")
# Ray's own defaults take half a minute to notice that a node is cut off, and start processes in
# advance for every core.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}
# Slows every worker's batch down: the datasets here are small, and there must be a middle in which
# nodes die. Nothing is awaited.
_SLOWER = f"""
import sys
if "leconvert.run.engines.ray" in sys.orig_argv and "work" in sys.orig_argv:
    sys.path.append({str(REPOSITORY / "scripts/benches")!r})
    from slow_worker import slow_down
    slow_down({_SECONDS_A_BATCH}, 0)
"""


class Cluster:
    """A Ray cluster on the hosts ``h1``, ``h2`` and so on, the first of which is the head.

    Args:
        folder: For its state and logs; made if missing, kept at the end. Its path must be short,
            for Ray's sockets.

    Attributes:
        source: A v2.1 dataset.
        expected: The digest of its conversion by one process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.address = f"{_SUBNET}.1:{_PORT}"
        self._switch = Network()
        self._hosts: dict[str, Network] = {}

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """Have the cluster for the length of a ``with`` block; everything on it ends with it."""
        require("Network namespaces take root", _PACKAGES)
        self.source, _, self.expected = short_episodes(self.folder)
        (self.folder / "site").mkdir()
        (self.folder / "site/sitecustomize.py").write_text(_SLOWER)
        try:
            self._switch.create(_BRIDGE)
            for number in range(1, _NODES + 1):
                self.boot(f"h{number}")
            yield self
        except LabError as error:
            raise LabError(f"{error} Logs are in {self.folder}.") from error
        finally:
            for namespace in (*self._hosts.values(), self._switch):
                namespace.remove()
            self._hosts.clear()

    @property
    def processes(self) -> list[int]:
        """The ids of all processes on all hosts."""
        return [pid for host in self._hosts.values() for pid in host.processes()]

    def boot(self, host: str) -> None:
        """Start a node on a host, which is made if it is missing, until the cluster has it."""
        number = int(host.removeprefix("h"))
        role = [f"--address={self.address}"]
        if host == _HEAD:
            role = ["--head", f"--port={_PORT}", f"--temp-dir={self.folder / 'ray'}",
                    "--include-dashboard=false"]  # fmt: skip
        command = [
            *_RAY, "start", *role, f"--node-ip-address={_SUBNET}.{number}", "--num-cpus=2",
            f"--object-store-memory={_OBJECT_STORE_BYTES}", "--disable-usage-stats", "--block",
        ]  # fmt: skip
        log = self.folder / f"node-{host}.log"
        for _ in range(_MOST_STARTS):
            self._make_host(host, number)
            log.write_bytes(b"")
            node = self.start(host, *command, log=log)

            def is_settled(node: subprocess.Popen[bytes] = node) -> bool:
                return node.poll() is not None or b"Ray runtime started" in log.read_bytes()

            wait_until(is_settled, _UP_SECONDS, f"The start of the node on {host}")
            if node.poll() is None:
                return
            self.kill(host)
        raise LabError(f"Ray did not start on {host} in {_MOST_STARTS} tries.")

    def _make_host(self, host: str, number: int) -> None:
        """Make a host and plug it into the switch."""
        network = self._hosts[host] = Network()
        network.create()
        run_tool([
            "ip", "link", "add", f"to-{host}", "netns", self._switch.name, "type", "veth",
            "peer", "name", "eth0", "netns", network.name,
        ])  # fmt: skip
        self._switch.ip("link", "set", f"to-{host}", "master", _BRIDGE, "up")
        network.ip("addr", "add", f"{_SUBNET}.{number}/24", "dev", "eth0")
        network.ip("link", "set", "eth0", "up")
        # It leads nowhere: Ray asks the kernel which address it would use to go out.
        network.ip("route", "add", "default", "dev", "eth0")

    def kill(self, host: str) -> None:
        """Let a host lose its power: end every process on it by its id."""
        # The kernel takes its time over the links of a namespace that is gone.
        self._switch.ip("link", "del", f"to-{host}")
        self._hosts.pop(host).remove()

    def cut(self, host: str) -> None:
        """Cut a host's link; its processes go on. Open connections get no reset."""
        self._hosts[host].ip("link", "set", "eth0", "down")

    def start(self, host: str, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a process on a host, as somebody who is logged in there would."""
        # Workers must find this very leconvert, whether it is installed or not.
        package = Path(sys.modules["leconvert"].__path__[0]).parent
        named = ("unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh")
        with log.open("ab") as output:
            return subprocess.Popen(
                self._hosts[host].entered(*named, *command),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=os.environ | _SETTINGS | {"PYTHONPATH": f"{self.folder / 'site'}:{package}"},
            )  # fmt: skip


class Conversion:
    """A conversion under way, by a command on the head."""

    def __init__(self, cluster: Cluster, name: str, *options: str) -> None:
        self._cluster = cluster
        folder = cluster.folder
        self.work, self.result = folder / f"{name}-work", folder / name
        self._log = folder / f"{name}.log"
        self._began = time.monotonic()
        self._process = cluster.start(
            _HEAD, sys.executable, "-m", "leconvert", "convert", "--root", str(cluster.source),
            "--output", str(self.result), "--work-dir", str(self.work), "--episodes-per-batch", "1",
            "--lease-seconds", "4", "--engine", "ray", "--ray-address", cluster.address, *options,
            log=self._log,
        )  # fmt: skip

    def wait(self, ready: Callable[[], bool], what: str) -> float:
        """Wait for what happens before the end; return the seconds it took."""

        def is_ready() -> bool:
            has_ended = self._process.poll() is not None
            holds = ready()
            demand(holds or not has_ended, f"convert ended: {self._log.read_text()[-2000:]}")
            return holds

        began = time.monotonic()
        wait_until(is_ready, _SECONDS, f"{what} of {self.work.name}")
        return time.monotonic() - began

    def done(self) -> int:
        """Return how many batches are done."""
        return len(list(self.work.glob("runs/*/done/*.json")))

    def workers(self) -> Counter[str]:
        """Return how many workers ever came, by host."""
        records = self.work.glob("runs/*/workers/*.json")
        return Counter(json.loads(path.read_bytes())["host"] for path in records)

    def end(self) -> str:
        """Wait for the end, demand the right bytes, and say so."""
        ended = lambda: self._process.poll() is not None  # noqa: E731
        wait_until(ended, _SECONDS, "The end of convert")
        seconds = time.monotonic() - self._began
        code = self._process.returncode
        demand(code == 0, f"convert ended with {code}: {self._log.read_text()[-3000:]}")
        same = digest_of(self.result) == self._cluster.expected
        demand(same, "the result differs from the inline run's")
        return f"result byte-identical to the inline run's after {seconds:.0f} s"


def node_killed(cluster: Cluster) -> Rows:
    """A node of three loses its power; its workers are started on other nodes."""
    return _lost(cluster, "node-killed", cluster.kill)


def link_cut(cluster: Cluster) -> Rows:
    """A node of three loses its link without a reset; its processes go on behind the cut."""
    return _lost(cluster, "link-cut", cluster.cut)


def _lost(cluster: Cluster, name: str, lose: Callable[[str], None]) -> Rows:
    conversion = Conversion(cluster, name, "--nodes", "2", "--workers-per-node", "2")
    conversion.wait(lambda: conversion.workers().total() >= 4, "The workers")
    conversion.wait(lambda: conversion.done() >= 1, "The first batch")
    before = conversion.workers()
    # Ray may have put no worker on one of the nodes.
    host = max(before.keys() - {_HEAD}, key=before.__getitem__)
    lose(host)
    replaced = conversion.wait(
        lambda: conversion.workers().total() > before.total(), "A replacement"
    )
    result = conversion.end()
    if lose == cluster.cut:
        cluster.kill(host)
    cluster.boot(host)
    yield (
        f"{result}; the {before[host]} workers of {host} replaced within {replaced:.0f} s; workers "
        f"by host: {_said(conversion)}"
    )


def node_joins(cluster: Cluster) -> Rows:
    """A fourth node joins when some batches are done, and gets workers of its own."""
    conversion = Conversion(cluster, "joined", "--workers-per-node", "1")
    conversion.wait(lambda: conversion.done() >= 2, "Two batches")
    cluster.boot("h4")
    joined = conversion.wait(lambda: conversion.workers()["h4"] >= 1, "A worker of h4")
    result = conversion.end()
    cluster.kill("h4")
    yield (
        f"{result}; h4 had a worker {joined:.0f} s after Ray had the node; workers by host: "
        f"{_said(conversion)}"
    )


def _said(conversion: Conversion) -> str:
    return ", ".join(f"{host} {count}" for host, count in sorted(conversion.workers().items()))


SCENARIOS: Mapping[str, Callable[[Cluster], Rows]] = {
    "node-killed": node_killed,
    "link-cut": link_cut,
    "node-joins": node_joins,
}


@contextmanager
def build(options: argparse.Namespace) -> Iterator[tuple[str, Cluster]]:
    """Have a cluster and a converted dataset for the length of a ``with`` block."""
    with Cluster(options.folder / "c").running() as cluster:
        yield f"Ray {version('ray')}, {_NODES} nodes in network namespaces", cluster
