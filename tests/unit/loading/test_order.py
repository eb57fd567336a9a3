"""Which frames a loader gives out, and in which order, over all ranks and workers."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leconvert.loading.order import EpisodeOrder, Share, spread_order, turn_of
from leconvert.support.errors import UsageError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
POOLS = st.integers(1, 40)
# Ranks, workers of each, and samples of a batch.
TOPOLOGIES = st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 6))


def frames_of(order: EpisodeOrder, share: Share, **options: int) -> np.ndarray:
    """Return episode and frame of each sample of a share, shape (N, 2)."""
    blocks = [np.stack(block[:2], axis=1) for block in order.blocks(share, **options)]
    return np.concatenate(blocks) if blocks else np.empty((0, 2), np.int64)


def global_batches(
    order: EpisodeOrder, topology: tuple[int, int, int], *, drop_last: bool = False, **options: int
) -> list[list[tuple[int, int]]]:
    """Take a batch of each rank, worker after worker, and deal its samples in turn."""
    ranks, workers, batch_size = topology
    shares = [
        [
            frames_of(order, Share(rank, ranks, worker, workers, batch_size, drop_last), **options)
            for worker in range(workers)
        ]
        for rank in spread_order(ranks).tolist()
    ]
    batches = []
    for number in range(10_000):
        worker, first = number % workers, number // workers * batch_size
        parts = [mine[worker][first : first + batch_size].tolist() for mine in shares]
        sizes = [len(part) for part in parts]
        if not sizes[0]:
            break
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)
        dealt = [part[turn] for turn in range(sizes[0]) for part in parts if turn < len(part)]
        batches.append([(episode, frame) for episode, frame in dealt])
    return batches


def all_frames(lengths: list[int]) -> list[tuple[int, int]]:
    return [(episode, frame) for episode, n in enumerate(lengths) for frame in range(n)]


@given(
    lengths=LENGTHS,
    topology=TOPOLOGIES,
    pool=POOLS,
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_an_epoch_has_each_frame_once_and_ranks_and_workers_only_take_turns_in_it(
    lengths: list[int], topology: tuple[int, int, int], pool: int, seed: int, epoch: int,
    shuffle: bool,
) -> None:  # fmt: skip
    order = EpisodeOrder(np.array(lengths), seed=seed, shuffle=shuffle, pool_size=pool)
    alone = [tuple(pair) for pair in frames_of(order, Share(), epoch=epoch).tolist()]
    assert sorted(alone) == all_frames(lengths)
    ranks, _, batch_size = topology
    size = ranks * batch_size
    batches = global_batches(order, topology, epoch=epoch)
    assert batches == [alone[first : first + size] for first in range(0, len(alone), size)]


@given(lengths=LENGTHS, before=TOPOLOGIES, after=TOPOLOGIES, pool=POOLS, batches=st.integers(0, 99))
def test_another_topology_goes_on_where_one_stopped(
    lengths: list[int], before: tuple[int, int, int], after: tuple[int, int, int], pool: int,
    batches: int,
) -> None:  # fmt: skip
    order = EpisodeOrder(np.array(lengths), pool_size=pool)
    done = list(chain(*global_batches(order, before)[:batches]))
    rest = list(chain(*global_batches(order, after, taken=len(done))))
    assert [list(pair) for pair in done + rest] == frames_of(order, Share()).tolist()


@given(lengths=LENGTHS, topology=TOPOLOGIES, taken=st.integers(0, 99))
def test_a_last_batch_that_is_not_whole_can_be_left_out_on_all_ranks(
    lengths: list[int], topology: tuple[int, int, int], taken: int
) -> None:
    order = EpisodeOrder(np.array(lengths))
    taken = min(taken, order.num_frames)
    ranks, _, batch_size = topology
    all_batches = global_batches(order, topology, taken=taken)
    whole = [batch for batch in all_batches if len(batch) == ranks * batch_size]
    assert global_batches(order, topology, taken=taken, drop_last=True) == whole
    for rank in range(ranks):
        share = Share(rank, ranks, batch_size=batch_size)
        dropping = Share(rank, ranks, batch_size=batch_size, drop_last=True)
        samples = order.num_frames - taken
        mine = sum(len(batch) > turn_of(rank, ranks) for batch in all_batches)
        assert share.num_batches(samples) == mine
        of_each = sum(len(batch) >= ranks for batch in all_batches)
        assert share.num_batches_of_each(samples) == of_each
        assert dropping.num_batches(samples) == len(whole)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    topology=TOPOLOGIES,
    taken=st.integers(0, 60),
    pool=st.integers(1, 5),
)
def test_an_order_that_repeats_goes_through_the_epochs(
    lengths: list[int], topology: tuple[int, int, int], taken: int, pool: int
) -> None:
    order = EpisodeOrder(np.array(lengths), pool_size=pool)
    epochs = np.concatenate([frames_of(order, Share(), epoch=epoch) for epoch in range(2, 5)])
    taken %= order.num_frames
    ranks, workers, batch_size = topology
    found: dict[int, list[int]] = {}
    for rank in range(ranks):
        for worker in range(workers):
            share = Share(rank, ranks, worker, workers, batch_size)
            for block in islice(order.blocks(share, epoch=2, taken=taken, repeat=True), 50):
                rows = np.stack(block, axis=1)[block.numbers < len(epochs)]
                found.update((number, [episode, frame]) for episode, frame, number, _ in rows)
                if block.numbers[-1] >= len(epochs):
                    break
    assert [found[number] for number in sorted(found)] == epochs[taken:].tolist()


@given(lengths=LENGTHS, pool=POOLS, seed=st.integers(0, 5))
def test_no_more_episodes_than_the_pool_holds_are_under_way(
    lengths: list[int], pool: int, seed: int
) -> None:
    order = EpisodeOrder(np.array(lengths), seed=seed, pool_size=pool)
    under_way: set[int] = set()
    ended: set[int] = set()
    for block in order.blocks(Share()):
        for episode, _, number, last in np.stack(block, axis=1).tolist():
            under_way.add(episode)
            assert len(under_way) <= pool
            assert episode not in ended
            assert number <= last
            if number == last:
                under_way.remove(episode)
                ended.add(episode)
    assert not under_way


@given(size=st.integers(1, 300))
def test_turns_of_a_rank_belong_to_neighbours_and_consecutive_ones_lie_apart(size: int) -> None:
    order = spread_order(size)
    assert sorted(order.tolist()) == list(range(size))
    world_size = 1
    while size % (2 * world_size) == 0:
        world_size *= 2
        for rank in range(world_size):
            assert np.ptp(order[rank::world_size]) == size // world_size - 1
        assert np.diff(np.sort(order[:world_size])).tolist() == [size // world_size] * (
            world_size - 1
        )


@pytest.mark.parametrize("episodes", [146, 1000])
def test_ranks_touch_few_episodes_but_their_own(episodes: int) -> None:
    lengths = np.random.default_rng(0).integers(120, 400, episodes)
    order = EpisodeOrder(lengths, pool_size=128)
    touched = [order.episodes(3, rank, 8) for rank in range(8)]
    assert len(np.unique(np.concatenate(touched))) == episodes
    # Those at the seven cuts belong to two.
    assert sum(map(len, touched)) <= episodes + 7
    assert 1.1 * episodes > episodes + 7
    everything = [order.episodes(3, rank, 3) for rank in range(3)]
    assert sum(map(len, everything)) == 3 * episodes


@pytest.mark.parametrize(
    ("episodes", "hosts", "ranks", "pool"),
    [(300, 8, 8, 256), (300, 8, 1, 256), (300, 16, 4, 256), (1000, 6, 1, 162), (1000, 12, 2, 216)],
)
def test_hosts_together_open_hardly_more_than_every_episode_once(
    episodes: int, hosts: int, ranks: int, pool: int
) -> None:
    lengths = np.random.default_rng(0).integers(150, 350, episodes)
    order = EpisodeOrder(lengths, pool_size=pool)
    frames = 0
    for host in range(hosts):
        of_host = range(host * ranks, (host + 1) * ranks)
        opened = [order.episodes(0, rank, hosts * ranks) for rank in of_host]
        frames += int(lengths[np.unique(np.concatenate(opened))].sum())
    assert frames < 1.1 * order.num_frames


@given(lengths=LENGTHS, pool=POOLS, ranks=st.integers(1, 5), epoch=st.integers(0, 2))
def test_the_episodes_of_a_rank_are_those_of_its_frames(
    lengths: list[int], pool: int, ranks: int, epoch: int
) -> None:
    order = EpisodeOrder(np.array(lengths), pool_size=pool)
    for rank in range(ranks):
        frames = frames_of(order, Share(rank, ranks), epoch=epoch)
        assert np.unique(frames[:, 0]).tolist() == order.episodes(epoch, rank, ranks).tolist()


def test_blocks_do_not_show_in_the_order() -> None:
    lengths = np.full(500, 200)
    order = EpisodeOrder(lengths, seed=1, pool_size=7)
    whole = frames_of(order, Share())
    assert len(np.unique(whole[:, 0] * 1000 + whole[:, 1])) == 100_000
    for taken in (1, 16_383, 16_384, 16_385, 50_000, 99_999, 100_000):
        assert np.array_equal(frames_of(order, Share(), taken=taken), whole[taken:])


def test_seeds_epochs_and_pools_give_other_orders_and_equal_ones_the_same() -> None:
    lengths = np.arange(1, 30)

    def first(seed: int, epoch: int, pool: int) -> list[list[int]]:
        order = EpisodeOrder(lengths, seed=seed, pool_size=pool)
        return frames_of(order, Share(), epoch=epoch)[:50].tolist()

    assert first(0, 0, 4) == first(0, 0, 4)
    distinct = {
        str(first(seed, epoch, pool))
        for seed in range(3)
        for epoch in range(3)
        for pool in (4, 8, 32)
    }
    assert len(distinct) == 27


def test_without_shuffling_episodes_and_frames_come_as_they_are() -> None:
    order = EpisodeOrder(np.array([3, 1, 2]), shuffle=False)
    assert frames_of(order, Share()).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1]]


def distinct_episodes(episodes: np.ndarray, batch_size: int) -> float:
    batches = episodes[: len(episodes) // batch_size * batch_size].reshape(-1, batch_size)
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


@pytest.mark.parametrize("batch_size", [16, 32, 100, 256])
@pytest.mark.parametrize("lengths", [[200] * 20, list(range(20, 400, 20)), [250] * 146])
def test_batches_have_as_many_episodes_as_those_of_a_shuffle_of_all_frames(
    lengths: list[int], batch_size: int
) -> None:
    ours = frames_of(EpisodeOrder(np.array(lengths), pool_size=256), Share())[:, 0]
    everything = np.random.default_rng(0).permutation(np.repeat(np.arange(len(lengths)), lengths))
    shuffled = distinct_episodes(everything, batch_size)
    assert distinct_episodes(ours, batch_size) > 0.96 * shuffled


@pytest.mark.parametrize("ranks", [2, 4])
def test_batches_of_one_rank_are_mixed_as_well(ranks: int) -> None:
    order = EpisodeOrder(np.full(1000, 100), pool_size=128)
    mine = frames_of(order, Share(1, ranks, batch_size=32))[:, 0]
    assert distinct_episodes(mine, 32) > 27


def test_a_pool_stays_full_until_the_end() -> None:
    episodes = frames_of(EpisodeOrder(np.full(400, 100), pool_size=16), Share())[:, 0]
    for tenth in np.split(episodes, 10):
        assert distinct_episodes(tenth, 16) > 14


@given(lengths=LENGTHS, pool=POOLS)
def test_an_episode_that_a_cut_divides_is_under_way_without_a_break(
    lengths: list[int], pool: int
) -> None:
    order = EpisodeOrder(np.array(lengths), pool_size=pool)
    positions: dict[int, list[int]] = {}
    for block in order.blocks(Share()):
        for episode, _, number, _ in np.stack(block, axis=1).tolist():
            positions.setdefault(episode, []).append(number)
    for numbers in positions.values():
        rounds = np.unique(np.array(numbers) // pool)
        assert np.ptp(rounds) == len(rounds) - 1


def test_a_place_far_into_the_order_is_found_without_going_there() -> None:
    order = EpisodeOrder(np.full(40_000, 250), pool_size=32)
    drawn = []
    order._epoch(0)._frame_orders = SpyingDict(drawn)
    block = next(order.blocks(Share(), taken=9_999_990))
    assert len(block.frames) == 10
    assert len(drawn) <= 10


class SpyingDict(dict):
    """Says what is put into it."""

    def __init__(self, drawn: list[int]) -> None:
        super().__init__()
        self._drawn = drawn

    def __setitem__(self, key: int, value: np.ndarray) -> None:
        self._drawn.append(key)
        super().__setitem__(key, value)


def test_a_pool_without_a_place_and_a_negative_seed_are_refused() -> None:
    with pytest.raises(UsageError, match="episode_pool_size must be at least 1, not 0"):
        EpisodeOrder(np.array([1]), pool_size=0)
    with pytest.raises(UsageError, match="at most 65,536, not 1,000,000,000"):
        EpisodeOrder(np.array([1]), pool_size=10**9)
    with pytest.raises(UsageError, match="seed must be at least 0, not -1"):
        EpisodeOrder(np.array([1]), seed=-1)
