"""NumPy to Arrow and back, without pandas; and what Arrow types are at heart.

pyarrow imports pandas, where it is installed, as soon as it is handed a Python or NumPy object or
asked for one, and that costs more than a small conversion. Arrays made from buffers do not.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from leconvert.model import IntArray

__all__ = ["innermost_type", "int64_array", "int64_values", "is_list", "is_number", "list_length"]


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


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists, of any length or of a fixed one."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are numbers or truth values, which statistics are computed of."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def list_length(array: pa.Array) -> int:
    """Return the length that all lists of an array without nulls have, of one row at least.

    Raises:
        ValueError: They are empty, or have different lengths.
    """
    if pa.types.is_fixed_size_list(array.type):
        length = int(array.type.list_size)
    else:
        width = np.dtype(np.int64 if pa.types.is_large_list(array.type) else np.int32)
        offsets = np.frombuffer(
            array.buffers()[1], width, len(array) + 1, array.offset * width.itemsize
        )
        lengths = np.diff(offsets)
        length = int(lengths[0])
        if np.any(lengths != length):
            raise ValueError(f"its lists have {lengths.min()} to {lengths.max()} entries")
    if not length:
        raise ValueError("its lists are empty")
    return length


def innermost_type(kind: pa.DataType) -> pa.DataType:
    """Return what lists hold, nested to any depth, or what an extension type is stored as."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif is_list(kind):
            kind = kind.value_type
        else:
            return kind
