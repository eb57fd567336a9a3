"""What one look, and many, show of a run."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
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
from leconvert.report.status import (
    Liveness,
    Progressed,
    RateWindow,
    RunObserver,
    run_status,
    seconds_left,
    watch_run,
)
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.leasing import LeaseStore, WorkerIdentity, release_failed, void_done
from leconvert.run.packer import pack_run
from leconvert.run.worker_pool import batch_costs
from leconvert.support.errors import StorageError, UnreadableSourceError, WorkDirError
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.run import OpenedRun, open_run

WorkerOn = Callable[..., LeaseStore]


def observe(run: OpenedRun, clock: Any, **options: Any) -> RunObserver:
    return RunObserver(run, clock=clock, **options)


def test_a_run_is_shown_when_nobody_works_on_it_and_when_it_is_finished(
    planned: OpenedRun,
) -> None:
    status = run_status(planned.work_dir.root)
    assert (status.batches, status.pending, status.leased, status.done) == (5, 5, 0, 0)
    assert status.total_bytes > 0
    assert status.total_frames == 3 * 44
    assert (status.workers, status.ended_workers, status.failures) == ([], 0, [])
    assert (status.bytes_per_second, status.seconds_left) == (0.0, None)
    assert status.packer.step == "none"
    assert json.loads(json.dumps(status.as_record()))["packed"] is False
    run_worker(planned.work_dir.root)
    status = run_status(planned.work_dir.root)
    assert (status.done, status.done_bytes) == (5, status.total_bytes)
    assert (status.ended_workers, status.workers) == (1, [])
    assert status.video.batches_read == 5
    assert status.video.copied + status.video.cloned > 0
    assert (status.seconds_left, status.packed) == (0.0, False)
    packed = pack_run(planned)
    status = run_status(planned.work_dir.root)
    assert (status.packed, status.packer.step) == (True, "finished")
    assert status.packer.liveness is Liveness.RUNNING, "the packer was this very process"
    assert (status.video.cloned, status.video.copied) == (packed.cloned_bytes, packed.copied_bytes)


def test_a_holder_elsewhere_is_unknown_until_it_beats_and_silent_once_it_stops(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    lease = worker_on("far").claim(3)
    lease.heartbeat()
    observer = observe(planned, clock)
    for later, beats, liveness, silent in (
        (0, False, Liveness.UNKNOWN, 0.0),
        (20, False, Liveness.UNKNOWN, 20.0),
        (5, True, Liveness.RUNNING, 0.0),
        (50, False, Liveness.SILENT, 50.0),
    ):
        if beats:
            lease.heartbeat()
        clock.seconds += later
        status = observer.look()
        [worker] = status.workers
        assert (worker.host, worker.pid, worker.batch_id) == ("far", 7, 3)
        assert (worker.liveness, worker.silent_seconds) == (liveness, silent)
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


def test_batches_that_killed_workers_say_so(
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


@pytest.mark.parametrize("decodes", [False, True])
def test_rates_are_what_the_observer_saw_and_time_left_counts_what_is_decoded_as_convert_does(
    small_source: Path, tmp_path: Path, clock: Any, decodes: bool
) -> None:
    conversion = Conversion(repairs=RepairOptions(recompute_stats=decodes))
    run = open_or_plan(small_source, tmp_path / "out", tmp_path / "work", conversion)
    costs, sizes = batch_costs(run), [batch.source_bytes for batch in run.batches]
    assert (sum(costs) > 2 * sum(sizes)) == decodes
    identity = WorkerIdentity("far-1-00000001", "far", 1)
    assert LeaseStore(run.paths, identity, clock=clock).claim(0) is not None
    reporter = WorkerReporter(run.paths, identity, clock=clock)
    reporter.update(batch_id=0)
    observer = observe(run, clock)
    observer.look()
    clock.seconds += 4
    reporter.advance(400)
    status = observer.look()
    assert (status.bytes_per_second, status.observed_seconds) == (100.0, 4.0)
    assert status.seconds_left == pytest.approx(sum(costs) / (100 * costs[0] / sizes[0]))
    assert decodes or status.seconds_left == pytest.approx(status.total_bytes / 100)
    clock.seconds += 50
    status = observer.look()
    assert status.workers[0].liveness is Liveness.SILENT
    assert (status.bytes_per_second, status.seconds_left) == (0.0, None)


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


def test_a_watch_follows_a_restart_and_ends_when_the_result_is_in_place(
    planned: OpenedRun, small_source: Path, tmp_path: Path
) -> None:
    root = planned.work_dir.root
    anew = Conversion(layout=LayoutOptions(episodes_per_batch=2), plan=PlanOptions(restart=True))
    steps: Iterator[Callable[[], object]] = iter(
        (
            lambda: open_or_plan(small_source, tmp_path / "out", root, anew),
            lambda: run_worker(root, max_batches=2),
            lambda: run_worker(root),
            lambda: pack_run(open_run(root)),
        )
    )
    first, *seen = watch_run(root, lambda: next(steps)() is None)
    assert (first.batches, [status.batches for status in seen]) == (5, [3] * 4)
    assert first.run_id not in {status.run_id for status in seen}
    states = [(status.done, status.packed) for status in seen]
    assert states == [(0, False), (2, False), (3, False), (3, True)]


def test_a_work_dir_that_vanishes_ends_the_watch_well_only_where_its_result_is_there(
    planned: OpenedRun, tmp_path: Path
) -> None:
    root, aside = planned.work_dir.root, tmp_path / "aside"

    def finish() -> bool:
        run_worker(root)
        pack_run(planned)
        return bool(shutil.rmtree(root))

    vanished = watch_run(root, lambda: bool(root.rename(aside)) and False)
    next(vanished)
    with pytest.raises(WorkDirError, match="is not the work dir of a run"):
        next(vanished)
    aside.rename(root)
    first, last = watch_run(root, finish)
    assert (first.packed, last.packed) == (False, True)
    assert (last.done, last.done_bytes) == (5, last.total_bytes)


def test_a_worker_record_whose_handle_goes_stale_is_read_at_the_next_look_and_a_disk_is_named(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    store = worker_on("far")
    WorkerReporter(planned.paths, store.worker, clock=clock).wait()
    fs = FaultyFileSystem()
    fs.fail("read_bytes", errno.ESTALE, match="far-7")
    observer = observe(replace(planned, paths=planned.paths.using(fs)), clock)
    assert observer.look().workers == []
    assert len(observer.look().workers) == 1
    fs.fail("list_names", errno.EIO, match="leases")
    with pytest.raises(StorageError, match="input/output error"):
        observer.look()


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def test_a_done_record_that_was_edited_counts_no_bytes(planned: OpenedRun) -> None:
    run_worker(planned.work_dir.root)
    whole = planned.paths.done(2).read_bytes()
    shards: tuple[object, ...] = ([1], 7, {"a": 1}, [{"cloned_bytes": "x"}])
    for each in shards:
        edit(planned.paths.done(2), shards=each)
        observer = RunObserver(planned)
        status = observer.look()
        assert (status.done, status.video.batches_read) == (5, 4)
        planned.paths.done(2).write_bytes(whole)
        assert observer.look().video.batches_read == 5, "it is asked for again"


def test_an_unreadable_failure_has_no_message(planned: OpenedRun, worker_on: WorkerOn) -> None:
    lease = worker_on("far", max_attempts=1).claim(1)
    lease.fail(UnreadableSourceError("clip 7 is torn."))
    whole = planned.paths.failed(1).read_bytes()
    for changes in ({"error": 7}, {"losses": "many"}, {"errors": None}):
        planned.paths.failed(1).write_bytes(whole)
        edit(planned.paths.failed(1), **changes)
        (failure,) = run_status(planned.work_dir.root).failures
        assert (failure.batch_id, failure.message) == (1, "no message"), changes


def test_a_worker_record_that_was_edited_is_passed_over(
    planned: OpenedRun, worker_on: WorkerOn, clock: Any
) -> None:
    store = worker_on("far")
    WorkerReporter(planned.paths, store.worker, clock=clock).wait()
    path = planned.paths.worker(store.worker.token)
    whole = path.read_bytes()
    other: tuple[dict[str, object], ...] = (
        *({"token": "another"}, {"token": {}}, {"frames": "x"}, {"seconds": None}, {"host": 1}),
    )
    for changes in other:
        path.write_bytes(whole)
        assert len(run_status(planned.work_dir.root).workers) == 1
        edit(path, **changes)
        assert run_status(planned.work_dir.root).workers == [], changes


@pytest.mark.parametrize(
    "changes",
    [{"fps": None}, {"fps": [1, 0]}, {"streams": [1]}, {"num_batches": "x"}, {"sources": [1]},
     {"data_schema": 7}, {"findings": [{}]},
     {"num_batches": 10**15}, {"num_batches": 4}, {"num_batches": -1}],
)  # fmt: skip
def test_an_edited_manifest_is_a_sentence(planned: OpenedRun, changes: dict[str, object]) -> None:
    edit(planned.paths.manifest, **changes)
    with pytest.raises(WorkDirError, match=r"manifest\.json cannot be used") as caught:
        run_status(planned.work_dir.root)
    assert caught.value.next_step == ("Begin a new run with --restart.")


def test_an_edited_batch_and_a_record_nested_without_end_are_a_sentence(planned: OpenedRun) -> None:
    path = planned.paths.root / "batches.jsonl"
    first, rest = path.read_text().split("\n", 1)
    changes: tuple[dict[str, object], ...] = ({"shards": 7}, {"shards": [[9, 0, 0, 1, 1]]})
    for change in changes:
        edited = json.dumps({**json.loads(first), **change}, separators=(",", ":"))
        path.write_text(edited.ljust(len(first)) + "\n" + rest)
        with pytest.raises(WorkDirError, match=r"batches\.jsonl is damaged"):
            run_status(planned.work_dir.root)
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


Looks = list[tuple[float, dict[str, tuple[int, float, int, float]]]]
STOPPED: Looks = [(1000.0 + n, {"a": (7000, 7000.0, 70, 10.0)}) for n in range(0, 130, 10)]
LONG_AGO: Looks = [
    (float(n), {"a": (1000 * min(n, 100), 0.0, 0, float(n))}) for n in range(0, 200, 10)
]
JOINED: Looks = [
    (0.0, {"a": (0, 0.0, 0, 1.0)}),
    (10.0, {"a": (0, 0.0, 0, 11.0), "b": (100, 0.0, 0, 0.5)}),
]


@pytest.mark.parametrize(
    ("looks", "token", "rates"),
    [
        pytest.param([(1000.0, {"a": (500, 5000.0, 50, 10.0)})], "a", (50, 500, 5), id="own mean"),
        pytest.param([(1000.0, {"a": (500, 5000.0, 50, 10.0)})], "b", (0, 0, 0), id="nobody"),
        pytest.param(
            [(1000.0, {"a": (500, 500.0, 50, 10.0)}), (1002.0, {"a": (900, 700.0, 50, 12.0)})],
            *("a", (200, 100, 0)),
            id="what moved meanwhile",
        ),
        pytest.param(STOPPED, "a", (0, 0, 0), id="a worker that stopped moving"),
        pytest.param(LONG_AGO, "a", (0, 0, 0), id="moved before the last minute"),
        pytest.param(JOINED, "b", (200, 0, 0), id="joined just now"),
        pytest.param(
            [*JOINED, (14.0, {"b": (500, 0.0, 0, 4.5)})], "b", (100, 0, 0), id="joined late"
        ),
    ],
)
def test_rates_are_of_the_last_minute(looks: Looks, token: str, rates: tuple[float, ...]) -> None:
    window = RateWindow()
    for now, seen in looks:
        window.add(now, {worker: Progressed(*did) for worker, did in seen.items()})
    assert window.rates(token) == rates


@pytest.mark.parametrize(
    ("left", "rate", "expected"), [(0, 0.0, 0.0), (10, 0.0, None), (10, 4, 2.5)]
)
def test_no_time_left_where_nothing_moves(left: int, rate: float, expected: float | None) -> None:
    assert seconds_left(left, rate) == expected


def test_a_status_needs_neither_datasets_nor_pages() -> None:
    code = "import sys, leconvert.report.status; print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "leconvert.report.status" in loaded
    assert not loaded & {"leconvert.report.values", "leconvert.dataset.formats", "markupsafe"}
