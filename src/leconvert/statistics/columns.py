"""Statistics of a numeric column of one episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.arrow import innermost_type, is_list, is_number, list_length
from leconvert.statistics.quantiles import QUANTILES, rank_of

__all__ = ["column_stats"]

Array = npt.NDArray[Any]


def column_stats(column: pa.Array | pa.ChunkedArray, *, quantiles: bool) -> dict[str, Any] | None:
    """Compute the statistics of a column over all its rows, as an episode's statistics have them.

    Minimum and maximum are the column's own values. Mean and standard deviation (of the population)
    are computed in float64, from the differences to the first row and then from those to the mean,
    so that a column that hardly changes keeps its digits and a constant one has a deviation of 0.
    Quantiles are values of the column: those that `leconvert.statistics.quantiles` names.

    LeRobot computes in the column's precision, float32 at least, and takes the deviation from
    E[x²] − E[x]². With unit roundoff u (2⁻²⁴ for float32, 2⁻⁵³ for float64 and int64), n rows and
    M = E[x²], sums of n terms are off by at most n u times the sum of their magnitudes (Higham,
    *Accuracy and Stability of Numerical Algorithms*, section 4.2). So LeRobot's mean is within
    (n + 1) u √M of the exact one, its variance within v = (3 n + 8) u M, and its deviation within
    min(√v, v / std).

    A row that holds NaN makes all statistics of its component NaN; an infinite value makes the mean
    infinite or NaN and the deviation NaN, and leaves minimum, maximum and quantiles defined.

    Args:
        column: Numbers or truth values, or lists of them, nested to any depth, that have the same
            lengths in all rows.
        quantiles: Whether to add ``q01``, ``q10``, ``q50``, ``q90`` and ``q99``.

    Returns:
        ``min``, ``max``, ``mean``, ``std`` and the quantiles as nested lists in the shape of a row,
        a scalar's being (1,); integers where minimum and maximum are of whole numbers or of truth
        values (0 and 1), else floats. ``count`` is the number of rows, shape (1,). None for columns
        of anything but numbers.

    Raises:
        ValueError: There are no rows, entries are null, or rows have different shapes.
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
    kind = np.dtype(name)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
