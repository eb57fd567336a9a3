"""Looks at a run again and again, and reads only what is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leconvert.errors import StorageError, WorkDirError
from leconvert.leasing import BatchState, BatchStatus, Board, LeaseStore, read_done, read_failed
from leconvert.status.jobs import JobObserver
from leconvert.status.rates import seconds_left
from leconvert.status.values import (
    Failure,
    Liveness,
    PackerStatus,
    RunStatus,
    VideoBytes,
)
from leconvert.status.workers import WorkerObserver
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity, process_is_gone, process_is_running
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.locks import read_packer
from leconvert.workdir.opened import OpenedRun, open_run
from leconvert.workdir.paths import WorkDir
from leconvert.workdir.target import is_converted

__all__ = ["RunObserver", "run_status", "watch_run"]

_RECORDS_A_LOOK = 2_000


def run_status(work_dir: Path) -> RunStatus:
    """Look at a work dir's current run once; reads the record of every finished batch.

    Raises:
        WorkDirError: There is no run, or its records cannot be used.
    """
    return RunObserver(open_run(work_dir, allow_mixed_versions=True, only_look=True)).look()


def watch_run(
    work_dir: Path, pause: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic
) -> Iterator[RunStatus]:
    """Look again and again, until the result is in place; a ``--restart`` is followed.

    Args:
        work_dir: The folder that all hosts share.
        pause: Waits between two looks, and says whether to stop.
        clock: A monotonic clock in seconds.

    Raises:
        WorkDirError: There is no run; or the work dir vanished and no result is in place.
    """
    observer: RunObserver | None = None
    while True:
        try:
            if observer is None or WorkDir(work_dir).current_run_id() != observer.run_id:
                observer = RunObserver(
                    open_run(work_dir, allow_mixed_versions=True, only_look=True),
                    clock=clock,
                    records_a_look=_RECORDS_A_LOOK,
                )
            status = observer.look()
        except (FileNotFoundError, WorkDirError):
            # A conversion without a work dir of its own removes it at the end.
            if observer is None or (last := observer.after_removal()) is None:
                raise
            status = last
        yield status
        if status.packed or pause():
            return


# What a record raises that was edited by hand, or by a program that we do not know.
_EDITED = (AttributeError, TypeError, ValueError)


class RunObserver:
    """One observer of one run.

    A look lists five folders, reads the lease log of batches that somebody holds or tried, the
    records of workers that have not ended, and those ``done`` records that are new. Where jobs
    were submitted it asks their scheduler now and then. It writes nothing and takes no lock.

    Args:
        run: The run.
        clock: A monotonic clock in seconds.
        records_a_look: At most so many ``done`` records are read at one look, the rest later; None
            for all.
        fs: File operations.
    """

    def __init__(
        self,
        run: OpenedRun,
        *,
        clock: Callable[[], float] = time.monotonic,
        records_a_look: int | None = None,
        fs: FileSystem = LOCAL,
    ) -> None:
        self.run_id = run.manifest.run_id
        self._run = run
        self._clock = clock
        self._fs = fs
        self._records_a_look = records_a_look
        # The store only looks: an observer claims nothing, so its identity is never written.
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(run.paths, self.run_id, identity, clock=clock, fs=fs)
        self._workers = WorkerObserver(run, store, clock=clock, fs=fs)
        self._board = Board(store, run.manifest.num_batches)
        sizes = [(batch.source_bytes, batch.frames) for batch in run.batches]
        self._source_bytes = [size for size, _ in sizes]
        self._frames = [frames for _, frames in sizes]
        self._began: float | None = None
        self._video: dict[int, tuple[int, int]] = {}
        self._failures: dict[int, Failure] = {}
        self._jobs = JobObserver(run.paths, self.run_id, clock=clock, fs=fs)
        self._last: RunStatus | None = None

    def look(self) -> RunStatus:
        """Return the run as it is now.

        Raises:
            FileNotFoundError: The run was removed.
            StorageError: The work dir cannot be read.
            WorkDirError: A record cannot be used.
        """
        batches = self._board.status()
        done = [row.batch_id for row in batches if row.state is BatchState.DONE]
        unsettled = [r for r in batches if r.state is not BatchState.DONE and r.generation]
        leased = [row for row in unsettled if row.state is BatchState.LEASED]
        failed = [row for row in unsettled if row.state is BatchState.FAILED]
        workers = self._workers.look(leased)
        rate = sum(worker.bytes_per_second for worker in workers)
        packer, packed = self._look_at_packer()
        total_bytes = sum(self._source_bytes)
        done_bytes = sum(self._source_bytes[batch_id] for batch_id in done)
        manifest = self._run.manifest
        now = self._clock()
        observed = 0.0 if self._began is None else now - self._began
        self._began = now if self._began is None else self._began
        self._last = RunStatus(
            run_id=self.run_id,
            source=manifest.source_name,
            target=manifest.target,
            batches=len(batches),
            pending=len(batches) - len(done) - len(leased) - len(failed),
            leased=len(leased),
            done=len(done),
            failed=len(failed),
            total_bytes=total_bytes,
            done_bytes=done_bytes,
            total_frames=sum(self._frames),
            done_frames=sum(self._frames[batch_id] for batch_id in done),
            packed=packed,
            packer=packer,
            one_host=None if self._run.one_host is None else self._run.one_host.host.name,
            video=self._look_at_done(done),
            bytes_per_second=round(rate, 1),
            frames_per_second=round(sum(worker.frames_per_second for worker in workers), 1),
            seconds_left=seconds_left(total_bytes - done_bytes, rate),
            observed_seconds=round(observed, 3),
            workers=workers,
            ended_workers=self._workers.num_ended,
            unsettled=unsettled,
            failures=self._look_at_failures(failed),
            jobs=self._jobs.look(),
            peak_memory_bytes=self._workers.peak_memory_bytes,
        )
        return self._last

    def after_removal(self) -> RunStatus | None:
        """Return a last status after the work dir vanished, if the result stands at its place."""
        if self._last is None or not is_converted(Path(self._run.manifest.target)):
            return None
        return replace(
            self._last,
            pending=0,
            leased=0,
            done=self._last.batches,
            failed=0,
            done_bytes=self._last.total_bytes,
            done_frames=self._last.total_frames,
            packed=True,
            packer=replace(self._last.packer, step=PackStep.FINISHED.value),
            bytes_per_second=0.0,
            frames_per_second=0.0,
            seconds_left=0.0,
            workers=(),
            unsettled=(),
            failures=(),
        )

    def _look_at_done(self, done: Sequence[int]) -> VideoBytes:
        wanted = set(done)
        for batch_id in self._video.keys() - wanted:  # voided since
            del self._video[batch_id]
        left = len(done) if self._records_a_look is None else self._records_a_look
        for batch_id in done:
            if batch_id in self._video:
                continue
            if left == 0:
                break
            left -= 1
            try:
                record = read_done(self._run.paths, self.run_id, batch_id, fs=self._fs)
            except (FileNotFoundError, StorageError, WorkDirError):
                continue  # voided a moment ago, or damaged: the packer will say so
            try:
                self._video[batch_id] = _video_bytes(record)
            except _EDITED:
                continue  # as above
        return VideoBytes(
            cloned=sum(cloned for cloned, _ in self._video.values()),
            copied=sum(copied for _, copied in self._video.values()),
            batches_read=len(self._video),
        )

    def _look_at_failures(self, failed: Sequence[BatchStatus]) -> list[Failure]:
        now_failed = {row.batch_id for row in failed}
        for batch_id in self._failures.keys() - now_failed:  # released, or done after all
            del self._failures[batch_id]
        for batch_id in sorted(now_failed - self._failures.keys()):
            try:
                record = read_failed(self._run.paths, self.run_id, batch_id, fs=self._fs)
                self._failures[batch_id] = _failure(batch_id, record)
            except (FileNotFoundError, StorageError, WorkDirError, *_EDITED):
                self._failures[batch_id] = _failure(batch_id, {})
        return [self._failures[batch_id] for batch_id in sorted(self._failures)]

    def _look_at_packer(self) -> tuple[PackerStatus, bool]:
        state = Journal(self._run.paths, self.run_id, fs=self._fs).read()
        holder = read_packer(self._run.paths, fs=self._fs)
        if not state.generation:
            return PackerStatus(), False
        if process_is_gone(holder):
            liveness = Liveness.ENDED
        else:
            liveness = Liveness.RUNNING if process_is_running(holder) else Liveness.UNKNOWN
        packer = PackerStatus(
            state.generation,
            state.step.value,
            holder.get("host"),
            holder.get("pid"),
            liveness,
            state.notes.get("peak_memory_bytes", 0),
        )
        return packer, state.step in {PackStep.SWAPPED, PackStep.FINISHED}


def _video_bytes(record: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many bytes of video a batch shared with the source, and how many it copied."""
    shards = record.get("shards") or ()
    cloned = sum(int(shard.get("cloned_bytes", 0)) for shard in shards)
    return cloned, sum(int(shard.get("copied_bytes", 0)) for shard in shards)


def _failure(batch_id: int, record: Mapping[str, Any]) -> Failure:
    error = record.get("error") or {}
    losses = int(record.get("losses", 0))
    lost = f"{losses} workers died or froze while they held it"
    return Failure(
        batch_id=batch_id,
        errors=int(record.get("errors", 0)),
        losses=losses,
        host=str(record.get("host", "?")),
        error=error.get("error"),
        message=str(error.get("message") or (lost if losses else "no message")),
        next_step=error.get("next_step"),
    )
