"""Which frames a worker gives out, and in which order."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leconvert.errors import UsageError
from leconvert.loading.order import EpisodeOrder, Share, balanced_split

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def frames_of(order: EpisodeOrder, share: Share, *, epoch: int = 0, skip: int = 0) -> np.ndarray:
    """Return episode, frame and whether it is the last, of each sample, shape (N, 3)."""
    blocks = [np.stack(block, axis=1) for block in order.blocks(epoch, share, skip=skip)]
    return np.concatenate(blocks) if blocks else np.empty((0, 3), np.int64)


def all_frames(lengths: list[int]) -> list[tuple[int, int]]:
    return [(episode, frame) for episode, n in enumerate(lengths) for frame in range(n)]


@given(
    lengths=LENGTHS,
    ranks=st.integers(1, 4),
    workers=st.integers(1, 4),
    pool=st.integers(1, 8),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_the_shares_of_an_epoch_are_disjoint_and_together_complete(
    lengths: list[int],
    ranks: int,
    workers: int,
    pool: int,
    seed: int,
    epoch: int,
    shuffle: bool,
) -> None:
    order = EpisodeOrder(np.array(lengths), seed=seed, shuffle=shuffle, pool_size=pool)
    found: list[tuple[int, int]] = []
    loads = np.zeros((ranks, workers), np.int64)
    for rank in range(ranks):
        for worker in range(workers):
            mine = frames_of(order, Share(rank, ranks, worker, workers), epoch=epoch)
            found += [(int(episode), int(frame)) for episode, frame, _ in mine]
            loads[rank, worker] = len(mine)
        assert np.array_equal(order.worker_frames(epoch, rank, ranks, workers), loads[rank])
    assert sorted(found) == all_frames(lengths)
    assert np.ptp(loads.sum(axis=1)) <= max(lengths)
    assert np.ptp(loads, axis=1).max() <= max(lengths)


@given(
    lengths=LENGTHS,
    pool=st.integers(1, 8),
    seed=st.integers(0, 5),
    skip=st.integers(0, 400),
    shuffle=st.booleans(),
)
def test_skipping_leaves_the_rest_as_it_is(
    lengths: list[int], pool: int, seed: int, skip: int, shuffle: bool
) -> None:
    order = EpisodeOrder(np.array(lengths), seed=seed, shuffle=shuffle, pool_size=pool)
    share = Share(0, 1, 1, 2)
    whole = frames_of(order, share)
    assert np.array_equal(frames_of(order, share, skip=skip), whole[skip:])


@given(lengths=LENGTHS, pool=st.integers(1, 8), seed=st.integers(0, 5), workers=st.integers(1, 3))
def test_no_more_episodes_than_the_pool_holds_are_under_way(
    lengths: list[int], pool: int, seed: int, workers: int
) -> None:
    order = EpisodeOrder(np.array(lengths), seed=seed, pool_size=pool)
    under_way: set[int] = set()
    ended: set[int] = set()
    for episode, _, is_last in frames_of(order, Share(0, 1, workers - 1, workers)).tolist():
        under_way.add(episode)
        assert len(under_way) <= pool
        assert episode not in ended
        if is_last:
            under_way.remove(episode)
            ended.add(episode)
    assert not under_way


@given(lengths=LENGTHS, seed=st.integers(0, 5), workers=st.integers(2, 4))
def test_where_the_pool_holds_all_episodes_each_worker_mixes_all_of_them(
    lengths: list[int], seed: int, workers: int
) -> None:
    order = EpisodeOrder(np.array(lengths), seed=seed, pool_size=len(lengths))
    counts = order.worker_frames(0, 0, 1, workers)
    assert np.ptp(counts) <= 1
    for worker in range(workers):
        mine = frames_of(order, Share(0, 1, worker, workers))
        found = np.bincount(mine[:, 0], minlength=len(lengths))
        assert np.abs(found - np.array(lengths) / workers).max() < 1


def test_blocks_do_not_show_in_the_order() -> None:
    lengths = np.full(500, 200)
    order = EpisodeOrder(lengths, seed=1, pool_size=7)
    whole = frames_of(order, Share())
    assert len(np.unique(whole[:, 0] * 1000 + whole[:, 1])) == 100_000
    for skip in (1, 16_383, 16_384, 16_385, 50_000, 99_999, 100_000, 100_001):
        assert np.array_equal(frames_of(order, Share(), skip=skip), whole[skip:])


def test_seeds_and_epochs_give_other_orders_and_equal_ones_the_same() -> None:
    lengths = np.arange(1, 30)

    def first(seed: int, epoch: int) -> list[list[int]]:
        return frames_of(EpisodeOrder(lengths, seed=seed), Share(), epoch=epoch)[:50].tolist()

    assert first(0, 0) == first(0, 0)
    distinct = {str(first(seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(distinct) == 9


def test_without_shuffling_episodes_and_frames_come_as_they_are() -> None:
    order = EpisodeOrder(np.array([3, 1, 2]), shuffle=False)
    assert frames_of(order, Share())[:, :2].tolist() == [
        [0, 0],
        [0, 1],
        [0, 2],
        [1, 0],
        [2, 0],
        [2, 1],
    ]


def distinct_episodes(episodes: np.ndarray, batch_size: int) -> float:
    batches = episodes[: len(episodes) // batch_size * batch_size].reshape(-1, batch_size)
    return float(np.mean([len(np.unique(batch)) / batch_size for batch in batches]))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("lengths", [[200] * 20, list(range(20, 400, 20))])
def test_a_pool_that_holds_all_episodes_mixes_as_one_shuffle_does(
    lengths: list[int], workers: int
) -> None:
    order = EpisodeOrder(np.array(lengths), pool_size=len(lengths))
    shares = [Share(0, 1, worker, workers) for worker in range(workers)]
    ours = np.mean([distinct_episodes(frames_of(order, share)[:, 0], 16) for share in shares])
    everything = np.repeat(np.arange(len(lengths)), lengths)
    shuffled = distinct_episodes(np.random.default_rng(0).permutation(everything), 16)
    assert ours == pytest.approx(shuffled, rel=0.03)


def test_a_small_pool_stays_full_until_the_end() -> None:
    # Drawing by the frames left of pooled episodes alone would leave a third of this.
    episodes = frames_of(EpisodeOrder(np.full(400, 100), pool_size=16), Share())[:, 0]
    expected = distinct_episodes(np.random.default_rng(0).integers(0, 16, 40_000), 16)
    for tenth in np.split(episodes, 10):
        assert distinct_episodes(tenth, 16) == pytest.approx(expected, rel=0.1)


@settings(max_examples=30)
@given(lengths=LENGTHS, skip=st.integers(0, 900), pool=st.integers(1, 5))
def test_a_walk_that_repeats_goes_through_the_epochs(
    lengths: list[int], skip: int, pool: int
) -> None:
    order = EpisodeOrder(np.array(lengths), pool_size=pool)
    share = Share(0, 1, 0, 1)
    epochs = np.concatenate([frames_of(order, share, epoch=epoch) for epoch in range(2, 5)])
    skip = min(skip, len(epochs) - 1)
    found: list[list[int]] = []
    for block in order.walk(2, share, skip=skip, repeat=True):
        found += np.stack(block, axis=1).tolist()
        if len(found) >= len(epochs) - skip:
            break
    assert found[: len(epochs) - skip] == epochs[skip:].tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_worker_without_episodes_ends_and_cannot_repeat(shuffle: bool) -> None:
    order = EpisodeOrder(np.array([3, 4]), pool_size=1, shuffle=shuffle)
    shares = [Share(0, 1, worker, 4) for worker in range(4)]
    given_out = [sum(len(b.frames) for b in order.blocks(0, share)) for share in shares]
    assert sorted(given_out) == [0, 0, 3, 4]
    idle = shares[given_out.index(0)]
    assert list(order.walk(0, idle)) == []
    with pytest.raises(UsageError, match="2 episodes are too few for 4"):
        list(order.walk(0, idle, repeat=True))


def test_skipping_ten_million_frames_takes_no_longer_than_dealing_episodes() -> None:
    order = EpisodeOrder(np.full(40_000, 250), pool_size=32)
    begin = time.perf_counter()
    block = next(order.blocks(0, Share(), skip=9_999_990))
    # A million a second would be ten seconds; this takes a twentieth of one.
    assert time.perf_counter() - begin < 5
    assert len(block.frames) == 10


def test_a_pool_without_a_place_and_a_negative_seed_are_refused() -> None:
    with pytest.raises(UsageError, match="episode_pool_size must be at least 1, not 0"):
        EpisodeOrder(np.array([1]), pool_size=0)
    with pytest.raises(UsageError, match="seed must be at least 0, not -1"):
        EpisodeOrder(np.array([1]), seed=-1)


@given(lengths=st.lists(st.integers(1, 100), max_size=50), shares=st.integers(1, 9))
def test_a_balanced_split_differs_by_the_longest_episode_at_most(
    lengths: list[int], shares: int
) -> None:
    parts = balanced_split(np.array(lengths, np.int64), shares)
    assert len(parts) == shares
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    loads = [sum(lengths[place] for place in part) for part in parts]
    assert max(loads) - min(loads) <= max(lengths, default=0)
