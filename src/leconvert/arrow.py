"""NumPy to Arrow and back, without pandas.

pyarrow imports pandas, where it is installed, as soon as it is handed a Python or NumPy object or
asked for one, and that costs more than a small conversion. Arrays made from buffers do not.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from leconvert.model import IntArray

__all__ = ["int64_array", "int64_values"]


def int64_array(values: IntArray) -> pa.Array:
    """Return an int64 Arrow array that shares the memory of a contiguous NumPy array."""
    contiguous = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(contiguous), [None, pa.py_buffer(contiguous)])


def int64_values(column: pa.ChunkedArray) -> IntArray:
    """Return an int64 column without nulls as one NumPy array.

    Raises:
        ValueError: The column is of another type, or holds nulls.
    """
    if column.type != pa.int64() or column.null_count:
        raise ValueError(f"expected int64 without nulls, found {column.type}")
    parts = [
        np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), chunk.offset * 8)
        for chunk in column.chunks
        if len(chunk)
    ]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
