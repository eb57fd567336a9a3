"""Loaders with workers that resample, on either data path, and a small policy trained on both.

The set, the order, the workers and the way back to this process are the same on both paths; only
what a worker does with the trajectories of a batch differs: one after the other with NumPy and then
collated, or packed and resampled at once.

Of a training, data time is what it stands still for: from asking for a batch until it is there.
What workers do meanwhile is not, and what they have not done in time is. Model time is the step,
from the batch to the new weights, the device having finished; moving the batch to the device
belongs to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from leconvert.errors import UsageError
from leconvert.progress import Stage
from leconvert.resampling.kernel import PackMemory, pack
from leconvert.resampling.pipelines import Task, collate, find_device, tensors
from leconvert.resampling.trajectories import Trajectory, TrajectorySource

__all__ = [
    "CHUNK",
    "LENGTHS",
    "PATHS",
    "SmallDiffusionPolicy",
    "batches_of",
    "compare_loaders",
    "open_loader",
    "set_epoch",
    "train_on_both_paths",
    "windows",
]


def batches_of(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Yield the full batches of a pass, shuffled; a function of its arguments alone."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count - batch_size + 1, batch_size):
        yield order[start : start + batch_size].tolist()


PATHS = ("baseline", "batched")
"""Per-trajectory loop in the workers, or batches resampled at once."""

LENGTHS = "_lengths"
"""Under this key a batch says how many targets each trajectory has."""

Batch = dict[str, Tensor]


class _Set(Dataset[Trajectory]):
    def __init__(self, source: TrajectorySource) -> None:
        self._source = source

    def __getitem__(self, index: int) -> Trajectory:
        return self._source.load(index)


@dataclass(slots=True)
class _Order:
    """The batches of the current epoch."""

    count: int
    batch_size: int
    seed: int
    epoch: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        return batches_of(self.count, self.batch_size, self.seed, self.epoch)

    def __len__(self) -> int:
        return self.count // self.batch_size


@dataclass(frozen=True, slots=True)
class _OneByOne:
    task: Task

    def __call__(self, trajectories: Sequence[Trajectory]) -> Batch:
        batch = collate(self.task.one_by_one(trajectories))
        return tensors(batch) | {LENGTHS: torch.from_numpy(batch.lengths)}


class _AtOnce:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._memory = PackMemory()

    def __call__(self, trajectories: Sequence[Trajectory]) -> Batch:
        resampled = self._task.at_once(pack(trajectories, self._memory))
        return resampled.values | {LENGTHS: resampled.lengths}


def open_loader(
    path: str, task: Task, *, batch_size: int, num_workers: int, seed: int
) -> DataLoader[Any]:
    """Return a loader of resampled, padded batches: features and `LENGTHS`."""
    return DataLoader(
        _Set(task.source),
        batch_sampler=_Order(len(task.source), batch_size, seed),
        collate_fn=_OneByOne(task) if path == "baseline" else _AtOnce(task),
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Choose the order of the next pass."""
    order: Any = loader.batch_sampler
    order.epoch = epoch


def compare_loaders(
    task: Task,
    *,
    batch_size: int,
    num_workers: Sequence[int],
    epochs: int,
    seed: int,
    stage: Stage,
) -> list[dict[str, Any]]:
    """Time both loaders, pass by pass in turn, after a pass that starts the workers."""
    rows = []
    for workers in num_workers:
        loaders = {
            path: open_loader(path, task, batch_size=batch_size, num_workers=workers, seed=seed)
            for path in PATHS
        }
        seconds: dict[str, list[float]] = {path: [] for path in PATHS}
        first: dict[str, float] = {}
        for epoch in range(epochs + 1):
            for path in PATHS if epoch % 2 else PATHS[::-1]:
                set_epoch(loaders[path], epoch)
                began = time.perf_counter()
                for number, _ in enumerate(loaders[path]):
                    if number == 0 and epoch == 0:
                        first[path] = time.perf_counter() - began
                if epoch:
                    seconds[path].append(time.perf_counter() - began)
            stage.advance(1)
        batches = len(task.source) // batch_size
        rows += [
            {
                "path": path,
                "num_workers": workers,
                "batch_size": batch_size,
                "trajectories": batches * batch_size,
                "trajectories_per_s": batches * batch_size / median(times),
                "first_batch_s": first[path],
                "epoch_s": times,
            }
            for path, times in seconds.items()
        ]
    return rows


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
    """Learns the noise in a chunk of actions, given the state at its beginning."""

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
    samples = torch.minimum(start.unsqueeze(1) + torch.arange(CHUNK), lengths.unsqueeze(1) - 1)
    rows = torch.arange(len(lengths))
    return state[rows, start].float(), action[rows.unsqueeze(1), samples].float()


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
    """Train the same policy on the same batches in the same order; return a row a path."""
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
