"""Options of the commands that send jobs to SLURM, spelled and explained once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leconvert.errors import UsageError

if TYPE_CHECKING:
    from leconvert.engines.site import Site
    from leconvert.probe.resources import ResourceChanges

__all__ = ["add_slurm_options", "passed_on", "refuse_slurm_options", "resource_changes", "site"]

_RESOURCES = (
    ("nodes", "N", "nodes, each with one process"),
    ("cpus", "N", "cores of a node"),
    ("mem", "SIZE", "memory of a node, such as 64G"),
    ("time", "HH:MM:SS", "the longest run time"),
    ("gpus", "N", "GPUs of a node"),
)


def add_slurm_options(parser: argparse.ArgumentParser, *, named: bool) -> None:
    """Add what a job asks for and who asks.

    Args:
        parser: Where to.
        named: Whether there are several jobs, so that a resource can be meant for one of them.
    """
    group = parser.add_argument_group("SLURM")
    for name, metavar, what in _RESOURCES:
        group.add_argument(
            f"--{name}", action="append", default=[],
            metavar=f"[NAME=]{metavar}" if named else metavar,
            help=f"{what}; of one job with its name, may be given again" if named else what,
        )  # fmt: skip
    group.add_argument("--account", metavar="NAME", help="who pays (default: $ACCOUNT)")
    group.add_argument("--partition", metavar="NAME", help="which nodes (default: $PARTITION)")
    group.add_argument("--qos", metavar="NAME", help="quality of service (default: $QOS)")
    group.add_argument(
        "--conda-env", metavar="NAME", help="a conda environment to activate on a node"
    )
    group.add_argument(
        "--program", default="leconvert", metavar="COMMAND",
        help="what starts leconvert on a node (default: leconvert)",
    )  # fmt: skip
    group.add_argument(
        "--dry-run", action="store_true",
        help="print a shell script that submits the same, and submit nothing",
    )  # fmt: skip


def site(options: argparse.Namespace) -> Site:
    """Return account, partition and program, as given or from the environment."""
    from leconvert.engines.site import site_from

    return site_from(
        os.environ,
        account=options.account,
        partition=options.partition,
        qos=options.qos,
        conda_env=options.conda_env,
        program=options.program,
    )


def resource_changes(options: argparse.Namespace, names: Sequence[str]) -> ResourceChanges:
    """Return what the options change in the jobs of these names."""
    from leconvert.probe.resources import parse_resource_changes

    return parse_resource_changes({name: getattr(options, name) for name, *_ in _RESOURCES}, names)


def refuse_slurm_options(options: argparse.Namespace) -> None:
    """Fail if resources are asked for where nothing is submitted.

    Raises:
        UsageError: They are.
    """
    for name, *_ in _RESOURCES:
        if getattr(options, name):
            raise UsageError(f"--{name} says what a job asks for; it goes with --submit.")


def passed_on(
    options: argparse.Namespace, declared: argparse.ArgumentParser, *, without: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the options that differ from their defaults, as a command line.

    Args:
        options: As parsed.
        declared: A parser with nothing but the options that may be passed on.
        without: Names of options to leave out.
    """
    words: list[str] = []
    for name, default in vars(declared.parse_args([])).items():
        value = getattr(options, name)
        if value == default or name in without:
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            words += [f"{flag}={item}" for item in value]
        else:
            words.append(f"{flag}={value}")
    return tuple(words)
