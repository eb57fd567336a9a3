"""The compact Thrift encoding: what is written is read, and nothing is read past the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.tables.thrift import (
    BINARY,
    BOOL_TRUE,
    I64,
    LIST,
    MAP,
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


@given(st.integers(0, 2**64 - 1))
def test_varints_survive(value: int) -> None:
    assert CompactReader(varint(value)).unsigned() == value


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
    ("kind", "data"),
    [
        (I64, b"\xff" * 11),
        (BINARY, b"\xff\xff\xff\xff\x0f"),
        (LIST, b"\xfc\xff\xff\xff\xff\x0f"),
        (MAP, b"\xff\xff\xff\xff\x0f\x88"),
        (LIST, b"\x19" * 1000),
        (STRUCT, b"\x1c" * 1000),
        (STRUCT, b"\x26\x00\x06\x02\x00"),
        (13, b"\x00"),
    ],
)
def test_what_is_too_long_too_deep_or_out_of_order_is_refused(kind: int, data: bytes) -> None:
    with pytest.raises(ThriftError):
        CompactReader(data).skip(kind)
