"""Looks at the workers of a run again and again: who is alive, and how fast each is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from leconvert.leasing import BatchStatus, LeaseStore
from leconvert.leasing.registry import WorkerRecord, read_workers
from leconvert.status.rates import Progressed, RateWindow
from leconvert.status.values import Liveness, WorkerStatus
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import process_is_gone, process_is_running
from leconvert.workdir.opened import OpenedRun

__all__ = ["WorkerObserver"]

# A holder beats every 15 s at the default lease, a waiting worker reports every 10 s.
_SILENT_AFTER_SECONDS = 45.0


class WorkerObserver:
    """One observer of one run's workers.

    A worker is known by its record and by the batch that it holds. Whether it lives is told by what
    changed between two looks, except on its own host, where the process itself is asked for.

    Args:
        run: The run.
        store: Reads claims; it must be the one that looked at the leases.
        clock: A monotonic clock in seconds.
        fs: File operations.
    """

    def __init__(
        self,
        run: OpenedRun,
        store: LeaseStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        fs: FileSystem = LOCAL,
    ) -> None:
        self._run = run
        self._store = store
        self._clock = clock
        self._fs = fs
        self._claims_seen: set[tuple[int, int]] = set()
        self._gave_sign: set[str] = set()
        self._ended: set[str] = set()
        self._reports: dict[str, tuple[WorkerRecord, float]] = {}
        self._window = RateWindow()

    @property
    def num_ended(self) -> int:
        """Workers that ended, as far as was seen."""
        return len(self._ended)

    @property
    def peak_memory_bytes(self) -> int:
        """The most that one worker's process has had resident, as far as was seen."""
        return max((record.peak_memory_bytes for record, _ in self._reports.values()), default=0)

    def look(self, leased: Sequence[BatchStatus]) -> list[WorkerStatus]:
        """Return the workers that have not ended, by host, process and token.

        Args:
            leased: The batches that somebody holds.

        Raises:
            StorageError: The work dir cannot be read.
        """
        now = self._clock()
        holders = {row.token: row for row in leased if row.token is not None}
        for record in read_workers(
            self._run.paths,
            self._run.manifest.run_id,
            skip=self._ended - holders.keys(),
            fs=self._fs,
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
            peak_memory_bytes=record.peak_memory_bytes if record else 0,
        )

    def _liveness(self, token: str, known: Mapping[str, Any], silent: float) -> Liveness:
        if process_is_gone(known):
            return Liveness.ENDED
        if silent >= _SILENT_AFTER_SECONDS:
            return Liveness.SILENT
        if process_is_running(known) or token in self._gave_sign:
            return Liveness.RUNNING
        return Liveness.UNKNOWN
