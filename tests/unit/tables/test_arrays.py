"""Arrow arrays from JSON values and back to NumPy: the narrowest types, and nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leconvert.tables.arrow import (
    MixedKindsError,
    array_of,
    array_of_numbers,
    floats,
    integers,
    lacks_value,
    list_values,
    nested_floats,
    nested_numbers,
    type_of,
)

INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    "values",
    [[1, "a"], [True, 1], [INT64_MAX + 1], [[1], ["a"]], [{"a": 1}, [1]], [1j], [{1, 2}]],
    ids=str,
)
def test_kinds_that_do_not_go_together_have_no_type(values: list[Any]) -> None:
    with pytest.raises(MixedKindsError):
        type_of(values)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a"], pa.int64()),
        ([2**70], pa.int64()),
        ([10**400, 0.5], pa.float64()),
        (["\ud800"], pa.string()),
        ([1], pa.string()),
        ([1], pa.list_(pa.int64())),
        ([1], pa.struct([("a", pa.int64())])),
        ([b"a"], pa.binary()),
    ],
    ids=ascii,
)
def test_a_type_that_does_not_hold_the_values_is_refused_by_name(
    values: list[Any], kind: pa.DataType
) -> None:
    with pytest.raises(MixedKindsError) as caught:
        array_of(values, kind)
    assert str(caught.value).startswith(f"{kind} cannot hold all values")


def test_numbers_fit_into_wider_ones_but_not_into_another_nesting() -> None:
    numbers = np.array([[1], [0]])
    assert array_of_numbers(numbers, pa.list_(pa.float64())).to_pylist() == [[1.0], [0.0]]
    assert array_of_numbers(numbers == 1, pa.list_(pa.int64())).to_pylist() == [[1], [0]]
    for kind in (pa.int64(), pa.list_(pa.list_(pa.int64()))):
        with pytest.raises(MixedKindsError, match=r"lists of shape \(1,\)"):
            array_of_numbers(numbers, kind)


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, -(2**63)]],
        [[[0.5], [float("inf")]], [[-0.0], [1e-320]]],
        [[True], [False], [True], [True], [False], [True], [True], [False], [True], [True]],
    ],
)
def test_regular_lists_come_back_as_numbers_of_their_type(values: list[Any]) -> None:
    column = pa.array([values[0], *values])
    for part, wanted in ((column, [values[0], *values]), (column[1:], values)):
        found = nested_numbers(part)
        assert found.dtype == np.array(values).dtype
        assert found.tolist() == wanted


@pytest.mark.parametrize(
    "values", [[[1], None], [[1], [None]], [[True], [None]], [[1], [2, 3]], [["a"]], [[{"a": 1}]]]
)
def test_lists_that_are_no_regular_numbers_do_not(values: list[Any]) -> None:
    assert nested_numbers(pa.array(values)) is None


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([1, 2, 3], pa.int8()), [1, 2, 3]),
        (pa.array([0, 1, 2, 3]).slice(2), [2, 3]),
        (pa.array([], pa.int64()), []),
        (pa.array([1, None]), None),
        (pa.array([1.0]), None),
        (pa.array([True]), None),
        (pa.array([1, 2], pa.uint64()), [1, 2]),
        (pa.array([], pa.uint64()), []),
        (pa.array([-1, 2], pa.int8()).slice(1), [2]),
        (pa.array([1, 2**63], pa.uint64()), None),
    ],
)
def test_integers_are_those_of_64_bits(column: pa.Array, values: list[int] | None) -> None:
    found = integers(column)
    assert (None if found is None else found.tolist()) == values


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([0.5, 2.0], pa.float32()), [0.5, 2.0]),
        (pa.array([True, False, True]).slice(1), [0.0, 1.0]),
        (pa.array([7], pa.uint8()), [7.0]),
        (pa.array([], pa.float32()), []),
        (pa.array([None], pa.float32()), None),
        (pa.array(["1"]), None),
        (pa.array([1]).cast(pa.decimal128(22, 2)), None),
    ],
)
def test_floats_are_numbers_and_truth_values(column: pa.Array, values: list[float] | None) -> None:
    found = floats(column)
    assert (None if found is None else found.tolist()) == values


_PAIRS = pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(
    ("column", "shape"),
    [
        (pa.array([1.0, 2.0]), (2,)),
        (pa.array([[1], [2], [3]]), (3, 1)),
        (pa.array([[1, 2], [3, 4], [5, 6]], _PAIRS), (3, 2)),
        (pa.array([[[1, 2]], [[3, 4]]], pa.large_list(_PAIRS)), (2, 1, 2)),
        (pa.array([], pa.list_(pa.int64())), (0, 0)),
        (pa.array([[], []], pa.list_(pa.int64())), (2, 0)),
        (pa.array([[1], [2, 3]]), None),
        (pa.array([[1, 2], []]), None),  # as many numbers as two equal rows
        (pa.array([[1], None]), None),
        (pa.array([[1], [None]]), None),
        (pa.array([["a"]]), None),
    ],
)
def test_nested_lists_are_an_array_where_they_are_regular(
    column: pa.Array, shape: tuple[int, ...] | None
) -> None:
    found = nested_floats(column)
    assert (None if found is None else found.shape) == shape


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), _PAIRS])
@pytest.mark.parametrize("rows", [[], [[1, 2]], [[1, 2], [3, 4], [5, 6]], [[1], [], [2, 3], [4]]])
@pytest.mark.parametrize("begin", [0, 1, 2])
def test_what_lists_hold_is_what_arrow_flattens(
    kind: pa.DataType, rows: list[list[int]], begin: int
) -> None:
    if kind is _PAIRS and len({*map(len, rows)}) > 1:
        return
    array = pa.array(rows, kind)
    part = array.slice(min(begin, len(rows)))
    assert list_values(part).equals(part.flatten())


@pytest.mark.parametrize(
    ("values", "kind", "lacking"),
    [
        ([1.0, None, 2.0], pa.float32(), [1]),
        (["a", None], pa.string(), [1]),
        ([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int8(), 2), [1, 2]),
        ([[1], [], None, [None]], pa.list_(pa.int8()), [2, 3]),
        ([[[1, 2], [3, 4]], [[5, 6], None], [[7, None], [8, 9]], None], None, [1, 2, 3]),
        ([None, None], pa.null(), [0, 1]),
    ],
)
def test_rows_that_lack_a_value_are_found_at_any_depth(
    values: list[Any], kind: pa.DataType | None, lacking: list[int]
) -> None:
    array = pa.array(values, kind)
    assert np.flatnonzero(lacks_value(array)).tolist() == lacking
    assert np.flatnonzero(lacks_value(array[1:])).tolist() == [at - 1 for at in lacking if at]
