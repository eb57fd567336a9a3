"""Memory that loader workers write batches into, again and again."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from leconvert.loading import EpisodeStream, StreamLoader
from leconvert.loading.tensors import (
    SharedBatch,
    SharedBufferPool,
    SharedBufferWriter,
    TensorPlan,
    allocate,
    private_memory,
)

PLANS = [
    TensorPlan("picture", torch.uint8, (2, 3, 5)),
    TensorPlan("number", torch.float32, (2,)),
    TensorPlan("flag", torch.bool, (2, 4)),
    TensorPlan("index", torch.int64, (2, 0)),
]


class Sender:
    """A worker and the training process in one: batches cross by pickling."""

    def __init__(self) -> None:
        self.pool = SharedBufferPool(1)
        self.writer = SharedBufferWriter(self.pool.number, self.pool.states[0], 0)

    def send(self, value: int) -> dict[str, Any]:
        batch: dict[str, Any] = dict(allocate(PLANS, self.writer.memory))
        for tensor in batch.values():
            tensor.fill_(value)
        batch["picture"] = batch["picture"].movedim(-1, -2)
        batch["task"] = [str(value)]
        shared = pickle.loads(pickle.dumps(self.writer.share(batch)))
        self.pool.collect()
        found: dict[str, Any] = shared.batch()
        return found


def assert_holds(batch: dict[str, Any], value: int) -> None:
    assert (batch["picture"] == value).all()
    assert (batch["number"] == value).all()
    assert (batch["flag"] == bool(value)).all()
    assert batch["task"] == [str(value)]


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    # Within one process a tensor may simply be handed over, and its memory be known by address.
    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", by_address)
    return Sender()


_handed: dict[int, torch.Tensor] = {}


def by_address(tensor: torch.Tensor, _: int) -> tuple[Any, ...]:
    _handed[tensor.data_ptr()] = tensor
    return at_address, (tensor.data_ptr(),)


def at_address(place: int) -> torch.Tensor:
    return _handed[place]


def test_tensors_lie_side_by_side_in_one_piece() -> None:
    tensors = allocate(PLANS, private_memory)
    assert {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()} == {
        plan.key: (plan.dtype, plan.shape) for plan in PLANS
    }
    for value, tensor in enumerate(tensors.values()):
        tensor.fill_(value)
    assert [float(tensor.sum()) for tensor in tensors.values()] == [0, 2, 8, 0]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 1


def test_a_batch_arrives_as_it_was_with_its_strides(sender: Sender) -> None:
    batch = sender.send(3)
    assert list(batch) == ["picture", "number", "flag", "index", "task"]
    assert batch["picture"].shape == (2, 5, 3)
    assert batch["picture"].stride() == (15, 1, 5)
    assert_holds(batch, 3)


def test_memory_is_used_again_when_nothing_of_a_batch_is_left(sender: Sender) -> None:
    places = set()
    for value in range(10):
        batch = sender.send(value)
        assert_holds(batch, value)
        places.add(batch["picture"].untyped_storage().data_ptr())
        del batch
    assert len(places) <= 2


@pytest.mark.parametrize("kept", ["batch", "tensor", "view"])
def test_what_somebody_keeps_is_never_written_over(sender: Sender, kept: str) -> None:
    held: list[Any] = []
    for value in range(40):
        batch = sender.send(value)
        held.append(
            {"batch": batch, "tensor": batch["picture"], "view": batch["picture"][1, 2:]}[kept]
        )
        del batch
    for value, thing in enumerate(held):
        if kept == "batch":
            assert_holds(thing, value)
        else:
            assert (thing == value).all()


def test_a_shared_that_nobody_opens_gives_its_memory_back(sender: Sender) -> None:
    shared = sender.writer.share(dict(allocate(PLANS, sender.writer.memory)))
    received: SharedBatch = pickle.loads(pickle.dumps(shared))
    assert int(sender.pool.states.sum()) == 1
    del received
    sender.pool.collect()
    assert int(sender.pool.states.sum()) == 0
    assert_holds(sender.send(5), 5)


def test_batches_that_are_kept_stay_as_they_were(v30: Path) -> None:
    def make(workers: int) -> StreamLoader:
        return StreamLoader(
            EpisodeStream(v30), batch_size=2, num_workers=workers, persistent_workers=workers > 0
        )

    kept, expected = make(1), make(0)
    ours = [batch for _ in range(3) for batch in kept]
    theirs = [batch for _ in range(3) for batch in expected]
    assert len(ours) == len(theirs) > 40
    for batch, other in zip(ours, theirs, strict=True):
        assert batch["task"] == other["task"]
        assert all(torch.equal(batch[key], other[key]) for key in batch if key != "task")


def test_an_abandoned_iteration_of_lasting_workers_does_no_harm(v30: Path) -> None:
    loader = StreamLoader(EpisodeStream(v30), batch_size=2, num_workers=2, persistent_workers=True)
    whole = [batch["index"].tolist() for batch in loader]
    for taken in (1, 2, 5):
        loader.set_epoch(0)
        for number, _ in enumerate(loader, 1):
            if number == taken:
                break
    loader.set_epoch(0)
    assert [batch["index"].tolist() for batch in loader] == whole
