"""Options for workers that SLURM starts, spelled and explained once."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from leconvert.cli.values import whole
from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.engines import SlurmOptions

__all__ = ["add_slurm_worker_options", "refuse_slurm_worker_options", "slurm_options"]

_NUMBERS = (
    ("nodes", "nodes' worth of workers (default: 1)"),
    ("workers-per-node", "workers of a node's worth (default: 4)"),
    ("cpus-per-task", "cores of a worker (default: 1)"),
)
_TEXTS = (
    ("mem", "SIZE", "memory of a worker (default: 1G)"),
    ("time", "HH:MM:SS", "the longest run time of a worker (default: 04:00:00)"),
    ("constraint", "FEATURES", "features that a node must have"),
    ("account", "NAME", "who pays (default: $ACCOUNT)"),
    ("partition", "NAME", "which nodes (default: $PARTITION)"),
    ("qos", "NAME", "quality of service (default: $QOS)"),
    ("conda-env", "NAME", "a conda environment to activate on a node"),
    ("program", "COMMAND", "what starts leconvert on a node (default: leconvert)"),
)
_OF_RAY_TOO = ("nodes", "workers-per-node", "cpus-per-task", "mem")
_OF_SITE = ("account", "partition", "qos", "conda_env", "program")


def add_slurm_worker_options(parser: argparse.ArgumentParser, *, title: str = "SLURM") -> None:
    """Add what workers ask SLURM for.

    Args:
        parser: Where to.
        title: Whose options they are.
    """
    group = parser.add_argument_group(title)
    for name, what in _NUMBERS:
        group.add_argument(f"--{name}", type=whole(1), metavar="N", help=what)
    for name, metavar, what in _TEXTS:
        group.add_argument(f"--{name}", metavar=metavar, help=what)
    group.add_argument(
        "--signal", type=whole(1), metavar="S", dest="signal_seconds",
        help="ask a worker to hand back S seconds before its time is over (default: 120)",
    )  # fmt: skip
    group.add_argument(
        "--slurm-extra", action="append", metavar="OPTION",
        help="a further option of sbatch, such as --slurm-extra=--exclusive; may be given again",
    )  # fmt: skip


def slurm_options(options: argparse.Namespace) -> SlurmOptions:
    """Return what workers ask SLURM for, as given or from the environment."""
    from leconvert.engines import SlurmOptions
    from leconvert.engines.site import site_from

    of_site = {name: getattr(options, name) for name in _OF_SITE if getattr(options, name)}
    given = {
        name: getattr(options, name)
        for name in (
            *("nodes", "workers_per_node", "cpus_per_task", "mem", "time", "constraint"),
            "signal_seconds",
        )
        if getattr(options, name) is not None
    }
    return SlurmOptions(
        **given, extra=tuple(options.slurm_extra or ()), site=site_from(os.environ, **of_site)
    )


def refuse_slurm_worker_options(options: argparse.Namespace) -> None:
    """Fail if SLURM is told something where it starts no workers; some of it Ray is told too.

    Raises:
        UsageError: It is.
    """
    names = [name for name, _ in _NUMBERS] + [name for name, *_ in _TEXTS] + ["slurm-extra"]
    for name in names:
        if name in _OF_RAY_TOO and options.engine == "ray":
            continue
        if getattr(options, name.replace("-", "_")) is not None:
            both = " or ray" if name in _OF_RAY_TOO else ""
            raise UsageError(f"--{name} goes with --engine slurm{both}.")
    if options.signal_seconds is not None:
        raise UsageError("--signal goes with --engine slurm.")
