"""What happened around a run, for people: calls, submitted jobs, how fast the result loads.

Nothing decides by these records. How a process was called is one record a process:

    invocations/<token>.json    written, then replaced once, by that process alone

Writing it cannot fail a run: every error of the disk is swallowed, nothing is forced to the disk,
and readers pass over what is missing or torn. The name holds a random token, so no two processes
write the same file, and nobody waits for one. It lies in the run's own folder: whoever removes the
run removes it, and the result never holds any of it.

Hosts' clocks disagree. The file system's clock is the one that they all share, so the record says
how far it is ahead of this host's: the record is written, its modification time compared with the
clock, and the record written again with the difference. That is exact to the time that writing
takes, and only ever shown.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leconvert.support.errors import LeconvertError, StorageError, WorkDirError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import LOCAL, FileSystem, replace_record
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.records import RunPaths, encode_record, read_record
from leconvert.workdir.run import tool_versions
from leconvert.workdir.secrets import without_secrets, without_secrets_in

__all__ = [
    "Invocation",
    "JobRecord",
    "read_invocations",
    "read_jobs",
    "read_probe",
    "record_invocation",
    "record_probe",
    "write_job",
]


_VERSION = 1


@dataclass(frozen=True, slots=True)
class Invocation:
    """One process that worked on a run.

    Attributes:
        called: The command or function: ``convert``, ``plan``, ``work``, ``pack``, ``release``.
        command: The command line without secrets, or None for a call from Python.
        folder: The working directory, which relative paths of the command start from; empty where
            unknown.
        token: Unique name of the process.
        host: Host name.
        pid: Process id there.
        at: When it was written, by the host's wall clock, ISO 8601 in UTC.
        versions: Versions of Python, leconvert and the libraries that write bytes.
        system: Kernel and machine.
        cpus: Cores that the process may use.
        file_system_ahead_seconds: How far the clock of the work dir's file system is ahead of the
            host's; None where it was not measured.
    """

    called: str
    command: Sequence[str] | None
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
    run_id: str,
    called: str,
    command: Sequence[str] | None,
    *,
    fs: FileSystem = LOCAL,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Record how this process was called; never fails, see the module's docstring."""
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
        "cpus": len(os.sched_getaffinity(0)),
        "file_system_ahead_seconds": None,
    }
    path = run.invocation(identity.token)
    with suppress(OSError, StorageError):
        with suppress(FileExistsError):
            fs.make_dir(run.invocations_dir)
        replace_record(path, encode_record("invocation", _VERSION, run_id, fields), fs=fs)
        ahead = path.stat().st_mtime - written.timestamp()
        fields["file_system_ahead_seconds"] = round(ahead, 2)
        replace_record(path, encode_record("invocation", _VERSION, run_id, fields), fs=fs)


def _folder() -> str:
    try:
        return without_secrets_in(os.fsencode(Path.cwd()).decode("utf-8", "backslashreplace"))
    except OSError:
        return ""  # it was removed


def read_invocations(run: RunPaths, run_id: str) -> list[Invocation]:
    """Return how every process of a run was called, oldest first by their own clocks.

    Records that cannot be read, or that are not what they should be, are left out.
    """
    try:
        names = LOCAL.list_names(run.invocations_dir)
    except OSError:
        return []
    found = []
    for name in names:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        try:
            record = read_record(
                run.invocations_dir / name, "invocation", version=_VERSION, run_id=run_id
            )
            found.append(_invocation(record))
        except (OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError):
            continue  # it was for show
    return sorted(found, key=lambda entry: (entry.at, entry.token))


def _invocation(record: dict[str, Any]) -> Invocation:
    command, ahead = record["command"], record.get("file_system_ahead_seconds")
    if command is not None and not isinstance(command, list):
        raise WorkDirError("a command is a list of words")
    return Invocation(
        called=str(record["called"]),
        command=None if command is None else [str(word) for word in command],
        token=str(record["token"]),
        host=str(record["host"]),
        pid=int(record["pid"]),
        at=str(record["at"]),
        versions={str(name): str(value) for name, value in record["versions"].items()},
        folder=str(record.get("folder", "")),
        system=str(record.get("system", "")),
        cpus=int(record.get("cpus", 0)),
        file_system_ahead_seconds=None if ahead is None else float(ahead),
    )


# ------------------------------------------------------------------------------------------------
# What was submitted to a scheduler, for people to look at; nothing decides by it.


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One submission.

    Attributes:
        token: Unique name, safe as a file name.
        engine: Who was asked: ``slurm`` or ``ray``.
        job_id: The scheduler's id; Ray's of the driver.
        role: ``workers`` or ``packer``.
        tasks: How many processes it asked for.
        submitted: By the wall clock of whoever submitted, ISO 8601 in UTC.
    """

    token: str
    engine: str
    job_id: str
    role: str
    tasks: int
    submitted: str


def write_job(run: RunPaths, run_id: str, record: JobRecord, *, fs: FileSystem = LOCAL) -> None:
    """Write a submission's record; a power loss may lose it."""
    with storage_errors(run.jobs_dir):
        run.jobs_dir.mkdir(exist_ok=True)
    raw = encode_record("job", _VERSION, run_id, asdict(record))
    replace_record(run.job(record.token), raw, fs=fs)


def read_jobs(run: RunPaths, run_id: str, *, fs: FileSystem = LOCAL) -> list[JobRecord]:
    """Return all submissions, oldest first; records that cannot be read are left out."""
    known = {field.name for field in fields(JobRecord)}
    try:
        with storage_errors(run.jobs_dir):
            names = fs.list_names(run.jobs_dir)
    except FileNotFoundError:
        return []
    records = []
    for name in names:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        path = run.job(name.removesuffix(".json"))
        try:
            record = read_record(path, "job", version=_VERSION, run_id=run_id, fs=fs)
            records.append(JobRecord(**{key: record[key] for key in record if key in known}))
        except (OSError, StorageError, WorkDirError, TypeError):
            continue  # cut off by a power loss, or gone: it was for show
    return sorted(records, key=lambda record: (record.submitted, record.job_id))


# ------------------------------------------------------------------------------------------------
# How fast a run's result loads, where ``convert --probe`` measured it; nothing decides by it.
#
#     probe.json    replaced by whoever measured last
#
# Like `leconvert.workdir.activity`, writing it cannot fail a run, and readers pass over what is
# missing or torn.


def record_probe(run: RunPaths, run_id: str, document: Mapping[str, Any]) -> None:
    """Record the probe's document, or the error that says why there is none; never fails."""
    with suppress(OSError, StorageError, ValueError):
        record = encode_record("probe-of-run", _VERSION, run_id, {"probe": dict(document)})
        replace_record(run.probe_result, record)


def read_probe(run: RunPaths, run_id: str) -> Mapping[str, Any] | None:
    """Return the probe's document, or None where nothing was measured."""
    try:
        record = read_record(run.probe_result, "probe-of-run", version=_VERSION, run_id=run_id)
    except (OSError, LeconvertError):
        return None
    document = record.get("probe")
    return document if isinstance(document, Mapping) else None
