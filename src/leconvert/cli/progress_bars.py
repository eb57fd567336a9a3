"""Progress as bars, for a terminal."""

from __future__ import annotations

import threading
from typing import Self, TextIO

from leconvert.cli.progress_clock import Clock
from leconvert.progress import Stage

__all__ = ["BarProgress"]

_SHOW_EVERY_SECONDS = 1.0
_NAME_WIDTH = 6
_SHORTENED_FROM = 100_000


class BarProgress:
    """tqdm bars with rate and time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def stage(self, name: str, total: int, unit: str) -> Stage:
        """Return a stage with a bar of its own."""
        return _Bar(self._stream, name, total, unit)

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        from tqdm import tqdm

        tqdm.write(line, file=self._stream)


class _Bar:
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        from tqdm import tqdm

        self._lock = threading.Lock()
        self._bar = tqdm(
            desc=f"{name:<{_NAME_WIDTH}}",
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B" or total >= _SHORTENED_FROM,  # else 18 would read 18.0
            unit_divisor=1024 if unit == "B" else 1000,
            file=stream,
            dynamic_ncols=True,
            disable=None,
        )
        self._clock = Clock(_SHOW_EVERY_SECONDS, self._show)

    def advance(self, amount: int) -> None:
        with self._lock:
            self._bar.update(amount)

    def _show(self) -> None:
        with self._lock:
            self._bar.refresh()

    def __enter__(self) -> Self:
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.stop()
        self._bar.close()
