"""The resources that workers request from SLURM and from Ray, as plain values.

Every command line with flags of an engine needs these values. The modules that talk to SLURM and
Ray are separate, because they write records of the work dir and so load NumPy and pyarrow.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from leconvert.support.errors import UsageError
from leconvert.support.flags import flag, whole
from leconvert.support.values import dataclass

# Values that --mem, also for Ray, and --time accept; `sbatch` would refuse others.
_MEMORY = re.compile(r"(\d+)([KMGT]?)")
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


# Ray.


_WORKERS_A_NODE = 4
# More than a run has batches, so its nodes decide the number.
_NO_LIMIT = 2**31
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError:
        raise UsageError(
            f"--ray resource={text} is not of the form resource=NAME=NUMBER.",
            next_step="Write for example --ray resource=gpu=1.",
        ) from None


def _runtime_env(text: str) -> dict[str, Any]:
    try:
        found, why = json.loads(text), "a JSON object"
    except ValueError as error:
        found, why = None, f"JSON: {error}"
    if not isinstance(found, dict):
        raise UsageError(
            f"The value of --ray runtime-env is not {why}.",
            next_step="Write for example --ray runtime-env="
            """'{"env_vars": {"NAME": "VALUE"}}'.""",
        )
    return found


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The resources that workers request from a Ray cluster, and their number.

    By default, every node with room for a worker gets up to four workers, including nodes that join
    later.

    Attributes:
        address: ``auto`` for the cluster of this machine or of RAY_ADDRESS, ``HOST:PORT`` for
            another one that this machine belongs to, ``local`` to start one on this machine.
        workers: Most workers in all; None lets the nodes decide.
        nodes: If given, there are at most ``nodes * workers_per_node`` workers.
        workers_per_node: Most workers per node. None means four; if ``workers`` is given, as many
            as have room.
        cpus_per_task: Cores per worker.
        mem: Memory per worker, such as ``4G``; None to request none.
        resources: Custom resources of a worker, by name.
        runtime_env: The `runtime environment`_ of workers.
        ship_package: Send leconvert itself to nodes that lack it. The libraries that it needs must
            be there, or come by ``runtime_env``.
        connect_seconds: How long to wait for the cluster's answer.
        node_wait_seconds: How long to continue while no node has room for a worker.

    Raises:
        UsageError: A number or size is invalid.

    .. _runtime environment: https://docs.ray.io/en/latest/ray-core/handling-dependencies.html
    """

    address: str = flag(
        "auto",
        "HOST:PORT of the Ray cluster, or local to start one on this machine (default: "
        "$RAY_ADDRESS, or the cluster of this machine)",
        "ADDRESS",
        names=("--ray-address",),
    )
    workers: int | None = None
    nodes: int | None = None
    workers_per_node: int | None = None
    cpus_per_task: int = 1
    mem: str | None = None
    resources: Mapping[str, float] = flag(
        (),
        "a custom resource that each worker takes; may be given several times",
        "NAME=N",
        _resource,
        names=("--ray-resource",),
    )
    runtime_env: Mapping[str, Any] = flag(
        None,
        "the runtime environment of the workers, as JSON",
        "JSON",
        _runtime_env,
        names=("--ray-runtime-env",),
    )
    ship_package: bool = flag(
        False,
        "send leconvert to nodes where it is not installed",
        names=("--ray-ship-package",),
    )
    connect_seconds: float = 60.0
    node_wait_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("resources", "runtime_env"):
            object.__setattr__(self, name, dict(getattr(self, name) or ()))
        for name in ("workers", "nodes", "workers_per_node", "cpus_per_task"):
            number = getattr(self, name)
            if number is not None and number < 1:
                option = "num-workers" if name == "workers" else name.replace("_", "-")
                raise UsageError(f"--{option} must be at least 1, not {number}.")
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise UsageError(
                f"--ray mem={self.mem} is not an amount of memory.",
                next_step="Write for example --ray mem=4G.",
            )
        for name, amount in self.resources.items():
            if not name or not amount > 0:
                raise UsageError(
                    f"--ray resource={name}={amount:g} is not a resource and an amount.",
                    next_step="Write --ray resource=NAME=1 with the name of a resource that the "
                    "nodes offer.",
                )

    @property
    def most_workers(self) -> int:
        """Most workers in all."""
        if self.workers is not None:
            return self.workers
        if self.nodes is not None:
            return self.nodes * (self.workers_per_node or _WORKERS_A_NODE)
        return _NO_LIMIT

    @property
    def most_on_a_node(self) -> int | None:
        """Most workers per node; None for as many as have room."""
        if self.workers_per_node is None and self.workers is not None:
            return None
        return self.workers_per_node or _WORKERS_A_NODE

    @property
    def memory_bytes(self) -> int | None:
        """The value of ``mem`` in bytes; a plain number counts MiB, as in SLURM."""
        found = None if self.mem is None else _MEMORY.fullmatch(self.mem)
        return None if found is None else int(found[1]) * _UNITS[found[2]]
