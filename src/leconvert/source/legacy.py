"""The JSON-lines tables of v2.x: ``tasks``, ``episodes`` and ``episodes_stats``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from leconvert.errors import SourceError, UnreadableSourceError
from leconvert.model import IntArray

__all__ = ["EPISODES_PATH", "STATS_PATH", "TASKS_PATH", "EpisodeLines", "load_tasks"]

EPISODES_PATH = "meta/episodes.jsonl"
STATS_PATH = "meta/episodes_stats.jsonl"
TASKS_PATH = "meta/tasks.jsonl"

_BEGINS_WITH_INDEX = re.compile(rb'\{"episode_index": ?([0-9]{1,18}),')


def load_tasks(root: Path) -> list[tuple[int, str]]:
    """Return (task_index, task) pairs in ascending order of the index.

    Raises:
        UnreadableSourceError: The file is missing or malformed.
        SourceError: Indices repeat or leave gaps, so that rows and indices would disagree.
    """
    path = root / TASKS_PATH
    tasks: list[tuple[int, str]] = []
    with _open(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            record = _parse(path, number, line)
            index, task = record.get("task_index"), record.get("task")
            if type(index) is not int or not isinstance(task, str):
                raise _malformed(path, number, "needs an integer task_index and a text task")
            tasks.append((index, task))
    tasks.sort(key=lambda entry: entry[0])
    if [index for index, _ in tasks] != list(range(len(tasks))):
        raise SourceError(
            f"{path} does not number its tasks 0 to {len(tasks) - 1}: readers of v3.0 find a task "
            "by its row.",
            path=str(path),
        )
    return tasks


class EpisodeLines:
    """One JSON-lines table with a line per episode, read on demand by episode.

    It keeps the byte offset of every line (8 bytes an episode), not the lines, so a table of
    gigabytes costs megabytes. Lines may stand in any order; blank lines are passed over.

    Args:
        path: ``episodes.jsonl`` or ``episodes_stats.jsonl``.
        validated: The scan read every line and the table did not change since; then a line that
            begins with its ``episode_index`` is not parsed until it is wanted.

    Attributes:
        episode_index: Indices in ascending order, shape (E,).

    Raises:
        UnreadableSourceError: The file is missing, or a line is no JSON object with an
            ``episode_index``.
        SourceError: An episode stands there twice.
    """

    def __init__(self, path: Path, *, validated: bool = False) -> None:
        self.path = path
        indices: list[int] = []
        offsets: list[int] = []
        offset = 0
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    begin = _BEGINS_WITH_INDEX.match(line) if validated else None
                    indices.append(int(begin[1]) if begin else _episode_index(path, number, line))
                    offsets.append(offset)
                offset += len(line)
        order = np.argsort(np.array(indices, dtype=np.int64), kind="stable")
        self.episode_index: IntArray = np.array(indices, dtype=np.int64)[order]
        self._offsets: IntArray = np.array(offsets, dtype=np.int64)[order]
        repeated = self.episode_index[1:][np.diff(self.episode_index) == 0]
        if len(repeated):
            raise SourceError(
                f"{path} lists episode {int(repeated[0])} twice.",
                path=str(path),
                next_step="Remove the line that does not belong there.",
            )

    def __len__(self) -> int:
        return len(self.episode_index)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the lines in ascending order of the episode index."""
        with _open(self.path) as file:
            position = -1
            for offset in self._offsets.tolist():
                if offset != position:
                    file.seek(offset)
                line = file.readline()
                position = offset + len(line)
                yield _parse(self.path, None, line)


def _episode_index(path: Path, number: int, line: bytes) -> int:
    index = _parse(path, number, line).get("episode_index")
    if type(index) is not int or index < 0:
        raise _malformed(path, number, "needs an integer episode_index of 0 or more")
    return index


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnreadableSourceError(
            f"{path} cannot be read: {error.strerror or error}.", path=str(path)
        ) from error


def _parse(path: Path, number: int | None, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        # What strict JSON does not know, NaN among statistics above all, Python's parser does.
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _malformed(path, number, f"is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise _malformed(path, number, "is no JSON object")
    return record


def _malformed(path: Path, number: int | None, what: str) -> UnreadableSourceError:
    place = f" line {number}" if number is not None else ""
    return UnreadableSourceError(f"{path}{place} {what}.", path=str(path))
