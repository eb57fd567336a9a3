"""What a status says of submitted jobs, and how seldom a scheduler is asked for it."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from leconvert.report import status
from leconvert.report.status import RunObserver
from leconvert.run.engines.slurm import ElementState
from leconvert.workdir.activity import JobRecord, write_job
from leconvert.workdir.run import OpenedRun

STATES = [
    ElementState("12_0", "RUNNING", "None"),
    ElementState("12_1", "RUNNING", "None"),
    ElementState("12_2", "PENDING", "Resources"),
    ElementState("13", "PENDING", "Dependency"),
]


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Answers with what it is told to, and keeps what it was asked."""
    asked = Mock(return_value=STATES)
    monkeypatch.setattr(status, "job_states", asked)
    return asked


def submit(run: OpenedRun, job_id: str, *, engine: str = "slurm", role: str = "workers") -> None:
    record = JobRecord(f"{engine}-{job_id}", engine, job_id, role, 3, f"2026-01-01T00:00:{job_id}Z")
    write_job(run.paths, record)


def test_elements_of_an_array_are_counted_by_state_and_one_says_why_it_waits(
    planned: OpenedRun, scheduler: Mock
) -> None:
    submit(planned, "12")
    submit(planned, "13", role="packer")
    submit(planned, "14")
    array, packer, forgotten = RunObserver(planned).look().jobs
    assert (array.engine, array.job_id, array.role, array.tasks) == ("slurm", "12", "workers", 3)
    assert (array.states, array.reason) == ({"PENDING": 1, "RUNNING": 2}, "Resources")
    assert (packer.role, packer.states, packer.reason) == ("packer", {"PENDING": 1}, "Dependency")
    assert (forgotten.states, forgotten.reason) == ({}, None)
    assert [list(job_ids) for (job_ids,), _ in scheduler.call_args_list] == [["12", "13", "14"]]


def test_a_scheduler_is_asked_at_most_every_ten_seconds(
    planned: OpenedRun, clock: Any, scheduler: Mock
) -> None:
    submit(planned, "12")
    observer = RunObserver(planned, clock=clock)
    observer.look()
    for answer, later, told in (
        ([], 9.9, {"PENDING": 1, "RUNNING": 2}),
        ([], 0.1, {}),
        (None, 10.0, None),  # it does not answer
    ):
        scheduler.return_value = answer
        clock.seconds += later
        (job,) = observer.look().jobs
        assert (job.states, job.reason is None) == (told, not told)
    assert scheduler.call_count == 3


def test_no_scheduler_is_asked_for_nothing_nor_for_jobs_of_other_engines(
    planned: OpenedRun, scheduler: Mock
) -> None:
    assert RunObserver(planned).look().jobs == []
    submit(planned, "raysubmit_7", engine="ray")
    (job,) = RunObserver(planned).look().jobs
    assert (job.engine, job.job_id, job.states) == ("ray", "raysubmit_7", None)
    assert not scheduler.called
