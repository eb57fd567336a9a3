"""The lab's own network: a namespace with one bridge, and a tap for every host.

Everything that belongs to a lab lives in its namespace. So the namespace is also the list of what
has to end when the lab ends, and it knows that list even if whoever built the lab was killed.
"""

from __future__ import annotations

import os
import signal
import time

from lab_kit import LabError, run_tool

_BRIDGE = "bridge0"
_SUBNET = "10.99.0"
_GATEWAY = f"{_SUBNET}.254"
_LONGEST_TAP_NAME = 15
_KILL_SECONDS = 10.0


class Network:
    """The network namespace of one lab.

    Args:
        namespace: Its name, unique on this machine.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    @staticmethod
    def address(number: int) -> str:
        """Return the address of host ``number``, 1 to 253."""
        return f"{_SUBNET}.{number}"

    @staticmethod
    def hardware_address(number: int) -> str:
        """Return a host's hardware address: the same at every boot, or its peers look in vain."""
        return f"02:00:00:00:00:{number:02x}"

    @staticmethod
    def tap(host: str) -> str:
        """Return the name of a host's tap."""
        return f"tap-{host}"[:_LONGEST_TAP_NAME]

    @property
    def exists(self) -> bool:
        """Whether the namespace is there."""
        listed = run_tool(["ip", "netns", "list"]).splitlines()
        return self.namespace in {line.split()[0] for line in listed if line.strip()}

    def create(self) -> None:
        """Make the namespace and its bridge.

        Raises:
            LabError: The machine does not allow it.
        """
        run_tool(["ip", "netns", "add", self.namespace])
        self._ip("link", "set", "lo", "up")
        self._ip("link", "add", _BRIDGE, "type", "bridge")
        self._ip("addr", "add", f"{_GATEWAY}/24", "dev", _BRIDGE)
        self._ip("link", "set", _BRIDGE, "up")

    def add_tap(self, host: str) -> None:
        """Make a host's tap and plug it into the bridge; one that exists is kept."""
        tap = self.tap(host)
        listed = self._ip("-brief", "link", "show").split()
        if tap in listed:
            return
        self._inside("ip", "tuntap", "add", tap, "mode", "tap")
        # The guest's driver takes packets as they are: a checksum left to hardware is never made.
        self._inside("ethtool", "-K", tap, "tx", "off")
        self._ip("link", "set", tap, "master", _BRIDGE, "up")

    def enter(self) -> list[str]:
        """Return the start of a command that runs in the namespace."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}"]

    def processes(self) -> list[int]:
        """Return the ids of all processes in the namespace."""
        return [int(pid) for pid in run_tool(["ip", "netns", "pids", self.namespace]).split()]

    def remove(self) -> None:
        """End every process in the namespace by its id, then remove it; harmless if it is gone.

        Raises:
            LabError: A process does not end.
        """
        if not self.exists:
            return
        deadline = time.monotonic() + _KILL_SECONDS
        while left := self.processes():
            if time.monotonic() > deadline:
                raise LabError(f"Processes {left} of the lab {self.namespace} do not end.")
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)  # processes of others end: there is no child to wait for
        run_tool(["ip", "netns", "del", self.namespace])

    def _ip(self, *arguments: str) -> str:
        return run_tool(["ip", "-n", self.namespace, *arguments])

    def _inside(self, *command: str) -> None:
        run_tool(["ip", "netns", "exec", self.namespace, *command])
