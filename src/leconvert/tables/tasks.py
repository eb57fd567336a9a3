"""``meta/tasks.parquet``: the text of each task, which readers find by row position."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.errors import SourceError
from leconvert.tables.arrays import array_of
from leconvert.tables.footers import open_parquet, unreadable
from leconvert.tables.paths import TASKS_PATH
from leconvert.workdir.trees import make_folders_below

__all__ = ["read_tasks", "write_tasks"]

# The name that pandas gives to an index without one.
_NAMELESS_INDEX = "__index_level_0__"


def write_tasks(root: str | os.PathLike[str], tasks: Sequence[tuple[int, str]]) -> None:
    """Write ``meta/tasks.parquet`` below ``root``.

    pandas reads it as a frame with the column ``task_index`` and the index ``task``.

    Args:
        root: The new dataset's folder.
        tasks: Index and text of each task; sorted by index on the way out.

    Raises:
        SourceError: The indices are not 0 to n - 1. Readers look a task up by its row, so any other
            numbering would give rows the wrong task.
    """
    ordered = sorted((int(index), text) for index, text in tasks)
    indices = [index for index, _ in ordered]
    if indices != list(range(len(ordered))):
        wrong = next(row for row, index in enumerate(indices) if row != index)
        raise SourceError(
            f"The task indices have a gap or a repetition: row {wrong} would hold task "
            f"{indices[wrong]}.",
            next_step="Number the tasks from 0 without gaps, in tasks.jsonl and in the data.",
        )
    schema = pa.schema(
        [pa.field("task_index", pa.int64()), pa.field("task", pa.string())],
        metadata={"pandas": json.dumps(_pandas_metadata())},
    )
    columns = [
        array_of(indices, pa.int64()),
        array_of([text for _, text in ordered], pa.string()),
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    path = Path(root) / TASKS_PATH
    make_folders_below(Path(root), path.parent)
    pq.write_table(table, path)


def read_tasks(root: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Return index and text of each task, in row order.

    The column of the texts is ``task``, or the index without a name as LeRobot first wrote it.

    Raises:
        UnreadableSourceError: The table is missing or damaged.
    """
    path = Path(root) / TASKS_PATH
    reader = open_parquet(path)
    try:
        table = reader.read_all(use_threads=False)
        texts = _NAMELESS_INDEX if _NAMELESS_INDEX in table.column_names else "task"
        table = table.select(["task_index", texts])
        table.validate(full=True)  # texts are texts
    except (OSError, KeyError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    finally:
        reader.close()
    return list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))


def _pandas_metadata() -> dict[str, Any]:
    """Describe the frame for pandas; the key order is the one that pandas' writers use."""

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": pandas_type,
            "numpy_type": numpy_type,
            "metadata": None,
        }

    return {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
    }
