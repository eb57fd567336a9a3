"""Hands a chain of benchmark jobs to SLURM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leconvert.engines.sbatch import submit
from leconvert.engines.site import Site
from leconvert.errors import StorageError
from leconvert.probe.launchers import batch_jobs
from leconvert.probe.submit import Job

__all__ = ["SubmittedJob", "submit_chain"]


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job in the scheduler's queue.

    Attributes:
        job_id: SLURM's id.
        name: The job's name.
        log: Where its output will be.
        after: The id of the job that it waits for, or None.
    """

    job_id: str
    name: str
    log: str
    after: str | None


def submit_chain(jobs: Sequence[Job], site: Site, *, log_dir: str) -> tuple[SubmittedJob, ...]:
    """Submit jobs, each after the one before.

    Args:
        jobs: The chain.
        site: Account, partition, program.
        log_dir: The folder of the logs; made if it is missing, since SLURM would not.

    Raises:
        EngineError: There is no ``sbatch`` here, or it refused a job; names what is queued already.
        StorageError: The log folder cannot be made.
    """
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{log_dir}: {error.strerror}.", path=log_dir) from error
    job_ids = submit(batch_jobs(jobs, site, log_dir=log_dir))
    return tuple(
        SubmittedJob(job_id, job.name, f"{log_dir}/{job.name}-{job_id}.out", after)
        for job, job_id, after in zip(jobs, job_ids, (None, *job_ids), strict=False)
    )
