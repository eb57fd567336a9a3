"""Which frames a loader worker gives out, and in which order: a pure function, no I/O.

Episodes go to ranks and then to workers, whole. A worker shares its episodes out to the slots of
its pool; a slot plays one episode at a time, its frames in a shuffled order, and the next one when
that is used up. The slots are merged so that each order of merging is equally likely: a slot is
drawn with the frames that it has left, those of the episodes that wait in it included, as weight.
So the pool stays full until the end of the epoch.

Drawing with the frames left of the *pooled* episodes alone would be simpler and worse: such
episodes empty all at once, and few of them are left to mix most of the time.

Where a worker's pool has room for all episodes of its rank, its workers get frames of all of them
instead, round-robin. So the batches of each worker are then mixed as
one shuffle of all frames of the rank would be.

Everything follows from the lengths of the episodes, the seed, the epoch and the share. The merge is
drawn in blocks: first how many frames of a block come from each slot, then their order. To skip
frames only the first is needed, so skipping costs nothing worth measuring.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.errors import UsageError
from leconvert.model import IntArray

__all__ = [
    "EpisodeOrder",
    "OrderBlock",
    "Share",
    "balanced_split",
    "chosen_episodes",
    "find_rank",
    "group_episodes_by_files",
    "num_batches",
    "order_batches",
    "partition_episodes",
    "turn_after",
]


BoolArray = npt.NDArray[np.bool_]


_BLOCK_FRAMES = 2**14
# NumPy draws from fewer marbles than this.
_MOST_FRAMES = 10**9
# By bad luck a worker gets nothing in an epoch, where episodes are few; not so often in a row.
_MOST_EMPTY_EPOCHS = 100
# What a random stream is for; each has its own, whatever the others draw.
_SPLIT_RANKS, _SPLIT_WORKERS, _MERGE, _BLOCK, _FRAMES = range(5)


@dataclass(frozen=True, slots=True)
class Share:
    """One worker of one rank."""

    rank: int = 0  # number of the training process, from 0
    world_size: int = 1  # number of training processes
    worker: int = 0  # number of the loader worker of that process, from 0
    num_workers: int = 1  # number of its loader workers; 1 where the process loads by itself


class OrderBlock(NamedTuple):
    """Consecutive frames of an order; arrays of shape (N,)."""

    episodes: IntArray  # places of the episodes, as the lengths were given
    frames: IntArray  # frame within the episode
    is_last: BoolArray  # whether the worker gives out no other frame of the episode in this epoch

    def part(self, first: int, stop: int | None = None) -> OrderBlock:
        """Return the frames from one place to another."""
        inside = slice(first, stop)
        return OrderBlock(self.episodes[inside], self.frames[inside], self.is_last[inside])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What a worker gives out in an epoch; arrays of shape (P,)."""

    episodes: IntArray  # places of its episodes, in the order in which they are shared out
    first: IntArray  # first turn of each that is its own: 0, where it has the episode alone
    counts: IntArray  # frames of each, all above 0
    step: int  # every how manyth turn is its own

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
        UsageError: ``pool_size`` is below 1, or the seed is negative.
    """

    def __init__(
        self, lengths: IntArray, *, seed: int = 0, shuffle: bool = True, pool_size: int = 32
    ) -> None:
        if pool_size < 1:
            raise UsageError(f"episode_pool_size must be at least 1, not {pool_size}.")
        if seed < 0:
            raise UsageError(f"seed must be at least 0, not {seed}.")
        self._lengths = np.ascontiguousarray(lengths, np.int64)
        self._seed = seed
        self._shuffle = shuffle
        self._pool_size = pool_size

    def worker_frames(self, epoch: int, rank: int, world_size: int, num_workers: int) -> IntArray:
        """Return how many frames each worker of a rank gives out in an epoch, shape (workers,)."""
        parts = self._parts(epoch, rank, world_size, num_workers)
        return np.array([part.counts.sum() for part in parts], np.int64)

    def blocks(self, epoch: int, share: Share, *, skip: int = 0) -> Iterator[OrderBlock]:
        """Yield a worker's frames of an epoch."""
        part = self._part(epoch, share)
        if not len(part.episodes):
            return
        if not self._shuffle:
            yield from _in_order(part, skip)
            return
        num_slots = min(self._pool_size, len(part.episodes))
        yield from _merged_slots(
            [part.subset(slot) for slot in balanced_split(part.counts, num_slots)],
            self._lengths,
            seed=(self._seed, epoch),
            stream=(share.rank, share.worker),
            skip=skip,
        )

    def walk(
        self, epoch: int, share: Share, *, skip: int = 0, repeat: bool = False
    ) -> Iterator[OrderBlock]:
        """Yield a worker's frames from an epoch on."""
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
                    f"{len(self._lengths)} episodes are too few for {share.num_workers} loader "
                    f"workers of {share.world_size} ranks: one of them has nothing to repeat.",
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
            return self._round_robin(mine, num_workers)
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

    def _round_robin(self, episodes: IntArray, num_workers: int) -> list[_Part]:
        """Share the frames of all episodes out in turn, going on from one episode to the next."""
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
    """Give each episode to the share that has the fewest frames so far.

    Two shares differ by the longest episode at most. With fewer episodes than shares, some are
    empty.

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


def _merged_slots(
    slots: list[_Part],
    lengths: IntArray,
    *,
    seed: tuple[int, int],
    stream: tuple[int, int],
    skip: int,
) -> Iterator[OrderBlock]:
    """Merge pool slots at random; see the module."""
    # All episodes, slot after slot: a frame of a slot is a number in one long row.
    episodes = np.concatenate([slot.episodes for slot in slots])
    first = np.concatenate([slot.first for slot in slots])
    counts = np.concatenate([slot.counts for slot in slots])
    ends = np.cumsum(counts)
    left: IntArray = np.array([slot.counts.sum() for slot in slots], np.int64)
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
                np.repeat(np.arange(len(slots)), drawn)
            )
            by_slot = np.argsort(shuffled, kind="stable")
            numbers: IntArray = np.empty(size, np.int64)
            heads = np.cumsum(drawn) - drawn
            numbers[by_slot] = np.arange(size) + np.repeat(cursor - heads, drawn)
            numbers = numbers[max(0, skip - begin) :]
            places = np.searchsorted(ends, numbers, side="right")
            is_last = numbers == ends[places] - 1
            turns = first[places] + (numbers - (ends - counts)[places]) * slots[0].step
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


# ------------------------------------------------------------------------------------------------
# Batches of an order, and which episodes come next. Pure.


def order_batches(
    blocks: Iterable[OrderBlock],
    batch_size: int,
    *,
    coming: Callable[[list[int]], None],
    ahead: int,
) -> Iterator[OrderBlock]:
    """Yield the frames of each batch; batches go on over the ends of blocks.

    Args:
        coming: Told before each batch which episodes appear for the first time from there on.
    """
    rest: OrderBlock | None = None
    for block in blocks:
        joined = block if rest is None else _joined(rest, block)
        first_places, episodes = _first_appearances(joined) if ahead else (None, [])
        whole = len(joined.frames) // batch_size * batch_size
        for first in range(0, whole, batch_size):
            if first_places is not None:
                begin = int(np.searchsorted(first_places, first))
                coming(episodes[begin : begin + ahead])
            yield joined.part(first, first + batch_size)
        rest = joined.part(whole)
    if rest is not None and len(rest.frames):
        yield rest


def _joined(first: OrderBlock, second: OrderBlock) -> OrderBlock:
    return OrderBlock(
        np.concatenate((first.episodes, second.episodes)),
        np.concatenate((first.frames, second.frames)),
        np.concatenate((first.is_last, second.is_last)),
    )


def _first_appearances(block: OrderBlock) -> tuple[IntArray, list[int]]:
    """Return where each episode appears first, ascending, and the episodes."""
    episodes, places = np.unique(block.episodes, return_index=True)
    by_place = np.argsort(places)
    found: list[int] = episodes[by_place].tolist()
    return places[by_place], found


# ------------------------------------------------------------------------------------------------
# Shares of nodes: whole groups of episodes that share files, so that no file is fetched twice.
#
# Where there are fewer such groups than nodes, single episodes are shared out instead.
#
# Pure. Which rank and worker of a node gets which episode is another matter: see `order`.


def group_episodes_by_files(files: Sequence[IntArray]) -> list[IntArray]:
    """Group episodes that are connected by files that they share (union-find).

    Returns:
        Places of the episodes of each group, ascending; groups in the order of their first.
    """
    num_episodes = len(files[0]) if files else 0
    parents = list(range(num_episodes))

    def root_of(episode: int) -> int:
        while parents[episode] != episode:
            parents[episode] = parents[parents[episode]]
            episode = parents[episode]
        return episode

    for numbers in files:
        first_of: dict[int, int] = {}
        for episode, file in enumerate(numbers.tolist()):
            left, right = root_of(first_of.setdefault(file, episode)), root_of(episode)
            # The smaller place becomes the root, so that roots come in the order of the groups.
            parents[max(left, right)] = min(left, right)
    roots = np.array([root_of(episode) for episode in range(num_episodes)], np.int64)
    members = np.argsort(roots, kind="stable")
    heads = np.flatnonzero(np.diff(roots[members])) + 1
    return np.split(members, heads) if num_episodes else []


def partition_episodes(
    groups: Sequence[IntArray], lengths: IntArray, num_partitions: int
) -> list[IntArray]:
    """Share groups out: the longest first, each to the partition with the fewest frames.

    Longest processing time first keeps the largest partition within 4/3 of the best possible
    (Graham 1969).

    Returns:
        Places of the episodes of each partition, ascending.
    """
    frames = [int(lengths[group].sum()) for group in groups]
    loads = [(0, partition) for partition in range(num_partitions)]
    parts: list[list[IntArray]] = [[] for _ in range(num_partitions)]
    for place in sorted(range(len(groups)), key=lambda place: (-frames[place], place)):
        load, partition = loads[0]
        parts[partition].append(groups[place])
        heapq.heapreplace(loads, (load + frames[place], partition))
    return [np.sort(np.concatenate(part)) if part else np.empty(0, np.int64) for part in parts]


def chosen_episodes(
    indices: IntArray,
    lengths: IntArray,
    files: Sequence[IntArray],
    *,
    episodes: Sequence[int] | None = None,
    max_episodes: int | None = None,
    num_partitions: int = 1,
    partition_index: int = 0,
) -> IntArray:
    """Return the places of the episodes that a node loads, ascending.

    First the episodes asked for are taken, then the first ``max_episodes`` of them, and these are
    partitioned.
    """
    places: IntArray = np.arange(len(indices))
    if episodes is not None:
        wanted = np.unique(np.array(list(episodes), np.int64))
        missing = np.setdiff1d(wanted, indices)
        if len(missing):
            raise UsageError(
                f"Episode {missing[0]} was asked for, but the dataset has no such episode."
            )
        places = np.flatnonzero(np.isin(indices, wanted))
    if max_episodes is not None:
        if max_episodes < 1:
            raise UsageError(f"max_episodes must be at least 1, not {max_episodes}.")
        places = places[:max_episodes]
    if not 0 <= partition_index < num_partitions:
        raise UsageError(
            f"partition_index must be 0 to {num_partitions - 1}, not {partition_index}."
        )
    if num_partitions == 1:
        return places
    groups = group_episodes_by_files([numbers[places] for numbers in files])
    if len(groups) < num_partitions:
        groups = list(np.arange(len(places))[:, None])
    share = partition_episodes(groups, lengths[places], num_partitions)[partition_index]
    if not len(share):
        raise UsageError(
            f"Partition {partition_index} of {num_partitions} has no episodes: there are only "
            f"{len(places)}.",
            next_step=f"Use at most {len(places)} partitions.",
        )
    return places[share]


# ------------------------------------------------------------------------------------------------
# Which of several training processes this is.


# torchrun's, then those of SLURM's srun. SLURM_NTASKS would not do: a batch script has it too, with
# SLURM_PROCID=0, and would then load the share of one of several ranks of which it is the only one.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
_OF_NODE = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"),)  # torchrun's and accelerate's


def find_rank(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    of_node: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Return rank and world size: as given, else accelerate's, torchrun's or SLURM's, else 0 of 1.

    accelerate is only asked where the program already started it: asking would start it.
    """
    variables = os.environ if environment is None else environment
    if rank is not None or world_size is not None:
        return _checked(rank, world_size, "the arguments")
    if of_node:
        return _rank_on_node(variables)
    state = sys.modules.get("accelerate.state")
    if state is not None and state.PartialState._shared_state:  # noqa: SLF001 (see above)
        running = state.PartialState()
        return _checked(running.process_index, running.num_processes, "accelerate")
    return _said_by(variables, _VARIABLES) or (0, 1)


def _rank_on_node(variables: Mapping[str, str]) -> tuple[int, int]:
    found = _said_by(variables, _OF_NODE)
    if found is None:
        rank, world_size = find_rank(environment=variables)
        if world_size > 1:
            raise UsageError(
                f"This is rank {rank} of {world_size} on all nodes, and it is not known which of "
                "this node's processes it is; nodes that load files of their own go by that.",
                next_step="Give rank and world size of the processes of this node (--rank, "
                "--world-size).",
            )
        found = 0, 1
    return found


def _said_by(
    variables: Mapping[str, str], pairs: Iterable[tuple[str, str]]
) -> tuple[int, int] | None:
    for rank_name, size_name in pairs:
        if rank_name in variables and size_name in variables:
            try:
                numbers = int(variables[rank_name]), int(variables[size_name])
            except ValueError as error:
                raise UsageError(
                    f"{rank_name}={variables[rank_name]} and {size_name}={variables[size_name]} "
                    "are no numbers."
                ) from error
            return _checked(*numbers, f"{rank_name} and {size_name}")
    return None


def _checked(rank: int | None, world_size: int | None, origin: str) -> tuple[int, int]:
    if rank is None or world_size is None:
        raise UsageError("rank and world_size go together; give both or neither.")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank must be 0 to {world_size - 1}, not {rank} (from {origin}).")
    return rank, world_size


# ------------------------------------------------------------------------------------------------
# Whose turn it is: torch's DataLoader takes batches from its workers round-robin. Arithmetic, pure.
#
# It asks its workers in turn, and leaves out those that have ended. So after any number of
# batches it is known how many came from each worker and which one is next, without asking
# anybody.


class Turn(NamedTuple):
    """A point between two batches."""

    taken: tuple[int, ...]  # batches that came from each worker
    next_worker: int  # who gives the next one


def num_batches(frames: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many batches a worker makes of its frames."""
    return frames // batch_size if drop_last else -(-frames // batch_size)


def turn_after(batches: int, available: Sequence[int] | None, num_workers: int) -> Turn:
    """Return where a loader stands after some batches."""
    if available is None:
        rounds, rest = divmod(batches, num_workers)
        taken = tuple(rounds + (worker < rest) for worker in range(num_workers))
        return Turn(taken, rest)
    done = 0
    while True:
        active = [worker for worker in range(num_workers) if available[worker] > done]
        if not active:
            return Turn(tuple(available), 0)
        rounds = min(available[worker] for worker in active) - done
        if batches < rounds * len(active):
            extra, rest = divmod(batches, len(active))
            done += extra
            given = [min(count, done) for count in available]
            for worker in active[:rest]:
                given[worker] += 1
            return Turn(tuple(given), active[rest])
        batches -= rounds * len(active)
        done += rounds
