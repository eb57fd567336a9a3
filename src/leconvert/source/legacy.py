"""The JSON-lines tables of v2.x: ``tasks``, ``episodes`` and ``episodes_stats``."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from leconvert.errors import SourceError, UnreadableSourceError
from leconvert.model import IntArray
from leconvert.repairs import NO_REPAIRS, Repairs
from leconvert.source.info import EPISODES_PATH, TASKS_PATH

__all__ = [
    "EpisodeLines",
    "load_tasks",
    "parse_line",
    "read_lines",
    "tasks_of_episodes",
]

# Larger ones are no numbers of episodes or tasks, and would not fit where they are stored.
_LARGEST_INDEX = 10**15
_BEGINS_WITH_INDEX = re.compile(rb'\{"episode_index": ?([0-9]{1,15}),')


def load_tasks(root: Path, repairs: Repairs = NO_REPAIRS) -> list[tuple[int, str]]:
    """Return (task_index, task) pairs as listed, in ascending order of the index.

    Whether indices repeat or leave gaps is for the scan to say.

    Args:
        root: The dataset folder.
        repairs: What a conversion changes: where rows take their tasks from ``episodes.jsonl``,
            the texts there that are not listed follow the others.

    Raises:
        UnreadableSourceError: The file is missing or malformed.
    """
    if repairs.tasks_from is None:
        return _listed_tasks(root / TASKS_PATH)
    path = root / TASKS_PATH
    tasks = _listed_tasks(path) if path.exists() else []
    texts = dict.fromkeys(tasks_of_episodes(root).values())
    for _, text in tasks:
        texts.pop(text, None)
    first = tasks[-1][0] + 1 if tasks else 0
    return [*tasks, *((first + place, text) for place, text in enumerate(texts))]


def tasks_of_episodes(root: Path) -> dict[int, str]:
    """Return the task of each episode for which ``episodes.jsonl`` lists one and no other.

    Raises:
        UnreadableSourceError: The table is missing or malformed.
    """
    found = {}
    for record in EpisodeLines(root / EPISODES_PATH, validated=True):
        texts = record.get("tasks")
        if isinstance(texts, list) and len(texts) == 1:
            found[int(record["episode_index"])] = str(texts[0])
    return found


def _listed_tasks(path: Path) -> list[tuple[int, str]]:
    tasks: list[tuple[int, str]] = []
    with _open(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            record = _parse(path, number, line)
            index, task = record.get("task_index"), record.get("task")
            if type(index) is not int or abs(index) > _LARGEST_INDEX or not isinstance(task, str):
                raise _malformed(path, number, "needs an integer task_index and a text task")
            tasks.append((index, task))
    tasks.sort(key=lambda entry: entry[0])
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

    def offsets_of(self, episode_index: IntArray) -> IntArray:
        """Return where the lines of some episodes begin, in bytes; -1 where there is none.

        Args:
            episode_index: Indices, shape (N,).
        """
        if not len(self):
            return np.full(len(episode_index), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.episode_index, episode_index), len(self) - 1)
        found = self.episode_index[places] == episode_index
        return np.where(found, self._offsets[places], -1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the lines in ascending order of the episode index."""
        with _open(self.path) as file:
            for line in _lines_at(file, self._offsets.tolist()):
                assert line is not None
                yield _parse(self.path, None, line)


def read_lines(path: Path, offsets: Sequence[int]) -> list[bytes | None]:
    """Return the lines at some places of a JSON-lines table; None for a place of -1.

    Raises:
        UnreadableSourceError: The table cannot be read.
    """
    with _open(path) as file:
        return list(_lines_at(file, offsets))


def parse_line(path: Path, line: bytes) -> dict[str, Any]:
    """Return the record of a line.

    Raises:
        UnreadableSourceError: It is no JSON object.
    """
    return _parse(path, None, line)


def _lines_at(file: BinaryIO, offsets: Sequence[int]) -> Iterator[bytes | None]:
    position = -1
    for offset in offsets:
        if offset < 0:
            yield None
            continue
        if offset != position:
            file.seek(offset)
        line = file.readline()
        position = offset + len(line)
        yield line


def _episode_index(path: Path, number: int, line: bytes) -> int:
    index = _parse(path, number, line).get("episode_index")
    if type(index) is not int or not 0 <= index <= _LARGEST_INDEX:
        raise _malformed(path, number, "needs an integer episode_index of 0 or more")
    return index


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a table; a read that fails later is told in the same words."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UnreadableSourceError(
            f"{path} cannot be read: {error.strerror or error}.",
            path=str(path),
            next_step="Restore the table from another copy of the dataset.",
        ) from error


def _parse(path: Path, number: int | None, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        # What strict JSON does not know, NaN among statistics above all, Python's parser does.
        try:
            record = json.loads(line)
            # It also lets half a surrogate pair pass, which nothing that is written could hold.
            json.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise _malformed(path, number or _number_of(path, line), _reason(error)) from error
    if not isinstance(record, dict):
        raise _malformed(path, number or _number_of(path, line), "is no JSON object")
    return record


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "holds half a surrogate pair, which is no text"
    if isinstance(error, json.JSONDecodeError):
        # Its own words would call every line the first.
        return f"is no JSON: {error.msg} (column {error.colno})"
    return f"is no JSON: {error}"


def _number_of(path: Path, line: bytes) -> int | None:
    """Return the number of the first line of a table that reads like one; None if it is gone."""
    with _open(path) as lines:
        return next((number for number, other in enumerate(lines, 1) if other == line), None)


def _malformed(path: Path, number: int | None, what: str) -> UnreadableSourceError:
    place = f" line {number}" if number is not None else ""
    return UnreadableSourceError(
        f"{path}{place} {what}.",
        path=str(path),
        next_step="Mend the line, or restore the table from another copy of the dataset.",
    )
