"""Trajectories of unequal length as one batch of tensors, without padding.

The samples of a batch follow on each other in one table a feature; a trajectory is a range of its
rows. So nothing is spent on padding (trajectories of 30 to 333 Hz and 1 to 4 s are less than half
of their padded batch), and any choice among trajectories that are in a table already is a batch of
its own that costs no copy.

Times are rebased: the first time of each trajectory is subtracted in float64. The difference of two
close float64 is exact (Sterbenz), so nothing is lost that was there, and a target, which counts
from the first sample too, is as exact as ``k / hz``. They stay float64 to the end: at 333 Hz a
float32 near 4 s is off by up to 1e-4 of a step, ten times the error that is allowed, and times are
one number in twenty. Only the weight of the two neighbours, a number from 0 to 1, is cast to the
type of the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leconvert.probe.resampling.values import Array, FloatArray, Trajectory

__all__ = ["PackMemory", "Packed", "pack"]

_FIRST_ROOM_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A batch of B trajectories. What decides sizes is on the host, whatever the device.

    Attributes:
        times: Rebased seconds, float64, of shape (N,).
        rows: Values by feature, of shape (N, columns).
        shapes: Shape of one sample of each feature.
        first_row: Where each trajectory begins in the tables, of shape (B,).
        lengths: Samples of each, of shape (B,).
        durations_s: Its last time, rebased, of shape (B,).
    """

    times: Tensor
    rows: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    first_row: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    durations_s: FloatArray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self.times.device

    def tables(self) -> Iterator[Tensor]:
        """Yield the times and the values of each feature."""
        yield self.times
        yield from self.rows.values()

    def select(self, places: Sequence[int] | npt.NDArray[np.int64]) -> Packed:
        """Return some of the trajectories as a batch; the tables are shared, nothing is copied."""
        chosen = np.asarray(places, np.int64)
        return replace(
            self,
            first_row=self.first_row[chosen],
            lengths=self.lengths[chosen],
            durations_s=self.durations_s[chosen],
        )

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Packed:
        """Return the batch on a device, its floats of a type; times stay float64."""
        rows = {
            key: table.to(device, dtype if table.is_floating_point() else None, non_blocking=True)
            for key, table in self.rows.items()
        }
        return replace(self, times=self.times.to(device, non_blocking=True), rows=rows)


class PackMemory:
    """Memory that batches are packed into, one after the other: each overwrites the last.

    New memory for every batch costs more than the copying, since the kernel clears and maps every
    page of it.

    Args:
        pinned: Lock its pages, for copies to a GPU that run beside other work.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._pieces: dict[str, Tensor] = {}

    def room(self, key: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return room for a table."""
        piece = self._pieces.get(key)
        fits = piece is not None and piece.dtype == dtype and piece.shape[1:] == shape[1:]
        if piece is None or not fits or len(piece) < shape[0]:
            rows = max(_FIRST_ROOM_ROWS, shape[0] + shape[0] // 2)
            piece = torch.empty((rows, *shape[1:]), dtype=dtype, pin_memory=self._pinned)
            self._pieces[key] = piece
        return piece[: shape[0]]


def pack(trajectories: Sequence[Trajectory], memory: PackMemory | None = None) -> Packed:
    """Copy trajectories that are alike into one batch on the host.

    One thread does it: a second one for half of the trajectories took as long on two cores, since
    pieces of some kilobytes are copied faster than Python's lock changes hands.

    Args:
        trajectories: At least one; `leconvert.probe.resampling.values.check_alike` holds.
        memory: Where to; None for memory of its own. Not to be shared by threads that pack.
    """
    memory = memory or PackMemory()
    lengths = np.array([len(one.times) for one in trajectories], np.int64)
    first_row = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    first = trajectories[0]
    shapes = {key: values.shape[1:] for key, values in first.columns.items()}
    times = memory.room("", torch.float64, (total,))
    rebased = np.concatenate([one.times for one in trajectories], out=times.numpy())
    rebased -= np.repeat(rebased[first_row], lengths)
    rows = {
        key: memory.room(key, _torch_type(values.dtype), (total, prod(shapes[key])))
        for key, values in first.columns.items()
    }
    for key, table in rows.items():
        np.concatenate([_flat(one.columns[key]) for one in trajectories], out=table.numpy())
    durations_s = rebased[first_row + lengths - 1]
    return Packed(times, rows, shapes, first_row, lengths, durations_s)


def _flat(values: Array) -> Array:
    return values if values.ndim == 2 else values.reshape(len(values), -1)


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
