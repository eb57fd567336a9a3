"""Cut data and all cameras at the same episodes, for loading.

Files are planned, not filled: it is counted how many are needed, and the frames are then shared
out evenly over so many. So there is no small rest at the end, and loader workers that take a file
each end at about the same time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from leconvert.model.float32_tolerance import frames_always_in_reach, frames_out_of_reach
from leconvert.model.values import IntArray, StreamScan, camera_of

_LARGEST_LIMIT_BYTES = 2**62
_EPISODES_LOOKED_AT_FIRST = 16
# Where frames out of reach force cuts that even shares did not foresee, shares are made anew;
# among many files one small rest is not worth it.
_MOST_TRIALS = 4
_MANY_FILES = 100


def roll_together(
    streams: Sequence[StreamScan],
    limits_bytes: Sequence[float],
    length: IntArray,
    fps: Fraction,
    *,
    min_files: int,
) -> IntArray:
    """Cut all streams into output files that start at the same episodes.

    A file holds at least one episode, and after its first none that

    - would bring any stream to its limit or beyond,
    - needs another decoder configuration in any camera than the one before it, or
    - would have a frame that LeRobot refuses for its place in the file
      (`leconvert.model.float32_tolerance`).

    There are at least ``min_files`` of them, as far as there are episodes. Within a run of equal
    decoder configurations they hold about equal numbers of frames: where neither a limit nor a
    frame out of reach forbids it and no episode is longer than a file's mean, they differ from
    that mean by less than the longest episode.

    The time it takes grows with the number of episodes, and with the number of frames only where
    these are in doubt.

    Returns:
        First position of each file and, last, E; shape (files + 1,).
    """
    num_episodes = len(length)
    changes = np.zeros(num_episodes - 1, np.bool_)
    for stream in streams:
        changes |= stream.group[1:] != stream.group[:-1]
    edges = np.concatenate(([0], np.flatnonzero(changes) + 1, [num_episodes]))
    rules = _Rules(streams, limits_bytes, length, fps, edges)
    runs = list(pairwise(edges.tolist()))
    files = _share_out(
        [rules.fewest_files(first, stop) for first, stop in runs],
        [stop - first for first, stop in runs],
        [rules.frames(first, stop) for first, stop in runs],
        min_files,
    )
    starts: list[int] = []
    for (first, stop), wanted in zip(runs, files, strict=True):
        starts += _cut_evenly(rules, first, stop, wanted)
    return np.array([*starts, num_episodes], dtype=np.int64)


def _share_out(
    fewest: Sequence[int], episodes: Sequence[int], frames: Sequence[int], min_files: int
) -> list[int]:
    """Return files a run, at least ``min_files`` in all: one more where they are largest."""
    files = list(fewest)
    largest = [
        (-frames[run] / files[run], run) for run in range(len(files)) if files[run] < episodes[run]
    ]
    heapq.heapify(largest)
    for _ in range(min_files - sum(files)):
        if not largest:
            break
        _, run = largest[0]
        files[run] += 1
        if files[run] < episodes[run]:
            heapq.heapreplace(largest, (-frames[run] / files[run], run))
        else:
            heapq.heappop(largest)
    return files


def _cut_evenly(rules: _Rules, first: int, stop: int, files: int) -> list[int]:
    """Return the first positions of at least so many files, as even as the rules allow."""
    starts: list[int] = []
    for _ in range(_MOST_TRIALS):
        starts = _cut_towards_shares(rules, first, stop, files)
        if len(starts) == files or len(starts) > _MANY_FILES:
            break
        files = len(starts)
    return starts


def _cut_towards_shares(rules: _Rules, first: int, stop: int, files: int) -> list[int]:
    """Cut at the episode nearest to each equal share, or as near to it as the rules allow.

    Shares are those of the frames from ``anchor`` on: where a cut had to be elsewhere, what
    remains is shared out anew, so that the last file does not bear the difference.
    """
    starts: list[int] = []
    anchor, shares, taken = first, files, 0
    while first < stop:
        if shares - taken < rules.files_by_size(first):
            # Frames out of reach took files that the sizes of the rest need.
            anchor, shares, taken = first, rules.files_by_size(first), 0
        starts.append(first)
        taken += 1
        wanted = rules.nearest_share(anchor, stop, taken, shares)
        # Neither too little, so that the files left can hold the rest, nor so much that they
        # would have no episode each.
        end = max(wanted, rules.first_that_fits(first + 1, stop, shares - taken))
        end = min(end, rules.end_by_size(first), stop - (shares - taken))
        end = rules.end_by_reach(first, end)
        if end != wanted:
            anchor, shares, taken = end, shares - taken, 0
        first = end
    return starts


class _Rules:
    """What ends a file at the latest; all arrays have shape (E,) or (E + 1,).

    A *run* is a range of episodes with equal decoder configurations; files do not leave it.
    """

    def __init__(
        self,
        streams: Sequence[StreamScan],
        limits_bytes: Sequence[float],
        length: IntArray,
        fps: Fraction,
        edges: IntArray,
    ) -> None:
        self._length = length
        self._fps = fps
        self._frame_ends = np.concatenate(([0], np.cumsum(length, dtype=np.int64)))
        # Without cameras nothing is looked up by time.
        self._looks_up = any(camera_of(stream.stream) is not None for stream in streams)
        self._certain = frames_always_in_reach(fps)
        self._ends = _latest_ends(streams, limits_bytes, edges)
        self._needed_negated = _files_needed(self._ends, edges)

    def frames(self, first: int, stop: int) -> int:
        """Return the frames of a range of episodes."""
        return int(self._frame_ends[stop] - self._frame_ends[first])

    def end_by_size(self, first: int) -> int:
        """Return the position after the last that a file from ``first`` on can hold by its size."""
        return int(self._ends[first])

    def files_by_size(self, first: int) -> int:
        """Return how many files the rest of the run needs by size alone, from ``first`` on."""
        return -int(self._needed_negated[first])

    def first_that_fits(self, first: int, stop: int, files: int) -> int:
        """Return the first position of ``first`` to ``stop`` from which ``files`` are enough."""
        # The rest of a run never needs more files than a longer rest.
        needed = self._needed_negated[first:stop]
        return first + int(np.searchsorted(needed, -files))

    def nearest_share(self, anchor: int, stop: int, taken: int, shares: int) -> int:
        """Return the position nearest to ``taken / shares`` of the frames of a range."""
        ends = self._frame_ends
        # In integers, times ``shares``.
        target = int(ends[anchor]) * shares + self.frames(anchor, stop) * taken
        before = int(np.searchsorted(ends, target // shares, side="right")) - 1
        if before >= stop:
            return stop
        above = int(ends[before + 1]) * shares - target
        return before if target - int(ends[before]) * shares <= above else before + 1

    def end_by_reach(self, first: int, stop: int) -> int:
        """Return the first position up to ``stop`` that has a frame out of reach, or ``stop``.

        The episode at ``first`` itself is not asked: no cut would help it.
        """
        if not self._looks_up:
            return stop
        ends = self._frame_ends
        begin = int(ends[first])
        position = int(np.searchsorted(ends, begin + self._certain, side="right")) - 1
        position = max(position, first + 1)
        # Twice as many each time: most files end soon after, and none is looked at for long.
        count = _EPISODES_LOOKED_AT_FIRST
        while position < stop:
            window = slice(position, min(position + count, stop))
            lost = frames_out_of_reach(ends[window] - begin, self._length[window], self._fps)
            if lost.any():
                return position + int(np.flatnonzero(lost)[0])
            position += count
            count *= 2
        return stop

    def fewest_files(self, first: int, stop: int) -> int:
        """Return how many files a range takes if each holds as much as the rules allow."""
        files = 0
        while first < stop:
            first = self.end_by_reach(first, min(self.end_by_size(first), stop))
            files += 1
        return files


def _latest_ends(
    streams: Sequence[StreamScan], limits_bytes: Sequence[float], edges: IntArray
) -> IntArray:
    """Return where a file that starts at each position ends at the latest, shape (E,)."""
    ends = np.repeat(edges[1:], np.diff(edges))
    after = np.arange(1, len(ends) + 1)
    for stream, limit_bytes in zip(streams, limits_bytes, strict=True):
        filled = np.concatenate(([0], np.cumsum(stream.roll_bytes, dtype=np.int64)))
        # Sizes are whole, so that a sum reaches the limit where it reaches the next whole number.
        limit = math.ceil(min(limit_bytes, _LARGEST_LIMIT_BYTES))
        # The episode that would reach it is the first that stays out.
        reaching = np.searchsorted(filled, filled[:-1] + limit) - 1
        np.minimum(ends, np.maximum(reaching, after), out=ends)
    return ends


def _files_needed(ends: IntArray, edges: IntArray) -> IntArray:
    """Return how many files the rest of the run needs from each position on, negated, shape (E,).

    Filling each file as far as it goes needs the fewest; negated they ascend within a run.
    """
    needed = [0] * len(ends)
    latest = ends.tolist()
    for first, stop in pairwise(edges.tolist()):
        for position in range(stop - 1, first - 1, -1):
            end = latest[position]
            needed[position] = -1 if end == stop else needed[end] - 1
    return np.array(needed, dtype=np.int64)
