"""What jobs ask a scheduler for, and how the command line changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leconvert.engines.site import check_memory, check_time
from leconvert.errors import UsageError

__all__ = ["ResourceChanges", "Resources", "parse_resource_changes"]

_RESOURCES = ("nodes", "cpus", "mem", "time", "gpus")
_ALL = ""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one job asks the scheduler for; everything but ``nodes`` is a node's share.

    Attributes:
        nodes: Nodes, each with one loading process.
        cpus: Cores of a node.
        mem: Memory of a node as the scheduler spells it, such as ``32G``.
        time: The longest run time, ``HH:MM:SS``.
        gpus: GPUs of a node.
    """

    nodes: int = 1
    cpus: int = 16
    mem: str = "64G"
    time: str = "00:30:00"
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class ResourceChanges:
    """What the command line changes in the resources of one job, or of all.

    Attributes:
        by_job: Per scenario (or source) the changed fields; the empty name is for all.
    """

    by_job: Mapping[str, Mapping[str, int | str]]

    def applied(self, name: str, resources: Resources) -> Resources:
        """Return the resources of the job of that name: its own changes beat those for all."""
        changes = {**self.by_job.get(_ALL, {}), **self.by_job.get(name, {})}
        return replace(resources, **changes)  # type: ignore[arg-type]

    def applied_to_all(self, resources: Resources) -> Resources:
        """Return the resources of a job that has no name to be meant by."""
        return self.applied(_ALL, resources)


def parse_resource_changes(
    given: Mapping[str, Sequence[str]], names: Sequence[str]
) -> ResourceChanges:
    """Return what ``--cpus 8``, ``--cpus stream_hub=8`` and their like say.

    Args:
        given: Per resource (``nodes``, ``cpus``, ``mem``, ``time``, ``gpus``) its values as given.
        names: The scenarios or sources that a value can be meant for.

    Raises:
        UsageError: A name or a value makes no sense.
    """
    by_job: dict[str, dict[str, int | str]] = {}
    for resource in _RESOURCES:
        for text in given.get(resource, ()):
            name, _, value = text.rpartition("=")
            name = name.replace("-", "_")
            if name and name not in names:
                raise UsageError(
                    f"--{resource} {text}: {name} is not among what is submitted.",
                    next_step=f"Choose among {', '.join(names)}."
                    if names
                    else "Leave the name out.",
                )
            by_job.setdefault(name, {})[resource] = _checked(resource, value)
    return ResourceChanges(by_job)


def _checked(resource: str, value: str) -> int | str:
    if resource in {"mem", "time"}:
        if (check_memory if resource == "mem" else check_time)(value):
            return value
    elif value.isdecimal() and int(value) >= (0 if resource == "gpus" else 1):
        return int(value)
    raise UsageError(
        f"--{resource} {value} makes no sense.",
        next_step="Write --nodes 2, --cpus 16, --mem 64G, --time 00:30:00 or --gpus 1, or "
        "NAME=VALUE for one job.",
    )
