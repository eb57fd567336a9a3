"""In which order the rows of ``meta/episodes`` and ``meta/tasks.parquet`` belong.

Readers go by the row, writers by the number that stands in it. Where the two differ, another
column decides: for episodes the rows of the data that each says are its, for tasks those that the
episodes list. Where that fits neither, nobody knows, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.check import AS_STORED, DatasetCheck, NewOrder
from leconvert.dataset.formats import v3
from leconvert.model.values import DATA_STREAM
from leconvert.run.repairing.plan import rows_are_certain
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.progress import NO_PROGRESS, Progress

# Rows may call tasks by numbers that are no rows of the table.
_ANY_NUMBER = 1 << 31


def find_order(
    check: DatasetCheck, raw: Mapping[str, Any], progress: Progress = NO_PROGRESS
) -> tuple[NewOrder, DatasetCheck]:
    """Find the order in which tables belong, and check the dataset as if they stood in it."""
    order = AS_STORED
    for code, told in (("episode-order", _order_of_episodes), ("tasks-order", _order_of_tasks)):
        if not any(finding.code == code for finding in check.findings):
            continue
        wanted = told(check, order)
        if wanted is None:
            continue
        again = DatasetCheck(check.root, raw, progress, wanted)
        if rows_are_certain(again):
            order, check = wanted, again
    return order, check


def _order_of_episodes(check: DatasetCheck, order: NewOrder) -> NewOrder | None:
    """Order them by the rows that are theirs, if these follow each other by row or by number."""
    if check.table is None:
        return None
    number, first_row = check.table.episode_index, check.table.from_index
    if np.all(np.diff(first_row) > 0):
        return replace(order, episodes=np.arange(len(number)))
    rows = np.argsort(number, kind="stable")
    if not np.array_equal(number[rows], np.arange(len(number))) or np.any(
        np.diff(first_row[rows]) <= 0
    ):
        return None
    reader = v3.EpisodesReader(check.root)
    file = np.repeat(
        np.arange(len(reader.paths)),
        [sum(block.num_rows for block in reader.blocks(_is_index, path)) for path in reader.paths],
    )
    schemas = [reader.schema(path) for path in reader.paths]
    if np.any(file[rows] != file) and not all(schema.equals(schemas[0]) for schema in schemas):
        return None  # a file has no column for what a row brings from another
    return replace(order, episodes=rows)


def _is_index(name: str) -> bool:
    return name == "episode_index"


def _order_of_tasks(check: DatasetCheck, order: NewOrder) -> NewOrder | None:
    """Order them as their numbers say, or number them by row: as the lists of episodes have it."""
    texts, table = check.tasks, check.table
    if texts is None or table is None or not rows_are_certain(check):
        return None
    if len(set(texts)) < len(texts):
        return None
    try:
        listed, _ = v3.read_episode_table(
            v3.EpisodesReader(check.root), [], task_rows={text: n for n, text in enumerate(texts)}
        )
        numbers = v3.read_task_numbers(check.root)
        of_rows = _tasks_of_rows(check)
    except (UnreadableSourceError, OSError, pa.ArrowException):
        return None
    if listed is None or not len(listed.task_ends):
        return None
    if order.episodes is not None:
        listed = listed.in_order(order.episodes)

    def fits(row_of: Mapping[int, int]) -> bool:
        return all(
            {row_of.get(task) for task in of_rows.get(episode, ())} == listed.tasks_of(episode)
            for episode in range(len(listed))
        )

    if not all(number is None or isinstance(number, int | float) for number in numbers):
        return None
    whole = [int(n) for n in numbers if isinstance(n, int | float) and float(n).is_integer()]
    row_of = {number: row for row, number in enumerate(whole)}
    if len(row_of) == len(numbers) and min(row_of) >= 0 and fits(row_of):
        rows = np.array([row_of[number] for number in sorted(row_of)], np.int64)
        return replace(order, tasks=rows, task_numbers=np.array(sorted(row_of), np.int64))
    if fits({row: row for row in range(len(texts))}):
        return replace(order, tasks=np.arange(len(texts)))
    return None


def _tasks_of_rows(check: DatasetCheck) -> dict[int, tuple[int, ...]]:
    """Return what the rows of each episode call its tasks."""
    assert check.table is not None
    assert check.ranges is not None
    assert check.declared is not None
    found: dict[int, tuple[int, ...]] = {}
    for routed in check.files.get(DATA_STREAM, []):
        rows = v3.RowCheck(routed, check.table, check.ranges, check.declared, _ANY_NUMBER)
        with pq.ParquetFile(check.root / routed.path) as file:
            rows.read(file)
        found |= rows.tasks
    return found
