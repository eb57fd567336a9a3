"""What a check expects to be copied is what the join copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables import CREATED_BY, TableCopier, join_tables

ROWS = pa.table({"x": [1.0, 2.0, 3.0], "n": [1, 2, 3]})


@pytest.mark.parametrize(
    ("options", "rows", "columns"),
    [
        ({}, 3, ["x", "n"]),
        ({}, 3, ["n", "x"]),
        ({"compression": "gzip"}, 3, ["x", "n"]),
        ({"row_group_size": 2}, 3, ["x", "n"]),
        ({"write_statistics": False}, 3, ["x", "n"]),
        ({"data_page_version": "2.0"}, 3, ["x", "n"]),
    ],
    ids=str,
)
def test_a_copy_is_due_exactly_where_the_join_made_one(
    tmp_path: Path, options: dict[str, Any], rows: int, columns: list[str]
) -> None:
    source, target = str(tmp_path / "source"), tmp_path / "joined"
    pq.write_table(ROWS.select(columns), source, **options)
    result = join_tables([Slice(source, frames=rows)], target, schema=ROWS.schema)
    with pq.ParquetFile(target) as file:
        assert file.metadata.created_by.encode() == CREATED_BY
        copier = TableCopier(file.schema_arrow)
    assert (copier.reason_against(source, rows) is None) is (result.copied_row_groups == 1)
    # Of another number of rows nothing can have been copied.
    assert copier.reason_against(source, rows + 1)


def test_a_source_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSourceError, match="does not exist"):
        TableCopier(ROWS.schema).reason_against(str(tmp_path / "gone"), 3)
