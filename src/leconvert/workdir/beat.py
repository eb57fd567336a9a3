"""A thread that does something at intervals: what heartbeats of leases and of locks are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

__all__ = ["Beat", "wait_for"]


def wait_for(stop: threading.Event, seconds: float) -> bool:
    """Wait for an event or so many seconds, and say whether it is set."""
    return stop.wait(seconds)


class Beat:
    """Calls a function at intervals until the ``with`` block ends or the function says so.

    The first call comes after one interval. Leaving the block waits for a call that is under way.
    Not guaranteed: that calls are on time. A frozen process makes none.

    Args:
        call: What to do; returns whether to go on. What it raises ends the thread.
        interval_seconds: Time from the end of one call to the next.
        name: The thread's name.
        waiter: Waits for the event or so many seconds, and says whether the event is set.
    """

    def __init__(
        self,
        call: Callable[[], bool],
        interval_seconds: float,
        *,
        name: str,
        waiter: Callable[[threading.Event, float], bool] = wait_for,
    ) -> None:
        self._call = call
        self._interval_seconds = interval_seconds
        self._waiter = waiter
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._waiter(self._stop, self._interval_seconds):
            if not self._call():
                return
