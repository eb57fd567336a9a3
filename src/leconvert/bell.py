"""Wakes idle threads of one process."""

from __future__ import annotations

import threading

__all__ = ["Bell"]


class Bell:
    """Wakes the idle workers of one process when another of them ends a batch.

    It only saves waiting: a worker that misses a ring looks again by itself.
    """

    def __init__(self) -> None:
        self._rung = threading.Condition()

    def ring(self) -> None:
        """Wake all who wait."""
        with self._rung:
            self._rung.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for a ring, at most so long; say whether it came."""
        with self._rung:
            return self._rung.wait(seconds)
