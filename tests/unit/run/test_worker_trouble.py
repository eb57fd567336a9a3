"""Workers whose disk fails, whose run was given up, and whose work dir is gone."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.faults.faulty_files import FaultyFileSystem

import leconvert
from leconvert.model.values import LayoutOptions
from leconvert.run import worker as workers
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.leasing import (
    Board,
    HeartbeatKeeper,
    LeaseStore,
    WorkerIdentity,
    list_batches,
    read_done,
    read_failed,
)
from leconvert.run.leasing.state import Outcome
from leconvert.run.packer import pack_run
from leconvert.run.planner import open_or_plan
from leconvert.run.worker import ShardWriter, Worker
from leconvert.support.errors import InterruptedRunError, PlanMismatchError, StorageError
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.locks import Backoff
from leconvert.workdir.run import BatchFile, OpenedRun


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
    def make(
        patience_seconds: float = 20,
        on_bytes: Callable[[int], None] | None = None,
        reporter: WorkerReporter | None = None,
        batch_ended: threading.Condition | None = None,
    ) -> Worker:
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(planned.paths, planned.manifest.run_id, identity, fs=fs)
        return Worker(
            planned,
            store,
            Board(store, planned.manifest.num_batches),
            stop=stop,
            on_bytes=on_bytes,
            reporter=reporter,
            batch_ended=batch_ended,
            patience=Backoff(patience_seconds),
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


def store_of_a_successor(run: OpenedRun) -> LeaseStore:
    """Leases of a worker that takes every other one for dead."""
    identity = WorkerIdentity.of_this_process()
    return LeaseStore(run.paths, run.manifest.run_id, identity, process_gone=lambda _: True)


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
                    small_source,
                    tmp_path / "out",
                    tmp_path / "work",
                    Conversion(layout=options, plan=PlanOptions(restart=True)),
                )
            )

    worker = make_worker(on_bytes=restart)
    with pytest.raises(PlanMismatchError, match="was discarded") as caught:
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
    open_or_plan(
        small_source,
        tmp_path / "out",
        tmp_path / "work",
        Conversion(plan=PlanOptions(restart=True)),
    )
    shutil.rmtree(planned.paths.root)
    with pytest.raises(PlanMismatchError, match="was discarded"):
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


def test_an_older_result_that_the_run_was_to_replace_does_not_end_a_worker_well(
    small_source: Path, tmp_path: Path, make_worker: Callable[..., Worker], planned: OpenedRun
) -> None:
    leconvert.convert(small_source, output=planned.manifest.target, work_dir=tmp_path / "earlier")
    worker = make_worker(3)
    shutil.rmtree(planned.work_dir.root)
    with pytest.raises(StorageError, match="is gone"):
        worker.run()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_permission_that_is_missing_is_not_waited_for(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    fs: FaultyFileSystem,
    pauses: Pauses,
    code: int,
) -> None:
    fs.fail("make_dir", code, match="leases", times=None)
    with pytest.raises(StorageError, match="permi") as caught:
        make_worker(120).run()
    assert str(planned.paths.leases_dir) in caught.value.message
    assert pauses.seconds == []


def test_a_work_dir_that_is_mounted_again_is_worked_on(
    planned: OpenedRun, make_worker: Callable[..., Worker], pauses: Pauses, tmp_path: Path
) -> None:
    worker = make_worker()
    planned.work_dir.root.rename(tmp_path / "elsewhere")
    pauses.then = lambda: (tmp_path / "elsewhere").rename(planned.work_dir.root)
    assert worker.run().batches_done == 5
    assert pauses.seconds == [1.0]


def test_pauses_double_up_to_half_a_minute_and_stop_at_the_limit() -> None:
    patience = Backoff(100)
    pauses = []
    while (pause := patience.next_pause()) is not None:
        pauses.append(pause)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 9]
    assert patience.spent_seconds == 100
    patience.reset()
    assert patience.next_pause() == 1


def test_a_plan_that_cannot_be_read_for_a_while_holds_no_batch_meanwhile(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    pauses: Pauses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, broken = BatchFile.read, [OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "error")]
    held: list[object] = []

    def sometimes(batches: BatchFile, batch_id: int) -> object:
        if broken:
            raise broken.pop()
        return read(batches, batch_id)

    monkeypatch.setattr(BatchFile, "read", sometimes)
    pauses.then = lambda: held.append(outcomes(planned)[-1])
    assert make_worker().run().batches_done == 5
    assert held == [Outcome.HANDED_BACK] * 2
    assert pauses.seconds == [1.0, 2.0]


def test_a_batch_of_an_unreadable_plan_is_handed_back_once_the_disk_works(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    fs: FaultyFileSystem,
    pauses: Pauses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, broken = BatchFile.read, [OSError(errno.EIO, "error")]

    def once(batches: BatchFile, batch_id: int) -> object:
        if broken:
            raise broken.pop()
        return read(batches, batch_id)

    monkeypatch.setattr(BatchFile, "read", once)
    fs.fail("write_new", errno.EIO, match=".end")
    assert make_worker().run().batches_done == 5, "or its own claim would have to expire first"
    assert pauses.seconds == [1.0]
    assert outcomes(planned).count(Outcome.HANDED_BACK) == 1


def test_an_error_in_the_program_sets_its_batch_aside_with_the_traceback(
    planned: OpenedRun, make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def divides(*_: object, **__: object) -> dict[str, object]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(ShardWriter, "write", divides)
    summary = make_worker().run()
    assert (summary.batches_done, summary.batches_failed) == (0, 15)
    record = read_failed(planned.paths, planned.manifest.run_id, 0)
    assert record["error"]["message"] == "ZeroDivisionError: division by zero"
    assert "in divides" in record["traceback"]
    assert list_batches(planned.paths.failed_dir) == set(range(5))


@pytest.mark.parametrize("faults", [0, 1], ids=["disk works", "disk fails"])
def test_ctrl_c_ends_a_worker_at_once_and_hands_its_batch_back(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    fs: FaultyFileSystem,
    pauses: Pauses,
    faults: int,
) -> None:
    def ctrl_c(_size_bytes: int) -> None:
        raise KeyboardInterrupt

    if faults:
        fs.fail("write_new", errno.EIO, match=".end", times=faults)
    with pytest.raises(KeyboardInterrupt):
        make_worker(on_bytes=ctrl_c).run()
    assert pauses.seconds == [], "patience with a disk is no reason to go on"
    assert outcomes(planned) == [Outcome.HANDED_BACK]


def test_a_worker_whose_heartbeat_finds_a_successor_leaves_the_batch_to_it(
    planned: OpenedRun, make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    keepers: list[HeartbeatKeeper] = []

    class Watched(HeartbeatKeeper):
        def __enter__(self) -> HeartbeatKeeper:
            keepers.append(self)
            return super().__enter__()

    monkeypatch.setattr(workers, "HeartbeatKeeper", Watched)
    successor = store_of_a_successor(planned)
    taken = []

    def take_over(_size_bytes: int) -> None:
        if not taken:
            [batch_id] = list_batches(planned.paths.leases_dir)
            taken.append(successor.claim(batch_id))
            keepers[-1]._show_life()  # its next heartbeat

    worker = make_worker(on_bytes=take_over)
    summary = worker.run(max_batches=1)
    assert (summary.batches_done, summary.batches_lost, summary.batches_failed) == (0, 1, 0)
    assert taken[0] is not None
    left = [path.name for path in planned.paths.attempts_dir.rglob("*") if path.is_file()]
    assert left == [], "what it wrote is of no use to anybody"
    assert list_batches(planned.paths.done_dir) == set()


def test_a_batch_that_another_published_first_counts_for_that_one_alone(
    planned: OpenedRun, make_worker: Callable[..., Worker]
) -> None:
    successor = store_of_a_successor(planned)
    published = []

    def be_faster(_size_bytes: int) -> None:
        if not published:
            [batch_id] = list_batches(planned.paths.leases_dir)
            lease = successor.claim(batch_id)
            assert lease is not None
            published.append((batch_id, lease.publish_done({"shards": []})))

    identity = WorkerIdentity.of_this_process()
    reporter = WorkerReporter(planned.paths, planned.manifest.run_id, identity)
    summary = make_worker(on_bytes=be_faster, reporter=reporter).run()
    assert published[0][1] == "won"
    assert (summary.batches_done, summary.batches_lost) == (4, 1)
    assert read_done(planned.paths, planned.manifest.run_id, published[0][0])["shards"] == []
    record = reporter.record
    assert (record.batches, record.written_bytes) == (4, summary.written_bytes)
    assert record.frames == summary.frames


def test_an_idle_worker_looks_at_once_when_another_of_its_process_ends_a_batch(
    planned: OpenedRun, make_worker: Callable[..., Worker]
) -> None:
    others = store_of_a_successor(planned)
    leases = [others.claim(batch_id) for batch_id in range(5)]

    naps: list[float] = []

    class Woken(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            naps.append(timeout)
            for lease in leases:
                assert lease is not None
                lease.publish_done({"shards": []})
            return True

    assert make_worker(batch_ended=Woken()).run().batches_done == 0
    assert len(naps) == 1
    assert list_batches(planned.paths.done_dir) == set(range(5))


def test_a_worker_alone_in_its_process_stops_in_the_middle_of_a_nap(
    planned: OpenedRun,
    make_worker: Callable[..., Worker],
    pauses: Pauses,
    stop: threading.Event,
) -> None:
    others = store_of_a_successor(planned)
    for batch_id in range(planned.manifest.num_batches):
        assert others.claim(batch_id) is not None
    pauses.then = stop.set
    with pytest.raises(InterruptedRunError):
        make_worker().run()
    assert len(pauses.seconds) == 1
