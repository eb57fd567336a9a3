"""Columns of one data file, from its footer and its dictionaries, and what Arrow says they are."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import DataFile, StoredGroups
from leconvert.tables.thrift import zigzag

ARROW, OTHER = b"parquet-cpp-arrow version ", b"someone-elses-tool version"
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


def write(folder: Path, column: Any, **options: Any) -> str:
    path = folder / "file.parquet"
    pq.write_table(pa.table({"x": column, "y": pa.array(range(len(column)))}), path, **options)
    return str(path)


def values_of(path: str) -> list[Any]:
    values: list[Any] = pq.read_table(path).column("x").to_pylist()
    return values


@pytest.mark.parametrize(
    ("kind", "greatest"),
    [
        (pa.uint8(), 2**8 - 1),
        (pa.uint16(), 2**16 - 1),
        (pa.uint32(), 2**32 - 1),
        (pa.uint64(), 2**64 - 1),
        (pa.int8(), 2**7 - 1),
        (pa.int64(), 2**63 - 1),
        (pa.float32(), 4.5),
        (pa.float64(), 1e300),
    ],
)
def test_numbers_of_every_width_and_sign_are_what_they_are(
    tmp_path: Path, kind: pa.DataType, greatest: float
) -> None:
    values = [3, greatest, 0]
    path = write(tmp_path, pa.array(values, kind))
    with DataFile(path) as file:
        assert file.extremes["x"] == (0, greatest)
        assert file.numbers("x").tolist() == values
        assert file.distinct("x") == sorted(values)
        assert file.null_count("x") == 0
    found = next(StoredGroups(path).extremes(["y", "none", "x"]))
    assert found == {"x": (0, greatest), "y": (0, 2)}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOON.date()] * 2),
        pa.array([NOON.time()] * 2),
        pa.array([NOON] * 2, pa.timestamp("ns", "UTC")),
        pa.array([NOON] * 2, pa.timestamp("ms")),
        pa.array([Decimal("1.5")] * 2, pa.decimal128(9, 2)),
        pa.array(["a", "b"]),
        pa.array([b"ab", b"cd"], pa.binary(2)),
        pa.array([[1, 2], [3, 4]]),
        pa.array([[1], [2, 3]]),
    ],
    ids=str,
)
def test_what_is_stored_as_a_number_and_is_none_is_no_number(
    tmp_path: Path, column: pa.Array
) -> None:
    with DataFile(write(tmp_path, column, store_decimal_as_integer=True)) as file:
        for read in (file.numbers, file.distinct):
            with pytest.raises(UnreadableSourceError, match="no number a row") as caught:
                read("x")
            assert caught.value.path == file.path
        # Of lists the extremes are those of what is in them.
        greatest = max(map(max, column.to_pylist())) if pa.types.is_list(column.type) else None
        assert file.extremes.get("x") == (greatest and (1, greatest))


def test_a_list_of_one_number_is_its_number(tmp_path: Path) -> None:
    for kind in (pa.list_(pa.int16()), pa.list_(pa.float64(), 1), pa.large_list(pa.int64())):
        with DataFile(write(tmp_path, pa.array([[1], [2]], kind))) as file:
            assert file.numbers("x").tolist() == [1, 2]


def test_schemas_that_differ_in_the_sign_of_a_column_are_kept_apart(tmp_path: Path) -> None:
    for kind in (pa.int32(), pa.uint32(), pa.int32(), pa.date32()):
        values = pa.array([-1, 5] if kind == pa.int32() else [2**32 - 1, 5], pa.int64())
        column = values.cast(pa.int32(), safe=False).cast(kind, safe=False)
        with DataFile(write(tmp_path, column)) as file:
            expected = {pa.int32(): (-1, 5), pa.uint32(): (5, 2**32 - 1)}.get(kind)
            assert file.extremes.get("x") == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"compression": "none"},
        {"compression": "zstd"},
        {"version": "1.0", "data_page_version": "2.0"},
        {"row_group_size": 4},
        {"write_statistics": False},
        {"write_page_checksum": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("repeated", [False, True])
def test_numbers_are_those_of_the_rows_however_they_are_stored(
    tmp_path: Path, options: dict[str, Any], repeated: bool
) -> None:
    values = [0.5, -1.0, 7.25, 3.0, 2.0, 9.0]
    if repeated:
        values[2] = values[0]
    with DataFile(write(tmp_path, pa.array(values, pa.float32()), **options)) as file:
        numbers = file.numbers("x")
        assert (numbers.dtype, numbers.tolist()) == (np.float32, values)
        assert file.distinct("x") == sorted(set(values))


def test_values_behind_a_dictionary_that_was_given_up_are_told_apart_too(tmp_path: Path) -> None:
    values = [row // 3 for row in range(9000)]
    options = {"dictionary_pagesize_limit": 16, "data_page_size": 128}
    with DataFile(write(tmp_path, pa.array(values), **options)) as file:
        assert file.distinct("x") == list(range(3000))
    with DataFile(write(tmp_path, pa.array(values))) as file:
        assert file.distinct("x") == list(range(3000))


def sorted_dictionary(path: str) -> None:
    """Sort the dictionary of 7, 5, 6 and let the rows point to where the values are now."""
    raw = Path(path).read_bytes()
    before, after = (np.array(values, "<i8").tobytes() for values in ([7, 5, 6], [5, 6, 7]))
    assert raw.count(before) == 1
    # Places of two bits each, one group of eight: 0, 1, 2 become 2, 0, 1.
    places, moved = b"\x02\x03\x24\x00", b"\x02\x03\x12\x00"
    raw = raw.replace(before, after).replace(places, moved, 1)
    assert raw.count(ARROW) == 1
    Path(path).write_bytes(raw.replace(ARROW, OTHER))


def test_a_sorted_dictionary_of_another_program_is_not_taken_for_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]), compression="none")
    sorted_dictionary(path)
    assert values_of(path) == [7, 5, 6]
    with DataFile(path) as file:
        assert file.numbers("x").tolist() == [7, 5, 6]
        assert file.distinct("x") == [5, 6, 7]


def test_a_dictionary_at_the_place_0_is_none_as_old_writers_have_it(tmp_path: Path) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]), use_dictionary=False, compression="none")
    with DataFile(path) as file:
        expected = file.raw("x")
        assert expected is not None
    raw = Path(path).read_bytes()
    footer_bytes = int.from_bytes(raw[-8:-4], "little")
    footer = raw[-8 - footer_bytes : -8]
    # Field 9, the first data page, and 12, the statistics; between them now 11, the dictionary.
    assert footer.count(b"\x26\x08\x3c") == 1
    footer = footer.replace(b"\x26\x08\x3c", b"\x26\x08\x26\x00\x1c")
    Path(path).write_bytes(
        raw[: -8 - footer_bytes] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    )
    assert values_of(path) == [7, 5, 6]
    with DataFile(path) as file:
        assert file.numbers("x").tolist() == [7, 5, 6]
        found = file.raw("x")
        assert found is not None
        assert found[1] == expected[1]


def test_empty_values_are_counted_and_refused_where_numbers_are_wanted(tmp_path: Path) -> None:
    with DataFile(write(tmp_path, pa.array([0, None, 2, None]))) as file:
        assert file.extremes["x"] == (0, 2)
        assert (file.null_count("x"), file.null_count("y")) == (2, 0)
        assert file.null_count("none") is None
        with pytest.raises(UnreadableSourceError, match="column x has empty values"):
            file.numbers("x")
    with DataFile(write(tmp_path, pa.array([0, None]), write_statistics=False)) as file:
        assert file.null_count("x") is None
        assert file.extremes == {}


def test_empty_texts_are_counted(tmp_path: Path) -> None:
    for values in (["a", None, "bcd"], ["", None, None]):
        with DataFile(write(tmp_path, pa.array(values))) as file:
            assert file.null_count("x") == values.count(None)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with DataFile(write(tmp_path, pa.array([1]))) as file:
        with pytest.raises(UnreadableSourceError, match=r"file\.parquet has no column z"):
            file.numbers("z")
        assert (file.num_values("z"), file.raw("z")) == (None, None)


def test_columns_of_equal_bytes_are_equal_and_others_differ(tmp_path: Path) -> None:
    def raw(values: list[int], **options: Any) -> tuple[int | None, object]:
        with DataFile(write(tmp_path, pa.array(values), **options)) as file:
            return file.num_values("x"), file.raw("x")

    assert raw([1, 2, 3]) == raw([1, 2, 3])
    assert raw([1, 2, 3])[0] == 3
    assert raw([1, 2, 3])[1] != raw([1, 2, 4])[1]
    # Several row groups are not told apart by bytes.
    assert raw([1, 2, 3], row_group_size=2) == (None, None)


@pytest.mark.parametrize("compression", ["snappy", "none"])
@pytest.mark.parametrize("change", ["type", "size", "fewer", "more", "body", "shorter"])
def test_a_dictionary_that_is_not_what_it_says_is_left_to_arrow(
    tmp_path: Path, compression: str, change: str
) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]), compression=compression)
    raw = bytearray(Path(path).read_bytes())
    # A dictionary page: type 2, sizes, and a header of its own with the number of values.
    start = raw.index(b"\x15\x04\x15\x30")
    count = raw.index(b"\x4c\x15\x06", start) + 2
    at, value = {
        "type": (start + 1, 0x02),
        "size": (start + 3, 0x40),
        "fewer": (count, 0x04),
        "more": (count, 0x08),
        "body": (start + 5, raw[start + 5] + 2),
        "shorter": (count, 0x04),
    }[change]
    raw[at] = value
    if change == "shorter":
        raw[start + 3] = 0x20
    Path(path).write_bytes(raw)
    try:
        expected = values_of(path)
    except (OSError, pa.ArrowException):
        expected = []
    with DataFile(path) as file:
        if expected:
            assert file.numbers("x").tolist() == expected
            return
        with pytest.raises(UnreadableSourceError, match="cannot be read") as caught:
            file.numbers("x")
    assert caught.value.path == path


def test_a_first_data_page_behind_its_chunk_is_left_to_arrow(tmp_path: Path) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]))
    with DataFile(path) as file:
        parts = file.counts.parts
        assert parts is not None
        chunk = parts.row_groups[0].chunks[0]
    # Field 9, the first data page, and 11, the dictionary, which begins at byte 4.
    places = b"\x26" + zigzag(chunk.data_offset) + b"\x26\x08"
    raw = Path(path).read_bytes()
    assert raw.count(places) == 1
    moved = b"\x26" + zigzag(chunk.data_offset + 400) + b"\x26\x08"
    grown = len(moved) - len(places)
    footer_bytes = int.from_bytes(raw[-8:-4], "little") + grown
    Path(path).write_bytes(
        raw[:-8].replace(places, moved) + footer_bytes.to_bytes(4, "little") + b"PAR1"
    )
    expected = values_of(path)
    with DataFile(path) as file:
        assert file.numbers("x").tolist() == expected == [7, 5, 6]


def test_a_file_that_only_arrow_reads_is_read_by_it(tmp_path: Path) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]), sorting_columns=[pq.SortingColumn(1)])
    with DataFile(path) as file:
        assert (file.schema_key, file.raw("x"), file.num_values("x")) == (None, None, None)
        assert (file.null_count("x"), file.extremes) == (None, {})
        assert file.numbers("x").tolist() == [7, 5, 6]
        assert file.distinct("x") == [5, 6, 7]
    assert list(StoredGroups(path).extremes(["x"])) == []


def test_schemas_that_only_arrow_tells_apart_have_other_keys(tmp_path: Path) -> None:
    keys = set()
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        for _ in range(2):
            with DataFile(write(tmp_path, pa.array(["a"]).cast(kind))) as file:
                keys.add(file.schema_key)
    assert len(keys) == 3
    assert None not in keys


def test_a_dictionary_that_cannot_be_unpacked_is_left_to_arrow(tmp_path: Path) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]))
    # A Snappy block says first how long it is: 24 bytes.
    raw = bytearray(Path(path).read_bytes())
    at = raw.index(b"\x18", raw.index(b"\x4c\x15\x06"))
    for size in (0x17, 0xFF):
        raw[at] = size
        Path(path).write_bytes(raw)
        with (
            DataFile(path) as file,
            pytest.raises(UnreadableSourceError, match="cannot be read"),
        ):
            file.numbers("x")
