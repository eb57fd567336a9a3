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
from leconvert.tables import DataFile, StoredGroups, chunk_range

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


def write(folder: Path, column: Any, **options: Any) -> str:
    path = folder / "file.parquet"
    pq.write_table(pa.table({"x": column, "y": pa.array(range(len(column)))}), path, **options)
    return str(path)


def numbers(file: DataFile) -> list[float]:
    (found,) = file.numbers("x")
    values: list[float] = found.tolist()
    return values


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
        assert numbers(file) == values
        assert file.null_count("x") == 0
    found = next(StoredGroups(path).extremes())
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
        with pytest.raises(
            UnreadableSourceError, match="not have one number for each row"
        ) as caught:
            file.numbers("x")
        assert caught.value.path == file.path
        # Of lists the extremes are those of what is in them.
        greatest = max(map(max, column.to_pylist())) if pa.types.is_list(column.type) else None
        assert file.extremes.get("x") == (greatest and (1, greatest))


def test_a_list_of_one_number_is_its_number(tmp_path: Path) -> None:
    for kind in (pa.list_(pa.int16()), pa.list_(pa.float64(), 1), pa.large_list(pa.int64())):
        with DataFile(write(tmp_path, pa.array([[1], [2]], kind))) as file:
            assert numbers(file) == [1, 2]


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
        found, others = file.numbers("x", "y")
        assert (found.dtype, found.tolist()) == (np.float32, values)
        assert others.tolist() == list(range(6))


def test_a_dictionary_at_the_place_0_is_none_as_old_writers_have_it(tmp_path: Path) -> None:
    path = write(tmp_path, pa.array([7, 5, 6]), use_dictionary=False, compression="none")
    there = chunk_range(pq.read_metadata(path).row_group(0).column(0))
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
        assert numbers(file) == [7, 5, 6]
        found = file.raw("x")
        assert found[1] == expected[1]
    assert chunk_range(pq.read_metadata(path).row_group(0).column(0)) == there


def test_empty_values_are_counted_and_refused_where_numbers_are_wanted(tmp_path: Path) -> None:
    with DataFile(write(tmp_path, pa.array([0, None, 2, None]))) as file:
        assert file.extremes["x"] == (0, 2)
        assert (file.null_count("x"), file.null_count("y")) == (2, 0)
        assert file.null_count("none") is None
        with pytest.raises(UnreadableSourceError, match="column x has empty values"):
            file.numbers("x")
    with DataFile(write(tmp_path, pa.array(["a", None, "bcd"]))) as file:
        assert file.null_count("x") == 1
    with DataFile(write(tmp_path, pa.array([0, None]), write_statistics=False)) as file:
        assert file.null_count("x") is None
        assert file.extremes == {}


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


def test_schemas_that_only_arrow_tells_apart_have_other_keys(tmp_path: Path) -> None:
    keys = set()
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        for _ in range(2):
            with DataFile(write(tmp_path, pa.array(["a"]).cast(kind))) as file:
                keys.add(file.schema_key)
    assert len(keys) == 3
    assert None not in keys
