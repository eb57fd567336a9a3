"""Keeps a lease alive from a thread while its holder works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from leconvert.errors import StorageError
from leconvert.leasing.lease import Lease, LeaseLostError
from leconvert.workdir.beat import Beat, wait_for

__all__ = ["HeartbeatKeeper"]

_BEATS_PER_LEASE = 4


class HeartbeatKeeper:
    """Beats for a lease until the ``with`` block ends.

    Guaranteed: ``lost`` is set once a heartbeat found a newer claim, and once no heartbeat got
    through for a whole lease (then others may take over). Not guaranteed: that it is set in time. A
    frozen process learns of its loss only when it runs again.

    A disk that fails for a moment is tried again at the next beat; ``error`` keeps what it said.

    Args:
        lease: The lease.
        interval_seconds: Time between beats; a quarter of the lease by default.
        clock: A monotonic clock in seconds.
        waiter: Waits for the event or so many seconds, and says whether the event is set.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        interval_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        waiter: Callable[[threading.Event, float], bool] = wait_for,
    ) -> None:
        self.lost = threading.Event()
        self.error: StorageError | OSError | None = None
        self._lease = lease
        self._clock = clock
        self._beat = Beat(
            self._show_life,
            interval_seconds or lease.lease_seconds / _BEATS_PER_LEASE,
            name=f"heartbeat-{lease.batch_id}",
            waiter=waiter,
        )

    def __enter__(self) -> HeartbeatKeeper:
        self._last_beat = self._clock()
        self._beat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._beat.__exit__()

    def _show_life(self) -> bool:
        began = self._clock()
        try:
            self._lease.heartbeat()
        except LeaseLostError:
            self.lost.set()
        except (StorageError, OSError) as failure:
            self.error = failure
            if began - self._last_beat >= self._lease.lease_seconds:
                self.lost.set()
        else:
            self._last_beat = began
        return not self.lost.is_set()
