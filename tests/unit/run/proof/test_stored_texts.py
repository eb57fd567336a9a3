"""A feature of texts is sound however the texts are stored, and not where there are none."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from leconvert.dataset.check.files import check_schema
from leconvert.dataset.formats.v3 import Declared, Feature

NOTE = Feature("note", "string", (1,), {"dtype": "string", "shape": [1]})
DECLARED = Declared({"features": {"note": {}}}, Fraction(30), {"note": NOTE}, {})


def codes(kind: pa.DataType) -> list[tuple[str, str]]:
    found = check_schema(pa.schema([("note", kind)]), DECLARED, "data")
    return [(finding.severity, finding.code) for finding in found]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_texts_are_texts_in_every_form_that_datasets_takes_them_in(kind: pa.DataType) -> None:
    assert codes(kind) == []


@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int32(), pa.int64()), pa.binary(), pa.list_(pa.string())], ids=str
)
def test_what_is_no_text_is_an_error(kind: pa.DataType) -> None:
    assert codes(kind) == [("error", "dtype-mismatch")]
