"""Signals that ask a run to stop: the batch in hand goes back, and the run can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signals"]

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGUSR1 set.

    A second SIGINT raises KeyboardInterrupt, for whoever does not want to wait.
    """
    stop = threading.Event()

    def ask(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in _STOPPING}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
