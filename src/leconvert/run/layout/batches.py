"""Cut the work of writing output files into batches, the unit that workers lease."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from leconvert.model.values import (
    DATA_STREAM,
    MEBIBYTE,
    Batch,
    IntArray,
    Shard,
    StreamLayout,
    StreamScan,
)
from leconvert.support.errors import UsageError

# What one episode costs on top of its bytes, in bytes that could be copied meanwhile: a table is
# decoded and encoded again (about 0.4 ms and a twelfth of the copying rate), a clip's index is
# parsed (about 0.1 ms). Only the balance between batches depends on them, never the result.
_TABLE_COST_FACTOR = 12
_TABLE_COST_PER_EPISODE = 768 * 1024
_CLIP_COST_PER_EPISODE = 256 * 1024

_SMALLEST_BATCH_COST = 16 * MEBIBYTE
_LARGEST_SHARED_BATCH_COST = 256 * MEBIBYTE
_BATCHES_WANTED = 64
_NONE_FIT: Mapping[str, npt.NDArray[np.bool_]] = MappingProxyType({})


def cut_batches(
    streams: Sequence[StreamScan],
    layouts: Sequence[StreamLayout],
    episodes_per_batch: int | None,
    fit: Mapping[str, npt.NDArray[np.bool_]] = _NONE_FIT,
    *,
    first: int = 0,
) -> list[Batch]:
    """Cut the work into batches, the most expensive first."""
    totals = _Totals(streams)
    if episodes_per_batch is None:
        groups = _by_output_file(totals, layouts, fit, first)
    elif episodes_per_batch > 0:
        groups = _by_episode_range(totals, layouts, episodes_per_batch, fit, first)
    else:
        raise UsageError(f"--episodes-per-batch must be positive, not {episodes_per_batch}.")
    costed = [(cost, group) for group, cost in groups]
    costed.sort(key=lambda entry: -entry[0])  # stable: ties stay in stream and file order
    return [Batch(batch_id, group, *totals.of(group)) for batch_id, (_, group) in enumerate(costed)]


class _Totals:
    """Sums of bytes, frames and cost over any range of positions, in constant time."""

    def __init__(self, streams: Sequence[StreamScan]) -> None:
        self._bytes = {s.stream: _running_sum(s.size_bytes) for s in streams}
        self._frames = {s.stream: _running_sum(s.frames) for s in streams}

    def cost(self, stream: str, first: int, stop: int) -> int:
        (cost,) = self.costs(stream, np.array([first, stop]))
        return cost

    def costs(self, stream: str, edges: IntArray) -> list[int]:
        """Return the cost between each two neighbours of some positions."""
        sizes, episodes = np.diff(self._bytes[stream][edges]), np.diff(edges)
        costs: list[int]
        if stream == DATA_STREAM:
            costs = (sizes * _TABLE_COST_FACTOR + episodes * _TABLE_COST_PER_EPISODE).tolist()
        else:
            costs = (sizes + episodes * _CLIP_COST_PER_EPISODE).tolist()
        return costs

    def of(self, shards: Sequence[Shard]) -> tuple[int, int]:
        """Return source bytes and frames of some shards."""
        size_bytes = frames = 0
        for stream, first, stop in _runs(shards):
            size_bytes += int(self._bytes[stream][stop] - self._bytes[stream][first])
            frames += int(self._frames[stream][stop] - self._frames[stream][first])
        return size_bytes, frames


def _runs(shards: Sequence[Shard]) -> Iterator[tuple[str, int, int]]:
    """Yield the positions of shards that follow each other in a stream: mostly all of a batch."""
    stream, first, stop = "", 0, 0
    for shard in shards:
        if shard.stream != stream or shard.first != stop:
            if stream:
                yield stream, first, stop
            stream, first = shard.stream, shard.first
        stop = shard.stop
    if stream:
        yield stream, first, stop


def _running_sum(values: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(values, dtype=np.int64)))


def _by_output_file(
    totals: _Totals,
    layouts: Sequence[StreamLayout],
    fit: Mapping[str, npt.NDArray[np.bool_]],
    first: int,
) -> Iterator[tuple[tuple[Shard, ...], int]]:
    """Yield one file a batch, or neighbours of one stream up to a shared cost."""
    whole_cost = sum(totals.cost(s.stream, first, int(s.starts[-1])) for s in layouts)
    shared_cost = min(
        max(whole_cost // _BATCHES_WANTED, _SMALLEST_BATCH_COST), _LARGEST_SHARED_BATCH_COST
    )
    for layout in layouts:
        pending: list[Shard] = []
        pending_cost = 0
        begin = int(np.searchsorted(layout.starts, first))
        costs = totals.costs(layout.stream, layout.starts[begin:])
        kept = fit[layout.stream][first:].tolist() if layout.stream in fit else repeat(False)
        files = enumerate(pairwise(layout.starts[begin:].tolist()), begin)
        for (number, (file_first, stop)), cost, keep in zip(files, costs, kept, strict=False):
            if pending and pending_cost + cost > shared_cost:
                yield tuple(pending), pending_cost
                pending, pending_cost = [], 0
            pending.append(Shard(layout.stream, number, file_first, stop, True, keep))
            pending_cost += cost
        yield tuple(pending), pending_cost


def _by_episode_range(
    totals: _Totals,
    layouts: Sequence[StreamLayout],
    episodes_per_batch: int,
    fit: Mapping[str, npt.NDArray[np.bool_]],
    begins: int,
) -> Iterator[tuple[tuple[Shard, ...], int]]:
    """Yield the slices of consecutive episodes over all streams."""
    num_episodes = int(layouts[0].starts[-1]) if layouts else 0
    for first in range(begins, num_episodes, episodes_per_batch):
        stop = min(first + episodes_per_batch, num_episodes)
        shards: list[Shard] = []
        for layout in layouts:
            first_file, last_file = layout.file_numbers(np.array([first, stop - 1])).tolist()
            for number in range(first_file, last_file + 1):
                file = layout.file(number)
                begin, end = max(first, file.first), min(stop, file.stop)
                whole = (begin, end) == (file.first, file.stop)
                keep = layout.stream in fit and bool(fit[layout.stream][begin])
                shards.append(Shard(layout.stream, number, begin, end, whole, keep))
        cost = sum(totals.cost(s.stream, s.first, s.stop) for s in shards)
        yield tuple(shards), cost
