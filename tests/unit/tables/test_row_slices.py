"""Rows of episodes that share a file: in any order, with gaps, whatever the row groups are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leconvert.model.values import Slice
from leconvert.tables import LastTable, join_tables
from leconvert.tables import join as joining

ROWS = 60
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def rows() -> pa.Table:
    """Numbers, lists of any length, texts that repeat, gaps and images, each row another."""
    return pa.table(
        {
            "index": pa.array(range(ROWS), pa.int64()),
            "state": pa.array(
                [[float(n), -float(n)] for n in range(ROWS)], pa.list_(pa.float32(), 2)
            ),
            "words": pa.array([[str(n)] * (n % 4) for n in range(ROWS)], pa.list_(pa.string())),
            "task": pa.array([None if n % 7 == 3 else f"task {n // 20}" for n in range(ROWS)]),
            "image": pa.array(
                [{"bytes": bytes([n]) * 50, "path": f"{n}.png"} for n in range(ROWS)], IMAGE
            ),
        }
    )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_ROWS_PER_BATCH", 7)


def write(path: Path, table: pa.Table, row_groups: list[int], compression: str) -> None:
    """Write a table in row groups of so many rows."""
    with pq.ParquetWriter(path, table.schema, compression=compression) as writer:
        for first, stop in pairwise(np.concatenate(([0], np.cumsum(row_groups))).tolist()):
            writer.write_table(
                table.slice(first, stop - first), row_group_size=max(1, stop - first)
            )


@st.composite
def files(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Rows of each row group of a file, and first row and rows of some slices of it."""
    cuts = draw(st.lists(st.integers(0, ROWS), max_size=6))
    groups = [stop - first for first, stop in pairwise([0, *sorted(cuts), ROWS])]
    # Some slices are row groups, one or several; others lie anywhere.
    edge = st.sampled_from([0, *cuts, ROWS]) | st.integers(0, ROWS)
    ends = draw(st.lists(st.tuples(edge, edge), min_size=1, max_size=8))
    return groups, [(min(pair), max(pair) - min(pair)) for pair in ends]


@settings(max_examples=50)
@given(files(), st.sampled_from(["snappy", "zstd"]), st.booleans())
def test_a_slice_gives_the_rows_of_its_range_wherever_row_groups_are(
    tmp_path_factory: pytest.TempPathFactory,
    file: tuple[list[int], list[tuple[int, int]]],
    compression: str,
    with_images: bool,
) -> None:
    groups, slices = file
    table = rows() if with_images else rows().drop_columns(["image"])
    folder = tmp_path_factory.mktemp("slices")
    write(folder / "source", table, groups, compression)
    result = join_tables(
        [Slice(str(folder / "source"), first, count) for first, count in slices],
        folder / "joined",
        schema=table.schema,
    )
    expected = [table.slice(first, count) for first, count in slices]
    with pq.ParquetFile(folder / "joined") as joined:
        found = [joined.read_row_group(group) for group in range(joined.num_row_groups)]
    assert [group.to_pydict() for group in found] == [part.to_pydict() for part in expected]
    starts = np.concatenate(([0], np.cumsum(groups))).tolist()
    is_group = [(first, first + count) in pairwise(starts) and count for first, count in slices]
    copied = sum(map(bool, is_group)) if compression == "snappy" else 0
    assert (result.copied_row_groups, result.rows) == (copied, sum(n for _, n in slices))


@settings(max_examples=25)
@given(files())
def test_how_a_slice_was_stored_does_not_show_in_what_is_encoded_again(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[list[int], list[tuple[int, int]]]
) -> None:
    groups, slices = file
    table = rows()
    folder = tmp_path_factory.mktemp("slices")
    write(folder / "source", table, groups, "zstd")
    shared = [Slice(str(folder / "source"), first, count) for first, count in slices]
    own = []
    for number, (first, count) in enumerate(slices):
        write(folder / str(number), table.slice(first, count), [count], "zstd")
        own.append(Slice(str(folder / str(number)), frames=count))
    join_tables(shared, folder / "from-slices", schema=table.schema)
    join_tables(own, folder / "from-files", schema=table.schema)
    assert (folder / "from-slices").read_bytes() == (folder / "from-files").read_bytes()


def test_slices_that_follow_each_other_are_decoded_in_one_pass_over_several_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "source")
    table = rows()
    write(Path(source), table, [40, 20], "snappy")
    begun: list[list[int]] = []
    opened: list[str] = []
    real = joining.open_parquet

    class Reader:
        def __init__(self, reader: pq.ParquetReader) -> None:
            self._reader = reader
            self.metadata, self.close = reader.metadata, reader.close

        def iter_batches(self, rows: int, *, row_groups: list[int], **options: bool) -> object:
            begun.append(row_groups)
            return self._reader.iter_batches(rows, row_groups=row_groups, **options)

    def noted(path: str, **options: int) -> Reader:
        opened.append(path)
        return Reader(real(path, **options))

    monkeypatch.setattr(joining, "open_parquet", noted)
    last = LastTable()
    found: list[pa.Table] = []
    for number, slices in enumerate(([(0, 9), (9, 4)], [(15, 10)], [(30, 25)], [(58, 2), (2, 3)])):
        join_tables(
            [Slice(source, first, count) for first, count in slices],
            tmp_path / str(number),
            schema=table.schema,
            last_table=last,
        )
        found.append(pq.read_table(tmp_path / str(number)))
    last.close()
    # Only the last slice lies before the one that was read before it.
    assert begun == [[0], [1], [0]]
    assert opened == [source]
    places = [*range(13), *range(15, 25), *range(30, 55), 58, 59, 2, 3, 4]
    assert pa.concat_tables(found)["index"].to_pylist() == places
