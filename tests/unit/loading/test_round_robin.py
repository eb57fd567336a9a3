"""Whose turn it is among a loader's workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leconvert.loading.order import num_batches, turn_after


def in_turn(available: list[int]) -> list[int]:
    """Take one batch at a time: worker after worker, those without any left out."""
    left = list(available)
    order = []
    while any(left):
        for worker, count in enumerate(left):
            if count:
                order.append(worker)
                left[worker] -= 1
    return order


@given(available=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_a_turn_is_what_taking_one_by_one_comes_to(available: list[int]) -> None:
    order = in_turn(available)
    for batches in range(len(order) + 1):
        turn = turn_after(batches, available, len(available))
        assert list(turn.taken) == [
            order[:batches].count(worker) for worker in range(len(available))
        ]
        if batches < len(order):
            assert turn.next_worker == order[batches]


@given(batches=st.integers(0, 100), workers=st.integers(1, 7))
def test_without_an_end_workers_come_in_turn(batches: int, workers: int) -> None:
    turn = turn_after(batches, None, workers)
    assert sum(turn.taken) == batches
    assert turn.next_worker == batches % workers
    assert max(turn.taken) - min(turn.taken) <= 1
    assert turn == turn_after(batches, [1000] * workers, workers)


def test_the_last_batch_counts_unless_it_is_dropped() -> None:
    assert [num_batches(n, 4, drop_last=False) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [num_batches(n, 4, drop_last=True) for n in (0, 1, 4, 5)] == [0, 0, 1, 1]
