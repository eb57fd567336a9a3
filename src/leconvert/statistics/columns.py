"""Statistics of one episode: of its columns, and of the frames of its cameras."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.arrow import fixed_width, innermost_type, is_list, is_number, list_length

__all__ = ["QUANTILES", "ImageStats", "column_stats", "downsampled", "rank_of", "sample_indices"]


# ------------------------------------------------------------------------------------------------
# Which quantiles an episode's statistics have, and which value each of them is.
#
# LeRobot counts values in a histogram of 5,000 bins from the least value to the greatest, looks
# for the first bin up to which at least level × n values lie, and interpolates inside it. The
# value that this estimates is the one at rank ⌈level × n⌉ in ascending order, the least x with
# F(x) ≥ level: it lies in the bin that LeRobot finds. That value is what is given here, so that
# LeRobot's differs from it by at most one bin, (max − min) / 5,000, and the rounding of the bin's
# edges.


QUANTILES: Mapping[str, float] = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""Names and levels of LeRobot's quantiles."""


def rank_of(level: float, count: int) -> int:
    """Return the place of a quantile among ``count`` > 0 values in ascending order, from 0."""
    return min(max(math.ceil(level * count), 1), count) - 1


# ------------------------------------------------------------------------------------------------
# Numeric columns.


Array = npt.NDArray[Any]


def column_stats(column: pa.Array | pa.ChunkedArray, *, quantiles: bool) -> dict[str, Any] | None:
    """Compute the statistics of a column over all its rows, as an episode's statistics have them.

    Minimum and maximum are the column's own values. Mean and standard deviation (of the population)
    are computed in float64, from the differences to the first row and then from those to the mean,
    so that a column that hardly changes keeps its digits and a constant one has a deviation of 0.
    Quantiles are values of the column: those that `leconvert.statistics.columns` names.

    LeRobot computes in the column's precision, float32 at least, and takes the deviation from
    E[x²] − E[x]². With unit roundoff u (2⁻²⁴ for float32, 2⁻⁵³ for float64 and int64), n rows and
    M = E[x²], sums of n terms are off by at most n u times the sum of their magnitudes (Higham,
    *Accuracy and Stability of Numerical Algorithms*, section 4.2). So LeRobot's mean is within
    (n + 1) u √M of the exact one, its variance within v = (3 n + 8) u M, and its deviation within
    min(√v, v / std).

    A row that holds NaN makes all statistics of its component NaN; an infinite value makes the mean
    infinite or NaN and the deviation NaN, and leaves minimum, maximum and quantiles defined.

    Returns:
        ``min``, ``max``, ``mean``, ``std`` and the quantiles as nested lists in the shape of a row,
        a scalar's being (1,); integers where minimum and maximum are of whole numbers or of truth
        values (0 and 1), else floats. ``count`` is the number of rows, shape (1,). None for columns
        of anything but numbers.
    """
    values = _dense_values(column)
    if values is None:
        return None
    shape = values.shape[1:] or (1,)
    rows = values.reshape(len(values), -1)
    # Infinities and NaN are carried along as documented and need no warning.
    with np.errstate(invalid="ignore", over="ignore"):
        mean, std = _mean_and_std(rows.astype(np.float64))
        found: dict[str, Array] = {"min": rows.min(axis=0), "max": rows.max(axis=0)}
        found |= {"mean": mean, "std": std}
    if quantiles:
        found |= _quantiles_of(rows)
    stats: dict[str, Any] = {name: value.reshape(shape).tolist() for name, value in found.items()}
    # The order of keys of LeRobot's files: count comes before the quantiles.
    first = {name: stats.pop(name) for name in ("min", "max", "mean", "std")}
    return first | {"count": [len(rows)]} | stats


def _mean_and_std(rows: npt.NDArray[np.float64]) -> tuple[Array, Array]:
    """Return mean and deviation of each component; ``rows``, shape (n, components), is used up."""
    origin = np.where(np.isfinite(rows[0]), rows[0], 0.0)
    rows -= origin
    offset = rows.mean(axis=0)
    rows -= offset
    # What is left of the mean after it was subtracted is rounding, and goes too.
    rest = np.where(np.isfinite(offset), rows.mean(axis=0), 0.0)
    np.square(rows, out=rows)
    variance = rows.mean(axis=0) - np.square(rest)
    return origin + (offset + rest), np.sqrt(np.maximum(variance, 0.0))


def _quantiles_of(rows: Array) -> dict[str, Array]:
    ranks = {name: rank_of(level, len(rows)) for name, level in QUANTILES.items()}
    ordered = np.partition(rows, sorted(set(ranks.values())), axis=0)
    found = {name: ordered[rank].astype(np.float64) for name, rank in ranks.items()}
    if rows.dtype.kind == "f":
        # NaN is sorted behind everything else and would leave the lower quantiles as they are.
        is_nan = np.isnan(rows).any(axis=0)
        for value in found.values():
            value[is_nan] = np.nan
    return found


def _dense_values(column: pa.Array | pa.ChunkedArray) -> Array | None:
    """Return a column as one array of shape (rows, …), or None where it does not hold numbers.

    It is read from Arrow's buffers; to ask pyarrow for a NumPy array would import pandas.
    """
    if not is_number(innermost_type(column.type)):
        return None
    if not len(column):
        raise ValueError("there are no rows")
    kind, chunks = column.type, column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    # Before they become one: not every version of pyarrow joins chunks of an extension type.
    while isinstance(kind, pa.BaseExtensionType):
        kind, chunks = kind.storage_type, [chunk.storage for chunk in chunks]
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    shape = [len(array)]
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
            continue
        if array.null_count:
            raise ValueError(f"{array.null_count} of its entries are null")
        if not is_list(array.type):
            break
        shape.append(list_length(array))
        array = array.flatten()
    return _primitive_values(array).reshape(shape)


def _primitive_values(array: pa.Array) -> Array:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    name = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(
        str(array.type), str(array.type)
    )
    return fixed_width(array, np.dtype(name))


# ------------------------------------------------------------------------------------------------
# Which frames and which pixels of an episode go into the statistics of its images.


# LeRobot's numbers: length ** 0.75 frames, within these limits, evenly spread.
_FEWEST_FRAMES = 100
_MOST_FRAMES = 10_000
_POWER = 0.75
# A longer side of 300 pixels or more is thinned out to about 150.
_UNTOUCHED_SIDE = 300
_TARGET_SIDE = 150


def sample_indices(length: int) -> list[int]:
    """Return the frames of an episode that its image statistics are computed from.

    All frames up to 100, 177 of 1,000, 1,000 of 10,000; the first and the last are among them.

    Returns:
        Distinct frames, ascending, as LeRobot's ``sample_indices`` has them.
    """
    count = max(min(length, _FEWEST_FRAMES), min(int(length**_POWER), _MOST_FRAMES))
    # Halves go to the even neighbour, in NumPy as in LeRobot.
    indices: list[int] = np.round(np.linspace(0, length - 1, count)).astype(int).tolist()
    return indices


def downsampled(picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return every n-th row and column of a picture of shape (height, width, channels).

    n is the longer side over 150, rounded down, where that side has 300 pixels or more.
    """
    side = max(picture.shape[:2])
    if side < _UNTOUCHED_SIDE:
        return picture
    step = side // _TARGET_SIDE
    return picture[::step, ::step]


# ------------------------------------------------------------------------------------------------
# Statistics of the frames of one camera in one episode.


_MAX_COLOUR = 255


class ImageStats:
    """Collects frames and gives their statistics, exactly, one value a channel.

    What is kept is how often each channel took each of its values: a few kilobytes, however many
    frames come. All statistics follow from it in whole numbers and are rounded once. Frames are
    thinned out as LeRobot does before they are counted.

    Args:
        quantiles: Whether to add ``q01``, ``q10``, ``q50``, ``q90`` and ``q99``.
        is_depth: Values are distances and keep their units; colours are divided by 255.
    """

    def __init__(self, *, quantiles: bool, is_depth: bool = False) -> None:
        self._quantiles = quantiles
        self._scale = 1 if is_depth else _MAX_COLOUR
        self._counts: npt.NDArray[np.int64] | None = None
        self._frames = 0

    def add(self, frame: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> None:
        """Count the values of one frame."""
        values = {np.dtype(np.uint8): 256, np.dtype(np.uint16): 65536}.get(frame.dtype)
        if values is None or (values > 256 and self._scale != 1):
            raise ValueError(f"frames are of {frame.dtype}")
        if frame.ndim != 3 or not frame.size:
            raise ValueError(f"a frame has shape {frame.shape}")
        if self._counts is None:
            self._counts = np.zeros((frame.shape[2], values), np.int64)
        if self._counts.shape != (frame.shape[2], values):
            raise ValueError("frames have different numbers of channels or bits")
        thinned = downsampled(frame)
        for channel in range(len(self._counts)):
            found = np.bincount(thinned[..., channel].ravel(), minlength=values)
            self._counts[channel] += found
        self._frames += 1

    def result(self) -> dict[str, Any]:
        """Return the statistics as nested lists of shape (channels, 1, 1).

        ``count`` is the number of frames, shape (1,). Quantiles are over pixels: the value at rank
        ⌈level × pixels⌉ in ascending order.
        """
        if self._counts is None:
            raise ValueError("there are no frames")
        channels = [_Channel(counts, self._scale) for counts in self._counts]

        def each(statistic: Callable[[_Channel], float]) -> list[list[list[float]]]:
            return [[[statistic(channel)]] for channel in channels]

        stats: dict[str, Any] = {
            "min": each(_Channel.minimum),
            "max": each(_Channel.maximum),
            "mean": each(_Channel.mean),
            "std": each(_Channel.std),
            "count": [self._frames],
        }
        if self._quantiles:
            for name, level in QUANTILES.items():
                stats[name] = [[[channel.quantile(level)]] for channel in channels]
        return stats


class _Channel:
    """The values that one channel took and how often, as whole numbers of any size."""

    def __init__(self, counts: npt.NDArray[np.int64], scale: int) -> None:
        present = np.flatnonzero(counts)
        self._scale = scale
        self._levels: list[int] = present.tolist()
        self._cumulated = np.cumsum(counts[present])
        self._pixels = int(self._cumulated[-1])
        pairs = list(zip(self._levels, counts[present].tolist(), strict=True))
        self._sum: int = sum(level * count for level, count in pairs)
        self._sum_of_squares: int = sum(level * level * count for level, count in pairs)

    def minimum(self) -> float:
        return self._levels[0] / self._scale

    def maximum(self) -> float:
        return self._levels[-1] / self._scale

    def mean(self) -> float:
        return self._sum / (self._pixels * self._scale)

    def std(self) -> float:
        # √(n Σx² − (Σx)²) / n, where the difference is exact.
        spread = self._pixels * self._sum_of_squares - self._sum**2
        return math.sqrt(spread / (self._pixels * self._scale) ** 2)

    def quantile(self, level: float) -> float:
        rank = rank_of(level, self._pixels)
        place = int(np.searchsorted(self._cumulated, rank, side="right"))
        return self._levels[place] / self._scale
