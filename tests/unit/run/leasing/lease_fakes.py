"""A clock that the test turns, and the type of the store factory."""

from __future__ import annotations

from collections.abc import Callable

from leconvert.run.leasing import LeaseStore

MakeStore = Callable[..., LeaseStore]


class FakeClock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
