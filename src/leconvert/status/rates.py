"""How fast workers are, from what an observer saw on its own clock; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Progressed", "RateWindow", "seconds_left"]

_WINDOW_SECONDS = 60.0
_SHORTEST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a worker has come, by its own account.

    Attributes:
        size_bytes: Source bytes that it went through.
        frames: Frames and rows of batches that it finished.
        seconds: How long it has been running.
    """

    size_bytes: int
    frames: int
    seconds: float


class RateWindow:
    """Rates over the last minute that was watched.

    A worker that the observer has seen for less than a second is given its own mean since it
    began: better than nothing at the first look.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, Progressed]]] = deque()

    def add(self, now: float, seen: Mapping[str, Progressed]) -> None:
        """Add a look.

        Args:
            now: The observer's monotonic clock, in seconds.
            seen: All workers by token.
        """
        self._looks.append((now, dict(seen)))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _WINDOW_SECONDS:
            self._looks.popleft()

    def rates(self, token: str) -> tuple[float, float]:
        """Return a worker's bytes and frames a second as of the last look."""
        now, latest = self._looks[-1]
        last = latest.get(token)
        if last is None:
            return 0.0, 0.0
        for then, seen in self._looks:
            first = seen.get(token)
            if first is not None and now - then >= _SHORTEST_SECONDS:
                seconds = now - then
                moved, frames = last.size_bytes - first.size_bytes, last.frames - first.frames
                return max(0, moved) / seconds, max(0, frames) / seconds
        if last.seconds <= 0:
            return 0.0, 0.0
        return last.size_bytes / last.seconds, last.frames / last.seconds


def seconds_left(left_bytes: int, bytes_per_second: float) -> float | None:
    """Return how long the rest takes at this rate; None where nothing moves."""
    if left_bytes <= 0:
        return 0.0
    return left_bytes / bytes_per_second if bytes_per_second > 0 else None
