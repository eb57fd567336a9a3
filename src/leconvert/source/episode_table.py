"""``episodes.jsonl`` and ``tasks.jsonl`` as the scan reads them: numbers, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import SourceError
from leconvert.model import IntArray
from leconvert.source.catalogue import CATALOGUE, TASKS_FROM_EPISODES
from leconvert.source.info import EPISODES_PATH, TASKS_PATH
from leconvert.source.legacy import EpisodeLines, load_tasks
from leconvert.source.seen import Remark, Sightings, counted, shown

__all__ = [
    "NO_TASK",
    "EpisodeTable",
    "TaskTable",
    "episode_length",
    "read_episode_table",
    "read_task_table",
    "tasks_helps",
]

# Columns of v3.0's table of episodes that a key of the same name would stand beside.
_TAKEN_PREFIXES = ("stats/", "meta/episodes/")
_LONGEST_EPISODE = 2**31 - 1
# Stands for a text that ``tasks.jsonl`` lacks.
NO_TASK = -1
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class TaskTable:
    """The tasks of a source.

    Attributes:
        listed: (index, text) pairs, ascending.
        first_index: The first index that stands for the same text, by index: equal texts are one
            task.
        of_text: First index of a text.
        is_there: Whether there is such a table, and anything in it.
    """

    listed: Sequence[tuple[int, str]]
    first_index: Mapping[int, int]
    of_text: Mapping[str, int]
    is_there: bool


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTable:
    """The episodes of a source; arrays have shape (E,).

    Attributes:
        index: Their indices, ascending.
        length: Frames, as the table says.
        task: First task index of the only task that an episode lists; `NO_TASK` where ``tasks``
            has the episode.
        tasks: All of them where an episode lists several, none, or one that ``tasks.jsonl`` lacks
            (`NO_TASK`), by position.
        has_one_text: Whether each lists one task, whether ``tasks.jsonl`` has it or not.
        num_texts: Different texts of those.
    """

    index: IntArray
    length: IntArray
    task: IntArray
    tasks: Mapping[int, frozenset[int]]
    has_one_text: npt.NDArray[np.bool_]
    num_texts: int

    @property
    def has_gaps(self) -> bool:
        """Whether indices do not run from 0 without gaps."""
        return int(self.index[-1]) != len(self.index) - 1


def read_task_table(root: Path, remarks: list[Remark]) -> TaskTable:
    """Read ``tasks.jsonl``.

    Args:
        root: The dataset folder.
        remarks: Where to say what is wrong.

    Raises:
        UnreadableSourceError: It is malformed.
    """
    exists = (root / TASKS_PATH).exists()
    listed = load_tasks(root) if exists else []
    first_index: dict[int, int] = {}
    of_text: dict[str, int] = {}
    texts: dict[int, str] = {}
    conflicts: list[int] = []
    duplicates: list[int] = []
    for index, text in listed:
        if texts.setdefault(index, text) != text:
            conflicts.append(index)
        elif text in of_text:
            duplicates.append(index)
        first_index.setdefault(index, of_text.setdefault(text, index))
    if not listed:
        what = "lists no task" if exists else "is missing"
        said = f"{TASKS_PATH} {what}: rows have task indices that stand for no text."
        remarks.append(Remark("missing-tasks", said, path=TASKS_PATH))
    if conflicts:
        said = f"{TASKS_PATH} has different texts for task {_few(conflicts)}."
        remarks.append(Remark("task-conflict", said, path=TASKS_PATH))
    if duplicates:
        said = f"{TASKS_PATH} lists a text again as task {_few(duplicates)}."
        remarks.append(Remark("task-duplicate", said, path=TASKS_PATH))
    if list(texts) != list(range(len(texts))):
        said = f"{TASKS_PATH} numbers its {counted(len(texts), 'task')} {_few(list(texts))}: "
        said += "readers of v3.0 find a task by its row."
        remarks.append(Remark("task-gap", said, path=TASKS_PATH))
    return TaskTable(listed, first_index, of_text, bool(listed))


def episode_length(path: Path, record: Mapping[str, Any], *, may_be_empty: bool = False) -> int:
    """Return an episode's number of frames.

    Args:
        path: ``episodes.jsonl``.
        record: A line of it.
        may_be_empty: Whether it may have no frames, as one that is left out.

    Raises:
        SourceError: It is no number of frames.
    """
    frames = record.get("length")
    if type(frames) is not int or not 1 - may_be_empty <= frames <= _LONGEST_EPISODE:
        raise SourceError(
            f"{path} gives episode {record['episode_index']} the length {shown(frames)}.",
            path=str(path),
            next_step="Mend the line: length is the episode's number of frames.",
        )
    return frames


def read_episode_table(root: Path, tasks: TaskTable, remarks: list[Remark]) -> EpisodeTable:
    """Read ``episodes.jsonl``.

    Args:
        root: The dataset folder.
        tasks: Its tasks.
        remarks: Where to say what is wrong.

    Raises:
        UnreadableSourceError: It is missing or malformed.
        SourceError: It lists no episodes, or one twice, or lengths or tasks make no sense.
    """
    # Every line is parsed below; here those that begin with their index need not be.
    lines = EpisodeLines(root / EPISODES_PATH, validated=True)
    if not len(lines):
        raise SourceError(
            f"{lines.path} lists no episodes.",
            path=str(lines.path),
            next_step="Restore the table from another copy of the dataset.",
        )
    length = np.empty(len(lines), dtype=np.int64)
    task = np.full(len(lines), NO_TASK, dtype=np.int64)
    several: dict[int, frozenset[int]] = {}
    has_one_text = np.zeros(len(lines), dtype=np.bool_)
    only_texts: set[str] = set()
    sightings = Sightings()
    for position, record in enumerate(lines):
        episode, texts = record["episode_index"], record.get("tasks")
        taken = next((key for key in record if key.startswith(_TAKEN_PREFIXES)), None)
        if taken is not None:
            raise SourceError(
                f"{lines.path} gives episode {episode} the key {shown(taken)}, which is the name "
                "of a column that v3.0 keeps for itself.",
                path=str(lines.path),
                next_step="Rename the key in every line, or take it out.",
            )
        frames = episode_length(lines.path, record, may_be_empty=True)
        if not frames:
            said = f"{EPISODES_PATH} gives episode {episode} the length 0."
            remarks.append(Remark("empty-episode", said, episode, path=EPISODES_PATH))
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise SourceError(
                f"{lines.path} gives episode {episode} tasks that are no list of texts.",
                path=str(lines.path),
                next_step="Mend the line: tasks is a list of the texts in tasks.jsonl.",
            )
        length[position] = frames
        known = [index for text in texts if (index := tasks.of_text.get(text)) is not None]
        if len(known) == len(texts) == 1:
            task[position] = known[0]
        else:
            several[position] = frozenset(known or [NO_TASK] * len(texts))
        has_one_text[position] = len(texts) == 1
        only_texts.update(texts if len(texts) == 1 else ())
        if len(texts) > 1:
            said = f"Episode {episode} has {len(texts)} tasks."
            sightings.add(Remark("several-tasks", said, path=EPISODES_PATH))
        if len(known) < len(texts) and tasks.is_there:
            unknown = next(text for text in texts if text not in tasks.of_text)
            said = f"Episode {episode} lists the task {shown(unknown)}, which {TASKS_PATH} lacks."
            helps = tasks_helps("task-mismatch", len(texts) == 1)
            sightings.add(Remark("task-mismatch", said, path=EPISODES_PATH, helps=helps))
    remarks.extend(sightings.remarks())
    table = EpisodeTable(lines.episode_index, length, task, several, has_one_text, len(only_texts))
    if table.has_gaps:
        expected = np.arange(len(lines))
        gap = int(expected[lines.episode_index != expected][0])
        said = f"{EPISODES_PATH} has no episode {gap}: its {counted(len(lines), 'episode')} end "
        said += f"with {int(lines.episode_index[-1])}."
        remarks.append(Remark("episode-gap", said, path=EPISODES_PATH))
    return table


def tasks_helps(code: str, has_one_text: bool) -> tuple[str, ...]:
    """Return the flags that help with an error of tasks.

    Args:
        code: The finding.
        has_one_text: Whether the episodes that it is about list one task each.
    """
    flags = CATALOGUE[code].repairs
    return tuple(flag for flag in flags if has_one_text or flag != TASKS_FROM_EPISODES)


def _few(numbers: Sequence[int]) -> str:
    shown_numbers = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{shown_numbers}, ..." if len(numbers) > _SHOWN else shown_numbers
