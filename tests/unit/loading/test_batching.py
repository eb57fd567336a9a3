"""Batches of an order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leconvert.loading.order import OrderBlock, order_batches

LENGTHS = st.lists(st.integers(0, 9), max_size=6)


def blocks_of(lengths: list[int]) -> list[OrderBlock]:
    """Number the frames; each episode has three of them."""
    numbers = np.arange(sum(lengths))
    parts = np.split(numbers, np.cumsum(lengths)[:-1]) if lengths else []
    return [OrderBlock(part // 3, part, part, part) for part in parts]


@given(lengths=LENGTHS, batch_size=st.integers(1, 7))
def test_batches_are_full_but_for_the_last_and_keep_the_order(
    lengths: list[int], batch_size: int
) -> None:
    def hear(_: list[int]) -> None:
        raise AssertionError("nothing is to be told")

    batches = list(order_batches(blocks_of(lengths), batch_size, coming=hear, ahead=0))
    frames = [batch.frames.tolist() for batch in batches]
    assert sum(frames, start=[]) == list(range(sum(lengths)))  # noqa: RUF017 (a few numbers)
    assert all(len(batch) == batch_size for batch in frames[:-1])


@given(lengths=LENGTHS, batch_size=st.integers(1, 7), ahead=st.integers(1, 9))
def test_episodes_are_announced_when_they_appear_next(
    lengths: list[int], batch_size: int, ahead: int
) -> None:
    announced: list[list[int]] = []
    batches = order_batches(blocks_of(lengths), batch_size, coming=announced.append, ahead=ahead)
    for number, batch in enumerate(batches):
        if number == len(announced):
            assert len(batch.frames) < batch_size  # the last one, which was spoken of before
            break
        told = announced[number]
        assert len(told) <= ahead
        assert told == sorted(told)
        first = int(batch.frames[0])
        new = [episode for episode in range(first // 3, 99) if 3 * episode >= first]
        fresh = [episode for episode in batch.episodes.tolist() if episode in new]
        assert set(fresh) <= set(told) or len(told) == ahead
