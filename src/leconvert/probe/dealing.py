"""Whose turn it is: how torch's DataLoader deals batches of workers, as arithmetic. Pure.

It asks its workers in turn, and leaves out those that have ended. So after any number of batches it
is known how many came from each worker and which one is next, without asking anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Turn", "num_batches", "turn_after"]


class Turn(NamedTuple):
    """A point between two batches.

    Attributes:
        taken: Batches that came from each worker.
        next_worker: Who gives the next one.
    """

    taken: tuple[int, ...]
    next_worker: int


def num_batches(frames: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many batches a worker makes of its frames."""
    return frames // batch_size if drop_last else -(-frames // batch_size)


def turn_after(batches: int, available: Sequence[int] | None, num_workers: int) -> Turn:
    """Return where a loader stands after some batches.

    Args:
        batches: How many it handed out.
        available: Batches that each worker has; None where they have no end.
        num_workers: How many workers there are.
    """
    if available is None:
        rounds, rest = divmod(batches, num_workers)
        taken = tuple(rounds + (worker < rest) for worker in range(num_workers))
        return Turn(taken, rest)
    done = 0
    while True:
        active = [worker for worker in range(num_workers) if available[worker] > done]
        if not active:
            return Turn(tuple(available), 0)
        rounds = min(available[worker] for worker in active) - done
        if batches < rounds * len(active):
            extra, rest = divmod(batches, len(active))
            done += extra
            given = [min(count, done) for count in available]
            for worker in active[:rest]:
                given[worker] += 1
            return Turn(tuple(given), active[rest])
        batches -= rounds * len(active)
        done += rounds
