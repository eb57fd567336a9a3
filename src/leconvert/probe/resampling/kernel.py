"""The batched resampler: places, then the rows beside each target are fetched and mixed."""

from __future__ import annotations

from collections.abc import Sequence
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
    mask = torch.from_numpy(np.arange(length) < targets.counts[:, None])
    mask = mask.to(packed.device, non_blocking=True)
    return Resampled(targets.padded, values, targets.lengths, mask)


class _Mixer:
    """Fetches and mixes rows of one table after the other for the same targets."""

    def __init__(self, places: Places, targets: Targets, batch: int) -> None:
        self._beside = places.low, places.high, places.weight
        self._targets = targets
        self._size = batch * targets.length
        self._bags: Tensor | None = None
        self._pairs: tuple[Tensor, Tensor] | None = None

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
                part = self._slerp(rows[:, start:stop])
                out[self._targets.slots, start:stop] = part.to(rows.dtype)
            elif method != "linear":
                self._copy_samples(rows, out, slice(start, stop), is_nearest=method == "nearest")
        return out

    def _fused(self, rows: Tensor) -> Tensor:
        """Fetch and mix in one pass: the weighted sum of a bag of two rows is what lerp gives.

        Padding is a bag of none, whose sum is zero. torch runs this with FBGEMM on all threads,
        without the two tables of fetched rows that take most of the time otherwise.
        """
        if self._pairs is None:
            low, high, weight = (part.numpy() for part in self._beside)
            both = np.empty((len(low), 2), low.dtype)
            both[:, 0], both[:, 1] = low, high
            shares = np.empty((len(low), 2), np.float32)
            shares[:, 1] = weight
            np.subtract(1, shares[:, 1], out=shares[:, 0])
            self._pairs = torch.from_numpy(both.reshape(-1)), torch.from_numpy(shares.reshape(-1))
        pairs, weights = self._pairs
        return functional.embedding_bag(
            pairs, rows, self._offsets() * 2, mode="sum", per_sample_weights=weights
        )

    def _offsets(self) -> Tensor:
        """Return where the bag of each target begins, with one row in each; padding has none."""
        if self._bags is None:
            counts = self._targets.counts
            kind = self._beside[0].numpy().dtype
            ends = np.cumsum(counts).astype(kind)
            begins = ends - counts.astype(kind)
            places = np.add.outer(begins, np.arange(self._targets.length, dtype=kind))
            np.minimum(places, ends[:, None], out=places)
            self._bags = torch.from_numpy(places.reshape(-1))
        return self._bags

    def _mixed(self, rows: Tensor) -> Tensor:
        low, high, weight = self._beside
        kind = torch.promote_types(rows.dtype, torch.float32)
        first = rows.index_select(0, low).to(kind)
        second = rows.index_select(0, high).to(kind)
        mixed = torch.lerp(first, second, weight.to(kind).unsqueeze(1)).to(rows.dtype)
        out = rows.new_zeros((self._size, rows.shape[1]))
        return out.index_copy_(0, self._targets.slots, mixed)

    def _slerp(self, rows: Tensor) -> Tensor:
        low, high, weight = self._beside
        kind = torch.promote_types(rows.dtype, torch.float32)
        return slerp(rows[low].to(kind), rows[high].to(kind), weight.to(kind))

    def _copy_samples(self, rows: Tensor, out: Tensor, columns: slice, *, is_nearest: bool) -> None:
        low, high, weight = self._beside
        comes = weight > 0.5 if is_nearest else weight >= 1
        source = torch.where(comes, high, low)
        if rows.device.type == "cpu" and rows.dtype == torch.float32:
            # Bags of one: faster than to pick single numbers and to put them into their places.
            samples = functional.embedding_bag(source, rows, self._offsets(), mode="sum")
            out[:, columns] = samples[:, columns]
        else:
            out[self._targets.slots, columns] = rows.index_select(0, source)[:, columns]
