"""Which column is resampled by which method.

===========  ===================================================================================
``linear``   on the straight line between the samples around a target; for what is continuous
``previous`` the last sample that was there at the target; for what is switched
``nearest``  the closer sample, the earlier one where both are as close
``slerp``    four columns that are a quaternion, along the shorter arc; only where named
===========  ===================================================================================

By itself a float is linear, an integer or boolean *previous*, and so is a float whose name says
that it is a gripper: half open is a command that nobody gave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.errors import SourceError, UsageError

__all__ = [
    "GRID_TOLERANCE",
    "Array",
    "FloatArray",
    "Method",
    "Methods",
    "Segment",
    "Trajectory",
    "check_alike",
    "check_quaternions",
    "choose_methods",
]


# ------------------------------------------------------------------------------------------------
# A trajectory: what one robot recorded, at its own times.


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
    """Check that trajectories can share a batch."""
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


# ------------------------------------------------------------------------------------------------
# Which column is resampled by which method.


Method = Literal["linear", "previous", "nearest", "slerp"]

METHODS: tuple[Method, ...] = ("linear", "previous", "nearest", "slerp")

_GRIPPER = "gripper"
_PLACE = re.compile(r"(?P<key>.+?)\[(?P<start>\d+)(?P<range>:(?P<stop>\d+))?\]")
_QUATERNION = 4


class Segment(NamedTuple):
    """Columns of a feature, from ``start`` to before ``stop``, and their method."""

    start: int
    stop: int
    method: Method


Methods = Mapping[str, tuple[Segment, ...]]
"""By feature, segments that cover its columns from the first to the last."""


def choose_methods(
    columns: Mapping[str, tuple[np.dtype[Any], int]],
    given: Mapping[str, Method] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Methods:
    """Return the method of every column."""
    chosen: dict[str, list[Method]] = {}
    quaternions: dict[str, set[int]] = {key: set() for key in columns}
    for key, (dtype, width) in columns.items():
        of_type: Method = "linear" if dtype.kind == "f" else "previous"
        known = list((names or {}).get(key, ()))
        chosen[key] = [
            "previous" if len(known) == width and _GRIPPER in known[place].lower() else of_type
            for place in range(width)
        ]
    for text, method in (given or {}).items():
        key, start, stop = _place(text, columns)
        _check(text, method, columns[key][0], stop - start)
        chosen[key][start:stop] = [method] * (stop - start)
        quaternions[key] -= set(range(start - _QUATERNION + 1, stop))
        if method == "slerp":
            quaternions[key].add(start)
    return {key: _segments(key, of_columns, quaternions[key]) for key, of_columns in chosen.items()}


def check_quaternions(trajectory: Trajectory, methods: Methods) -> None:
    """Check that what is resampled as a quaternion has a direction."""
    for key, segments in methods.items():
        for start, stop, method in segments:
            if method != "slerp":
                continue
            parts = trajectory.columns[key].reshape(len(trajectory), -1)[:, start:stop]
            zero = np.flatnonzero(~parts.any(axis=1))
            if len(zero):
                raise SourceError(
                    f"{trajectory.name} has the quaternion 0 in {key}[{start}:{stop}] at sample "
                    f"{zero[0]}.",
                    path=trajectory.name,
                    next_step="Repair it, or choose another method for these columns.",
                )


def _place(text: str, columns: Mapping[str, tuple[Any, int]]) -> tuple[str, int, int]:
    if text in columns:
        return text, 0, columns[text][1]
    found = _PLACE.fullmatch(text)
    if found is None or found["key"] not in columns:
        raise UsageError(
            f"There is no column {text}.",
            next_step=f"Write FEATURE, FEATURE[COLUMN] or FEATURE[START:STOP]; there are "
            f"{', '.join(f'{key}[0:{width}]' for key, (_, width) in columns.items())}.",
        )
    key, start = found["key"], int(found["start"])
    stop = start + 1 if found["range"] is None else int(found["stop"])
    if not start < stop <= columns[key][1]:
        raise UsageError(
            f"There is no column {text}: {key} has {columns[key][1]}.",
            next_step=f"Choose among {key}[0:{columns[key][1]}].",
        )
    return key, start, stop


def _check(text: str, method: Method, dtype: np.dtype[Any], width: int) -> None:
    if method not in METHODS:
        raise UsageError(
            f"There is no method {method} (for {text}).",
            next_step=f"Choose among {', '.join(METHODS)}.",
        )
    if method in {"linear", "slerp"} and dtype.kind != "f":
        raise UsageError(
            f"{text} is of type {dtype}: {method} would make fractions of it.",
            next_step="Choose previous or nearest for it.",
        )
    if method == "slerp" and width != _QUATERNION:
        raise UsageError(
            f"{text} has {width} columns; a quaternion has {_QUATERNION}.",
            next_step="Name its four columns, such as pose[3:7].",
        )


def _segments(key: str, of_columns: Sequence[Method], quaternions: set[int]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for place, method in enumerate(of_columns):
        last = segments[-1] if segments else None
        goes_on = last is not None and last.method == method and place not in quaternions
        if last is not None and goes_on:
            segments[-1] = last._replace(stop=place + 1)
        else:
            segments.append(Segment(place, place + 1, method))
    for segment in segments:
        if segment.method == "slerp" and (
            segment.stop - segment.start != _QUATERNION or segment.start not in quaternions
        ):
            raise UsageError(
                f"Another choice takes a column of the quaternion at {key}[{segment.start}].",
                next_step="Name columns of a quaternion once.",
            )
    return tuple(segments)
