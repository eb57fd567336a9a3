"""Joining what must be encoded anew: several row groups of a file, errors half-way, memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.trees import open_below

from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import TableCopier, join_tables
from leconvert.tables import join as join_module

ROWS = pa.table({"x": [float(row) for row in range(12)], "n": list(range(12))})


def test_row_groups_of_one_file_are_encoded_with_the_file_open_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = str(tmp_path / "source"), tmp_path / "joined"
    pq.write_table(ROWS, source, row_group_size=4, compression="zstd")
    opened: list[str] = []
    real = join_module.open_parquet

    def counted(path: str, **options: int) -> pq.ParquetReader:
        opened.append(path)
        return real(path, **options)

    monkeypatch.setattr(join_module, "open_parquet", counted)
    result = join_tables(
        [Slice(source, first, 4) for first in (8, 0, 4)], target, schema=ROWS.schema
    )
    assert (result.copied_row_groups, result.row_groups, opened) == (0, 3, [source])
    assert pq.read_table(target)["n"].to_pylist() == [8, 9, 10, 11, *range(8)]


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
    with pytest.raises(UnreadableSourceError):
        join_tables([Slice(str(source), frames=12)], tmp_path / "t", schema=ROWS.schema)
    assert open_below(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["torn"]


@pytest.mark.parametrize(("after_bytes", "times"), [(1, 4), (10**9, 0)])
def test_memory_goes_back_to_the_system_between_large_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_bytes: int, times: int
) -> None:
    sources = [str(tmp_path / name) for name in "abcd"]
    for source in sources:
        pq.write_table(ROWS, source, compression="zstd")
    expected = join_tables(
        [Slice(s, frames=12) for s in sources], tmp_path / "t", schema=ROWS.schema
    )
    released: list[bool] = []

    class Pool:
        def release_unused(self) -> None:
            released.append(True)

    monkeypatch.setattr(join_module, "_RELEASE_AFTER_BYTES", after_bytes)
    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    found = join_tables([Slice(s, frames=12) for s in sources], tmp_path / "u", schema=ROWS.schema)
    assert len(released) == times
    assert found == expected
    assert (tmp_path / "t").read_bytes() == (tmp_path / "u").read_bytes()


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
