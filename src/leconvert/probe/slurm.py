"""Hands jobs to SLURM: the only place that runs ``sbatch``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import ProbeError, StorageError
from leconvert.probe.launchers import Site, job_script, sbatch_line
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
        ProbeError: There is no ``sbatch`` here, or it refused a job; names what is queued already.
        StorageError: The log folder cannot be made.
    """
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{log_dir}: {error.strerror}.", path=log_dir) from error
    submitted: list[SubmittedJob] = []
    for job in jobs:
        after = submitted[-1].job_id if submitted else None
        words = sbatch_line(job, site, log_dir=log_dir, after=after)
        answer = _sbatch(words, job_script(job, site), [s.job_id for s in submitted])
        job_id = answer.partition(";")[0]  # with several clusters the answer is ID;CLUSTER
        submitted.append(
            SubmittedJob(job_id, job.name, f"{log_dir}/{job.name}-{job_id}.out", after)
        )
    return tuple(submitted)


def _sbatch(words: Sequence[str], script: str, queued: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ProbeError(
            "There is no sbatch on this machine.",
            next_step="Run this on a login node of a SLURM cluster, or see with --dry-run what "
            "would be submitted.",
        ) from error
    answer = done.stdout.strip()
    if done.returncode or not answer:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ProbeError(
            f"sbatch refused a job ({said}).",
            details=done.stderr.strip().splitlines()[:-1],
            next_step=f"Already queued: `scancel {' '.join(queued)}` takes them back."
            if queued
            else "Check --account, --partition, --qos and what each job asks for.",
        )
    return answer
