"""Statistics of numeric columns: values, shapes, kinds, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leconvert.dataset.statistics import QUANTILES, column_stats, rank_of

Array = np.ndarray[Any, Any]


def column_of(values: Array) -> pa.Array:
    """Return nested lists of the array's own type, whatever its shape."""
    kind: pa.DataType = pa.from_numpy_dtype(values.dtype)
    for _ in values.shape[1:]:
        kind = pa.list_(kind)
    return pa.array(values.tolist(), kind)


def computed(values: Array, *, quantiles: bool = True) -> dict[str, Any]:
    stats = column_stats(column_of(values), quantiles=quantiles)
    assert stats is not None
    return stats


NUMBERS = st.one_of(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=7),
               elements=st.floats(-1e6, 1e6, width=32)),
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=7), elements=st.floats(-1e9, 1e9)),
    hnp.arrays(np.int64, hnp.array_shapes(max_dims=3, max_side=7),
               elements=st.integers(-(2**40), 2**40)),
    hnp.arrays(np.uint8, hnp.array_shapes(max_dims=2, max_side=40)),
    hnp.arrays(np.bool_, hnp.array_shapes(max_dims=2, max_side=40)),
)  # fmt: skip


@given(NUMBERS)
def test_statistics_are_those_of_numpy(values: Array) -> None:
    stats = computed(values)
    rows = values.reshape(len(values), 1) if values.ndim == 1 else values
    wide = rows.astype(np.float64)
    np.testing.assert_array_equal(stats["min"], rows.min(axis=0))
    np.testing.assert_array_equal(stats["max"], rows.max(axis=0))
    scale = np.abs(wide).max() + 1e-300
    np.testing.assert_allclose(stats["mean"], wide.mean(axis=0), rtol=1e-12, atol=1e-14 * scale)
    np.testing.assert_allclose(stats["std"], wide.std(axis=0), rtol=1e-9, atol=1e-14 * scale)
    assert stats["count"] == [len(rows)]
    for name, level in QUANTILES.items():
        ranked = np.sort(wide, axis=0)[rank_of(level, len(rows))]
        np.testing.assert_array_equal(stats[name], ranked)
        assert np.shape(stats[name]) == rows.shape[1:]


@given(st.integers(1, 3000), st.sampled_from(list(QUANTILES.values())))
def test_the_rank_is_the_bin_that_lerobots_search_finds(count: int, level: float) -> None:
    cumulated = np.arange(1, count + 1)  # one value a bin
    assert rank_of(level, count) == int(np.searchsorted(cumulated, level * count))


@pytest.mark.parametrize("offset", [0.1, 1e3, 1e8])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1.0])
def test_columns_that_hardly_change_keep_the_digits_of_their_deviation(
    offset: float, spread: float
) -> None:
    steps = np.tile([-1.0, 1.0], 500) * spread
    values = offset + steps
    # What was stored, in exact arithmetic: two values, each half of the rows.
    low, high = float(values.min()), float(values.max())
    stats = computed(values, quantiles=False)
    assert stats["std"] == [pytest.approx((high - low) / 2, rel=1e-12)]
    assert stats["mean"] == [pytest.approx(low + (high - low) / 2, rel=1e-15)]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("float64", 0.5, 2.5), ("float32", 0.5, 2.5), ("float16", 0.5, 2.5),
        ("int64", -3, 2**60 + 1), ("int8", -3, 7), ("uint64", 0, 2**64 - 1), ("bool", 0, 1),
    ],
)  # fmt: skip
def test_whole_numbers_stay_whole_and_others_are_floats(kind: str, low: float, high: float) -> None:
    column = pa.array(np.array([high, low, high], kind))
    stats = column_stats(column, quantiles=True)
    assert stats is not None
    assert (stats["min"], stats["max"], stats["count"]) == ([low], [high], [3])
    expected = float if kind.startswith("float") else int
    assert type(stats["min"][0]) is type(stats["max"][0]) is expected
    for name in ("mean", "std", *QUANTILES):
        assert type(stats[name][0]) is float


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.large_list(pa.float32()),
        pa.list_(pa.list_(pa.float32()), 1),
        pa.list_(pa.list_(pa.float32(), 2)),
    ],
    ids=str,
)
def test_every_kind_of_list_is_read_also_in_slices_and_chunks(kind: pa.DataType) -> None:
    rows: list[Any] = [[float(i), float(-i)] for i in range(20)]
    if pa.types.is_list(kind.value_type) or pa.types.is_fixed_size_list(kind.value_type):
        rows = [[row] for row in rows]
    whole = pa.array(rows, kind)
    column = pa.chunked_array([whole.slice(3, 4), whole.slice(7, 0), whole.slice(7, 6)])
    stats = column_stats(column, quantiles=True)
    assert stats is not None
    assert np.ravel(stats["min"]).tolist() == [3.0, -12.0]
    assert np.ravel(stats["max"]).tolist() == [12.0, -3.0]
    assert stats["count"] == [10]
    assert stats == column_stats(whole.slice(3, 10), quantiles=True)


def test_truth_values_are_read_from_the_middle_of_a_byte() -> None:
    whole = pa.array([False] * 5 + [True] * 6 + [False] * 2)
    stats = column_stats(whole.slice(5, 8), quantiles=True)
    assert stats is not None
    assert (stats["min"], stats["max"], stats["mean"]) == ([0], [1], [0.75])


def test_columns_of_an_extension_type_are_those_of_their_storage() -> None:
    tensor = pa.fixed_shape_tensor(pa.int32(), (2, 2))
    flat = pa.array([[1, 2, 3, 4], [5, 6, 7, 9]], pa.list_(pa.int32(), 4))
    tensors = pa.chunked_array([pa.ExtensionArray.from_storage(tensor, flat)])
    assert column_stats(tensors, quantiles=True) == column_stats(flat, quantiles=True)
    with pytest.raises(ValueError, match="there are no rows"):
        column_stats(pa.chunked_array([], tensor), quantiles=True)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), tensors.chunk(0))
    nested = pa.array([[[1, 2, 3, 4]], [[5, 6, 7, 9]]])
    assert column_stats(lists, quantiles=True) == column_stats(nested, quantiles=True)

    kind = pa.list_(pa.list_(pa.int32()))
    storage = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 9]]], kind)

    class Matrix(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(kind, "leconvert.tests.matrix")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, *_: object) -> Matrix:
            return cls()

    array = pa.ExtensionArray.from_storage(Matrix(), storage)
    for column in (array, pa.chunked_array([array.slice(0, 1), array.slice(1)])):
        assert column_stats(column, quantiles=True) == column_stats(storage, quantiles=True)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array([["a"], ["b", "c"]]),
        pa.array([{"bytes": b"", "path": None}]),
        pa.array([b"12"]),
        pa.array([None, None]),
        pa.array([1, 2], pa.timestamp("s")),
        pa.chunked_array([], pa.string()),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_anything_but_numbers_have_no_statistics(column: pa.Array) -> None:
    assert column_stats(column, quantiles=True) is None


def test_nan_reaches_every_statistic_of_its_component_and_no_other() -> None:
    values = np.array([[1.0, 5.0], [math.nan, 6.0], [3.0, 7.0]])
    stats = computed(values)
    for name in ("min", "max", "mean", "std", *QUANTILES):
        assert math.isnan(stats[name][0]), name
    assert (stats["min"][1], stats["mean"][1], stats["q50"][1], stats["count"]) == (5, 6, 6, [3])


@pytest.mark.parametrize("first", [True, False])
def test_infinite_values_leave_extremes_and_quantiles_defined(first: bool) -> None:
    column = [math.inf, 1.0, 2.0, 3.0] if first else [1.0, 2.0, 3.0, math.inf]
    stats = computed(np.array(column))
    assert (stats["min"], stats["max"], stats["mean"]) == ([1.0], [math.inf], [math.inf])
    assert math.isnan(stats["std"][0])
    assert (stats["q50"], stats["q99"]) == ([2.0], [math.inf])


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([], pa.float32()), "there are no rows"),
        (pa.chunked_array([], pa.float32()), "there are no rows"),
        (pa.array([1.0, None, 2.0]), "1 of its entries are null"),
        (pa.array([[1.0], None], pa.list_(pa.float32())), "1 of its entries are null"),
        (pa.array([[1.0], [None]], pa.list_(pa.float32())), "1 of its entries are null"),
        (pa.array([[1.0], [1.0, 2.0]]), "its lists have 1 to 2 entries"),
        (pa.array([[[1], [2]], [[3, 4], [5]]]), "its lists have 1 to 2 entries"),
        (pa.array([[], []], pa.list_(pa.float32())), "its lists are empty"),
    ],
)
def test_columns_without_a_meaning_are_refused(column: pa.Array, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        column_stats(column, quantiles=False)
