"""Shares of nodes: whole groups of episodes that share files, so that no file is fetched twice.

Where there are fewer such groups than nodes, single episodes are shared out instead.

Pure. Which rank and worker of a node gets which episode is another matter: see `order`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from leconvert.errors import UsageError
from leconvert.model import IntArray

__all__ = ["chosen_episodes", "group_episodes_by_files", "partition_episodes"]


def group_episodes_by_files(files: Sequence[IntArray]) -> list[IntArray]:
    """Group episodes that are connected by files that they share (union-find).

    Args:
        files: For each kind of file (data, each camera) the file of each episode, shape (E,).

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
    """Deal groups to partitions: the longest first, each to the partition with the fewest frames.

    Longest processing time first keeps the largest partition within 4/3 of the best possible
    (Graham 1969).

    Args:
        groups: Places of episodes.
        lengths: Frames of each episode, shape (E,).
        num_partitions: How many; some are empty where there are fewer groups.

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

    Args:
        indices: ``episode_index`` of each episode, shape (E,).
        lengths: Frames of each episode.
        files: As for `group_episodes_by_files`.
        episodes: Indices to take; None for all.
        max_episodes: Take no more than these; None for all.
        num_partitions: Number of nodes.
        partition_index: This node.

    Raises:
        UsageError: An episode does not exist, a number makes no sense, or this node gets nothing.
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
            raise UsageError(f"At most {max_episodes} episodes are none.")
        places = places[:max_episodes]
    if not 0 <= partition_index < num_partitions:
        raise UsageError(f"There is no partition {partition_index} of {num_partitions}.")
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
