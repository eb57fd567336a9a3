"""When an attempt began and ended, for people to look at; nothing decides by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

__all__ = ["AttemptTimes", "utc_now"]


def utc_now() -> datetime:
    """Return this host's wall clock, in UTC."""
    return datetime.now(UTC)


class AttemptTimes:
    """The times of one attempt: points on its host's wall clock, the duration on a monotonic one.

    Hosts' wall clocks disagree and jump. So points are only good for showing, and a duration is
    never computed from two of them.

    Args:
        now: The wall clock, with its zone.
        monotonic: A monotonic clock in seconds.
    """

    def __init__(
        self,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._monotonic = monotonic
        self._began = now()
        self._mark = monotonic()

    def of_end(self) -> dict[str, Any]:
        """Return what a record of the end carries: ``began``, ``ended`` and ``seconds``."""
        return {
            "began": _text(self._began),
            "ended": _text(self._now()),
            "seconds": round(self._monotonic() - self._mark, 3),
        }

    def of_beat(self) -> dict[str, Any]:
        """Return what a heartbeat carries: ``began``, and ``beat``, the time of the beat."""
        return {"began": _text(self._began), "beat": _text(self._now())}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
