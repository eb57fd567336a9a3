"""Ranks that train together: real processes that average their gradients."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ranks import free_port, run_as_ranks

from leconvert.bench.training import Ranks
from leconvert.support.errors import InstallationError, ProbeError
from leconvert.support.extras import command_for_extra


def gathered_of_all() -> list[Any]:
    """Be one of two ranks: learn from one sample, and return what all ranks gathered."""
    rank = int(os.environ["RANK"])
    processes = Ranks(rank, 2, "cpu")
    torch.manual_seed(rank)  # unequal weights, which rank 0's must replace
    model: torch.nn.Module = torch.nn.Linear(2, 1)
    model, _ = processes.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    processes.backward(model(torch.tensor([[1.0, float(rank)]])).sum())
    bare: Any = getattr(model, "module", model)
    facts = {"rank": rank, "weight": bare.weight.tolist(), "gradient": bare.weight.grad.tolist()}
    gathered = processes.gather(facts)
    processes.close()
    return gathered


def test_two_ranks_begin_equal_average_their_gradients_and_gather_in_order(tmp_path: Path) -> None:
    first, second = run_as_ranks(
        gathered_of_all,
        folder=tmp_path,
        environment={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
    )
    assert first == second
    assert [facts["rank"] for facts in first] == [0, 1]
    assert first[0]["weight"] == first[1]["weight"]
    # The inputs were (1, 0) and (1, 1), so the averaged gradient is (1, 1/2).
    assert first[0]["gradient"] == first[1]["gradient"] == [[1.0, 0.5]]


def test_a_missing_gpu_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ProbeError, match="no CUDA device"):
        Ranks(0, 1, "cuda")


def test_a_training_without_accelerate_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InstallationError, match="needs accelerate") as refused:
        Ranks(0, 1, "cpu")
    assert command_for_extra("train") in str(refused.value.next_step)
