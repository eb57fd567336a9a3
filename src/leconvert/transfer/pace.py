"""How fast the Hub may be asked: one record that all workers of a fleet read before each request.

Where the Hub answers that there were too many requests (429), or fails (5xx), nobody who shares the
record asks again before the time in it. So one refused request slows down all hosts, and the others
do not run into the same limit one after another.

Guaranteed: a request that begins after the record was written waits. Not guaranteed: that the Hub
is satisfied by it; whoever is refused again writes the record again. Requests under way are not
held. Uploads and downloads through Xet are made by a library of the client that asks for its own
pauses; what is asked before and after them waits.

Times are those of the hosts' clocks. A clock that is wrong makes a pause shorter, or as long as
`LONGEST_PAUSE_SECONDS`, never longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leconvert.support.errors import InterruptedRunError, LeconvertError
from leconvert.transfer.client import asked_to_wait, attach_hooks, follow_pace
from leconvert.workdir.fs import replace_record
from leconvert.workdir.records import encode_record, find_record

LONGEST_PAUSE_SECONDS = 900.0
_UNTOLD_LIMIT_SECONDS = 60.0  # 429 without a time; the Hub's own windows are of 5 minutes
_FIRST_FAILURE_SECONDS = 2.0
_LONGEST_FAILURE_SECONDS = 30.0
_OF_THE_MOMENT = frozenset({500, 502, 503, 504})
_KIND = "hub-pause"
_VERSION = 1


def read_pause(path: Path, now: float) -> float:
    """Return for how many seconds more the Hub is not to be asked; 0 where it may be."""
    try:
        record = find_record(path, _KIND, version=_VERSION)
    except (LeconvertError, OSError):
        return 0.0  # a pause is a courtesy: without its record the Hub says itself what it wants
    left = float(record["until"]) - now if record else 0.0
    return min(max(left, 0.0), LONGEST_PAUSE_SECONDS)


def wait_for_hub(
    stop: threading.Event,
    seconds: float,
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> None:
    """Wait so many seconds.

    Raises:
        InterruptedRunError: It was stopped meanwhile.
    """
    if wait(stop, seconds):
        raise InterruptedRunError(
            "Stopped while the Hub asked to wait.",
            next_step="Run the same command again to go on.",
        )


class Pace:
    """The record of a fleet, as one process reads and writes it. Threads may share it.

    Args:
        path: The record.
        stop: Ends a pause, with an error.
        clock: Seconds since the epoch.
        wait: Waits for the event or so many seconds.

    Attributes:
        answers: Answers of this process that were no refusal for the moment.
        limited: Answers of this process that said that there were too many requests.
    """

    def __init__(
        self,
        path: Path,
        stop: threading.Event,
        *,
        clock: Callable[[], float] = time.time,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._path = path
        self._stop = stop
        self._clock = clock
        self._wait = wait
        self._failures = 0
        self.answers = 0
        self.limited = 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Let every request of this process follow the record within the block."""
        with follow_pace(self):
            attach_hooks()
            yield

    def before(self) -> None:
        """Wait until the Hub may be asked."""
        while left := read_pause(self._path, self._clock()):
            wait_for_hub(self._stop, left, self._wait)

    def after(self, status: int, headers: Any) -> None:
        """Take note of an answer."""
        if status == 429:
            self.limited += 1
            self._pause(asked_to_wait(status, headers) or _UNTOLD_LIMIT_SECONDS)
        elif status in _OF_THE_MOMENT:
            self.failed(asked_to_wait(status, headers))
        else:
            self.answers += 1
            self._failures = 0

    def failed(self, asked_seconds: float = 0.0) -> None:
        """Take note that the Hub failed, or did not answer: pauses grow until it answers."""
        seconds = min(_FIRST_FAILURE_SECONDS * 2**self._failures, _LONGEST_FAILURE_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._pause(asked_seconds or seconds)

    def _pause(self, seconds: float) -> None:
        now = self._clock()
        if seconds <= read_pause(self._path, now):
            return
        fields = {"until": round(now + min(seconds, LONGEST_PAUSE_SECONDS), 3)}
        with suppress(LeconvertError, OSError):
            replace_record(self._path, encode_record(_KIND, _VERSION, "-", fields))
