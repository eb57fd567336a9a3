"""Shares of nodes: whole groups of episodes that share files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.loading.order import chosen_episodes, group_episodes_by_files, partition_episodes
from leconvert.support.errors import UsageError

FILES = st.integers(1, 20).flatmap(
    lambda episodes: st.lists(
        st.lists(st.integers(0, 6), min_size=episodes, max_size=episodes), min_size=1, max_size=3
    )
)


def connected(files: list[list[int]]) -> list[set[int]]:
    """Group by repeated merging: slow and plain."""
    groups = [{episode} for episode in range(len(files[0]))]
    for numbers in files:
        for file in set(numbers):
            members = {episode for episode, other in enumerate(numbers) if other == file}
            touched = [group for group in groups if group & members]
            groups = [group for group in groups if not group & members]
            groups.append(set().union(*touched))
    return sorted(groups, key=min)


@given(files=FILES)
def test_groups_are_what_files_connect(files: list[list[int]]) -> None:
    groups = group_episodes_by_files([np.array(numbers) for numbers in files])
    assert [set(group.tolist()) for group in groups] == connected(files)
    assert all(np.all(np.diff(group) > 0) for group in groups)


def test_no_episodes_make_no_groups() -> None:
    assert group_episodes_by_files([np.empty(0, np.int64)]) == []


@given(files=FILES, partitions=st.integers(1, 5), seed=st.integers(0, 9))
def test_partitions_are_complete_and_share_no_file(
    files: list[list[int]], partitions: int, seed: int
) -> None:
    arrays = [np.array(numbers) for numbers in files]
    lengths = np.random.default_rng(seed).integers(1, 50, len(files[0]))
    groups = group_episodes_by_files(arrays)
    parts = partition_episodes(groups, lengths, partitions)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    for numbers in arrays:
        seen = [set(numbers[part].tolist()) for part in parts]
        assert sum(len(one) for one in seen) == len(set().union(*seen))
    loads = [int(lengths[part].sum()) for part in parts]
    largest = max(int(lengths[group].sum()) for group in groups)
    # Graham's bound, with the best possible being no less than either of these.
    best = max(largest, sum(loads) / partitions)
    assert max(loads) <= (4 / 3) * best + largest * (len(groups) < partitions)


def test_plain_lists_are_taken_as_well() -> None:
    groups = group_episodes_by_files([[0, 0, 1, 2], [5, 6, 6, 7]])
    assert [group.tolist() for group in groups] == [[0, 1, 2], [3]]
    parts = partition_episodes([[0, 1, 2], [3]], [5, 5, 5, 40], 2)
    assert [part.tolist() for part in parts] == [[3], [0, 1, 2]]


def choose(**options):
    indices = np.array([0, 1, 2, 5, 7])
    lengths = np.array([10, 20, 30, 40, 50])
    files = [np.array([0, 0, 1, 1, 2])]
    return indices[chosen_episodes(indices, lengths, files, **options)].tolist()


def test_episodes_are_chosen_then_limited_then_partitioned() -> None:
    assert choose() == [0, 1, 2, 5, 7]
    assert choose(episodes=[7, 1, 1]) == [1, 7]
    assert choose(max_episodes=3) == [0, 1, 2]
    assert choose(num_partitions=2) == [2, 5]
    assert choose(num_partitions=2, partition_index=1) == [0, 1, 7]
    assert [choose(num_partitions=3, partition_index=n) for n in range(3)] == [[2, 5], [7], [0, 1]]
    assert choose(episodes=[5, 7, 0], max_episodes=2, num_partitions=2) == [5]


def test_where_files_are_fewer_than_nodes_single_episodes_are_shared_out() -> None:
    shares = [choose(num_partitions=5, partition_index=index) for index in range(5)]
    assert sorted(shares) == [[0], [1], [2], [5], [7]]


def test_more_partitions_than_memory_has_places_for_are_shared_out_as_well() -> None:
    assert choose(num_partitions=10**30, partition_index=2) == choose(
        num_partitions=5, partition_index=2
    )
    with pytest.raises(UsageError, match=rf"Partition 5 of {10**30} would have no episodes"):
        choose(num_partitions=10**30, partition_index=5)


def test_no_partition_is_refused() -> None:
    with pytest.raises(UsageError, match="num_partitions must be at least 1, not 0"):
        partition_episodes([[0], [1]], [1, 2], 0)


def test_a_share_without_episodes_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        UsageError, match=r"^Partition 5 of 6 would have no episodes: the dataset has only 5\.$"
    ):
        choose(num_partitions=6, partition_index=5)


@pytest.mark.parametrize(
    "options",
    [
        {"episodes": [3]},
        {"max_episodes": 0},
        {"num_partitions": 2, "partition_index": 2},
        {"num_partitions": 0},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        choose(**options)
