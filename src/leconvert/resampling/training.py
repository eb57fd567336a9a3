"""A small diffusion policy trained on both data paths, with data time and model time apart.

Data time is what the training stands still for: from asking for a batch until it is there. What
workers do meanwhile is not, and what they have not done in time is. Model time is the step, from
the batch to the new weights, the device having finished; moving the batch to the device belongs to
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from leconvert.errors import UsageError
from leconvert.progress import Stage
from leconvert.resampling.benchmark import LENGTHS, PATHS, open_loader, set_epoch
from leconvert.resampling.pipelines import Task, find_device

__all__ = ["CHUNK", "SmallDiffusionPolicy", "train_on_both_paths", "windows"]


# ------------------------------------------------------------------------------------------------
# A diffusion policy that is small enough to train anywhere.
#
# The recipe is C. Chi et al., *Diffusion Policy* (RSS 2023), without pictures: from the present
# state a chunk of actions is predicted by taking noise out of it; the network learns to tell
# which noise was put in. Noise follows the squared-cosine schedule of A. Nichol and P. Dhariwal
# (ICML 2021). The network sees state, noisy chunk and step as one row of numbers.


ACTION = "action"
STATE = "observation.state"

CHUNK = 16
"""Actions that are predicted at once."""

_HIDDEN = 128
_NOISE_STEPS = 50
_STEP_FEATURES = 16
_OFFSET = 0.008
_MOST_NOISE = 0.999


class SmallDiffusionPolicy(nn.Module):
    """Learns the noise in a chunk of actions, given the state at its beginning.

    Args:
        state_dim: Numbers of a state.
        action_dim: Numbers of an action.
    """

    kept: Tensor

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        chunk = CHUNK * action_dim
        seen = state_dim + chunk + _STEP_FEATURES
        self.denoiser = nn.Sequential(
            nn.Linear(seen, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, chunk)
        )
        self.register_buffer("kept", _kept_share())

    def forward(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the loss: the mean squared error of the predicted noise."""
        clean = actions.flatten(1)
        steps = torch.randint(_NOISE_STEPS, (len(clean),), device=clean.device)
        noise = torch.randn_like(clean)
        kept = self.kept[steps].unsqueeze(1)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        seen = torch.cat((state, noisy, _step_features(steps)), dim=1)
        return functional.mse_loss(self.denoiser(seen), noise)


def windows(
    state: Tensor, action: Tensor, lengths: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a random state of each trajectory and the chunk of actions that begins with it.

    Where a trajectory ends before the chunk its last action is repeated.
    """
    share = torch.rand(len(lengths), generator=generator)
    start = (share * (lengths - CHUNK + 1).clamp(min=1)).long()
    places = torch.minimum(start.unsqueeze(1) + torch.arange(CHUNK), lengths.unsqueeze(1) - 1)
    rows = torch.arange(len(lengths))
    return state[rows, start].float(), action[rows.unsqueeze(1), places].float()


def _kept_share() -> Tensor:
    """Return how much of the clean variance is left after each step."""

    def level(step: int) -> float:
        share = (step / _NOISE_STEPS + _OFFSET) / (1 + _OFFSET)
        return math.cos(share * math.pi / 2) ** 2

    steps = [1 - level(step + 1) / level(step) for step in range(_NOISE_STEPS)]
    return (1 - torch.tensor(steps).clamp(max=_MOST_NOISE)).cumprod(0)


def _step_features(steps: Tensor) -> Tensor:
    """Return sines and cosines of the step at several frequencies."""
    half = _STEP_FEATURES // 2
    frequencies = torch.exp(-math.log(1e4) * torch.arange(half, device=steps.device) / half)
    angles = steps.unsqueeze(1) * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


# ------------------------------------------------------------------------------------------------
# A small diffusion policy trained on both data paths, with data time and model time apart.


_LEARNING_RATE = 1e-3


def train_on_both_paths(
    task: Task,
    *,
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
    """
    first = task.source.load(0)
    for key in (ACTION, STATE):
        if key not in first.columns:
            raise UsageError(
                f"The training needs the feature {key}, which the set lacks.",
                next_step="Choose a set that has it, or leave --end-to-end out.",
            )
    widths = first.widths()
    rows = []
    for path in PATHS:
        loader = open_loader(path, task, batch_size=batch_size, num_workers=num_workers, seed=seed)
        learner = _Learner(widths[STATE], widths[ACTION], device, seed)
        data_s = model_s = first_wait = 0.0
        losses: list[float] = []
        steps_of_epoch = len(task.source) // batch_size
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
