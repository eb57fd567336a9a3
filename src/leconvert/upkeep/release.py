"""Gives batches back: failed ones another chance, stuck ones another worker.

Nothing here can change a result or lose one: a batch that is given back is open to the next claim,
its former holder may still publish, and the first publisher wins. What can be lost is a holder's
work. So a holder that runs on this very host is never overruled (end the process instead), and one
elsewhere only if it gives no sign of life for a whole lease, or by force.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from typing import Any

from leconvert.errors import UsageError
from leconvert.leasing import BatchState, LeaseStore, list_batches, release_failed
from leconvert.leasing.state import Outcome, Wait, derive_state
from leconvert.leasing.store import Observed
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity, process_is_running
from leconvert.workdir.opened import OpenedRun

__all__ = ["Holder", "ReleaseReport", "Released", "Verdict", "judge", "release_batches"]

_LOOKS_PER_LEASE = 20


class Holder(Enum):
    """What is known about whoever holds a batch."""

    GONE = "has ended, or was silent for a whole lease"
    HERE = "runs on this host"
    BEATS = "gave a sign of life while it was watched"
    UNWATCHED = "has not been watched for long enough"


class Verdict(StrEnum):
    """What becomes of a batch that shall be released."""

    RELEASED = "released"
    NOTHING = "nothing to do"
    REFUSED = "refused"
    WATCH = "watch"
    """Not decided yet; never in a report."""


@dataclass(frozen=True, slots=True)
class Released:
    """One batch of a release.

    Attributes:
        batch_id: The batch.
        verdict: What became of it.
        state: What it was.
        reason: Why, as half a sentence.
        host: Who held it or set it aside, or None.
        pid: Its process there, or None.
        generation: Its newest claim when it was judged, or 0.
    """

    batch_id: int
    verdict: Verdict
    state: BatchState
    reason: str
    host: str | None = None
    pid: int | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """What a release did.

    Attributes:
        run_id: The run.
        dry_run: Whether it only said what it would do.
        batches: The batches that were asked for, ascending.
    """

    run_id: str
    dry_run: bool
    batches: tuple[Released, ...]

    @property
    def refused(self) -> tuple[Released, ...]:
        """Those that somebody alive holds."""
        return tuple(row for row in self.batches if row.verdict is Verdict.REFUSED)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def judge(state: BatchState, holder: Holder | None, *, force: bool) -> tuple[Verdict, str]:
    """Decide about one batch, and say why; a pure table.

    Args:
        state: What the batch is.
        holder: Who holds it; None unless it is leased.
        force: Whether to overrule a holder on another host.
    """
    if state is BatchState.DONE:
        return Verdict.NOTHING, "it is done"
    if state is BatchState.PENDING:
        return Verdict.NOTHING, "it waits for a worker already"
    if state is BatchState.FAILED:
        return Verdict.RELEASED, "it was set aside; its attempts count no more"
    match holder:
        case Holder.GONE:
            return Verdict.RELEASED, f"its worker {Holder.GONE.value}"
        case Holder.HERE:
            return Verdict.REFUSED, f"its worker {Holder.HERE.value}: end that process instead"
        case Holder.BEATS | Holder.UNWATCHED if force:
            return Verdict.RELEASED, "by force; its worker's try may be in vain"
        case Holder.BEATS:
            return Verdict.REFUSED, f"its worker {Holder.BEATS.value}; --force overrules it"
        case _:
            return Verdict.WATCH, f"its worker {Holder.UNWATCHED.value}"


def release_batches(
    run: OpenedRun,
    batches: Collection[int] = (),
    *,
    failed: bool = False,
    stuck: bool = False,
    force: bool = False,
    dry_run: bool = False,
    lease_seconds: float = 60.0,
    on_watch: Callable[[int], None] = lambda _count: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    fs: FileSystem = LOCAL,
) -> ReleaseReport:
    """Give batches back to whoever looks for work next.

    Args:
        run: The run.
        batches: Batches by number; a holder that lives is a refusal.
        failed: Also all that were set aside.
        stuck: Also all whose holder is gone; others that are held are left alone.
        force: Overrule holders on other hosts, without watching them.
        dry_run: Say what would be done, write nothing.
        lease_seconds: How long a holder must be silent; not less than the workers' own.
        on_watch: Told how many holders are watched, before it takes up to ``lease_seconds``.
        clock: A monotonic clock in seconds.
        pause: Waits so many seconds.
        fs: File operations.

    Raises:
        UsageError: Nothing is asked for, or there is no such batch.
        StorageError: The work dir cannot be read or written.
    """
    if not batches and not failed and not stuck:
        raise UsageError("No batch is named.", next_step="Give batch numbers, --failed or --stuck.")
    unknown = sorted(b for b in batches if not 0 <= b < run.manifest.num_batches)
    if unknown:
        raise UsageError(
            f"There is no batch {unknown[0]}: the run has {run.manifest.num_batches}, from 0.",
            path=str(run.work_dir.root),
        )
    if not lease_seconds > 0:
        raise UsageError(f"A lease cannot last {lease_seconds} s.")
    identity = WorkerIdentity.of_this_process()
    # The store only looks; what is written are ends and resets, never a claim.
    store = LeaseStore(
        run.paths, run.manifest.run_id, identity, lease_seconds=lease_seconds, clock=clock, fs=fs
    )
    board = _Looks(store)
    wanted = set(batches)
    wanted |= board.failed() if failed else set()
    held = board.held() if stuck else set()
    rows = board.judge_all(wanted | held, force=force)
    watched = {row.batch_id for row in rows if row.verdict is Verdict.WATCH}
    if watched:
        on_watch(len(watched))
        until = clock() + lease_seconds + lease_seconds / _LOOKS_PER_LEASE
        while watched and clock() <= until:
            pause(lease_seconds / _LOOKS_PER_LEASE)
            rows = _replace(rows, board.judge_all(watched, force=force))
            watched = {row.batch_id for row in rows if row.verdict is Verdict.WATCH}
    rows = [row for row in rows if row.batch_id in wanted or row.verdict is Verdict.RELEASED]
    if not dry_run:
        for row in rows:
            if row.verdict is Verdict.RELEASED:
                _release(store, row)
    return ReleaseReport(run.manifest.run_id, dry_run, tuple(rows))


class _Looks:
    """Looks at batches again and again, and remembers the first heartbeat of each claim."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._first: dict[tuple[int, int], bytes] = {}

    def failed(self) -> set[int]:
        done = list_batches(self._store.run.done_dir, fs=self._store.fs)
        return list_batches(self._store.run.failed_dir, fs=self._store.fs) - done

    def held(self) -> set[int]:
        run, fs = self._store.run, self._store.fs
        claimed = list_batches(run.leases_dir, fs=fs)
        settled = list_batches(run.done_dir, fs=fs) | list_batches(run.failed_dir, fs=fs)
        return {
            batch_id
            for batch_id in claimed - settled
            if (latest := self._store.log.read(batch_id).latest) and latest.outcome is None
        }

    def judge_all(self, batches: Iterable[int], *, force: bool) -> list[Released]:
        run, fs = self._store.run, self._store.fs
        done = list_batches(run.done_dir, fs=fs)
        failed = list_batches(run.failed_dir, fs=fs)
        return [
            self._judge(batch_id, batch_id in done, batch_id in failed, force)
            for batch_id in sorted(batches)
        ]

    def _judge(self, batch_id: int, done: bool, failed: bool, force: bool) -> Released:
        seen = self._store.observe(batch_id)
        state = derive_state(done=done, failed=failed, log=seen.log)
        latest = seen.log.latest
        fields = self._store.log.holder(batch_id, latest.number) if latest else {}
        holder = self._holder(batch_id, seen, fields) if state is BatchState.LEASED else None
        verdict, reason = judge(state, holder, force=force)
        return Released(
            batch_id,
            verdict,
            state,
            reason,
            host=fields.get("host"),
            pid=fields.get("pid"),
            generation=latest.number if latest else 0,
        )

    def _holder(self, batch_id: int, seen: Observed, fields: Any) -> Holder:
        if process_is_running(fields):
            return Holder.HERE
        if not isinstance(seen.decision, Wait):
            return Holder.GONE
        if seen.observation is None:
            return Holder.UNWATCHED
        key = (batch_id, seen.observation.generation)
        first = self._first.setdefault(key, seen.observation.nonce)
        known = any(b == batch_id and g != key[1] for b, g in self._first)
        # Another heartbeat, or a newer claim than at the first look: somebody works on it.
        return Holder.BEATS if known or first != seen.observation.nonce else Holder.UNWATCHED


def _replace(rows: list[Released], newer: list[Released]) -> list[Released]:
    by_batch = {row.batch_id: row for row in newer}
    return [by_batch.get(row.batch_id, row) for row in rows]


def _release(store: LeaseStore, row: Released) -> None:
    reason = f"released by process {os.getpid()} on {os.uname().nodename}"
    if row.state is BatchState.FAILED:
        release_failed(store.run, store.run_id, row.batch_id, reason, fs=store.fs)
        return
    # The claim that was judged, and no other: its successor may have begun since.
    latest = store.log.read(row.batch_id).latest
    if latest is not None and latest.number == row.generation and latest.outcome is None:
        store.log.write_end(row.batch_id, row.generation, Outcome.HANDED_BACK, {"reason": reason})
