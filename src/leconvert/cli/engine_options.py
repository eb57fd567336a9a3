"""Options of the commands that hand workers to an engine, spelled and explained once."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.engines.slurm import SlurmEngine
    from leconvert.engines.slurm_jobs import SlurmOptions

__all__ = [
    "add_engine_options",
    "add_slurm_worker_options",
    "chosen_engine",
    "slurm_options",
]

_NUMBERS = (
    ("nodes", "nodes' worth of workers (default: 1)"),
    ("workers-per-node", "workers of a node's worth (default: 4)"),
    ("cpus-per-task", "cores of a worker (default: 1)"),
)
_TEXTS = (
    ("mem", "SIZE", "memory of a worker (default: 4G)"),
    ("time", "HH:MM:SS", "the longest run time of a worker (default: 04:00:00)"),
    ("constraint", "FEATURES", "features that a node must have"),
    ("account", "NAME", "who pays (default: $ACCOUNT)"),
    ("partition", "NAME", "which nodes (default: $PARTITION)"),
    ("qos", "NAME", "quality of service (default: $QOS)"),
    ("conda-env", "NAME", "a conda environment to activate on a node"),
    ("program", "COMMAND", "what starts leconvert on a node (default: leconvert)"),
)
_OF_SITE = ("account", "partition", "qos", "conda_env", "program")


def add_slurm_worker_options(parser: argparse.ArgumentParser) -> None:
    """Add what workers ask SLURM for."""
    group = parser.add_argument_group("SLURM")
    for name, what in _NUMBERS:
        group.add_argument(f"--{name}", type=int, metavar="N", help=what)
    for name, metavar, what in _TEXTS:
        group.add_argument(f"--{name}", metavar=metavar, help=what)
    group.add_argument(
        "--signal", type=int, metavar="S", dest="signal_seconds",
        help="ask a worker to hand back S seconds before its time is over (default: 120)",
    )  # fmt: skip
    group.add_argument(
        "--slurm-extra", action="append", metavar="OPTION",
        help="a further option of sbatch, such as --slurm-extra=--exclusive; may be given again",
    )  # fmt: skip


def slurm_options(options: argparse.Namespace) -> SlurmOptions:
    """Return what workers ask SLURM for, as given or from the environment."""
    from leconvert.engines.site import site_from
    from leconvert.engines.slurm_jobs import SlurmOptions

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


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add who starts the workers of a conversion, and how many."""
    parser.add_argument(
        "--engine", choices=("inline", "local", "slurm"),
        help="who starts workers: this process (threads), this machine (processes), or SLURM "
        "(default: inline, or local where the work is many small files)",
    )  # fmt: skip
    parser.add_argument(
        "--orchestrate", action=argparse.BooleanOptionalAction,
        help="--orchestrate is --engine local, --no-orchestrate is --engine inline; more workers "
        "can join with `leconvert work`",
    )  # fmt: skip
    parser.add_argument("--num-workers", type=int, metavar="N", help="work in N processes")
    parser.add_argument("--max-workers", type=int, metavar="N", help="work in N threads")
    add_slurm_worker_options(parser)


def chosen_engine(options: argparse.Namespace) -> SlurmEngine | None:
    """Return the engine of a conversion; None for threads or processes of this machine.

    Which of these two is in ``options.orchestrate`` afterwards.

    Raises:
        UsageError: Options contradict each other.
    """
    if options.engine != "slurm":
        _refuse_slurm_options(options)
    if options.engine is None:
        return None
    in_processes = options.engine != "inline"
    if options.orchestrate not in (None, in_processes):
        word = "--orchestrate" if options.orchestrate else "--no-orchestrate"
        raise UsageError(f"--engine {options.engine} and {word} contradict each other.")
    if in_processes and options.max_workers is not None:
        raise UsageError(
            f"--engine {options.engine} starts processes.", next_step="Write --num-workers N."
        )
    if not in_processes and options.num_workers is not None:
        raise UsageError("--engine inline works in threads.", next_step="Write --max-workers N.")
    options.orchestrate = in_processes
    if options.engine != "slurm":
        return None
    from leconvert.engines.slurm import SlurmEngine

    return SlurmEngine(slurm_options(options))


def _refuse_slurm_options(options: argparse.Namespace) -> None:
    names = [name for name, _ in _NUMBERS] + [name for name, *_ in _TEXTS] + ["slurm-extra"]
    for name in names:
        if getattr(options, name.replace("-", "_")) is not None:
            raise UsageError(f"--{name} goes with --engine slurm.")
    if options.signal_seconds is not None:
        raise UsageError("--signal goes with --engine slurm.")
