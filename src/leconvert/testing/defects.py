"""Damage a generated dataset on purpose, one thing at a time.

``make_dataset`` writes only correct datasets; tests of faulty ones change one with these functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def edit_info(root: str | Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``info.json`` in place.

    Args:
        root: The dataset's folder.
        change: Changes the parsed file in place.
    """
    path = Path(root) / "meta/info.json"
    info = json.loads(path.read_bytes())
    change(info)
    path.write_text(json.dumps(info), encoding="utf-8")


def edit_lines(
    root: str | Path, table: str, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    """Change a JSON-lines table in place.

    Args:
        root: The dataset's folder.
        table: ``tasks``, ``episodes`` or ``episodes_stats``.
        change: Changes the list of records in place.
    """
    path = Path(root) / f"meta/{table}.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def edit_table(root: str | Path, episode: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the table of an episode in the first chunk.

    Args:
        root: The dataset's folder.
        episode: The episode's index.
        change: Returns the new table.
    """
    path = Path(root) / f"data/chunk-000/episode_{episode:06d}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return a table with new values in a column, or with one column more.

    Args:
        table: The table, which is not changed.
        name: The column.
        values: One value for each row.
    """
    place = table.schema.get_field_index(name)
    if place < 0:
        return table.append_column(name, values)
    return table.set_column(place, pa.field(name, values.type), values)
