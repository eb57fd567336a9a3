"""Disturbances of the hosts, and the promises that must hold nevertheless."""

from collections.abc import Callable, Iterator, Mapping

from lab_kit import Row

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

__all__ = ["ALL", "SCENARIOS", "Ground", "set_clock", "set_latency"]

SCENARIOS: Mapping[str, Callable[[Ground], Iterator[Row]]] = {
    "brief": brief,
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

ALL = tuple(name for name in SCENARIOS if name != "brief")
"""The scenarios of a full run; the brief one repeats two of them on a smaller scale."""
