"""Workers whose disk fails, whose run was given up, and whose work dir is gone."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from leconvert.errors import InterruptedRunError, PlanMismatchError, StorageError
from leconvert.leasing import Board, LeaseStore, WorkerIdentity, list_batches
from leconvert.leasing.state import Outcome
from leconvert.model import LayoutOptions
from leconvert.packer import pack_run
from leconvert.planner import open_or_plan
from leconvert.testing.faults import FaultyFileSystem
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.patience import Patience
from leconvert.worker import Worker


class Pauses:
    """Takes the place of waiting: notes how long, and does what the test planned for then."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.then: Callable[[], object] = lambda: None

    def __call__(self, stop: threading.Event, seconds: float) -> bool:
        self.seconds.append(seconds)
        self.then()
        return stop.is_set()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem()


@pytest.fixture
def make_worker(
    planned: OpenedRun, pauses: Pauses, stop: threading.Event, fs: FaultyFileSystem
) -> Callable[..., Worker]:
    def make(patience_seconds: float = 20, on_bytes: Callable[[int], None] | None = None) -> Worker:
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(planned.paths, planned.manifest.run_id, identity, fs=fs)
        return Worker(
            planned,
            store,
            Board(store, planned.manifest.num_batches),
            stop=stop,
            on_bytes=on_bytes,
            patience=Patience(patience_seconds),
            waiter=pauses,
            clock=count(0.0, 10.0).__next__,
        )

    return make


def outcomes(run: OpenedRun) -> list[Outcome | None]:
    """How every claim of every batch ended."""
    identity = WorkerIdentity.of_this_process()
    log = LeaseStore(run.paths, run.manifest.run_id, identity).log
    return [
        generation.outcome
        for batch_id in range(run.manifest.num_batches)
        for generation in log.read(batch_id).generations
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE])
def test_a_disk_that_recovers_costs_pauses_and_nothing_else(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    fs: FaultyFileSystem,
    pauses: Pauses,
    code: int,
) -> None:
    fs.fail("write_new", code, match="done.json", times=3)
    summary = make_worker().run()
    assert (summary.batches_done, summary.batches_failed) == (5, 0)
    assert pauses.seconds == [1.0, 2.0, 4.0]
    assert sorted(map(str, outcomes(planned))) == ["None"] * 5 + ["handed-back"] * 3
    assert list_batches(planned.paths.failed_dir) == set()


def test_a_disk_that_stays_broken_ends_the_worker_with_the_reason_and_nothing_held(
    planned: OpenedRun, make_worker: Callable[..., Worker], fs: FaultyFileSystem, pauses: Pauses
) -> None:
    fs.fail("write_new", errno.ENOSPC, match="done.json", times=None)
    with pytest.raises(StorageError, match="no space left") as caught:
        make_worker(20).run()
    assert pauses.seconds == [1.0, 2.0, 4.0, 8.0, 5.0]
    assert "tried again for 20 s" in caught.value.details[-1]
    assert caught.value.next_step
    assert set(outcomes(planned)) == {Outcome.HANDED_BACK}


def test_without_patience_the_first_error_ends_the_worker(
    planned: OpenedRun, make_worker: Callable[..., Worker], fs: FaultyFileSystem, pauses: Pauses
) -> None:
    fs.fail("write_new", errno.ENOSPC, match="done.json")
    with pytest.raises(StorageError):
        make_worker(0).run()
    assert pauses.seconds == []
    assert set(outcomes(planned)) == {Outcome.HANDED_BACK}


def test_a_batch_that_could_not_be_handed_back_is_handed_back_as_soon_as_the_disk_works(
    planned: OpenedRun, make_worker: Callable[..., Worker], fs: FaultyFileSystem, pauses: Pauses
) -> None:
    fs.fail("write_new", errno.EIO, match="done.json")
    fs.fail("write_new", errno.EIO, match=".end", times=2)
    summary = make_worker().run()
    assert summary.batches_done == 5, "or its own claim would have kept it waiting for a lease"
    assert pauses.seconds == [1.0, 2.0]
    assert outcomes(planned).count(Outcome.HANDED_BACK) == 1
    assert fs.pending_faults == 0


def test_a_success_between_two_troubles_renews_the_patience(
    make_worker: Callable[..., Worker], fs: FaultyFileSystem, pauses: Pauses
) -> None:
    fs.fail("write_new", errno.EIO, match="done.json", times=2)
    fs.fail("write_new", errno.EIO, match="done.json", times=2, skip=1)
    assert make_worker(3.5).run().batches_done == 5
    assert pauses.seconds == [1.0, 2.0, 1.0, 2.0]


def test_a_work_dir_that_cannot_be_listed_for_a_while_is_waited_for(
    make_worker: Callable[..., Worker], fs: FaultyFileSystem, pauses: Pauses
) -> None:
    fs.fail("list_names", errno.ESTALE, match="leases", times=3)
    assert make_worker().run().batches_done == 5
    assert pauses.seconds == [1.0, 2.0, 4.0]


def test_a_request_to_stop_ends_a_pause_at_once(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    fs: FaultyFileSystem,
    pauses: Pauses,
    stop: threading.Event,
) -> None:
    fs.fail("write_new", errno.ENOSPC, match="done.json", times=None)
    pauses.then = stop.set
    with pytest.raises(InterruptedRunError):
        make_worker().run()
    assert pauses.seconds == [1.0]
    assert set(outcomes(planned)) == {Outcome.HANDED_BACK}


def test_a_worker_of_a_run_that_was_given_up_says_so_and_touches_the_new_run_in_nothing(
    planned: OpenedRun, small_source: Path, tmp_path: Path, make_worker: Callable[..., Worker]
) -> None:
    restarted: list[OpenedRun] = []

    def restart(_size_bytes: int) -> None:
        if not restarted:
            options = LayoutOptions(episodes_per_batch=2)
            restarted.append(
                open_or_plan(
                    small_source, tmp_path / "out", tmp_path / "work", options, restart=True
                )
            )

    worker = make_worker(on_bytes=restart)
    with pytest.raises(PlanMismatchError, match="was given up") as caught:
        worker.run()
    new = restarted[0]
    assert new.manifest.run_id in caught.value.message
    assert new.paths.root != planned.paths.root
    assert list_batches(new.paths.leases_dir) == set()
    assert list_batches(planned.paths.done_dir), "the batch in hand was finished in its own run"


def test_a_worker_whose_run_was_removed_after_a_restart_is_told_why(
    planned: OpenedRun, small_source: Path, tmp_path: Path, make_worker: Callable[..., Worker]
) -> None:
    worker = make_worker()
    open_or_plan(small_source, tmp_path / "out", tmp_path / "work", LayoutOptions(), restart=True)
    shutil.rmtree(planned.paths.root)
    with pytest.raises(PlanMismatchError, match="was given up"):
        worker.run()


def test_a_work_dir_that_the_finished_conversion_removed_ends_a_worker_well(
    planned: OpenedRun, make_worker: Callable[..., Worker], pauses: Pauses
) -> None:
    late = make_worker()
    make_worker().run()
    pack_run(planned)
    shutil.rmtree(planned.work_dir.root)
    assert late.run().batches_done == 0
    assert pauses.seconds == []


def test_a_work_dir_that_is_gone_without_a_result_is_waited_for_and_then_named(
    planned: OpenedRun, make_worker: Callable[..., Worker], pauses: Pauses
) -> None:
    worker = make_worker(3)
    shutil.rmtree(planned.work_dir.root)
    with pytest.raises(StorageError, match="is gone") as caught:
        worker.run()
    assert str(planned.work_dir.root) in caught.value.message
    assert sum(pauses.seconds) == 3


def test_a_work_dir_that_is_mounted_again_is_worked_on(
    planned: OpenedRun, make_worker: Callable[..., Worker], pauses: Pauses, tmp_path: Path
) -> None:
    worker = make_worker()
    planned.work_dir.root.rename(tmp_path / "elsewhere")
    pauses.then = lambda: (tmp_path / "elsewhere").rename(planned.work_dir.root)
    assert worker.run().batches_done == 5
    assert pauses.seconds == [1.0]


def test_pauses_double_up_to_half_a_minute_and_stop_at_the_limit() -> None:
    patience = Patience(100)
    pauses = []
    while (pause := patience.next_pause()) is not None:
        pauses.append(pause)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 9]
    assert patience.spent_seconds == 100
    patience.reset()
    assert patience.next_pause() == 1
