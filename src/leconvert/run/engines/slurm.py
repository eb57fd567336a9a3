"""Workers, and a packer after them, as jobs of a SLURM cluster."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leconvert.run.engines import JobRequest, last_words, note_job
from leconvert.run.engines.options import Site, SlurmOptions
from leconvert.support.errors import EngineError
from leconvert.workdir.records import RunPaths

# Talks to SLURM: the only place that runs its commands.
#
# Two ways lead to the same jobs: `submit` hands a script to ``sbatch``, and `submission_script`
# returns a shell script that calls ``sbatch`` with the very same words and scripts.
#
# submitit, which hides this behind Python calls, was looked at and not taken: it pickles a
# function where a worker is a command line, has no ``afterany`` from an array to another job, and
# learns of states through accounting, which small clusters do not have.


ENDED = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
))  # fmt: skip
"""States that a job does not leave any more."""

_ANSWER_SECONDS = 60.0
_END = "JOB"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The input of ``sbatch``."""

    name: str  # names the job
    words: tuple[str, ...]  # the command line, ``sbatch`` itself included
    script: str  # the standard input
    # The position, in a list of jobs, of the one that must have ended before, however it ended;
    # None for none.
    after: int | None = None


@dataclass(frozen=True, slots=True)
class ElementState:
    """One job, or one element of an array."""

    job_id: str  # ``12``, or ``12_3`` in an array
    state: str  # SLURM's word: ``PENDING``, ``RUNNING``, ``COMPLETED``,
    reason: str  # why it waits or ended, in SLURM's words

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


def submit(jobs: Sequence[BatchJob]) -> list[str]:
    """Submit jobs in order and return their ids."""
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
            "The scheduler does not answer, so the jobs could not be ended.",
            next_step=f"End the jobs later with: scancel {' '.join(job_ids)}",
        ) from error
    if done.returncode:
        raise EngineError(
            f"scancel failed ({_last_line(done.stderr)}).",
            next_step=f"End the jobs later with: scancel {' '.join(job_ids)}",
        )


def _sbatch(words: Sequence[str], script: str, queued: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise EngineError(
            "This machine has no sbatch, the command of SLURM that submits jobs.",
            next_step="Run the command on a login node of a SLURM cluster. --dry-run shows what "
            "would be submitted.",
        ) from error
    answer = done.stdout.strip()
    if done.returncode or not answer:
        raise EngineError(
            f"sbatch refused a job ({_last_line(done.stderr)}).",
            details=done.stderr.strip().splitlines()[:-1],
            next_step=f"`scancel {' '.join(queued)}` ends the jobs that are queued already."
            if queued
            else "Check --account, --partition, --qos and the resources that each job asks for.",
        )
    return answer.partition(";")[0]  # with several clusters the answer is ID;CLUSTER


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["no reason given"])[-1]


# The submitter's account on a cluster, and the way to the program on a node.


def script_head(site: Site) -> list[str]:
    """Return the first lines of a job script, up to where the program can be called."""
    lines = ["#!/bin/bash"]
    if site.conda_env is not None:
        # Conda's own scripts read unset variables: strictness begins behind them.
        lines += [
            'source "$(conda info --base)/etc/profile.d/conda.sh"',
            f"conda activate {shlex.quote(site.conda_env)}",
        ]
    return [*lines, "set -euo pipefail"]


def sbatch_words(
    name: str,
    site: Site,
    *,
    cpus: int,
    mem: str,
    time: str,
    tasks: str = "--ntasks=1",
    nodes: int = 1,
    gpus: int = 0,
    constraint: str | None = None,
    can_restart: bool = True,
) -> tuple[str, ...]:
    """Return the ``sbatch`` command line of a job, but for what it writes where.

    Args:
        tasks: The number of processes that SLURM starts, and their nodes.
        can_restart: Whether SLURM may start it again, after a preemption or a node's failure; it
            then continues its old log.
    """
    return (
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        f"--nodes={nodes}",
        tasks,
        f"--cpus-per-task={cpus}",
        f"--mem={mem}",
        f"--time={time}",
        *((f"--gpus-per-node={gpus}",) if gpus else ()),
        *(() if constraint is None else (f"--constraint={constraint}",)),
        *site.sbatch_options(),
        *(("--requeue", "--open-mode=append") if can_restart else ("--no-requeue",)),
    )


# The SLURM jobs of workers and a packer; plain values in, plain values out.


_WORKERS, _PACKER = "leconvert-work", "leconvert-pack"


def worker_job(
    options: SlurmOptions, count: int, arguments: Sequence[str], *, log_dir: str
) -> BatchJob:
    """Return the array of workers.

    The script becomes the worker (``exec``), so that the signal before the time limit, and those of
    a preemption, reach it: it hands its batch back and ends. An element that is preempted, or whose
    node fails, is put back into the queue and comes as a new worker; its log goes on.
    """
    words = (
        *_asked(options, _WORKERS),
        f"--array=0-{count - 1}",
        f"--signal=B:USR1@{options.signal_seconds}",
        f"--output={log_dir}/slurm-%A_%a.log",
        *options.extra,
    )
    return BatchJob(_WORKERS, words, _script(options, ("work", *arguments)))


def packer_job(
    options: SlurmOptions, arguments: Sequence[str], *, log_dir: str, after: int | None
) -> BatchJob:
    """Return the packer's job.

    It begins when every worker has ended, however that was, and waits for none: where batches are
    missing it says which.
    """
    words = (
        *_asked(options, _PACKER),
        f"--output={log_dir}/slurm-%j-pack.log",
        *options.extra,
    )
    script = _script(options, ("pack", *arguments, "--no-wait"))
    return BatchJob(_PACKER, words, script, after=after)


def _asked(options: SlurmOptions, name: str) -> tuple[str, ...]:
    return sbatch_words(
        name,
        options.site,
        cpus=options.cpus_per_task,
        mem=options.mem,
        time=options.time,
        constraint=options.constraint,
    )


def _script(options: SlurmOptions, arguments: Sequence[str]) -> str:
    lines = (
        *script_head(options.site),
        # A job starts in the folder that it was submitted from: `python -m leconvert` must not
        # take a user's inspect.py there for Python's own.
        "export PYTHONSAFEPATH=1",
        f"exec {options.site.command(*arguments)}",
        "",
    )
    return "\n".join(lines)


# Workers, and a packer after them, as jobs of a SLURM cluster.


# A controller that hundreds of programs ask all the time gets slow.
_SECONDS_BETWEEN_LOOKS = 5.0
_GRACE_SECONDS = 90.0
_FAILURES_SHOWN = 10


class SlurmEngine:
    """Starts an array of workers; whoever starts it watches the work dir meanwhile.

    That is for ``convert``, whose own process packs. `submit` hands over the packer too.

    Args:
        options: The resources that workers ask for.
        clock: A monotonic clock in seconds.

    Attributes:
        workers: As many as the options say.
    """

    def __init__(
        self,
        options: SlurmOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options or SlurmOptions()
        self._clock = clock
        self.workers = self._options.workers
        self._jobs: list[str] = []
        self._expected = 0
        self._logs_dir = Path()
        # By id: a controller forgets an element some minutes after its end.
        self._ended_badly: dict[str, ElementState] = {}
        self._looked_at: float | None = None

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Submit ``count`` workers; see `leconvert.run.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        self._logs_dir = paths.logs_dir
        job = worker_job(self._options, count, arguments, log_dir=str(paths.logs_dir))
        (job_id,) = submit([job])
        self._jobs.append(job_id)
        self._expected += count
        self._looked_at = None
        note_job(paths, "slurm", job_id, "workers", count)

    def running(self) -> int:
        """Return how many workers run or wait in the queue, as of some seconds ago.

        While the controller does not answer, as while it is restarted, all that was there before
        still is.
        """
        if not self._jobs:
            return 0
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= _SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            states = job_states(self._jobs)
            if states is not None:
                self._expected = sum(not state.has_ended for state in states)
                self._note_bad_ends(states)
        return self._expected

    def _note_bad_ends(self, states: Sequence[ElementState]) -> None:
        for state in states:
            if state.has_ended and state.state != "COMPLETED":
                self._ended_badly[state.job_id] = state
            else:  # it may have been put back into the queue
                self._ended_badly.pop(state.job_id, None)

    def failures(self) -> list[str]:
        """Return one line a worker that ended badly, with the end of its log."""
        bad = list(self._ended_badly.values())
        lines = [
            f"job {state.job_id} ended as {state.state}: "
            f"{last_words(self._logs_dir / f'slurm-{state.job_id}.log')}"
            for state in bad[:_FAILURES_SHOWN]
        ]
        if len(bad) > _FAILURES_SHOWN:
            lines.append(f"and {len(bad) - _FAILURES_SHOWN} more; the logs are in {self._logs_dir}")
        return lines

    def stop(self) -> None:
        """End the jobs: workers hand back on SIGTERM, within the cluster's ``KillWait``."""
        if not self._jobs or not self.running():
            return
        try:
            cancel(self._jobs)
        except EngineError:
            # They end by themselves when they see that nothing is left, or at their time limit.
            return
        deadline = self._clock() + _GRACE_SECONDS
        pause = threading.Event()
        while self._clock() < deadline:
            states = job_states(self._jobs)
            if states is not None and all(state.has_ended for state in states):
                break
            pause.wait(1.0)  # the scheduler has no way to wake us
        self._expected = 0

    def submit(self, handover: JobRequest, paths: RunPaths) -> tuple[str | None, str | None]:
        """Submit workers and a packer after them; see `leconvert.run.engines.Submitter`.

        `leconvert status` shows the jobs. Submitting again joins the same run: more workers share
        what is left. One packer packs: a second that starts meanwhile is refused with exit code 12
        (`BusyError`), and one that starts later finds the result in place.

        Raises:
            EngineError: There is no ``sbatch`` here, or it refused.
        """
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        job_ids = submit(self._jobs_of(handover, paths))
        workers = job_ids[0] if handover.workers else None
        packer = job_ids[-1] if handover.pack_arguments is not None else None
        if workers is not None:
            note_job(paths, "slurm", workers, "workers", handover.workers)
        if packer is not None:
            note_job(paths, "slurm", packer, "packer", 1)
        return workers, packer

    def script(self, handover: JobRequest, paths: RunPaths) -> str:
        """Return a shell script that submits the very same."""
        return submission_script(self._jobs_of(handover, paths), log_dir=str(paths.logs_dir))

    def _jobs_of(self, handover: JobRequest, paths: RunPaths) -> list[BatchJob]:
        options, log_dir = self._options, str(paths.logs_dir)
        jobs = []
        if handover.workers:
            jobs.append(
                worker_job(options, handover.workers, handover.work_arguments, log_dir=log_dir)
            )
        if handover.pack_arguments is not None:
            after = 0 if jobs else None
            jobs.append(packer_job(options, handover.pack_arguments, log_dir=log_dir, after=after))
        return jobs
