"""A trajectory: what one robot recorded, at its own times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import SourceError

__all__ = ["GRID_TOLERANCE", "Array", "FloatArray", "Trajectory", "check_alike", "is_numeric"]

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]

GRID_TOLERANCE = 1e-6
"""Share of a step by which the last sample may be too early for a target that it still gives."""


# torch computes with no other unsigned type than uint8; these hold the same numbers.
_WIDER = {"u2": "i4", "u4": "i8"}
_UNKNOWN_TO_TORCH = frozenset({"u8", "f12", "f16"})


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a type can be resampled: real numbers and booleans.

    uint64 and what is longer than float64 cannot, as torch knows neither.
    """
    return dtype.kind in "fiub" and dtype.str[1:] not in _UNKNOWN_TO_TORCH


def _native(values: Array) -> Array:
    """Return numbers as torch takes them: in this machine's byte order, of a type that it knows."""
    plain = values.dtype.newbyteorder("=")
    return values.astype(_WIDER.get(plain.str[1:], plain), copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One recording, checked when it is made, so that what resamples it need not.

    Times ascend; several samples may carry the same time, and the last of them then counts from
    that time on (as in `numpy.interp`). Values must be finite: one NaN would otherwise spread to
    the targets on both sides, and from there into a training.

    Attributes:
        name: What errors call it.
        times: Seconds, float64, of shape (T,); any origin, such as the Unix epoch.
        columns: Numbers by feature, of shape (T,) or (T, ...); uint16 and uint32 become int32 and
            int64, and any byte order this machine's.

    Raises:
        SourceError: There are no samples; times are NaN, infinite or not ascending; a column has
            another length, no numeric type, or values that are not finite.
    """

    name: str
    times: FloatArray
    columns: Mapping[str, Array]

    def __post_init__(self) -> None:
        times = np.asarray(self.times)
        if times.ndim != 1 or times.dtype.kind not in "fiu":
            raise self._error(
                f"has times of type {times.dtype} and shape {times.shape}",
                "Give its times as one row of numbers, in seconds.",
            )
        object.__setattr__(self, "times", times.astype(np.float64, copy=False))
        self._check_times()
        for key, values in self.columns.items():
            self._check_column(key, values)
        native = {key: _native(values) for key, values in self.columns.items()}
        object.__setattr__(self, "columns", native)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def duration_s(self) -> float:
        """Seconds from the first sample to the last."""
        return float(self.times[-1] - self.times[0])

    def widths(self) -> dict[str, int]:
        """Return how many numbers a sample of each feature has."""
        return {key: prod(values.shape[1:]) for key, values in self.columns.items()}

    def _check_times(self) -> None:
        if not len(self.times):
            raise self._error("has no samples", "Leave it out.")
        bad = np.flatnonzero(~np.isfinite(self.times))
        if len(bad):
            raise self._error(
                f"has the time {self.times[bad[0]]} at sample {bad[0]}",
                "Repair its times, or leave it out.",
            )
        bad = np.flatnonzero(np.diff(self.times) < 0)
        if len(bad):
            place = int(bad[0])
            raise self._error(
                f"is not in the order of time: {self.times[place + 1]} s follows on "
                f"{self.times[place]} s at sample {place + 1}",
                "Sort its samples by time.",
            )

    def _check_column(self, key: str, values: Array) -> None:
        if not is_numeric(values.dtype):
            raise self._error(
                f"has {key} of type {values.dtype}, which cannot be resampled",
                "Leave the column out; floats, booleans and integers but uint64 can be resampled.",
            )
        if not values.ndim or len(values) != len(self.times):
            count = len(values) if values.ndim else "no"
            raise self._error(
                f"has {len(self.times)} times, but {count} samples of {key}",
                "Give one sample of every column for each time.",
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = int(np.argwhere(~np.isfinite(values))[0][0])
            raise self._error(
                f"has a value in {key} at sample {place} that is not finite",
                "Fill such values in, or leave the samples out.",
            )

    def _error(self, what: str, next_step: str) -> SourceError:
        return SourceError(f"{self.name} {what}.", path=self.name, next_step=next_step)


def check_alike(trajectories: Sequence[Trajectory]) -> None:
    """Check that trajectories can share a batch.

    Raises:
        SourceError: There are none, or they differ in their columns, types or shapes.
    """
    if not trajectories:
        raise SourceError("There are no trajectories.", next_step="Give at least one.")

    def looks(trajectory: Trajectory) -> dict[str, tuple[Any, ...]]:
        return {key: (v.dtype, v.shape[1:]) for key, v in trajectory.columns.items()}

    first = trajectories[0]
    for other in trajectories[1:]:
        if looks(other) != looks(first):
            raise SourceError(
                f"{other.name} and {first.name} differ in their columns: {_told(looks(other))} "
                f"against {_told(looks(first))}.",
                path=other.name,
                next_step="Choose columns that all trajectories have, with one type and shape.",
            )


def _told(looks: Mapping[str, tuple[Any, ...]]) -> str:
    return ", ".join(f"{key} {dtype}{list(shape)}" for key, (dtype, shape) in looks.items())
