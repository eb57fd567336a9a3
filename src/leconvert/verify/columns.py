"""Arrow columns as NumPy arrays, without pandas: numbers, and regular nested lists of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.arrow import is_list
from leconvert.model import IntArray

__all__ = ["FloatArray", "floats", "integers", "nested_floats"]

FloatArray = npt.NDArray[np.float64]


def integers(column: pa.Array) -> IntArray | None:
    """Return a column of integers, shape (rows,); None where it is of another type or has nulls."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    try:
        return _buffer(column.cast(pa.int64()), np.int64)
    except pa.ArrowException:  # unsigned and beyond 2**63
        return None


def floats(column: pa.Array) -> FloatArray | None:
    """Return a column of numbers, shape (rows,); None where it is of another type or has nulls."""
    kind = column.type
    if column.null_count:
        return None
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        return None
    return _buffer(column.cast(pa.float64(), safe=False), np.float64)


def nested_floats(column: pa.Array) -> FloatArray | None:
    """Return a column of nested lists, shape (rows, ...); None where they are not regular."""
    shape = [len(column)]
    while is_list(column.type):
        if column.null_count:
            return None
        values = column.flatten()
        size = len(values) // len(column) if len(column) else 0
        if not pa.types.is_fixed_size_list(column.type):
            ends = integers(column.offsets)
            if ends is None or np.any(np.diff(ends) != size):
                return None
        shape.append(size)
        column = values
    numbers = floats(column)
    return None if numbers is None else numbers.reshape(shape)


def _buffer[Number: np.generic](column: pa.Array, dtype: type[Number]) -> npt.NDArray[Number]:
    if not len(column):
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * size)
