"""Talks to SLURM: the only place that runs its commands.

Two ways lead to the same jobs: `submit` hands a script to ``sbatch``, and `submission_script`
returns a shell script that calls ``sbatch`` with the very same words and scripts.

submitit, which hides this behind Python calls, was looked at and not taken: it pickles a function
where a worker is a command line, has no ``afterany`` from an array to another job, and learns of
states through accounting, which small clusters do not have.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leconvert.errors import EngineError

__all__ = [
    "ENDED",
    "BatchJob",
    "ElementState",
    "cancel",
    "job_states",
    "submission_script",
    "submit",
]

ENDED = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
))  # fmt: skip
"""States that a job does not leave any more."""

_ANSWER_SECONDS = 60.0
_END = "JOB"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What ``sbatch`` is given.

    Attributes:
        name: Names the job.
        words: The command line, ``sbatch`` itself included.
        script: What comes on standard input.
        after: The position, in a list of jobs, of the one that must have ended before, however it
            ended; None for none.
    """

    name: str
    words: tuple[str, ...]
    script: str
    after: int | None = None


@dataclass(frozen=True, slots=True)
class ElementState:
    """One job, or one element of an array.

    Attributes:
        job_id: ``12``, or ``12_3`` in an array.
        state: SLURM's word: ``PENDING``, ``RUNNING``, ``COMPLETED``, ...
        reason: Why it waits or ended, in SLURM's words.
    """

    job_id: str
    state: str
    reason: str

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


def submit(jobs: Sequence[BatchJob]) -> list[str]:
    """Submit jobs in order and return their ids.

    Raises:
        EngineError: There is no ``sbatch`` here, or it refused a job; names what is queued already.
    """
    queued: list[str] = []
    for job in jobs:
        words = [*job.words]
        if job.after is not None:
            words.append(f"--dependency=afterany:{queued[job.after]}")
        queued.append(_sbatch(words, job.script, queued))
    return queued


def submission_script(jobs: Sequence[BatchJob], *, log_dir: str) -> str:
    """Return a shell script that submits the jobs as `submit` does, after making ``log_dir``."""
    lines = ["#!/bin/bash", "set -euo pipefail", f"mkdir -p {shlex.quote(log_dir)}"]
    for number, job in enumerate(jobs, start=1):
        line = shlex.join(job.words)
        if job.after is not None:
            line += f' --dependency="afterany:$job{job.after + 1}"'
        lines += [
            "",
            f"job{number}=$({line} <<'{_END}'",
            f"{job.script}{_END}",
            ")",
            # With several clusters the answer is ID;CLUSTER.
            f"job{number}=${{job{number}%%;*}}",
            f'echo "$job{number} {job.name}"',
        ]
    return "\n".join((*lines, ""))


def job_states(job_ids: Iterable[str]) -> list[ElementState] | None:
    """Ask the controller for the states of jobs, elements of arrays one by one.

    Jobs that it has forgotten (some minutes after their end) are left out. ``squeue`` is asked
    rather than ``sacct``, which needs an accounting database.

    Returns:
        None where the controller does not answer, or there is no SLURM here.
    """
    states: list[ElementState] = []
    for job_id in job_ids:
        words = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
        try:
            done = subprocess.run(
                (*words, f"--jobs={job_id}"),
                capture_output=True,
                text=True,
                check=False,
                timeout=_ANSWER_SECONDS,
            )
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            if "Invalid job id" in done.stderr:
                continue
            return None
        for line in done.stdout.splitlines():
            fields = line.strip().split("|", 2)
            if len(fields) == 3:
                states.append(ElementState(*fields))
    return states


def cancel(job_ids: Sequence[str]) -> None:
    """End jobs: waiting ones are taken out, running ones get SIGTERM and some time.

    One that has ended is none of ``scancel``'s errors.

    Raises:
        EngineError: There is no ``scancel`` here, or the controller does not answer.
    """
    try:
        done = subprocess.run(
            ("scancel", "--quiet", *job_ids),
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise EngineError(
            "The scheduler does not answer, so its jobs could not be ended.",
            next_step=f"End them later: scancel {' '.join(job_ids)}",
        ) from error
    if done.returncode:
        raise EngineError(
            f"scancel failed ({_last_line(done.stderr)}).",
            next_step=f"End the jobs later: scancel {' '.join(job_ids)}",
        )


def _sbatch(words: Sequence[str], script: str, queued: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise EngineError(
            "There is no sbatch on this machine.",
            next_step="Run this on a login node of a SLURM cluster, or see with --dry-run what "
            "would be submitted.",
        ) from error
    answer = done.stdout.strip()
    if done.returncode or not answer:
        raise EngineError(
            f"sbatch refused a job ({_last_line(done.stderr)}).",
            details=done.stderr.strip().splitlines()[:-1],
            next_step=f"Already queued: `scancel {' '.join(queued)}` takes them back."
            if queued
            else "Check --account, --partition, --qos and what each job asks for.",
        )
    return answer.partition(";")[0]  # with several clusters the answer is ID;CLUSTER


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["no reason given"])[-1]
