"""Does storage make a thread wait, or does it compute? Many threads help only in the first case."""

from __future__ import annotations

import time
from typing import Self

__all__ = ["THREADS_THAT_WAIT", "Latency", "is_waiting"]

THREADS_THAT_WAIT = 16
"""Requests to have under way at a time where each is answered late, as over a network."""

_WAITING_FROM = 2.0


def is_waiting(cpu_seconds: float, wall_seconds: float) -> bool:
    """Tell whether a thread spent half of its time or more waiting."""
    return wall_seconds > _WAITING_FROM * cpu_seconds


class Latency:
    """A context that measures this thread: what one piece of work cost tells how to do the rest."""

    cpu_seconds = 0.0
    wall_seconds = 0.0

    def __enter__(self) -> Self:
        self._cpu, self._wall = time.thread_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_seconds = time.thread_time() - self._cpu
        self.wall_seconds = time.perf_counter() - self._wall

    @property
    def dominates(self) -> bool:
        """Whether it waited for half of the time or more."""
        return is_waiting(self.cpu_seconds, self.wall_seconds)
