"""A clock beside a stage: what does not move for minutes looks dead."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """Ticks in a thread from `start` to `stop`.

    Args:
        every_seconds: How often.
        tick: What to call; it must not fail.
    """

    def __init__(self, every_seconds: float, tick: Callable[[], None]) -> None:
        self._every_seconds = every_seconds
        self._tick = tick
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leconvert-progress", daemon=True)

    def start(self) -> None:
        """Begin; once only."""
        self._thread.start()

    def stop(self) -> None:
        """End, after a tick under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self._tick()
