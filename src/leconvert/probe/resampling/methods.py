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
from typing import Any, Literal, NamedTuple

import numpy as np

from leconvert.errors import SourceError, UsageError
from leconvert.probe.resampling.values import Trajectory

__all__ = ["METHODS", "Method", "Methods", "Segment", "check_quaternions", "choose_methods"]

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
    """Return the method of every column.

    Args:
        columns: Type and number of columns of each feature.
        given: What somebody chose, by ``feature``, ``feature[column]`` or ``feature[start:stop]``;
            later ones win.
        names: Names of a feature's columns, where it has any.

    Raises:
        UsageError: A choice names no column, or a method does not fit its type.
    """
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
    """Check that what is resampled as a quaternion has a direction.

    Raises:
        SourceError: One is zero.
    """
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
