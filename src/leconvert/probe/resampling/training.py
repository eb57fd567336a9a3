"""A small diffusion policy trained on both data paths, with data time and model time apart.

Data time is what the training stands still for: from asking for a batch until it is there. What
workers do meanwhile is not, and what they have not done in time is. Model time is the step, from
the batch to the new weights, the device having finished; moving the batch to the device belongs to
it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leconvert.errors import UsageError
from leconvert.probe.policy import ACTION, STATE
from leconvert.probe.resampling.baseline import Baseline
from leconvert.probe.resampling.diffusion import SmallDiffusionPolicy, windows
from leconvert.probe.resampling.loaders import LENGTHS, PATHS, open_loader, set_epoch
from leconvert.probe.resampling.methods import Methods
from leconvert.probe.resampling.sources import TrajectorySource
from leconvert.probe.resampling.ways import find_device
from leconvert.progress import Stage

__all__ = ["train_on_both_paths"]

_LEARNING_RATE = 1e-3


def train_on_both_paths(
    source: TrajectorySource,
    methods: Methods,
    *,
    hz: float,
    baseline: Baseline,
    batch_size: int,
    num_workers: int,
    epochs: int,
    device: str,
    seed: int,
    stage: Stage,
) -> list[dict[str, Any]]:
    """Train the same policy on the same batches in the same order, once a path.

    Returns:
        A row a path, as ``end_to_end`` of ``docs/formats/probe-result.schema.json`` has them.

    Raises:
        UsageError: The set has no action or no state.
    """
    first = source.load(0)
    for key in (ACTION, STATE):
        if key not in first.columns:
            raise UsageError(
                f"The training needs the feature {key}, which the set lacks.",
                next_step="Choose a set that has it, or leave --end-to-end out.",
            )
    widths = first.widths()
    rows = []
    for path in PATHS:
        loader = open_loader(
            path, source, methods, hz=hz, baseline=baseline, batch_size=batch_size,
            num_workers=num_workers, seed=seed,
        )  # fmt: skip
        learner = _Learner(widths[STATE], widths[ACTION], device, seed)
        data_s = model_s = first_wait = 0.0
        losses: list[float] = []
        steps_of_epoch = len(source) // batch_size
        for epoch in range(epochs):
            set_epoch(loader, epoch)
            asked = time.perf_counter()
            for batch in loader:
                ready = time.perf_counter()
                losses.append(learner.learn(batch))
                done = time.perf_counter()
                # The first step is part of neither: workers start and memory is found only once.
                if losses[1:]:
                    data_s += ready - asked
                    model_s += done - ready
                else:
                    first_wait = ready - asked
                asked = done
            stage.advance(1)
        steps = len(losses)
        rows.append(
            {
                "path": path,
                "device": device,
                "batch_size": batch_size,
                "num_workers": num_workers,
                "epochs": epochs,
                "steps": steps,
                "first_batch_s": first_wait,
                "data_s": data_s,
                "model_s": model_s,
                "data_pct": 100 * data_s / (data_s + model_s) if steps > 1 else None,
                "steps_per_s": (steps - 1) / (data_s + model_s) if steps > 1 else None,
                "first_epoch_loss": sum(losses[:steps_of_epoch]) / steps_of_epoch,
                "last_epoch_loss": sum(losses[-steps_of_epoch:]) / steps_of_epoch,
            }
        )
    return rows


class _Learner:
    """The policy and its optimizer; equal seeds begin equal and choose equal windows."""

    def __init__(self, state_dim: int, action_dim: int, device: str, seed: int) -> None:
        self._device = find_device(device)
        self._generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self._policy = SmallDiffusionPolicy(state_dim, action_dim).to(self._device)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=_LEARNING_RATE)

    def learn(self, batch: Mapping[str, Tensor]) -> float:
        """Take one step and return the loss before it; the device has finished by then."""
        state, actions = windows(
            _rows(batch[STATE]), _rows(batch[ACTION]), batch[LENGTHS], self._generator
        )
        self._optimizer.zero_grad()
        loss = self._policy(state.to(self._device), actions.to(self._device))
        loss.backward()
        self._optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return float(loss.detach())


def _rows(values: Tensor) -> Tensor:
    """Return a padded batch with one row of numbers a sample, also where a sample is one number."""
    return values.reshape(*values.shape[:2], -1)
