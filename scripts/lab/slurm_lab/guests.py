"""SLURM on the hosts of the NFS lab: a head with the controller, and a node on each other host.

Each host has a kernel, a clock and an NFS client of its own, and shares only the mount with the
others. The controller keeps its state there, so that it survives its host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lab_kit import LabError, wait_until
from nfs_lab import Guest, GuestCommand, NfsLab
from nfs_lab.guest import MAILBOX
from nfs_lab.lab import MOUNT, SHARED

from slurm_lab.cluster import Controller, Node, configuration

_INSIDE = Path(__file__).resolve().parent / "inside"
_UP_SECONDS = 90.0
_CONTROLLER_PORT = 6817
_NODE_PORT = 6818
# Hosts share the cores of one machine: a node that is only slow must not count as dead.
_SILENCE_SECONDS = 15
_CONTROL_GROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


class GuestCluster:
    """A cluster whose nodes are hosts of a lab that is up.

    Args:
        lab: Its first client becomes the head, each other client a node of the same name.
    """

    def __init__(self, lab: NfsLab) -> None:
        self.lab = lab
        self._daemons: dict[str, GuestCommand] = {}

    @property
    def head(self) -> Guest:
        """The host of the controller; commands are run there."""
        return self.lab.clients[0]

    @property
    def nodes(self) -> list[Guest]:
        """The hosts that work."""
        return self.lab.clients[1:]

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which a command on a host finds leconvert and this cluster."""
        return self.lab.environment() | {"SLURM_CONF": f"{SHARED}/slurm/slurm.conf"}

    @property
    def version(self) -> str:
        """SLURM's version."""
        return self.run("sinfo", "--version").strip()

    def start(self) -> None:
        """Start all daemons and wait until every node is idle.

        Raises:
            LabError: A daemon ended at once.
            LabError: It takes too long.
        """
        self._write_configuration()
        self.head.shell(f"mkdir -p {self._state}")
        self.start_controller()
        for guest in self.nodes:
            self.start_node(guest)
        wait_until(self._all_idle, _UP_SECONDS, "The start of all nodes")

    def start_controller(self) -> None:
        """Start the controller on the head; it goes on from the state that it finds."""
        self._start(self.head, "slurmctld")

    def start_node(self, guest: Guest) -> None:
        """Start a node's daemon."""
        self._start(guest, "slurmd")

    def run(self, *command: str) -> str:
        """Run a command on the head and return what it wrote.

        Raises:
            LabError: It failed.
        """
        done = self.head.run(command, environment=self.environment)
        if done.code:
            raise LabError(f"`{' '.join(command)}` failed on the head: {done.err.strip()}")
        return done.out

    def states(self, job_id: str) -> dict[str, tuple[str, str]]:
        """Return state and node of each element of a job, by the element's id."""
        said = self.run(
            "squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%N",
            f"--jobs={job_id}",
        )  # fmt: skip
        fields = [line.strip().split("|") for line in said.splitlines()]
        return {element: (state, node) for element, state, node in fields}

    def answers(self) -> bool:
        """Say whether the controller answers.

        Raises:
            LabError: A daemon has ended although its host is on.
        """
        for name, daemon in self._daemons.items():
            if daemon.ended and self.lab.host(name).is_on:
                raise LabError(f"SLURM's daemon on {name} ended: {daemon.wait().err.strip()}")
        return self.head.run(["scontrol", "ping"], environment=self.environment).code == 0

    @property
    def _state(self) -> str:
        return f"{MOUNT}/slurm-state"

    def _all_idle(self) -> bool:
        if not self.answers():
            return False
        said = self.run("sinfo", "--noheader", "--format=%T %D")
        return said.split() == ["idle", str(len(self.nodes))]

    def _start(self, guest: Guest, daemon: str) -> None:
        command = ["bash", str(_INSIDE / "daemon.sh"), f"{SHARED}/slurm", daemon, "-D"]
        self._daemons[guest.name] = guest.start(command, environment=self.environment)

    def _write_configuration(self) -> None:
        folder = self.lab.shared / "slurm"
        folder.mkdir(exist_ok=True)
        controller = Controller(
            self.head.name, self.head.address, _CONTROLLER_PORT, Path(self._state)
        )
        nodes = [Node(g.name, g.name, g.address, _NODE_PORT) for g in self.nodes]
        text = configuration(
            controller, nodes, folder=Path("/run/slurm"), logs=Path(MAILBOX),
            silence_seconds=_SILENCE_SECONDS,
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text(_CONTROL_GROUPS)
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
