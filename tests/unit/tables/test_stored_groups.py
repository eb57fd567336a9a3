"""A row group is taken for a copy only if everything that gives its bytes a meaning is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import OpenedTable, StoredGroups, join_tables


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
    ranges = [Slice(str(path), frames=3) for path in sources]
    join_tables(ranges, out, schema=pq.read_schema(sources[0]))
    return out


type Ranges = tuple[tuple[int, int], ...]


def copied(groups: StoredGroups, group: int, source: Path) -> tuple[Ranges, Ranges] | None:
    with OpenedTable(str(source)) as theirs, OpenedTable(groups.path) as ours:
        return groups.copied_from(group, theirs, ours)


def stored_bytes(path: Path, ranges: tuple[tuple[int, int], ...]) -> bytes:
    content = path.read_bytes()
    return b"".join(content[begin : begin + size] for begin, size in ranges)


def test_a_copy_has_the_same_bytes_in_another_place(joined: Path, sources: list[Path]) -> None:
    groups = StoredGroups(str(joined))
    assert groups.rows == [3, 3, 3]
    for group in (2, 0, 0, 1):  # in any order, and one of them twice
        found = copied(groups, group, sources[group])
        assert found is not None
        theirs, ours = found
        assert stored_bytes(sources[group], theirs) == stored_bytes(joined, ours)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        (table_of(2), {}),
        (table_of(0, pa.float32()), {}),
        (table_of(0).rename_columns(["y", "n"]), {}),
        (table_of(0), {"row_group_size": 2}),
        (table_of(0), {"write_statistics": False}),
    ],
    ids=["rows", "type", "name", "two groups", "statistics"],
)
def test_footers_that_differ_are_no_copy(
    joined: Path, sources: list[Path], table: pa.Table, options: dict[str, Any]
) -> None:
    pq.write_table(table, sources[0], **options)
    assert copied(StoredGroups(str(joined)), 0, sources[0]) is None


def sorted_by_n(path: Path) -> None:
    """Write a file again with what no copy has: the order of its rows."""
    groups = pq.ParquetFile(path)
    tables = [groups.read_row_group(number) for number in range(groups.num_row_groups)]
    order = [pq.SortingColumn(1)]
    with pq.ParquetWriter(path, tables[0].schema, sorting_columns=order) as writer:
        for table in tables:
            writer.write_table(table)


def test_a_footer_with_more_in_it_makes_no_copy_and_has_rows(
    joined: Path, sources: list[Path]
) -> None:
    sorted_by_n(sources[0])
    assert copied(StoredGroups(str(joined)), 0, sources[0]) is None
    sorted_by_n(joined)
    groups = StoredGroups(str(joined))
    assert groups.rows == [3, 3, 3]
    assert copied(groups, 1, sources[1]) is None


def contradicting(path: Path) -> None:
    """Give the histograms of the first column another size than the schema says."""
    raw = path.read_bytes()
    footer_bytes = int.from_bytes(raw[-8:-4], "little")
    footer = raw[-8 - footer_bytes : -8].replace(b"\x29\x06\x19\x26", b"\x29\x06\x19\x36\0", 1)
    assert len(footer) == footer_bytes + 1
    path.write_bytes(
        raw[: -8 - footer_bytes] + footer + len(footer).to_bytes(4, "little") + raw[-4:]
    )


def test_a_footer_that_arrow_must_not_see_is_an_error_on_either_side(
    joined: Path, sources: list[Path]
) -> None:
    groups = StoredGroups(str(joined))
    contradicting(sources[0])
    with pytest.raises(UnreadableSourceError, match="histogram") as caught:
        copied(groups, 0, sources[0])
    assert caught.value.path == str(sources[0])
    contradicting(joined)
    with pytest.raises(UnreadableSourceError, match="histogram") as caught:
        StoredGroups(str(joined))
    assert caught.value.path == str(joined)


def test_a_source_that_lost_its_pages_is_no_origin(tmp_path: Path) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "joined.parquet"
    values = np.random.default_rng(0).random(5000)
    pq.write_table(pa.table({"x": values}), source)
    join_tables([Slice(str(source), frames=5000)], out, schema=pq.read_schema(source))
    groups = StoredGroups(str(out))
    assert copied(groups, 0, source) is not None
    raw = source.read_bytes()
    footer_bytes = int.from_bytes(raw[-8:-4], "little") + 8
    source.write_bytes(raw[:100] + raw[-footer_bytes:])
    assert copied(groups, 0, source) is None
