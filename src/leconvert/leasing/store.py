"""Claims batches, and watches the claims of others."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leconvert.errors import StorageError
from leconvert.leasing.lease import Lease
from leconvert.leasing.log import LEASE_VERSION, LeaseLogFiles, list_batches
from leconvert.leasing.state import (
    Decision,
    GiveUp,
    LeaseLog,
    LeaseObservation,
    Limits,
    Outcome,
    Wait,
    decide,
    observe,
)
from leconvert.leasing.times import utc_now
from leconvert.workdir.durable import (
    AlreadyPublishedError,
    publish_exclusively,
    storage_errors,
    write_durably,
)
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity, process_is_gone
from leconvert.workdir.paths import RunPaths
from leconvert.workdir.records import encode_record

__all__ = ["LeaseStore", "Observed"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What one look at a batch's lease log showed.

    Attributes:
        log: The claims.
        observation: The latest claim's heartbeat, or None where no claim is open.
        decision: What this observer may do.
        seen_at: The observer's clock when it began to look, in seconds.
    """

    log: LeaseLog
    observation: LeaseObservation | None
    decision: Decision
    seen_at: float


class LeaseStore:
    """One worker's access to the leases of a run.

    Guaranteed: of all workers that try to claim the same generation of a batch exactly one gets
    it, and no claim is taken over before its heartbeat stood still for ``lease_seconds`` on this
    observer's own clock, or its process on this very host has certainly ended. Not guaranteed:
    that the holder of a taken-over claim knows (see `Lease`).

    The worker's identity must be its alone: its claims are hard links to one file that holds the
    token, so that a claim costs a single ``link`` and can be told from another's by its content.

    Args:
        run: Paths of the run.
        run_id: The run.
        worker: Who claims. One thread of work; threads that lease separately need one each.
        lease_seconds: A heartbeat that stands still for so long has stopped.
        max_attempts: Errors after which a batch is set aside.
        max_losses: Silent losses after which it is.
        clock: A monotonic clock in seconds.
        randomness: Returns so many random bytes.
        fs: File operations.
        process_gone: Says from a claim's fields whether its process has certainly ended.
        now: The wall clock, with its zone; records carry it for people to look at.
    """

    def __init__(
        self,
        run: RunPaths,
        run_id: str,
        worker: WorkerIdentity,
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 3,
        max_losses: int = 10,
        clock: Callable[[], float] = time.monotonic,
        randomness: Callable[[int], bytes] = os.urandom,
        fs: FileSystem = LOCAL,
        process_gone: Callable[[Mapping[str, Any]], bool] = process_is_gone,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.run = run
        self.run_id = run_id
        self.worker = worker
        self.limits = Limits(lease_seconds, max_attempts, max_losses)
        self.log = LeaseLogFiles(run, run_id, fs=fs)
        self.clock = clock
        self.fs = fs
        self._randomness = randomness
        self._process_gone = process_gone
        self._now = now
        self._claim_source_written = False
        self._observations: dict[int, LeaseObservation] = {}

    def claim(self, batch_id: int) -> Lease | None:
        """Claim a batch if nobody holds it.

        A batch that used up its attempts is set aside instead.

        Returns:
            The lease, or None: held, done, set aside, or just claimed by another.

        Raises:
            StorageError: The work dir cannot be written, or has no hard links.
        """
        return self.claim_fresh(batch_id) or self.claim_observed(batch_id, self.observe(batch_id))

    def claim_fresh(self, batch_id: int) -> Lease | None:
        """Claim a batch that nobody ever claimed; costs one file operation if somebody did.

        Returns:
            The lease, or None: it was claimed before, and ``observe`` tells the rest.

        Raises:
            StorageError: The work dir cannot be written, or has no hard links.
        """
        folder = self.run.lease_dir(batch_id)
        try:
            with storage_errors(folder):
                self.fs.make_dir(folder)
        except FileExistsError:
            return None
        # Nobody ever claimed it, so it cannot be done or set aside either.
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
        """Look at a batch's lease log and heartbeat.

        Raises:
            StorageError: The work dir cannot be read.
        """
        # For expiry the clock counts from before this look, for a new heartbeat from after it: a
        # freeze of this observer in between then never looks like the holder's silence.
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
        """Say whether a batch is done or set aside; lists both folders, so not for every batch."""
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
                # A file has room for so many names only (65,000 on ext4): go on with a new one.
                self._write_claim_source()
                publish_exclusively(source, target, sync=False, fs=self.fs)
        except AlreadyPublishedError:
            return None
        lease = Lease(
            self.log,
            batch_id,
            generation,
            worker=self.worker,
            limits=self.limits,
            randomness=self._randomness,
            now=self._now,
        )
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
        record = encode_record("lease", LEASE_VERSION, self.run_id, self.worker.as_fields())
        write_durably(self.run.claim_source(self.worker.token), record, fs=self.fs)
        self._claim_source_written = True

    def _give_up(self, batch_id: int, log: LeaseLog, given_up: GiveUp) -> None:
        fields: dict[str, Any] = {
            "generation": log.generations[-1].number,
            "errors": given_up.errors,
            "losses": given_up.losses,
            "error": None,
            "traceback": "",
        }
        for entry in reversed(log.generations):
            if entry.outcome is Outcome.ERROR:
                record = self.log.end_record(batch_id, entry.number) or {}
                fields |= {name: record.get(name) for name in ("error", "traceback")}
                break
        self.log.publish_failed(batch_id, self.worker, fields)
