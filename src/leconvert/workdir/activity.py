"""Records about a run's activity, for people: workers, calls, submitted jobs, loading speed.

No decision depends on these records:

    workers/<token>.json        activity of a worker, replaced at most once a second
    invocations/<token>.json    call of a process, written, then replaced once
    jobs/<token>.json           submission to a scheduler, written once
    probe.json                  result of ``convert --probe``, replaced by the last measurement

A token ends in random digits, so no two processes write the same file, and none waits for another.
Nothing is synced to disk, and readers skip missing and torn records. The records are in the run's
own folder: they are removed with the run, and are never part of the result.

Hosts' clocks disagree. All hosts share the clock of the file system, so an invocation states how
far that clock is ahead of the host's: the record is written, its modification time is compared with
the host's clock, and the record is written again with the difference. The difference is exact up to
the time that writing takes, and it is only displayed.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from leconvert.support.errors import LeconvertError, StorageError, WorkDirError
from leconvert.support.machine import Machine, allowed_cores
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import without_secrets, without_secrets_in
from leconvert.support.values import dataclass
from leconvert.workdir.fs import names_in, replace_record
from leconvert.workdir.identity import WorkerIdentity, process_is_gone
from leconvert.workdir.records import RunPaths
from leconvert.workdir.run import tool_versions

_VERSION = 1
_SECONDS_BETWEEN_REPORTS = 1.0
# A waiting worker reports too, so that an observer can distinguish it from a dead one.
_SECONDS_BETWEEN_IDLE_REPORTS = 10.0


def _write(run: RunPaths, path: Path, kind: str, fields: Mapping[str, Any]) -> None:
    replace_record(path, run.encode(kind, _VERSION, fields), fs=run.fs)


def _read_all[Record: (WorkerRecord, Invocation, JobRecord)](
    made_of: type[Record],
    run: RunPaths,
    folder: Path,
    kind: str,
    *,
    skip: Collection[str] = (),
) -> list[Record]:
    """Return the records of a folder, sorted by token, without those that cannot be read."""
    found, types = list[Record](), get_type_hints(made_of)
    for name in names_in(folder, fs=run.fs):
        token = name.removesuffix(".json")
        if name.startswith(".") or token == name or token in skip:
            continue
        try:
            record = run.read(folder / name, kind, _VERSION)
            value = made_of(**_checked(record, types))
        except (OSError, StorageError, WorkDirError, TypeError):
            continue  # a record for display: cut off by a power loss, gone, or edited
        if value.token == token:
            found.append(value)
    return found


def _checked(record: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of known fields in a record; it may have further keys.

    Raises:
        TypeError: A value does not have its field's type.
    """
    values = {name: value for name, value in record.items() if name in types}
    for name, value in values.items():
        if not _is_of(value, types[name]):
            raise TypeError(f"{name} is {value!r}")
    return values


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON has a field's type, such as ``list[str] | None``."""
    if isinstance(kind, UnionType):
        return any(_is_of(value, each) for each in get_args(kind))
    if kind is float:
        return isinstance(value, int | float)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is_of(each, *get_args(kind)) for each in value)
    if get_origin(kind) is dict:  # its keys are texts in any JSON
        held = get_args(kind)[1]
        return isinstance(value, dict) and all(_is_of(each, held) for each in value.values())
    return isinstance(value, kind)


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker, as it reports."""

    token: str  # the worker
    host: str  # host name
    pid: int  # process id there
    state: str = "waiting"  # ``working``, ``waiting`` or ``ended``
    batch_id: int | None = None  # the current batch, or None
    batches: int = 0  # batches that it finished
    written_bytes: int = 0  # bytes that it wrote for finished batches
    frames: int = 0  # frames and rows in these batches
    bytes_per_second: float = 0.0  # mean rate since it began
    frames_per_second: float = 0.0  # mean rate since it began
    updated: str = ""  # time of the report by the worker's wall clock, ISO 8601 in UTC
    # Source bytes that it processed, including the current batch and failed attempts: this number
    # changes while a large batch is being written.
    processed_bytes: int = 0
    seconds: float = 0.0  # how long it has been running
    lock: str = ""  # the lock that its process holds; see `WorkerIdentity`
    # when it took the current batch, in the form of ``updated``; empty without one
    batch_began: str = ""
    # Peak resident memory of its process; 0 if not known.
    peak_memory_bytes: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it signed off, or its process has certainly ended."""
        return self.state == "ended" or process_is_gone(asdict(self))


def write_worker(run: RunPaths, record: WorkerRecord) -> None:
    """Write or replace a worker's record; a power loss may lose it."""
    _write(run, run.worker(record.token), "worker", asdict(record))


def read_workers(run: RunPaths, *, skip: Collection[str] = ()) -> list[WorkerRecord]:
    """Return the records of all workers, sorted by token, without unreadable ones."""
    return _read_all(WorkerRecord, run, run.workers_dir, "worker", skip=skip)


class WorkerReporter:
    """Keeps a worker's record up to date, at most once a second.

    An error while writing it never stops the worker.
    """

    def __init__(
        self,
        run: RunPaths,
        worker: WorkerIdentity,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._run = run
        self._clock = clock
        self._now = now
        self._began = clock()
        self._due_at = -math.inf
        self._processed_bytes = 0
        self.record = WorkerRecord(**worker.as_fields())

    def update(self, *, batch_id: int | None, add_bytes: int = 0, add_frames: int = 0) -> None:
        """Report the current batch, and the work that was finished since the last report."""
        self._write(
            state="waiting" if batch_id is None else "working",
            batch_id=batch_id,
            batch_began="" if batch_id is None else self._wall_clock(),
            batches=self.record.batches + (add_frames > 0 or add_bytes > 0),
            written_bytes=self.record.written_bytes + add_bytes,
            frames=self.record.frames + add_frames,
        )

    def advance(self, source_bytes: int) -> None:
        """Report source bytes that were just processed; cheap enough to call for every block."""
        self._processed_bytes += source_bytes
        if self._clock() >= self._due_at:
            self._write()

    def wait(self) -> None:
        """Report that the worker lives while it has nothing to do."""
        later = _SECONDS_BETWEEN_IDLE_REPORTS - _SECONDS_BETWEEN_REPORTS
        self._write(later, state="waiting", batch_id=None, batch_began="")

    def end(self) -> None:
        """Report that the worker ended."""
        self._write(-math.inf, state="ended", batch_id=None, batch_began="")

    def _wall_clock(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="seconds")

    def _write(self, later_seconds: float = 0.0, **changes: Any) -> None:
        """Change the record, and write it if that is due; some reports may come later."""
        self.record = replace(self.record, processed_bytes=self._processed_bytes, **changes)
        now = self._clock()
        if now < self._due_at + later_seconds:
            return
        self._due_at = now + _SECONDS_BETWEEN_REPORTS
        seconds = max(now - self._began, 1e-9)
        self.record = replace(
            self.record,
            bytes_per_second=round(self.record.written_bytes / seconds, 1),
            frames_per_second=round(self.record.frames / seconds, 1),
            seconds=round(seconds, 1),
            updated=self._wall_clock(),
            peak_memory_bytes=Machine().peak_memory(),
        )
        with suppress(OSError, StorageError):
            write_worker(self._run, self.record)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One process that worked on a run.

    Attributes:
        called: The command or function: ``convert``, ``plan``, ``work``, ``pack``, ``release``.
        command: The command line without secrets, or None for a call from Python.
        folder: The current folder, from which relative paths of the command start; empty if
            unknown.
        token: Unique name of the process.
        host: Host name.
        pid: Process id there.
        at: When the record was written, by the host's wall clock, ISO 8601 in UTC.
        versions: Versions of Python, leconvert and the libraries that write bytes.
        system: Kernel and machine.
        cpus: Number of cores that the process may use.
        file_system_ahead_seconds: How far the clock of the work dir's file system is ahead of the
            host's; None if it was not measured.
    """

    called: str
    command: list[str] | None
    token: str
    host: str
    pid: int
    at: str
    versions: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    system: str = ""
    cpus: int = 0
    file_system_ahead_seconds: float | None = None


def record_invocation(
    run: RunPaths,
    called: str,
    command: Sequence[str] | None,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Record the call of this process. It never fails; see the module's docstring."""
    identity = WorkerIdentity.of_this_process()
    system = os.uname()
    written = now()
    fields: dict[str, Any] = {
        "called": called,
        "command": None if command is None else without_secrets(command),
        "folder": _folder(),
        **identity.as_fields(),
        "at": written.astimezone(UTC).isoformat(timespec="milliseconds"),
        "versions": {"python": platform.python_version(), **tool_versions()},
        "system": f"{system.sysname} {system.release} {system.machine}",
        "cpus": allowed_cores(),
    }
    path = run.invocation(identity.token)
    with suppress(OSError, StorageError):
        with suppress(FileExistsError):
            run.fs.make_dir(run.invocations_dir)
        _write(run, path, "invocation", {**fields, "file_system_ahead_seconds": None})
        ahead = round(path.stat().st_mtime - written.timestamp(), 2)
        _write(run, path, "invocation", {**fields, "file_system_ahead_seconds": ahead})


def _folder() -> str:
    try:
        return without_secrets_in(os.fsencode(Path.cwd()).decode("utf-8", "backslashreplace"))
    except OSError:
        return ""  # the folder was removed


def read_invocations(run: RunPaths) -> list[Invocation]:
    """Return the calls of all processes of a run, oldest first by their own clocks."""
    found: list[Invocation] = []
    with suppress(OSError, StorageError):
        found = _read_all(Invocation, run, run.invocations_dir, "invocation")
    return sorted(found, key=lambda entry: (entry.at, entry.token))


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One submission.

    Attributes:
        token: Unique name, safe as a file name.
        engine: The scheduler: ``slurm`` or ``ray``.
        job_id: The scheduler's id; for Ray that of the driver.
        role: ``workers`` or ``packer``.
        tasks: Number of processes that it requested.
        submitted: When it was submitted, by that host's wall clock, ISO 8601 in UTC.
    """

    token: str
    engine: str
    job_id: str
    role: str
    tasks: int
    submitted: str


def write_job(run: RunPaths, record: JobRecord) -> None:
    """Write a submission's record; a power loss may lose it."""
    with storage_errors(run.jobs_dir):
        run.jobs_dir.mkdir(exist_ok=True)
    _write(run, run.job(record.token), "job", asdict(record))


def read_jobs(run: RunPaths) -> list[JobRecord]:
    """Return all submissions, oldest first, without unreadable ones."""
    found = _read_all(JobRecord, run, run.jobs_dir, "job")
    return sorted(found, key=lambda record: (record.submitted, record.job_id))


def record_probe(run: RunPaths, document: Mapping[str, Any]) -> None:
    """Record the probe's document, or the error if there is none; never fails."""
    with suppress(OSError, StorageError, ValueError):
        _write(run, run.probe_result, "probe-of-run", {"probe": dict(document)})


def read_probe(run: RunPaths) -> Mapping[str, Any] | None:
    """Return the probe's document, or None if there is none."""
    try:
        record = run.read(run.probe_result, "probe-of-run", _VERSION)
    except (OSError, LeconvertError):
        return None
    document = record.get("probe")
    return document if isinstance(document, Mapping) else None
