"""Hosts that share this machine's files and nothing of its network: one namespace each.

Everything that runs on a host is in its namespace, so the namespace knows what has to end when the
host loses its power, whoever started it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab_kit import require, run_tool
from nfs_lab.network import Network

__all__ = ["Hosts"]

_BRIDGE = "bridge0"
_SUBNET = "10.98.0"
_PACKAGES = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}


class Hosts:
    """Hosts on one switch: ``h1``, ``h2`` and so on.

    Args:
        name: Begins the names of their namespaces, unique on this machine.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._switch = Network(f"{name}-sw")
        self._networks: dict[str, Network] = {}

    def create(self) -> None:
        """Make the switch.

        Raises:
            LabError: Not root, a tool is missing, or the kernel refuses.
        """
        require("Network namespaces take root", _PACKAGES)
        self._ip("netns", "add", self._switch.namespace)
        self._ip_at(self._switch, "link", "add", _BRIDGE, "type", "bridge")
        self._ip_at(self._switch, "link", "set", _BRIDGE, "up")

    def add(self, host: str) -> None:
        """Make a host and plug it in; one that exists is kept."""
        if host in self._networks:
            return
        network, switch = Network(f"{self._name}-{host}"), self._switch.namespace
        self._ip("netns", "add", network.namespace)
        self._networks[host] = network
        self._ip(
            "link", "add", f"to-{host}", "netns", switch, "type", "veth",
            "peer", "name", "eth0", "netns", network.namespace,
        )  # fmt: skip
        self._ip_at(self._switch, "link", "set", f"to-{host}", "master", _BRIDGE, "up")
        self._ip_at(network, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip_at(network, "link", "set", device, "up")
        # It leads nowhere: Ray asks the kernel which address it would use to go out.
        self._ip_at(network, "route", "add", "default", "dev", "eth0")

    @staticmethod
    def address(host: str) -> str:
        """Return a host's address, which exists inside the lab alone."""
        return f"{_SUBNET}.{int(host.removeprefix('h'))}"

    def set_link(self, host: str, *, up: bool) -> None:
        """Cut a host off, or plug it in again. Open connections get no reset."""
        self._ip_at(self._networks[host], "link", "set", "eth0", "up" if up else "down")

    def start(
        self, host: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host; the kernel ends it if whoever started it dies."""
        inside = ["sh", "-c", f'hostname {host} && exec "$@"', "sh", *command]
        with log.open("ab") as output:
            return subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "TERM"),
                    *self._networks[host].enter(),
                    *("unshare", "--uts"),
                    *inside,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def kill(self, host: str) -> int:
        """Let a host lose its power: end every process on it by its id; returns how many.

        The host is there again at once, with nothing on it.
        """
        network = self._networks.pop(host)
        count = len(network.processes())
        # The kernel takes its time over the links of a namespace that is gone.
        self._ip_at(self._switch, "link", "del", f"to-{host}")
        network.remove()
        self.add(host)
        return count

    def processes(self) -> list[int]:
        """Return the ids of all processes on all hosts."""
        return [pid for network in self._networks.values() for pid in network.processes()]

    def remove(self) -> None:
        """End everything on all hosts, and remove them."""
        for network in (*self._networks.values(), self._switch):
            network.remove()
        self._networks.clear()

    def _ip_at(self, network: Network, *arguments: str) -> None:
        self._ip("-n", network.namespace, *arguments)

    def _ip(self, *arguments: str) -> None:
        run_tool(["ip", *arguments])
