"""The results of looking at every file of a source: numbers in arrays, never files.

A scanner looks at one piece of a source and returns a `Look`. Pieces are looked at in parallel, and
`gather` combines the looks. A piece of v2.x is some episodes with all their files. A piece of v3.0
is one file with all its episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.dataset.findings import (
    SOURCE_CATALOGUE,
    TASKS_FROM_EPISODES,
    Observation,
    ObservationLog,
)
from leconvert.dataset.formats import Dataset
from leconvert.dataset.formats.v2 import EPISODES_PATH, TASKS_PATH
from leconvert.dataset.scan.file_checks import NOT_KNOWN, ClipFacts, RowFacts
from leconvert.model.values import DATA_STREAM, BoolArray, FileTable, IntArray, StreamScan
from leconvert.support.parallel import Spread, parallel_map
from leconvert.support.progress import Progress
from leconvert.support.values import dataclass

# The index for a text that the table of tasks lacks.
NO_TASK = -1
SLICE_NUMBERS = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("file_bytes", "mtime_ns", "inode"),
            *("frames", "roll_bytes", "misfit", "first", "size_bytes", "lead"),
        )
    ]
)
"""The facts of a slice: about its file as in `FileTable`, about itself as in `StreamScan`."""


class SeenSlices(NamedTuple):
    """n slices of one stream.

    Attributes:
        stream: The stream.
        places: Position of each slice's episode in the source, shape (n,).
        numbers: The facts of each slice: `SLICE_NUMBERS`, shape (n,).
        kinds: The kind of each slice: columns and types of a table, the decoder configuration of a
            clip; "" if a file cannot be read.
    """

    stream: str
    places: IntArray
    numbers: npt.NDArray[np.void]
    kinds: Sequence[str]


@dataclass(slots=True, eq=False)
class Look(ObservationLog):
    """The result of looking at one piece of a source: what was observed, and the facts.

    Attributes:
        num_files: Number of files that were looked at.
        slices: Their slices, stream by stream.
        rows: The facts of each table's rows, in the order of its slices.
        clips: The facts of clips, by decoder configuration.
    """

    num_files: int = 0
    slices: list[SeenSlices] = field(default_factory=list)
    rows: list[RowFacts] = field(default_factory=list)
    clips: dict[str, ClipFacts] = field(default_factory=dict)


@dataclass(eq=False)
class Scanner:
    """A scan's work on one piece of a source.

    Threads may share it, and it can be sent to another process, which makes a new one from its
    fields. Its caches are not sent, since another thread may be adding to them.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The results of looking at all files; arrays have shape (E,).

    Attributes:
        slices: Data first, then cameras; a group is a kind, see `settled_slices`.
        first_index: The column ``index`` of each table's first row; `NOT_KNOWN` if it is unknown or
            does not count by one.
        has_rows: Whether the table's rows were looked at.
        task: The only task of a table's rows; `NOT_KNOWN` if there are several or none.
        tasks: The tasks of tables with several, by position.
        log: All observations.
        clips: The facts of clips, by decoder configuration.
    """

    slices: Sequence[StreamScan]
    first_index: IntArray
    has_rows: BoolArray
    task: IntArray
    tasks: Mapping[int, tuple[int, ...]]
    log: ObservationLog
    clips: Mapping[str, ClipFacts]

    @classmethod
    def nothing(cls) -> Gathered:
        """Return the results without any file."""
        none = np.zeros(0, np.int64)
        return cls((), none, np.zeros(0, np.bool_), none, {}, ObservationLog(), {})

    def usual_clip(self, slices: StreamScan, kept: BoolArray) -> ClipFacts | None:
        """Return the most frequent facts of a stream's clips, the first if tied; else None."""
        kinds, firsts, counts = np.unique(
            slices.group[kept & slices.is_readable], return_index=True, return_counts=True
        )
        found: Counter[ClipFacts] = Counter()
        for place in np.argsort(firsts).tolist():
            found[self.clips[slices.kinds[kinds[place]]]] += int(counts[place])
        return max(found, key=found.__getitem__, default=None)

    @property
    def num_files(self) -> int:
        """Number of existing files."""
        return sum(int(np.count_nonzero(~stream.is_missing)) for stream in self.slices)


class TaskTable(NamedTuple):
    """The tasks of a source.

    Attributes:
        listed: (index, text) pairs, ascending.
        first_index: For each index, the first index with the same text: equal texts are one task.
        of_text: First index of each text.
        is_there: Whether the table exists and is not empty.
        path: The table, relative to the source.
    """

    listed: Sequence[tuple[int, str]]
    first_index: Mapping[int, int]
    of_text: Mapping[str, int]
    is_there: bool
    path: str = TASKS_PATH


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTable:
    """The episodes of a source; arrays have shape (E,).

    Attributes:
        index: Their indices, ascending.
        length: Number of frames, according to the table.
        task: First index of the only task that an episode lists; `NO_TASK` if ``tasks`` has the
            episode.
        tasks: By position, the tasks of an episode that lists several, none, or one that
            ``tasks.jsonl`` lacks (`NO_TASK`).
        has_one_text: Whether each episode lists exactly one task, even if ``tasks.jsonl`` lacks it.
        num_texts: The number of different texts.
        listed: Indices of all episodes of the source, selected or not.
        path: The table, relative to the source.
    """

    index: IntArray
    length: IntArray
    task: IntArray
    tasks: Mapping[int, frozenset[int]]
    has_one_text: npt.NDArray[np.bool_]
    num_texts: int
    listed: IntArray
    path: str = EPISODES_PATH

    @property
    def has_gaps(self) -> bool:
        """Whether indices do not run from 0 without gaps."""
        return int(self.index[-1]) != len(self.index) - 1

    def lists(self, index: int) -> bool:
        """Return whether the source has an episode with this index, selected or not."""
        last = int(self.listed[-1])
        if index > last or last == len(self.listed) - 1:  # called for every file
            return index <= last
        return bool(self.listed[np.searchsorted(self.listed, index)] == index)


def tasks_helps(code: str, has_one_text: bool) -> tuple[str, ...]:
    """Return the flags that help with an error of tasks."""
    flags = SOURCE_CATALOGUE[code].repairs
    return tuple(flag for flag in flags if has_one_text or flag != TASKS_FROM_EPISODES)


class ScannedSource(NamedTuple):
    """A source of any version, read and looked at; later steps interpret the facts.

    Attributes:
        dataset: The unchanged source.
        episodes: Its episodes.
        tasks: Its tasks.
        gathered: The results of looking at its files; `Gathered.nothing` if its templates can name
            none.
        remarks: Observations about its tables.
        reads_stats: Whether it has statistics of episodes that were looked at.
    """

    dataset: Dataset
    episodes: EpisodeTable
    tasks: TaskTable
    gathered: Gathered
    remarks: list[Observation]
    reads_stats: bool


def gather(
    scanner: Callable[..., Look],
    pieces: Sequence[tuple[int, ...]],
    keys: Mapping[str, IntArray],
    kept: BoolArray,
    progress: Progress,
    spread: Spread | None,
    *,
    weights: Sequence[int],
    num_files: int,
) -> Gathered:
    """Look at every piece of a source, and combine the results for the kept episodes.

    This holds about 100 bytes per episode and stream.

    Args:
        scanner: Looks at a piece; a `Scanner`, so other processes can use it.
        pieces: The pieces, as arguments of the scanner.
        keys: `FileTable.key` of each slice by stream, shape (E,), data first.
        kept: Whether each episode is looked at, shape (E,).
        progress: Receives the progress.
        spread: Threads and processes; None to decide by the cost of the first pieces.
        weights: Number of episodes in each piece.
        num_files: Number of files that are looked at, for the progress.
    """
    num_episodes = len(kept)
    numbers = {stream: np.zeros(num_episodes, SLICE_NUMBERS) for stream in keys}
    group = {stream: np.zeros(num_episodes, dtype=np.int64) for stream in keys}
    kinds: dict[str, dict[str, int]] = {stream: {} for stream in keys}
    first_index = np.full(num_episodes, NOT_KNOWN, dtype=np.int64)
    has_rows: BoolArray = np.zeros(num_episodes, np.bool_)
    task = np.full(num_episodes, NOT_KNOWN, dtype=np.int64)
    tasks: dict[int, tuple[int, ...]] = {}
    log, clips = ObservationLog(), dict[str, ClipFacts]()
    with (
        progress.stage("scan", num_files, "files") as stage,
        closing(parallel_map(scanner, pieces, spread, weights=weights)) as looks,
    ):
        for look in looks:
            for seen in look.slices:
                known = kinds[seen.stream]
                numbers[seen.stream][seen.places] = seen.numbers
                group[seen.stream][seen.places] = [
                    known.setdefault(kind, len(known)) for kind in seen.kinds
                ]
                if seen.stream != DATA_STREAM:
                    continue
                for place, facts in zip(seen.places.tolist(), look.rows, strict=True):
                    first_index[place] = facts.first_index
                    has_rows[place] = facts.was_looked_at
                    if len(facts.tasks) == 1:
                        task[place] = facts.tasks[0]
                    elif facts.tasks:
                        tasks[place] = facts.tasks
            log.merge(look)
            clips |= look.clips
            stage.advance(look.num_files)
    own = np.flatnonzero(kept)
    position = np.cumsum(kept) - 1  # of each episode among the kept ones
    return Gathered(
        [
            _stream_scan(stream, key, numbers.pop(stream), group.pop(stream), kinds[stream], own)
            for stream, key in keys.items()
        ],
        first_index[own],
        has_rows[own],
        task[own],
        {int(position[place]): found for place, found in tasks.items() if kept[place]},
        log,
        clips,
    )


def _stream_scan(
    stream: str,
    key: IntArray,
    numbers: npt.NDArray[np.void],
    group: IntArray,
    kinds: Mapping[str, int],
    own: IntArray,
) -> StreamScan:
    keys, firsts, file = np.unique(key[own], return_index=True, return_inverse=True)
    of_files = numbers[own[firsts]]
    files = FileTable(
        keys, *(of_files[name].copy() for name in ("file_bytes", "mtime_ns", "inode"))
    )
    columns = ("first", "frames", "size_bytes", "roll_bytes", "lead", "misfit")
    of_slices = {name: numbers[name][own] for name in columns}
    return StreamScan(
        stream, files, file.astype(np.int64), group=group[own], **of_slices, kinds=tuple(kinds)
    )


def settled_slices(slices: StreamScan, kept: BoolArray) -> StreamScan:
    """Return the slices of the kept episodes, as a plan has them.

    Groups of clips are numbered in order of appearance, tables form one group, and missing files
    have no bytes.
    """
    found = slices.select(np.flatnonzero(kept))
    files = replace(found.files, size_bytes=np.maximum(found.files.size_bytes, 0))
    if slices.stream == DATA_STREAM:
        return replace(found, files=files, group=np.zeros_like(found.group), kinds=())
    numbers, firsts, group = np.unique(found.group, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    kinds = tuple(slices.kinds[number] for number in numbers[order].tolist())
    return replace(found, files=files, group=rank[group], kinds=kinds)
