"""How long a worker bears a disk that fails, before it gives up; pure."""

from __future__ import annotations

__all__ = ["Patience"]

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class Patience:
    """Pauses between tries: each twice as long as the last, bounded one by one and in all.

    Only the pauses count, not the tries and not what went well between two troubles; so an hour of
    useful waiting does not use it up.

    Args:
        seconds: All pauses together; 0 for none at all.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._next = _FIRST_PAUSE_SECONDS

    @property
    def spent_seconds(self) -> float:
        """All pauses since the last success."""
        return self._spent

    def next_pause(self) -> float | None:
        """Return how long to wait before the next try, in seconds; None where it is used up."""
        pause = min(self._next, self._seconds - self._spent)
        if pause <= 0:
            return None
        self._spent += pause
        self._next = min(2 * self._next, _LONGEST_PAUSE_SECONDS)
        return pause

    def reset(self) -> None:
        """Begin anew: something went well."""
        self._spent = 0.0
        self._next = _FIRST_PAUSE_SECONDS
