"""Model and optimizer of one rank: a step, and what a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from leconvert.probe.checkpoints import Checkpoint
from leconvert.probe.policy import PolicyShape, SmallPolicy
from leconvert.probe.processes import Processes

__all__ = ["Batch", "Learner"]

Batch = Mapping[str, Any]


class Learner:
    """A small policy and its optimizer, equal on all ranks after every step.

    Args:
        shape: The sizes of a sample.
        processes: The ranks.
        seed: Of the weights.
        learning_rate: Of Adam.
    """

    def __init__(
        self,
        shape: PolicyShape,
        processes: Processes,
        *,
        seed: int,
        learning_rate: float,
    ) -> None:
        self.processes = processes
        torch.manual_seed(seed)
        self._bare = SmallPolicy(shape).to(processes.device)
        self._model, self._optimizer = processes.prepare(
            self._bare, torch.optim.Adam(self._bare.parameters(), lr=learning_rate)
        )

    def learn(self, batch: Batch) -> float:
        """Take one step and return this rank's loss before it."""
        device = self.processes.device
        tensors = {
            key: value.to(device, non_blocking=True)
            for key, value in batch.items()
            if isinstance(value, torch.Tensor)
        }
        self._optimizer.zero_grad()
        loss = self._model(tensors)
        self.processes.backward(loss)
        self._optimizer.step()
        return float(loss.detach())

    def checkpoint(self, step: int, streams: Sequence[Mapping[str, Any]]) -> Checkpoint:
        """Return everything that a later process needs.

        Args:
            step: Steps done.
            streams: The loader's state of every rank.
        """
        return Checkpoint(
            step=step,
            model=self._bare.state_dict(),
            optimizer=self._optimizer.state_dict(),
            generator=torch.get_rng_state(),
            streams=streams,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what the checkpoint holds; the wrappers of all ranks share these parameters."""
        self._bare.load_state_dict(checkpoint.model)
        self._optimizer.load_state_dict(dict(checkpoint.optimizer))
        torch.set_rng_state(checkpoint.generator)
