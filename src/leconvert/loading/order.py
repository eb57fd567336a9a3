"""The frames that a loader gives out, and their order: pure functions, no I/O.

There is one order of all frames an epoch, whatever the number of ranks and workers. The episodes
are shuffled and their frames, shuffled too, are laid end to end; this row is cut into as many
slots of equal size as the pool has. The order takes one frame of each slot in turn, so a batch of
no more samples than there are slots has frames of as many episodes as there are slots in it.

Ranks take turns in the order, and workers of a rank make its batches in turn. If the number of
ranks divides that of the slots, a rank meets the same slots again and again, and with them few
episodes but its own. Two rules prevent that. The turns visit the slots in an order (digits of the
slot's number reversed, as in a Fourier transform) in which every W-th turn belongs to neighbours,
while consecutive turns are far apart. And every other slot is played from its end: an episode that
a cut divides is then played by both slots at the same time. The same digits give each rank its turn
in a round, so neighbouring ranks, such as those of one host, have neighbouring slots.

The frame at a position of the order is computed, so skipping costs nothing. The order follows from
the lengths of the episodes, the seed, the epoch and the pool size.
"""

from __future__ import annotations

import heapq
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.model.values import IntArray
from leconvert.support.errors import UsageError

_BLOCK_FRAMES = 2**14
# Purposes of random streams; each has a stream of its own, independent of the others.
_EPISODES, _FRAMES, _MEMBERS = range(3)
# Shares of a mixture are whole numbers of so many turns of a column, and then repeat.
_CYCLE = 10_000
# Turns of a row: ranks whose number divides it have episodes of their own.
_COLUMNS = 64
# From row to row; nearly the golden section of a cycle, and prime to it.
_ROW_STEP = 6_181


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one worker of one rank in an order: its part of every so manyth global batch.

    A global batch has ``batch_size`` x ``world_size`` samples; ranks take them in turns, though not
    in the order of their numbers: see `turn_of`.
    """

    rank: int = 0  # number of the training process, from 0
    world_size: int = 1  # number of training processes
    worker: int = 0  # number of the loader worker of that process, from 0
    num_workers: int = 1  # number of its loader workers; 1 where the process loads by itself
    batch_size: int = 1  # samples that a rank has in a global batch
    drop_last: bool = False  # leave out a last global batch that is smaller

    @property
    def global_batch_size(self) -> int:
        """Samples of a batch over all ranks."""
        return self.batch_size * self.world_size

    def num_batches(self, samples: int) -> int:
        """Return how many batches the rank has of so many samples of all ranks."""
        whole, rest = divmod(samples, self.global_batch_size)
        return whole + (rest > turn_of(self.rank, self.world_size) and not self.drop_last)

    def num_batches_of_each(self, samples: int) -> int:
        """Return how many batches every rank has at least of so many samples of all ranks."""
        whole, rest = divmod(samples, self.global_batch_size)
        return whole + (rest >= self.world_size and not self.drop_last)

    def numbers(self, samples: int | None, *, at_once: int) -> Iterator[IntArray]:
        """Yield which of so many samples the worker takes, ascending; None for no end."""
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

    episodes: IntArray  # numbers of the episodes, as the lengths were given
    frames: IntArray  # frame within the episode
    numbers: IntArray  # number of the sample in the order, counted on from epoch to epoch
    last_numbers: IntArray  # that of the last sample of the episode in the epoch, whoever takes it

    def part(self, first: int, stop: int | None = None) -> OrderBlock:
        """Return the frames from one place to another."""
        return OrderBlock(*(array[first:stop] for array in self))


class Order(ABC):
    """An order of samples that counts on from epoch to epoch.

    Attributes:
        num_frames: Samples of an epoch.
        num_episodes: Episodes that are numbered.
    """

    num_frames: int
    num_episodes: int

    def blocks(
        self, share: Share, *, epoch: int = 0, taken: int = 0, repeat: bool = False
    ) -> Iterator[OrderBlock]:
        """Yield what a share has of the order.

        Args:
            share: Whose.
            epoch: The epoch to begin in.
            taken: Samples of that epoch that all ranks together leave out.
            repeat: Go on with the next epoch, without end; a global batch may then have samples of
                two epochs.
        """
        samples = None if repeat else self.num_frames - taken
        # Not many short epochs at once.
        for numbers in share.numbers(samples, at_once=min(_BLOCK_FRAMES, self.num_frames)):
            yield self.at(epoch, taken + numbers)

    @abstractmethod
    def at(self, epoch: int, numbers: IntArray) -> OrderBlock:
        """Return the samples of some ascending numbers, which count on from an epoch to the next.

        Args:
            epoch: The epoch whose first sample is number 0.
            numbers: One or more.
        """


class EpisodeOrder(Order):
    """The order of all frames of an epoch, and the share of each rank and worker.

    It guarantees that an epoch has each frame once, that equal arguments give equal orders (with
    one version of NumPy, whose random streams these are), and that never more episodes than
    ``pool_size`` have begun and not ended. The shares of an epoch are disjoint and together
    complete, and ranks differ by one sample at most.

    Args:
        lengths: Frames of each episode, shape (E,), all above 0.
        seed: Selects the order.
        shuffle: False gives episodes and frames as they come.
        pool_size: Episodes that the order mixes; its slots.
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
        self._epochs: dict[int, _Epoch] = {}
        self.num_frames = int(self._lengths.sum())
        self.num_episodes = len(self._lengths)

    def at(self, epoch: int, numbers: IntArray) -> OrderBlock:
        """Return the samples of some numbers; see `Order.at`."""
        epochs = numbers // self.num_frames
        heads = np.flatnonzero(np.diff(epochs)) + 1
        parts = []
        for mine in np.split(numbers, heads):
            before = int(mine[0]) // self.num_frames
            begin = before * self.num_frames
            found = self._epoch(epoch + before)
            episodes, frames = found.frames(mine - begin)
            parts.append(OrderBlock(episodes, frames, mine, begin + found.last[episodes]))
        if len(parts) == 1:
            return parts[0]
        return OrderBlock(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def episodes(self, epoch: int, rank: int, world_size: int) -> IntArray:
        """Return the episodes of which a rank has frames in an epoch, ascending."""
        found = self._epoch(epoch)
        positions = np.arange(turn_of(rank, world_size), self.num_frames, world_size)
        return np.unique(found.episodes(positions))

    def _epoch(self, epoch: int) -> _Epoch:
        found = self._epochs.get(epoch)
        if found is None:
            found = _Epoch(self._lengths, self._seed, epoch, self._pool_size, self._shuffle)
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
        # The last round of turns need not reach all of them.
        sizes = np.full(num_slots, num_frames // num_slots)
        sizes[self._slots[: num_frames % num_slots]] += 1
        self._slot_starts = np.cumsum(sizes) - sizes
        self._slot_sizes = sizes
        self.last = self._last_positions()

    def frames(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return episode and frame at each position; positions ascend."""
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
        """Return the episode at each position."""
        return self._row[np.searchsorted(self._ends, self._turns(positions), side="right")]

    def _turns(self, positions: IntArray) -> IntArray:
        """Return which frame of the row is at each position."""
        rounds, residues = np.divmod(positions, len(self._slots))
        slots = self._slots[residues]
        backwards = slots % 2 == 1
        within = np.where(backwards, self._slot_sizes[slots] - 1 - rounds, rounds)
        turns: IntArray = self._slot_starts[slots] + within
        return turns

    def _last_positions(self) -> IntArray:
        """Return where each episode is at an end: the last of the slots that it lies in."""
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
    """Several orders as one, of which each has a fixed share of the samples.

    Each member goes through its own epochs, one behind the other and none cut short; an epoch of
    the mixture, of as many samples as the members have frames, is but a stretch of all this.

    The turns are laid out in rows of 64. A member's turn in a column is its next one whose number
    leaves the column's remainder by 64; so with W ranks, W a divisor of 64, a rank has every W-th
    turn of each member, and with them few episodes but its own, as in the order of one dataset.
    The price is that turns of a member come up to 256 turns before or after where they would be.

    A grid of evenly spread points decides which member has a turn (a rank-1 lattice, see
    Niederreiter 1992, chapter 5): each row and each column has every member's share to within
    a turn or two anywhere, and a column exactly after 10,000 rows. All is found in a table.

    Args:
        orders: The orders of the members.
        weights: The weight of each member, relative to the others.
        seed: Selects where the grid begins.

    Attributes:
        shares: Samples of each member in 10,000 samples, shape (M,).
        first_episodes: The number of each member's first episode, shape (M,); episodes of all
            members are numbered through.
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
        # Where each member's turns are in each column: rows, those of the first member first.
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

    def at(self, epoch: int, numbers: IntArray) -> OrderBlock:
        """Return the samples of some numbers; see `Order.at`."""
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
            # No turn up to the last one of an episode is behind the row that has it in any column.
            cycles, rest = np.divmod(found.last_numbers // _COLUMNS, self.shares[member])
            last_rows = cycles * _CYCLE + self._last_rows[self._heads[member] + rest]
            last_numbers[mine] = (last_rows + 1) * _COLUMNS - 1 - begin
        return OrderBlock(episodes, frames, numbers, last_numbers)


def _whole_shares(weights: Sequence[float]) -> IntArray:
    """Return what each weight is of 10,000: rounded down, and what is left to the largest rests."""
    exact = np.array(weights, np.float64)
    if not len(exact) or not np.isfinite(exact).all() or (exact <= 0).any():
        raise UsageError(f"Weights must be numbers above 0, not {list(weights)}.")
    exact *= _CYCLE / exact.sum()
    shares: IntArray = np.floor(exact + 1e-6).astype(np.int64)
    if (shares < 1).any():
        raise UsageError(
            f"The weight {min(weights):g} is too small beside the others: it must be at "
            f"least one of {_CYCLE:,} samples."
        )
    rests = np.argsort(shares - exact, kind="stable")
    shares[rests[: _CYCLE - int(shares.sum())]] += 1
    return shares


def spread_order(size: int) -> IntArray:
    """Return an order of 0 ... size - 1 in which those that follow one another are far apart.

    Digits are reversed, the smallest prime factor's first. So where W is the product of the first
    prime factors (for a power of two: any smaller one), every W-th number of the order, from any
    of the first W on, is one of ``size / W`` neighbours.
    """
    order = np.zeros(1, np.int64)
    width = size
    prime = 2
    while width > 1:
        if width % prime:
            prime += 1
            continue
        width //= prime
        # A large prime's digits are spread by their bits.
        digits = sorted(range(prime), key=lambda digit: f"{digit:b}"[::-1].ljust(64, "0"))
        order = (np.array(digits)[:, None] * width + order).reshape(-1)
    return order


@cache
def turn_of(rank: int, world_size: int) -> int:
    """Return which turn of each round a rank has, so that neighbours have neighbouring slots."""
    return int(np.flatnonzero(spread_order(world_size) == rank)[0])


def _generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


# Batches of an order, and which episodes come next. Pure.


def order_batches(
    blocks: Iterable[OrderBlock],
    batch_size: int,
    *,
    coming: Callable[[list[int]], None],
    ahead: int,
) -> Iterator[OrderBlock]:
    """Yield the frames of each batch; batches go on over the ends of blocks."""
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
    return OrderBlock(*(np.concatenate(arrays) for arrays in zip(first, second, strict=True)))


def _first_appearances(block: OrderBlock) -> tuple[IntArray, list[int]]:
    """Return where each episode appears first, ascending, and the episodes."""
    episodes, places = np.unique(block.episodes, return_index=True)
    by_place = np.argsort(places)
    found: list[int] = episodes[by_place].tolist()
    return places[by_place], found


# Shares of nodes: whole groups of episodes that share files, so that no file is fetched twice.
#
# If there are fewer such groups than nodes, single episodes are shared out instead.
#
# Pure. `EpisodeOrder` shares the episodes of a node among its ranks and workers.


def group_episodes_by_files(files: Sequence[npt.ArrayLike]) -> list[IntArray]:
    """Group episodes that are connected by files that they share (union-find).

    Args:
        files: For the tables and each camera, the number of the file that each episode is in, of
            shape (E,).

    Returns:
        Places of the episodes of each group, ascending; groups in the order of their first.
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
            # The smaller place becomes the root, so that roots come in the order of the groups.
            parents[max(left, right)] = min(left, right)
    roots = np.array([root_of(episode) for episode in range(num_episodes)], np.int64)
    members = np.argsort(roots, kind="stable")
    heads = np.flatnonzero(np.diff(roots[members])) + 1
    return np.split(members, heads) if num_episodes else []


def partition_episodes(
    groups: Sequence[npt.ArrayLike], lengths: npt.ArrayLike, num_partitions: int
) -> list[IntArray]:
    """Share groups out: the longest first, each to the partition with the fewest frames.

    Longest processing time first keeps the largest partition within 4/3 of the best possible
    (Graham 1969).

    Args:
        groups: Places of the episodes of each group, as `group_episodes_by_files` returns them.
        lengths: Frames of each episode, of shape (E,).
        num_partitions: How many parts to make; some stay empty where there are fewer groups.

    Returns:
        Places of the episodes of each partition, ascending.
    """
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
    """Return the places of the episodes that a node loads, ascending.

    First the episodes asked for are taken, then the first ``max_episodes`` of them, and these are
    partitioned.
    """
    places: IntArray = np.arange(len(indices))
    if episodes is not None:
        wanted = np.unique(np.array(list(episodes), np.int64))
        missing = np.setdiff1d(wanted, indices)
        if len(missing):
            raise UsageError(f"The dataset has no episode {missing[0]}.")
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
            f"Partition {partition_index} of {num_partitions} would have no episodes: the "
            f"dataset has only {len(places)}.",
            next_step=f"Use at most {len(places)} partitions.",
        )
    return places[share]


# The number of this training process among several.


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


def local_rank() -> int:
    """Return which process of its node this is, as torchrun, accelerate or SLURM says; else 0."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def _rank_on_node(variables: Mapping[str, str]) -> tuple[int, int]:
    found = _said_by(variables, _OF_NODE)
    if found is None:
        rank, world_size = find_rank(environment=variables)
        if world_size > 1:
            raise UsageError(
                f"This is rank {rank} of {world_size} on all nodes, but its number on this "
                "node is unknown. Partitions need that number.",
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
    """Return whether the loader that accelerate iterates just now deals the samples of a dataset.

    That is a `DataLoader` of it which went through ``accelerate.prepare``.
    """
    state = sys.modules.get("accelerate.state")
    if state is None:
        return False
    loader = state.GradientState().active_dataloader
    prepared = getattr(loader, "dataset", None)
    # If each process reads everything and keeps its part, another dataset wraps this one.
    return any(one is dataset for one in (prepared, getattr(prepared, "dataset", None)))
