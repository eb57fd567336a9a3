"""What workers ask a Ray cluster for; plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from leconvert.errors import UsageError

__all__ = ["RayOptions"]

_WORKERS_A_NODE = 4
# More than a run has batches: as many workers as its nodes hold.
_NO_LIMIT = 2**31
_MEMORY = re.compile(r"(\d+)([KMGT]?)")
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class RayOptions:
    """What workers ask a Ray cluster for, and how many there are.

    Without numbers there are four workers on every node that has room for one, also on those that
    join later.

    Attributes:
        address: ``auto`` for the cluster of this machine or of RAY_ADDRESS, ``HOST:PORT`` for
            another one that this machine belongs to, ``local`` to start one on this machine.
        workers: How many there are at most; None for as many as nodes hold.
        nodes: How many nodes' worth at most: then there are ``nodes * workers_per_node``.
        workers_per_node: How many a node holds at most. None for four, or for as many as have room
            where ``workers`` is given.
        cpus_per_task: Cores of a worker.
        mem: Memory of a worker, such as ``4G``; None asks for none.
        resources: Custom resources that a worker takes, by name.
        runtime_env: The `runtime environment`_ of workers.
        ship_package: Send leconvert itself to nodes that lack it. The libraries that it needs must
            be there, or come by ``runtime_env``.
        connect_seconds: How long to wait for the cluster's answer.
        node_wait_seconds: How long to go on while no node has room for a worker.

    Raises:
        UsageError: A number or a size makes no sense.

    .. _runtime environment: https://docs.ray.io/en/latest/ray-core/handling-dependencies.html
    """

    address: str = "auto"
    workers: int | None = None
    nodes: int | None = None
    workers_per_node: int | None = None
    cpus_per_task: int = 1
    mem: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    ship_package: bool = False
    connect_seconds: float = 60.0
    node_wait_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("workers", "nodes", "workers_per_node", "cpus_per_task"):
            number = getattr(self, name)
            if number is not None and number < 1:
                option = "num-workers" if name == "workers" else name.replace("_", "-")
                raise UsageError(f"--{option} must be at least 1, not {number}.")
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise UsageError(f"--mem {self.mem} makes no sense.", next_step="Write --mem 4G.")
        for name, amount in self.resources.items():
            if not name or not amount > 0:
                raise UsageError(
                    f"--ray-resource {name}={amount:g} makes no sense.",
                    next_step="Write --ray-resource NAME=1, with a name that nodes offer.",
                )

    @property
    def most_workers(self) -> int:
        """How many workers there are at most."""
        if self.workers is not None:
            return self.workers
        if self.nodes is not None:
            return self.nodes * (self.workers_per_node or _WORKERS_A_NODE)
        return _NO_LIMIT

    @property
    def most_on_a_node(self) -> int | None:
        """How many workers a node holds at most; None for as many as have room."""
        if self.workers_per_node is None and self.workers is not None:
            return None
        return self.workers_per_node or _WORKERS_A_NODE

    @property
    def memory_bytes(self) -> int | None:
        """What ``mem`` says, in bytes; a plain number counts MiB, as SLURM's does."""
        found = None if self.mem is None else _MEMORY.fullmatch(self.mem)
        return None if found is None else int(found[1]) * _UNITS[found[2]]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping; ``RayOptions(**record)`` is the same again."""
        return asdict(self)
