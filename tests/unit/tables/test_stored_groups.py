"""A row group is taken for a copy only if everything that gives its bytes a meaning is the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.errors import UnreadableSourceError
from leconvert.tables import OpenedTable, StoredGroups, join_tables
from leconvert.tables.join import RowRange


def table_of(number: int, kind: pa.DataType | None = None) -> pa.Table:
    values = pa.array([float(number), 1.5, -0.0], kind or pa.float64())
    return pa.table({"x": values, "n": pa.array([number] * 3, pa.int64())})


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"source-{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(table_of(number), path)
    return paths


@pytest.fixture
def joined(sources: list[Path], tmp_path: Path) -> Path:
    out = tmp_path / "joined.parquet"
    ranges = [RowRange(str(path), 3) for path in sources]
    join_tables(ranges, out, schema=pq.read_schema(sources[0]))
    return out


def stored_bytes(path: Path, ranges: tuple[tuple[int, int], ...]) -> bytes:
    content = path.read_bytes()
    return b"".join(content[begin : begin + size] for begin, size in ranges)


def test_a_copy_has_the_same_bytes_in_another_place(joined: Path, sources: list[Path]) -> None:
    groups = StoredGroups(str(joined))
    assert groups.rows == [3, 3, 3]
    for group in (1, 0, 2):  # in any order
        with OpenedTable(str(sources[group])) as source:
            found = groups.copied_from(group, source)
        assert found is not None
        theirs, ours = found
        assert stored_bytes(sources[group], theirs) == stored_bytes(joined, ours)


def test_another_sources_row_group_is_no_copy(joined: Path, sources: list[Path]) -> None:
    groups = StoredGroups(str(joined))
    with OpenedTable(str(sources[2])) as source:
        assert groups.copied_from(0, source) is None


@pytest.mark.parametrize("change", ["type", "name", "two groups", "statistics"])
def test_footers_that_differ_are_no_copy(joined: Path, sources: list[Path], change: str) -> None:
    path = sources[0]
    if change == "type":
        pq.write_table(table_of(0, pa.float32()), path)
    elif change == "name":
        pq.write_table(table_of(0).rename_columns(["y", "n"]), path)
    elif change == "two groups":
        pq.write_table(table_of(0), path, row_group_size=2)
    else:
        pq.write_table(table_of(0), path, write_statistics=False)
    with OpenedTable(str(path)) as source:
        assert StoredGroups(str(joined)).copied_from(0, source) is None


def test_what_is_no_parquet_file_is_refused(tmp_path: Path, joined: Path) -> None:
    (tmp_path / "x").write_bytes(joined.read_bytes()[:-1])
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        StoredGroups(str(tmp_path / "x"))
