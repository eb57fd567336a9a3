"""How many workers there are, and what each asks for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from leconvert.run.engines import RayEngine, RayOptions
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


@pytest.mark.parametrize(
    ("mem", "size"), [(None, None), ("4G", 4 * 2**30), ("512M", 2**29), ("512", 2**29)]
)
def test_sizes_of_memory(mem: str | None, size: int | None) -> None:
    assert RayOptions(mem=mem).memory_bytes == size


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


def test_without_ray_there_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leconvert.run.engines.ray.find_spec", lambda _: None)
    with pytest.raises(EngineError, match="Ray is not installed on this machine") as refused:
        RayEngine()
    assert refused.value.next_step == f"Run `{command_for_extra('ray')}`."
