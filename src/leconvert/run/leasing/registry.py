"""What each worker is doing, for people to look at; nothing decides by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from leconvert.support.errors import StorageError, WorkDirError
from leconvert.support.machine import Machine
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import LOCAL, FileSystem, replace_record
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.records import RunPaths, encode_record, read_record

_VERSION = 1
_HERE = Machine()
_SECONDS_BETWEEN_REPORTS = 1.0
# A worker that waits reports too, so that who watches can tell it from a dead one.
_SECONDS_BETWEEN_IDLE_REPORTS = 10.0


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker, by its own account."""

    token: str  # the worker
    host: str  # host name
    pid: int  # process id there
    state: str = "waiting"  # ``working``, ``waiting`` or ``ended``
    batch_id: int | None = None  # the batch in hand, or None
    batches: int = 0  # batches that it finished
    written_bytes: int = 0  # bytes that it wrote, of batches that it finished
    frames: int = 0  # frames and rows in them
    bytes_per_second: float = 0.0  # mean rate since it began
    frames_per_second: float = 0.0  # likewise
    updated: str = ""  # time of the report by the worker's wall clock, ISO 8601 in UTC
    # Source bytes that it went through, the batch in hand and tries that came to nothing included:
    # what moves while a large batch is being written.
    processed_bytes: int = 0
    seconds: float = 0.0  # how long it has been running
    boot: str = ""  # its boot and process namespace; see `WorkerIdentity`
    started: int = 0  # start time of its process
    batch_began: str = ""  # when it took the batch in hand, as ``updated``; empty without one
    # The most that its process has had resident; 0 where that is not known.
    peak_memory_bytes: int = 0


def write_worker(
    run: RunPaths, run_id: str, record: WorkerRecord, *, fs: FileSystem = LOCAL
) -> None:
    """Write or replace a worker's record; a power loss may lose it."""
    raw = encode_record("worker", _VERSION, run_id, asdict(record))
    replace_record(run.worker(record.token), raw, fs=fs)


def read_workers(
    run: RunPaths, run_id: str, *, skip: Collection[str] = (), fs: FileSystem = LOCAL
) -> list[WorkerRecord]:
    """Return the records of all workers, sorted by token; unreadable ones are left out."""
    known = {field.name for field in fields(WorkerRecord)}
    records = []
    with storage_errors(run.workers_dir):
        names = fs.list_names(run.workers_dir)
    for name in names:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        token = name.removesuffix(".json")
        if token in skip:
            continue
        path = run.worker(token)
        try:
            record = read_record(path, "worker", version=_VERSION, run_id=run_id, fs=fs)
            worker = WorkerRecord(**{key: record[key] for key in record if key in known})
        except (OSError, StorageError, WorkDirError, TypeError):
            continue  # cut off by a power loss, or gone: it was for show
        if worker.token == token and _is_sound(worker):
            records.append(worker)
    return records


def _is_sound(worker: WorkerRecord) -> bool:
    """Tell whether values are of their kinds, as those of a record that nobody edited are."""
    numbers = (
        worker.frames, worker.processed_bytes, worker.seconds, worker.pid, worker.peak_memory_bytes
    )  # fmt: skip
    return all(isinstance(number, int | float) for number in numbers) and all(
        isinstance(text, str) for text in (worker.host, worker.state, worker.boot)
    )


class WorkerReporter:
    """Keeps a worker's record up to date, at most once a second.

    Failing to write it never stops the worker.
    """

    def __init__(
        self,
        run: RunPaths,
        run_id: str,
        worker: WorkerIdentity,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        peak_memory: Callable[[], int] = _HERE.peak_memory,
        fs: FileSystem = LOCAL,
    ) -> None:
        self._run = run
        self._run_id = run_id
        self._clock = clock
        self._now = now
        self._peak_memory = peak_memory
        self._fs = fs
        self._began = clock()
        self._written_at: float | None = None
        self._processed_bytes = 0
        self.record = WorkerRecord(
            token=worker.token,
            host=worker.host,
            pid=worker.pid,
            boot=worker.boot,
            started=worker.started,
        )

    def update(self, *, batch_id: int | None, add_bytes: int = 0, add_frames: int = 0) -> None:
        """Report the batch in hand, and what was finished since the last report."""
        self._write(
            _SECONDS_BETWEEN_REPORTS,
            state="waiting" if batch_id is None else "working",
            batch_id=batch_id,
            batch_began="" if batch_id is None else self._wall_clock(),
            batches=self.record.batches + (add_frames > 0 or add_bytes > 0),
            written_bytes=self.record.written_bytes + add_bytes,
            frames=self.record.frames + add_frames,
        )

    def advance(self, source_bytes: int) -> None:
        """Report source bytes that were just gone through; cheap enough for every block."""
        self._processed_bytes += source_bytes
        if self._is_due(_SECONDS_BETWEEN_REPORTS):
            self._write(_SECONDS_BETWEEN_REPORTS)

    def wait(self) -> None:
        """Report that the worker still lives while it finds nothing to do."""
        self._write(_SECONDS_BETWEEN_IDLE_REPORTS, state="waiting", batch_id=None, batch_began="")

    def end(self) -> None:
        """Report that the worker ended."""
        self._write(0.0, state="ended", batch_id=None, batch_began="")

    def _wall_clock(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="seconds")

    def _is_due(self, least_seconds: float) -> bool:
        return self._written_at is None or self._clock() - self._written_at >= least_seconds

    def _write(self, least_seconds: float, **changes: Any) -> None:
        self.record = replace(self.record, processed_bytes=self._processed_bytes, **changes)
        if not self._is_due(least_seconds):
            return
        now = self._clock()
        seconds = max(now - self._began, 1e-9)
        self.record = replace(
            self.record,
            bytes_per_second=round(self.record.written_bytes / seconds, 1),
            frames_per_second=round(self.record.frames / seconds, 1),
            seconds=round(seconds, 1),
            updated=self._wall_clock(),
            peak_memory_bytes=self._peak_memory(),
        )
        self._written_at = now
        try:
            write_worker(self._run, self._run_id, self.record, fs=self._fs)
        except (OSError, StorageError):
            return
