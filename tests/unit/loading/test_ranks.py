"""Which of several training processes this is."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from leconvert.loading.order import find_rank
from leconvert.support.errors import UsageError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
# What a batch script of a job of two tasks sees that calls no srun (slurm-wlm 22.05.8).
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """accelerate as far as it matters, started as rank 2 of 4."""

    class PartialState:
        _shared_state: ClassVar = {"backend": "gloo"}
        process_index = 2
        num_processes = 4

    module = ModuleType("accelerate.state")
    module.PartialState = PartialState  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    return module


def test_it_is_alone_by_default_and_in_a_batch_script_that_starts_no_tasks() -> None:
    assert find_rank(environment={}) == (0, 1)
    assert find_rank(environment=BATCH_SCRIPT) == (0, 1)


def test_the_order_is_arguments_accelerate_torchrun_slurm_and_half_an_environment_is_none(
    accelerate: ModuleType,
) -> None:
    both = TORCHRUN | SLURM
    assert find_rank(5, 6, environment=both) == (5, 6)
    assert find_rank(environment=both) == (2, 4)
    accelerate.PartialState = SimpleNamespace(_shared_state={})  # type: ignore[attr-defined]
    assert find_rank(environment=both) == (3, 8)
    assert find_rank(environment=SLURM) == (1, 2)
    assert find_rank(environment={"RANK": "3"} | SLURM) == (1, 2)


def test_processes_of_a_node_are_counted_by_themselves(accelerate: ModuleType) -> None:
    of_node = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert find_rank(of_node=True, environment=TORCHRUN | of_node) == (1, 4)
    assert find_rank(3, 6, of_node=True, environment=TORCHRUN | of_node) == (3, 6)
    accelerate.PartialState = SimpleNamespace(_shared_state={})  # type: ignore[attr-defined]
    assert find_rank(of_node=True, environment=BATCH_SCRIPT) == (0, 1)


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM])
def test_ranks_of_all_nodes_are_not_taken_for_those_of_one(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="on all nodes") as error:
        find_rank(of_node=True, environment=environment)
    assert "--rank" in str(error.value.next_step)


@pytest.mark.parametrize(
    ("rank", "world_size", "environment"),
    [
        (1, None, {}),
        (None, 2, {}),
        (2, 2, {}),
        (-1, 2, {}),
        (None, None, {"RANK": "one", "WORLD_SIZE": "2"}),
        (None, None, {"RANK": "2", "WORLD_SIZE": "2"}),
    ],
)
def test_contradictions_are_refused(
    rank: int | None, world_size: int | None, environment: dict[str, str]
) -> None:
    with pytest.raises(UsageError):
        find_rank(rank, world_size, environment=environment)
