"""Workers whose disk fails, whose run was given up, and whose work dir is gone."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests.faults.faulty_files import FaultyFileSystem
from tests.plans import open_or_plan

import leconvert
from leconvert.model.values import LayoutOptions
from leconvert.run import worker as workers
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.leasing import (
    Board,
    HeartbeatKeeper,
    Lease,
    LeaseStore,
    WorkerIdentity,
    list_batches,
    read_done,
    read_failed,
)
from leconvert.run.leasing.state import Outcome
from leconvert.run.packer import pack_run
from leconvert.run.worker import ShardWriter, Worker
from leconvert.support.errors import InterruptedRunError, PlanMismatchError, StorageError
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.locks import Backoff
from leconvert.workdir.run import BatchFile, OpenedRun


class Trouble:
    """A planned run whose disk fails as a test says, and whose pauses are noted and not made.

    Attributes:
        pauses: How long each pause would have been.
        then: What happens in each of them.
    """

    def __init__(self, run: OpenedRun) -> None:
        self.run = run
        self.fs = FaultyFileSystem()
        self.stop = threading.Event()
        self.pauses: list[float] = []
        self.then: Callable[[], object] = lambda: None

    def worker(self, patience_seconds: float = 20, **options: Any) -> Worker:
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(self.run.paths.using(self.fs), identity)
        return Worker(
            self.run, Board(store, self.run.manifest.num_batches), stop=self.stop,
            patience=Backoff(patience_seconds), waiter=self._pause, clock=count(0.0, 10.0).__next__,
            **options,
        )  # fmt: skip

    def successor(self) -> LeaseStore:
        """Leases of a worker that takes every other one for dead."""
        identity = WorkerIdentity.of_this_process()
        return LeaseStore(self.run.paths, identity, process_gone=lambda _: True)

    def outcomes(self) -> list[Outcome | None]:
        """How every claim of every batch ended."""
        log = self.successor().log
        return [
            generation.outcome
            for batch_id in range(self.run.manifest.num_batches)
            for generation in log.read(batch_id).generations
        ]

    def _pause(self, stop: threading.Event, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.then()
        return stop.is_set()


@pytest.fixture
def trouble(planned: OpenedRun) -> Trouble:
    return Trouble(planned)


DONE = {"operation": "write_new", "match": "done.json"}
END = {"operation": "write_new", "match": ".end"}


@pytest.mark.parametrize(
    ("faults", "patience", "pauses", "handed_back"),
    [
        *(
            ([DONE | {"code": code, "times": 3}], 20, [1, 2, 4], 3)
            for code in (errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE)
        ),
        # Its own claim would keep it waiting for a lease if it were not handed back.
        ([DONE | {"code": errno.EIO}, END | {"code": errno.EIO, "times": 2}], 20, [1, 2], 1),
        (
            [
                DONE | {"code": errno.EIO, "times": 2},
                DONE | {"code": errno.EIO, "times": 2, "skip": 1},
            ],
            3.5,
            [1, 2, 1, 2],
            4,
        ),
        (
            [{"operation": "list_names", "code": errno.ESTALE, "match": "leases", "times": 3}],
            20,
            [1, 2, 4],
            0,
        ),
    ],
    ids=[
        *("full", "read-only", "input/output", "stale"),
        *("cannot hand back", "a success renews the patience", "cannot be listed"),
    ],
)
def test_a_disk_that_recovers_costs_pauses_and_nothing_else(
    trouble: Trouble,
    faults: list[dict[str, Any]],
    patience: float,
    pauses: list[float],
    handed_back: int,
) -> None:
    for fault in faults:
        trouble.fs.fail(**fault)
    summary = trouble.worker(patience).run()
    assert (summary.batches_done, summary.batches_failed) == (5, 0)
    assert trouble.pauses == pauses
    assert trouble.fs.pending_faults == 0
    assert sorted(map(str, trouble.outcomes())) == ["None"] * 5 + ["handed-back"] * handed_back
    assert list_batches(trouble.run.paths.failed_dir) == set()


@pytest.mark.parametrize(
    ("patience", "pauses", "stops"),
    [(20, [1, 2, 4, 8, 5], False), (0, [], False), (20, [1], True)],
)
def test_a_disk_that_stays_broken_ends_the_worker_with_the_reason_and_nothing_held(
    trouble: Trouble, patience: float, pauses: list[float], stops: bool
) -> None:
    trouble.fs.fail("write_new", errno.ENOSPC, match="done.json", times=None)
    if stops:  # as soon as it pauses
        trouble.then = trouble.stop.set
        with pytest.raises(InterruptedRunError):
            trouble.worker(patience).run()
    else:
        with pytest.raises(StorageError, match="no space left") as caught:
            trouble.worker(patience).run()
        told = [line for line in caught.value.details if "The worker kept trying for" in line]
        assert len(told) == (1 if patience else 0)
        assert caught.value.next_step
    assert trouble.pauses == pauses
    assert set(trouble.outcomes()) == {Outcome.HANDED_BACK}


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("can't start new thread"), "no more threads"),
        (pa.ArrowException("Unknown error: Failed to launch worker thread: x"), "no more threads"),
        (pa.ArrowMemoryError("malloc of size 64 failed"), "no more memory"),
        (MemoryError(), "no more memory"),
    ],
)
@pytest.mark.parametrize("times", [2, 99])
def test_a_limit_of_the_machine_is_no_fault_of_a_batch(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str, times: int
) -> None:
    real, left = HeartbeatKeeper.__enter__, [raised] * times

    def enter(keeper: HeartbeatKeeper) -> HeartbeatKeeper:
        if left:
            raise left.pop()
        return real(keeper)

    monkeypatch.setattr(HeartbeatKeeper, "__enter__", enter)
    if times == 2:  # it recovers
        assert trouble.worker().run().batches_done == 5
    else:
        with pytest.raises(StorageError, match=said) as caught:
            trouble.worker().run()
        assert caught.value.next_step
    assert set(trouble.outcomes()) <= {None, Outcome.HANDED_BACK}
    assert list_batches(trouble.run.paths.failed_dir) == set()


def test_a_worker_of_a_run_that_was_given_up_says_so_and_touches_the_new_run_in_nothing(
    trouble: Trouble, small_source: Path, tmp_path: Path
) -> None:
    restarted: list[OpenedRun] = []
    anew = Conversion(layout=LayoutOptions(episodes_per_batch=2), plan=PlanOptions(restart=True))

    def restart(_size_bytes: int) -> None:
        if not restarted:
            places = small_source, tmp_path / "out", tmp_path / "work"
            restarted.append(open_or_plan(*places, anew))

    with pytest.raises(PlanMismatchError, match="was discarded") as caught:
        trouble.worker(on_bytes=restart).run()
    new = restarted[0]
    assert new.paths.run_id in caught.value.message
    assert new.paths.root != trouble.run.paths.root
    assert list_batches(new.paths.leases_dir) == set()
    assert list_batches(trouble.run.paths.done_dir), "the batch in hand was finished in its own run"


def test_a_work_dir_that_a_finished_conversion_removed_ends_well(trouble: Trouble) -> None:
    late = trouble.worker()
    trouble.worker().run()
    pack_run(trouble.run)
    shutil.rmtree(trouble.run.work_dir.root)
    assert late.run().batches_done == 0
    assert trouble.pauses == []


@pytest.mark.parametrize("has_older_result", [False, True])
def test_a_work_dir_that_is_gone_without_the_result_of_its_run_is_waited_for_and_then_named(
    trouble: Trouble, small_source: Path, tmp_path: Path, has_older_result: bool
) -> None:
    if has_older_result:  # which the run was to replace
        target = trouble.run.manifest.target
        leconvert.convert(small_source, output=target, work_dir=tmp_path / "earlier")
    worker = trouble.worker(3)
    shutil.rmtree(trouble.run.work_dir.root)
    with pytest.raises(StorageError, match="no longer holds run") as caught:
        worker.run()
    assert str(trouble.run.work_dir.root) in caught.value.message
    assert sum(trouble.pauses) == 3


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_permission_that_is_missing_is_not_waited_for(trouble: Trouble, code: int) -> None:
    trouble.fs.fail("make_dir", code, match="leases", times=None)
    with pytest.raises(StorageError, match="permi") as caught:
        trouble.worker(120).run()
    assert str(trouble.run.paths.leases_dir) in caught.value.message
    assert trouble.pauses == []


def test_a_work_dir_that_is_mounted_again_is_worked_on(trouble: Trouble, tmp_path: Path) -> None:
    worker = trouble.worker()
    trouble.run.work_dir.root.rename(tmp_path / "elsewhere")
    trouble.then = lambda: (tmp_path / "elsewhere").rename(trouble.run.work_dir.root)
    assert worker.run().batches_done == 5
    assert trouble.pauses == [1.0]


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
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, broken = BatchFile.read, [OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "error")]
    held: list[object] = []

    def sometimes(batches: BatchFile, batch_id: int) -> object:
        if broken:
            raise broken.pop()
        return read(batches, batch_id)

    monkeypatch.setattr(BatchFile, "read", sometimes)
    trouble.then = lambda: held.append(trouble.outcomes()[-1])
    assert trouble.worker().run().batches_done == 5
    assert held == [Outcome.HANDED_BACK] * 2
    assert trouble.pauses == [1.0, 2.0]


def test_an_error_in_the_program_sets_its_batch_aside_with_the_traceback(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divides(*_: object, **__: object) -> dict[str, object]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(ShardWriter, "write", divides)
    summary = trouble.worker().run()
    assert (summary.batches_done, summary.batches_failed) == (0, 15)
    record = read_failed(trouble.run.paths, 0)
    assert record["error"]["message"] == "ZeroDivisionError: division by zero"
    assert "in divides" in record["traceback"]
    assert list_batches(trouble.run.paths.failed_dir) == set(range(5))


@pytest.mark.parametrize("faults", [0, 1], ids=["disk works", "disk fails"])
@pytest.mark.parametrize("is_writing", [True, False])
def test_ctrl_c_ends_a_worker_at_once_and_hands_its_batch_back(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch, faults: int, is_writing: bool
) -> None:
    ctrl_c = Mock(side_effect=KeyboardInterrupt)
    if not is_writing:
        monkeypatch.setattr(HeartbeatKeeper, "__enter__", ctrl_c)
    if faults:
        trouble.fs.fail("write_new", errno.EIO, match=".end", times=faults)
    with pytest.raises(KeyboardInterrupt):
        trouble.worker(on_bytes=ctrl_c).run()
    assert trouble.pauses == [], "patience with a disk is no reason to go on"
    assert trouble.outcomes() == [Outcome.HANDED_BACK]


def test_a_worker_whose_heartbeat_finds_a_successor_leaves_the_batch_to_it(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    keepers: list[HeartbeatKeeper] = []

    class Watched(HeartbeatKeeper):
        def __enter__(self) -> HeartbeatKeeper:
            keepers.append(self)
            return super().__enter__()

    monkeypatch.setattr(workers, "HeartbeatKeeper", Watched)
    successor = trouble.successor()
    taken: list[Lease | None] = []

    def take_over(_size_bytes: int) -> None:
        if not taken:
            [batch_id] = list_batches(trouble.run.paths.leases_dir)
            taken.append(successor.claim(batch_id))
            keepers[-1]._show_life()  # its next heartbeat

    worker = trouble.worker(on_bytes=take_over)
    summary = worker.run(max_batches=1)
    assert (summary.batches_done, summary.batches_lost, summary.batches_failed) == (0, 1, 0)
    assert taken[0] is not None
    left = [path.name for path in trouble.run.paths.attempts_dir.rglob("*") if path.is_file()]
    assert left == [], "what it wrote is of no use to anybody"
    assert list_batches(trouble.run.paths.done_dir) == set()


def test_a_batch_that_another_published_first_counts_for_that_one_alone(trouble: Trouble) -> None:
    successor = trouble.successor()
    published: list[tuple[int, str]] = []

    def be_faster(_size_bytes: int) -> None:
        if not published:
            [batch_id] = list_batches(trouble.run.paths.leases_dir)
            lease = successor.claim(batch_id)
            published.append((batch_id, lease.publish_done({"shards": []})))

    identity = WorkerIdentity.of_this_process()
    reporter = WorkerReporter(trouble.run.paths, identity)
    summary = trouble.worker(on_bytes=be_faster, reporter=reporter).run()
    assert published[0][1] == "won"
    assert (summary.batches_done, summary.batches_lost) == (4, 1)
    assert read_done(trouble.run.paths, published[0][0])["shards"] == []
    record = reporter.record
    assert (record.batches, record.written_bytes) == (4, summary.written_bytes)
    assert record.frames == summary.frames


def test_an_idle_worker_looks_at_once_when_its_process_ends_a_batch(trouble: Trouble) -> None:
    others = trouble.successor()
    leases = [others.claim(batch_id) for batch_id in range(5)]

    naps: list[float] = []

    class Woken(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            naps.append(timeout)
            for lease in leases:
                lease.publish_done({"shards": []})
            return True

    assert trouble.worker(batch_ended=Woken()).run().batches_done == 0
    assert len(naps) == 1
    assert list_batches(trouble.run.paths.done_dir) == set(range(5))
