"""A clock that the test turns, and what every test does with leases."""

from __future__ import annotations

from collections.abc import Callable

from leconvert.run.leasing import Lease, LeaseStore

MakeStore = Callable[..., LeaseStore]


class FakeClock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


def claim(store: LeaseStore, batch_id: int = 7) -> Lease:
    lease = store.claim(batch_id)
    assert lease is not None
    return lease


def taken_over(store: LeaseStore, clock: FakeClock) -> Lease:
    """Let another worker wait in vain for the holder of batch 7."""
    assert store.claim(7) is None
    clock.advance(60)
    return claim(store)
