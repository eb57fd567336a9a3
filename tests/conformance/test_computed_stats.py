"""Statistics of columns beside those that LeRobot computes from the same rows.

LeRobot computes means and deviations in the precision of the data, from running means of x and x²;
ours are exact to float64. So the two are compared within what its rounding can amount to, which the
docstring of ``column_stats`` derives, and whatever needs no rounding must be equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lerobot.datasets import compute_stats as reference

from leconvert.dataset.statistics import QUANTILES, column_stats

Array = np.ndarray[Any, Any]
BINS = 5000


def arrow_column(values: Array) -> pa.Array:
    kind: pa.DataType = pa.from_numpy_dtype(values.dtype)
    for _ in values.shape[1:]:
        kind = pa.list_(kind)
    return pa.array(values.tolist(), kind)


def reference_stats(values: Array) -> dict[str, Array]:
    found: dict[str, dict[str, Array]] = reference.compute_episode_stats(
        {"x": values}, {"x": {"dtype": str(values.dtype), "shape": values.shape[1:] or (1,)}}
    )
    return found["x"]


def assert_same_column(values: Array, what: str = "") -> dict[str, float]:
    """Compare a column of scalars or vectors; return the largest differences over scale."""
    stats = column_stats(arrow_column(values), quantiles=True)
    assert stats is not None
    expected = reference_stats(values)
    rows = len(values)
    for name in ("min", "max", "count"):
        np.testing.assert_array_equal(stats[name], expected[name], err_msg=f"{what} {name}")
    for name in (*expected, "mean"):
        assert np.shape(stats[name]) == expected[name].shape, (what, name)

    wide = values.reshape(rows, -1).astype(np.float64)
    single = values.dtype.itemsize < 4 or values.dtype == np.float32
    unit = 2.0**-24 if single else 2.0**-53
    square = np.square(wide).mean(axis=0)
    # Squares of values below 1e-154 vanish; in units of the largest value they do not.
    largest = np.abs(wide).max(axis=0)
    units = np.where(largest > 0, largest, 1)
    mean_bound = (rows + 1) * unit * units * np.sqrt(np.square(wide / units).mean(axis=0))
    variance_bound = (3 * rows + 8) * unit * square
    deviation = np.asarray(stats["std"])
    with np.errstate(divide="ignore", invalid="ignore"):
        std_bound = np.fmin(np.sqrt(variance_bound), variance_bound / deviation)
    tiny = np.finfo(np.float32 if single else np.float64).tiny
    mean_error = np.abs(expected["mean"] - np.asarray(stats["mean"]))
    std_error = np.abs(expected["std"] - deviation)
    assert (mean_error <= mean_bound + tiny).all(), (what, mean_error / mean_bound)
    assert (std_error <= std_bound + 2 * unit * deviation + np.sqrt(tiny)).all(), (what, std_error)

    low, high = wide.min(axis=0), wide.max(axis=0)
    # Bin edges are rounded to the data's precision: a few units in the last place of the values.
    # LeRobot also widens the range by 1e-10 at each end.
    slack = 8 * unit * np.maximum(np.abs(low), np.abs(high)) + 1e-9
    for name in QUANTILES:
        error = np.abs(expected[name] - np.asarray(stats[name]))
        assert (error <= (high - low) / BINS + slack).all(), (what, name, error)
    scale = np.sqrt(square) + tiny
    return {"mean": float((mean_error / scale).max()), "std": float((std_error / scale).max())}


VECTORS = st.one_of(
    hnp.arrays(np.float32, st.tuples(st.integers(2, 60), st.integers(1, 3)),
               elements=st.floats(-1000, 1000, width=32)),
    hnp.arrays(np.float64, st.integers(2, 60), elements=st.floats(-1e6, 1e6)),
    hnp.arrays(np.int64, st.integers(2, 60), elements=st.integers(-(2**30), 2**30)),
    hnp.arrays(np.uint8, st.integers(2, 60)),
    hnp.arrays(np.bool_, st.integers(2, 60)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(VECTORS)
def test_any_column_agrees_within_the_rounding_of_the_reference(values: Array) -> None:
    assert_same_column(values)


@pytest.mark.parametrize("rows", [2, 3, 99, 1000, 5000])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("offset", [0, 100])
def test_columns_of_every_kind_agree(kind: str, rows: int, offset: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.normal(offset, 50, (rows, 3))
    assert_same_column((values > offset if kind == "bool" else values).astype(kind))


@pytest.mark.parametrize("kind", ["float64", "int64"])
def test_columns_of_double_precision_agree_to_nine_digits(kind: str) -> None:
    values = np.random.default_rng(0).normal(3, 50, (4000, 5)).astype(kind)
    stats = column_stats(arrow_column(values), quantiles=False)
    assert stats is not None
    for name in ("mean", "std"):
        np.testing.assert_allclose(stats[name], reference_stats(values)[name], rtol=1e-9)


def test_the_reference_loses_the_deviation_of_a_column_that_hardly_changes() -> None:
    values = (1000 + np.random.default_rng(0).normal(0, 0.01, (500, 1))).astype(np.float32)
    exact = float(values.astype(np.float64).std())
    stats = column_stats(arrow_column(values), quantiles=False)
    assert stats is not None
    assert stats["std"] == [pytest.approx(exact, rel=1e-12)]
    assert abs(float(reference_stats(values)["std"][0]) - exact) > 0.1 * exact
    assert_same_column(values)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_matrices_agree_once_the_reference_has_merged_their_rows(kind: str) -> None:
    """LeRobot reduces all axes but the last; one row it reduces along the first axis alone."""
    values = np.random.default_rng(1).normal(0, 40, (30, 4, 3)).astype(kind)
    expected = reference_stats(values)
    stats = column_stats(arrow_column(values), quantiles=True)
    assert stats is not None
    assert (np.shape(stats["min"]), expected["min"].shape) == ((4, 3), (3,))
    np.testing.assert_array_equal(np.min(stats["min"], axis=0), expected["min"])
    np.testing.assert_array_equal(np.max(stats["max"], axis=0), expected["max"])
    means, deviations = np.asarray(stats["mean"]), np.asarray(stats["std"])
    merged = np.sqrt((deviations**2 + (means - means.mean(axis=0)) ** 2).mean(axis=0))
    np.testing.assert_allclose(means.mean(axis=0), expected["mean"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(merged, expected["std"], rtol=1e-5)
    np.testing.assert_array_equal(stats["count"], expected["count"])
    assert reference_stats(values[:1])["min"].shape == (4, 3)


@pytest.mark.parametrize("shape", [(1,), (1, 4), (1, 2, 3)])
def test_an_episode_of_one_row_has_the_same_statistics(shape: tuple[int, ...]) -> None:
    for kind in ("float32", "float64", "int64", "bool"):
        values = np.random.default_rng(2).normal(0, 9, shape).astype(kind)
        stats = column_stats(arrow_column(values), quantiles=True)
        assert stats is not None
        expected = reference_stats(values)
        assert stats.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(stats[name], value)
