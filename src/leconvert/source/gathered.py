"""What a look at every file found, gathered block by block: numbers, never files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leconvert.model import IntArray, StreamScan
from leconvert.source.clip_checks import ClipFacts
from leconvert.source.looker import NO_FILE, Block
from leconvert.source.seen import Remark, Sightings
from leconvert.source.table_checks import NOT_KNOWN

__all__ = ["Gathered", "Gatherer", "Slices"]

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """The slices of one stream.

    Attributes:
        stream: The stream.
        numbers: Size, time, inode, frames and roll bytes, shape (E, 5).
        kind: Number of each slice's kind, in order of appearance, shape (E,).
        kinds: The kinds: columns and types of a table, the decoder configuration of a clip, empty
            where a file cannot be read.
    """

    stream: str
    numbers: IntArray
    kind: IntArray
    kinds: Sequence[str]

    @property
    def is_missing(self) -> BoolArray:
        """Whether there is no such file, shape (E,)."""
        missing: BoolArray = self.numbers[:, 0] == NO_FILE
        return missing

    @property
    def is_readable(self) -> BoolArray:
        """Whether the file could be read, shape (E,)."""
        readable = np.array([bool(kind) for kind in self.kinds], dtype=np.bool_)
        found: BoolArray = readable[self.kind]
        return found

    def scan(self, kept: BoolArray, *, grouped: bool) -> StreamScan:
        """Return the scan of the episodes that are kept.

        Args:
            kept: Whether each is, shape (E,).
            grouped: Whether a new kind begins a new output file.
        """
        size_bytes, mtime_ns, inode, frames, roll_bytes = self.numbers[kept].T.copy()
        group: IntArray = np.zeros(len(size_bytes), dtype=np.int64)
        if grouped and len(group):
            _, firsts, numbers = np.unique(self.kind[kept], return_index=True, return_inverse=True)
            order: IntArray = np.empty(len(firsts), dtype=np.int64)
            order[np.argsort(firsts)] = np.arange(len(firsts))
            group = order[numbers]
        return StreamScan(
            self.stream, np.maximum(size_bytes, 0), mtime_ns, inode, frames, roll_bytes, group
        )


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """What was found in all files; arrays have shape (E,).

    Attributes:
        slices: Data first, then cameras.
        first_index: The column ``index`` of each table's first row, `NOT_KNOWN` where it is not
            known or not counted by one.
        has_rows: Whether the table's rows were looked at.
        task: The only task of a table's rows, `NOT_KNOWN` where there are several or none.
        tasks: The tasks of those with several, by position.
        remarks: What was said about single episodes.
        sightings: What was said about many.
        missing_stats: Features whose statistics are missing, and in which episodes.
        stale_stats: Those whose statistics are stale, likewise.
        clips: What clips of each decoder configuration are.
    """

    slices: Sequence[Slices]
    first_index: IntArray
    has_rows: BoolArray
    task: IntArray
    tasks: Mapping[int, tuple[int, ...]]
    remarks: list[Remark]
    sightings: Sightings
    missing_stats: Mapping[str, Sequence[int]]
    stale_stats: Mapping[str, Sequence[int]]
    clips: Mapping[str, ClipFacts]

    def usual_clip(self, slices: Slices, kept: BoolArray) -> ClipFacts | None:
        """Return what most clips of a stream are; of as many the first. None without any.

        Args:
            slices: The stream's.
            kept: Whether each episode is kept, shape (E,).
        """
        kinds, firsts, counts = np.unique(
            slices.kind[kept & slices.is_readable], return_index=True, return_counts=True
        )
        found: Counter[ClipFacts] = Counter()
        for place in np.argsort(firsts).tolist():
            found[self.clips[slices.kinds[kinds[place]]]] += int(counts[place])
        return max(found, key=found.__getitem__, default=None)

    @property
    def num_files(self) -> int:
        """Files that are there."""
        return sum(int(np.count_nonzero(~stream.is_missing)) for stream in self.slices)


class Gatherer:
    """Takes blocks in order; some 100 bytes an episode and stream are kept of them.

    Args:
        streams: The streams of each block.
        num_episodes: Episodes of all blocks.
    """

    def __init__(self, streams: Sequence[str], num_episodes: int) -> None:
        self._streams = streams
        self._numbers = [np.zeros((num_episodes, 5), dtype=np.int64) for _ in streams]
        self._kind = [np.zeros(num_episodes, dtype=np.int64) for _ in streams]
        self._kinds: list[dict[str, int]] = [{} for _ in streams]
        self._first_index = np.full(num_episodes, NOT_KNOWN, dtype=np.int64)
        self._has_rows = np.zeros(num_episodes, dtype=np.bool_)
        self._task = np.full(num_episodes, NOT_KNOWN, dtype=np.int64)
        self._tasks: dict[int, tuple[int, ...]] = {}
        self._remarks: list[Remark] = []
        self._sightings = Sightings()
        self._missing_stats: dict[str, list[int]] = {}
        self._stale_stats: dict[str, list[int]] = {}
        self._clips: dict[str, ClipFacts] = {}
        self._done = 0

    def add(self, block: Block) -> int:
        """Add the next block; return how many files it looked at."""
        first, stop = self._done, self._done + len(block.rows)
        for place, (numbers, kinds) in enumerate(zip(block.numbers, block.kinds, strict=True)):
            known = self._kinds[place]
            self._numbers[place][first:stop] = numbers
            self._kind[place][first:stop] = [known.setdefault(kind, len(known)) for kind in kinds]
        for position, facts in enumerate(block.rows, first):
            self._first_index[position] = facts.first_index
            self._has_rows[position] = facts.was_looked_at
            if len(facts.tasks) == 1:
                self._task[position] = facts.tasks[0]
            elif facts.tasks:
                self._tasks[position] = facts.tasks
        self._remarks += block.remarks
        self._sightings.merge(block.sightings)
        for name, episodes in block.missing_stats.items():
            self._missing_stats.setdefault(name, []).extend(episodes)
        for name, episodes in block.stale_stats.items():
            self._stale_stats.setdefault(name, []).extend(episodes)
        self._clips |= block.clips
        self._done = stop
        return len(block.rows) * len(self._streams)

    def gathered(self) -> Gathered:
        """Return everything."""
        slices = [
            Slices(*columns)
            for columns in zip(
                self._streams, self._numbers, self._kind, map(tuple, self._kinds), strict=True
            )
        ]
        return Gathered(
            slices,
            self._first_index,
            self._has_rows,
            self._task,
            self._tasks,
            self._remarks,
            self._sightings,
            self._missing_stats,
            self._stale_stats,
            self._clips,
        )
