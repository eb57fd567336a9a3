"""`resample`: the batched resampler for tensors that somebody has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leconvert.bench.resampling.kernel import (
    Packed,
    Resampled,
    Targets,
    even_targets,
    resample_packed,
)
from leconvert.bench.resampling.trajectories import Method, choose_methods, quaternions
from leconvert.support.errors import UsageError

__all__ = ["resample"]


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

    Either ``hz`` gives targets, every 1/hz from each trajectory's first sample as far as its last,
    or ``targets`` does. Times are rebased per trajectory in float64, so Unix times lose nothing.

    Args:
        times: Seconds, ascending, float64 (or integers); of shape (B, T). What lies beyond a
            trajectory's length is not looked at. float32 is refused, as a Unix time in it is good
            to two minutes.
        values: By feature, of shape (B, T, ...): float32, bfloat16, float64, integers or booleans.
        lengths: Samples of each trajectory, of shape (B,); None if all have T.
        hz: Targets a second.
        targets: Or the targets' times, of shape (B, M), from the same origin as ``times``, in any
            order.
        target_lengths: How many of them count, of shape (B,); None if all do.
        methods: By ``feature``, ``feature[column]`` or ``feature[start:stop]``: ``linear``,
            ``previous``, ``nearest`` or ``slerp``. By default floats are linear, integers and
            booleans previous.
        outside: What happens to a target before the first sample or after the last. ``error``, the
            default, since such a target mostly means that two clocks were mixed up, and a value
            held for an hour looks like any other; ``clamp`` takes the sample at that end, as
            `numpy.interp` does.
        dtype: Type of the floats in the result: float32, bfloat16 or float64; None keeps each
            feature's own. Mixing is done in float32 at least and rounded once.

    Returns:
        The padded batch, on the device of ``times``; gradients do not pass through it.

    Raises:
        UsageError: Shapes, types or lengths do not fit, a trajectory has no samples, times are NaN
            or not in order, values are not finite, a quaternion is zero, a target is outside.
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
    assert targets is not None
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
    if times.dim() != 2 or not times.numel():
        raise UsageError(f"times have shape {tuple(times.shape)}, not (B, T) with samples.")
    if times.dtype not in {torch.float64, torch.int64, torch.int32}:
        raise UsageError(
            f"times are of type {times.dtype}; seconds need float64.",
            next_step="Read them as float64, or subtract each trajectory's first time before.",
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
                f"{key} has shape {tuple(table.shape)}; it must begin with that of times, "
                f"{tuple(times.shape)}."
            )
        if table.device != times.device:
            raise UsageError(f"{key} is on {table.device}, times on {times.device}.")


def _counts(
    given: Tensor | Sequence[int] | None, batch: int, room: int, name: str, *, least: int
) -> npt.NDArray[np.int64]:
    if given is None:
        return np.full(batch, room, np.int64)
    counts = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    if counts.shape != (batch,) or counts.dtype.kind not in "iu":
        raise UsageError(f"{name} must be {batch} whole numbers, one a trajectory.")
    for row, count in enumerate(counts.tolist()):
        if not least <= count <= room:
            what = "has no samples" if count == 0 else f"cannot have {count} of {room}"
            raise UsageError(f"Trajectory {row} {what} ({name}).")
    return counts.astype(np.int64)


def _refuse(wrong: Tensor, what: str) -> None:
    """Raise if a sample of the padded batch is wrong."""
    if bool(wrong.any()):
        row, sample = wrong.nonzero()[0].tolist()
        raise UsageError(
            f"Trajectory {row} {what} at sample {sample}.",
            next_step="Repair its samples, or leave them out.",
        )


def _rows(key: str, table: Tensor, is_sample: Tensor, dtype: torch.dtype | None) -> Tensor:
    rows = table.reshape(is_sample.numel(), -1).contiguous()
    if table.is_floating_point():
        # As what is mixed: a float64 can be too large for the type that was asked for.
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
            f"Trajectory {int(targets.row[at])} has a target {float(times[at])} s after its first "
            f"sample, outside of its {float(ends[at])} s.",
            next_step="Leave such targets out, or pass outside='clamp' to hold the value at the "
            "end.",
        )


def _numpy_type(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return NumPy's type, or for bfloat16, which it lacks, another float."""
    if dtype == torch.bfloat16:
        return np.dtype(np.float32)
    found: np.dtype[np.generic] = torch.empty(0, dtype=dtype).numpy().dtype
    return found
