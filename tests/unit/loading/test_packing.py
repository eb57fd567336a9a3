"""A batch is copied whole, into memory that the next one overwrites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leconvert.bench.resampling import SyntheticSet
from leconvert.loading.resampling import Packed, PackMemory, pack
from leconvert.loading.trajectories import Trajectory


def trajectories() -> list[Trajectory]:
    source = SyntheticSet(count=5, seed=3)
    return [source.load(place) for place in range(len(source))]


def holds(packed: Packed, given: Sequence[Trajectory]) -> None:
    """Assert that a batch is its trajectories, their times rebased."""
    for row, one in enumerate(given):
        begin = int(packed.first_row[row])
        span = slice(begin, begin + len(one))
        seconds = one.times - one.times[0]
        assert packed.lengths[row] == len(one)
        assert packed.durations_s[row] == seconds[-1]
        assert np.array_equal(packed.times.numpy()[span], seconds)
        for key, values in one.columns.items():
            flat = values.reshape(len(one), -1)
            assert np.array_equal(packed.rows[key].numpy()[span], flat), key
    assert len(packed.times) == sum(map(len, given))


def test_a_batch_overwrites_the_one_before_in_the_same_memory() -> None:
    memory, given = PackMemory(), trajectories()

    first = pack(given[:2], memory)
    second = pack(given[2:], memory)

    holds(second, given[2:])
    assert first.times.data_ptr() == second.times.data_ptr()
