"""Ways to break one thing of a v3.0 dataset and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "DATA",
    "EPISODES",
    "TASKS",
    "TOP",
    "Change",
    "Damage",
    "byte_order_mark",
    "edit_box",
    "edit_feature",
    "edit_info",
    "edit_json",
    "edit_stat",
    "folder_instead",
    "pipe_instead",
    "remove",
    "rewrite",
    "set_cells",
    "set_stat",
    "truncate",
]

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
TOP = "videos/observation.images.top/chunk-000/file-000.mp4"

Damage = Callable[[Path], object]
Change = Callable[[pa.Table], pa.Table]


def rewrite(path: str, change: Change, *, row_groups: bool = True) -> Damage:
    """Change a parquet table; it keeps its row groups unless told otherwise."""

    def damage(root: Path) -> None:
        with pq.ParquetFile(root / path) as file:
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
            table = change(file.read())
        with pq.ParquetWriter(root / path, table.schema) as writer:
            start = 0
            for size in sizes if row_groups else [table.num_rows]:
                writer.write_table(table.slice(start, size))
                start += size

    return damage


def set_cells(column: str, **cells: object) -> Change:
    """Set cells of a column: ``r3=7`` sets row 3."""

    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        for name, value in cells.items():
            values[int(name.removeprefix("r"))] = value
        at = table.schema.get_field_index(column)
        field = table.schema.field(at)
        return table.set_column(at, field, pa.array(values, field.type))

    return change


def edit_json(path: str, edit: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(root: Path) -> None:
        content = json.loads((root / path).read_bytes())
        edit(content)
        (root / path).write_text(json.dumps(content))

    return damage


def edit_info(**changes: object) -> Damage:
    return edit_json("meta/info.json", lambda info: info.update(changes))


def edit_feature(key: str, **changes: object) -> Damage:
    return edit_json("meta/info.json", lambda info: info["features"][key].update(changes))


def edit_stat(feature: str, statistic: str, change: Callable[[Any], object]) -> Damage:
    def edit(stats: dict[str, Any]) -> None:
        stats[feature][statistic] = change(stats[feature][statistic])

    return edit_json("meta/stats.json", edit)


def set_stat(feature: str, statistic: str, value: object) -> Damage:
    return edit_stat(feature, statistic, lambda _: value)


def edit_box(path: str, box: bytes, place: int, bit: int = 0) -> Damage:
    """Change one bit of a box's content; ``place`` counts bytes from behind its type."""

    def damage(root: Path) -> None:
        content = bytearray((root / path).read_bytes())
        content[content.index(box) + 4 + place] ^= 1 << bit
        (root / path).write_bytes(content)

    return damage


def remove(path: str) -> Damage:
    return lambda root: (root / path).unlink()


def truncate(path: str) -> Damage:
    def damage(root: Path) -> None:
        content = (root / path).read_bytes()
        (root / path).write_bytes(content[: len(content) // 2])

    return damage


def folder_instead(path: str) -> Damage:
    def damage(root: Path) -> None:
        (root / path).unlink()
        (root / path).mkdir()

    return damage


def pipe_instead(path: str) -> Damage:
    """Put a pipe there; who opens it waits until somebody writes into it."""

    def damage(root: Path) -> None:
        (root / path).unlink()
        os.mkfifo(root / path)

    return damage


def byte_order_mark(path: str) -> Damage:
    """Let a file begin with the mark, which LeRobot's readers take for content."""
    return lambda root: (root / path).write_bytes(b"\xef\xbb\xbf" + (root / path).read_bytes())
