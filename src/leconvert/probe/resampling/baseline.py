"""The baseline: NumPy, one trajectory after the other.

Two ways to do the linear part, both sensible; a benchmark holds itself against the faster one:

``columns``  `numpy.interp` for each column, in float64
``rows``     one search a trajectory, then whole rows are taken and mixed, in the rows' own type
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.probe.resampling.methods import Methods, Segment
from leconvert.probe.resampling.values import GRID_TOLERANCE, Array, FloatArray, Trajectory

__all__ = ["BASELINES", "Baseline", "Collated", "collate", "grid", "resample_one", "slerp_rows"]

Baseline = Literal["columns", "rows"]

BASELINES: tuple[Baseline, ...] = ("columns", "rows")

_NEARLY_PARALLEL = 1e-6


class Collated(NamedTuple):
    """Resampled trajectories as a batch.

    Attributes:
        columns: Of shape (B, M, ...); zeros beyond a trajectory's length.
        lengths: Of shape (B,).
        mask: Of shape (B, M); whether there is a sample.
    """

    columns: Mapping[str, Array]
    lengths: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]


def grid(duration_s: float, hz: float) -> FloatArray:
    """Return the targets of a trajectory: every 1/hz from its first sample to its last."""
    count = int(duration_s * hz + GRID_TOLERANCE) + 1
    return np.arange(count) / hz


def resample_one(
    trajectory: Trajectory, targets: FloatArray, methods: Methods, baseline: Baseline
) -> dict[str, Array]:
    """Resample one trajectory.

    Args:
        trajectory: The trajectory.
        targets: Seconds after its first sample, ascending; those outside take the sample at the
            end.
        methods: Method of every column.
        baseline: How the linear part is done.

    Returns:
        Of each feature an array of shape (M, ...), of the feature's type; with ``columns`` linear
        features are float64.
    """
    times = trajectory.times - trajectory.times[0]
    last = len(times) - 1
    low = np.searchsorted(times, targets, side="right")
    low -= 1
    np.clip(low, 0, max(last - 1, 0), out=low)
    high = np.minimum(low + 1, last)
    begins = times.take(low)
    gaps = times.take(high)
    gaps -= begins
    gaps[gaps == 0] = 1
    weight = targets - begins
    weight /= gaps
    # Where times repeat at the very end there is no gap, and the last sample counts.
    weight[targets >= times[-1]] = 1
    np.clip(weight, 0, 1, out=weight)
    results = {}
    for key, values in trajectory.columns.items():
        rows = values.reshape(len(values), -1)
        resampled = _resample(rows, times, targets, low, high, weight, methods[key], baseline)
        results[key] = resampled.reshape(len(targets), *values.shape[1:])
    return results


def _resample(
    rows: Array,
    times: FloatArray,
    targets: FloatArray,
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    weight: FloatArray,
    segments: Sequence[Segment],
    baseline: Baseline,
) -> Array:
    if any(method == "linear" for _, _, method in segments):
        if baseline == "rows":
            out = rows.take(low, 0)
            step = rows.take(high, 0)
            step -= out
            step *= weight.astype(rows.dtype)[:, None]
            out += step
        else:
            out = np.empty((len(targets), rows.shape[1]))
            for start, stop, method in segments:
                for column in range(start, stop if method == "linear" else start):
                    out[:, column] = np.interp(targets, times, rows[:, column])
    else:
        out = np.empty((len(targets), rows.shape[1]), rows.dtype)
    for start, stop, method in segments:
        if method == "slerp":
            part = rows[:, start:stop]
            out[:, start:stop] = slerp_rows(part[low], part[high], weight)
        elif method != "linear":
            comes = weight >= 1 if method == "previous" else weight > 0.5
            out[:, start:stop] = rows[np.where(comes, high, low), start:stop]
    return out


def slerp_rows(first: Array, second: Array, weight: FloatArray) -> FloatArray:
    """Return unit quaternions between two rows of quaternions, along the shorter arc.

    As `leconvert.probe.resampling.slerp.slerp`, in float64.
    """
    one = first.astype(np.float64)
    other = second.astype(np.float64)
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    other *= np.where((one * other).sum(1, keepdims=True) < 0, -1.0, 1.0)
    angle = 2 * np.arctan2(np.linalg.norm(one - other, axis=1), np.linalg.norm(one + other, axis=1))
    sine = np.sin(angle)
    is_small = sine < _NEARLY_PARALLEL
    sine[is_small] = 1
    before = np.where(is_small, 1 - weight, np.sin((1 - weight) * angle) / sine)
    after = np.where(is_small, weight, np.sin(weight * angle) / sine)
    mixed: FloatArray = before[:, None] * one + after[:, None] * other
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return mixed


def collate(results: Sequence[Mapping[str, Array]]) -> Collated:
    """Put resampled trajectories into one padded batch."""
    keys = list(results[0])
    lengths = np.array([len(result[keys[0]]) for result in results], np.int64)
    longest = int(lengths.max())
    columns = {}
    for key in keys:
        first = results[0][key]
        batch = np.zeros((len(results), longest, *first.shape[1:]), first.dtype)
        for place, result in enumerate(results):
            batch[place, : lengths[place]] = result[key]
        columns[key] = batch
    return Collated(columns, lengths, np.arange(longest) < lengths[:, None])
