"""Statistics of an episode, computed from its rows and clips as LeRobot computes them.

First columns, then frames, then all features of an episode, then the quantiles of a whole dataset.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media, tables
from leconvert.model.repairs import TEXT_DTYPES, VISUAL_DTYPES
from leconvert.model.values import depth_facts, is_depth_map, is_in_metres
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN
from leconvert.tables.arrow import (
    innermost_type,
    is_list,
    is_number,
    list_length,
    list_values,
    stored_numbers,
)

__all__ = [
    "QUANTILES",
    "ImageStats",
    "clip_stats",
    "column_stats",
    "columns_with_quantiles",
    "dataset_quantiles",
    "pixel_scale",
    "sample_indices",
    "table_stats",
    "wrong_quantiles",
]


# The quantiles of an episode's statistics.
#
# LeRobot counts values in a histogram of 5,000 bins from the least value to the greatest. It looks
# for the first bin up to which at least level × n values lie, and interpolates inside it. This
# estimates the value at rank ⌈level × n⌉ in ascending order, the least x with F(x) ≥ level, which
# lies in that bin. The value itself is given here. LeRobot's differs from it by at most one bin,
# (max − min) / 5,000, and the rounding of the bin's edges.
#
# The quantiles of a whole dataset, in ``meta/stats.json``, have the same rank among all its rows.
# LeRobot 0.6.1 takes the mean of the episodes' quantiles, weighted by their rows, which is not a
# quantile: for 12 episodes of a real recording it was off by up to 58 % of a column's range.


QUANTILES: Mapping[str, float] = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""Names and levels of LeRobot's quantiles."""


def rank_of(level: float, count: int) -> int:
    """Return the position of a quantile among ``count`` > 0 values in ascending order, from 0."""
    return min(max(math.ceil(level * count), 1), count) - 1


# Numeric columns.


Array = npt.NDArray[Any]


def column_stats(column: pa.Array | pa.ChunkedArray, *, quantiles: bool) -> dict[str, Any] | None:
    """Compute the statistics of a column over all its rows, as an episode's statistics have them.

    Minimum, maximum and quantiles are values of the column. Mean and standard deviation (of the
    population) are computed in float64, from the differences to the first row and then from those
    to the mean. So a column that hardly changes keeps its digits, and a constant one has a
    deviation of 0.

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
        (1,) for a scalar. Minimum and maximum of integers and truth values (0 and 1) are integers,
        all others floats. ``count`` is the number of rows, shape (1,). None for a column that does
        not contain numbers.
    """
    values = _dense_values(column)
    if values is None:
        return None
    shape = values.shape[1:] or (1,)
    rows = values.reshape(len(values), -1)
    # Infinities and NaN pass through as documented, without a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        mean, std = _mean_and_std(rows.astype(np.float64))
        found: dict[str, Array] = {"min": rows.min(axis=0), "max": rows.max(axis=0)}
        found |= {"mean": mean, "std": std}
    if quantiles:
        found |= _quantiles_of(rows)
    stats: dict[str, Any] = {name: value.reshape(shape).tolist() for name, value in found.items()}
    return _with_count(stats, len(rows))


def _with_count(stats: dict[str, Any], count: int) -> dict[str, Any]:
    """Return statistics in the order of LeRobot's files: the count comes before the quantiles."""
    first = {name: stats.pop(name) for name in ("min", "max", "mean", "std")}
    return first | {"count": [count]} | stats


def _mean_and_std(rows: npt.NDArray[np.float64]) -> tuple[Array, Array]:
    """Return mean and deviation of each component; overwrites ``rows``, shape (n, components)."""
    origin = np.where(np.isfinite(rows[0]), rows[0], 0.0)
    rows -= origin
    offset = rows.mean(axis=0)
    rows -= offset
    # The rest of the mean is rounding, and is subtracted, too.
    rest = np.where(np.isfinite(offset), rows.mean(axis=0), 0.0)
    np.square(rows, out=rows)
    variance = rows.mean(axis=0) - np.square(rest)
    return origin + (offset + rest), np.sqrt(np.maximum(variance, 0.0))


def _quantiles_of(rows: Array) -> dict[str, Array]:
    ranks = {name: rank_of(level, len(rows)) for name, level in QUANTILES.items()}
    ordered = np.partition(rows, sorted(set(ranks.values())), axis=0)
    found = {name: ordered[rank].astype(np.float64) for name, rank in ranks.items()}
    if rows.dtype.kind == "f":
        # NaN is sorted after everything else, and would leave the lower quantiles unchanged.
        is_nan = np.isnan(rows).any(axis=0)
        for value in found.values():
            value[is_nan] = np.nan
    return found


def _dense_values(column: pa.Array | pa.ChunkedArray) -> Array | None:
    """Return a column as one array of shape (rows, …); None if it does not contain numbers.

    It is read from Arrow's buffers, since a NumPy array from pyarrow would import pandas.
    """
    if not is_number(innermost_type(column.type)):
        return None
    if not len(column):
        raise ValueError("there are no rows")
    kind, chunks = column.type, column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    # Some versions of pyarrow cannot join chunks of an extension type, so this comes first.
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
        array = list_values(array)
    values = stored_numbers(array)
    return (values.view(np.uint8) if values.dtype == np.bool_ else values).reshape(shape)


# Quantiles of columns over all rows of many tables, which no single array holds.
#
# Every value has a key, an integer with the same order as the values. A pass over the tables counts
# the values of the next bits of a key, among the keys that begin as the wanted one does, and so
# finds these bits. float32 is read two or three times, int64 once or twice more than its range
# needs. Memory is that of the counts.


_COUNT_BYTES = 32 * 1024**2
# Usually one more pass tells the rest, or how many bits differ at all.
_FIRST_BITS, _MOST_BITS = 16, 20


class QuantileSearch:
    """Finds the quantiles of one column, in passes: all rows are added again until `is_done`.

    They are values of the column, at the ranks of `column_stats`.

    Args:
        shape: The shape of the statistics: that of a row, or its last axes. Then the values along
            the other axes count as rows.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._components = math.prod(shape)
        self._dtype: np.dtype[Any] | None = None
        self._known_bits = 0
        # For each component and level: the beginning of its key, and its rank among keys with that
        # beginning.
        self._head: npt.NDArray[np.uint64] = np.zeros((self._components, 1), np.uint64)
        self._ranks = np.zeros((self._components, 1), np.int64)
        self._counts: npt.NDArray[np.int64] | None = None
        self._least = np.full(self._components, np.iinfo(np.uint64).max, np.uint64)
        self._greatest = np.zeros(self._components, np.uint64)
        self._has_nan = np.zeros(self._components, np.bool_)

    @property
    def is_done(self) -> bool:
        """Return whether the quantiles are known."""
        return self._dtype is not None and self._known_bits == self._width

    @property
    def _width(self) -> int:
        assert self._dtype is not None
        return self._dtype.itemsize * 8

    @property
    def _bits(self) -> int:
        """Return how many bits this pass finds."""
        cells = _COUNT_BYTES // (8 * self._head.size)
        most = _MOST_BITS if self._known_bits else _FIRST_BITS
        return min(max(cells.bit_length() - 1, 1), most, self._width - self._known_bits)

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Add rows of one table.

        Raises:
            ValueError: They are not numbers of the shape and type of the others, or some are null.
        """
        values = _dense_values(column)
        if values is None or values.size % self._components:
            raise ValueError(f"values of type {column.type} do not fit the shape {self._shape}")
        if self._dtype is None:
            self._dtype = values.dtype
        if values.dtype != self._dtype:
            raise ValueError(f"there are rows of {values.dtype} and of {self._dtype}")
        keys = _ordered_keys(values.reshape(-1, self._components))
        bits = self._bits
        if self._counts is None:
            self._counts = np.zeros((*self._head.shape, 1 << bits), np.int64)
        if not self._known_bits:
            self._least = np.minimum(self._least, keys.min(axis=0))
            self._greatest = np.maximum(self._greatest, keys.max(axis=0))
            if values.dtype.kind == "f":
                self._has_nan |= np.isnan(values).reshape(-1, self._components).any(axis=0)
        cells = (keys >> np.uint64(self._width - self._known_bits - bits)).astype(np.int64)
        cells &= (1 << bits) - 1
        levels = self._head.shape[1]
        cells += np.arange(self._components) * (levels << bits)
        counts = self._counts.reshape(-1)
        if not self._known_bits:
            np.add.at(counts, cells.reshape(-1), 1)
            return
        heads = keys >> np.uint64(self._width - self._known_bits)
        for level in range(levels):
            np.add.at(counts, cells[heads == self._head[:, level]] + (level << bits), 1)

    def end_pass(self) -> None:
        """End a pass: all rows were added once more."""
        if self._counts is None:
            raise ValueError("there are no rows")
        bits, is_first = self._bits, not self._known_bits
        if is_first:
            total = int(self._counts[0, 0].sum())
            ranks = [rank_of(level, total) for level in QUANTILES.values()]
            self._ranks = np.tile(np.array(ranks), (self._components, 1))
            self._head = np.repeat(self._head, len(ranks), axis=1)
        whole = self._ranks.copy()
        self._head <<= np.uint64(bits)
        for component, of_levels in enumerate(self._counts):
            for level, rank in enumerate(whole[component].tolist()):
                if not level or not is_first:
                    cumulated = np.cumsum(of_levels[level])
                digit = int(np.searchsorted(cumulated, rank, side="right"))
                self._head[component, level] |= np.uint64(digit)
                self._ranks[component, level] -= cumulated[digit - 1] if digit else 0
        self._known_bits += bits
        self._counts = None
        differing = int((self._least ^ self._greatest).max()).bit_length()
        if is_first and self._width - differing > self._known_bits:
            # All keys begin alike, as keys of small integers usually do.
            self._known_bits = self._width - differing
            head = self._least >> np.uint64(differing)
            self._head = np.repeat(head[:, np.newaxis], whole.shape[1], axis=1)
            self._ranks = whole

    def result(self) -> dict[str, Any]:
        """Return the quantiles as nested lists; NaN for a component that contains NaN."""
        assert self._dtype is not None
        values = _values_of_keys(self._head, self._dtype).astype(np.float64)
        values[self._has_nan] = np.nan
        return {
            name: values[:, level].reshape(self._shape).tolist()
            for level, name in enumerate(QUANTILES)
        }


def _ordered_keys(values: Array) -> npt.NDArray[np.uint64]:
    width = values.dtype.itemsize * 8
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (width - 1))
    if values.dtype.kind == "i":
        return bits ^ sign
    if values.dtype.kind == "f":
        ones = np.uint64((1 << width) - 1)
        return np.where(bits & sign != 0, bits ^ ones, bits | sign)
    return bits


def _values_of_keys(keys: npt.NDArray[np.uint64], dtype: np.dtype[Any]) -> Array:
    width = dtype.itemsize * 8
    sign = np.uint64(1 << (width - 1))
    bits = keys
    if dtype.kind == "i":
        bits = keys ^ sign
    elif dtype.kind == "f":
        ones = np.uint64((1 << width) - 1)
        bits = np.where(keys & sign != 0, keys ^ sign, keys ^ ones)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


class QuantileCheck:
    """Tells in one pass over the rows whether some values are their quantiles, by counting.

    A value v is at rank r, counted from 0, if at most r values are below v and more than r values
    are at most v.
    """

    def __init__(self, quantiles: Mapping[str, Any]) -> None:
        self._names = [name for name in QUANTILES if name in quantiles]
        self._wanted = np.stack([np.array(quantiles[name], np.float64) for name in self._names])
        self._wanted = self._wanted.reshape(len(self._names), -1)
        self._below = np.zeros(self._wanted.shape, np.int64)
        self._up_to = np.zeros(self._wanted.shape, np.int64)
        self._has_nan: npt.NDArray[np.bool_] = np.zeros(self._wanted.shape[1], np.bool_)
        self._rows = 0

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Count the rows of one table."""
        values = _dense_values(column)
        if values is None or values.size % self._wanted.shape[1]:
            raise ValueError(f"{column.type} has other quantiles")
        rows = values.reshape(-1, self._wanted.shape[1])
        self._rows += len(rows)
        if rows.dtype.kind == "f":
            self._has_nan |= np.asarray(np.isnan(rows).any(axis=0))
        for level, wanted in enumerate(self._wanted):
            self._below[level] += (rows < wanted).sum(axis=0)
            self._up_to[level] += (rows <= wanted).sum(axis=0)

    def wrong(self) -> list[str]:
        """Return the names of wrong quantiles."""
        ranks = [rank_of(QUANTILES[name], self._rows) for name in self._names]
        rank = np.array(ranks)[:, np.newaxis]
        holds: npt.NDArray[np.bool_] = (self._below <= rank) & (rank < self._up_to)
        is_right = np.where(self._has_nan, np.isnan(self._wanted), holds)
        return [name for name, of in zip(self._names, is_right, strict=True) if not of.all()]


# The frames and pixels of an episode that count in its image statistics.


# LeRobot's numbers: length ** 0.75 frames, within these limits, evenly spread.
_FEWEST_FRAMES = 100
_MOST_FRAMES = 10_000
_POWER = 0.75
# If the longer side has 300 pixels or more, it is reduced to about 150.
_UNTOUCHED_SIDE = 300
_TARGET_SIDE = 150


def sample_indices(length: int) -> list[int]:
    """Return the frames of an episode that its image statistics are computed from.

    All frames up to 100, 177 of 1,000, 1,000 of 10,000, always with the first and the last.

    Returns:
        Distinct frames, ascending, as LeRobot's ``sample_indices`` has them.
    """
    count = max(min(length, _FEWEST_FRAMES), min(int(length**_POWER), _MOST_FRAMES))
    # Halves are rounded to the even neighbour, in NumPy as in LeRobot.
    indices: list[int] = np.round(np.linspace(0, length - 1, count)).astype(int).tolist()
    return indices


def downsampled(picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return every n-th row and column of a picture of shape (height, width, channels).

    If the longer side has 300 pixels or more, n is that side over 150, rounded down. Otherwise n is
    1.
    """
    side = max(picture.shape[:2])
    if side < _UNTOUCHED_SIDE:
        return picture
    step = side // _TARGET_SIDE
    return picture[::step, ::step]


# Statistics of the frames of one camera in one episode.


_MAX_COLOUR = 255
_MM_PER_METRE = 1000
_LARGEST_CODE = 4095


def pixel_scale(feature: Mapping[str, Any]) -> int:
    """Return the number by which pixels are divided once they are counted.

    Distances are counted in whole millimetres. Their statistics are in the unit in which they were
    recorded, ``depth_unit``, as LeRobot computes them before it encodes a frame.
    """
    if not is_depth_map(feature):
        return _MAX_COLOUR
    return _MM_PER_METRE if is_in_metres(feature) else 1


def _millimetres_of_codes(feature: Mapping[str, Any]) -> npt.NDArray[np.uint16]:
    """Return the distance of each code of a depth video in whole millimetres, shape (4096,).

    The formula and its precision are those of ``dequantize_depth`` in LeRobot.
    """
    least, largest, shift, use_log = depth_facts(feature).values()
    begin, end = (math.log(x + shift) if use_log else x for x in (least, largest))
    distances: npt.NDArray[np.float32] = np.empty(_LARGEST_CODE + 1, np.float32)
    np.multiply(
        np.arange(len(distances), dtype=np.uint16), (end - begin) / _LARGEST_CODE, distances
    )
    distances += begin
    if use_log:
        np.exp(distances, out=distances)
        distances -= shift
    return _whole(np.clip(distances, least, largest) * _MM_PER_METRE)


def _whole(millimetres: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return distances in whole millimetres, as far as 16 bits reach."""
    whole: npt.NDArray[Any] = np.rint(millimetres).clip(0, np.iinfo(np.uint16).max)
    return whole.astype(np.uint16)


class ImageStats:
    """Collects frames and gives their exact statistics, one value for each channel.

    It keeps how often each channel has each value: a few kilobytes for any number of frames. All
    statistics follow from these integers and are rounded once. Frames are reduced as in LeRobot
    before they are counted.

    Args:
        quantiles: Whether to add ``q01``, ``q10``, ``q50``, ``q90`` and ``q99``.
        scale: See `pixel_scale`.
    """

    def __init__(self, *, quantiles: bool, scale: int = _MAX_COLOUR) -> None:
        self._quantiles = quantiles
        self._scale = scale
        self._counts: npt.NDArray[np.int64] | None = None
        self._frames = 0

    def add(self, frame: npt.NDArray[Any]) -> None:
        """Count the values of one frame."""
        values = {np.dtype(np.uint8): 256, np.dtype(np.uint16): 65536}.get(frame.dtype)
        if values is None or (values > 256 and self._scale == _MAX_COLOUR):
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

    def levels(self) -> list[list[list[int]]]:
        """Return the values of each channel, and how often each occurs."""
        assert self._counts is not None
        taken = [np.flatnonzero(counts) for counts in self._counts]
        return [
            [values.tolist(), counts[values].tolist()]
            for values, counts in zip(taken, self._counts, strict=True)
        ]

    def add_levels(self, levels: Sequence[Sequence[Sequence[int]]]) -> None:
        """Count the `levels` of another episode. Frames are not counted."""
        if self._counts is None:
            values = 256 if self._scale == _MAX_COLOUR else 65536
            self._counts = np.zeros((len(levels), values), np.int64)
        for counts, (values_of_channel, times) in zip(self._counts, levels, strict=True):
            counts[values_of_channel] += times

    def result(self) -> dict[str, Any]:
        """Return the statistics as nested lists of shape (channels, 1, 1).

        ``count`` is the number of frames, shape (1,). Quantiles are over pixels: the value at rank
        ⌈level × pixels⌉ in ascending order.
        """
        if self._counts is None:
            raise ValueError("there are no frames")
        channels = [
            _channel_stats(counts, self._scale, quantiles=self._quantiles)
            for counts in self._counts
        ]
        stats = {name: [[[found[name]]] for found in channels] for name in channels[0]}
        return _with_count(stats, self._frames)


def _channel_stats(
    counts: npt.NDArray[np.int64], scale: int, *, quantiles: bool
) -> dict[str, float]:
    """Return the statistics of one channel, from how often it has each value.

    Everything is an integer of any size up to the last division.
    """
    present = np.flatnonzero(counts)
    levels: list[int] = present.tolist()
    cumulated = np.cumsum(counts[present])
    pixels = int(cumulated[-1])
    pairs = list(zip(levels, counts[present].tolist(), strict=True))
    total: int = sum(level * count for level, count in pairs)
    squares: int = sum(level * level * count for level, count in pairs)
    found = {
        "min": levels[0] / scale,
        "max": levels[-1] / scale,
        "mean": total / (pixels * scale),
        # √(n Σx² − (Σx)²) / n; the difference is exact.
        "std": math.sqrt((pixels * squares - total**2) / (pixels * scale) ** 2),
    }
    for name, level in QUANTILES.items() if quantiles else ():
        rank = rank_of(level, pixels)
        found[name] = levels[int(np.searchsorted(cumulated, rank, side="right"))] / scale
    return found


# Statistics of the features of one episode, from its table and its clips.


def table_stats(
    table: pa.Table,
    features: Mapping[str, Mapping[str, Any]],
    *,
    names: Collection[str],
    quantiles: bool,
    path: str | None = None,
    levels: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Compute the statistics of the features in an episode's table.

    All numbers count. Images are sampled, and only sampled images are decoded.

    Returns:
        Feature to statistics, in the order of ``features``.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, feature in features.items():
        kind = feature.get("dtype")
        if name not in names or kind == "video" or kind in TEXT_DTYPES:
            continue
        try:
            if table.schema.get_field_index(name) < 0:
                raise ValueError("it has no column")
            column = table.column(name)
            if kind == "image":
                images = _image_stats(column, feature, quantiles=quantiles)
                stats: dict[str, Any] | None = images.result()
                if levels is not None:
                    levels[name] = images.levels()
            else:
                stats = column_stats(column, quantiles=quantiles)
        except (ValueError, UnreadableSourceError) as error:
            reason = error.message[:-1] if isinstance(error, UnreadableSourceError) else str(error)
            raise _not_computed(name, path, reason) from error
        if stats is not None:
            found[name] = stats
    return found


def clip_stats(
    path: str | os.PathLike[str],
    episodes: Sequence[tuple[int, int]],
    feature: Mapping[str, Any] | None = None,
    *,
    quantiles: bool,
    levels: list[Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Compute the statistics of one camera in some episodes of one file, in one pass over it.

    They are those of sampled frames. Memory is that of one frame.

    Args:
        episodes: First frame in presentation order and number of frames of each episode, in the
            order of the file.
        feature: The declaration of the camera; None for colours.
        levels: Receives `ImageStats.levels` of each episode just before its statistics.

    Yields:
        Statistics of each episode: shape (3, 1, 1) with values in 0..1; for depth, shape (1, 1, 1)
        with distances in ``depth_unit``.
    """
    if any(length < 1 for _, length in episodes):
        raise UnreadableSourceError(
            f"The statistics of {path} cannot be computed: its episode has no frames.",
            path=os.fspath(path),
            next_step="Leave the episode out with --on-bad-episode drop.",
        )
    samples = [[first + rank for rank in sample_indices(length)] for first, length in episodes]
    feature = feature or {}
    distances = _millimetres_of_codes(feature) if is_depth_map(feature) else None
    pictures = media.decode_shown(
        path, itertools.chain.from_iterable(samples), is_depth=distances is not None
    )
    for wanted in samples:
        stats = ImageStats(quantiles=quantiles, scale=pixel_scale(feature))
        for _, picture in itertools.islice(pictures, len(wanted)):
            stats.add(picture if distances is None else distances.take(picture, mode="clip"))
        if levels is not None:
            levels.append(stats.levels())
        yield stats.result()


# Quantiles of a whole dataset, from its rows.


def columns_with_quantiles(
    stats: Mapping[str, Mapping[str, Any]], features: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the columns of numbers among the features whose statistics have quantiles."""
    others = VISUAL_DTYPES | TEXT_DTYPES
    return [
        name
        for name, found in stats.items()
        if QUANTILES.keys() <= found.keys()
        and name in features
        and features[name].get("dtype") not in others
    ]


def dataset_quantiles(
    paths: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, Any]]:
    """Compute the quantiles of columns over all rows of some tables.

    The tables are read several times. Memory is that of a few rows and of 32 MiB for each column.

    Returns:
        Quantiles by column, without columns that have no such statistics.
    """
    searches = {name: QuantileSearch(shape) for name, shape in shapes.items()}
    found: dict[str, dict[str, Any]] = {}
    while searches:
        _over_rows(paths, searches)
        for name, search in list(searches.items()):
            search.end_pass()
            if search.is_done:
                found[name] = searches.pop(name).result()
    return found


def wrong_quantiles(
    paths: Sequence[str], stats: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return which quantiles of columns are not those of all rows of some tables, in one pass.

    Returns:
        Names of wrong quantiles by column, without columns that have no such statistics.
    """
    checks: dict[str, QuantileCheck] = {}
    for name, found in stats.items():
        with suppress(ValueError, TypeError):
            checks[name] = QuantileCheck(found)
    if checks:
        _over_rows(paths, checks)
    return {name: check.wrong() for name, check in checks.items()}


def _over_rows[Column: (QuantileSearch, QuantileCheck)](
    paths: Sequence[str], columns: dict[str, Column]
) -> None:
    """Add all rows. A column of another kind is taken out."""
    for path in paths:
        for rows in tables.read_columns(path, columns):
            for name, column in list(columns.items()):
                try:
                    column.add(rows.column(name))
                except (ValueError, KeyError):
                    del columns[name]


def _image_stats(
    column: pa.ChunkedArray, feature: Mapping[str, Any], *, quantiles: bool
) -> ImageStats:
    is_depth, scale = is_depth_map(feature), pixel_scale(feature)
    stats = ImageStats(quantiles=quantiles, scale=scale)
    for row in sample_indices(len(column)):
        try:
            data = _image_file(column.slice(row, 1).chunk(0))
            picture = media.decode_image(memoryview(data), is_depth=is_depth)
            if is_depth and (scale != 1 or picture.dtype.kind == "f"):
                picture = _whole(picture * np.float64(scale))
            stats.add(picture)
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error
        except UnreadableSourceError as error:
            raise ValueError(f"row {row}: {error.message[:-1]}") from error
    return stats


def _image_file(chunk: pa.Array) -> pa.Buffer:
    """Return the encoded bytes in the first cell of an image column, without a copy."""
    while isinstance(chunk.type, pa.BaseExtensionType):
        chunk = chunk.storage
    if pa.types.is_struct(chunk.type):
        if not chunk[0].is_valid:
            raise ValueError("there is no image")
        if chunk.type.get_field_index("bytes") < 0:
            raise ValueError("an image has no bytes")
        chunk = chunk.field("bytes")
    if not (pa.types.is_binary(chunk.type) or pa.types.is_large_binary(chunk.type)):
        raise ValueError(f"the column contains {chunk.type} instead of image files")
    cell = chunk[0]
    if not cell.is_valid:
        raise ValueError("there is no image, or only the path of an image")
    return cell.as_buffer()


def _not_computed(name: str, path: str | None, reason: str) -> UnreadableSourceError:
    place = f" in {path}" if path else ""
    return UnreadableSourceError(
        f"The statistics of {name}{place} cannot be computed: {reason}.",
        path=path,
        next_step=f"{GET_AGAIN}. If there is no other copy, leave the feature out with "
        f"--drop-feature {shlex.quote(name)}.",
    )
