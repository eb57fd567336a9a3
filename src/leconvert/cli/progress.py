"""Progress on stderr: bars on a terminal, otherwise a plain line now and then."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import Self, TextIO

from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.text import amount, count, duration

# The time left, shown once it is more than a guess.


_TELLING_SHARE = 0.1
_TELLING_SECONDS = 30.0


def _tells_time_left(done: int, total: int, seconds: float) -> bool:
    return done >= _TELLING_SHARE * total or (done > 0 and seconds >= _TELLING_SECONDS)


# A stage that shows itself again and again: otherwise one that takes minutes for a step looks dead.


class _Ticking(ABC):
    """A stage that a thread shows every few seconds, from the beginning of its block to the end."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leconvert-progress", daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self.advance(0)

    @abstractmethod
    def advance(self, amount: int) -> None:
        """Show that so much more is done."""

    @abstractmethod
    def close(self) -> None:
        """Show the end."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.close()


# A stage as a bar with rate and time left, for a terminal.


_SHOW_EVERY_SECONDS = 1.0
_NAME_WIDTH = 6
_SHORTENED_FROM = 100_000
_WITHOUT_TIME_LEFT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]"
_SHARE_ALONE = "{l_bar}{bar}| [{elapsed}<{remaining}]"
_SHARE_WITHOUT_TIME_LEFT = "{l_bar}{bar}| [{elapsed}]"
# Units whose rate nobody wants to know.
_WITHOUT_RATE = frozenset({"%", "s"})
_ROUNDED_FROM = 10


class _Bar(_Ticking):
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        from tqdm import tqdm

        super().__init__(_SHOW_EVERY_SECONDS)
        shows_share = unit in _WITHOUT_RATE
        self._with_time_left = _SHARE_ALONE if shows_share else None
        self._bar = tqdm(
            desc=f"{name:<{_NAME_WIDTH}}",
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B" or total >= _SHORTENED_FROM,  # else 18 would read 18.0
            unit_divisor=1024 if unit == "B" else 1000,
            file=stream,
            bar_format=_SHARE_WITHOUT_TIME_LEFT if shows_share else _WITHOUT_TIME_LEFT,
            dynamic_ncols=True,
            disable=None,
        )

    def advance(self, amount: int) -> None:
        with self._lock:
            bar = self._bar
            if not amount:  # the clock
                bar.refresh()
                return
            if _tells_time_left(bar.n + amount, bar.total, bar.format_dict["elapsed"]):
                bar.bar_format = self._with_time_left
            bar.update(amount)

    def close(self) -> None:
        self._bar.close()


# A stage as plain lines now and then, for logs.


_LINE_EVERY_SECONDS = 5.0


class _Lines(_Ticking):
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        super().__init__(_LINE_EVERY_SECONDS)
        self._stream = stream
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._started = self._said = time.monotonic()

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
        of_share = self._unit == "%"
        line = f"{self._name}: "
        line += self._share() if of_share else _amount(self._done, self._unit)
        if self._done < self._total:
            line += "" if of_share else f" of {_amount(self._total, self._unit)}"
            if _tells_time_left(self._done, self._total, seconds):
                line += f", about {duration((self._total - self._done) / rate)} left"
        is_told = rate > 0 and self._unit not in _WITHOUT_RATE
        line += f" ({seconds:.1f} s{f', {_rate(rate, self._unit)}/s' if is_told else ''})"
        print(line, file=self._stream, flush=True)

    def _share(self) -> str:
        return f"{100 * self._done // max(1, self._total)} %"

    def close(self) -> None:
        with self._lock:
            self._print(time.monotonic())


def _rate(value: float, unit: str) -> str:
    is_whole = unit == "B" or value >= _ROUNDED_FROM
    return _amount(value, unit) if is_whole else f"{value:.2g} {unit}"


def _amount(value: float, unit: str) -> str:
    if unit == "B":
        return amount(value)
    return count(round(value), unit.removesuffix("s"), unit)


# The choice between both.


class ShownProgress:
    """Progress as bars on a terminal, as lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def stage(self, name: str, total: int, unit: str) -> Stage:
        """Return a stage that is shown while its block runs."""
        kind = _Bar if self._stream.isatty() else _Lines
        return kind(self._stream, name, total, unit)

    def say(self, line: str) -> None:
        """Print a line, above the bars if there are any."""
        if self._stream.isatty():
            from tqdm import tqdm

            tqdm.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)


def progress_for(*, quiet: bool = False) -> Progress:
    """Return progress on stderr; none if ``quiet``."""
    return NO_PROGRESS if quiet else ShownProgress(sys.stderr)
