"""What else a v3.0 dataset holds under ``meta/``: its tasks, and what a conversion changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.findings import found
from leconvert.dataset.formats.v3.info import INFO_PATH, REPAIRS_PATH, TASKS_PATH, read_json_object
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import Finding
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.tables.arrow import array_of, floats
from leconvert.tables.data_file import (
    open_parquet,
    unreadable,
    with_unique_names,
)
from leconvert.workdir.fs import make_folders_below

# ``meta/tasks.parquet``: the text of each task, which readers find by row position.


SUBTASKS_PATH = "meta/subtasks.parquet"
# The name that pandas gives to an index without one.
_NAMELESS_INDEX = "__index_level_0__"


def write_tasks(root: str | os.PathLike[str], tasks: Sequence[tuple[int, str]]) -> None:
    """Write ``meta/tasks.parquet`` below ``root``.

    pandas reads it as a frame with the column ``task_index`` and the index ``task``.
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
    """
    path = Path(root) / TASKS_PATH
    table = _read_table(path)
    texts = _NAMELESS_INDEX if _NAMELESS_INDEX in table.column_names else "task"
    try:
        columns = table.select(["task_index", texts])
    except (KeyError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    return list(zip(columns.column(0).to_pylist(), columns.column(1).to_pylist(), strict=True))


def _read_table(path: Path) -> pa.Table:
    reader = open_parquet(path)
    try:
        with_unique_names(reader.schema_arrow)
        table = reader.read_all(use_threads=False)
        table.validate(full=True)  # texts are texts
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    finally:
        reader.close()
    return table


def read_task_rows(root: Path, info: Mapping[str, Any]) -> tuple[list[str] | None, list[Finding]]:
    """Read the table as LeRobot's readers take it: the text is the pandas index, by row.

    Return the text of each row (None: the table cannot be used), and what is wrong with it.
    """
    path = root / TASKS_PATH
    try:
        table = _read_table(path)
    except UnreadableSourceError as error:
        code = "unreadable-file" if path.exists() else "missing-file"
        return None, [found(code, str(error), stream="tasks", path=TASKS_PATH)]
    return _texts_and_findings(table, info)


def read_task_numbers(root: Path) -> list[object]:
    """Return ``task_index`` of each row as it is stored."""
    numbers: list[object] = _read_table(root / TASKS_PATH).column("task_index").to_pylist()
    return numbers


def read_subtasks(root: str | os.PathLike[str]) -> list[str]:
    """Return what each row of ``meta/subtasks.parquet`` is; nothing where there is no such table.

    LeRobot 0.4.4 to 0.5.1 took the row that ``subtask_index`` counts, and its pandas index as text.
    """
    path = Path(root) / SUBTASKS_PATH
    if not path.exists():
        return []
    table = _read_table(path)
    index = pandas_index(table.schema)
    return [str(row) for row in (table if index is None else table.column(index)).to_pylist()]


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


# ``meta/repairs.json``: what a conversion changed beside the format; absent where nothing was.


_FORMAT = "leconvert/repairs"
# Version 1 had fewer fields, which are those of a source that is read as it stands. A result of
# selected episodes has version 3: who does not know of selections would miss the others. One of
# trimmed episodes has version 4, one of renamed features version 5, one of cast columns version 6.
_KNOWN_VERSIONS = (1, 2, 3, 4, 5, 6)


def write_repairs(root: str | os.PathLike[str], repairs: Repairs) -> None:
    """Write the record below ``root``, whose ``meta`` folder exists."""
    version = 2 if repairs.selected_episodes is None else 3
    version = 4 if repairs.trimmed_episodes else version
    version = 5 if repairs.renamed_features else version
    version = 6 if repairs.cast_columns else version
    record = {"format": _FORMAT, "version": version, **repairs.as_record()}
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (Path(root) / REPAIRS_PATH).write_text(text, encoding="utf-8")


def read_meta_record[Record](
    path: Path,
    format_name: str,
    versions: Sequence[int],
    parse: Callable[[Mapping[str, Any]], Record],
    *,
    next_step: str,
) -> Record | None:
    """Return what a versioned record says, None where there is no such file."""
    try:
        record = read_json_object(path)
        if record["format"] != format_name or record["version"] not in versions:
            raise ValueError(f"it is {record['format']} version {record['version']}")
        return parse(record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.", path=str(path), next_step=next_step
        ) from error


def read_repairs(root: str | os.PathLike[str]) -> Repairs:
    """Return what was changed about the dataset below ``root``."""
    repairs = read_meta_record(
        Path(root) / REPAIRS_PATH,
        _FORMAT,
        _KNOWN_VERSIONS,
        Repairs.from_record,
        next_step="Convert again, or use the version of leconvert that wrote it.",
    )
    return NO_REPAIRS if repairs is None else repairs
