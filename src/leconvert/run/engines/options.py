"""The resources that workers request from SLURM, as plain values.

Every command line with flags of SLURM needs these values. The module that talks to SLURM is
separate, because it writes records of the work dir and so loads NumPy and pyarrow.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from leconvert.support.errors import UsageError
from leconvert.support.flags import flag, whole

# Values that SLURM's --mem and --time accept; `sbatch` would refuse others.
_MEMORY = re.compile(r"\d+[KMGT]?")
_TIME = re.compile(r"\d+|(\d+-)?\d{1,2}(:\d{2}){1,2}")


@dataclass(frozen=True, slots=True)
class Site:
    """The submitter's account and limits on a cluster, and the command of the program on a node.

    Attributes:
        account: The account that is charged.
        partition: The group of nodes.
        qos: Quality of service.
        conda_env: A conda environment to activate, by name or folder.
        program: The program's command line on a node.
    """

    account: str | None = flag(None, "SLURM account (default: $ACCOUNT)", "NAME")
    partition: str | None = flag(None, "SLURM partition (default: $PARTITION)", "NAME")
    qos: str | None = flag(None, "SLURM quality of service (default: $QOS)", "NAME")
    conda_env: str | None = flag(None, "the conda environment to activate on each node", "NAME")
    program: str = flag(
        "leconvert", "the command that starts leconvert on a node (default: leconvert)", "COMMAND"
    )

    def sbatch_options(self) -> tuple[str, ...]:
        """Return the options of ``sbatch`` for this site."""
        named = (("account", self.account), ("partition", self.partition), ("qos", self.qos))
        return tuple(f"--{name}={value}" for name, value in named if value is not None)

    def command(self, *arguments: str) -> str:
        """Return a line of a script that runs the program on a node."""
        return shlex.join((*shlex.split(self.program), *arguments))


def site_from(environment: Mapping[str, str], given: Site) -> Site:
    """Return a site, with missing values from ACCOUNT, PARTITION and QOS of the environment."""
    if not shlex.split(given.program):
        raise UsageError("--program is empty. Give the command that starts leconvert on a node.")
    return replace(
        given,
        account=given.account or environment.get("ACCOUNT") or None,
        partition=given.partition or environment.get("PARTITION") or None,
        qos=given.qos or environment.get("QOS") or None,
    )


def check_memory(text: str) -> bool:
    """Return whether SLURM's ``--mem`` accepts a text."""
    return _MEMORY.fullmatch(text) is not None


def check_time(text: str) -> bool:
    """Return whether SLURM's ``--time`` accepts a text."""
    return _TIME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The resources that workers request from SLURM.

    Each worker is one element of a job array. SLURM starts, preempts and restarts each element by
    itself, on any node with room.

    Attributes:
        nodes: Factor of the number of workers, which SLURM may place on other numbers of nodes.
        workers_per_node: The other factor; there are ``nodes * workers_per_node`` workers.
        cpus_per_task: Cores per worker.
        mem: Memory per worker, and of the packer, in the notation of ``--mem``, such as ``4G``.
        time: The longest run time of a worker, ``HH:MM:SS``.
        constraint: Features that a node must have, or None.
        signal_seconds: A worker is asked to hand back this long before its time is over. SLURM may
            be a minute late.
        extra: Further options of ``sbatch``, passed unchanged.
        site: Account, partition, quality of service, and the program's command.

    Raises:
        UsageError: A number or size is invalid.
    """

    nodes: int = flag(1, "number of nodes (default: 1)", "N", whole(1))
    workers_per_node: int = flag(4, "workers per node (default: 4)", "N", whole(1))
    cpus_per_task: int = flag(1, "cores per worker (default: 1)", "N", whole(1))
    # Four times the memory that `leconvert.run.worker_pool.worker_bytes` gives a worker without
    # large tables.
    mem: str = flag("1G", "memory per worker (default: 1G)", "SIZE")
    time: str = flag("04:00:00", "the longest run time of a worker (default: 04:00:00)", "HH:MM:SS")
    constraint: str | None = flag(None, "features that the nodes must have", "FEATURES")
    signal_seconds: int = flag(
        120,
        "seconds before the time limit when workers stop and return their batches (default: 120)",
        "S",
        whole(1),
        names=("--signal",),
    )
    extra: Sequence[str] = flag(
        (),
        "a further option of sbatch, such as --exclusive; may be given several times",
        "OPTION",
        names=("--slurm-extra",),
    )
    site: Site = field(default_factory=Site)

    def __post_init__(self) -> None:
        for name in ("nodes", "workers_per_node", "cpus_per_task", "signal_seconds"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} must be at least 1, not {getattr(self, name)}.")
        if not check_memory(self.mem):
            raise UsageError(
                f"--slurm mem={self.mem} is not an amount of memory.",
                next_step="Write for example --slurm mem=4G.",
            )
        if not check_time(self.time):
            raise UsageError(
                f"--slurm time={self.time} is not a duration.",
                next_step="Write for example --slurm time=04:00:00.",
            )
        for option in self.extra:
            if not option.startswith("-"):
                raise UsageError(
                    f"--slurm extra={option} is not an option of sbatch.",
                    next_step="Write for example --slurm extra=--exclusive, once for each option.",
                )

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.nodes * self.workers_per_node
