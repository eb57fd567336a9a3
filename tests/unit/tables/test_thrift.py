"""The compact Thrift encoding: what is written is read, and nothing is read past the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.tables.thrift import (
    BINARY,
    BOOL_TRUE,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    ThriftError,
    binary,
    list_header,
    unzigzag,
    varint,
    zigzag,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64)
def test_integers_survive(value: int) -> None:
    encoded = zigzag(value)
    reader = CompactReader(encoded + b"rest")
    assert reader.integer() == value == unzigzag(encoded)
    assert reader.position == len(encoded) <= 10
    assert CompactReader(varint(abs(value))).unsigned() == abs(value)


@given(st.lists(st.binary(max_size=300), max_size=40))
def test_lists_of_byte_strings_survive(values: list[bytes]) -> None:
    encoded = list_header(BINARY, len(values)) + b"".join(map(binary, values))
    reader = CompactReader(encoded)
    assert reader.list_header() == (BINARY, len(values))
    assert [reader.binary() for _ in values] == values
    skipping = CompactReader(encoded)
    skipping.skip(LIST)
    assert skipping.position == reader.position == len(encoded)


def test_known_bytes_mean_what_the_encoding_says() -> None:
    # Field 1: i64 -3; field 2: true; field 18 (long header): "ab"; end.
    reader = CompactReader(b"\x16\x05\x11\x08\x24\x02ab\x00")
    seen = []
    for number, kind in reader.fields():
        start = reader.position
        reader.skip(kind)
        seen.append((number, kind, reader.between(start)))
    assert seen == [(1, I64, b"\x05"), (2, BOOL_TRUE, b""), (18, BINARY, b"\x02ab")]


@given(st.binary(max_size=200), st.integers(0, 15))
def test_any_bytes_are_skipped_or_refused_but_never_passed(data: bytes, kind: int) -> None:
    reader = CompactReader(data)
    try:
        reader.skip(kind)
    except ThriftError:
        return
    assert 0 <= reader.position <= len(data)


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        (I32, b"", "the bytes end too early"),
        (I32, b"\x80", "the bytes end too early"),
        (I64, b"\xff" * 11, "an integer has more than ten bytes"),
        (BINARY, b"\xff\xff\xff\xff\x0f", "the bytes end too early"),
        (BINARY, b"\x03ab", "the bytes end too early"),
        (LIST, b"\xfc\xff\xff\xff\xff\x0f", "a list is longer than the bytes that are left"),
        (LIST, b"\x35\x00\x00", "a list is longer than the bytes that are left"),
        (LIST, b"\x19" * 1000, "values are nested too deep"),
        (STRUCT, b"\x1c" * 1000, "values are nested too deep"),
        (STRUCT, b"\x26\x00\x06\x02\x00", "the fields of a struct are not in order"),
        (STRUCT, b"\x26\x00\x06\x04\x00\x00", "the fields of a struct are not in order"),
        (STRUCT, b"\x06\x00\x00\x00", "the fields of a struct are not in order"),
        (13, b"\x00", "there is no type 13"),
        (0, b"\x00", "there is no type 0"),
    ],
    ids=range(14),
)
def test_what_is_too_long_too_deep_or_out_of_order_is_refused_with_the_reason(
    kind: int, data: bytes, reason: str
) -> None:
    with pytest.raises(ThriftError, match=f"^{reason}$"):
        CompactReader(data).skip(kind)
