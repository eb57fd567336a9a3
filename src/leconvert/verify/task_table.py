"""``meta/tasks.parquet`` as LeRobot's readers take it: the text is the pandas index, by row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from leconvert.errors import UnreadableSourceError
from leconvert.model import Finding
from leconvert.source.info import INFO_PATH
from leconvert.tables.footers import open_parquet
from leconvert.tables.paths import TASKS_PATH
from leconvert.verify.catalogue import found
from leconvert.verify.columns import floats

__all__ = ["pandas_index", "read_task_rows"]


def read_task_rows(root: Path, info: Mapping[str, Any]) -> tuple[list[str] | None, list[Finding]]:
    """Return the text of each row, None where the table cannot be used, and what is wrong with it.

    Args:
        root: The dataset.
        info: Its info.json, for ``total_tasks``.
    """
    path = root / TASKS_PATH
    try:
        reader = open_parquet(path)
        try:
            table = reader.read_all(use_threads=False)
            table.validate(full=True)  # texts are texts
        finally:
            reader.close()
    except (UnreadableSourceError, OSError, pa.ArrowException) as error:
        code = "unreadable-file" if path.exists() else "missing-file"
        return None, [found(code, str(error), stream="tasks", path=TASKS_PATH)]
    return _texts_and_findings(table, info)


def _texts_and_findings(
    table: pa.Table, info: Mapping[str, Any]
) -> tuple[list[str] | None, list[Finding]]:
    findings: list[Finding] = []

    def wrong(code: str, message: str, severity: str | None = None) -> None:
        findings.append(found(code, message, stream="tasks", path=TASKS_PATH, severity=severity))

    index = pandas_index(table.schema)
    if index is None or "task_index" not in table.column_names:
        wrong("tasks-layout", f"The columns are {table.column_names}, without an index of texts.")
        return None, findings
    texts = table.column(index).to_pylist()
    if not all(isinstance(text, str) for text in texts):
        wrong("tasks-layout", f"The index {index!r} does not hold texts alone.")
        return None, findings
    numbers = floats(table.column("task_index").combine_chunks())
    rows = list(range(len(texts)))
    if numbers is None:
        kind = table.schema.field("task_index").type
        wrong("tasks-order", f"task_index is {kind}, or not there for every row.")
    elif numbers.tolist() != rows:
        row = next(row for row in rows if numbers[row] != row)
        wrong("tasks-order", f"Row {row} has task_index {numbers[row]:g}.")
    first_row: dict[str, int] = {}
    for row, text in enumerate(texts):
        if first_row.setdefault(text, row) != row:
            wrong("tasks-duplicate", f"Rows {first_row[text]} and {row} are both {text[:60]!r}.")
    declared = info.get("total_tasks")
    if declared != len(texts):
        # LeRobot opens the table only where the total says that there are tasks.
        message = f"total_tasks is {declared!r}; there are {len(texts)}."
        severity = "error" if not declared else "warning"
        findings.append(found("totals", message, path=INFO_PATH, severity=severity))
    return texts, findings


def pandas_index(schema: pa.Schema) -> str | None:
    """Return the column that pandas takes as index; None if it is not one column of texts."""
    try:
        described = json.loads((schema.metadata or {})[b"pandas"])
        names = described["index_columns"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        return None
    at = schema.get_field_index(names[0])
    if at < 0:
        return None
    kind = schema.field(at).type
    return names[0] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
