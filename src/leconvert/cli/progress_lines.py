"""Progress as plain lines now and then, for logs."""

from __future__ import annotations

import threading
import time
from typing import Self, TextIO

from leconvert.cli.progress_clock import Clock
from leconvert.progress import Stage
from leconvert.text import amount

__all__ = ["LineProgress"]

_LINE_EVERY_SECONDS = 5.0


class LineProgress:
    """A line at the start and the end of each stage and every few seconds between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def stage(self, name: str, total: int, unit: str) -> Stage:
        """Return a stage that prints lines."""
        return _Lines(self._stream, name, total, unit)

    def say(self, line: str) -> None:
        """Print the line."""
        print(line, file=self._stream, flush=True)


class _Lines:
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        self._stream = stream
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._lock = threading.Lock()
        self._started = self._said = time.monotonic()
        self._clock = Clock(_LINE_EVERY_SECONDS, lambda: self.advance(0))

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            now = time.monotonic()
            if now - self._said >= _LINE_EVERY_SECONDS and self._done < self._total:
                self._said = now
                self._print(now)

    def _print(self, now: float) -> None:
        seconds = now - self._started
        rate = self._done / seconds if seconds > 0 else 0.0
        line = f"{self._name}: {_amount(self._done, self._unit)}"
        if self._done < self._total:
            line += f" of {_amount(self._total, self._unit)}"
            if rate > 0:
                line += f", {(self._total - self._done) / rate:.0f} s left"
        line += f" ({seconds:.1f} s, {_amount(rate, self._unit)}/s)"
        print(line, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.stop()
        with self._lock:
            self._print(time.monotonic())


def _amount(value: float, unit: str) -> str:
    return amount(value) if unit == "B" else f"{value:,.0f} {unit}"
