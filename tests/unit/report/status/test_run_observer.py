"""What one look, and many, show of a run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faulty_files import FaultyFileSystem
from tests.plans import open_or_plan

from leconvert.api import run_worker
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.report.status import Liveness, RunObserver, run_status, watch_run
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.leasing import LeaseStore, WorkerIdentity, release_failed, void_done
from leconvert.run.packer import pack_run
from leconvert.run.worker_pool import batch_costs
from leconvert.support.errors import StorageError, UnreadableSourceError, WorkDirError
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.run import OpenedRun

WorkerOn = Callable[..., LeaseStore]


def observe(run: OpenedRun, clock: Any, **options: Any) -> RunObserver:
    return RunObserver(run, clock=clock, **options)


def test_a_run_that_nobody_works_on_is_shown_too(planned: OpenedRun) -> None:
    status = run_status(planned.work_dir.root)
    assert (status.batches, status.pending, status.leased, status.done) == (5, 5, 0, 0)
    assert status.total_bytes > 0
    assert status.total_frames == 3 * 44
    assert (status.workers, status.ended_workers, status.failures) == ([], 0, [])
    assert (status.bytes_per_second, status.seconds_left) == (0.0, None)
    assert status.packer.step == "none"
    assert json.loads(json.dumps(status.as_record()))["packed"] is False


def test_a_finished_run_says_so_and_how_the_bytes_moved(planned: OpenedRun) -> None:
    run_worker(planned.work_dir.root)
    status = run_status(planned.work_dir.root)
    assert (status.done, status.done_bytes) == (5, status.total_bytes)
    assert (status.ended_workers, status.workers) == (1, [])
    assert status.video.batches_read == 5
    assert status.video.copied + status.video.cloned > 0
    assert status.seconds_left == 0.0
    assert not status.packed
    packed = pack_run(planned)
    status = run_status(planned.work_dir.root)
    assert status.packed
    assert status.packer.step == "finished"
    assert status.packer.liveness is Liveness.RUNNING, "the packer was this very process"
    assert (status.video.cloned, status.video.copied) == (packed.cloned_bytes, packed.copied_bytes)


def test_a_holder_elsewhere_is_unknown_until_it_beats_and_silent_once_it_stops(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    lease = worker_on("far").claim(3)
    lease.heartbeat()
    observer = observe(planned, clock)
    [worker] = observer.look().workers
    assert (worker.host, worker.pid, worker.batch_id) == ("far", 7, 3)
    assert (worker.liveness, worker.silent_seconds) == (Liveness.UNKNOWN, 0.0)
    clock.seconds += 20
    [worker] = observer.look().workers
    assert (worker.liveness, worker.silent_seconds) == (Liveness.UNKNOWN, 20.0)
    lease.heartbeat()
    clock.seconds += 5
    [worker] = observer.look().workers
    assert (worker.liveness, worker.silent_seconds) == (Liveness.RUNNING, 0.0)
    clock.seconds += 50
    status = observer.look()
    assert (status.workers[0].liveness, status.workers[0].silent_seconds) == (Liveness.SILENT, 50.0)
    assert status.leased == 1, "silence alone changes no state: only a successor's claim does"


def test_a_holder_on_this_host_is_known_to_run_or_to_have_ended(
    planned: OpenedRun, holder_here: subprocess.Popen[str]
) -> None:
    [worker] = run_status(planned.work_dir.root).workers
    assert (worker.pid, worker.liveness) == (holder_here.pid, Liveness.RUNNING)
    holder_here.kill()
    holder_here.wait()
    [worker] = run_status(planned.work_dir.root).workers
    assert (worker.pid, worker.liveness, worker.batch_id) == (holder_here.pid, Liveness.ENDED, 0)


def test_attempts_are_counted_and_the_reason_of_a_failure_is_shown_until_it_is_released(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    observer = observe(planned, clock)
    store = worker_on("far", max_attempts=2)
    for attempt in (1, 2):
        lease = store.claim(1)
        lease.fail(UnreadableSourceError("clip 7 is torn.", next_step="Repair it."))
        status = observer.look()
        [row] = status.unsettled
        assert (row.errors, row.message) == (attempt, "clip 7 is torn.")
    assert (status.failed, status.pending) == (1, 4)
    [failure] = status.failures
    assert (failure.batch_id, failure.errors, failure.host) == (1, 2, "far")
    assert (failure.message, failure.next_step) == ("clip 7 is torn.", "Repair it.")
    release_failed(planned.paths, 1, "mended")
    status = observer.look()
    assert (status.failed, status.pending, status.failures) == (0, 5, [])


def test_a_batch_that_killed_its_workers_says_so(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    identity = WorkerIdentity("x-1-00000000", "far", 1)
    store = LeaseStore(
        planned.paths, identity, max_losses=1, clock=clock,
        process_gone=lambda _fields: True,
    )  # fmt: skip
    assert store.claim(1) is not None
    assert store.claim(1) is None, "the second look sets it aside"
    [failure] = observe(planned, clock).look().failures
    assert "workers ended or froze while they worked on it" in failure.message


def test_a_voided_batch_takes_its_bytes_along(planned: OpenedRun, clock: Any) -> None:
    run_worker(planned.work_dir.root)
    observer = observe(planned, clock)
    before = observer.look().video
    void_done(planned.paths, 4, "its shards are gone")
    after = observer.look()
    assert (after.done, after.pending) == (4, 1)
    assert after.video.batches_read == 4
    assert after.video.copied + after.video.cloned < before.copied + before.cloned


def test_rates_are_what_the_observer_saw_on_its_own_clock(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    store = worker_on("far")
    assert store.claim(0) is not None
    reporter = WorkerReporter(planned.paths, store.worker, clock=clock)
    reporter.update(batch_id=0)
    observer = observe(planned, clock)
    observer.look()
    clock.seconds += 4
    reporter.advance(400)
    status = observer.look()
    assert status.bytes_per_second == 100.0
    assert status.observed_seconds == 4.0
    assert status.seconds_left == pytest.approx(status.total_bytes / 100)
    clock.seconds += 50
    status = observer.look()
    assert status.workers[0].liveness is Liveness.SILENT
    assert (status.bytes_per_second, status.seconds_left) == (0.0, None)


def test_time_left_counts_bytes_that_are_decoded_as_the_progress_of_convert_does(
    small_source: Path, tmp_path: Path, clock: Any
) -> None:
    run = open_or_plan(
        small_source,
        tmp_path / "out",
        tmp_path / "work",
        Conversion(repairs=RepairOptions(recompute_stats=True)),
    )
    costs, sizes = batch_costs(run), [batch.source_bytes for batch in run.batches]
    assert sum(costs) > 2 * sum(sizes)
    identity = WorkerIdentity("far-1-00000001", "far", 1)
    store = LeaseStore(run.paths, identity, clock=clock)
    assert store.claim(0) is not None
    reporter = WorkerReporter(run.paths, identity, clock=clock)
    reporter.update(batch_id=0)
    observer = observe(run, clock)
    observer.look()
    clock.seconds += 4
    reporter.advance(400)
    status = observer.look()
    assert status.bytes_per_second == 100.0
    assert status.seconds_left == pytest.approx(sum(costs) / (100 * costs[0] / sizes[0]))


def test_a_waiting_worker_is_listed_and_one_that_said_good_bye_is_counted(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    waiting = WorkerReporter(planned.paths, worker_on("a").worker, clock=clock)
    ended = WorkerReporter(planned.paths, worker_on("b").worker, clock=clock)
    waiting.wait()
    ended.end()
    observer = observe(planned, clock)
    status = observer.look()
    assert [(w.host, w.batch_id) for w in status.workers] == [("a", None)]
    assert status.ended_workers == 1
    clock.seconds += 11
    waiting.wait()
    assert observer.look().workers[0].liveness is Liveness.RUNNING
    clock.seconds += 60
    assert observer.look().workers[0].liveness is Liveness.SILENT


def test_a_watch_ends_when_the_result_is_in_place(planned: OpenedRun) -> None:
    root = planned.work_dir.root
    steps: Iterator[Callable[[], object]] = iter(
        (
            lambda: run_worker(root, max_batches=2),
            lambda: run_worker(root),
            lambda: pack_run(planned),
        )
    )

    def pause() -> bool:
        next(steps)()
        return False

    seen = [(s.done, s.packed) for s in watch_run(planned.work_dir.root, pause)]
    assert seen == [(0, False), (2, False), (5, False), (5, True)]


def test_a_watch_follows_a_restart(planned: OpenedRun, small_source: Path, tmp_path: Path) -> None:
    def restart() -> bool:
        options = LayoutOptions(episodes_per_batch=2)
        open_or_plan(
            small_source,
            tmp_path / "out",
            planned.work_dir.root,
            Conversion(layout=options, plan=PlanOptions(restart=True)),
        )
        return False

    def pause() -> bool:
        return next(pauses)()

    pauses: Iterator[Callable[[], bool]] = iter((restart, lambda: True))
    first, second = watch_run(planned.work_dir.root, pause)
    assert first.run_id != second.run_id
    assert (first.batches, second.batches) == (5, 3)


def test_a_work_dir_that_a_finished_conversion_removed_ends_the_watch_well(
    planned: OpenedRun,
) -> None:
    def pause() -> bool:
        run_worker(planned.work_dir.root)
        pack_run(planned)
        shutil.rmtree(planned.work_dir.root)
        return False

    first, last = watch_run(planned.work_dir.root, pause)
    assert (first.packed, last.packed) == (False, True)
    assert (last.done, last.done_bytes) == (5, last.total_bytes)


def test_a_work_dir_that_vanished_without_a_result_ends_the_watch_with_an_error(
    planned: OpenedRun,
) -> None:
    watch = watch_run(planned.work_dir.root, lambda: bool(shutil.rmtree(planned.work_dir.root)))
    next(watch)
    with pytest.raises(WorkDirError, match="is not the work dir of a run"):
        next(watch)


def test_a_worker_record_whose_handle_goes_stale_is_read_at_the_next_look(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    import errno

    store = worker_on("far")
    WorkerReporter(planned.paths, store.worker, clock=clock).wait()
    fs = FaultyFileSystem()
    fs.fail("read_bytes", errno.ESTALE, match="far-7")
    observer = observe(replace(planned, paths=planned.paths.using(fs)), clock)
    assert observer.look().workers == []
    assert len(observer.look().workers) == 1


def test_a_folder_that_cannot_be_listed_is_a_sentence(planned: OpenedRun, clock: Any) -> None:
    import errno

    fs = FaultyFileSystem()
    fs.fail("list_names", errno.EIO, match="leases")
    with pytest.raises(StorageError, match="input/output error"):
        observe(replace(planned, paths=planned.paths.using(fs)), clock).look()


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


@pytest.mark.parametrize("shards", [[1], 7, {"a": 1}, [{"cloned_bytes": "x"}]])
def test_a_done_record_that_was_edited_counts_no_bytes(planned: OpenedRun, shards: object) -> None:
    run_worker(planned.work_dir.root)
    whole = planned.paths.done(2).read_bytes()
    edit(planned.paths.done(2), shards=shards)
    observer = RunObserver(planned)
    status = observer.look()
    assert (status.done, status.video.batches_read) == (5, 4)
    planned.paths.done(2).write_bytes(whole)
    assert observer.look().video.batches_read == 5, "it is asked for again"


@pytest.mark.parametrize("changes", [{"error": 7}, {"losses": "many"}, {"errors": None}])
def test_a_failure_that_cannot_be_read_is_one_without_a_message(
    planned: OpenedRun, worker_on: WorkerOn, changes: dict[str, object]
) -> None:
    lease = worker_on("far", max_attempts=1).claim(1)
    lease.fail(UnreadableSourceError("clip 7 is torn."))
    edit(planned.paths.failed(1), **changes)
    (failure,) = run_status(planned.work_dir.root).failures
    assert (failure.batch_id, failure.message) == (1, "no message")


@pytest.mark.parametrize(
    "changes",
    [{"token": "another"}, {"token": {}}, {"frames": "x"}, {"seconds": None}, {"host": 1}],
)
def test_a_worker_record_that_was_edited_is_passed_over(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any, changes: dict[str, object]
) -> None:
    store = worker_on("far")
    WorkerReporter(planned.paths, store.worker, clock=clock).wait()
    path = planned.paths.worker(store.worker.token)
    assert len(run_status(planned.work_dir.root).workers) == 1
    edit(path, **changes)
    assert run_status(planned.work_dir.root).workers == []


@pytest.mark.parametrize(
    "changes",
    [{"fps": None}, {"fps": [1, 0]}, {"streams": [1]}, {"num_batches": "x"}, {"sources": [1]},
     {"data_schema": 7}, {"findings": [{}]},
     {"num_batches": 10**15}, {"num_batches": 4}, {"num_batches": -1}],
)  # fmt: skip
def test_a_manifest_that_was_edited_is_a_sentence(
    planned: OpenedRun, changes: dict[str, object]
) -> None:
    edit(planned.paths.manifest, **changes)
    with pytest.raises(WorkDirError, match=r"manifest\.json cannot be used") as caught:
        run_status(planned.work_dir.root)
    assert caught.value.next_step == ("Begin a new run with --restart.")


@pytest.mark.parametrize("change", [{"shards": 7}, {"shards": [[9, 0, 0, 1, 1]]}])
def test_a_batch_that_was_edited_is_a_sentence(
    planned: OpenedRun, change: dict[str, object]
) -> None:
    path = planned.paths.root / "batches.jsonl"
    first, rest = path.read_text().split("\n", 1)
    edited = json.dumps({**json.loads(first), **change}, separators=(",", ":"))
    path.write_text(edited.ljust(len(first)) + "\n" + rest)
    with pytest.raises(WorkDirError, match=r"batches\.jsonl is damaged"):
        run_status(planned.work_dir.root)


def test_a_record_that_is_nested_without_end_is_a_sentence(planned: OpenedRun) -> None:
    planned.work_dir.current.write_text("[" * 100_000)
    with pytest.raises(WorkDirError, match="it is empty"):
        run_status(planned.work_dir.root)


def test_a_worker_of_this_host_that_died_without_a_word_is_counted(
    planned: OpenedRun, worker_on: WorkerOn, holder_here: subprocess.Popen[str], clock: Any
) -> None:
    holder = worker_on("far").log.holder(0, 1)
    facts = {name: holder[name] for name in ("host", "pid", "lock")}
    identity = WorkerIdentity("beside-it", **facts)
    WorkerReporter(planned.paths, identity, clock=clock).wait()
    observer = observe(planned, clock)
    assert len(observer.look().workers) == 2  # it, and the one that holds a batch
    holder_here.kill()
    holder_here.wait()
    status = observer.look()
    assert [worker.token for worker in status.workers if worker.token == identity.token] == []
    assert status.ended_workers == 1
