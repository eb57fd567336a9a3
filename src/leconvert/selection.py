"""Which episodes of a source are converted: the user's choice, and what it comes to."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import UsageError
from leconvert.text import count, shown

__all__ = ["EpisodeRanges", "EpisodeSelection"]

_LISTED = 3
_ITEM = re.compile(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?")
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EpisodeRanges:
    """Some episodes of a source by their indices there.

    Attributes:
        ranges: First and last episode of each range; ascending, with a gap between any two.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> EpisodeRanges:
        """Return ranges in any order, which may overlap, as one value."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def of_episodes(cls, episodes: IntArray) -> EpisodeRanges:
        """Return the ranges of some episodes, given ascending."""
        breaks = np.flatnonzero(np.diff(episodes) != 1)
        firsts = episodes[np.concatenate(([0], breaks + 1))] if len(episodes) else episodes
        lasts = episodes[np.concatenate((breaks, [-1]))] if len(episodes) else episodes
        return cls(tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    def __str__(self) -> str:
        return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self.ranges)

    def __contains__(self, episode: int) -> bool:
        place = bisect_right(self.ranges, episode, key=lambda ends: ends[0]) - 1
        return place >= 0 and episode <= self.ranges[place][1]

    def holds(self, episodes: IntArray) -> BoolArray:
        """Return whether each episode is one of them, shape (E,)."""
        ends = np.array(self.ranges, dtype=np.int64).reshape(-1, 2)
        place = np.searchsorted(ends[:, 0], episodes, side="right") - 1
        held: BoolArray = (place >= 0) & (episodes <= ends[place, 1]) if len(ends) else place >= 0
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSelection:
    """Which episodes are converted; all by default. They keep the order of the source.

    Episodes have the numbers that the source gives them.

    Attributes:
        episodes: Only these: numbers and ranges such as ``0-99,120``; None for all.
        exclude_episodes: All but these, likewise.
        exclude_tasks: None of those that list one of these tasks.

    Raises:
        UsageError: A list is none, or ``episodes`` and ``exclude_episodes`` are both given.
    """

    episodes: str | None = None
    exclude_episodes: str | None = None
    exclude_tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.episodes is not None and self.exclude_episodes is not None:
            raise UsageError(
                "--episodes and --exclude-episodes cannot be given together.",
                next_step="Give the episodes that are converted, or those that are not.",
            )
        self._lists()

    def __bool__(self) -> bool:
        return self != EpisodeSelection()

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping of what is given; the same for equal selections."""
        record = {key: value for key, value in asdict(self).items() if value}
        for flag, ranges in self._lists():
            key = flag.removeprefix("--").replace("-", "_")
            record[key] = str(EpisodeRanges.of(ranges))
        if self.exclude_tasks:
            record["exclude_tasks"] = sorted(set(self.exclude_tasks))
        return record

    def keeps(
        self, episode_index: IntArray, tasks: Callable[[], Iterable[Sequence[str]]]
    ) -> BoolArray:
        """Return whether each episode of a source is converted, shape (E,).

        Args:
            episode_index: Indices of all episodes, ascending, shape (E,).
            tasks: Gives the tasks of each.

        Raises:
            UsageError: The source lacks an episode or a task that is named, or none is left.
        """
        kept = np.ones(len(episode_index), dtype=np.bool_)
        for flag, ranges in self._lists():
            _check_known(flag, ranges, episode_index)
            held = EpisodeRanges.of(ranges).holds(episode_index)
            kept &= held if self.episodes is not None else ~held
        if self.exclude_tasks:
            kept &= ~_of_tasks(self.exclude_tasks, tasks())
        if not kept.any():
            raise UsageError(
                "No episode is left to convert.",
                next_step="Take fewer away; `leconvert convert` without a selection takes all.",
            )
        return kept

    def _lists(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Return the flags that are given, with the first and last episode of each item."""
        given = (("--episodes", self.episodes), ("--exclude-episodes", self.exclude_episodes))
        return [(flag, _parsed(text, flag)) for flag, text in given if text is not None]


def _parsed(text: str, flag: str) -> list[tuple[int, int]]:
    found = [_ITEM.fullmatch(item) for item in text.split(",")]
    ranges = [(int(item[1]), int(item[2] or item[1])) for item in found if item is not None]
    if len(ranges) < len(found) or any(first > last for first, last in ranges):
        raise UsageError(
            f"{flag} takes episode numbers and ranges such as 0-99,120, not {shown(text)}."
        )
    return ranges


def _check_known(flag: str, ranges: Sequence[tuple[int, int]], episode_index: IntArray) -> None:
    """Refuse episodes that a source lacks; of a range both ends must be there."""
    ends = np.unique(np.array(ranges, dtype=np.int64))
    unknown = ends[~np.isin(ends, episode_index)].tolist()
    if not unknown:
        return
    listed = ", ".join(map(str, unknown[:_LISTED])) + (", ..." if len(unknown) > _LISTED else "")
    one = "episode" if len(unknown) == 1 else "episodes"
    first, last = int(episode_index[0]), int(episode_index[-1])
    raise UsageError(
        f"{flag}: the dataset has no {one} {listed}.",
        next_step=f"It has {count(len(episode_index), 'episode')}, from {first} to {last}.",
    )


def _of_tasks(wanted: Sequence[str], tasks: Iterable[Sequence[str]]) -> BoolArray:
    """Return whether each episode lists one of some tasks; refuse a task that none lists."""
    known: set[str] = set()
    found = []
    for texts in tasks:
        known.update(texts)
        found.append(any(text in wanted for text in texts))
    for text in wanted:
        if text not in known:
            near = difflib.get_close_matches(text, known, _LISTED, cutoff=0) or sorted(known)
            raise UsageError(
                f"--exclude-task: no episode lists the task {shown(text)}.",
                next_step=f"Some that are listed: {', '.join(map(shown, near[:_LISTED]))}.",
            )
    return np.array(found, dtype=np.bool_)
