"""The worker: lease a batch, write its shards, publish, again until nothing is left.

A worker knows nothing of other workers. Two of them may write the same batch at the same time
(one was suspended, say); each writes into an attempt folder of its own, and only the exclusive
publish of the ``done`` record decides whose shards count.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leconvert.bell import Bell
from leconvert.errors import (
    HubAccessError,
    HubError,
    InterruptedRunError,
    LeconvertError,
    SourceChangedError,
    StorageError,
)
from leconvert.leasing import Board, HeartbeatKeeper, Lease, LeaseLostError, LeaseStore
from leconvert.leasing.registry import WorkerReporter
from leconvert.model import Batch
from leconvert.shards import Inputs, ShardWriter
from leconvert.workdir.durable import storage_errors
from leconvert.workdir.filesystem import status_now
from leconvert.workdir.opened import OpenedRun, check_current
from leconvert.workdir.patience import Patience
from leconvert.workdir.target import info_path, is_converted
from leconvert.workdir.trouble import lacks_permission

__all__ = ["Worker", "WorkerSummary"]

# An idle worker notices a request to stop within this time.
_LONGEST_NAP_SECONDS = 0.5
_SECONDS_BETWEEN_CHECKS = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What one worker did.

    Attributes:
        batches_done: Batches whose results it published.
        batches_lost: Batches that another worker published first.
        batches_failed: Tries that ended in an error.
        written_bytes: Bytes of the shards it published.
        frames: Frames and rows in them.
        seconds: From start to end, waiting included.
    """

    batches_done: int
    batches_lost: int
    batches_failed: int
    written_bytes: int
    frames: int
    seconds: float


class Worker:
    """One worker on one run.

    It guarantees that a shard is on disk before it is named by a ``done`` record, and that the
    source files of a batch were the planned ones before and after they were read. It does not
    guarantee to be alone on a batch.

    Args:
        run: The run to work on.
        store: The leases, under this worker's identity.
        board: Its view of the batches.
        stop: Set from outside to make it hand back its batch and return.
        on_bytes: Called with the number of bytes as they are written.
        reporter: Writes what it is doing for ``status``, or None.
        bell: Shared by the workers of a process, or None.
        patience: How long a disk or a Hub that fails is borne; by default not at all.
        inputs: Provides the files of a source that is not on this machine.
        waiter: Waits for the event or so many seconds, and says whether the event is set.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        run: OpenedRun,
        store: LeaseStore,
        board: Board,
        *,
        stop: threading.Event,
        on_bytes: Callable[[int], None] | None = None,
        reporter: WorkerReporter | None = None,
        bell: Bell | None = None,
        patience: Patience | None = None,
        inputs: Inputs | None = None,
        waiter: Callable[[threading.Event, float], bool] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._patience = patience or Patience(0)
        self._waiter = waiter
        self._clock = clock
        self._next_check = clock()
        self._late: list[tuple[Lease, str]] = []
        self._result_before = _result_at(Path(run.manifest.target))
        self._bell = bell or Bell()
        self._store = store
        self._board = board
        self._stop = stop
        self._on_bytes = on_bytes
        self._reporter = reporter
        self._shards = ShardWriter(run, inputs)

    def run(
        self, *, max_batches: int | None = None, max_idle_seconds: float | None = None
    ) -> WorkerSummary:
        """Work until every batch is done or set aside.

        While others hold the rest, the worker watches, and takes over what expires.

        Args:
            max_batches: Stop after so many tries.
            max_idle_seconds: Stop after waiting so long for something to do.

        Raises:
            SourceChangedError: A source file is not the planned one.
            HubError: The Hub does not answer, and patience did not help.
            HubAccessError: The token does not allow to read the source.
            StorageError: The work dir cannot be used or is gone, and patience did not help.
            PlanMismatchError: The run was given up for another one.
            InterruptedRunError: ``stop`` was set; the batch in hand was handed back.
        """
        try:
            return self._run_batches(max_batches, max_idle_seconds)
        finally:
            with suppress(StorageError, OSError):
                self._hand_back_late()
            if self._reporter is not None:
                self._reporter.end()

    def _run_batches(
        self, max_batches: int | None, max_idle_seconds: float | None
    ) -> WorkerSummary:
        started = self._clock()
        done = lost = failed = written = frames = 0
        idle_since: float | None = None
        while max_batches is None or done + lost + failed < max_batches:
            if self._stop.is_set():
                raise _stopped()
            try:
                if self._is_over():
                    break
                self._hand_back_late()
                lease = self._board.next_lease()
                if lease is None and self._board.all_settled():
                    break
                if lease is not None:
                    idle_since = None
                    batch = self._read_batch(lease)
                    self._report(batch)
                    outcome, size_bytes = self._try_batch(lease, batch)
                else:
                    now = self._clock()
                    idle_since = idle_since if idle_since is not None else now
                    if max_idle_seconds is not None and now - idle_since >= max_idle_seconds:
                        break
                    self._idle()
                    continue
            except (StorageError, HubError, OSError) as error:
                self._bear(error)
                continue
            self._patience.reset()
            if outcome == "won":
                done += 1
                written += size_bytes
                frames += batch.frames
                self._report(None, size_bytes, batch.frames)
            else:
                # What another worker published first is that one's, and what failed is nobody's.
                lost += outcome == "lost"
                failed += outcome == "failed"
                self._report(None)
            self._bell.ring()
        return WorkerSummary(done, lost, failed, written, frames, self._clock() - started)

    def _idle(self) -> None:
        if self._reporter is not None:
            self._reporter.wait()
        # Nothing tells of a file that another host will make: look again and again.
        if self._bell.wait(min(self._board.wait_hint(), _LONGEST_NAP_SECONDS)):
            self._board.refresh()

    def _is_over(self) -> bool:
        """Say whether the run ended without us; look at most once a second."""
        now = self._clock()
        if now < self._next_check:
            return False
        self._next_check = now + _SECONDS_BETWEEN_CHECKS
        try:
            check_current(self._run)
        except StorageError:
            # A finished conversion removes its work dir; where none is mounted there is no result.
            # What stood there before, to be replaced (--force-conversion), is none.
            result = _result_at(Path(self._run.manifest.target))
            if result is None or result == self._result_before:
                raise
            return True
        return False

    def _bear(self, error: StorageError | HubError | OSError) -> None:
        """Wait before the next try; give up if there were enough, or if there is no use in it.

        There is none where this user has no permission: only people change that.

        Raises:
            StorageError: Patience is used up; ``OSError`` likewise.
            PlanMismatchError: The run was given up for another one.
            InterruptedRunError: ``stop`` was set.
        """
        try:
            self._next_check = self._clock()
            if self._is_over():
                self._next_check = self._clock()  # so that the next look ends it
                return
        except StorageError as clearer:
            error = clearer
        pause = None if lacks_permission(error) else self._patience.next_pause()
        if pause is None:
            if isinstance(error, LeconvertError) and self._patience.spent_seconds:
                borne = f"It was tried again for {self._patience.spent_seconds:.0f} s."
                error.details = (*error.details, borne)
            raise error
        if self._waiter(self._stop, pause):
            raise _stopped()

    def _hand_back(self, lease: Lease, reason: str) -> None:
        """Hand back now or, where the disk fails, later: it is another error that is being raised.

        Were the disk's raised instead of a Ctrl-C, patience would wait and go on.
        """
        try:
            lease.hand_back(reason)
        except (StorageError, OSError):
            self._late.append((lease, reason))

    def _hand_back_late(self) -> None:
        """Hand back what could not be when it should have been."""
        while self._late:
            lease, reason = self._late[-1]
            lease.hand_back(reason)
            self._late.pop()

    def _read_batch(self, lease: Lease) -> Batch:
        try:
            return self._run.batches.read(lease.batch_id)
        except BaseException:
            # Nothing was tried: whoever can read the plan shall not wait for this lease to expire.
            self._hand_back(lease, "the plan could not be read")
            raise

    def _report(self, batch: Batch | None, size_bytes: int = 0, frames: int = 0) -> None:
        if self._reporter is not None:
            self._reporter.update(
                batch_id=None if batch is None else batch.batch_id,
                add_bytes=size_bytes,
                add_frames=frames,
            )

    def _try_batch(self, lease: Lease, batch: Batch) -> tuple[str, int]:
        """Try one batch and settle its lease whatever happens."""
        try:
            with HeartbeatKeeper(lease) as keeper:
                shards = self._write_shards(lease, batch, keeper.lost)
            outcome = lease.publish_done({"shards": shards})
        except LeaseLostError:
            lease.abandon()
            return "lost", 0
        except (
            InterruptedRunError,
            SourceChangedError,
            StorageError,
            HubError,
            HubAccessError,
        ) as error:
            # None of these is the batch's fault: it goes back without a mark against it.
            self._hand_back(lease, error.message)
            raise
        except LeconvertError as error:
            lease.fail(error, "")
            return "failed", 0
        except Exception as error:  # noqa: BLE001 - a bug must set its batch aside, not hang the run
            lease.fail(LeconvertError(f"{type(error).__name__}: {error}"), traceback.format_exc())
            return "failed", 0
        except BaseException:
            self._hand_back(lease, "the worker was interrupted")
            raise
        return outcome, sum(shard["size_bytes"] for shard in shards)

    def _write_shards(
        self, lease: Lease, batch: Batch, lease_lost: threading.Event
    ) -> list[dict[str, Any]]:
        def should_stop() -> bool:
            return lease_lost.is_set() or self._stop.is_set()

        written: list[dict[str, Any]] = []
        for shard in batch.shards:
            record: dict[str, Any] = {}
            with storage_errors(lease.attempt_dir / shard.name):
                # It is `should_stop` that ends it early; why is asked below.
                with suppress(InterruptedRunError):
                    record = self._shards.write(
                        shard, lease.attempt_dir, on_bytes=self._tell, should_stop=should_stop
                    )
                if lease_lost.is_set():
                    raise LeaseLostError(f"batch {batch.batch_id} was taken over")
                if self._stop.is_set():
                    raise _stopped()
            written.append(record)
        return written

    def _tell(self, size_bytes: int) -> None:
        if self._reporter is not None:
            self._reporter.advance(size_bytes)
        if self._on_bytes:
            self._on_bytes(size_bytes)


def _result_at(target: Path) -> tuple[int, ...] | None:
    """Return what tells the v3.0 dataset at the target from another one, None if there is none."""
    if not is_converted(target):
        return None
    try:
        seen = status_now(info_path(target))
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _stopped() -> InterruptedRunError:
    return InterruptedRunError(
        "The run was stopped; what was being written was handed back.",
        next_step="Run the same command again to go on; finished batches stay finished.",
    )
