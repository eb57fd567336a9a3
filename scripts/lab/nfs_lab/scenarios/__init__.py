"""The NFS lab: disturbances of the hosts, and the promises that must hold nevertheless."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lab_kit import Row

from nfs_lab.lab import DEFAULT_FOLDER, NFS_LEASE_SECONDS, LabOptions, NfsLab
from nfs_lab.requirements import kernel_version
from nfs_lab.scenarios.conditions import (
    clock_skew,
    latency,
    promises,
    server_restart,
    set_clock,
    set_latency,
    whole_conversion,
)
from nfs_lab.scenarios.contests import brief, changed_source, late_names, races
from nfs_lab.scenarios.ground import Ground
from nfs_lab.scenarios.losses import frozen_hosts, packer_power_loss, worker_power_loss

__all__ = ["FOLDER", "SCENARIOS", "Ground", "brief", "build", "set_clock", "set_latency"]

FOLDER = DEFAULT_FOLDER
"""The folder of the lab by default."""

SCENARIOS: Mapping[str, Callable[[Ground], Iterator[Row]]] = {
    "promises": promises,
    "races": races,
    "late-names": late_names,
    "changed-source": changed_source,
    "worker-power-loss": worker_power_loss,
    "packer-power-loss": packer_power_loss,
    "frozen-host": frozen_hosts,
    "clock-skew": clock_skew,
    "latency": latency,
    "server-restart": server_restart,
    "whole-conversion": whole_conversion,
}
"""Every scenario by name, in the order in which they run."""


@contextmanager
def build(options: Namespace) -> Iterator[tuple[str, Ground]]:
    """Have a lab of three hosts for the length of a ``with`` block."""
    asked = LabOptions(clients=3)
    with NfsLab(options.folder).running(asked) as lab:
        yield (
            f"Linux {kernel_version()} on every host, {asked.clients} hosts and a server with "
            f"{asked.file_system}, mount options by default, server's lease {NFS_LEASE_SECONDS} s",
            Ground(lab),
        )
