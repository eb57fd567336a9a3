"""The batched resampler: places, then the rows beside each target are fetched and mixed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from leconvert.probe.resampling.methods import Methods, Segment
from leconvert.probe.resampling.packing import Packed
from leconvert.probe.resampling.places import Places, Targets, even_targets, find_places
from leconvert.probe.resampling.slerp import slerp

__all__ = ["Resampled", "resample_packed"]


class Resampled(NamedTuple):
    """Trajectories at their targets, as a padded batch.

    Attributes:
        times: Seconds after each trajectory's first sample, float64, of shape (B, M); only what
            ``mask`` marks counts. Not to be written to: trajectories may share one row.
        values: By feature, of shape (B, M, ...); zero where there is no target.
        lengths: Targets of each trajectory, int64, of shape (B,).
        mask: Whether there is a target, of shape (B, M).
    """

    times: Tensor
    values: dict[str, Tensor]
    lengths: Tensor
    mask: Tensor


@torch.no_grad()
def resample_packed(
    packed: Packed, methods: Methods, *, hz: float | None = None, targets: Targets | None = None
) -> Resampled:
    """Resample a batch on its device.

    Args:
        packed: The batch.
        methods: Method of every column.
        hz: Targets a second; or
        targets: the targets.

    Returns:
        The batch; floats keep the type of the packed rows. A bfloat16 is mixed in float32 and
        rounded once.
    """
    if targets is None:
        assert hz is not None
        targets = even_targets(packed, hz)
    places = find_places(packed, targets)
    batch, length = len(packed), targets.length
    mixer = _Mixer(places, targets, batch)
    values = {
        key: mixer.resample(rows, methods[key]).view(batch, length, *packed.shapes[key])
        for key, rows in packed.rows.items()
    }
    return Resampled(targets.padded, values, targets.lengths, targets.mask)


class _Mixer:
    """Fetches and mixes rows of one table after the other for the same targets."""

    def __init__(self, places: Places, targets: Targets, batch: int) -> None:
        self._places = places
        self._targets = targets
        self._size = batch * targets.length

    def resample(self, rows: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Return a table at all targets, of shape (B * M, columns)."""
        if any(method == "linear" for _, _, method in segments):
            # All columns at once: the few that are not linear are written over below.
            is_fused = rows.device.type == "cpu" and rows.dtype == torch.float32
            out = self._fused(rows) if is_fused else self._mixed(rows)
        else:
            out = rows.new_zeros((self._size, rows.shape[1]))
        for start, stop, method in segments:
            if method == "slerp":
                first, second, weight = self._beside(rows[:, start:stop])
                out[self._targets.slots, start:stop] = slerp(first, second, weight).to(rows.dtype)
            elif method != "linear":
                self._copy_samples(rows, out, slice(start, stop), is_nearest=method == "nearest")
        return out

    def _fused(self, rows: Tensor) -> Tensor:
        """Fetch and mix in one pass: the weighted sum of a bag of two rows is what lerp gives.

        Padding is a bag of none, whose sum is zero. torch runs this with FBGEMM on all threads,
        without the two tables of fetched rows that take most of the time otherwise.
        """
        return functional.embedding_bag(
            self._places.beside.view(-1),
            rows,
            self._bags_of_two,
            mode="sum",
            per_sample_weights=self._shares,
        )

    @cached_property
    def _shares(self) -> Tensor:
        """Share of each of the rows beside the targets, of shape (2 n,)."""
        weight = self._places.weight.numpy()
        shares = np.empty((len(weight), 2), np.float32)
        shares[:, 1] = weight
        np.subtract(1, shares[:, 1], out=shares[:, 0])
        return torch.from_numpy(shares.reshape(-1))

    @cached_property
    def _bags_of_two(self) -> Tensor:
        return self._bags(2)

    @cached_property
    def _bags_of_one(self) -> Tensor:
        return self._bags(1)

    def _bags(self, rows_of_each: int) -> Tensor:
        """Return where the bag of each target begins; padding has none, so it begins as the next.

        Returns:
            Of the type of the rows' numbers, of shape (B * M,).
        """
        kind = self._places.beside.numpy().dtype
        counts = (self._targets.counts * rows_of_each).astype(kind)
        begins = np.cumsum(counts, dtype=kind) - counts
        bags = np.arange(0, self._targets.length * rows_of_each, rows_of_each, dtype=kind)
        bags = np.minimum(bags, counts[:, None])
        bags += begins[:, None]
        return torch.from_numpy(bags.reshape(-1))

    def _mixed(self, rows: Tensor) -> Tensor:
        first, second, weight = self._beside(rows)
        mixed = torch.lerp(first, second, weight.unsqueeze(1)).to(rows.dtype)
        out = rows.new_zeros((self._size, rows.shape[1]))
        return out.index_copy_(0, self._targets.slots, mixed)

    def _beside(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows before and after each target and the weight, in float32 at least."""
        kind = torch.promote_types(rows.dtype, torch.float32)
        both = rows.index_select(0, self._places.beside.view(-1)).to(kind)
        both = both.view(-1, 2, rows.shape[1])
        return both[:, 0], both[:, 1], self._places.weight.to(kind)

    def _copy_samples(self, rows: Tensor, out: Tensor, columns: slice, *, is_nearest: bool) -> None:
        weight = self._places.weight
        comes = weight > 0.5 if is_nearest else weight >= 1
        source = torch.where(comes, self._places.high, self._places.low)
        if rows.device.type == "cpu" and rows.dtype == torch.float32:
            # Bags of one: faster than to pick single numbers and to put them into their places.
            samples = functional.embedding_bag(source, rows, self._bags_of_one, mode="sum")
            out[:, columns] = samples[:, columns]
        else:
            out[self._targets.slots, columns] = rows.index_select(0, source)[:, columns]
