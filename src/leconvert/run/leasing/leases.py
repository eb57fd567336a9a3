"""Leases on disk: the log of claims, the claim on one batch, and its heartbeat.

`LeaseStore` reads and writes the log and claims batches. A `Lease` is one worker's claim until its
end. A `HeartbeatKeeper` keeps it alive while its holder works. `leconvert.run.leasing.state`
decides the transitions.

    leases/000042/0001         the first claim; made by an exclusive link
    leases/000042/0001.beat    the holder's heartbeat: a random nonce, replaced repeatedly
    leases/000042/0001.end     how it ended: handed back, error, void
    leases/000042/0001.reset   claims up to this one no longer count as attempts (released)

Names are read by listing the folder first and then opening the file: over NFS, a name that was once
looked up without success stays absent for half a minute, and ``stat`` answers from a cache.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from leconvert.run.leasing.state import (
    Decision,
    Generation,
    GiveUp,
    LeaseLog,
    LeaseObservation,
    Limits,
    Outcome,
    Wait,
    decide,
    observe,
)
from leconvert.support.errors import LeconvertError, StorageError, WorkDirError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import (
    LOCAL,
    AlreadyPublishedError,
    FileSystem,
    OutcomeUnknownError,
    names_in,
    publish_exclusively,
    remove_tree,
    replace_record,
    sync_dir,
    write_durably,
)
from leconvert.workdir.identity import PeriodicTask, WorkerIdentity, process_is_gone
from leconvert.workdir.records import (
    DamagedRecordError,
    RunPaths,
    decode_record,
)

LEASE_VERSION = 1
DONE_VERSION = 1
FAILED_VERSION = 1

_CLAIM = re.compile(r"([0-9]{4,})\Z")
_END = re.compile(r"([0-9]{4,})\.end\Z")
_RESET = re.compile(r"([0-9]{4,})\.reset\Z")
_SETTLED = re.compile(r"([0-9]{6,})\.json\Z")
_BATCH = re.compile(r"([0-9]{6,})\Z")
_ATTEMPT = r"[0-9]{4,}-[^/]+"
_VOIDED = re.compile(r"[0-9]{6,}\.(?:void|released)-([0-9]+)\Z")
# A file can vanish, or its handle become stale, between listing and opening; the next look reads
# it.
_GONE = frozenset({errno.ENOENT, errno.ESTALE})


def list_batches(folder: Path, *, fs: FileSystem = LOCAL) -> set[int]:
    """Return the batches that have a name in a folder (``done/``, ``failed/`` or ``leases/``)."""
    with storage_errors(folder):
        names = fs.list_names(folder)
    return {
        int(found[1]) for name in names if (found := _SETTLED.match(name) or _BATCH.match(name))
    }


def read_done(run: RunPaths, batch_id: int) -> dict[str, Any]:
    """Return the record that made a batch done.

    Raises:
        DamagedRecordError: The record is torn, was edited, or names no attempt at this batch.
    """
    path = run.done(batch_id)
    record = run.read(path, "done", DONE_VERSION)
    attempt = record.get("attempt")
    folder = run.attempts_of(batch_id).relative_to(run.root).as_posix()
    if not isinstance(attempt, str) or not re.fullmatch(rf"{folder}/{_ATTEMPT}", attempt):
        raise DamagedRecordError(
            f"{path} is damaged: it names no attempt at batch {batch_id}.",
            path=str(path),
            next_step="Run the same command again. It does the batch again.",
        )
    return record


def read_failed(run: RunPaths, batch_id: int) -> dict[str, Any]:
    """Return the record that set a batch aside."""
    return run.read(run.failed(batch_id), "failed", FAILED_VERSION)


class LeaseLogFiles:
    """Reads and extends the lease logs of one run.

    A returned value was true when it was read. Ends and claims are cached, since neither changes
    once it is written (a void follows only a claim without an end).
    """

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self.fs = run.fs
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._holders: dict[tuple[int, int], Mapping[str, Any]] = {}

    def read(self, batch_id: int) -> LeaseLog:
        """Return a batch's log; an unreadable end does not count."""
        names = names_in(self.run.lease_dir(batch_id), fs=self.fs)
        numbers = sorted(int(found[1]) for name in names if (found := _CLAIM.match(name)))
        ended = {int(found[1]) for name in names if (found := _END.match(name))}
        resets = [int(found[1]) for name in names if (found := _RESET.match(name))]
        return LeaseLog(
            generations=tuple(
                Generation(number, self._outcome(batch_id, number) if number in ended else None)
                for number in numbers
            ),
            reset_after=max(resets, default=0),
        )

    def newest_claim(self, batch_id: int) -> int:
        """Return the newest generation, or 0; reads no file."""
        folder = self.run.lease_dir(batch_id)
        with storage_errors(folder):
            names = self.fs.list_names(folder)
        return max((int(found[1]) for name in names if (found := _CLAIM.match(name))), default=0)

    def read_nonce(self, batch_id: int, generation: int) -> bytes:
        """Return a heartbeat's content; empty before the first one, or if it is unreadable."""
        try:
            return self.fs.read_bytes(self.run.heartbeat(batch_id, generation))
        except OSError:
            # A holder whose heartbeat is unreadable for a whole lease counts as silent: a wrong
            # guess costs work, but waiting for ever would cost the run.
            return b""

    def holder(self, batch_id: int, generation: int) -> Mapping[str, Any]:
        """Return the holder of a generation (see `WorkerIdentity`), or an empty mapping."""
        key = (batch_id, generation)
        if key not in self._holders:
            path = self.run.lease(batch_id, generation)
            try:
                self._holders[key] = self.run.read(path, "lease", LEASE_VERSION)
            except (OSError, StorageError, WorkDirError):
                return {}  # only for display and as a hint; the name itself is the claim
        return self._holders[key]

    def end_record(self, batch_id: int, generation: int) -> dict[str, Any] | None:
        """Return the record of a generation's end; None if there is no readable one."""
        path = self.run.lease_end(batch_id, generation)
        with storage_errors(path):
            try:
                raw = self.fs.read_bytes(path)
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise
        try:
            return decode_record(
                raw, "lease-end", version=LEASE_VERSION, path=path, run_id=self.run.run_id
            )
        except WorkDirError:
            return None

    def last_error(self, batch_id: int, log: LeaseLog) -> dict[str, Any] | None:
        """Return the end of the last attempt with an error, empty if unreadable; else None."""
        for entry in reversed(log.generations):
            if entry.outcome is Outcome.ERROR:
                return self.end_record(batch_id, entry.number) or {}
        return None

    def write_end(
        self, batch_id: int, generation: int, outcome: Outcome, fields: Mapping[str, Any]
    ) -> None:
        """Record how a generation ended; survives a power loss."""
        write_durably(
            self.run.lease_end(batch_id, generation),
            self.run.encode("lease-end", LEASE_VERSION, {"outcome": outcome.value, **fields}),
            fs=self.fs,
        )

    def publish_failed(
        self, batch_id: int, worker: WorkerIdentity, fields: Mapping[str, Any]
    ) -> bool:
        """Set a batch aside, unless another worker just did.

        Returns:
            Whether this record was published.
        """
        said = {"batch_id": batch_id, **worker.as_fields(), **fields}
        record = self.run.encode("failed", FAILED_VERSION, said)
        source = self.run.failed_source(batch_id, worker.token)
        write_durably(source, record, fs=self.fs)
        try:
            publish_exclusively(source, self.run.failed(batch_id), fs=self.fs)
        except AlreadyPublishedError:
            return False
        finally:
            with suppress(OSError):
                self.fs.remove_file(source)
        return True

    def _outcome(self, batch_id: int, generation: int) -> Outcome | None:
        key = (batch_id, generation)
        if key not in self._outcomes:
            record = self.end_record(batch_id, generation)
            try:
                self._outcomes[key] = Outcome((record or {}).get("outcome", ""))
            except ValueError:
                return None
        return self._outcomes[key]


def void_done(
    run: RunPaths,
    batch_id: int,
    reason: str,
    *,
    judged: Mapping[str, Any] | None = None,
) -> bool:
    """Take back a batch's ``done`` because it is torn, or its shards are missing or wrong.

    The batch opens again. The record is kept as ``done/<batch>.void-<n>``, and the reason is
    written to the lease log of the winner, if the record names it.

    No two hosts decide differently about a batch. Workers and ``status`` rely only on the name
    ``done/<batch>.json``, whatever the record holds. Only the packer reads its content, and only
    the packer moves the name; it calls this under its lock. While the name exists, no other record
    can be published (a worker that tries has lost, and keeps its attempt if it cannot read whose
    record it is). When the name is moved, exactly one publisher gets it, and its record is judged
    again. A packer that was frozen and has lost its lock finds another record than it ``judged``,
    and leaves it. If it is frozen again between that look and the rename, the batch opens once
    more: this costs work, but the bytes are the same.

    A torn record does not say which claim won. So no end is written for it, and the batch is free
    when its newest claim expires.

    Write order: the end of the winner's lease, then the rename. A crash in between leaves the batch
    done, and the next packer finds and voids it again.

    Args:
        run: The run.
        batch_id: The batch.
        reason: Why the record is wrong.
        judged: The record that was found wrong, empty if it is damaged; None voids any record.

    Returns:
        Whether this ``done`` existed and was voided.
    """
    try:
        record = read_done(run, batch_id)
    except FileNotFoundError:
        return False
    except DamagedRecordError:
        record = {}
    if judged is not None and record != judged:
        return False
    log = LeaseLogFiles(run)
    generation = record.get("generation")
    if type(generation) is int and 0 < generation <= log.newest_claim(batch_id):
        log.write_end(batch_id, generation, Outcome.VOID, {"reason": reason})
    return _move_aside(run.done(batch_id), run.voided, batch_id, run.fs)


def release_failed(run: RunPaths, batch_id: int, reason: str) -> bool:
    """Release a batch that was set aside; its attempts so far no longer count.

    Write order: the reset in the lease log, then the rename. A crash in between leaves the batch
    set aside, and releasing it again is harmless.

    Returns:
        Whether it was set aside.
    """
    if batch_id not in list_batches(run.failed_dir, fs=run.fs):
        return False
    newest = LeaseLogFiles(run).newest_claim(batch_id)
    write_durably(
        run.lease_reset(batch_id, newest),
        run.encode("lease-reset", LEASE_VERSION, {"reason": reason}),
        fs=run.fs,
    )
    return _move_aside(run.failed(batch_id), run.released, batch_id, run.fs)


def _move_aside(
    path: Path, name_for: Callable[[int, int], Path], batch_id: int, fs: FileSystem
) -> bool:
    with storage_errors(path):
        names = fs.list_names(path.parent)
        prefix = f"{path.stem}."
        used = [
            int(found[1])
            for name in names
            if name.startswith(prefix) and (found := _VOIDED.match(name))
        ]
        try:
            fs.replace(path, name_for(batch_id, max(used, default=0) + 1))
        except FileNotFoundError:
            return False
    sync_dir(path.parent, fs=fs)
    return True


def utc_now() -> datetime:
    """Return this host's wall clock, in UTC."""
    return datetime.now(UTC)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


_PUBLISH_TRIES = 3
_RESERVED = frozenset(
    {"batch_id", "generation", "attempt", "token", "host", "pid", "began", "ended", "seconds"}
)


class LeaseLostError(LeconvertError):
    """Another worker has taken the batch over; this one should stop and take another."""


class Lease:
    """A claim on one batch.

    Guaranteed: no other worker has this generation, and no other worker writes to ``attempt_dir``.
    Of all workers that ever call ``publish_done`` for this batch, exactly one wins. Not guaranteed:
    that no other worker has the batch. A worker that was frozen for longer than the lease works
    beside its successor until its next heartbeat, and may even win.

    `LeaseStore.claim` makes it. It is not thread-safe, but ``heartbeat`` may run in a thread of its
    own.

    Attributes:
        batch_id: The batch.
        generation: The claim's number, from 1.
        attempt_dir: This attempt's own folder, which exists.
        lease_seconds: Others may take over after this time without a heartbeat.
    """

    def __init__(self, store: LeaseStore, batch_id: int, generation: int) -> None:
        self.batch_id = batch_id
        self.generation = generation
        self.attempt_dir = store.run.attempt(batch_id, generation, store.worker.token)
        self.lease_seconds = store.limits.lease_seconds
        self._store = store
        self._log = store.log
        # Wall clocks of hosts disagree and jump. So moments are only for display, and the duration
        # comes from a monotonic clock.
        self._began = _text(store.now())
        self._mark = store.clock()
        self._publish_tried = False
        self._ended = False

    def heartbeat(self) -> None:
        """Show that the holder is alive, by replacing the nonce.

        Raises:
            LeaseLostError: Another worker has taken the batch over, or the run was removed.
        """
        try:
            newest = self._log.newest_claim(self.batch_id)
        except FileNotFoundError as error:
            raise LeaseLostError(
                f"The run was removed: {self._log.run.lease_dir(self.batch_id)} does not exist.",
                path=str(self._log.run.lease_dir(self.batch_id)),
                next_step="Start the worker again on the work dir's current run.",
            ) from error
        if newest > self.generation:
            raise LeaseLostError(
                f"Another worker took over batch {self.batch_id} (claim {newest}).",
                path=str(self._log.run.lease(self.batch_id, newest)),
                next_step="There is nothing to do: the other worker does the batch.",
            )
        fields = {
            "nonce": self._store.randomness(8).hex(),
            "began": self._began,
            "beat": _text(self._store.now()),
        }
        record = self._log.run.encode("heartbeat", LEASE_VERSION, fields)
        path = self._log.run.heartbeat(self.batch_id, self.generation)
        replace_record(path, record, fs=self._log.fs)

    def is_needed(self) -> bool:
        """Return whether nobody else is known to have taken over or settled the batch."""
        with suppress(StorageError, OSError):
            try:
                self.heartbeat()
            except LeaseLostError:
                return False
            return not self._store.is_settled(self.batch_id)
        return True

    def hand_back(self, reason: str) -> None:
        """Hand the batch back, without a failure; others may claim it at once.

        The attempt's folder is removed unless publishing was tried. Does nothing if the lease has
        already ended.
        """
        if self._ended:
            return
        self._write_end(Outcome.HANDED_BACK, {"reason": reason})
        self._ended = True
        self._drop_attempt()

    def fail(self, error: LeconvertError, traceback_text: str = "") -> bool:
        """Count an error against the batch; the last allowed one sets it aside.

        Returns:
            Whether the batch is now set aside.
        """
        if self._ended:
            return False
        self._ended = True
        details = {"error": error.as_record(), "traceback": traceback_text}
        self._write_end(Outcome.ERROR, details)
        self._drop_attempt()
        log = self._log.read(self.batch_id)
        if log.errors < self._store.limits.max_attempts:
            return False
        counts = {"generation": self.generation, "errors": log.errors, "losses": log.losses}
        self._log.publish_failed(self.batch_id, self._store.worker, {**counts, **details})
        return True

    def publish_done(self, fields: Mapping[str, Any]) -> Literal["won", "lost"]:
        """Publish the batch's result; the first publisher wins, even without the lease.

        The caller has synced the shards in ``attempt_dir``. The record, ``attempt_dir`` and its
        parents are synced here, before the name ``done`` appears.

        Returns:
            ``won``, or ``lost`` if another attempt was first; then this attempt's folder is
            removed.

        Raises:
            OutcomeUnknownError: The name appears and vanishes.
        """
        if taken := sorted(_RESERVED.intersection(fields)):
            raise ValueError(f"fields of a done record may not be called {', '.join(taken)}")
        run, fs, worker = self._log.run, self._log.fs, self._store.worker
        whose = {
            "batch_id": self.batch_id,
            "generation": self.generation,
            "attempt": self.attempt_dir.relative_to(run.root).as_posix(),
            "token": worker.token,
            "host": worker.host,
            "pid": worker.pid,
            **self._times(),
        }
        record = run.encode("done", DONE_VERSION, {**whose, **fields})
        source = run.attempt_record(self.batch_id, self.generation, worker.token, "done")
        write_durably(source, record, fs=fs)
        for folder in (self.attempt_dir.parent, run.attempts_dir):
            sync_dir(folder, fs=fs)
        self._publish_tried = True
        for _ in range(_PUBLISH_TRIES):
            try:
                publish_exclusively(source, run.done(self.batch_id), fs=fs)
            except AlreadyPublishedError:
                verdict = self._verdict()
                if verdict == "none":
                    continue
                self._ended = True
                return verdict
            self._ended = True
            return "won"
        raise OutcomeUnknownError(
            f"Another process creates and removes {run.done(self.batch_id)}, so it is "
            "unknown whose result counts.",
            path=str(run.done(self.batch_id)),
            next_step="Check that only one packer runs, then run the same command again.",
        )

    def abandon(self) -> None:
        """Clean up after a lost lease: remove the attempt if a ``done`` names another one.

        Never raises; the packer settles the rest.
        """
        self._ended = True
        with suppress(OSError, StorageError):
            if self._publish_tried:
                self._verdict()
            else:
                self._drop_attempt()

    def _verdict(self) -> Literal["won", "lost", "none"]:
        """Return whose ``done`` there is; remove this attempt if it is another worker's."""
        run, fs = self._log.run, self._log.fs
        with storage_errors(run.done_dir):
            fs.list_names(run.done_dir)
        try:
            winner = read_done(run, self.batch_id)
        except FileNotFoundError:
            return "none"  # it was voided just now
        except WorkDirError:
            return "lost"  # damaged: the packer will void it, and this attempt stays for now
        ours = self._store.worker.token, self.generation
        if (winner.get("token"), winner.get("generation")) == ours:
            return "won"
        self._remove_attempt()
        return "lost"

    def _times(self) -> dict[str, Any]:
        """Return the fields for a record of the end: ``began``, ``ended`` and ``seconds``."""
        seconds = round(self._store.clock() - self._mark, 3)
        return {"began": self._began, "ended": _text(self._store.now()), "seconds": seconds}

    def _write_end(self, outcome: Outcome, fields: Mapping[str, Any]) -> None:
        record = {**fields, **self._times()}
        self._log.write_end(self.batch_id, self.generation, outcome, record)

    def _drop_attempt(self) -> None:
        if not self._publish_tried:
            self._remove_attempt()

    def _remove_attempt(self) -> None:
        # Leaving it costs space until the packer cleans up; failing here would cost more.
        with suppress(StorageError, OSError):
            remove_tree(self.attempt_dir, inside=self._log.run.attempts_dir)


class Observed(NamedTuple):
    """One look at a batch's lease log."""

    log: LeaseLog  # the claims
    # The latest claim's heartbeat, or None if no claim is open.
    observation: LeaseObservation | None
    decision: Decision  # the observer's options
    seen_at: float  # the observer's clock at the beginning of the look, in seconds


class LeaseStore:
    """One worker's access to the leases of a run.

    Guaranteed: of all workers that try to claim the same generation of a batch, exactly one gets
    it. No claim is taken over unless its heartbeat was unchanged for ``lease_seconds`` on this
    observer's own clock, or its process on this host has certainly ended. Not guaranteed: that the
    holder of a taken-over claim knows (see `Lease`).

    The worker's identity must be unique: its claims are hard links to one file that holds the
    token. So a claim costs a single ``link``, and its content distinguishes it from another
    worker's.

    Args:
        run: The run.
        worker: The identity of the claiming worker: of one thread, if threads lease separately.
        lease_seconds: A heartbeat that is unchanged for this long has stopped.
        max_attempts: Number of errors after which a batch is set aside.
        max_losses: Number of silent losses after which a batch is set aside.
        clock: A monotonic clock in seconds.
        randomness: Returns random bytes for nonces.
        process_gone: Returns from a claim's fields whether its process has certainly ended.
        now: The wall clock, with its zone; records contain it only for display.
    """

    def __init__(
        self,
        run: RunPaths,
        worker: WorkerIdentity,
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 3,
        max_losses: int = 10,
        clock: Callable[[], float] = time.monotonic,
        randomness: Callable[[int], bytes] = os.urandom,
        process_gone: Callable[[Mapping[str, Any]], bool] = process_is_gone,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.run = run
        self.worker = worker
        self.limits = Limits(lease_seconds, max_attempts, max_losses)
        self.log = LeaseLogFiles(run)
        self.clock = clock
        self.fs = run.fs
        self.randomness = randomness
        self.now = now
        self._process_gone = process_gone
        self._claim_source_written = False
        self._observations: dict[int, LeaseObservation] = {}

    def claim(self, batch_id: int) -> Lease | None:
        """Claim a batch if it is free.

        A batch that used up its attempts is set aside instead.

        Returns:
            The lease; None if the batch is held, done, set aside, or was claimed just now.
        """
        return self.claim_fresh(batch_id) or self.claim_observed(batch_id, self.observe(batch_id))

    def claim_fresh(self, batch_id: int) -> Lease | None:
        """Claim a batch that was never claimed; costs one file operation if it was.

        Returns:
            The lease; None if it was claimed before. Then ``observe`` tells more.
        """
        folder = self.run.lease_dir(batch_id)
        try:
            with storage_errors(folder):
                self.fs.make_dir(folder)
        except FileExistsError:
            return None
        # It was never claimed, so it cannot be done or set aside either.
        return self._claim_generation(batch_id, 1)

    def claim_observed(self, batch_id: int, observed: Observed) -> Lease | None:
        """Claim a batch as ``observe`` allowed, or set it aside; see ``claim``."""
        decision = observed.decision
        if isinstance(decision, Wait) or self.is_settled(batch_id):
            return None
        if isinstance(decision, GiveUp):
            self._give_up(batch_id, observed.log, decision)
            return None
        return self._claim_generation(batch_id, decision.generation)

    def observe(self, batch_id: int) -> Observed:
        """Look at a batch's lease log and heartbeat."""
        # For expiry, the clock is read before this look, for a new heartbeat after it. So a freeze
        # of this observer in between never looks like the holder's silence.
        seen_at = self.clock()
        log = self.log.read(batch_id)
        latest = log.latest
        observation = None
        gone = False
        if latest is not None and latest.outcome is None:
            nonce = self.log.read_nonce(batch_id, latest.number)
            observation = observe(
                self._observations.get(batch_id), latest.number, nonce, self.clock()
            )
            self._observations[batch_id] = observation
            gone = self._process_gone(self.log.holder(batch_id, latest.number))
        else:
            self._observations.pop(batch_id, None)
        decision = decide(log, observation, now=seen_at, limits=self.limits, holder_is_gone=gone)
        return Observed(log, observation, decision, seen_at)

    def is_settled(self, batch_id: int) -> bool:
        """Return whether a batch is done or set aside; it lists both folders, so it is slow."""
        return any(
            batch_id in list_batches(folder, fs=self.fs)
            for folder in (self.run.done_dir, self.run.failed_dir)
        )

    def _claim_generation(self, batch_id: int, generation: int) -> Lease | None:
        target = self.run.lease(batch_id, generation)
        source = self.run.claim_source(self.worker.token)
        if not self._claim_source_written:
            self._write_claim_source()
        try:
            try:
                publish_exclusively(source, target, sync=False, fs=self.fs)
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                # A file can have only a limited number of names (65,000 on ext4): continue with a
                # new one.
                self._write_claim_source()
                publish_exclusively(source, target, sync=False, fs=self.fs)
        except AlreadyPublishedError:
            return None
        lease = Lease(self, batch_id, generation)
        try:
            with storage_errors(lease.attempt_dir):
                for folder in (lease.attempt_dir.parent, lease.attempt_dir):
                    with suppress(FileExistsError):
                        self.fs.make_dir(folder)
        except StorageError as error:
            with suppress(StorageError):
                lease.hand_back(error.message)
            raise
        return lease

    def _write_claim_source(self) -> None:
        record = self.run.encode("lease", LEASE_VERSION, self.worker.as_fields())
        write_durably(self.run.claim_source(self.worker.token), record, fs=self.fs)
        self._claim_source_written = True

    def _give_up(self, batch_id: int, log: LeaseLog, given_up: GiveUp) -> None:
        end = self.log.last_error(batch_id, log)
        fields = {
            "generation": log.generations[-1].number,
            "errors": given_up.errors,
            "losses": given_up.losses,
            "error": None if end is None else end.get("error"),
            "traceback": "" if end is None else end.get("traceback"),
        }
        self.log.publish_failed(batch_id, self.worker, fields)


_BEATS_PER_LEASE = 4


class HeartbeatKeeper:
    """Beats for a lease until the ``with`` block ends.

    Guaranteed: ``lost`` is set when a heartbeat has found a newer claim, and when no heartbeat has
    succeeded for a whole lease (then others may take over). Not guaranteed: that it is set in time.
    A frozen process learns of its loss only when it runs again.

    If a disk fails for a moment, the next beat tries again; ``error`` keeps the last error.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        clock: Callable[[], float] = time.monotonic,
        waiter: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.lost = threading.Event()
        self.error: StorageError | OSError | None = None
        self._lease = lease
        self._clock = clock
        self._beat = PeriodicTask(
            self._show_life,
            lease.lease_seconds / _BEATS_PER_LEASE,
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
