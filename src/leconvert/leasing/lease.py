"""A worker's claim on one batch, from heartbeat to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

from leconvert.errors import LeconvertError, StorageError, WorkDirError
from leconvert.leasing.log import DONE_VERSION, LEASE_VERSION, LeaseLogFiles, read_done
from leconvert.leasing.state import Limits, Outcome
from leconvert.leasing.times import AttemptTimes, utc_now
from leconvert.workdir.durable import (
    AlreadyPublishedError,
    OutcomeUnknownError,
    publish_exclusively,
    replace_record,
    storage_errors,
    sync_dir,
    write_durably,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.records import encode_record
from leconvert.workdir.trees import remove_tree

__all__ = ["Lease", "LeaseLostError"]

_PUBLISH_TRIES = 3
_RESERVED = frozenset(
    {"batch_id", "generation", "attempt", "token", "host", "pid", "began", "ended", "seconds"}
)


class LeaseLostError(LeconvertError):
    """Another worker took the batch over; this one should stop and take another."""


class Lease:
    """A claim on one batch.

    Guaranteed: no other worker has this generation, nobody else writes to ``attempt_dir``, and of
    all workers that ever call ``publish_done`` for this batch exactly one wins. Not guaranteed: to
    be alone on the batch. A worker that was frozen for longer than the lease works beside its
    successor until its next heartbeat, and may even win.

    Made by `LeaseStore.claim`. Not thread-safe, except that ``heartbeat`` may run in a thread of
    its own.

    Attributes:
        batch_id: The batch.
        generation: The claim's number, from 1.
        attempt_dir: This attempt's own folder; it exists.
        lease_seconds: After so long without a heartbeat others may take over.
    """

    def __init__(
        self,
        log: LeaseLogFiles,
        batch_id: int,
        generation: int,
        *,
        worker: WorkerIdentity,
        limits: Limits,
        randomness: Callable[[int], bytes],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._times = AttemptTimes(now)
        self.batch_id = batch_id
        self.generation = generation
        self.attempt_dir = log.run.attempt(batch_id, generation, worker.token)
        self.lease_seconds = limits.lease_seconds
        self._log = log
        self._worker = worker
        self._limits = limits
        self._randomness = randomness
        self._publish_tried = False
        self._ended = False

    def heartbeat(self) -> None:
        """Show that the holder is alive, by replacing the nonce.

        Raises:
            LeaseLostError: A newer claim exists.
            StorageError: The work dir cannot be read or written just now.
        """
        try:
            newest = self._log.newest_claim(self.batch_id)
        except FileNotFoundError as error:
            raise LeaseLostError(
                f"{self._log.run.lease_dir(self.batch_id)} is gone: the run was removed.",
                path=str(self._log.run.lease_dir(self.batch_id)),
                next_step="Start the worker again on the work dir's current run.",
            ) from error
        if newest > self.generation:
            raise LeaseLostError(
                f"Batch {self.batch_id} was taken over by claim {newest}.",
                path=str(self._log.run.lease(self.batch_id, newest)),
                next_step="Nothing: the other worker does it.",
            )
        nonce = encode_record(
            "heartbeat",
            LEASE_VERSION,
            self._log.run_id,
            {"nonce": self._randomness(8).hex(), **self._times.of_beat()},
        )
        replace_record(
            self._log.run.heartbeat(self.batch_id, self.generation), nonce, fs=self._log.fs
        )

    def hand_back(self, reason: str) -> None:
        """Give the batch back, not as a failure; others may claim it at once.

        The attempt's folder is removed unless publishing was tried. Does nothing if the lease ended
        already.

        Raises:
            StorageError: It could not be recorded; call again, or let the lease expire.
        """
        if self._ended:
            return
        self._log.write_end(
            self.batch_id,
            self.generation,
            Outcome.HANDED_BACK,
            {"reason": reason, **self._times.of_end()},
        )
        self._ended = True
        self._drop_attempt()

    def fail(self, error: LeconvertError, traceback_text: str = "") -> bool:
        """Count an error against the batch; the last allowed one sets it aside.

        Args:
            error: What happened.
            traceback_text: The traceback, where it helps.

        Returns:
            Whether the batch is now set aside.

        Raises:
            StorageError: It could not be recorded; the lease then expires by itself.
        """
        if self._ended:
            return False
        self._ended = True
        details = {"error": error.as_record(), "traceback": traceback_text}
        self._log.write_end(
            self.batch_id, self.generation, Outcome.ERROR, {**details, **self._times.of_end()}
        )
        self._drop_attempt()
        log = self._log.read(self.batch_id)
        if log.errors < self._limits.max_attempts:
            return False
        counts = {"generation": self.generation, "errors": log.errors, "losses": log.losses}
        self._log.publish_failed(self.batch_id, self._worker, {**counts, **details})
        return True

    def publish_done(self, fields: Mapping[str, Any]) -> Literal["won", "lost"]:
        """Publish the batch's result; the first publisher wins, whoever holds the lease.

        The caller has forced the shards in ``attempt_dir`` to the disk; the record, ``attempt_dir``
        and its parents are forced here, before the name ``done``.

        Args:
            fields: The shards, JSON-serialisable. ``batch_id``, ``generation``, ``attempt``,
                ``token``, ``host``, ``pid`` and the attempt's times are added.

        Returns:
            ``won``, or ``lost`` if another attempt was first; then this one's folder is removed.

        Raises:
            OutcomeUnknownError: It may have happened; the folder is kept.
            StorageError: It did not happen.
            ValueError: A field has a reserved name.
        """
        if taken := sorted(_RESERVED.intersection(fields)):
            raise ValueError(f"fields of a done record may not be called {', '.join(taken)}")
        run, fs = self._log.run, self._log.fs
        attempt = self.attempt_dir.relative_to(run.root).as_posix()
        record = encode_record(
            "done",
            DONE_VERSION,
            self._log.run_id,
            {
                "batch_id": self.batch_id,
                "generation": self.generation,
                "attempt": attempt,
                "token": self._worker.token,
                "host": self._worker.host,
                "pid": self._worker.pid,
                **self._times.of_end(),
                **fields,
            },
        )
        source = run.attempt_record(self.batch_id, self.generation, self._worker.token, "done")
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
            f"{run.done(self.batch_id)} appears and vanishes, so it is unknown whether it is ours.",
            path=str(run.done(self.batch_id)),
            next_step="Check that only one packer runs, then run the same command again.",
        )

    def abandon(self) -> None:
        """Tidy up after a lost lease: remove the attempt if a ``done`` names another one.

        Never raises; what cannot be settled now is left to the packer.
        """
        self._ended = True
        with suppress(OSError, StorageError):
            if self._publish_tried:
                self._verdict()
            else:
                self._drop_attempt()

    def _verdict(self) -> Literal["won", "lost", "none"]:
        """Read whose ``done`` there is; remove this attempt if it is another's."""
        run, fs = self._log.run, self._log.fs
        with storage_errors(run.done_dir):
            fs.list_names(run.done_dir)
        try:
            winner = read_done(run, self._log.run_id, self.batch_id, fs=fs)
        except FileNotFoundError:
            return "none"  # voided a moment ago
        except WorkDirError:
            return "lost"  # damaged: the packer will void it, and this attempt stays for now
        if (winner.get("token"), winner.get("generation")) == (
            self._worker.token,
            self.generation,
        ):
            return "won"
        self._remove_attempt()
        return "lost"

    def _drop_attempt(self) -> None:
        if not self._publish_tried:
            self._remove_attempt()

    def _remove_attempt(self) -> None:
        # Leaving it costs space until the packer cleans up; failing here would cost more.
        with suppress(StorageError, OSError):
            remove_tree(self.attempt_dir, inside=self._log.run.attempts_dir)
