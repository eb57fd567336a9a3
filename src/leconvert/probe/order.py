"""Which frames a loader worker gives out, and in which order: a pure function, no I/O.

Episodes go to ranks and then to workers, whole. A worker deals its episodes to the places of its
pool (*lanes*); a lane plays one episode at a time, its frames in a shuffled order, and the next one
when that is used up. The lanes are merged so that each order of merging is equally likely: a lane
is drawn with the frames that it has left, those of the episodes that wait in it included, as
weight. So the pool stays full until the end of the epoch.

Drawing with the frames left of the *pooled* episodes alone would be simpler and worse: such
episodes empty all at once, and few of them are left to mix most of the time.

Where a worker's pool has room for all episodes of its rank, its workers get frames of all of them
instead: the frames of each episode are dealt round. So the batches of each worker are then mixed as
one shuffle of all frames of the rank would be.

Everything follows from the lengths of the episodes, the seed, the epoch and the share. The merge is
drawn in blocks: first how many frames of a block come from each lane, then their order. To skip
frames only the first is needed, so skipping costs nothing worth measuring.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.errors import UsageError
from leconvert.model import IntArray

BoolArray = npt.NDArray[np.bool_]

__all__ = ["EpisodeOrder", "OrderBlock", "Share", "balanced_split"]

_BLOCK_FRAMES = 2**14
# NumPy draws from fewer marbles than this.
_MOST_FRAMES = 10**9
# By bad luck a worker gets nothing in an epoch, where episodes are few; not so often in a row.
_MOST_EMPTY_EPOCHS = 100
# What a random stream is for; each has its own, whatever the others draw.
_SPLIT_RANKS, _SPLIT_WORKERS, _MERGE, _BLOCK, _FRAMES = range(5)


@dataclass(frozen=True, slots=True)
class Share:
    """One worker of one rank.

    Attributes:
        rank: Number of the training process, from 0.
        world_size: Number of training processes.
        worker: Number of the loader worker of that process, from 0.
        num_workers: Number of its loader workers; 1 where the process loads by itself.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1


class OrderBlock(NamedTuple):
    """Consecutive frames of an order; arrays of shape (N,).

    Attributes:
        episodes: Places of the episodes, as the lengths were given.
        frames: Frame within the episode.
        is_last: Whether the worker gives out no other frame of the episode in this epoch.
    """

    episodes: IntArray
    frames: IntArray
    is_last: BoolArray

    def part(self, first: int, stop: int | None = None) -> OrderBlock:
        """Return the frames from one place to another."""
        inside = slice(first, stop)
        return OrderBlock(self.episodes[inside], self.frames[inside], self.is_last[inside])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What a worker gives out in an epoch; arrays of shape (P,).

    Attributes:
        episodes: Places of its episodes, in the order in which they are dealt.
        first: First turn of each that is its own: 0, where it has the episode alone.
        counts: Frames of each, all above 0.
        step: Every how manyth turn is its own.
    """

    episodes: IntArray
    first: IntArray
    counts: IntArray
    step: int

    def subset(self, places: IntArray) -> _Part:
        return _Part(self.episodes[places], self.first[places], self.counts[places], self.step)


class EpisodeOrder:
    """The order of all frames, for every epoch and share.

    It guarantees that the shares of an epoch are disjoint and together complete, that each frame
    comes once, that ranks, and workers of a rank, differ by one episode at most, and that equal
    arguments give equal orders (with one version of NumPy, whose random streams these are). It
    does not guarantee that ranks have equally many frames.

    Args:
        lengths: Frames of each episode, shape (E,), all above 0.
        seed: Selects the order.
        shuffle: False gives episodes and frames as they come.
        pool_size: Episodes that a worker mixes.

    Raises:
        UsageError: The pool has no place, or the seed is negative.
    """

    def __init__(
        self, lengths: IntArray, *, seed: int = 0, shuffle: bool = True, pool_size: int = 32
    ) -> None:
        if pool_size < 1:
            raise UsageError(f"A pool of {pool_size} episodes cannot give any frame.")
        if seed < 0:
            raise UsageError(f"A seed is a number from 0; {seed} is none.")
        self._lengths = np.ascontiguousarray(lengths, np.int64)
        self._seed = seed
        self._shuffle = shuffle
        self._pool_size = pool_size

    def worker_frames(self, epoch: int, rank: int, world_size: int, num_workers: int) -> IntArray:
        """Return how many frames each worker of a rank gives out in an epoch, shape (workers,)."""
        parts = self._parts(epoch, rank, world_size, num_workers)
        return np.array([part.counts.sum() for part in parts], np.int64)

    def blocks(self, epoch: int, share: Share, *, skip: int = 0) -> Iterator[OrderBlock]:
        """Yield a worker's frames of an epoch.

        Args:
            epoch: From 0.
            share: Whose.
            skip: Leave out so many frames at the beginning. The rest is what it would be with
                them; where blocks end is not.

        Raises:
            UsageError: A worker would have a thousand million frames or more.
        """
        part = self._part(epoch, share)
        if not len(part.episodes):
            return
        if not self._shuffle:
            yield from _in_order(part, skip)
            return
        num_lanes = min(self._pool_size, len(part.episodes))
        yield from _merged_lanes(
            [part.subset(lane) for lane in balanced_split(part.counts, num_lanes)],
            self._lengths,
            seed=(self._seed, epoch),
            stream=(share.rank, share.worker),
            skip=skip,
        )

    def walk(
        self, epoch: int, share: Share, *, skip: int = 0, repeat: bool = False
    ) -> Iterator[OrderBlock]:
        """Yield a worker's frames from an epoch on.

        Args:
            epoch: Where to begin.
            share: Whose.
            skip: Leave out so many frames; with ``repeat`` they may be those of whole epochs.
            repeat: Go on with the next epoch, without end.

        Raises:
            UsageError: It is to repeat, but there are not enough episodes for all workers.
        """
        empty_epochs = 0
        while True:
            frames = int(self._part(epoch, share).counts.sum())
            if skip < frames:
                yield from self.blocks(epoch, share, skip=skip)
            if not repeat:
                return
            empty_epochs = 0 if frames else empty_epochs + 1
            if empty_epochs > (_MOST_EMPTY_EPOCHS if self._shuffle else 0):
                raise UsageError(
                    f"{len(self._lengths)} episodes do not go round {share.num_workers} loader "
                    f"workers of {share.world_size} ranks, so one of them cannot repeat anything.",
                    next_step="Use fewer workers, or a pool that holds all episodes.",
                )
            skip = max(0, skip - frames)
            epoch += 1

    def _part(self, epoch: int, share: Share) -> _Part:
        return self._parts(epoch, share.rank, share.world_size, share.num_workers)[share.worker]

    def _parts(self, epoch: int, rank: int, world_size: int, num_workers: int) -> list[_Part]:
        everything = np.arange(len(self._lengths))
        mine = self._split(everything, (epoch, _SPLIT_RANKS), world_size)[rank]
        if self._shuffle and num_workers > 1 and len(mine) <= self._pool_size:
            return self._dealt_round(mine, num_workers)
        stream = (epoch, _SPLIT_WORKERS, rank)
        return [
            _Part(episodes, np.zeros(len(episodes), np.int64), self._lengths[episodes], 1)
            for episodes in self._split(mine, stream, num_workers)
        ]

    def _split(self, episodes: IntArray, stream: tuple[int, ...], shares: int) -> list[IntArray]:
        if self._shuffle:
            episodes = _generator(self._seed, *stream).permutation(episodes)
        chosen = balanced_split(self._lengths[episodes], shares)
        return [episodes[places] for places in chosen]

    def _dealt_round(self, episodes: IntArray, num_workers: int) -> list[_Part]:
        """Deal the frames of all episodes round, going on from one episode to the next."""
        lengths = self._lengths[episodes]
        before = np.cumsum(lengths) - lengths
        parts = []
        for worker in range(num_workers):
            first = (worker - before) % num_workers
            counts = np.maximum(0, -(-(lengths - first) // num_workers))
            part = _Part(episodes, first, counts, num_workers)
            parts.append(part.subset(np.flatnonzero(counts)))
        return parts


def _in_order(part: _Part, skip: int) -> Iterator[OrderBlock]:
    ends = np.cumsum(part.counts)
    for start in range(skip, int(ends[-1]), _BLOCK_FRAMES):
        numbers = np.arange(start, min(start + _BLOCK_FRAMES, int(ends[-1])))
        places = np.searchsorted(ends, numbers, side="right")
        frames = numbers - (ends - part.counts)[places]
        yield OrderBlock(part.episodes[places], frames, numbers == ends[places] - 1)


def balanced_split(lengths: IntArray, shares: int) -> list[IntArray]:
    """Deal episodes out, each to the share that has the fewest frames so far.

    Two shares differ by the longest episode at most. With fewer episodes than shares, some are
    empty.

    Args:
        lengths: Frames of each episode, in the order in which they are dealt.
        shares: How many.

    Returns:
        The places in ``lengths`` of each share's episodes, ascending.
    """
    if shares == 1:
        return [np.arange(len(lengths))]
    if shares >= len(lengths):
        places = np.arange(len(lengths))
        return [places[share : share + 1] for share in range(shares)]
    loads = [(0, share) for share in range(shares)]
    owners = np.empty(len(lengths), np.int64)
    for place, length in enumerate(lengths.tolist()):
        load, share = loads[0]
        owners[place] = share
        heapq.heapreplace(loads, (load + length, share))
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.searchsorted(owners[by_owner], np.arange(1, shares)))


def _merged_lanes(
    lanes: list[_Part],
    lengths: IntArray,
    *,
    seed: tuple[int, int],
    stream: tuple[int, int],
    skip: int,
) -> Iterator[OrderBlock]:
    """Merge lanes at random; see the module."""
    # All episodes, lane after lane: a frame of a lane is a number in one long row.
    episodes = np.concatenate([lane.episodes for lane in lanes])
    first = np.concatenate([lane.first for lane in lanes])
    counts = np.concatenate([lane.counts for lane in lanes])
    ends = np.cumsum(counts)
    left: IntArray = np.array([lane.counts.sum() for lane in lanes], np.int64)
    cursor: IntArray = np.cumsum(left) - left
    if ends[-1] >= _MOST_FRAMES:
        raise UsageError(
            f"One loader worker would have {ends[-1]} frames; that is more than can be shuffled.",
            next_step="Use more workers or ranks.",
        )
    seeded, epoch = seed
    generator = _generator(seeded, epoch, _MERGE, *stream)
    orders = _FrameOrders(seeded, epoch, lengths)
    begin = 0
    while begin < ends[-1]:
        if begin + _BLOCK_FRAMES < ends[-1]:
            drawn = generator.multivariate_hypergeometric(left, _BLOCK_FRAMES, method="marginals")
        else:
            drawn = left
        size = int(drawn.sum())
        if begin + size > skip:
            shuffled = _generator(seeded, epoch, _BLOCK, *stream, begin).permutation(
                np.repeat(np.arange(len(lanes)), drawn)
            )
            by_lane = np.argsort(shuffled, kind="stable")
            numbers: IntArray = np.empty(size, np.int64)
            heads = np.cumsum(drawn) - drawn
            numbers[by_lane] = np.arange(size) + np.repeat(cursor - heads, drawn)
            numbers = numbers[max(0, skip - begin) :]
            places = np.searchsorted(ends, numbers, side="right")
            is_last = numbers == ends[places] - 1
            turns = first[places] + (numbers - (ends - counts)[places]) * lanes[0].step
            found = episodes[places]
            yield OrderBlock(found, orders.frames(found, turns, is_last), is_last)
        left = left - drawn
        cursor = cursor + drawn
        begin += size


class _FrameOrders:
    """The shuffled frames of each episode; kept while the episode plays."""

    def __init__(self, seed: int, epoch: int, lengths: IntArray) -> None:
        self._seed = seed
        self._epoch = epoch
        self._lengths = lengths
        self._orders: dict[int, IntArray] = {}

    def frames(self, episodes: IntArray, turns: IntArray, is_last: BoolArray) -> IntArray:
        """Return which frame each turn of an episode is."""
        frames = np.empty_like(turns)
        by_episode = np.argsort(episodes, kind="stable")
        chosen, heads = np.unique(episodes[by_episode], return_index=True)
        for episode, members in zip(chosen.tolist(), np.split(by_episode, heads[1:]), strict=True):
            order = self._orders.pop(episode, None)
            if order is None:
                generator = _generator(self._seed, self._epoch, _FRAMES, episode)
                order = generator.permutation(int(self._lengths[episode]))
            frames[members] = order[turns[members]]
            if not is_last[members[-1]]:
                self._orders[episode] = order
        return frames


def _generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
