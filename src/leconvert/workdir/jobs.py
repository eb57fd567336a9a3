"""What was submitted to a scheduler, for people to look at; nothing decides by it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from leconvert.errors import StorageError, WorkDirError
from leconvert.workdir.durable import replace_record, storage_errors
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.paths import RunPaths
from leconvert.workdir.records import encode_record, read_record

__all__ = ["JobRecord", "read_jobs", "write_job"]

_VERSION = 1


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
    """Write a submission's record; a power loss may lose it.

    Raises:
        StorageError: The disk is full, read-only, or fails.
    """
    with storage_errors(run.jobs_dir):
        run.jobs_dir.mkdir(exist_ok=True)
    raw = encode_record("job", _VERSION, run_id, asdict(record))
    replace_record(run.job(record.token), raw, fs=fs)


def read_jobs(run: RunPaths, run_id: str, *, fs: FileSystem = LOCAL) -> list[JobRecord]:
    """Return all submissions, oldest first; records that cannot be read are left out.

    Raises:
        StorageError: The folder cannot be read.
    """
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
