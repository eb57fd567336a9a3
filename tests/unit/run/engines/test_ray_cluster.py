"""Which of Ray's nodes can hold a worker, and what is said where none can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leconvert.run.engines.ray import RayCluster, RayOptions, check_room
from leconvert.support.errors import EngineError

_GIB = float(2**30)


def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {
        "NodeID": f"id-{name}",
        "Alive": alive,
        "Resources": resources,
    }


def cluster_of(options: RayOptions, *nodes: dict[str, Any]) -> RayCluster:
    """A connection to a Ray that has these nodes; nothing else of it is there."""
    cluster = RayCluster.__new__(RayCluster)
    cluster._options = options
    cluster._ray = SimpleNamespace(nodes=lambda: list(nodes))
    return cluster


NODES = (
    node("head", memory=8 * _GIB),
    node("small", CPU=1.0, memory=2 * _GIB),
    node("large", CPU=8.0, memory=16 * _GIB, disk=1.0),
    node("dead", alive=False, CPU=64.0, memory=256 * _GIB, disk=1.0),
)


@pytest.mark.parametrize(
    ("options", "fitting"),
    [
        (RayOptions(), ["small", "large"]),
        (RayOptions(cpus_per_task=2), ["large"]),
        (RayOptions(mem="2G"), ["small", "large"]),
        (RayOptions(mem="3G"), ["large"]),
        (RayOptions(resources={"disk": 0.5}), ["large"]),
        (RayOptions(resources={"disk": 2.0}), []),
    ],
)
def test_living_nodes_that_are_large_enough_fit(options: RayOptions, fitting: list[str]) -> None:
    cluster = cluster_of(options, *NODES)
    assert cluster.fitting_nodes() == [f"id-{name}" for name in fitting]


def test_a_worker_that_fits_nowhere_is_refused_with_what_there_is() -> None:
    with pytest.raises(EngineError, match=r"worker: the largest offers 8 CPUs and 16\.0 GiB\.$"):
        check_room(cluster_of(RayOptions(cpus_per_task=9), *NODES))
    with pytest.raises(EngineError, match=r"worker: there is no node\.$"):
        check_room(cluster_of(RayOptions(), NODES[-1]))
    check_room(cluster_of(RayOptions(), *NODES))
