"""Selections of a source's episodes: the user's choice, and the episodes that it selects."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any

from leconvert.support.errors import UsageError
from leconvert.support.extras import lazy_module
from leconvert.support.flags import flag, several
from leconvert.support.text import count, numbered, shown
from leconvert.support.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = lazy_module("numpy")

_LISTED = 3
_ITEM = re.compile(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?")
type IntArray = npt.NDArray[np.int64]
type BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EpisodeRanges:
    """A set of episodes of a source, by their indices there.

    Attributes:
        ranges: First and last episode of each range; ascending, with a gap between any two.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> EpisodeRanges:
        """Return the set for ranges in any order, which may overlap."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def of_episodes(cls, episodes: IntArray) -> EpisodeRanges:
        """Return the ranges of some episodes, given in ascending order."""
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
        """Return which episodes are in the set, shape (E,)."""
        ends = np.array(self.ranges, dtype=np.int64).reshape(-1, 2)
        place = np.searchsorted(ends[:, 0], episodes, side="right") - 1
        held: BoolArray = (place >= 0) & (episodes <= ends[place, 1]) if len(ends) else place >= 0
        return held


@dataclass(frozen=True, slots=True)
class FrameInterval:
    """The frames of one episode that are kept, counted from 0.

    Attributes:
        episode: The episode's number in the source.
        first: The first frame that is kept.
        stop: The frame after the last; None keeps all frames from ``first`` on.

    Raises:
        UsageError: The interval holds no frame.
    """

    episode: int
    first: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        for name in ("episode", "first", "stop"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, index(given))  # NumPy's numbers, for records
        if self.first < 0 or (self.stop is not None and self.stop <= self.first):
            raise UsageError(
                f"--frames {self.first}:{'' if self.stop is None else self.stop} keeps no frame.",
                next_step="Write FROM:TO. FROM is the first frame to keep, counted from 0. TO is "
                "the last frame to keep plus 1.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSelection:
    """The user's choice of episodes; all by default. Episodes keep the order of the source.

    Episodes are named by their numbers in the source.

    Attributes:
        episodes: Episodes to convert, numbers and ranges such as ``0-99,120``; None for all.
        exclude_episodes: Episodes to leave out, in the same form.
        exclude_tasks: Tasks; episodes that list one of them are left out.
        frames: The frames to keep of some episodes; other episodes keep all.

    Raises:
        UsageError: A list cannot be parsed, ``episodes`` and ``exclude_episodes`` are both given,
            an episode has two intervals, or ``exclude_tasks`` is a text.
    """

    episodes: str | None = flag(None, "convert only these episodes, such as 0-99,120", "LIST")
    exclude_episodes: str | None = flag(None, "convert all episodes but these", "LIST")
    exclude_tasks: tuple[str, ...] = flag(
        (),
        "convert no episode that lists this task; may be given several times",
        "TEXT",
        names=("--exclude-task",),
    )
    frames: tuple[FrameInterval, ...] = ()

    def __post_init__(self) -> None:
        if self.episodes is not None and self.exclude_episodes is not None:
            raise UsageError(
                "--episodes and --exclude-episodes exclude each other.",
                next_step="Give one of the two options.",
            )
        for name in ("exclude_tasks", "frames"):
            object.__setattr__(self, name, several(name, getattr(self, name)))
        self._lists()
        episodes = [interval.episode for interval in self.frames]
        for episode in episodes:
            if episodes.count(episode) > 1:
                raise UsageError(
                    f"--episode {episode} is given twice.",
                    next_step="Give each episode once, with one --frames.",
                )

    def __bool__(self) -> bool:
        return self != EpisodeSelection()

    @property
    def takes_some(self) -> bool:
        """Whether the selection can leave out whole episodes."""
        return replace(self, frames=()) != EpisodeSelection()

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping; equal selections give equal mappings."""
        record = {key: value for key, value in asdict(self).items() if value}
        for name, ranges in self._lists():
            key = name.removeprefix("--").replace("-", "_")
            record[key] = str(EpisodeRanges.of(ranges))
        if self.exclude_tasks:
            record["exclude_tasks"] = sorted(set(self.exclude_tasks))
        if self.frames:
            record["frames"] = [
                list(astuple(interval))
                for interval in sorted(self.frames, key=attrgetter("episode"))
            ]
        return record

    def kept_frames(self, episode_index: IntArray, length: IntArray) -> dict[int, tuple[int, int]]:
        """Return the first frame kept, and the one after the last, of each trimmed episode.

        Args:
            episode_index: Indices of the episodes that are converted, ascending, shape (E,).
            length: Number of frames of each episode, shape (E,).

        Raises:
            UsageError: An episode does not exist, or an interval exceeds it or keeps all of it.
        """
        kept = {}
        for interval in sorted(self.frames, key=attrgetter("episode")):
            place = int(np.searchsorted(episode_index, interval.episode))
            if place == len(episode_index) or episode_index[place] != interval.episode:
                raise UsageError(
                    f"The dataset has no episode {interval.episode} (--episode).",
                    next_step=f"It has {count(len(episode_index), 'episode')}, from "
                    f"{episode_index[0]} to {episode_index[-1]}.",
                )
            has, first = int(length[place]), interval.first
            stop = has if interval.stop is None else interval.stop
            said = f"Episode {interval.episode} has {count(has, 'frame')}"
            if first >= has or stop > has:
                raise UsageError(
                    f"{said}; --frames {first}:{stop} lies outside.",
                    next_step=f"Its frames are 0:{has}.",
                )
            if (first, stop) == (0, has):
                raise UsageError(
                    f"{said}; --frames {first}:{stop} keeps all of them, so nothing would change.",
                    next_step="Give fewer frames, or leave this --episode out.",
                )
            kept[interval.episode] = first, stop
        return kept

    def keeps(
        self, episode_index: IntArray, tasks: Callable[[], Iterable[Sequence[str]]]
    ) -> BoolArray:
        """Return which episodes of a source are converted, shape (E,).

        Args:
            episode_index: Indices of all episodes, ascending, shape (E,).
            tasks: Returns the tasks of each episode.

        Raises:
            UsageError: The source lacks an episode or a task that is named, or no episode is left.
        """
        kept = np.ones(len(episode_index), dtype=np.bool_)
        for name, ranges in self._lists():
            _check_known(name, ranges, episode_index)
            held = EpisodeRanges.of(ranges).holds(episode_index)
            kept &= held if self.episodes is not None else ~held
        if self.exclude_tasks:
            kept &= ~_of_tasks(self.exclude_tasks, tasks())
        if not kept.any():
            raise UsageError(
                "The selection contains no episode.",
                next_step="Exclude fewer episodes. Without a selection `leconvert convert` takes "
                "all.",
            )
        return kept

    def _lists(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Return each given flag with the first and last episode of each item of its list."""
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
    """Refuse episodes that a source lacks; both ends of a range must exist."""
    ends = np.unique(np.array(ranges, dtype=np.int64))
    unknown = ends[~np.isin(ends, episode_index)].tolist()
    if not unknown:
        return
    listed = ", ".join(map(str, unknown[:_LISTED])) + (", ..." if len(unknown) > _LISTED else "")
    first, last = int(episode_index[0]), int(episode_index[-1])
    raise UsageError(
        f"The dataset has no {numbered('episode', listed)} ({flag}).",
        next_step=f"It has {count(len(episode_index), 'episode')}, from {first} to {last}.",
    )


def _of_tasks(wanted: Sequence[str], tasks: Iterable[Sequence[str]]) -> BoolArray:
    """Return which episodes list one of the tasks; refuse a task that no episode lists."""
    known: set[str] = set()
    found = []
    for texts in tasks:
        known.update(texts)
        found.append(any(text in wanted for text in texts))
    for text in wanted:
        if text not in known:
            import difflib

            near = difflib.get_close_matches(text, known, _LISTED, cutoff=0) or sorted(known)
            raise UsageError(
                f"No episode has the task {shown(text)} (--exclude-task).",
                next_step=f"Tasks of this dataset: {', '.join(map(shown, near[:_LISTED]))}.",
            )
    return np.array(found, dtype=np.bool_)


_FRAMES = re.compile(r"\s*([0-9]{0,18})\s*:\s*([0-9]{0,18})\s*")


def parse_frames(episodes: Sequence[int], frames: Sequence[str]) -> tuple[FrameInterval, ...]:
    """Parse ``--episode N --frames FROM:TO``, given any number of times.

    Args:
        episodes: The values of ``--episode``.
        frames: The values of ``--frames``, as many.

    Raises:
        UsageError: The numbers of values differ, or an interval cannot be parsed.
    """
    if len(episodes) != len(frames) or not frames:
        raise UsageError(
            f"--episode is given {count(len(episodes), 'time')} and --frames "
            f"{count(len(frames), 'time')}.",
            next_step="Give one --frames FROM:TO for each --episode N.",
        )
    found = []
    for episode, text in zip(episodes, frames, strict=True):
        match = _FRAMES.fullmatch(text)
        if match is None or not (match[1] or match[2]):
            raise UsageError(
                f"--frames takes FROM:TO, such as 10:50, not {shown(text)}.",
                next_step="FROM is the first frame to keep, counted from 0. TO is the last frame "
                "to keep plus 1. FROM or TO may be left out.",
            )
        found.append(
            FrameInterval(episode, int(match[1] or 0), int(match[2]) if match[2] else None)
        )
    return tuple(found)


# Splits: several selections of one source, so that every episode is in exactly one.


_PART_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
_SHARE = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.")
# Shares may be rounded: 0.33 three times is meant as thirds.
_SHARES_TOLERANCE = Fraction(1, 50)
_INTO_HELP = (
    "Write shares, such as --into train=0.9,val=0.1, or episode numbers, such as --into "
    "train=0-99,val=100-120. A number with a decimal point is a share."
)


def parse_parts(texts: Iterable[str]) -> dict[str, float | str]:
    """Parse the parts of ``--into``: ``NAME=SHARE`` and ``NAME=EPISODES``, in the given order.

    Args:
        texts: Each holds one or several parts, separated by commas. An item without ``=`` continues
            the list of the part before it.

    Raises:
        UsageError: A name is missing or given twice.
    """
    parts: dict[str, str] = {}
    name = ""
    for text in texts:
        for place, item in enumerate(text.split(",")):
            found, is_part, value = item.rpartition("=")
            if is_part:
                name = found.strip()
                if name in parts:
                    raise UsageError(f"--into names the part {shown(name)} twice.")
                parts[name] = value.strip()
            elif place:
                parts[name] += f",{item.strip()}"
            else:
                raise UsageError(
                    f"--into {shown(text)} has no name for a part.", next_step=_INTO_HELP
                )
    return {
        name: float(value) if _SHARE.fullmatch(value) else value for name, value in parts.items()
    }


def split_episodes(
    into: Mapping[str, float | str], episode_index: IntArray, *, seed: int = 0
) -> dict[str, EpisodeRanges]:
    """Return the episodes of each part; every episode of a source is in exactly one part.

    For shares, episodes are ordered by the SHA-256 of ``seed`` and their number, and each part
    takes the next ones. Each part differs from its share by less than one episode. The parts depend
    on the seed and the episode numbers alone, so they are the same on any machine.

    Args:
        into: Name of each part, and its share of the episodes or a list such as ``0-99,120``.
        episode_index: Indices of all episodes, ascending, shape (E,).
        seed: Decides which episodes a share takes.

    Raises:
        UsageError: A name cannot be a folder's, shares and lists are mixed, an episode is in no
            part or in two, or the shares do not add up to 1.
    """
    for name in into:
        if not _PART_NAME.fullmatch(name):
            raise UsageError(
                f"{shown(name)} cannot be the name of a part, since the part becomes a folder of "
                "that name.",
                next_step="Use letters, digits, '_', '-' and '.'.",
            )
    if not into:
        raise UsageError("No parts are given.", next_step=_INTO_HELP)
    lists = {name: value for name, value in into.items() if isinstance(value, str)}
    if len(lists) == len(into):
        return _listed_parts(lists, episode_index)
    if lists:
        raise UsageError(
            "--into mixes shares and episode numbers: the part "
            f"'{shown(next(iter(lists)))}' has episode numbers, but another part has a share.",
            next_step=_INTO_HELP,
        )
    shares = {name: float(value) for name, value in into.items()}
    return _shared_parts(shares, episode_index, seed)


def _listed_parts(lists: Mapping[str, str], episode_index: IntArray) -> dict[str, EpisodeRanges]:
    owner = np.full(len(episode_index), -1, dtype=np.int64)
    names = list(lists)
    for number, (name, text) in enumerate(lists.items()):
        ranges = _parsed(text, f"--into {name}")
        _check_known(f"--into {name}", ranges, episode_index)
        held = EpisodeRanges.of(ranges).holds(episode_index)
        twice = np.flatnonzero(held & (owner >= 0))
        if len(twice):
            raise UsageError(
                f"--into puts episode {episode_index[twice[0]]} into two parts: "
                f"{shown(names[owner[twice[0]]])} and {shown(name)}.",
                next_step="Give every episode to one part.",
            )
        owner[held] = number
    left = EpisodeRanges.of_episodes(episode_index[owner < 0])
    if left.ranges:
        number = int((owner < 0).sum())
        rest = next(
            name
            for name in chain(["rest"], (f"rest{n}" for n in range(2, len(lists) + 3)))
            if name not in lists
        )
        raise UsageError(
            f"{count(number, 'episode is', 'episodes are')} in no part of --into: "
            f"{numbered('episode', left)}.",
            next_step=f"Add a part for the rest, such as --into {rest}={left}. To leave episodes "
            "out, convert each part by itself with --episodes.",
        )
    return {
        name: EpisodeRanges.of_episodes(episode_index[owner == number])
        for number, name in enumerate(names)
    }


def _shared_parts(
    shares: Mapping[str, float], episode_index: IntArray, seed: int
) -> dict[str, EpisodeRanges]:
    helps = "Give every part its share of the episodes, such as train=0.9,val=0.1."
    for share in shares.values():
        if not 0 < share <= 1:
            raise UsageError(
                f"A share of --into must be above 0 and at most 1, not {share:g}.", next_step=helps
            )
    total = sum(map(Fraction, shares.values()), Fraction())
    if abs(total - 1) > _SHARES_TOLERANCE:
        raise UsageError(
            f"The shares of --into add up to {float(total):g}, not to 1.", next_step=helps
        )
    dealt = sorted(
        episode_index.tolist(),
        key=lambda episode: hashlib.sha256(f"{seed}:{episode}".encode()).digest(),
    )
    ends = accumulate(map(Fraction, shares.values()))
    # Halves go up: each part then differs from its share by less than one episode.
    edges = [0, *(int(len(dealt) * end / total + Fraction(1, 2)) for end in ends)]
    parts = {}
    for (name, share), (first, stop) in zip(shares.items(), pairwise(edges), strict=True):
        if first == stop:
            raise UsageError(
                f"{shown(name)} would get no episode: its share {share:g} of "
                f"{count(len(dealt), 'episode')} is less than one (--into).",
                next_step="Give this part a larger share, or list its episodes.",
            )
        parts[name] = EpisodeRanges.of_episodes(np.array(sorted(dealt[first:stop]), np.int64))
    return parts
