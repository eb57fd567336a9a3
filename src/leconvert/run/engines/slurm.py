"""Workers, and a packer after them, as jobs of a SLURM cluster."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from leconvert.run.engines import JobRequest, last_words, note_job
from leconvert.run.engines.options import Site, SlurmOptions
from leconvert.support.errors import EngineError
from leconvert.support.values import dataclass
from leconvert.workdir.records import RunPaths

# Only this part runs SLURM's commands.
# There are two ways to the same jobs: `submit` passes a script to ``sbatch``, and
# `submission_script` returns a shell script that calls ``sbatch`` with exactly the same words and
# scripts. submitit hides this behind Python calls, and was considered. It pickles a function, while
# a worker is a command line. It has no ``afterany`` from an array to another job. It learns states
# through accounting, which small clusters do not have.


ENDED = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
))  # fmt: skip
"""States that a job does not leave again."""

_ANSWER_SECONDS = 60.0
_END = "JOB"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The input of ``sbatch``."""

    name: str  # the job's name
    words: tuple[str, ...]  # the command line, including ``sbatch``
    script: str  # the standard input
    # The position in the list of jobs of the job that must have ended before, in any way; None for
    # none.
    after: int | None = None


@dataclass(frozen=True, slots=True)
class ElementState:
    """One job, or one element of an array."""

    job_id: str  # ``12``, or ``12_3`` in an array
    state: str  # SLURM's word, such as ``PENDING``, ``RUNNING``, ``COMPLETED``
    reason: str  # why it waits or ended, in SLURM's words

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


def submit(jobs: Sequence[BatchJob]) -> list[str]:
    """Submit jobs in order and return their ids.

    Raises:
        EngineError: There is no ``sbatch`` here, or it refused a job.
    """
    queued: list[str] = []
    for job in jobs:
        words = [*job.words]
        if job.after is not None:
            words.append(f"--dependency=afterany:{queued[job.after]}")
        queued.append(_sbatch(words, job.script, queued))
    return queued


def submission_script(jobs: Sequence[BatchJob], *, log_dir: str) -> str:
    """Return a shell script that makes ``log_dir`` and submits the jobs as `submit` does."""
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
            # With several clusters, the answer is ID;CLUSTER.
            f"job{number}=${{job{number}%%;*}}",
            f'echo "$job{number} {job.name}"',
        ]
    return "\n".join((*lines, ""))


def job_states(job_ids: Iterable[str]) -> list[ElementState] | None:
    """Ask the controller for the states of jobs, and of each element of arrays.

    Jobs that it has forgotten (some minutes after their end) are left out. ``squeue`` is used and
    not ``sacct``, which needs an accounting database.

    Returns:
        The states; None if the controller does not answer, or there is no SLURM here.
    """
    states: list[ElementState] = []
    for job_id in job_ids:
        words = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
        done = _asked(*words, f"--jobs={job_id}")
        if done is None:
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
    """End jobs: waiting ones are removed, running ones get SIGTERM and some time.

    ``scancel`` does not report jobs that have already ended as errors.

    Raises:
        EngineError: The scheduler does not answer, or refuses.
    """
    done = _asked("scancel", "--quiet", *job_ids)
    if done is None or done.returncode:
        raise EngineError(
            "The scheduler does not answer, so the jobs could not be ended."
            if done is None
            else f"scancel failed ({_last_line(done.stderr)}).",
            next_step=f"End the jobs later with: scancel {' '.join(job_ids)}",
        )


def _asked(*words: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command of SLURM; return None if it is missing or does not answer."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None


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
    return answer.partition(";")[0]  # with several clusters, the answer is ID;CLUSTER


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["no reason given"])[-1]


# The submitter's account on a cluster, and the way to the program on a node.


def script_head(site: Site) -> list[str]:
    """Return the first lines of a job script, after which the program can be called."""
    lines = ["#!/bin/bash"]
    if site.conda_env is not None:
        # Conda's own scripts read unset variables, so strict mode begins after them.
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
    """Return the ``sbatch`` command line of a job, without the paths of its output.

    Args:
        name: The job's name.
        site: Account, partition and quality of service.
        cpus: Cores per task.
        mem: Memory per node, in the notation of ``--mem``.
        time: Run time, in the notation of ``--time``.
        tasks: The option for the number of processes that SLURM starts.
        nodes: Number of nodes.
        gpus: GPUs per node.
        constraint: Features that a node must have, or None.
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

    The script becomes the worker (``exec``). So the signal before the time limit, and the signals
    of a preemption, reach the worker, which hands its batch back and ends. If an element is
    preempted, or its node fails, it is queued again and returns as a new worker, with the same log.
    """
    own = (f"--array=0-{count - 1}", f"--signal=B:USR1@{options.signal_seconds}")
    log = f"{log_dir}/slurm-%A_%a.log"
    return _job(options, _WORKERS, ("work", *arguments), log, own)


def packer_job(
    options: SlurmOptions, arguments: Sequence[str], *, log_dir: str, after: int | None
) -> BatchJob:
    """Return the packer's job.

    It begins when every worker has ended, in any way, and does not wait for others: it reports
    missing batches.
    """
    log = f"{log_dir}/slurm-%j-pack.log"
    return _job(options, _PACKER, ("pack", *arguments, "--no-wait"), log, after=after)


def _job(
    options: SlurmOptions,
    name: str,
    arguments: Sequence[str],
    log: str,
    own: Sequence[str] = (),
    *,
    after: int | None = None,
) -> BatchJob:
    site = options.site
    words = sbatch_words(
        name,
        site,
        cpus=options.cpus_per_task,
        mem=options.mem,
        time=options.time,
        constraint=options.constraint,
    )
    lines = (
        *script_head(site),
        # A job starts in the folder from which it was submitted: `python -m leconvert` must not
        # import a user's inspect.py there instead of Python's own.
        "export PYTHONSAFEPATH=1",
        f"exec {site.command(*arguments)}",
        "",
    )
    words = (*words, *own, f"--output={log}", *options.extra)
    return BatchJob(name, words, "\n".join(lines), after)


# Workers, and a packer after them, as jobs of a SLURM cluster.


# A controller becomes slow if hundreds of programs ask it all the time.
_SECONDS_BETWEEN_LOOKS = 5.0
_GRACE_SECONDS = 90.0
_FAILURES_SHOWN = 10


class SlurmEngine:
    """Starts an array of workers; meanwhile the caller watches the work dir.

    This is for ``convert``, whose own process packs. `submit` also submits the packer.

    Args:
        options: The resources that workers request.
        clock: A monotonic clock in seconds.

    Attributes:
        workers: The number in the options.
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
        # By id, since a controller forgets an element some minutes after its end.
        self._ended_badly: dict[str, ElementState] = {}
        self._looked_at: float | None = None

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Submit ``count`` workers; see `leconvert.run.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        if not self.running():  # all jobs belong to an earlier run with this engine
            self._jobs.clear()
            self._ended_badly.clear()
        self._logs_dir = paths.logs_dir
        job = worker_job(self._options, count, arguments, log_dir=str(paths.logs_dir))
        (job_id,) = submit([job])
        self._jobs.append(job_id)
        self._expected += count
        self._looked_at = None
        note_job(paths, "slurm", job_id, "workers", count)

    def running(self) -> int:
        """Return how many workers run or wait in the queue, as of some seconds ago.

        While the controller does not answer, for example during its restart, the last number is
        kept.
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
            else:  # it may have been queued again
                self._ended_badly.pop(state.job_id, None)

    def failures(self) -> list[str]:
        """Return one line per worker that failed, with the end of its log."""
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
            # They end by themselves when nothing is left, or at their time limit.
            return
        deadline = self._clock() + _GRACE_SECONDS
        pause = threading.Event()
        while self._clock() < deadline:
            states = job_states(self._jobs)
            if states is not None and all(state.has_ended for state in states):
                break
            pause.wait(1.0)  # the scheduler cannot notify this process
        self._expected = 0

    def submit(self, handover: JobRequest, paths: RunPaths) -> tuple[str | None, str | None]:
        """Submit workers and a packer after them; see `leconvert.run.engines.Submitter`.

        `leconvert status` shows the jobs. Submitting again joins the same run: more workers share
        the remaining work. Only one packer packs: a second one that starts meanwhile is refused
        with exit code 12 (`BusyError`), and one that starts later finds the result in place.

        Raises:
            EngineError: There is no ``sbatch`` here, or it refused a job.
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
        """Return a shell script that submits the same jobs."""
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
