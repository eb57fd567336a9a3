"""What rows of one episode become in a file of other types, and what is refused."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import align_table
from leconvert.tables.schemas import IMAGE_TYPE

TEXTS = ["a", None, "", "a"]
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def aligned(column: pa.Array, wanted: pa.DataType) -> pa.ChunkedArray:
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    table = align_table(pa.table({"x": chunks}), pa.schema([("x", wanted)]), path="episode")
    assert table.schema.field("x").type == wanted
    return table.column("x")


@pytest.mark.parametrize(
    "stored", [pa.string(), pa.large_string(), pa.string_view(), DICTIONARY], ids=str
)
@pytest.mark.parametrize(
    "wanted",
    [pa.string(), pa.large_string(), DICTIONARY, pa.dictionary(pa.int8(), pa.large_string())],
    ids=str,
)
def test_texts_are_the_same_texts_however_they_are_stored(
    stored: pa.DataType, wanted: pa.DataType
) -> None:
    column = pa.array(TEXTS, stored)
    if stored == pa.string_view() and pa.types.is_dictionary(wanted):
        # Arrow has no such cast.
        with pytest.raises(
            UnreadableSourceError, match="has the type string_view, which does not fit"
        ):
            aligned(column, wanted)
        return
    assert aligned(column, wanted).to_pylist() == TEXTS


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([1, 2, None, 1]).dictionary_encode(), pa.int64()),
        (pa.array([["a"], None, [], ["b", None]], pa.list_(DICTIONARY)), pa.list_(pa.string())),
        (
            pa.array([["a"], None, [], ["b"]], pa.large_list(pa.string_view())),
            pa.list_(pa.string()),
        ),
        (pa.array([[1, 2], None], pa.list_(pa.int64())), pa.list_(pa.int32(), 2)),
        (pa.array([{"a": 1, "b": "x"}, None]), pa.struct([("b", pa.string()), ("a", pa.int8())])),
        (pa.nulls(2), pa.struct([("a", pa.list_(pa.float32(), 3))])),
        (pa.nulls(2), DICTIONARY),
        (pa.array([b"x", None], pa.binary_view()), pa.binary()),
    ],
    ids=str,
)
def test_what_loses_nothing_is_cast_at_any_depth(column: pa.Array, wanted: pa.DataType) -> None:
    assert aligned(column, wanted).to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("column", "wanted", "reason"),
    [
        (pa.array(["1"]).dictionary_encode(), pa.int64(), "int64 is expected"),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64(), 3), "[3] is expected"),
        (pa.array([[1, 2], [3]]), pa.list_(pa.int64(), 2), "expected size"),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())]), "is expected"),
        (pa.array([{"a": 1.5}]), pa.struct([("a", pa.int64())]), "is expected"),
        (pa.array([300]), pa.int8(), "300 not in range"),
        (
            pa.array([str(number) for number in range(200)]),
            pa.dictionary(pa.int8(), pa.string()),
            "",
        ),
        (pa.array([[1]], pa.list_view(pa.int64())), pa.list_(pa.int64()), "is expected"),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), "binary is expected"),
        (pa.array([{"bytes": b"x", "name": "n"}]), IMAGE_TYPE, "is expected"),
    ],
    ids=str,
)
def test_what_may_lose_something_is_refused_by_the_columns_name(
    column: pa.Array, wanted: pa.DataType, reason: str
) -> None:
    with pytest.raises(
        UnreadableSourceError, match=r"Column x of episode .*does not fit"
    ) as caught:
        aligned(column, wanted)
    assert reason in caught.value.message
    assert caught.value.path == "episode"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"one", None, b""]),
        pa.array([b"one", None, b""], pa.large_binary()),
        pa.array([b"one", None, b""], pa.binary_view()),
        pa.array([b"one", None, b""]).dictionary_encode(),
        pa.array([{"bytes": b"one"}, None, {"bytes": b""}]),
        pa.array([{"path": None, "bytes": b"one"}, None, {"path": None, "bytes": b""}]),
    ],
    ids=lambda column: str(column.type),
)
def test_image_bytes_of_every_kind_are_stored_as_images(column: pa.Array) -> None:
    assert aligned(column, IMAGE_TYPE).to_pylist() == [
        {"bytes": b"one", "path": None},
        None,
        {"bytes": b"", "path": None},
    ]


def test_an_episode_without_images_has_empty_ones() -> None:
    assert aligned(pa.nulls(3), IMAGE_TYPE).to_pylist() == [None] * 3


def test_a_part_of_a_longer_column_is_aligned_as_that_part() -> None:
    images = pa.array([{"path": str(row), "bytes": bytes([row])} for row in range(5)]).slice(2, 2)
    assert aligned(images, IMAGE_TYPE).to_pylist() == [
        {"bytes": b"\x02", "path": "2"},
        {"bytes": b"\x03", "path": "3"},
    ]


def test_half_precision_widens_with_its_special_values() -> None:
    values = [math.inf, -0.0, 65504.0]
    found = aligned(pa.array([*values, math.nan], pa.float16()), pa.float64()).to_pylist()
    assert str(found) == str([*values, math.nan])


def test_repeated_names_are_refused_though_each_is_expected() -> None:
    table = pa.Table.from_arrays([pa.array([1])] * 2, names=["x", "x"])
    with pytest.raises(UnreadableSourceError, match="repeated names"):
        align_table(table, pa.schema([("x", pa.int64())]), path="episode")


def test_columns_of_repeated_names_are_refused_where_the_dataset_has_them_too() -> None:
    table = pa.Table.from_arrays([pa.array([1])] * 2, names=["x", "x"])
    schema = pa.schema([pa.field("x", pa.int64(), False), pa.field("x", pa.int64())])
    with pytest.raises(UnreadableSourceError, match="repeated names"):
        align_table(table, schema, path="episode")
