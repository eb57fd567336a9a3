"""Workers, and a packer after them, as jobs of a SLURM cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from leconvert.engines import Handover
from leconvert.engines.logs import last_words
from leconvert.engines.sbatch import (
    BatchJob,
    ElementState,
    cancel,
    job_states,
    submission_script,
    submit,
)
from leconvert.engines.slurm_jobs import SlurmOptions, packer_job, worker_job
from leconvert.errors import EngineError, StorageError
from leconvert.workdir.identity import new_token
from leconvert.workdir.jobs import JobRecord, write_job
from leconvert.workdir.paths import RunPaths

__all__ = ["SlurmEngine"]

# A controller that hundreds of programs ask all the time gets slow.
_SECONDS_BETWEEN_LOOKS = 5.0
_GRACE_SECONDS = 90.0
_FAILURES_SHOWN = 10


class SlurmEngine:
    """Starts an array of workers; whoever starts it watches the work dir meanwhile.

    That is for ``convert``, whose own process packs. `submit` hands over the packer too.

    Args:
        options: What workers ask for.
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
        """Submit ``count`` workers; see `leconvert.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        self._logs_dir = paths.logs_dir
        job = worker_job(self._options, count, arguments, log_dir=str(paths.logs_dir))
        (job_id,) = submit([job])
        self._jobs.append(job_id)
        self._expected += count
        self._looked_at = None
        _note(paths, [(job_id, "workers", count)])

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
            lines.append(f"and {len(bad) - _FAILURES_SHOWN} more; their logs: {self._logs_dir}")
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

    def submit(self, handover: Handover, paths: RunPaths) -> tuple[str | None, str]:
        """Submit workers and a packer after them; see `leconvert.engines.Submitter`.

        `leconvert status` shows the jobs. Submitting again joins the same run: more workers share
        what is left. One packer packs: a second that starts meanwhile is refused with exit code 12
        (`BusyError`), and one that starts later finds the result in place.

        Raises:
            EngineError: There is no ``sbatch`` here, or it refused.
        """
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        job_ids = submit(self._jobs_of(handover, paths))
        packer = (job_ids[-1], "packer", 1)
        if not handover.workers:
            _note(paths, [packer])
            return None, job_ids[-1]
        _note(paths, [(job_ids[0], "workers", handover.workers), packer])
        return job_ids[0], job_ids[-1]

    def script(self, handover: Handover, paths: RunPaths) -> str:
        """Return a shell script that submits the very same."""
        return submission_script(self._jobs_of(handover, paths), log_dir=str(paths.logs_dir))

    def _jobs_of(self, handover: Handover, paths: RunPaths) -> list[BatchJob]:
        options, log_dir = self._options, str(paths.logs_dir)
        jobs = []
        if handover.workers:
            jobs.append(
                worker_job(options, handover.workers, handover.work_arguments, log_dir=log_dir)
            )
        after = 0 if jobs else None
        return [*jobs, packer_job(options, handover.pack_arguments, log_dir=log_dir, after=after)]


def _note(paths: RunPaths, submitted: Sequence[tuple[str, str, int]]) -> None:
    """Write down what was submitted, for `status`; a disk that fails must not lose the jobs."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for job_id, role, tasks in submitted:
        token = new_token(f"slurm-{job_id}", os.getpid(), os.urandom)
        record = JobRecord(token, "slurm", job_id, role, tasks, now)
        with suppress(StorageError):
            write_job(paths, paths.root.name, record)
