"""Where trajectories come from: one at a time, by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from leconvert.errors import SourceError
from leconvert.probe.resampling.methods import Method, Methods, check_quaternions, choose_methods
from leconvert.probe.resampling.values import Trajectory, check_alike

__all__ = ["Preloaded", "TrajectorySource", "methods_for", "preload", "set_record"]


class TrajectorySource(Protocol):
    """A set of trajectories that are alike; can be sent to another process."""

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of a feature's columns, where it has any."""
        ...

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def load(self, place: int) -> Trajectory:
        """Return one of them."""
        ...

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        ...


class Preloaded:
    """A set in memory.

    Args:
        trajectories: The set.
        source: Where it was read from.

    Raises:
        SourceError: There are none, or they are not alike.
    """

    def __init__(self, trajectories: Sequence[Trajectory], source: TrajectorySource) -> None:
        check_alike(trajectories)
        self._trajectories = list(trajectories)
        self._source = source

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Names of a feature's columns, where it has any."""
        return self._source.names

    def __len__(self) -> int:
        return len(self._trajectories)

    def load(self, place: int) -> Trajectory:
        """Return one of them."""
        return self._trajectories[place]

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return self._source.as_record()


def preload(source: TrajectorySource) -> Preloaded:
    """Read a whole set into memory.

    Raises:
        SourceError: It is empty, or one cannot be read or resampled.
    """
    if not len(source):
        raise SourceError(
            "The set has no trajectories.", next_step="Give another, or raise --max-trajectories."
        )
    return Preloaded([source.load(place) for place in range(len(source))], source)


def methods_for(source: TrajectorySource, given: Mapping[str, Method]) -> Methods:
    """Return the method of every column of a set, and check its quaternions.

    Raises:
        UsageError: A choice names no column or does not fit.
        SourceError: A quaternion is zero.
    """
    first = source.load(0)
    widths = first.widths()
    columns = {key: (values.dtype, widths[key]) for key, values in first.columns.items()}
    methods = choose_methods(columns, given, source.names)
    if any(segment.method == "slerp" for segments in methods.values() for segment in segments):
        for place in range(len(source)):
            check_quaternions(source.load(place), methods)
    return methods


def set_record(source: TrajectorySource, methods: Methods) -> dict[str, Any]:
    """Return what a set is like: lengths, rates, columns and their methods."""
    lengths, durations, rates = [], [], []
    for place in range(len(source)):
        one = source.load(place)
        lengths.append(len(one))
        durations.append(one.duration_s)
        if one.duration_s > 0:
            rates.append((len(one) - 1) / one.duration_s)
    first = source.load(0)
    return {
        **source.as_record(),
        "trajectories": len(source),
        "samples": sum(lengths),
        "length": _spread(lengths),
        "duration_s": _spread(durations),
        "rate_hz": _spread(rates),
        "columns": {
            key: {
                "dtype": str(values.dtype),
                "shape": list(values.shape[1:]),
                "methods": [list(segment) for segment in methods[key]],
            }
            for key, values in first.columns.items()
        },
    }


def _spread(numbers: Sequence[float]) -> dict[str, float] | None:
    if not numbers:
        return None
    return {
        "min": float(np.min(numbers)),
        "median": float(np.median(numbers)),
        "max": float(np.max(numbers)),
    }
