"""Resamples trajectories of unequal length and rate to one rate, a whole batch at once.

`resample` takes a padded batch of tensors. `ResampledDataset` reads a set and yields such batches
to torch's ``DataLoader``. Both pack the batch, find the samples next to each target, and mix them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from leconvert.loading.trajectories import (
    HDF5_ENDINGS,
    DatasetSet,
    Hdf5Set,
    Method,
    Methods,
    Segment,
    Trajectory,
    TrajectorySource,
    choose_methods,
    even_counts,
    methods_for,
    preload,
    quaternions,
)
from leconvert.model.values import FloatArray, IntArray
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.flags import several
from leconvert.support.values import dataclass


class Resampled(NamedTuple):
    """Trajectories at their targets, as a padded batch.

    Attributes:
        times: Seconds after each trajectory's first sample, float64, shape (B, M); only values that
            ``mask`` marks are valid. Do not write to it: trajectories may share one row.
        values: By feature, shape (B, M, ...); zero at padding.
        lengths: Number of targets of each trajectory, int64, shape (B,).
        mask: True for targets, False for padding, shape (B, M).
    """

    times: Tensor
    values: dict[str, Tensor]
    lengths: Tensor
    mask: Tensor


_FLOATS = (torch.float32, torch.bfloat16, torch.float64)
_EXACT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def resample(
    times: Tensor,
    values: Mapping[str, Tensor],
    lengths: Tensor | Sequence[int] | None = None,
    *,
    hz: float | None = None,
    targets: Tensor | None = None,
    target_lengths: Tensor | Sequence[int] | None = None,
    methods: Mapping[str, Method] | None = None,
    outside: Literal["error", "clamp"] = "error",
    dtype: torch.dtype | None = None,
) -> Resampled:
    """Resample a padded batch of trajectories of unequal length and rate, on its device.

    Give either ``hz``, for targets every 1/hz from each trajectory's first sample to its last, or
    ``targets``. Times are rebased for each trajectory in float64, so Unix times lose nothing.

    Args:
        times: Seconds, ascending, float64 (or integers), shape (B, T). Values beyond a trajectory's
            length are ignored. float32 is refused, since its step for Unix times is two minutes.
        values: By feature, shape (B, T, ...): float32, bfloat16, float64, integers or booleans.
        lengths: Number of samples of each trajectory, shape (B,); None if all have T.
        hz: Targets a second.
        targets: The times of the targets, shape (B, M), with the same origin as ``times``, in any
            order.
        target_lengths: Number of valid targets of each trajectory, shape (B,); None if all are
            valid.
        methods: By ``feature``, ``feature[column]`` or ``feature[start:stop]``: ``linear``,
            ``previous``, ``nearest`` or ``slerp``. By default floats are linear, integers and
            booleans previous.
        outside: For targets before the first sample or after the last: ``error`` raises; ``clamp``
            takes the sample at that end, as `numpy.interp` does. The default is ``error``, since
            such a target mostly means that two clocks were mixed up, and a value held for an hour
            looks normal.
        dtype: Type of the floats in the result: float32, bfloat16 or float64; None keeps each
            feature's own. Mixing is done at least in float32 and rounded once.

    Returns:
        The padded batch, on the device of ``times``; gradients do not pass through it.

    Raises:
        UsageError: Shapes, types or lengths do not fit, a trajectory has no samples, times are NaN
            or not ascending, values are not finite, a quaternion is zero, or a target is outside.
    """
    _check_types(times, values, dtype)
    batch, room = times.shape
    counts = _counts(lengths, batch, room, "lengths", least=1)
    ends = torch.from_numpy(counts).to(times.device).unsqueeze(1)
    is_sample = torch.arange(room, device=times.device) < ends
    seconds = times.detach().double()
    _refuse(~seconds.isfinite() & is_sample, "has a time that is not finite")
    back = seconds.diff(dim=1, prepend=seconds[:, :1]) < 0
    _refuse(back & is_sample, "is not in the order of time")
    starts = seconds[:, :1]
    rebased = seconds - starts
    packed = Packed(
        rebased.reshape(-1).contiguous(),
        {key: _rows(key, table, is_sample, dtype) for key, table in values.items()},
        {key: tuple(table.shape[2:]) for key, table in values.items()},
        np.arange(batch, dtype=np.int64) * room,
        counts,
        rebased.gather(1, ends - 1).squeeze(1).cpu().numpy(),
    )
    chosen = choose_methods(
        {key: (_numpy_type(values[key].dtype), rows.shape[1]) for key, rows in packed.rows.items()},
        methods,
    )
    for key, start, stop in quaternions(chosen):
        zero = (packed.rows[key][:, start:stop] == 0).all(1).view(batch, room)
        _refuse(zero & is_sample, f"has the quaternion 0 in {key}[{start}:{stop}]")
    if (hz is None) == (targets is None):
        raise UsageError("Give either hz or targets.")
    if hz is not None:
        if not 0 < hz < float("inf"):
            raise UsageError(f"hz must be a number above 0, not {hz}.")
        return resample_packed(packed, chosen, even_targets(packed, hz))
    if not isinstance(targets, Tensor):
        raise UsageError(f"targets must be a tensor, not {type(targets).__name__}.")
    fits = targets.dim() == 2 and len(targets) == batch and targets.numel()
    if not fits or targets.dtype != torch.float64:
        raise UsageError(
            f"targets are of type {targets.dtype} and shape {tuple(targets.shape)}, not float64 of "
            f"shape ({batch}, M)."
        )
    counted = _counts(target_lengths, batch, targets.shape[1], "target_lengths", least=0)
    aims = Targets(targets.detach().to(times.device) - starts, counted, is_even=False)
    _check_targets(packed, aims, outside)
    return resample_packed(packed, chosen, aims)


def _check_types(times: Tensor, values: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
    for name, given in (("times", times), *(values or {}).items()):
        if not isinstance(given, Tensor):
            raise UsageError(f"{name} must be a tensor, not {type(given).__name__}.")
    if times.dim() != 2 or not times.numel():
        raise UsageError(f"times have shape {tuple(times.shape)}, not (B, T) with samples.")
    if times.dtype not in {torch.float64, torch.int64, torch.int32}:
        raise UsageError(
            f"times are of type {times.dtype}; seconds need float64.",
            next_step="Read the times as float64, or subtract the first time of each "
            "trajectory first.",
        )
    if dtype is not None and dtype not in _FLOATS:
        raise UsageError(f"The result can be float32, bfloat16 or float64, not {dtype}.")
    if not values:
        raise UsageError("There are no values to resample.")
    for key, table in values.items():
        if table.dtype not in _FLOATS + _EXACT:
            raise UsageError(
                f"{key} is of type {table.dtype}, which cannot be resampled.",
                next_step="Give float32, bfloat16, float64, integers or booleans.",
            )
        if table.shape[:2] != times.shape:
            raise UsageError(
                f"{key} has shape {tuple(table.shape)}, which must begin with the shape of "
                f"times, {tuple(times.shape)}."
            )
        if table.device != times.device:
            raise UsageError(f"{key} is on {table.device}, times on {times.device}.")


def _counts(
    given: Tensor | Sequence[int] | None, batch: int, room: int, name: str, *, least: int
) -> IntArray:
    if given is None:
        return np.full(batch, room, np.int64)
    counts = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    if counts.shape != (batch,) or counts.dtype.kind not in "iu":
        raise UsageError(f"{name} must be {batch} whole numbers, one for each trajectory.")
    for row, count in enumerate(counts.tolist()):
        if not least <= count <= room:
            what = "has no samples" if count == 0 else f"cannot have {count} of {room}"
            raise UsageError(f"Trajectory {row} {what} ({name}).")
    return counts.astype(np.int64)


def _refuse(wrong: Tensor, what: str) -> None:
    """Raise an error that names the first wrong sample of the padded batch, if there is one."""
    if bool(wrong.any()):
        row, sample = wrong.nonzero()[0].tolist()
        raise UsageError(
            f"Trajectory {row} {what} at sample {sample}.",
            next_step="Correct the samples of this trajectory, or leave them out.",
        )


def _rows(key: str, table: Tensor, is_sample: Tensor, dtype: torch.dtype | None) -> Tensor:
    rows = table.reshape(is_sample.numel(), -1).contiguous()
    if table.is_floating_point():
        # Check the converted values: a float64 can be too large for the requested type.
        rows = rows if dtype is None else rows.to(dtype)
        odd = ~rows.isfinite().all(1).view(is_sample.shape)
        converted = "" if dtype is None else f" as {dtype}"
        _refuse(odd & is_sample, f"has a value in {key} that is not finite{converted}")
    return rows


def _check_targets(packed: Packed, targets: Targets, outside: str) -> None:
    if outside not in {"error", "clamp"}:
        raise UsageError(f"outside is error or clamp, not {outside}.")
    ends = targets.spread(packed.durations_s)
    times = targets.times
    is_inside = (times >= 0) & (times <= ends)
    odd = (~times.isfinite() if outside == "clamp" else ~is_inside).nonzero()
    if len(odd):
        at = int(odd[0])
        raise UsageError(
            f"Trajectory {int(targets.row[at])} is {float(ends[at])} s long, but a target is "
            f"{float(times[at])} s after its first sample.",
            next_step="Leave such targets out, or pass outside='clamp' to hold the value at the "
            "end.",
        )


def _numpy_type(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return NumPy's type; for bfloat16, which NumPy lacks, another float."""
    if dtype == torch.bfloat16:
        return np.dtype(np.float32)
    found: np.dtype[np.generic] = torch.empty(0, dtype=dtype).numpy().dtype
    return found


# The key under which a batch holds the number of targets of each trajectory.
LENGTHS = "_lengths"

Batch = dict[str, Tensor]


class ResampledBatches(Dataset[Batch]):
    """A set of trajectories resampled to one rate, a batch at a time.

    Attributes:
        source: The set.
        methods: The method of every column.
        hz: Targets a second.
    """

    def __init__(self, source: TrajectorySource, methods: Methods, hz: float) -> None:
        self.source, self.methods, self.hz = source, methods, hz
        self._memory = PackMemory()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Batch:
        """Return one trajectory, resampled."""
        batch = self.__getitems__([range(len(self))[index]])
        return {key: values[0] for key, values in batch.items() if key != LENGTHS}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return a padded batch."""
        return self.as_batch(pack(self.load(indices), self._memory))

    def load(self, indices: Sequence[int]) -> list[Trajectory]:
        """Read trajectories of the set."""
        return [self.source.load(index) for index in indices]

    def at_once(self, packed: Packed) -> Resampled:
        """Resample a batch on its device."""
        return resample_packed(packed, self.methods, even_targets(packed, self.hz))

    def as_batch(self, packed: Packed) -> Batch:
        """Resample a batch on its device, with its `LENGTHS`."""
        resampled = self.at_once(packed)
        return resampled.values | {LENGTHS: resampled.lengths}

    @staticmethod
    def collate(batch: Any) -> Batch:
        """Return the batch of `__getitems__` unchanged, as a ``collate_fn`` for ``DataLoader``."""
        made: Batch = batch
        return made


class ResampledDataset(ResampledBatches):
    """Trajectories resampled to one rate: a map-style dataset for torch's ``DataLoader``.

    All trajectories of a batch are resampled at once, so ``DataLoader`` has nothing to collate:
    give it ``collate_fn=ResampledDataset.collate``. A batch holds every feature, shape (B, M, ...),
    zero at padding, and under ``"_lengths"`` the number of targets of each trajectory, shape (B,).
    One item is one trajectory, shape (M, ...), without the lengths.

    Args:
        place: A v3.0 dataset (a folder or URL), or a robomimic file that ends in ``.hdf5`` or
            ``.h5``.
        hz: Targets a second.
        columns: The features; None for all numeric ones.
        methods: As for `resample`.
        revision: Branch, tag or commit of a dataset on the Hub.
        source_hz: Samples a second of a robomimic file, instead of the rate in the file.
        in_memory: Read and check all trajectories once, when the dataset is made.

    Raises:
        SourceError: The set cannot be read, or its trajectories differ in their columns.
        UsageError: ``hz``, a column or a method is invalid.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        hz: float,
        columns: Sequence[str] | None = None,
        methods: Mapping[str, Method] | None = None,
        revision: str | None = None,
        source_hz: float | None = None,
        in_memory: bool = True,
    ) -> None:
        if not 0 < hz < math.inf:
            raise UsageError(f"hz must be a number above 0, not {hz}.")
        source: TrajectorySource
        columns = None if columns is None else several("columns", columns)
        if str(place).endswith(HDF5_ENDINGS):
            source = Hdf5Set(Path(place), columns=columns, source_hz=source_hz)
        else:
            source = DatasetSet(str(place), columns=columns, revision=revision)
        if not len(source):
            raise SourceError(f"{place} has no trajectories.", path=str(place))
        source = preload(source) if in_memory else source
        super().__init__(source, methods_for(source, methods or {}), hz)


# A batch of trajectories of unequal length, without padding.
# The samples of a batch are consecutive rows of one table per feature; a trajectory is a range of
# rows. So nothing is spent on padding (trajectories of 30 to 333 Hz and 1 to 4 s are less than half
# of their padded batch), and any selection of trajectories in a table is a batch that needs no
# copy.
# Times are rebased: the first time of each trajectory is subtracted in float64. The difference of
# two close float64 is exact (Sterbenz), so nothing is lost, and a target, which also counts from
# the first sample, is as exact as ``k / hz``. Times stay float64 to the end: at 333 Hz a float32
# near 4 s is off by up to 1e-4 of a step, ten times the allowed error, and times are one number in
# twenty. Only the weight of the two neighbours, from 0 to 1, is cast to the type of the values.


_FIRST_ROOM_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A batch of B trajectories, N samples in all. Numbers that decide sizes stay on the host."""

    times: Tensor  # rebased seconds, float64, of shape (N,)
    rows: Mapping[str, Tensor]  # values by feature, of shape (N, columns)
    shapes: Mapping[str, tuple[int, ...]]  # shape of one sample, by feature
    first_row: IntArray  # first row of each trajectory in the tables, shape (B,)
    lengths: IntArray  # number of samples of each trajectory, shape (B,)
    durations_s: FloatArray  # last rebased time of each trajectory, shape (B,)

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, indices: Sequence[int]) -> Packed:
        """Return a batch of some trajectories; it shares the tables, and nothing is copied."""
        chosen = np.asarray(indices, np.int64)
        return replace(
            self,
            first_row=self.first_row[chosen],
            lengths=self.lengths[chosen],
            durations_s=self.durations_s[chosen],
        )

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Packed:
        """Return the batch on a device, with floats of a type; times stay float64."""
        rows = {
            key: table.to(device, dtype if table.is_floating_point() else None, non_blocking=True)
            for key, table in self.rows.items()
        }
        return replace(self, times=self.times.to(device, non_blocking=True), rows=rows)


class PackMemory:
    """Memory for packed batches; each batch overwrites the previous one.

    New memory for every batch costs more than the copying, since the kernel clears and maps every
    new page. Pinned pages are copied to a GPU while other work runs.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._pieces: dict[str, Tensor] = {}

    def room(self, key: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return memory for a table; reused if it is large enough."""
        piece = self._pieces.get(key)
        fits = piece is not None and piece.dtype == dtype and piece.shape[1:] == shape[1:]
        if piece is None or not fits or len(piece) < shape[0]:
            rows = max(_FIRST_ROOM_ROWS, shape[0] + shape[0] // 2)
            piece = torch.empty((rows, *shape[1:]), dtype=dtype, pin_memory=self._pinned)
            self._pieces[key] = piece
        return piece[: shape[0]]


def pack(trajectories: Sequence[Trajectory], memory: PackMemory | None = None) -> Packed:
    """Copy trajectories with equal columns into one batch on the host.

    One thread does it: with a second thread for half of the trajectories it took as long on two
    cores, since blocks of some kilobytes are copied faster than Python's lock changes hands.
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
        key: memory.room(key, torch.from_numpy(values[:0]).dtype, (total, prod(shapes[key])))
        for key, values in first.columns.items()
    }
    for key, table in rows.items():
        flat = [one.columns[key].reshape(len(one), -1) for one in trajectories]
        np.concatenate(flat, out=table.numpy())
    durations_s = rebased[first_row + lengths - 1]
    return Packed(times, rows, shapes, first_row, lengths, durations_s)


# If a clock deviates from even times by more samples than this, it is searched.
_STEPS = 3
# Added to guesses, so a sample at its target counts as before it despite rounding.
_HAIR = 1e-9
_MOST_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of a batch, n in all, one trajectory after another."""

    # Seconds after each trajectory's first sample, float64, as a padded batch, shape (B, M);
    # undefined at padding.
    padded: Tensor
    counts: IntArray  # of each trajectory, on the host, shape (B,)
    is_even: bool  # the same steps from every trajectory's first sample

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
        """True for targets, False for padding, shape (B, M)."""
        # int32 halves the memory to compare; a larger length does not fit into memory anyway.
        numbers = np.arange(self.length, dtype=np.int32)
        return _on_device(numbers < self.counts.astype(np.int32)[:, None], self.padded)

    @cached_property
    def times(self) -> Tensor:
        """The times of ``padded`` that are targets, shape (n,)."""
        if self.padded.device.type == "cpu":
            return torch.from_numpy(self.padded.numpy()[self.mask.numpy()])
        return self.padded[self.row, self.number]  # choosing by mask would wait for the device

    @cached_property
    def row(self) -> Tensor:
        """The trajectory of each target, shape (n,)."""
        return self.spread(np.arange(len(self.counts)))

    @cached_property
    def number(self) -> Tensor:
        """The number of each target within its trajectory, shape (n,)."""
        starts = np.cumsum(self.counts) - self.counts
        return torch.arange(len(self), device=self.padded.device).sub_(self.spread(starts))

    @cached_property
    def slots(self) -> Tensor:
        """The index of each target in a padded batch with its rows laid end to end, shape (n,)."""
        return torch.add(self.number, self.row, alpha=self.length)

    def spread(self, of_trajectory: npt.NDArray[np.generic]) -> Tensor:
        """Return the number of each trajectory repeated for each of its targets, shape (n,)."""
        if self.padded.device.type == "cpu":
            return torch.from_numpy(np.repeat(of_trajectory, self.counts))
        numbers = _on_device(of_trajectory, self.padded)
        return numbers.repeat_interleave(self.lengths, output_size=len(self))


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The samples next to each target."""

    # The row of the last sample at or before the target, and the row after it; int32 or int64,
    # shape (n, 2).
    beside: Tensor
    weight: Tensor  # from 0 at the first to 1 at the second, float64, shape (n,)


def even_targets(packed: Packed, hz: float) -> Targets:
    """Return targets every 1/hz from the first sample to the last of each trajectory."""
    here = packed.times.device.type == "cpu"  # torch raises if the memory of a GPU is too small
    of_values = sum(rows.shape[1] * rows.element_size() for rows in packed.rows.values())
    counts = even_counts(packed.durations_s, hz, bytes_each=8 + here * of_values)
    # Divided, not multiplied by 1/hz, so a target is the float64 nearest to k/hz, as in NumPy.
    grid = _on_device(np.arange(counts.max()) / hz, packed.times)
    return Targets(grid.expand(len(counts), -1), counts, is_even=True)


def find_places(packed: Packed, targets: Targets) -> Places:
    """Return the samples next to each target; a target outside gets the sample at that end.

    If several samples have the same time, the last one counts from that time on, as in
    `numpy.interp`.

    Most clocks are nearly even. So for even targets on the CPU, the samples are guessed first and
    checked against the times; wrong guesses are moved by one sample, a few times. If some are still
    wrong, the times are searched, which takes longer than everything else together. On a GPU the
    times are searched at once, since checking whether all guesses are right costs a round trip.
    """
    if targets.is_even and packed.times.device.type == "cpu":
        places = _guess(packed, targets)
        if places is not None:
            return places
    low = _search(packed, targets)
    high = low + targets.spread(packed.lengths > 1).to(low.dtype)
    begins = packed.times.index_select(0, low)
    gaps = packed.times.index_select(0, high).sub_(begins)
    weight = torch.sub(targets.times, begins).div_(gaps).clamp_(0, 1)
    # 0/0: a trajectory of one sample, or times that repeat at its end. The last sample counts.
    return Places(torch.stack((low, high), 1), weight.nan_to_num_(nan=1.0))


def _final_low(packed: Packed) -> IntArray:
    """Return each trajectory's last row that has a row after it, or its only row."""
    final: IntArray = packed.first_row + np.maximum(packed.lengths - 2, 0)
    return final


def _guess(packed: Packed, targets: Targets) -> Places | None:
    """Return places guessed from even clocks, moved until all are right; None if that fails.

    A place is right if its target is at or after the sample before it and before the sample after
    it, that is, if the weight is at least 0 and below 1; or if it is the trajectory's last place.
    """
    # NumPy, in the memory of the tensors and with few arrays: each step takes some 10 us, and torch
    # would need a third of that just to start it.
    counts, aims, times = targets.counts, targets.times.numpy(), packed.times.numpy()
    durations = np.where(packed.durations_s > 0, packed.durations_s, 1.0)
    guess = np.repeat((packed.lengths - 1) / durations, counts)
    guess *= aims
    guess += np.repeat(packed.first_row + _HAIR, counts)
    low = guess.astype(np.int64)
    # Only a trajectory's last target can get a guess after its last sample but one.
    ends = np.cumsum(counts) - 1
    final = _final_low(packed)
    low[ends] = np.minimum(low[ends], final)
    weight = _weights(times, low, aims)
    wrong = _outside(weight)
    for _ in range(_STEPS + 1):
        is_before = weight[wrong] < 0
        is_last = ~is_before & (low[wrong] == final[np.searchsorted(ends, wrong)])
        # Some are 0/0: a trajectory of one sample, or times that repeat at its end.
        weight[wrong[is_last]] = 1
        wrong = wrong[~is_last]
        if not len(wrong):
            pairs = _pairs(low, ends[packed.lengths == 1], len(times))
            return Places(pairs, torch.from_numpy(weight))
        low[wrong] += np.where(is_before[~is_last], -1, 1)
        weight[wrong] = _weights(times, low[wrong], aims[wrong])
        wrong = wrong[_outside(weight[wrong])]
    return None


def _weights(times: FloatArray, low: IntArray, aims: FloatArray) -> FloatArray:
    """Return each target's position between the sample at ``low`` and the next row, from 0 to 1.

    A weight below 0, or of at least 1, shows a wrong place. The row after a trajectory's only
    sample belongs to another trajectory or does not exist. This is harmless: the only target is at
    0 s, so the weight is 0 or NaN.
    """
    weight = times.take(low)
    gaps = times[min(1, len(times) - 1) :].take(low, mode="clip")
    gaps -= weight
    np.subtract(aims, weight, out=weight)
    with np.errstate(divide="ignore", invalid="ignore"):  # times can repeat
        weight /= gaps
    return weight


def _outside(weight: FloatArray) -> npt.NDArray[np.intp]:
    """Return the indices of weights that are not at least 0 and below 1, or are NaN."""
    return np.flatnonzero(~((weight >= 0) & (weight < 1)))


def _pairs(low: IntArray, alone: IntArray, rows: int) -> Tensor:
    """Return each ``low`` and the row after it, or twice ``low`` for the targets in ``alone``."""
    pairs = np.empty((len(low), 2), np.int32 if rows <= _MOST_INT32 else np.int64)
    pairs[:, 0] = low
    np.add(pairs[:, 0], 1, out=pairs[:, 1])
    pairs[alone, 1] = low[alone]
    return torch.from_numpy(pairs)


def _search(packed: Packed, targets: Targets) -> Tensor:
    """Search the times of all trajectories, padded with infinity, for all targets at once."""
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
    # Even if nothing has to move, `to` takes longer than one operation on all targets.
    return tensor if like.device.type == "cpu" else tensor.to(like.device, non_blocking=True)


@torch.no_grad()
def resample_packed(packed: Packed, methods: Methods, targets: Targets) -> Resampled:
    """Resample a batch on its device; floats keep the type of the packed rows.

    bfloat16 is mixed in float32 and rounded once.
    """
    places = find_places(packed, targets)
    batch, length = len(packed), targets.length
    mixer = _Mixer(places, targets, batch)
    values = {
        key: mixer.resample(rows, methods[key]).view(batch, length, *packed.shapes[key])
        for key, rows in packed.rows.items()
    }
    return Resampled(targets.padded, values, targets.lengths, targets.mask)


class _Mixer:
    """Fetches and mixes rows of one table after another for the same targets."""

    def __init__(self, places: Places, targets: Targets, batch: int) -> None:
        self._places = places
        self._targets = targets
        self._size = batch * targets.length

    def resample(self, rows: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Return a table at all targets, shape (B * M, columns)."""
        if any(method == "linear" for _, _, method in segments):
            # All columns at once; the few that are not linear are overwritten below.
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
        """Fetch and mix in one pass: the weighted sum of a bag of two rows equals lerp.

        Padding is an empty bag, whose sum is zero. torch runs this with FBGEMM on all threads,
        without two tables of fetched rows, which otherwise take most of the time.
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
        """The weights of the two rows of each target, shape (2 n,)."""
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
        """Return the start of each target's bag. Padding starts at the next bag, so it is empty."""
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
        """Return the rows before and after each target and the weight, at least in float32."""
        kind = torch.promote_types(rows.dtype, torch.float32)
        both = rows.index_select(0, self._places.beside.view(-1)).to(kind)
        both = both.view(-1, 2, rows.shape[1])
        return both[:, 0], both[:, 1], self._places.weight.to(kind)

    def _copy_samples(self, rows: Tensor, out: Tensor, columns: slice, *, is_nearest: bool) -> None:
        weight = self._places.weight
        comes = weight > 0.5 if is_nearest else weight >= 1
        source = torch.where(comes, self._places.beside[:, 1], self._places.beside[:, 0])
        if rows.device.type == "cpu" and rows.dtype == torch.float32:
            # Bags of one row are faster than picking single numbers and putting them into place.
            samples = functional.embedding_bag(source, rows, self._bags_of_one, mode="sum")
            out[:, columns] = samples[:, columns]
        else:
            out[self._targets.slots, columns] = rows.index_select(0, source)[:, columns]


# If the sine of the angle is below this, the arc is a straight line within float32.
_NEARLY_PARALLEL = 1e-6


def slerp(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Return unit quaternions on the shorter arc between two.

    The order of the four parts does not matter. A quaternion and its negative are the same
    rotation. If the two lie on different sides, the second is negated, so the result has the sign
    of the first. Formula: K. Shoemake, *Animating rotation with quaternion curves*, SIGGRAPH 1985.
    The angle is ``2 atan2(|a - b|, |a + b|)`` (W. Kahan), as ``acos`` loses half of the digits if
    the two are close.

    Args:
        first: Quaternions at weight 0, shape (n, 4).
        second: Quaternions at weight 1, shape (n, 4).
        weight: From 0 to 1, shape (n,).
    """
    one, other = _unit(first), _unit(second)
    other = torch.where((one * other).sum(1, keepdim=True) < 0, -other, other)
    angle = 2 * torch.atan2((one - other).norm(dim=1), (one + other).norm(dim=1))
    sine = angle.sin()
    is_small = sine < _NEARLY_PARALLEL
    sine = torch.where(is_small, torch.ones_like(sine), sine)
    before = torch.where(is_small, 1 - weight, ((1 - weight) * angle).sin() / sine)
    after = torch.where(is_small, weight, (weight * angle).sin() / sine)
    mixed: Tensor = before.unsqueeze(1) * one + after.unsqueeze(1) * other
    return mixed.div_(mixed.norm(dim=1, keepdim=True))


def _unit(quaternions: Tensor) -> Tensor:
    """Return quaternions of length 1. They are scaled first, so no square overflows."""
    scaled = quaternions / quaternions.abs().amax(1, keepdim=True)
    unit: Tensor = scaled / scaled.norm(dim=1, keepdim=True)
    return unit
