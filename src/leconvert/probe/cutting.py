"""Cut an order into batches, and say which episodes come next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from leconvert.model import IntArray
from leconvert.probe.order import OrderBlock

__all__ = ["cut_batches"]


def cut_batches(
    blocks: Iterable[OrderBlock],
    batch_size: int,
    *,
    coming: Callable[[list[int]], None],
    ahead: int,
) -> Iterator[OrderBlock]:
    """Yield the frames of each batch; batches go on over the ends of blocks.

    Args:
        blocks: An order.
        batch_size: Samples of a batch; the last one may be smaller.
        coming: Told before each batch which episodes appear for the first time from there on.
        ahead: How many of them; 0 to say nothing.
    """
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
    return OrderBlock(
        np.concatenate((first.episodes, second.episodes)),
        np.concatenate((first.frames, second.frames)),
        np.concatenate((first.is_last, second.is_last)),
    )


def _first_appearances(block: OrderBlock) -> tuple[IntArray, list[int]]:
    """Return where each episode appears first, ascending, and the episodes."""
    episodes, places = np.unique(block.episodes, return_index=True)
    by_place = np.argsort(places)
    found: list[int] = episodes[by_place].tolist()
    return places[by_place], found
