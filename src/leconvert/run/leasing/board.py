"""A worker's view of all batches, and the order in which it looks for work.

Looking at everything before each claim would cost O(N) per claim. So the view is cached. Folders
are listed only when the worker has gone through a stretch of batches (earlier if it meets other
workers), and from time to time while it waits. A stale view only costs a failed claim.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from leconvert.run.leasing.leases import Lease, LeaseStore, list_batches
from leconvert.run.leasing.state import BatchState, Wait, derive_state

_STRETCHES = 16
_LOOKS_PER_LEASE = 4
_SHORTEST_IDLE_SECONDS = 0.05
_LONGEST_IDLE_SECONDS = 2.0
_IDLE_SHARE = 20


class Counts(NamedTuple):
    """Number of batches by state."""

    pending: int
    leased: int
    done: int
    failed: int


class BatchStatus(NamedTuple):
    """One batch as ``status`` shows it."""

    batch_id: int  # the batch
    state: BatchState  # its state
    generation: int = 0  # its newest claim, or 0
    host: str | None = None  # host of the newest claim, or None
    pid: int | None = None  # the process there, or None
    token: str | None = None  # the worker, or None
    # How long this observer has seen the same heartbeat, in seconds; None if the batch is not
    # leased, 0 at the first look.
    heartbeat_age_seconds: float | None = None
    errors: int = 0  # attempts that ended in an error
    losses: int = 0  # attempts that were silently lost
    message: str | None = None  # the last error, or None


class Board:
    """Finds the next batch for one worker.

    Guaranteed: if ``next_lease`` is called again after ``wait_hint`` seconds, every batch without a
    worker is found, so one living worker finishes the run. Not guaranteed: that the counts are
    newer than the last ``refresh``.

    Low numbers come first, since the planner puts expensive batches there. Workers spread over a
    sixteenth of the open batches. Each starts at a position that its token decides, so they seldom
    meet.
    """

    def __init__(self, store: LeaseStore, num_batches: int) -> None:
        self._store = store
        self._num_batches = num_batches
        digest = hashlib.blake2b(store.worker.token.encode(), digest_size=8).digest()
        self._spread = int.from_bytes(digest)
        self._done: set[int] = set()
        self._failed: set[int] = set()
        self._claimed: set[int] = set()
        self._stretch: list[int] = []
        self._place = 0
        self._leap = 1
        self._exhausted = False
        self._next_look = store.clock()
        self._idle_seconds = _SHORTEST_IDLE_SECONDS

    def next_lease(self) -> Lease | None:
        """Claim a batch: one that was never claimed, else one that was handed back or has expired.

        Returns:
            A lease; None if nothing can be claimed now. Then ask ``all_settled`` and ``wait_hint``.
        """
        lease = self.next_fresh()
        if lease is not None:
            self._idle_seconds = _SHORTEST_IDLE_SECONDS
            return lease
        began = self._store.clock()
        if began < self._next_look:
            return None
        self.refresh()
        # Looking costs O(N), so in a big run it takes at most a twentieth of the time. But it is
        # frequent enough that one late answer of a server does not hide expired leases.
        cost = self._store.clock() - began
        a_few_a_lease = self._store.limits.lease_seconds / _LOOKS_PER_LEASE
        longest = min(_LONGEST_IDLE_SECONDS, a_few_a_lease)
        pause = max(min(self._idle_seconds, longest), min(cost * _IDLE_SHARE, a_few_a_lease))
        self._next_look = self._store.clock() + pause
        lease = self._next_reopened()
        if lease is not None:
            self._next_look = began
            self._idle_seconds = _SHORTEST_IDLE_SECONDS
        else:
            self._idle_seconds = min(self._idle_seconds * 2, longest)
        return lease

    def next_fresh(self) -> Lease | None:
        """Claim a batch that was never claimed.

        Returns:
            A lease; None if every batch has been claimed.
        """
        while True:
            if not self._stretch:
                if self._exhausted:
                    return None
                self.refresh()
                continue
            self._place %= len(self._stretch)
            batch_id = self._stretch.pop(self._place)
            lease = self._store.claim_fresh(batch_id)
            self._claimed.add(batch_id)
            if lease is not None:
                self._leap = 1
                return lease
            # Another worker is claiming batches here, so the next ones are probably taken too: skip
            # twice as many each time. The next refresh shows those that were free.
            del self._stretch[self._place : self._place + self._leap]
            self._leap *= 2

    def refresh(self) -> None:
        """List batches that are done, set aside and claimed: three folders, O(N)."""
        run, fs = self._store.run, self._store.fs
        # Claims first: a batch that is settled meanwhile is then in both lists, never in neither.
        self._claimed = list_batches(run.leases_dir, fs=fs)
        self._failed = list_batches(run.failed_dir, fs=fs)
        self._done = list_batches(run.done_dir, fs=fs)
        self._failed -= self._done
        known = self._claimed | self._done | self._failed
        fresh = [batch for batch in range(self._num_batches) if batch not in known]
        # A claimed batch is never fresh again.
        self._exhausted = not fresh
        self._stretch = fresh[: -(-self._num_batches // _STRETCHES)]
        self._place = self._spread % len(self._stretch) if self._stretch else 0

    def counts(self) -> Counts:
        """Return the number of batches by state at the last ``refresh``; claimed means leased."""
        claimed = len(self._claimed - self._done - self._failed)
        settled = len(self._done) + len(self._failed)
        return Counts(
            pending=self._num_batches - settled - claimed,
            leased=claimed,
            done=len(self._done),
            failed=len(self._failed),
        )

    def all_settled(self) -> bool:
        """Return whether every batch was done or set aside at the last ``refresh``."""
        return len(self._done) + len(self._failed) >= self._num_batches

    def done_ids(self) -> list[int]:
        """Return the batches that were done at the last ``refresh``, ascending."""
        return sorted(self._done)

    def failed(self) -> list[int]:
        """Return the batches that were set aside at the last ``refresh``, ascending."""
        return sorted(self._failed)

    def open_ids(self) -> list[int]:
        """Return the batches that were claimed and not settled at the last ``refresh``."""
        return sorted(self._claimed - self._done - self._failed)

    def first_free(self) -> int | None:
        """Return the lowest number that was free at the last ``refresh``; None if unknown."""
        return self._stretch[0] if self._stretch else None

    def wait_hint(self) -> float:
        """Return the seconds after which ``next_lease`` may find something new."""
        return max(0.0, self._next_look - self._store.clock())

    def status(self) -> list[BatchStatus]:
        """Look at every batch and return its status, in order.

        This costs a few file operations for each batch that is claimed and not done.
        """
        self.refresh()
        return [self._status_of(batch_id) for batch_id in range(self._num_batches)]

    def _next_reopened(self) -> Lease | None:
        # As many as there are workers, not as many as there are batches. Each observer begins at
        # another one, or all would try the same one.
        claimed = self.open_ids()
        begin = self._spread % len(claimed) if claimed else 0
        for batch_id in claimed[begin:] + claimed[:begin]:
            observed = self._store.observe(batch_id)
            if isinstance(observed.decision, Wait):
                self._next_look = min(self._next_look, observed.decision.until)
                continue
            lease = self._store.claim_observed(batch_id, observed)
            if lease is not None:
                return lease
        return None

    def _status_of(self, batch_id: int) -> BatchStatus:
        if batch_id in self._done:
            return BatchStatus(batch_id, BatchState.DONE)
        if batch_id not in self._claimed and batch_id not in self._failed:
            return BatchStatus(batch_id, BatchState.PENDING)
        store = self._store
        seen = store.observe(batch_id)
        state = derive_state(done=False, failed=batch_id in self._failed, log=seen.log)
        latest = seen.log.latest
        holder = store.log.holder(batch_id, latest.number) if latest else {}
        error = (store.log.last_error(batch_id, seen.log) or {}).get("error")
        age = None
        if state is BatchState.LEASED and seen.observation is not None:
            age = max(0.0, seen.seen_at - seen.observation.first_seen_monotonic)
        return BatchStatus(
            batch_id,
            state,
            generation=latest.number if latest else 0,
            host=holder.get("host"),
            pid=holder.get("pid"),
            token=holder.get("token"),
            heartbeat_age_seconds=age,
            errors=seen.log.errors,
            losses=seen.log.losses,
            message=str(error.get("message")) if isinstance(error, dict) else None,
        )
