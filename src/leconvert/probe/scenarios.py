"""The named set-ups of the loading benchmark: what is read from where, by how many nodes and cores.

A scenario only fills in what the command line leaves open. Its resources are what a scheduler is
asked for; `probe run --scenario` on a machine at hand takes loader, source and workers from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from leconvert.errors import UsageError
from leconvert.probe.resources import Resources

__all__ = ["SCENARIOS", "SOURCES", "Scenario", "Source", "parse_scenarios"]

Source = Literal["local", "hub", "bucket", "warmed_bucket"]

SOURCES: tuple[Source, ...] = ("local", "hub", "bucket", "warmed_bucket")
"""The labels that a result carries for where its bytes came from."""

_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """One set-up of the benchmark.

    Attributes:
        name: What ``--scenario`` takes, and what the result's file name carries.
        loader: ``map`` or ``stream``.
        source: The label of where the files are.
        resources: What its job asks for.
        workers: Loading workers of a process; None for as many as cores allow, see `num_workers`.
    """

    name: str
    loader: Literal["map", "stream"]
    source: Source
    resources: Resources = field(default_factory=Resources)
    workers: int | None = _WORKERS

    def num_workers(self, *, cores: int, cameras: int) -> int:
        """Return the loading workers of one process.

        Where the scenario leaves them open there is a core for every camera of every worker, since
        a map-style sample decodes all cameras side by side.

        Args:
            cores: Cores that the process may use.
            cameras: Video features of the dataset; 0 counts as one.
        """
        if self.workers is not None:
            return self.workers
        return max(1, cores // max(1, cameras))


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario("mmap_local", "map", "local"),
            Scenario(
                "mmap_local_maxworkers", "map", "local",
                resources=Resources(cpus=48, mem="192G"), workers=None,
            ),
            Scenario("stream_hub", "stream", "hub", resources=Resources(time="01:00:00")),
            Scenario("stream_bucket", "stream", "bucket", resources=Resources(time="01:00:00")),
            Scenario(
                "stream_bucket_2node", "stream", "bucket",
                resources=Resources(nodes=2, time="01:00:00"),
            ),
        )
    }
)  # fmt: skip
"""Every scenario by name, in the order in which `probe submit` sends them."""


def parse_scenarios(text: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a list such as ``mmap_local,stream_hub``, in its order.

    Raises:
        UsageError: A name is unknown, or stands there twice.
    """
    # Hyphens are accepted, as everywhere on the command line.
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown or not names:
        said = f"There is no scenario {', '.join(unknown)}." if unknown else "No scenario is named."
        raise UsageError(said, next_step=f"Choose among {', '.join(SCENARIOS)}.")
    if len(set(names)) < len(names):
        raise UsageError(f"A scenario is named twice in {text}.")
    return tuple(SCENARIOS[name] for name in names)
