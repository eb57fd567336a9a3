"""Looks at a run again and again, and reads only what is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from leconvert.errors import StorageError, WorkDirError
from leconvert.leasing import BatchState, BatchStatus, Board, LeaseStore, read_done, read_failed
from leconvert.leasing.registry import WorkerRecord, read_workers
from leconvert.status.jobs import JobObserver
from leconvert.status.rates import Progressed, RateWindow, seconds_left
from leconvert.status.values import (
    Failure,
    Liveness,
    PackerStatus,
    RunStatus,
    VideoBytes,
    WorkerStatus,
)
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity, process_is_gone, process_is_running
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.locks import read_packer
from leconvert.workdir.opened import OpenedRun, open_run
from leconvert.workdir.paths import WorkDir
from leconvert.workdir.target import is_converted

__all__ = ["RunObserver", "run_status", "watch_run"]

# A holder beats every 15 s at the default lease, a waiting worker reports every 10 s.
_SILENT_AFTER_SECONDS = 45.0
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
        self._store = store
        self._board = Board(store, run.manifest.num_batches)
        sizes = [(batch.source_bytes, batch.frames) for batch in run.batches]
        self._source_bytes = [size for size, _ in sizes]
        self._frames = [frames for _, frames in sizes]
        self._began: float | None = None
        self._claims_seen: set[tuple[int, int]] = set()
        self._gave_sign: set[str] = set()
        self._video: dict[int, tuple[int, int]] = {}
        self._failures: dict[int, Failure] = {}
        self._ended: set[str] = set()
        self._reports: dict[str, tuple[WorkerRecord, float]] = {}
        self._window = RateWindow()
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
        workers = self._look_at_workers(leased)
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
            ended_workers=len(self._ended),
            unsettled=unsettled,
            failures=self._look_at_failures(failed),
            jobs=self._jobs.look(),
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

    def _look_at_workers(self, leased: Sequence[BatchStatus]) -> list[WorkerStatus]:
        now = self._clock()
        holders = {row.token: row for row in leased if row.token is not None}
        for record in read_workers(
            self._run.paths, self.run_id, skip=self._ended - holders.keys(), fs=self._fs
        ):
            if record.state == "ended":
                self._ended.add(record.token)
            before = self._reports.get(record.token)
            if before is None or before[0] != record:
                self._reports[record.token] = (record, now)
            if before is not None and before[0] != record:
                self._gave_sign.add(record.token)
        self._window.add(
            now,
            {
                token: Progressed(record.processed_bytes, record.frames, record.seconds)
                for token, (record, _) in self._reports.items()
                if token not in self._ended
            },
        )
        rows = [self._holder(row, token, now) for token, row in holders.items()]
        for token, (record, _) in self._reports.items():
            if token in holders or token in self._ended:
                continue
            if process_is_gone(asdict(record)):
                self._ended.add(token)
                continue
            rows.append(self._idle(record, now))
        return sorted(rows, key=lambda row: (row.host, row.pid, row.token))

    def _holder(self, row: BatchStatus, token: str, now: float) -> WorkerStatus:
        record, _ = self._reports.get(token, (None, now))
        claim = self._store.log.holder(row.batch_id, row.generation)
        silent = row.heartbeat_age_seconds or 0.0
        key = (row.batch_id, row.generation)
        if silent == 0.0 and key in self._claims_seen:  # new since the last look
            self._gave_sign.add(token)
        self._claims_seen.add(key)
        known = asdict(record) if record is not None else claim
        return self._status(
            token, row.host or "?", row.pid or 0, record, known, silent, row.batch_id
        )

    def _idle(self, record: WorkerRecord, now: float) -> WorkerStatus:
        silent = now - self._reports[record.token][1]
        known = asdict(record)
        return self._status(record.token, record.host, record.pid, record, known, silent, None)

    def _status(
        self,
        token: str,
        host: str,
        pid: int,
        record: WorkerRecord | None,
        known: Mapping[str, Any],
        silent: float,
        batch_id: int | None,
    ) -> WorkerStatus:
        liveness = self._liveness(token, known, silent)
        alive = liveness in {Liveness.RUNNING, Liveness.UNKNOWN}
        size_rate, frame_rate = self._window.rates(token) if alive else (0.0, 0.0)
        return WorkerStatus(
            token=token,
            host=host,
            pid=pid,
            liveness=liveness,
            batch_id=batch_id,
            silent_seconds=round(silent, 1),
            batches=record.batches if record else 0,
            written_bytes=record.written_bytes if record else 0,
            bytes_per_second=round(size_rate, 1),
            frames_per_second=round(frame_rate, 1),
        )

    def _liveness(self, token: str, known: Mapping[str, Any], silent: float) -> Liveness:
        if process_is_gone(known):
            return Liveness.ENDED
        if silent >= _SILENT_AFTER_SECONDS:
            return Liveness.SILENT
        if process_is_running(known) or token in self._gave_sign:
            return Liveness.RUNNING
        return Liveness.UNKNOWN

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
            shards = record.get("shards") or ()
            self._video[batch_id] = (
                sum(shard.get("cloned_bytes", 0) for shard in shards),
                sum(shard.get("copied_bytes", 0) for shard in shards),
            )
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
            except (FileNotFoundError, StorageError, WorkDirError):
                record = {}
            self._failures[batch_id] = _failure(batch_id, record)
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
            state.generation, state.step.value, holder.get("host"), holder.get("pid"), liveness
        )
        return packer, state.step in {PackStep.SWAPPED, PackStep.FINISHED}


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
