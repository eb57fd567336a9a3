"""Arrow columns become arrays only where nothing is lost by it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from leconvert.tables.arrow import floats, integers, list_values, nested_floats


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


def test_a_part_of_nested_lists_has_its_own_numbers() -> None:
    column = pa.array([[1, 2], [3, 4], [5, 6]])
    found = nested_floats(column.slice(1))
    assert found is not None
    assert np.array_equal(found, [[3.0, 4.0], [5.0, 6.0]])


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), _PAIRS])
@pytest.mark.parametrize("rows", [[], [[1, 2]], [[1, 2], [3, 4], [5, 6]]])
@pytest.mark.parametrize("begin", [0, 1, 2])
def test_what_lists_hold_is_what_arrow_flattens(
    kind: pa.DataType, rows: list[list[int]], begin: int
) -> None:
    array = pa.array(rows, pa.list_(kind.value_type, 2) if kind is _PAIRS else kind)
    part = array.slice(min(begin, len(rows)))
    assert list_values(part).equals(part.flatten())


def test_lists_of_different_lengths_hold_what_arrow_flattens() -> None:
    array = pa.array([[1], [], [2, 3], [4]])
    assert list_values(array.slice(1, 2)).to_pylist() == [2, 3]
