"""Ranks that train together: real processes that average their gradients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from leconvert.errors import ProbeError
from leconvert.probe.processes import open_processes

RANK = """
import json, sys, torch
from leconvert.probe.processes import open_processes
rank = int(sys.argv[1])
processes = open_processes(rank=rank, world_size=2, device="cpu", use_accelerate=False)
torch.manual_seed(rank)  # unequal weights, which rank 0's must replace
model = torch.nn.Linear(2, 1)
model, optimizer = processes.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
loss = model(torch.tensor([[1.0, float(rank)]])).sum()
processes.backward(loss)
bare = getattr(model, "module", model)
facts = {"rank": rank, "weight": bare.weight.tolist(), "gradient": bare.weight.grad.tolist()}
gathered = processes.gather(facts)
processes.close()
print(json.dumps(gathered))
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_two_ranks_begin_equal_average_their_gradients_and_gather_in_order() -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank)],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    first, second = (json.loads(rank.communicate(timeout=60)[0]) for rank in ranks)
    assert first == second
    assert [facts["rank"] for facts in first] == [0, 1]
    assert first[0]["weight"] == first[1]["weight"]
    # The inputs were (1, 0) and (1, 1), so the averaged gradient is (1, 1/2).
    assert first[0]["gradient"] == first[1]["gradient"] == [[1.0, 0.5]]


def test_ranks_that_were_not_told_where_to_meet_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ProbeError, match="without MASTER_ADDR in the environment"):
        open_processes(rank=0, world_size=2, device="cpu")


def test_a_missing_gpu_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ProbeError, match="no CUDA device"):
        open_processes(rank=0, world_size=1, device="cuda")


def test_one_process_needs_no_meeting_point() -> None:
    alone = open_processes(rank=0, world_size=1, device="cpu", use_accelerate=False)
    assert alone.gather("mine") == ["mine"]
    assert str(alone.device) == "cpu"
    alone.close()
