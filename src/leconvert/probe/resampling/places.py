"""Where targets lie among samples: the samples on both sides, and how far it is between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leconvert.probe.resampling.packing import Packed
from leconvert.probe.resampling.values import GRID_TOLERANCE

__all__ = ["Places", "Targets", "even_targets", "find_places", "given_targets"]

# A clock that wanders further from even times than so many samples is searched instead.
_STEPS = 3
# A sample that lies on a target but for the last bit of a product is guessed to be before it.
_HAIR = 1e-9


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of a batch, n in all, one trajectory after the other.

    Attributes:
        times: Seconds after the trajectory's first sample, float64, of shape (n,).
        number: Number of each within its trajectory, of shape (n,).
        padded: The times as a padded batch, of shape (B, M); beyond a trajectory's targets they
            mean nothing.
        counts: Targets of each trajectory, on the host, of shape (B,).
        is_even: Whether every trajectory has them at the same steps from its first sample on.
    """

    times: Tensor
    number: Tensor
    padded: Tensor
    counts: npt.NDArray[np.int64]
    is_even: bool

    @property
    def length(self) -> int:
        """The padded length M."""
        return self.padded.shape[1]

    @cached_property
    def lengths(self) -> Tensor:
        """``counts`` on the device."""
        return _on_device(self.counts, self.times)

    @cached_property
    def row(self) -> Tensor:
        """Trajectory of each, of shape (n,)."""
        return self.spread(np.arange(len(self.counts)))

    @cached_property
    def slots(self) -> Tensor:
        """Where each goes in a padded batch whose rows were put one after the other."""
        return torch.add(self.number.long(), self.row, alpha=self.length)

    def spread(self, of_trajectory: npt.NDArray[np.generic]) -> Tensor:
        """Return a number of each trajectory for each of its targets."""
        if self.times.device.type == "cpu":
            return torch.from_numpy(np.repeat(of_trajectory, self.counts))
        numbers = _on_device(of_trajectory, self.times)
        return numbers.repeat_interleave(self.lengths, output_size=len(self.times))


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The samples beside each target; all of shape (n,).

    Attributes:
        low: Row of the one before, or on it.
        high: Row of the one after it.
        weight: From 0 at ``low`` to 1 at ``high``, float64.
    """

    low: Tensor
    high: Tensor
    weight: Tensor


def even_targets(packed: Packed, hz: float) -> Targets:
    """Return targets every 1/hz from the first sample to the last of each trajectory."""
    counts = (packed.durations_s * hz + GRID_TOLERANCE).astype(np.int64) + 1
    starts, total = np.cumsum(counts) - counts, int(counts.sum())
    device = packed.device
    # Divided, not multiplied by 1/hz: a target is then the float64 nearest to k/hz, as in NumPy.
    grid = torch.arange(int(counts.max()), dtype=torch.float64, device=device).div_(hz)
    if device.type == "cpu":
        number = torch.from_numpy(np.arange(total) - np.repeat(starts, counts))
    else:
        lengths = _on_device(counts, packed.times)
        firsts = _on_device(starts, packed.times).repeat_interleave(lengths, output_size=total)
        number = torch.arange(total, device=device).sub_(firsts)
    padded = grid.expand(len(counts), -1)
    return Targets(grid.index_select(0, number), number, padded, counts, is_even=True)


def given_targets(aims: Tensor, counts: npt.NDArray[np.int64]) -> Targets:
    """Return the targets of a padded batch, rebased, of shape (B, M)."""
    numbers = torch.arange(aims.shape[1], device=aims.device)
    row, number = (numbers < _on_device(counts, aims).unsqueeze(1)).nonzero(as_tuple=True)
    return Targets(aims[row, number], number, aims, counts, is_even=False)


def find_places(packed: Packed, targets: Targets) -> Places:
    """Return the samples beside each target; one outside takes the sample at the end.

    Of samples at the same time the last counts from that time on, as `numpy.interp` has it.

    For even targets on the CPU the places are guessed first, as most clocks are nearly even, and
    checked against the times themselves; where guesses are wrong they move by a sample, a few
    times. Only where that does not do are the times searched, which takes longer than all the rest
    together. On a GPU they are searched at once: whether all guesses hold costs a round trip.
    """
    low = None
    if targets.is_even and packed.device.type == "cpu":
        low, places = _guess(packed, targets)
        if places is not None:
            return places
        low = _step(packed, targets, low)
    if low is None:
        low = _search(packed, targets)
    high = _next(packed, targets, low)
    begins = packed.times.index_select(0, low)
    gaps = packed.times.index_select(0, high).sub_(begins)
    weight = torch.sub(targets.times, begins).div_(gaps).clamp_(0, 1)
    # 0/0: a trajectory of one sample, or times that repeat at its very end. The last one counts.
    return Places(low, high, weight.nan_to_num_(nan=1.0))


def _final_low(packed: Packed) -> npt.NDArray[np.int64]:
    """Return the last row of each trajectory that has another after it, or its only one."""
    final: npt.NDArray[np.int64] = packed.first_row + np.maximum(packed.lengths - 2, 0)
    return final


def _next(packed: Packed, targets: Targets, low: Tensor) -> Tensor:
    if int(packed.lengths.min()) > 1:
        return low + 1
    return low + targets.spread(packed.lengths > 1).to(low.dtype)


def _guess(packed: Packed, targets: Targets) -> tuple[Tensor, Places | None]:
    """Return places for an even clock, and whether they are right: None if one is not.

    A place is right if its target is at or after the sample before it and before the one after it,
    so if the weight is at least 0 and below 1. The last target of a trajectory may lie on its last
    sample, which has none after it; such targets are few and looked at apart.
    """
    # By NumPy, in the tensors' own memory: each of these steps takes some 10 us, of which torch
    # would spend a third on beginning it.
    counts, times, aims = targets.counts, packed.times.numpy(), targets.times.numpy()
    durations = np.where(packed.durations_s > 0, packed.durations_s, 1.0)
    guess = np.repeat((packed.lengths - 1) / durations, counts)
    guess *= aims
    guess += np.repeat(packed.first_row + _HAIR, counts)
    is_small = len(times) <= np.iinfo(np.int32).max
    low: npt.NDArray[np.int32 | np.int64] = guess.astype(np.int32 if is_small else np.int64)
    ends = np.cumsum(counts) - 1
    final = _final_low(packed)
    low[ends] = np.minimum(low[ends], final)
    if int(packed.lengths.min()) < 2:
        return torch.from_numpy(low), None
    high = low + 1
    begins = times.take(low)
    gaps = times.take(high)
    gaps -= begins
    weight = aims - begins
    with np.errstate(divide="ignore", invalid="ignore"):  # what repeats is told by the check
        weight /= gaps
    of_ends = weight[ends]
    weight[ends] = 0
    ends_hold = ((of_ends >= 0) & ((of_ends < 1) | (low[ends] == final))).all()
    if not (weight.min() >= 0 and weight.max() < 1 and ends_hold):
        return torch.from_numpy(low), None
    weight[ends] = np.minimum(of_ends, 1)
    low_, high_, weight_ = map(torch.from_numpy, (low, high, weight))
    return low_, Places(low_, high_, weight_)


def _step(packed: Packed, targets: Targets, low: Tensor) -> Tensor | None:
    """Move guesses until all are right; None if that takes too long."""
    first, final = targets.spread(packed.first_row), targets.spread(_final_low(packed))
    for _ in range(_STEPS):
        begins = packed.times.index_select(0, low)
        ends = packed.times.index_select(0, _next(packed, targets, low))
        too_early = (ends <= targets.times).logical_and_(low < final)
        too_late = (begins > targets.times).logical_and_(low > first)
        if not bool(too_early.logical_or(too_late).any()):
            return low
        low = low + too_early.to(low.dtype) - too_late.to(low.dtype)
    return None


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
    return torch.from_numpy(numbers).to(like.device, non_blocking=True)
