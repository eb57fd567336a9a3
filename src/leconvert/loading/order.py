"""The frames that a loader yields, and their order: pure functions, no I/O.

All ranks and workers share one order of all frames of an epoch. The episodes are shuffled. Their
frames, shuffled too, are laid end to end in a row, and the row is cut into equal *slots*, as many
as the pool has episodes. The order takes one frame of each slot in turn. So a batch with no more
samples than there are slots takes each of its frames from another slot.

Ranks take turns in the order, and the workers of a rank make its batches in turn. If the number of
ranks divides the number of slots, a rank always gets the same slots, and should get few episodes
that other ranks also need. Two rules ensure this. First, the turns visit the slots in an order that
reverses the digits of the slot's number, as in a Fourier transform: every W-th turn belongs to
neighbouring slots, while consecutive turns are far apart. Second, every other slot is read
backwards: if a cut divides an episode, both of its slots read it at the same time. The same digits
decide each rank's turn in a round, so neighbouring ranks, such as the ranks of one host, have
neighbouring slots.

The frame at a position of the order is computed, so skipping costs nothing. The order depends only
on the lengths of the episodes, the seed, the epoch and the pool size.
"""

from __future__ import annotations

import heapq
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import index
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.model.values import IntArray
from leconvert.support.errors import UsageError
from leconvert.support.flags import whole_number
from leconvert.support.values import dataclass

_BLOCK_FRAMES = 2**14
# Purposes of random streams; each purpose has an independent stream.
_EPISODES, _FRAMES, _MEMBERS = range(3)
# The shares of a mixture are whole numbers of turns in this many rows; then they repeat.
_CYCLE = 10_000
# Turns per row. If the number of ranks divides it, each rank mostly has episodes of its own.
_COLUMNS = 64
# The step from row to row: nearly the golden section of a cycle, and coprime to it.
_ROW_STEP = 6_181
# A pool may be as large for any dataset, however few frames it has.
_SLOTS_OF_ANY = 2**16


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one worker of one rank in an order: a part of every ``num_workers``-th batch.

    A global batch has ``batch_size`` x ``world_size`` samples. Ranks take them in turns, but not in
    the order of their numbers: see `turn_of`.
    """

    rank: int = 0  # the training process, from 0
    world_size: int = 1  # number of training processes
    worker: int = 0  # the loader worker of that process, from 0
    num_workers: int = 1  # number of its loader workers; 1 if the process itself loads
    batch_size: int = 1  # samples per rank in a global batch
    drop_last: bool = False  # leave out a smaller last global batch

    @property
    def global_batch_size(self) -> int:
        """Number of samples of a batch over all ranks."""
        return self.batch_size * self.world_size

    def num_batches(self, samples: int) -> int:
        """Return the rank's number of batches if all ranks together have ``samples``."""
        whole, rest = divmod(samples, self.global_batch_size)
        return whole + (rest > turn_of(self.rank, self.world_size) and not self.drop_last)

    def num_batches_of_each(self, samples: int) -> int:
        """Return the least number of batches of a rank; all ranks together have ``samples``."""
        whole, rest = divmod(samples, self.global_batch_size)
        return whole + (rest >= self.world_size and not self.drop_last)

    def numbers(self, samples: int | None, *, at_once: int) -> Iterator[IntArray]:
        """Yield the numbers of the worker's samples, ascending.

        Args:
            samples: Number of samples of all ranks; None for no end.
            at_once: Largest length of a yielded array, which holds at least one batch.
        """
        if samples is not None and self.drop_last:
            samples -= samples % self.global_batch_size
        turn = turn_of(self.rank, self.world_size)
        within = turn + self.world_size * np.arange(self.batch_size)
        batches = self.worker + self.num_workers * np.arange(max(1, at_once // self.batch_size))
        while True:
            numbers: IntArray = (batches[:, None] * self.global_batch_size + within).reshape(-1)
            if samples is not None and numbers[-1] >= samples:
                numbers = numbers[numbers < samples]
                if len(numbers):
                    yield numbers
                return
            yield numbers
            batches = batches + self.num_workers * len(batches)


class OrderBlock(NamedTuple):
    """Consecutive frames of a share; arrays of shape (N,)."""

    episodes: IntArray  # the episodes, numbered as their lengths were given
    frames: IntArray  # frame within the episode
    numbers: IntArray  # number of the sample in the order, continued from epoch to epoch
    last_numbers: IntArray  # number of the episode's last sample in the epoch, on any rank

    def part(self, first: int, stop: int | None = None) -> OrderBlock:
        """Return the frames from position ``first`` to before ``stop``."""
        return OrderBlock(*(array[first:stop] for array in self))


class Order(ABC):
    """An order of samples that continues from epoch to epoch.

    Attributes:
        num_frames: Samples per epoch.
        num_episodes: Number of episodes.
    """

    num_frames: int
    num_episodes: int

    def blocks(
        self, share: Share, *, epoch: int = 0, taken: int = 0, repeat: bool = False
    ) -> Iterator[OrderBlock]:
        """Yield the samples of a share.

        Args:
            share: The share.
            epoch: The first epoch.
            taken: Samples of that epoch that all ranks together skip.
            repeat: Continue with the next epoch, without end; a global batch may then have samples
                of two epochs.
        """
        samples = None if repeat else self.num_frames - taken
        # Limited, so that short epochs are not computed by the thousand.
        for numbers in share.numbers(samples, at_once=min(_BLOCK_FRAMES, self.num_frames)):
            yield self.at(epoch, taken + numbers)

    @abstractmethod
    def at(self, epoch: int, numbers: IntArray) -> OrderBlock:
        """Return the samples with some numbers, which continue from one epoch to the next.

        Args:
            epoch: The epoch whose first sample has number 0.
            numbers: At least one number, ascending.
        """


class EpisodeOrder(Order):
    """The order of all frames of an epoch, and the share of each rank and worker.

    Guaranteed: an epoch has each frame once. Equal arguments give equal orders, with the same
    version of NumPy, whose random streams these are. At no point have more than ``pool_size``
    episodes begun and not ended. The shares of an epoch are disjoint and together complete, and
    ranks differ by at most one sample.

    Args:
        lengths: Frames of each episode, shape (E,), all above 0.
        seed: Selects the order.
        shuffle: False yields episodes and frames in the given order.
        pool_size: Number of episodes that the order mixes, which is its number of slots.

    Attributes:
        seed: The seed.
        pool_size: Number of slots.
    """

    def __init__(
        self, lengths: IntArray, *, seed: int = 0, shuffle: bool = True, pool_size: int = 32
    ) -> None:
        self.pool_size = whole_number("episode_pool_size", pool_size, 1)
        self.seed = whole_number("seed", seed)
        self._lengths = np.ascontiguousarray(lengths, np.int64)
        self._shuffle = shuffle
        self._epochs: dict[int, _Epoch] = {}
        self.num_frames = int(self._lengths.sum())
        self.num_episodes = len(self._lengths)
        most = max(self.num_frames, _SLOTS_OF_ANY)
        if pool_size > most:  # each slot takes memory, and is empty
            raise UsageError(
                f"episode_pool_size must be at most {most:,}, not {pool_size:,}.",
                next_step=f"With {self.num_frames:,}, the number of frames, all frames are mixed.",
            )

    def at(self, epoch: int, numbers: IntArray) -> OrderBlock:
        """Return the samples with some numbers; see `Order.at`."""
        epochs = numbers // self.num_frames
        heads = np.flatnonzero(np.diff(epochs)) + 1
        parts = []
        for mine in np.split(numbers, heads):
            before = int(mine[0]) // self.num_frames
            begin = before * self.num_frames
            found = self._epoch(epoch + before)
            episodes, frames = found.frames(mine - begin)
            parts.append(OrderBlock(episodes, frames, mine, begin + found.last[episodes]))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def episodes(self, epoch: int, rank: int, world_size: int) -> IntArray:
        """Return the episodes of a rank's frames in an epoch, ascending."""
        found = self._epoch(epoch)
        positions = np.arange(turn_of(rank, world_size), self.num_frames, world_size)
        return np.unique(found.episodes(positions))

    def _epoch(self, epoch: int) -> _Epoch:
        found = self._epochs.get(epoch)
        if found is None:
            found = _Epoch(self._lengths, self.seed, epoch, self.pool_size, self._shuffle)
            self._epochs = {epoch: found}
        return found


class _Epoch:
    """The order of one epoch.

    Attributes:
        last: Position of the last frame of each episode, shape (E,).
    """

    def __init__(
        self, lengths: IntArray, seed: int, epoch: int, pool_size: int, shuffle: bool
    ) -> None:
        self._lengths = lengths
        self._words = seed, epoch
        self._shuffle = shuffle
        self._frame_orders: dict[int, npt.NDArray[np.int32]] = {}
        num_frames = int(lengths.sum())
        if shuffle:
            self._row = _generator(seed, epoch, _EPISODES).permutation(len(lengths))
            self._slots = spread_order(pool_size)
        else:
            self._row = np.arange(len(lengths))
            self._slots = np.zeros(1, np.int64)
        self._ends = np.cumsum(lengths[self._row])
        num_slots = len(self._slots)
        # The last round of turns may not reach all slots.
        sizes = np.full(num_slots, num_frames // num_slots)
        sizes[self._slots[: num_frames % num_slots]] += 1
        self._slot_starts = np.cumsum(sizes) - sizes
        self._slot_sizes = sizes
        self.last = self._last_positions()

    def frames(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return episode and frame for each position; positions ascend."""
        turns = self._turns(positions)
        ranks = np.searchsorted(self._ends, turns, side="right")
        episodes = self._row[ranks]
        turns -= self._ends[ranks] - self._lengths[episodes]
        if not self._shuffle:
            return episodes, turns
        for ended in [e for e in self._frame_orders if self.last[e] < positions[0]]:
            del self._frame_orders[ended]
        frames = np.empty_like(turns)
        by_episode = np.argsort(episodes, kind="stable")
        chosen, heads = np.unique(episodes[by_episode], return_index=True)
        for episode, members in zip(chosen.tolist(), np.split(by_episode, heads[1:]), strict=True):
            order = self._frame_orders.get(episode)
            if order is None:
                numbers = np.arange(self._lengths[episode], dtype=np.int32)
                order = _generator(*self._words, _FRAMES, episode).permutation(numbers)
                self._frame_orders[episode] = order
            frames[members] = order[turns[members]]
        return episodes, frames

    def episodes(self, positions: IntArray) -> IntArray:
        """Return the episode for each position."""
        return self._row[np.searchsorted(self._ends, self._turns(positions), side="right")]

    def _turns(self, positions: IntArray) -> IntArray:
        """Return the place in the row for each position."""
        rounds, residues = np.divmod(positions, len(self._slots))
        slots = self._slots[residues]
        backwards = slots % 2 == 1
        within = np.where(backwards, self._slot_sizes[slots] - 1 - rounds, rounds)
        turns: IntArray = self._slot_starts[slots] + within
        return turns

    def _last_positions(self) -> IntArray:
        """Return the position of each episode's last frame, over all slots that contain it."""
        starts = np.unique(np.concatenate(([0], self._ends[:-1], self._slot_starts)))
        starts = starts[starts < self._ends[-1]]
        stops = np.append(starts[1:], self._ends[-1])
        slots = np.searchsorted(self._slot_starts, starts, side="right") - 1
        first = starts - self._slot_starts[slots]
        end = stops - 1 - self._slot_starts[slots]
        rounds = np.where(slots % 2 == 1, self._slot_sizes[slots] - 1 - first, end)
        residues = np.argsort(self._slots)[slots]
        last = np.zeros(len(self._lengths), np.int64)
        owners = self._row[np.searchsorted(self._ends, starts, side="right")]
        np.maximum.at(last, owners, rounds * len(self._slots) + residues)
        return last


class MixedOrder(Order):
    """Several orders as one; each has a fixed share of the samples.

    Each member goes through its own epochs, one after the other, all complete. An epoch of the
    mixture has as many samples as the members have frames together, and is just a section of this
    sequence.

    The turns are arranged in rows of 64, so a turn has a column from 0 to 63. A member's turn in a
    column is its next turn whose number modulo 64 is the column. So with W ranks, if W divides 64,
    a rank has every W-th turn of each member, and mostly episodes of its own, as in the order of
    one dataset. The price is that turns of a member come up to 256 turns before or after their
    place.

    A grid of evenly spread points decides which member has a turn (a rank-1 lattice, see
    Niederreiter 1992, chapter 5). In any part of a row or column, each member has its share to
    within one or two turns; in a column, the share is exact after 10,000 rows. All of this is
    looked up in a table.

    Args:
        orders: The orders of the members.
        weights: The weight of each member, relative to the others.
        seed: Selects where the grid begins.

    Attributes:
        shares: Samples of each member in 10,000 samples, shape (M,).
        first_episodes: The number of each member's first episode, shape (M,). Episodes of all
            members have consecutive numbers.
    """

    def __init__(
        self, orders: Sequence[EpisodeOrder], weights: Sequence[float], *, seed: int = 0
    ) -> None:
        self._orders = orders
        self.shares = _whole_shares(weights)
        random = _generator(seed, 0, _MEMBERS)
        columns = np.argsort(spread_order(_COLUMNS)) * _CYCLE // _COLUMNS
        points = np.arange(_CYCLE) * _ROW_STEP + columns[:, None] + random.integers(_CYCLE)
        line = np.repeat(np.arange(len(orders), dtype=np.int16), self.shares)
        self._owners = line[points % _CYCLE]  # by column and row
        # For each column, the rows of each member's turns, the first member's first.
        rows = np.argsort(self._owners, axis=1, kind="stable")
        self._heads = np.cumsum(self.shares) - self.shares
        turns = np.empty((_COLUMNS, _CYCLE), np.int32)
        np.put_along_axis(turns, rows, np.arange(_CYCLE, dtype=np.int32)[None], axis=1)
        self._turns = turns - self._heads.astype(np.int32)[self._owners]
        self._last_rows = rows.max(axis=0)
        counts = np.array([order.num_episodes for order in orders])
        self.first_episodes = np.cumsum(counts) - counts
        self.num_episodes = int(counts.sum())
        self.num_frames = sum(order.num_frames for order in orders)

    def members_of(self, episodes: npt.ArrayLike) -> IntArray:
        """Return the member of each episode."""
        ends: IntArray = np.searchsorted(self.first_episodes, episodes, side="right")
        return ends - 1

    def at(self, epoch: int, numbers: IntArray) -> OrderBlock:
        """Return the samples with some numbers; see `Order.at`."""
        begin = epoch * self.num_frames
        rows, columns = np.divmod(begin + numbers, _COLUMNS)
        cycles, rows = np.divmod(rows, _CYCLE)
        owners = self._owners[columns, rows]
        turns = cycles * self.shares[owners] + self._turns[columns, rows]
        turns = turns * _COLUMNS + columns
        episodes, frames, last_numbers = (np.empty_like(numbers) for _ in range(3))
        for member in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == member)
            mine = mine[np.argsort(turns[mine])]
            found = self._orders[member].at(0, turns[mine])
            episodes[mine] = self.first_episodes[member] + found.episodes
            frames[mine] = found.frames
            # In every column, the member's turns up to the episode's last round are in this row or
            # before.
            cycles, rest = np.divmod(found.last_numbers // _COLUMNS, self.shares[member])
            last_rows = cycles * _CYCLE + self._last_rows[self._heads[member] + rest]
            last_numbers[mine] = (last_rows + 1) * _COLUMNS - 1 - begin
        return OrderBlock(episodes, frames, numbers, last_numbers)


def _whole_shares(weights: Sequence[float]) -> IntArray:
    """Return each weight in ten-thousandths, rounded so that the sum is exact.

    Weights are rounded down; the remainder goes to the weights with the largest fractions.
    """
    exact = np.array(weights, np.float64)
    if not len(exact) or not np.isfinite(exact).all() or (exact <= 0).any():
        raise UsageError(f"Weights must be numbers above 0, not {list(weights)}.")
    exact *= _CYCLE / exact.sum()
    shares: IntArray = np.floor(exact + 1e-6).astype(np.int64)
    if (shares < 1).any():
        raise UsageError(
            f"The weight {min(weights):g} is too small in comparison with the other "
            f"weights. Each dataset must get at least 1 of {_CYCLE:,} samples."
        )
    rests = np.argsort(shares - exact, kind="stable")
    shares[rests[: _CYCLE - int(shares.sum())]] += 1
    return shares


def spread_order(size: int) -> IntArray:
    """Return 0 ... size - 1 in an order in which consecutive numbers are far apart.

    It reverses digits, beginning with the digit of the smallest prime factor. Let W be the product
    of the first prime factors; for a power of two, W is any smaller power. Then every W-th number
    of the order, from any of the first W on, is one of ``size / W`` neighbours.
    """
    order = np.zeros(1, np.int64)
    width = size
    prime = 2
    while width > 1:
        if width % prime:
            prime += 1
            continue
        width //= prime
        # The digits of a large prime are spread by their bits.
        digits = sorted(range(prime), key=lambda digit: f"{digit:b}"[::-1].ljust(64, "0"))
        order = (np.array(digits)[:, None] * width + order).reshape(-1)
    return order


@cache
def turn_of(rank: int, world_size: int) -> int:
    """Return a rank's turn in each round; neighbouring ranks get neighbouring slots."""
    return int(np.flatnonzero(spread_order(world_size) == rank)[0])


def _generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


# Batches of an order, and the episodes that come next. Pure.


def order_batches(
    blocks: Iterable[OrderBlock],
    batch_size: int,
    *,
    coming: Callable[[list[int]], None],
    ahead: int,
) -> Iterator[OrderBlock]:
    """Yield the frames of each batch; batches continue over the ends of blocks.

    Args:
        blocks: The frames of a share.
        batch_size: Frames per batch.
        coming: Called before each batch with the next episodes that appear first in it or later.
        ahead: How many such episodes to name; 0 never calls ``coming``.
    """
    rest: OrderBlock | None = None
    for block in blocks:
        joined = block if rest is None else _joined([rest, block])
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


def _joined(blocks: Iterable[OrderBlock]) -> OrderBlock:
    return OrderBlock(*(np.concatenate(arrays) for arrays in zip(*blocks, strict=True)))


def _first_appearances(block: OrderBlock) -> tuple[IntArray, list[int]]:
    """Return the positions where episodes first appear, ascending, and these episodes."""
    episodes, places = np.unique(block.episodes, return_index=True)
    by_place = np.argsort(places)
    found: list[int] = episodes[by_place].tolist()
    return places[by_place], found


# Shares of nodes: whole groups of episodes that share files, so no file is fetched twice.
# Pure. `EpisodeOrder` shares the episodes of a node among its ranks and workers.


def group_episodes_by_files(files: Sequence[npt.ArrayLike]) -> list[IntArray]:
    """Group episodes that are connected by shared files (union-find).

    Args:
        files: For the tables and each camera, the number of each episode's file, shape (E,).

    Returns:
        The positions of the episodes of each group, ascending; groups are sorted by their first.
    """
    streams = [np.asarray(numbers, np.int64) for numbers in files]
    num_episodes = len(streams[0]) if streams else 0
    parents = list(range(num_episodes))

    def root_of(episode: int) -> int:
        while parents[episode] != episode:
            parents[episode] = parents[parents[episode]]
            episode = parents[episode]
        return episode

    for numbers in streams:
        first_of: dict[int, int] = {}
        for episode, file in enumerate(numbers.tolist()):
            left, right = root_of(first_of.setdefault(file, episode)), root_of(episode)
            # The smaller position becomes the root, so roots have the order of the groups.
            parents[max(left, right)] = min(left, right)
    roots = np.array([root_of(episode) for episode in range(num_episodes)], np.int64)
    members = np.argsort(roots, kind="stable")
    heads = np.flatnonzero(np.diff(roots[members])) + 1
    return np.split(members, heads) if num_episodes else []


def partition_episodes(
    groups: Sequence[npt.ArrayLike], lengths: npt.ArrayLike, num_partitions: int
) -> list[IntArray]:
    """Share groups among partitions: the longest first, each to the one with the fewest frames.

    This rule, longest processing time first, keeps the largest partition within 4/3 of the best
    possible (Graham 1969).

    Args:
        groups: Positions of the episodes of each group, as returned by `group_episodes_by_files`.
        lengths: Frames of each episode, shape (E,).
        num_partitions: Number of partitions; some stay empty if there are fewer groups.

    Returns:
        The positions of the episodes of each partition, ascending.

    Raises:
        UsageError: ``num_partitions`` is no whole number of at least 1.
    """
    num_partitions = whole_number("num_partitions", num_partitions, 1)
    members = [np.asarray(group, np.int64) for group in groups]
    frames_of = np.asarray(lengths, np.int64)
    frames = [int(frames_of[group].sum()) for group in members]
    loads = [(0, partition) for partition in range(num_partitions)]
    parts: list[list[IntArray]] = [[] for _ in range(num_partitions)]
    for place in sorted(range(len(members)), key=lambda place: (-frames[place], place)):
        load, partition = loads[0]
        parts[partition].append(members[place])
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
    """Return the positions of the episodes that a node loads, ascending.

    The chosen episodes are taken first, then the first ``max_episodes`` of them, and these are
    partitioned.

    Args:
        indices: ``episode_index`` of each episode, shape (E,).
        lengths: Frames of each episode, shape (E,).
        files: For the tables and each camera, the number of each episode's file, shape (E,).
        episodes: ``episode_index`` of the episodes to load; None for all.
        max_episodes: Load at most this many.
        num_partitions: Number of nodes that share the episodes.
        partition_index: The number of this node.

    Raises:
        UsageError: An episode does not exist, a number is out of its range, or nothing is left.
    """
    num_partitions = whole_number("num_partitions", num_partitions, 1)
    places: IntArray = np.arange(len(indices))
    if episodes is not None:
        wanted = set(map(index, episodes))
        missing = wanted.difference(indices.tolist())
        if missing:
            raise UsageError(f"The dataset has no episode {min(missing)}.")
        places = np.flatnonzero(np.isin(indices, list(wanted)))
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
    used = min(num_partitions, len(places))  # each has an episode; the others have none
    shares = partition_episodes(groups, lengths[places], used)
    if partition_index >= used or not len(shares[partition_index]):
        raise UsageError(
            f"Partition {partition_index} of {num_partitions} would have no episodes: the "
            f"dataset has only {len(places)}.",
            next_step=f"Use at most {len(places)} partitions.",
        )
    return places[shares[partition_index]]


# The number of this training process among several.


# First the variables of torchrun, then of SLURM's srun. SLURM_NTASKS is unsuitable: a batch script
# has it too, with SLURM_PROCID=0, and would load the share of one of several ranks although it is
# the only one.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
_OF_NODE = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"),)  # of torchrun and accelerate


def find_rank(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    of_node: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Return rank and world size: the arguments, else accelerate's, torchrun's, SLURM's, or (0, 1).

    accelerate is asked only if the program has already started it, since asking would start it.

    Raises:
        UsageError: Numbers are invalid, or a node's share is needed and its processes are unknown.
    """
    variables = os.environ if environment is None else environment
    if rank is not None or world_size is not None:
        return _checked(rank, world_size, "the arguments")
    if of_node and (found := _said_by(variables, _OF_NODE)) is not None:
        return found
    state = sys.modules.get("accelerate.state")
    if state is not None and state.PartialState._shared_state:  # noqa: SLF001 (see above)
        running = state.PartialState()
        found = _checked(running.process_index, running.num_processes, "accelerate")
    else:
        found = _said_by(variables, _VARIABLES) or (0, 1)
    if of_node and found[1] > 1:
        raise UsageError(
            f"This is rank {found[0]} of {found[1]} on all nodes, but its number on this node is "
            "unknown. Partitions need that number.",
            next_step="Give rank and world size of the processes of this node (--rank, "
            "--world-size).",
        )
    return found


def local_rank() -> int:
    """Return this process's number on its node, from torchrun, accelerate or SLURM; else 0."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def _said_by(
    variables: Mapping[str, str], pairs: Iterable[tuple[str, str]]
) -> tuple[int, int] | None:
    for rank_name, size_name in pairs:
        if rank_name in variables and size_name in variables:
            try:
                numbers = int(variables[rank_name]), int(variables[size_name])
            except ValueError as error:
                raise UsageError(
                    f"{rank_name}={variables[rank_name]} and "
                    f"{size_name}={variables[size_name]} are not numbers."
                ) from error
            return _checked(*numbers, f"{rank_name} and {size_name}")
    return None


def _checked(rank: int | None, world_size: int | None, origin: str) -> tuple[int, int]:
    if rank is None or world_size is None:
        raise UsageError("rank and world_size must be given together.")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank must be 0 to {world_size - 1}, not {rank} (from {origin}).")
    return rank, world_size


def is_shared_out_by_accelerate(dataset: object) -> bool:
    """Return whether the loader that accelerate iterates now distributes a dataset's samples.

    This is a `DataLoader` of the dataset that went through ``accelerate.prepare``.
    """
    state = sys.modules.get("accelerate.state")
    if state is None:
        return False
    loader = state.GradientState().active_dataloader
    prepared = getattr(loader, "dataset", None)
    # If each process reads everything and keeps its part, another dataset wraps this one.
    return any(one is dataset for one in (prepared, getattr(prepared, "dataset", None)))
