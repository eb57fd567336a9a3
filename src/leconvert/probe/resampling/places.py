"""Where targets lie among samples: the samples on both sides, and how far it is between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leconvert.probe.resampling.packing import Packed
from leconvert.probe.resampling.values import GRID_TOLERANCE, FloatArray

__all__ = ["Places", "Targets", "even_targets", "find_places", "given_targets"]

# A clock that wanders further from even times than so many samples is searched instead.
_STEPS = 3
# A sample that lies on a target but for the last bit of a product is guessed to be before it.
_HAIR = 1e-9
_MOST_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of a batch, n in all, one trajectory after the other.

    Attributes:
        padded: Seconds after each trajectory's first sample, float64, as a padded batch, of shape
            (B, M); beyond a trajectory's targets they mean nothing.
        counts: Targets of each trajectory, on the host, of shape (B,).
        is_even: Whether every trajectory has them at the same steps from its first sample on.
    """

    padded: Tensor
    counts: npt.NDArray[np.int64]
    is_even: bool

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def length(self) -> int:
        """The padded length M."""
        return self.padded.shape[1]

    @cached_property
    def lengths(self) -> Tensor:
        """``counts`` on the device."""
        return _on_device(self.counts, self.padded)

    @cached_property
    def mask(self) -> Tensor:
        """Whether there is a target, of shape (B, M)."""
        # int32: half of the memory to compare; a length beyond it does not fit in any.
        numbers = np.arange(self.length, dtype=np.int32)
        return _on_device(numbers < self.counts.astype(np.int32)[:, None], self.padded)

    @cached_property
    def times(self) -> Tensor:
        """Those of ``padded`` that are targets, of shape (n,)."""
        if self.padded.device.type == "cpu":
            return torch.from_numpy(self.padded.numpy()[self.mask.numpy()])
        return self.padded[self.row, self.number]  # to choose by mask would wait for the device

    @cached_property
    def row(self) -> Tensor:
        """Trajectory of each, of shape (n,)."""
        return self.spread(np.arange(len(self.counts)))

    @cached_property
    def number(self) -> Tensor:
        """Number of each within its trajectory, of shape (n,)."""
        starts = np.cumsum(self.counts) - self.counts
        return torch.arange(len(self), device=self.padded.device).sub_(self.spread(starts))

    @cached_property
    def slots(self) -> Tensor:
        """Where each goes in a padded batch whose rows were put one after the other."""
        return torch.add(self.number, self.row, alpha=self.length)

    def spread(self, of_trajectory: npt.NDArray[np.generic]) -> Tensor:
        """Return a number of each trajectory for each of its targets."""
        if self.padded.device.type == "cpu":
            return torch.from_numpy(np.repeat(of_trajectory, self.counts))
        numbers = _on_device(of_trajectory, self.padded)
        return numbers.repeat_interleave(self.lengths, output_size=len(self))


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The samples beside each target.

    Attributes:
        beside: Row of the sample before the target, or on it, and row of the one after it; int32
            or int64, of shape (n, 2).
        weight: From 0 at the first to 1 at the second, float64, of shape (n,).
    """

    beside: Tensor
    weight: Tensor

    @property
    def low(self) -> Tensor:
        """The first of ``beside``, of shape (n,)."""
        return self.beside[:, 0]

    @property
    def high(self) -> Tensor:
        """The second."""
        return self.beside[:, 1]


def even_targets(packed: Packed, hz: float) -> Targets:
    """Return targets every 1/hz from the first sample to the last of each trajectory."""
    counts = (packed.durations_s * hz + GRID_TOLERANCE).astype(np.int64) + 1
    # Divided, not multiplied by 1/hz: a target is then the float64 nearest to k/hz, as in NumPy.
    grid = _on_device(np.arange(counts.max()) / hz, packed.times)
    return Targets(grid.expand(len(counts), -1), counts, is_even=True)


def given_targets(aims: Tensor, counts: npt.NDArray[np.int64]) -> Targets:
    """Return the targets of a padded batch, rebased, of shape (B, M)."""
    return Targets(aims, counts, is_even=False)


def find_places(packed: Packed, targets: Targets) -> Places:
    """Return the samples beside each target; one outside takes the sample at the end.

    Of samples at the same time the last counts from that time on, as `numpy.interp` has it.

    For even targets on the CPU the places are guessed first, as most clocks are nearly even, and
    checked against the times themselves; wrong guesses move by a sample, a few times. Only where
    that does not do are the times searched, which takes longer than all the rest together. On a GPU
    they are searched at once: whether all guesses hold costs a round trip.
    """
    if targets.is_even and packed.device.type == "cpu":
        places = _guess(packed, targets)
        if places is not None:
            return places
    low = _search(packed, targets)
    high = low + targets.spread(packed.lengths > 1).to(low.dtype)
    begins = packed.times.index_select(0, low)
    gaps = packed.times.index_select(0, high).sub_(begins)
    weight = torch.sub(targets.times, begins).div_(gaps).clamp_(0, 1)
    # 0/0: a trajectory of one sample, or times that repeat at its very end. The last one counts.
    return Places(torch.stack((low, high), 1), weight.nan_to_num_(nan=1.0))


def _final_low(packed: Packed) -> npt.NDArray[np.int64]:
    """Return the last row of each trajectory that has another after it, or its only one."""
    final: npt.NDArray[np.int64] = packed.first_row + np.maximum(packed.lengths - 2, 0)
    return final


def _guess(packed: Packed, targets: Targets) -> Places | None:
    """Return places by even clocks, wrong ones moved until all are right; None if that fails.

    A place is right if its target is at or after the sample before it and before the one after it,
    so if the weight is at least 0 and below 1; or if it is the trajectory's last one.
    """
    # By NumPy, in the tensors' own memory and with few arrays: each of these steps takes some 10
    # us, of which torch would spend a third on beginning it.
    counts, aims, times = targets.counts, targets.times.numpy(), packed.times.numpy()
    durations = np.where(packed.durations_s > 0, packed.durations_s, 1.0)
    guess = np.repeat((packed.lengths - 1) / durations, counts)
    guess *= aims
    guess += np.repeat(packed.first_row + _HAIR, counts)
    low = guess.astype(np.int64)
    # Only a trajectory's last target can be guessed to be beyond its last sample but one.
    ends = np.cumsum(counts) - 1
    final = _final_low(packed)
    low[ends] = np.minimum(low[ends], final)
    weight = _weights(times, low, aims)
    wrong = _outside(weight)
    for _ in range(_STEPS + 1):
        is_before = weight[wrong] < 0
        is_last = ~is_before & (low[wrong] == final[np.searchsorted(ends, wrong)])
        # 0/0 among them: a trajectory of one sample, or times that repeat at its very end.
        weight[wrong[is_last]] = 1
        wrong = wrong[~is_last]
        if not len(wrong):
            pairs = _pairs(low, ends[packed.lengths == 1], len(times))
            return Places(pairs, torch.from_numpy(weight))
        low[wrong] += np.where(is_before[~is_last], -1, 1)
        weight[wrong] = _weights(times, low[wrong], aims[wrong])
        wrong = wrong[_outside(weight[wrong])]
    return None


def _weights(times: FloatArray, low: npt.NDArray[np.int64], aims: FloatArray) -> FloatArray:
    """Return where targets lie between the sample at ``low`` and the next row of the table.

    After a trajectory's only sample that row is another's, or none, so it is itself: as its only
    target is at 0 s, whatever follows gives it a weight that is 0 or no number.
    """
    weight = times.take(low)
    gaps = times[min(1, len(times) - 1) :].take(low, mode="clip")
    gaps -= weight
    np.subtract(aims, weight, out=weight)
    with np.errstate(divide="ignore", invalid="ignore"):  # times that repeat
        weight /= gaps
    return weight


def _outside(weight: FloatArray) -> npt.NDArray[np.intp]:
    """Return which weights are not at least 0 and below 1, or no numbers."""
    return np.flatnonzero(~((weight >= 0) & (weight < 1)))


def _pairs(low: npt.NDArray[np.int64], alone: npt.NDArray[np.int64], rows: int) -> Tensor:
    """Return ``low`` and the row after it, or itself for the targets in ``alone``."""
    pairs = np.empty((len(low), 2), np.int32 if rows <= _MOST_INT32 else np.int64)
    pairs[:, 0] = low
    np.add(pairs[:, 0], 1, out=pairs[:, 1])
    pairs[alone, 1] = low[alone]
    return torch.from_numpy(pairs)


def _search(packed: Packed, targets: Targets) -> Tensor:
    """Search every trajectory's times, padded with infinity, for all of its targets at once."""
    times = packed.times
    row, number = targets.row, targets.number
    longest = int(packed.lengths.max())
    first = _on_device(packed.first_row, times)
    lengths = _on_device(packed.lengths, times).unsqueeze(1)
    offsets = torch.arange(longest, device=times.device)
    rows = first.unsqueeze(1) + torch.minimum(offsets, lengths - 1)
    padded = times[rows].masked_fill_(offsets >= lengths, torch.inf)
    wanted = times.new_zeros((len(packed), targets.length))
    wanted[row, number] = targets.times
    found = torch.searchsorted(padded, wanted, right=True)[row, number]
    low = (found - 1).clamp_(min=0).add_(targets.spread(packed.first_row))
    return torch.minimum(low, targets.spread(_final_low(packed)))


def _on_device(numbers: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    tensor = torch.from_numpy(numbers)
    # Even where nothing is to be moved `to` takes longer than a step over all targets.
    return tensor if like.device.type == "cpu" else tensor.to(like.device, non_blocking=True)
