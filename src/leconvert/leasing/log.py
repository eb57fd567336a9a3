"""The lease log on disk: claims, heartbeats, ends, and the records that settle a batch.

    leases/000042/0001         the first claim; comes into being by an exclusive link
    leases/000042/0001.beat    the holder's heartbeat: a random nonce, replaced again and again
    leases/000042/0001.end     how it ended: handed back, error, void
    leases/000042/0001.reset   claims up to this one no longer count as attempts (released)

Names are read by listing the folder first and opening the file then: over NFS a name that was once
looked up in vain stays absent for half a minute, and ``stat`` answers from a cache.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leconvert.errors import StorageError, WorkDirError
from leconvert.leasing.state import Generation, LeaseLog, Outcome
from leconvert.workdir.durable import (
    AlreadyPublishedError,
    publish_exclusively,
    storage_errors,
    sync_dir,
    write_durably,
)
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.paths import RunPaths
from leconvert.workdir.records import decode_record, encode_record, read_record

__all__ = [
    "DONE_VERSION",
    "FAILED_VERSION",
    "LEASE_VERSION",
    "LeaseLogFiles",
    "list_batches",
    "read_done",
    "read_failed",
    "release_failed",
    "void_done",
]

LEASE_VERSION = 1
DONE_VERSION = 1
FAILED_VERSION = 1

_CLAIM = re.compile(r"([0-9]{4,})\Z")
_END = re.compile(r"([0-9]{4,})\.end\Z")
_RESET = re.compile(r"([0-9]{4,})\.reset\Z")
_SETTLED = re.compile(r"([0-9]{6,})\.json\Z")
_BATCH = re.compile(r"([0-9]{6,})\Z")
_VOIDED = re.compile(r"[0-9]{6,}\.(?:void|released)-([0-9]+)\Z")
# A file can vanish, or its handle go stale, between listing and opening; then it is read next time.
_GONE = frozenset({errno.ENOENT, errno.ESTALE})


def list_batches(folder: Path, *, fs: FileSystem = LOCAL) -> set[int]:
    """Return the batches that a folder (``done/``, ``failed/`` or ``leases/``) has a name for.

    Raises:
        FileNotFoundError: The run's folder is gone.
        StorageError: It cannot be read.
    """
    with storage_errors(folder):
        names = fs.list_names(folder)
    return {
        int(found[1]) for name in names if (found := _SETTLED.match(name) or _BATCH.match(name))
    }


def read_done(
    run: RunPaths, run_id: str, batch_id: int, *, fs: FileSystem = LOCAL
) -> dict[str, Any]:
    """Return the record that made a batch done.

    Raises:
        FileNotFoundError: The batch is not done.
        WorkDirError: The record cannot be used.
    """
    return read_record(run.done(batch_id), "done", version=DONE_VERSION, run_id=run_id, fs=fs)


def read_failed(
    run: RunPaths, run_id: str, batch_id: int, *, fs: FileSystem = LOCAL
) -> dict[str, Any]:
    """Return the record that set a batch aside.

    Raises:
        FileNotFoundError: The batch is not set aside.
        WorkDirError: The record cannot be used.
    """
    return read_record(run.failed(batch_id), "failed", version=FAILED_VERSION, run_id=run_id, fs=fs)


class LeaseLogFiles:
    """Reads and extends the lease logs of one run.

    What it returns was true when it was read. Ends and claims are remembered, since neither
    changes once written (a void only ever follows a claim without an end).
    """

    def __init__(self, run: RunPaths, run_id: str, *, fs: FileSystem = LOCAL) -> None:
        self.run = run
        self.run_id = run_id
        self.fs = fs
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._holders: dict[tuple[int, int], Mapping[str, Any]] = {}

    def read(self, batch_id: int) -> LeaseLog:
        """Return a batch's log; an end that cannot be read yet is no end.

        Raises:
            StorageError: The folder cannot be read.
        """
        try:
            with storage_errors(self.run.lease_dir(batch_id)):
                names = self.fs.list_names(self.run.lease_dir(batch_id))
        except FileNotFoundError:
            return LeaseLog()
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
        """Return the newest generation, or 0; reads no file.

        Raises:
            FileNotFoundError: The run's folder is gone.
            StorageError: The folder cannot be read.
        """
        folder = self.run.lease_dir(batch_id)
        with storage_errors(folder):
            names = self.fs.list_names(folder)
        return max((int(found[1]) for name in names if (found := _CLAIM.match(name))), default=0)

    def read_nonce(self, batch_id: int, generation: int) -> bytes:
        """Return a heartbeat's content; empty before the first one, and where it is unreadable."""
        try:
            return self.fs.read_bytes(self.run.heartbeat(batch_id, generation))
        except OSError:
            # A holder whose heartbeat stays unreadable for a whole lease counts as silent: a wrong
            # guess costs work, waiting for ever would cost the run.
            return b""

    def holder(self, batch_id: int, generation: int) -> Mapping[str, Any]:
        """Return who claimed a generation (see `WorkerIdentity`), or an empty mapping."""
        key = (batch_id, generation)
        if key not in self._holders:
            path = self.run.lease(batch_id, generation)
            try:
                self._holders[key] = read_record(
                    path, "lease", version=LEASE_VERSION, run_id=self.run_id, fs=self.fs
                )
            except (OSError, StorageError, WorkDirError):
                return {}  # only shown to people, and a hint; the name alone is the claim
        return self._holders[key]

    def end_record(self, batch_id: int, generation: int) -> dict[str, Any] | None:
        """Return how a generation ended, or None where nothing readable says so.

        Raises:
            StorageError: It is there, and the disk fails.
        """
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
                raw, "lease-end", version=LEASE_VERSION, path=path, run_id=self.run_id
            )
        except WorkDirError:
            return None

    def write_end(
        self, batch_id: int, generation: int, outcome: Outcome, fields: Mapping[str, Any]
    ) -> None:
        """Record how a generation ended; survives a power loss.

        Raises:
            StorageError: The disk is full, read-only, or fails.
        """
        write_durably(
            self.run.lease_end(batch_id, generation),
            encode_record(
                "lease-end", LEASE_VERSION, self.run_id, {"outcome": outcome.value, **fields}
            ),
            fs=self.fs,
        )

    def publish_failed(
        self, batch_id: int, worker: WorkerIdentity, fields: Mapping[str, Any]
    ) -> bool:
        """Set a batch aside, unless somebody else just did.

        Returns:
            Whether it was this record.

        Raises:
            StorageError: The disk is full, read-only, or fails.
        """
        record = encode_record(
            "failed",
            FAILED_VERSION,
            self.run_id,
            {"batch_id": batch_id, **worker.as_fields(), **fields},
        )
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
    run: RunPaths, run_id: str, batch_id: int, reason: str, *, fs: FileSystem = LOCAL
) -> bool:
    """Take back a batch's ``done`` because its shards are missing or wrong; the batch opens again.

    The record is kept as ``done/<batch>.void-<n>``, the reason in the winner's lease log. Call it
    under the packer's lock: of two callers at once, the second could void the successor.

    Write order: the end of the winner's lease, then the rename. A crash in between leaves the batch
    done, and the next packer finds and voids it again.

    Returns:
        Whether there was a ``done`` to void.

    Raises:
        StorageError: The disk is full, read-only, or fails.
    """
    try:
        record = read_done(run, run_id, batch_id, fs=fs)
    except FileNotFoundError:
        return False
    except WorkDirError:
        record = {}  # a torn record is voided as well
    log = LeaseLogFiles(run, run_id, fs=fs)
    generation = record.get("generation")
    if type(generation) is int and 0 < generation <= log.newest_claim(batch_id):
        log.write_end(batch_id, generation, Outcome.VOID, {"reason": reason})
    return _move_aside(run.done(batch_id), run.voided, batch_id, fs)


def release_failed(
    run: RunPaths, run_id: str, batch_id: int, reason: str, *, fs: FileSystem = LOCAL
) -> bool:
    """Give a batch that was set aside back; its attempts so far no longer count.

    Write order: the reset in the lease log, then the rename. A crash in between leaves the batch
    set aside, and releasing it again is harmless.

    Returns:
        Whether it was set aside.

    Raises:
        StorageError: The disk is full, read-only, or fails.
    """
    if batch_id not in list_batches(run.failed_dir, fs=fs):
        return False
    newest = LeaseLogFiles(run, run_id, fs=fs).newest_claim(batch_id)
    write_durably(
        run.lease_reset(batch_id, newest),
        encode_record("lease-reset", LEASE_VERSION, run_id, {"reason": reason}),
        fs=fs,
    )
    return _move_aside(run.failed(batch_id), run.released, batch_id, fs)


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
