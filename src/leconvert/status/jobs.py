"""What a scheduler says of the jobs that were submitted for a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from leconvert.engines.sbatch import ElementState, job_states
from leconvert.status.values import JobStatus
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.jobs import JobRecord, read_jobs
from leconvert.workdir.paths import RunPaths

__all__ = ["JobObserver"]

_SECONDS_BETWEEN_LOOKS = 10.0


class JobObserver:
    """Looks at the jobs of one run, and asks the scheduler at most every ten seconds.

    Args:
        paths: The run's folders.
        run_id: The run.
        clock: A monotonic clock in seconds.
        fs: File operations.
    """

    def __init__(
        self,
        paths: RunPaths,
        run_id: str,
        *,
        clock: Callable[[], float],
        fs: FileSystem = LOCAL,
    ) -> None:
        self._paths = paths
        self._run_id = run_id
        self._clock = clock
        self._fs = fs
        self._asked_at: float | None = None
        self._states: dict[str, list[ElementState]] | None = {}

    def look(self) -> list[JobStatus]:
        """Return all submissions, oldest first; empty where nothing was submitted.

        Raises:
            StorageError: The folder cannot be read.
        """
        records = read_jobs(self._paths, self._run_id, fs=self._fs)
        now = self._clock()
        due = self._asked_at is None or now - self._asked_at >= _SECONDS_BETWEEN_LOOKS
        asked = [record.job_id for record in records if record.engine == "slurm"]
        if asked and due:
            self._asked_at = now
            states = job_states(asked)
            self._states = None if states is None else _by_job(states)
        return [
            JobStatus(
                engine=record.engine,
                job_id=record.job_id,
                role=record.role,
                tasks=record.tasks,
                states=self._states_of(record),
                reason=_reason(self._states, record.job_id),
            )
            for record in records
        ]

    def _states_of(self, record: JobRecord) -> dict[str, int] | None:
        """Return how many are in which state; None where nobody can be asked without a wait."""
        if self._states is None or record.engine != "slurm":
            return None
        return _count(self._states, record.job_id)


def _by_job(states: list[ElementState]) -> dict[str, list[ElementState]]:
    found: dict[str, list[ElementState]] = {}
    for state in states:
        found.setdefault(state.job_id.partition("_")[0], []).append(state)
    return found


def _count(states: dict[str, list[ElementState]], job_id: str) -> dict[str, int]:
    return dict(sorted(Counter(state.state for state in states.get(job_id, ())).items()))


def _reason(states: dict[str, list[ElementState]] | None, job_id: str) -> str | None:
    waiting = [s for s in (states or {}).get(job_id, ()) if s.state == "PENDING"]
    return waiting[0].reason if waiting else None
