"""Joining what must be encoded anew: several row groups of a file, errors half-way, memory."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import TableCopier, join_tables

ROWS = pa.table({"x": [float(row) for row in range(12)], "n": list(range(12))})


def test_an_error_while_encoding_leaves_no_file_and_the_sources_as_they_were(
    tmp_path: Path,
) -> None:
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    pq.write_table(ROWS, good, compression="zstd")
    pq.write_table(ROWS.drop_columns(["n"]), bad)
    with pytest.raises(UnreadableSourceError, match="missing: n") as caught:
        join_tables(
            [Slice(good, frames=12), Slice(bad, frames=12)], tmp_path / "t", schema=ROWS.schema
        )
    assert caught.value.path == bad
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "good"]
    assert join_tables([Slice(good, frames=12)], tmp_path / "t", schema=ROWS.schema).rows == 12


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_torn_source_is_refused_and_not_left_open(tmp_path: Path, kept: float) -> None:
    source = tmp_path / "torn"
    pq.write_table(ROWS, source)
    source.write_bytes(source.read_bytes()[: int(source.stat().st_size * kept)])
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 (as it is read: names)
    with pytest.raises(UnreadableSourceError):
        join_tables([Slice(str(source), frames=12)], tmp_path / "t", schema=ROWS.schema)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    assert [path.name for path in tmp_path.iterdir()] == ["torn"]


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_dictionaries_of_several_files_become_one_column(tmp_path: Path, compression: str) -> None:
    tables = [
        pa.table({"note": pa.array(texts).dictionary_encode()})
        for texts in (["a", "b", None], ["c", "a", "c"], ["b", None, None])
    ]
    ranges = []
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / str(number), compression=compression)
        ranges.append(Slice(str(tmp_path / str(number)), frames=3))
    join_tables(ranges, tmp_path / "t", schema=tables[0].schema)
    found = pq.read_table(tmp_path / "t")
    assert found["note"].to_pylist() == ["a", "b", None, "c", "a", "c", "b", None, None]
    assert pa.types.is_dictionary(found.schema.field("note").type)


def test_times_as_old_programs_stored_them_are_encoded_as_arrow_has_them(tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    table = pa.table({"when": pa.array([1, None, 3], pa.timestamp("ns"))})
    pq.write_table(table, source, use_deprecated_int96_timestamps=True)
    join_tables([Slice(source, frames=3)], tmp_path / "t", schema=table.schema)
    reason = TableCopier(table.schema).reason_against(source, 3)
    assert reason == "its columns are stored in another way"
    assert pq.read_table(tmp_path / "t").equals(table)
    assert pq.read_metadata(tmp_path / "t").row_group(0).column(0).physical_type == "INT64"
