"""What data files tell `datasets` about their columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from leconvert.tables import output_schema
from leconvert.tables.schemas import feature_of_type

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def entries_of(schema: pa.Schema) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    return found


def entry_of(kind: pa.DataType, feature: Any) -> Any:
    return entries_of(output_schema(pa.schema([("x", kind)]), {"x": feature})).get("x")


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.binary(3),
        pa.month_day_nano_interval(),
        pa.map_(pa.string(), pa.int64()),
    ],
)
def test_a_type_that_datasets_cannot_name_has_no_entry_at_any_depth(kind: pa.DataType) -> None:
    # One name that `datasets` does not know, and it opens the file no more.
    nested = [kind, pa.list_(kind), pa.list_(kind, 2), pa.struct([("a", kind)])]
    assert [feature_of_type(found) for found in nested] == [None] * 4
    assert entries_of(output_schema(pa.schema([("x", kind), ("y", pa.int8())]), {})) == {
        "y": {"dtype": "int8", "_type": "Value"}
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.date32(), "date32"),
        (pa.date64(), "date64"),
        (pa.float16(), "float16"),
        (pa.timestamp("us", "UTC"), "timestamp[us, tz=UTC]"),
        (pa.large_string(), "large_string"),
    ],
)
def test_types_have_the_names_that_datasets_gives_them(kind: pa.DataType, name: str) -> None:
    assert feature_of_type(kind) == {"dtype": name, "_type": "Value"}
    assert feature_of_type(pa.large_list(kind)) == {
        "feature": {"dtype": name, "_type": "Value"},
        "_type": "LargeList",
    }


def test_lists_in_lists_are_arrays_where_the_declared_shape_says_so() -> None:
    kind = pa.list_(pa.large_list(pa.list_(pa.float32(), 4)))
    declared = {"dtype": "float32", "shape": [2, 3, 4]}
    assert entry_of(kind, declared) == {"shape": [2, 3, 4], "dtype": "float32", "_type": "Array3D"}


def test_the_storage_of_an_extension_type_decides_whether_the_declaration_fits() -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2])
    assert entry_of(kind, {"dtype": "float32", "shape": [2]}) == {
        "feature": {"dtype": "float32", "_type": "Value"},
        "length": 2,
        "_type": "List",
    }
    assert entry_of(kind, {"dtype": "int64", "shape": [2]}) is None


@pytest.mark.parametrize("shape", [["3"], [3.0], [None], "3", None])
def test_a_shape_that_is_not_made_of_numbers_declares_nothing(shape: object) -> None:
    assert entry_of(pa.list_(pa.int64()), {"dtype": "int64", "shape": shape}) == {
        "feature": {"dtype": "int64", "_type": "Value"},
        "_type": "List",
    }


@pytest.mark.parametrize("feature", [None, [], "image", {"dtype": 3, "shape": [1]}])
def test_a_declaration_that_is_none_leaves_the_column_to_its_type(feature: object) -> None:
    assert entry_of(pa.int64(), feature) == {"dtype": "int64", "_type": "Value"}


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.struct([IMAGE.field("bytes")])]
)
def test_image_bytes_of_every_kind_become_stored_images(kind: pa.DataType) -> None:
    schema = output_schema(pa.schema([("x", kind)]), {"x": {"dtype": "image"}})
    assert schema.field("x").type == IMAGE
    assert entries_of(schema) == {"x": {"_type": "Image"}}


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.struct([("path", pa.string())]), pa.list_(pa.uint8())]
)
def test_a_column_without_image_bytes_stays_what_it_is(kind: pa.DataType) -> None:
    schema = output_schema(pa.schema([("x", kind)]), {"x": {"dtype": "image", "shape": [2, 2, 3]}})
    assert schema.field("x").type == kind
    assert entries_of(schema) == {"x": feature_of_type(kind)}


@pytest.mark.parametrize("stored", [{"info": {"features": []}}, {"info": []}, [], {}])
def test_entries_that_are_no_mapping_are_derived_again(stored: object) -> None:
    source = pa.schema([("x", pa.int64())], metadata={"huggingface": json.dumps(stored)})
    assert entries_of(output_schema(source, {})) == {"x": {"dtype": "int64", "_type": "Value"}}


def test_field_metadata_names_extension_types_and_nothing_else() -> None:
    told = {"ARROW:extension:name": "robot.pose", "PARQUET:field_id": "7", "unit": "m"}
    schema = output_schema(pa.schema([pa.field("x", pa.int64(), metadata=told)]), {})
    assert schema.field("x").metadata == {b"ARROW:extension:name": b"robot.pose"}
