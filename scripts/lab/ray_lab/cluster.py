"""One Ray cluster: a head and other nodes, each on a host of its own, from `running` to its end.

All nodes are this machine under several names: its cores are only Ray's bookkeeping, and its files
are the shared file system. Nothing is ever stopped with ``ray stop``, which ends whatever Ray runs
on the machine; what runs in a host's namespace is ended by its id.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab_kit import LabError, wait_until

from ray_lab.hosts import Hosts

__all__ = ["HEAD", "RayCluster"]

HEAD = "h1"
_PORT = 6379
_UP_SECONDS = 120.0
# Ray gives its own agents 15 s to start, which a busy machine may not keep.
_MOST_STARTS = 4
_CORES_A_NODE = 2
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
# Slows every worker's batch down by the seconds that a file says: the datasets here are small, and
# there must be a middle in which nodes die. Nothing is awaited.
_SLOWER = """
import sys
if "leconvert.run.engines.ray" in sys.orig_argv and "work" in sys.orig_argv:
    import pathlib, time
    from leconvert.run.worker import ShardWriter
    write = ShardWriter.write
    def slowly(self, *arguments, **options):
        time.sleep(float(pathlib.Path({slowness!r}).read_text()))
        return write(self, *arguments, **options)
    ShardWriter.write = slowly
"""


class RayCluster:
    """A cluster with its state and logs in a folder of its own.

    Args:
        folder: Made if missing, kept at the end; its path must be short, for Ray's sockets.
        nodes: Nodes at the start, on the hosts ``h1``, ``h2`` and so on; the first is the head.
    """

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder.absolute()
        self.nodes = nodes
        self.address = f"{Hosts.address(HEAD)}:{_PORT}"
        self._hosts = Hosts(f"leray-{secrets.token_hex(3)}")
        self._slowness = self.folder / "seconds-a-batch"

    @contextmanager
    def running(self) -> Iterator[RayCluster]:
        """Have the cluster for the length of a ``with`` block; everything on it ends with it.

        Raises:
            LabError: It cannot be built.
        """
        customised = self.folder / "site"
        customised.mkdir(parents=True, exist_ok=True)
        (customised / "sitecustomize.py").write_text(_SLOWER.format(slowness=str(self._slowness)))
        self.slow_down(0.0)
        try:
            self._hosts.create()
            for number in range(1, self.nodes + 1):
                self.boot(f"h{number}")
            yield self
        except LabError as error:
            raise LabError(f"{error} Logs are in {self.folder}.") from error
        finally:
            self._hosts.remove()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of processes on the hosts."""
        # Workers must find this very leconvert, whether it is installed or not.
        package = Path(sys.modules["leconvert"].__path__[0]).parent
        return os.environ | _SETTINGS | {"PYTHONPATH": f"{self.folder / 'site'}:{package}"}

    @property
    def processes(self) -> list[int]:
        """The ids of all processes on all hosts."""
        return self._hosts.processes()

    def boot(self, host: str) -> None:
        """Start a node on a host, and wait until the cluster has it.

        Raises:
            LabError: It does not start.
        """
        role = [f"--address={self.address}"]
        if host == HEAD:
            role = [
                "--head", f"--port={_PORT}", f"--temp-dir={self.folder / 'ray'}",
                "--include-dashboard=false",
            ]  # fmt: skip
        command = [
            *_RAY, "start", *role, f"--node-ip-address={Hosts.address(host)}",
            f"--num-cpus={_CORES_A_NODE}", f"--object-store-memory={_OBJECT_STORE_BYTES}",
            "--disable-usage-stats", "--block",
        ]  # fmt: skip
        for _ in range(_MOST_STARTS):
            if self._starts(host, command):
                return
            self._hosts.kill(host)
        raise LabError(f"Ray did not start on {host} in {_MOST_STARTS} tries.")

    def _starts(self, host: str, command: Sequence[str]) -> bool:
        self._hosts.add(host)
        self._hosts.set_link(host, up=True)
        log = self.folder / f"node-{host}.log"
        log.write_bytes(b"")
        node = self.start(host, command, log)

        def is_settled() -> bool:
            return node.poll() is not None or b"Ray runtime started" in log.read_bytes()

        wait_until(is_settled, _UP_SECONDS, f"The start of the node on {host}")
        return node.poll() is None

    def kill(self, host: str) -> int:
        """Let a node lose its power; returns how many processes it had."""
        return self._hosts.kill(host)

    def cut(self, host: str) -> None:
        """Cut a node's link; its processes go on."""
        self._hosts.set_link(host, up=False)

    def mend(self, host: str) -> None:
        """Plug a node in again."""
        self._hosts.set_link(host, up=True)

    def start(self, host: str, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process on a host, as somebody who is logged in there would."""
        return self._hosts.start(host, command, log, self.environment)

    def leconvert(self, host: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a command of leconvert on a host."""
        return self.start(host, [sys.executable, "-m", "leconvert", *arguments], log)

    def slow_down(self, seconds_a_batch: float) -> None:
        """Let every worker take so much longer for a batch from now on."""
        self._slowness.write_text(f"{seconds_a_batch}")
