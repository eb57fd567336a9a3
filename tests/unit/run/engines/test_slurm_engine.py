"""The engine between a conversion and a scheduler that forgets, restarts and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leconvert.run.engines.options import SlurmOptions
from leconvert.run.engines.slurm import SlurmEngine
from leconvert.support.errors import EngineError
from leconvert.workdir.activity import read_jobs
from leconvert.workdir.run import OpenedRun

if TYPE_CHECKING:
    from tests.slurm import Slurm
    from tests.unit.conftest import TurnedClock


@pytest.fixture
def engine(clock: TurnedClock) -> SlurmEngine:
    return SlurmEngine(SlurmOptions(workers_per_node=3), clock=clock)


def begin(engine: SlurmEngine, planned: OpenedRun) -> None:
    engine.start(engine.workers, [str(planned.work_dir.root)], planned.paths)


def test_waiting_workers_count_and_the_controller_is_asked_now_and_then(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    assert engine.running() == 0
    begin(engine, planned)
    slurm.has("41", "41_0|RUNNING|None", "41_1|PENDING|Resources", "41_2|COMPLETED|None")
    assert [engine.running() for _ in range(100)] == [2] * 100
    assert slurm.times_asked == 1
    clock.seconds += 6.0
    slurm.has("41", "41_0|COMPLETED|None", "41_1|COMPLETED|None", "41_2|COMPLETED|None")
    assert engine.running() == 0
    assert engine.failures() == []


def test_a_controller_that_is_away_ends_nothing(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.flag("away")
    assert engine.running() == 3
    slurm.flag("away", on=False)
    clock.seconds += 6.0
    assert engine.running() == 0  # by now it has forgotten the job


def test_failures_come_with_the_end_of_their_logs(
    slurm: Slurm, engine: SlurmEngine, planned: OpenedRun
) -> None:
    begin(engine, planned)
    (planned.paths.logs_dir / "slurm-41_1.log").write_text("a\nb\nleconvert: no space\n")
    slurm.has("41", "41_0|NODE_FAIL|None", "41_1|FAILED|NonZeroExitCode", "41_2|COMPLETED|None")
    engine.running()
    assert engine.failures() == [
        "job 41_0 ended as NODE_FAIL: no output",
        "job 41_1 ended as FAILED: a / b / leconvert: no space",
    ]


def test_a_failure_is_remembered_when_the_controller_has_forgotten_it(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.has("41", "41_0|FAILED|NonZeroExitCode", "41_1|RUNNING|None", "41_2|RUNNING|None")
    engine.running()
    slurm.has("41", "41_1|COMPLETED|None", "41_2|RUNNING|None")
    clock.seconds += 600.0
    assert engine.running() == 1
    assert engine.failures() == ["job 41_0 ended as FAILED: no output"]


def test_a_second_run_with_an_engine_knows_nothing_of_the_first(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.has("41", "41_0|FAILED|NonZeroExitCode", "41_1|COMPLETED|None", "41_2|COMPLETED|None")
    assert (engine.running(), len(engine.failures())) == (0, 1)
    begin(engine, planned)
    slurm.has("42", "42_0|RUNNING|None", "42_1|RUNNING|None", "42_2|RUNNING|None")
    clock.seconds += 6.0
    assert (engine.running(), engine.failures()) == (3, [])
    engine.stop()
    assert (slurm.folder / "cancelled").read_text() == "--quiet 42"


def test_a_worker_that_is_put_back_into_the_queue_has_not_failed(
    slurm: Slurm, engine: SlurmEngine, clock: TurnedClock, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.has("41", "41_0|PREEMPTED|None", "41_1|RUNNING|None", "41_2|RUNNING|None")
    assert engine.running() == 2
    slurm.has("41", "41_0|PENDING|BeginTime", "41_1|RUNNING|None", "41_2|RUNNING|None")
    clock.seconds += 6.0
    assert engine.running() == 3
    assert engine.failures() == []


def test_stopping_gives_up_where_nobody_answers(
    slurm: Slurm, engine: SlurmEngine, planned: OpenedRun
) -> None:
    begin(engine, planned)
    slurm.flag("away")
    engine.stop()
    assert not (slurm.folder / "cancelled").exists()


def test_a_refused_submission_is_an_error_and_leaves_no_record(
    slurm: Slurm, engine: SlurmEngine, planned: OpenedRun
) -> None:
    slurm.flag("full")
    with pytest.raises(EngineError):
        begin(engine, planned)
    assert read_jobs(planned.paths) == []
    assert engine.running() == 0


def test_records_of_jobs_that_cannot_be_read_are_left_out(
    slurm: Slurm, engine: SlurmEngine, planned: OpenedRun
) -> None:
    begin(engine, planned)
    planned.paths.job("slurm-1-torn").write_bytes(b'{"format": "leconvert/jo')
    (record,) = read_jobs(planned.paths)
    assert record.job_id == "41"
