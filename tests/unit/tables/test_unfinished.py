"""Data files without a footer: their rows are found by their pages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import finish_table, has_footer
from leconvert.tables.unfinished import recorded_schema

FEATURES: dict[str, dict[str, Any]] = {
    "next.done": {"dtype": "bool", "shape": [1]},
    "state": {"dtype": "float32", "shape": [3]},
    "camera": {"dtype": "video", "shape": [4, 4, 3]},
    "flags": {"dtype": "bool", "shape": [4]},
    "matrix": {"dtype": "float64", "shape": [2, 3]},
    "picture": {"dtype": "image", "shape": [4, 4, 3]},
    "note": {"dtype": "string", "shape": [1]},
    "index": {"dtype": "int64", "shape": [1]},
}
ROWS = [40, 1, 25]


def table_of(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        "next.done": [row == rows - 1 for row in range(rows)],
        "state": rng.random((rows, 3)).tolist(),
        "flags": (rng.random((rows, 4)) < 0.5).tolist(),
        "matrix": rng.random((rows, 2, 3)).tolist(),
        "picture": [{"bytes": rng.bytes(300), "path": None} for _ in range(rows)],
        "note": [f"row {row}" for row in range(rows)],
        "index": range(rows),
    }
    return pa.table(columns, schema=recorded_schema(FEATURES))


@pytest.fixture(params=[None, 100], ids=["one page a chunk", "many pages a chunk"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with row groups of several episodes, as LeRobot writes them."""
    path = tmp_path / "whole.parquet"
    with pq.ParquetWriter(
        path, recorded_schema(FEATURES), compression="snappy", use_dictionary=True,
        data_page_size=request.param, write_batch_size=request.param and 5,
    ) as writer:  # fmt: skip
        for seed, rows in enumerate(ROWS):
            writer.write_table(table_of(rows, seed))
    return path


def ends_of_groups(path: Path) -> list[int]:
    """Return the end of the last chunk of each row group."""
    file = pq.read_metadata(path)
    last = [file.row_group(n).column(file.num_columns - 1) for n in range(file.num_row_groups)]
    return [
        (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
        for chunk in last
    ]


def test_all_whole_row_groups_are_found_wherever_the_file_ends(whole: Path, tmp_path: Path) -> None:
    content, ends = whole.read_bytes(), ends_of_groups(whole)
    cut, made = tmp_path / "cut.parquet", tmp_path / "made.parquet"
    for end in (*ends, *(end - 1 for end in ends), *range(ends[0] + 1, len(content) - 4, 997)):
        cut.write_bytes(content[:end])
        complete = sum(stop <= end for stop in ends)
        assert not has_footer(cut)
        if not complete:
            with pytest.raises(UnreadableSourceError, match="has no footer"):
                finish_table(cut, FEATURES, made)
            continue
        assert finish_table(cut, FEATURES, made) == ROWS[:complete]
        found = pq.ParquetFile(made)
        assert found.num_row_groups == complete
        for number in range(complete):
            assert found.read_row_group(number).equals(table_of(ROWS[number], number))


def test_row_groups_beyond_a_number_of_rows_are_left_out(whole: Path, tmp_path: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:-8])
    assert finish_table(whole, FEATURES, tmp_path / "made", most_rows=41) == [40, 1]


@pytest.mark.parametrize(
    "features",
    [
        {**FEATURES, "state": {"dtype": "float32", "shape": [2]}},
        {**FEATURES, "state": {"dtype": "int64", "shape": [3]}},
        {**FEATURES, "state": {"dtype": "nothing", "shape": [3]}},
        {**FEATURES, "state": {"dtype": "float32"}},
        {name: FEATURES[name] for name in FEATURES if name != "flags"},
        {**FEATURES, "more": {"dtype": "float32", "shape": [1]}},
        {},
    ],
    ids=["length", "type", "no type", "no shape", "less", "more", "none"],
)
def test_pages_of_other_features_are_one_error(
    whole: Path, tmp_path: Path, features: dict[str, dict[str, Any]]
) -> None:
    whole.write_bytes(whole.read_bytes()[:-8])
    with pytest.raises(UnreadableSourceError, match="cannot be read"):
        finish_table(whole, features, tmp_path / "made")


def test_only_a_file_that_begins_as_parquet_lacks_a_footer(whole: Path, tmp_path: Path) -> None:
    assert has_footer(whole)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no parquet")
    (tmp_path / "short").write_bytes(b"PAR1")
    assert all(has_footer(tmp_path / name) for name in ("pipe", "text", "short", "none", "."))
