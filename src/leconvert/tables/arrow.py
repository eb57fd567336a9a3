"""Conversion between NumPy and Arrow without pandas, and properties of Arrow types.

pyarrow imports pandas, if it is installed, as soon as a Python or NumPy object is converted to or
from an array. That costs half a second and 50 MB, more than a small conversion. Arrays made from
buffers avoid it, so this module builds columns of numbers, and of JSON values, from buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.model.values import FloatArray, IntArray


def int64_array(values: IntArray) -> pa.Array:
    """Return an int64 Arrow array that shares the memory of a contiguous NumPy array."""
    contiguous = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(contiguous), [None, pa.py_buffer(contiguous)])


def int64_values(column: pa.ChunkedArray) -> IntArray:
    """Return an int64 column without nulls as one NumPy array."""
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
    """Return whether values of a type are lists, of any length or of a fixed one."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether statistics can be computed of a type: numbers and truth values."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of a type are bytes of any length."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def list_length(array: pa.Array) -> int:
    """Return the common length of all lists of an array without nulls, with at least one row.

    Raises:
        ValueError: The lists are empty, or their lengths differ.
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


def list_values(array: pa.Array) -> pa.Array:
    """Return the elements of the lists of an array without nulls; `flatten` would import pandas."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return array.values.slice(begin, end - begin)


def innermost_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the elements of nested lists; of an extension type, the storage type."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif is_list(kind):
            kind = kind.value_type
        else:
            return kind


def lacks_value(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which rows have an empty value, or a list with one, shape (rows,)."""
    import pyarrow.compute as pc  # only where a footer counts empty values

    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    lacks: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    if is_list(column.type):
        rows = pc.list_parent_indices(column).to_numpy()
        lacks = lacks.copy()
        lacks[rows[lacks_value(pc.list_flatten(column))]] = True
    return lacks


def integers(column: pa.Array) -> IntArray | None:
    """Return a column of integers, shape (rows,); None if it has nulls or does not fit int64."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    found = stored_numbers(column)
    if found.dtype == np.uint64 and found.size and found.max() > _INT64.max:
        return None
    return found.astype(np.int64, copy=False)


def floats(column: pa.Array) -> FloatArray | None:
    """Return a column of numbers, shape (rows,); None for another type or nulls."""
    if column.null_count or not is_number(column.type):
        return None
    return stored_numbers(column).astype(np.float64, copy=False)


def stored_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return numbers or truth values without nulls as stored, shape (rows,).

    Arrow's own cast and conversion would import pandas.
    """
    kind = column.type
    if pa.types.is_boolean(kind):
        if not len(column):  # an empty column may lack the buffer, too
            return np.empty(0, np.bool_)
        bits = np.unpackbits(np.frombuffer(column.buffers()[1], np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)].astype(np.bool_)
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return fixed_width(column, np.dtype(f"{letter}{kind.bit_width // 8}"))


def nested_floats(column: pa.Array) -> FloatArray | None:
    """Return a column of nested lists, shape (rows, ...); None if the lists are not regular."""
    return _nested(column, floats)


def nested_numbers(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return a column of nested lists as int64, float64 or bool; None if they are not regular."""
    inner = innermost_type(column.type)
    if pa.types.is_boolean(inner):
        return _nested(column, _truths)
    return _nested(column, integers if pa.types.is_integer(inner) else floats)


def _truths(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return a column of truth values, shape (rows,); None if it has nulls."""
    return None if column.null_count else stored_numbers(column)


def _nested(
    column: pa.Array, values_of: Callable[[pa.Array], npt.NDArray[Any] | None]
) -> npt.NDArray[Any] | None:
    shape = [len(column)]
    while is_list(column.type):
        if column.null_count:
            return None
        values = list_values(column)
        size = len(values) // len(column) if len(column) else 0
        if not pa.types.is_fixed_size_list(column.type):
            ends = integers(column.offsets)
            if ends is None or np.any(np.diff(ends) != size):
                return None
        shape.append(size)
        column = values
    numbers = values_of(column)
    return None if numbers is None else numbers.reshape(shape)


def fixed_width[Number: np.generic](
    column: pa.Array, dtype: type[Number] | np.dtype[Number]
) -> npt.NDArray[Number]:
    """Return the memory of a column of fixed width, shape (rows,)."""
    if not len(column):
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * size)


_INT64 = np.iinfo(np.int64)


class MixedKindsError(TypeError):
    """Values that no single column type holds. The error never leaves this package."""


def type_of(values: Sequence[Any], *, truth_counts: bool = False) -> pa.DataType:
    """Return the narrowest type that holds JSON values, among them None.

    Integers together with fractions are float64. Mappings are structs with the keys of all
    mappings, in order of first appearance.

    Args:
        values: The values.
        truth_counts: Whether a truth value can be a number if there are numbers, too.

    Raises:
        MixedKindsError: No type holds all values.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.null()
    if truth_counts and bool in kinds and kinds <= {bool, int, float} and len(kinds) > 1:
        kinds.remove(bool)
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        numbers = [value for value in values if value is not None]
        if min(numbers) < _INT64.min or max(numbers) > _INT64.max:
            raise MixedKindsError("an integer needs more than 64 bits")
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    if kinds == {str}:
        return pa.string()
    if kinds == {list}:
        return pa.list_(type_of(_flat(values), truth_counts=truth_counts))
    if kinds == {dict}:
        names = dict.fromkeys(chain.from_iterable(value for value in values if value is not None))
        return pa.struct([pa.field(str(name), type_of(_children(values, name))) for name in names])
    raise MixedKindsError(" and ".join(sorted(kind.__name__ for kind in kinds)))


def array_of(values: Sequence[Any], wanted: pa.DataType) -> pa.Array:
    """Return JSON values as an array of a type that `type_of` gave for them or for more values."""
    if pa.types.is_null(wanted):
        return pa.nulls(len(values))
    valid = [value is not None for value in values]
    validity = None if all(valid) else _bits(valid)
    try:
        buffers, children = _storage(values, wanted)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise MixedKindsError(f"{wanted} cannot hold all values: {error}") from error
    return pa.Array.from_buffers(wanted, len(values), [validity, *buffers], children=children)


def type_of_numbers(numbers: npt.NDArray[Any]) -> pa.DataType:
    """Return the type of a column of regular nested lists, shape (rows, ...)."""
    found = {"b": pa.bool_(), "i": pa.int64(), "f": pa.float64()}[numbers.dtype.kind]
    for _ in range(numbers.ndim - 1):
        found = pa.list_(found)
    return found


def array_of_numbers(numbers: npt.NDArray[Any], wanted: pa.DataType) -> pa.Array:
    """Return an array of regular nested lists, shape (rows, ...)."""
    kinds: list[pa.DataType] = []
    inner = wanted
    while pa.types.is_list(inner):
        kinds.append(inner)
        inner = inner.value_type
    if len(kinds) != numbers.ndim - 1:
        raise MixedKindsError(f"{wanted} cannot hold lists of shape {numbers.shape[1:]}")
    flat = numbers.reshape(-1)
    if pa.types.is_boolean(inner):
        values = _bits(flat)
    else:
        dtype = np.int64 if pa.types.is_int64(inner) else np.float64
        values = pa.py_buffer(np.ascontiguousarray(flat, dtype))
    array = pa.Array.from_buffers(inner, len(flat), [None, values])
    for depth in range(numbers.ndim - 1, 0, -1):
        length = math.prod(numbers.shape[:depth])
        size = numbers.shape[depth]
        offsets = pa.py_buffer(np.arange(0, (length + 1) * size, size, dtype=np.int32))
        array = pa.Array.from_buffers(kinds[depth - 1], length, [None, offsets], children=[array])
    return array


def repeated_int64(number: int, length: int) -> pa.Array:
    """Return an array that repeats one integer."""
    repeated = np.full(length, number, np.int64)
    return pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(repeated)])


def _storage(
    values: Sequence[Any], wanted: pa.DataType
) -> tuple[list[pa.Buffer], list[pa.Array] | None]:
    """Return the buffers after the validity, and the arrays of nested values."""
    if pa.types.is_boolean(wanted):
        return [_bits([bool(value) for value in values])], None
    if pa.types.is_int64(wanted) or pa.types.is_float64(wanted):
        dtype = np.int64 if pa.types.is_int64(wanted) else np.float64
        filled = [0 if value is None else value for value in values]
        return [pa.py_buffer(np.array(filled, dtype))], None
    if pa.types.is_string(wanted):
        encoded = [b"" if value is None else value.encode() for value in values]
        return [_offsets(encoded), pa.py_buffer(b"".join(encoded))], None
    if pa.types.is_list(wanted):
        present = [value or [] for value in values]
        return [_offsets(present)], [array_of(_flat(present), wanted.value_type)]
    if pa.types.is_struct(wanted):
        fields = [wanted.field(number) for number in range(wanted.num_fields)]
        return [], [array_of(_children(values, field.name), field.type) for field in fields]
    raise TypeError("JSON has no such values")


def _flat(values: Sequence[Any]) -> list[Any]:
    return list(chain.from_iterable(value for value in values if value is not None))


def _children(values: Sequence[Any], name: Any) -> list[Any]:
    return [None if value is None else value.get(name) for value in values]


def _bits(flags: Sequence[bool] | npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))


def _offsets(values: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(np.array(list(accumulate(map(len, values), initial=0)), np.int32))
