"""What a cluster wants to know of whoever submits, and how the program is found on a node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from leconvert.errors import UsageError

__all__ = ["Site", "check_memory", "check_time", "script_head", "site_from"]

# What SLURM's --mem and --time take; anything else would be refused when it is submitted.
_MEMORY = re.compile(r"\d+[KMGT]?")
_TIME = re.compile(r"\d+|(\d+-)?\d{1,2}(:\d{2}){1,2}")


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster wants to know of whoever submits, and how the program is found on a node.

    Attributes:
        account: Who pays.
        partition: Which nodes.
        qos: Quality of service.
        conda_env: A conda environment to activate, by name or folder.
        program: The program's command line on a node.
    """

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    conda_env: str | None = None
    program: str = "leconvert"

    def sbatch_options(self) -> tuple[str, ...]:
        """Return what ``sbatch`` is told of it."""
        named = (("account", self.account), ("partition", self.partition), ("qos", self.qos))
        return tuple(f"--{name}={value}" for name, value in named if value is not None)

    def command(self, *arguments: str) -> str:
        """Return a line of a script that runs the program on a node."""
        return shlex.join((*shlex.split(self.program), *arguments))


def site_from(
    environment: Mapping[str, str],
    *,
    account: str | None = None,
    partition: str | None = None,
    qos: str | None = None,
    conda_env: str | None = None,
    program: str = "leconvert",
) -> Site:
    """Return a site: what was given, else ACCOUNT, PARTITION and QOS of the environment.

    Raises:
        UsageError: The program's command line is empty.
    """
    if not shlex.split(program):
        raise UsageError("--program needs the command that starts leconvert on a node.")
    return Site(
        account=account or environment.get("ACCOUNT") or None,
        partition=partition or environment.get("PARTITION") or None,
        qos=qos or environment.get("QOS") or None,
        conda_env=conda_env,
        program=program,
    )


def script_head(site: Site) -> list[str]:
    """Return the first lines of a job script, up to where the program can be called."""
    lines = ["#!/bin/bash"]
    if site.conda_env is not None:
        # Conda's own scripts read unset variables: strictness begins behind them.
        lines += [
            'source "$(conda info --base)/etc/profile.d/conda.sh"',
            f"conda activate {shlex.quote(site.conda_env)}",
        ]
    return [*lines, "set -euo pipefail"]


def check_memory(text: str) -> bool:
    """Say whether SLURM's ``--mem`` takes it."""
    return _MEMORY.fullmatch(text) is not None


def check_time(text: str) -> bool:
    """Say whether SLURM's ``--time`` takes it."""
    return _TIME.fullmatch(text) is not None
