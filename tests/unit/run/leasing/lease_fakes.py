"""What every test does with leases."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.conftest import TurnedClock

from leconvert.run.leasing import Lease, LeaseStore

__all__ = ["MakeStore", "TurnedClock", "claim", "taken_over"]

MakeStore = Callable[..., LeaseStore]


def claim(store: LeaseStore, batch_id: int = 7) -> Lease:
    lease = store.claim(batch_id)
    assert lease is not None
    return lease


def taken_over(store: LeaseStore, clock: TurnedClock) -> Lease:
    """Let another worker wait in vain for the holder of batch 7."""
    assert store.claim(7) is None
    clock.advance(60)
    return claim(store)
