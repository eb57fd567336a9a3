"""How many workers there are, and what each asks for."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from leconvert.run.engines import RayEngine, RayOptions
from leconvert.run.engines.ray import RayCluster, check_room
from leconvert.support.errors import EngineError, UsageError
from leconvert.support.extras import command_for_extra


@pytest.mark.parametrize(
    ("given", "in_all", "on_a_node"),
    [
        ({}, 2**31, 4),
        ({"workers_per_node": 2}, 2**31, 2),
        ({"nodes": 3}, 12, 4),
        ({"nodes": 3, "workers_per_node": 2}, 6, 2),
        ({"workers": 9}, 9, None),
        ({"workers": 9, "workers_per_node": 2}, 9, 2),
    ],
)
def test_numbers_of_workers(given: dict[str, int], in_all: int, on_a_node: int | None) -> None:
    options = RayOptions(**given)  # type: ignore[arg-type]
    assert (options.most_workers, options.most_on_a_node) == (in_all, on_a_node)
    assert RayEngine(options).workers == in_all


def test_memory_has_units_and_ray_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {None: None, "4G": 4 * 2**30, "512M": 2**29, "512": 2**29}
    assert {mem: RayOptions(mem=mem).memory_bytes for mem in sizes} == sizes
    monkeypatch.setattr("leconvert.run.engines.ray.find_spec", lambda _: None)
    with pytest.raises(EngineError, match="Ray is not installed on this machine") as refused:
        RayEngine()
    assert refused.value.next_step == f"Run `{command_for_extra('ray')}`."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "--num-workers must be at least 1, not 0."),
        ({"cpus_per_task": 0}, "--cpus-per-task must be at least 1, not 0."),
        ({"mem": "4 GB"}, "--ray mem=4 GB is not an amount of memory."),
        ({"resources": {"disk": 0.0}}, "--ray resource=disk=0 is not a resource and an amount."),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        RayOptions(**given)


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
