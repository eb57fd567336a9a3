"""The races that docstrings name, each made to happen with whole runs; none is left to chance.

Claims, publishes and renames have theirs in ``tests/unit/run/leasing`` and ``tests/unit/workdir``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faulty_files import CrashError
from tests.plans import open_or_plan
from tests.trees import digest_of, snapshot

import leconvert
from leconvert import api, fleet
from leconvert.api import run_worker
from leconvert.fleet import work as fleet_work
from leconvert.fleet.lists import FleetDataset
from leconvert.fleet.work import open_fleet
from leconvert.model.values import LayoutOptions
from leconvert.run import planner, worker_pool
from leconvert.run.conversion import Conversion, PlanOptions, ProofOptions
from leconvert.run.leasing import Board, LeaseStore, WorkerIdentity, list_batches, read_done
from leconvert.run.packer import WorkerMonitor, pack_run
from leconvert.run.packer import run as packing
from leconvert.run.upkeep import clean_work_dir
from leconvert.run.worker import ShardWriter, Worker
from leconvert.support.errors import (
    BusyError,
    LeconvertError,
    PlanMismatchError,
    SourceChangedError,
    TargetError,
    WorkDirError,
)
from leconvert.workdir import locks
from leconvert.workdir.records import Journal, WorkDir, default_work_dir
from leconvert.workdir.run import OpenedRun, open_run
from leconvert.workdir.swap import TREE_RECORD

PATIENCE_SECONDS = 60


def plan(source: Path, target: Path, work_dir: Path, *, restart: bool = False) -> OpenedRun:
    layout, options = LayoutOptions(episodes_per_batch=1), PlanOptions(restart=restart)
    return open_or_plan(source, target, work_dir, Conversion(layout=layout, plan=options))


class Frozen:
    """A call in a thread of its own that stops in the middle until it is let go on."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.reached = threading.Event()
        self.goes_on = threading.Event()
        self.outcome: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Frozen:
        self._thread.start()
        assert self.reached.wait(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()

    def freeze_here(self) -> None:
        """Stop the first time that this thread comes by."""
        if threading.current_thread() is self._thread and not self.reached.is_set():
            self.reached.set()
            assert self.goes_on.wait(PATIENCE_SECONDS)

    def thaw(self) -> object:
        """Let it go on to its end, and return what it returned or raised."""
        self.goes_on.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as error:  # noqa: BLE001 - it is what the test asks for
            self.outcome = error


ALL_SHARDS = (Worker, "_write_shards")
EACH_SHARD = (ShardWriter, "write")


@pytest.fixture
def frozen_before(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Frozen]:
    """Let a call freeze right before a step: ``frozen_before(call, owner, "step")``."""

    def freeze(
        call: Callable[[], object],
        owner: object,
        name: str,
        when: Callable[..., bool] = lambda *_, **__: True,
    ) -> Frozen:
        frozen, step = Frozen(call), getattr(owner, name)

        def freezing(*arguments: Any, **options: Any) -> Any:
            if when(*arguments, **options):
                frozen.freeze_here()
            return step(*arguments, **options)

        monkeypatch.setattr(owner, name, freezing)
        return frozen

    return freeze


@pytest.mark.parametrize("looks", [True, False], ids=["that looks", "that does not look"])
def test_a_worker_of_a_run_that_was_given_up_cannot_touch_the_new_one(
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    looks: bool,
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    monkeypatch.setattr("leconvert.run.worker._SECONDS_BETWEEN_CHECKS", 0.0 if looks else 1e9)
    old = plan(small_source, out, work)
    with frozen_before(lambda: run_worker(work), *EACH_SHARD) as worker:
        new = plan(small_source, out, work, restart=True)
        assert new.paths.run_id != old.paths.run_id
        run_worker(work)
        packed = {batch: read_done(new.paths, batch) for batch in range(5)}
        pack_run(new)
        assert digest_of(out) == quiet_digest
        ended = worker.thaw()
    if looks:
        assert isinstance(ended, PlanMismatchError), ended
        assert new.paths.run_id in str(ended)
    else:  # it does its own run's batches, for nobody
        assert getattr(ended, "batches_done", None) == 5, ended
    assert len(list_batches(old.paths.done_dir)) == (1 if looks else 5)
    assert {b: read_done(new.paths, b) for b in packed} == packed
    assert digest_of(out) == quiet_digest
    assert WorkDir(work).current_run_id() == new.paths.run_id


@pytest.mark.parametrize("before", [ALL_SHARDS, EACH_SHARD], ids=["all shards", "each shard"])
def test_a_worker_whose_run_was_removed_ends_quietly_and_makes_nothing(
    small_source: Path,
    tmp_path: Path,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    before: tuple[type, str],
) -> None:
    out = tmp_path / "out"
    work = default_work_dir(out)
    plan(small_source, out, work)
    with frozen_before(lambda: run_worker(work), *before) as worker:
        leconvert.convert(small_source, output=out, plan=PlanOptions(restart=True))
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        ended = worker.thaw()
    assert getattr(ended, "batches_done", None) == 0, ended
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert digest_of(out) == quiet_digest


def test_a_worker_that_stood_still_while_others_replaced_the_source_ends_quietly(
    source_copy: Path, tmp_path: Path, frozen_before: Callable[..., Frozen], quiet_digest: str
) -> None:
    work = tmp_path / "work"
    run = plan(source_copy, source_copy, work)
    with frozen_before(lambda: run_worker(work), *EACH_SHARD) as worker:
        identity = WorkerIdentity.of_this_process()
        leases = LeaseStore(run.paths, identity, process_gone=lambda _: True)
        board = Board(leases, run.manifest.num_batches)
        assert Worker(run, board, stop=threading.Event()).run().batches_done == 5
        pack_run(open_run(work))
        ended = worker.thaw()
    assert (ended.batches_done, ended.batches_lost) == (0, 1), ended
    assert digest_of(source_copy) == quiet_digest


@pytest.mark.parametrize("before", ["is_finished", "run_conversion"])
def test_a_fleets_worker_that_stood_still_until_the_fleet_had_ended_sets_nothing_aside(
    source_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    before: str,
) -> None:
    """Whoever sees that the fleet has ended may move its sources away."""
    work = tmp_path / "fleet"
    fleet.plan_fleet([FleetDataset("small", source_copy, tmp_path / "out")], work)
    with frozen_before(lambda: fleet.work_on_fleet(work), fleet_work, before) as worker:
        is_gone = partial(LeaseStore, process_gone=lambda _: True)
        monkeypatch.setattr(fleet_work, "LeaseStore", is_gone)
        assert fleet.work_on_fleet(work).converted == 1
        shutil.rmtree(source_copy)
        ended = worker.thaw()
    assert (ended.converted, ended.set_aside) == (0, 0), ended
    assert list_batches(open_fleet(work).paths.failed_dir) == set()


@pytest.mark.parametrize("in_place", [False, True], ids=["output", "in-place"])
@pytest.mark.parametrize("before", ["_pack", "check_tables_unchanged", "target_lock"])
def test_a_packer_that_lost_its_lock_at_any_step_says_that_another_took_over(
    source_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    before: str,
    in_place: bool,
) -> None:
    target = source_copy if in_place else tmp_path / "out"
    run = plan(source_copy, target, tmp_path / "work")
    run_worker(run.work_dir.root)
    for lock in ("packer_lock", "target_lock"):
        monkeypatch.setattr(packing, lock, lambda *_, **__: contextlib.nullcontext())
    with frozen_before(lambda: pack_run(run), packing, before) as zombie:
        pack_run(open_run(run.work_dir.root))
        ended = zombie.thaw()
    assert isinstance(ended, BusyError), ended
    assert "took over" in ended.message
    assert digest_of(target) == quiet_digest
    assert list(tmp_path.glob(".*.leconvert-*")) == []


@pytest.mark.parametrize("in_place", [False, True], ids=["output", "in-place"])
def test_a_packer_that_lost_its_lock_before_the_swap_fails_and_moves_nothing(
    source_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    in_place: bool,
) -> None:
    """Over NFS a frozen host's lock is given away; then two packers are at work."""
    target = source_copy if in_place else tmp_path / "out"
    before = snapshot(source_copy)
    run = plan(source_copy, target, tmp_path / "work")
    run_worker(run.work_dir.root)
    for lock in ("packer_lock", "target_lock"):
        monkeypatch.setattr(packing, lock, lambda *_, **__: contextlib.nullcontext())
    with frozen_before(lambda: pack_run(run), packing, "swap_into_place") as zombie:
        pack_run(open_run(run.work_dir.root))
        assert digest_of(target) == quiet_digest
        ended = zombie.thaw()
    assert isinstance(ended, BusyError | TargetError), ended
    assert digest_of(target) == quiet_digest
    assert snapshot(tmp_path / ("small_old" if in_place else "small")) == before
    assert list(tmp_path.glob(".*.leconvert-*")) == []


@pytest.mark.parametrize("before", ["_assemble", "prove_tree"])
def test_a_packer_that_lost_its_lock_and_whose_run_was_removed_says_so(
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    before: str,
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    run = plan(small_source, out, work)
    run_worker(work)
    for lock in ("packer_lock", "target_lock"):
        monkeypatch.setattr(packing, lock, lambda *_, **__: contextlib.nullcontext())
    with frozen_before(lambda: pack_run(run), packing, before) as zombie:
        pack_run(open_run(work))
        clean_work_dir(work)
        ended = zombie.thaw()
    assert isinstance(ended, WorkDirError), ended
    assert "was removed during the work on it" in ended.message
    assert {path.name for path in tmp_path.iterdir()} == {"out", "work"}
    assert list(work.iterdir()) == []
    assert digest_of(out) == quiet_digest


def test_a_packer_frozen_while_it_removes_its_tree_takes_nothing_from_its_successor(
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
) -> None:
    """A removal goes on by the handles of folders, wherever they were renamed to."""
    out = tmp_path / "out"
    run = plan(small_source, out, tmp_path / "work")
    run_worker(run.work_dir.root, max_batches=4)

    class NobodyWorks(WorkerMonitor):
        pause_seconds = 0.0

        def working(self) -> bool:
            return False

    monkeypatch.setattr(packing, "packer_lock", lambda *_, **__: contextlib.nullcontext())
    removes = lambda: pack_run(run, watcher=NobodyWorks())  # noqa: E731
    below = lambda *_, dir_fd=None: dir_fd is not None  # noqa: E731
    with frozen_before(removes, os, "unlink", below) as zombie:
        run_worker(run.work_dir.root)
        pack_run(open_run(run.work_dir.root))
        assert digest_of(out) == quiet_digest
        assert isinstance(zombie.thaw(), BusyError), zombie.outcome
    assert digest_of(out) == quiet_digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "work"]


@pytest.mark.parametrize(
    ("module", "step"),
    [
        ("leconvert.run.packer.assembly", "write_meta"),
        ("leconvert.dataset.formats.v3", "write_tasks"),
        ("leconvert.media", "join_clips"),
        ("leconvert.run.packer.run", "prove_tree"),
    ],
)
def test_a_thawed_packer_makes_its_tree_no_second_time(
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    module: str,
    step: str,
) -> None:
    """It froze with its tree in hand; its successor took the tree, and swapped it in."""
    out, work = tmp_path / "out", tmp_path / "work"
    run = plan(small_source, out, work)
    run_worker(work)
    monkeypatch.setattr(packing, "packer_lock", lambda *_, **__: contextlib.nullcontext())
    with frozen_before(lambda: pack_run(run), importlib.import_module(module), step) as zombie:
        pack_run(open_run(run.work_dir.root))
        assert isinstance(zombie.thaw(), BusyError), zombie.outcome
    assert digest_of(out) == quiet_digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "work"]


def test_a_conversion_that_ends_late_leaves_the_work_dir_to_the_next_one(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_digest: str
) -> None:
    out = tmp_path / "out"
    report = api._report

    def planned_meanwhile(*arguments: Any) -> Any:
        out.rename(tmp_path / "first")
        plan(small_source, out, default_work_dir(out), restart=True)
        return report(*arguments)

    monkeypatch.setattr(api, "_report", planned_meanwhile)
    leconvert.convert(small_source, output=out)
    run_worker(default_work_dir(out))
    pack_run(open_run(default_work_dir(out)))
    assert digest_of(out) == digest_of(tmp_path / "first") == quiet_digest


def test_a_packer_whose_run_was_given_up_while_it_waited_leaves_the_place_to_the_new_one(
    small_source: Path, tmp_path: Path, quiet_digest: str
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    old = plan(small_source, out, work)

    class Waiting(WorkerMonitor):
        pause_seconds = 0.0

        def working(self) -> bool:
            assert list(tmp_path.glob(".out.leconvert-*")), "its tables are in a tree already"
            plan(small_source, out, work, restart=True)
            return True

    with pytest.raises(PlanMismatchError):
        pack_run(old, watcher=Waiting())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]
    run_worker(work)
    pack_run(open_run(work))
    assert digest_of(out) == quiet_digest


def test_a_packer_whose_run_is_given_up_before_its_swap_moves_nothing(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    old = plan(small_source, out, work)
    run_worker(work)
    check = packing.check_source_unchanged

    def restart_and_check(run: OpenedRun) -> None:
        plan(small_source, out, work, restart=True)
        check(run)

    monkeypatch.setattr(packing, "check_source_unchanged", restart_and_check)
    with pytest.raises(PlanMismatchError, match="discarded"):
        pack_run(old)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize("before", ["packer_lock", "adopt_staging", "_assemble", "target_lock"])
def test_a_packer_that_stood_still_while_a_new_run_was_packed_says_so_and_leaves_nothing(
    small_source: Path,
    tmp_path: Path,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
    before: str,
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    old = plan(small_source, out, work)
    run_worker(work)
    with frozen_before(lambda: pack_run(old), packing, before) as packer:
        new = plan(small_source, out, work, restart=True)
        run_worker(work)
        pack_run(new)
        ended = packer.thaw()
    assert isinstance(ended, PlanMismatchError), ended
    assert {path.name for path in tmp_path.iterdir()} == {"out", "work"}
    assert digest_of(out) == quiet_digest


def test_the_packer_collects_while_workers_work(
    small_source: Path, tmp_path: Path, quiet_digest: str
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    run = open_or_plan(small_source, out, work)
    seen: list[list[str]] = []

    class OneBatchAtATime(WorkerMonitor):
        pause_seconds = 0.0

        def working(self) -> bool:
            [tree] = tmp_path.glob(".out.leconvert-*")
            seen.append(sorted(p.name for p in tree.rglob("file-000.*")))
            return run_worker(work, max_batches=1).batches_done == 1

    pack_run(run, watcher=OneBatchAtATime())
    files = [len(names) for names in seen]
    assert files[0] == 1, "meta/episodes is there before anything else"
    assert files == sorted(files)
    assert files[1] > files[0], "a finished batch is linked while others are not done"
    assert digest_of(out) == quiet_digest


def test_a_second_packer_is_refused_while_the_first_is_in_its_swap(
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: Callable[..., Frozen],
    quiet_digest: str,
) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)  # by which the first is known to live
    run = plan(small_source, tmp_path / "out", tmp_path / "work")
    run_worker(run.work_dir.root)
    with frozen_before(lambda: pack_run(run), packing, "swap_into_place") as first:
        with pytest.raises(BusyError, match=f"process {os.getpid()}"):
            pack_run(open_run(run.work_dir.root))
        assert not isinstance(first.thaw(), BaseException), first.outcome
    assert digest_of(tmp_path / "out") == quiet_digest


def test_a_crash_between_promoting_the_last_file_and_the_journal_is_gone_on_from(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_digest: str
) -> None:
    run = plan(small_source, tmp_path / "out", tmp_path / "work")
    run_worker(run.work_dir.root)

    def die(*_: object, **__: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", die)
        with pytest.raises(CrashError):
            pack_run(run)
    assert not (tmp_path / "out").exists()
    [tree] = tmp_path.glob(".out.leconvert-*")
    copy = Path(shutil.copytree(tree, tmp_path / "copy"))
    (copy / TREE_RECORD).unlink()
    assert digest_of(copy) == quiet_digest, "every file was promoted"
    assert Journal(run.paths).read().notes == {}
    pack_run(open_run(run.work_dir.root))
    assert digest_of(tmp_path / "out") == quiet_digest
    assert list(tmp_path.glob(".out.leconvert-*")) == []


@pytest.mark.parametrize("in_place", [False, True], ids=["output", "in-place"])
def test_a_source_file_replaced_right_before_the_exchange_stops_it(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    target = source_copy if in_place else tmp_path / "out"
    run = plan(source_copy, target, tmp_path / "work")
    run_worker(run.work_dir.root)
    clip = next(source_copy.rglob("episode_000002.mp4"))
    swap = packing.swap_into_place

    def replace_first(*arguments: Any, **options: Any) -> None:
        copy = clip.with_suffix(".new")
        copy.write_bytes(clip.read_bytes())
        os.utime(copy, ns=(clip.stat().st_atime_ns, clip.stat().st_mtime_ns))
        copy.replace(clip)  # size, times and bytes are the same; only the inode tells
        swap(*arguments, **options)

    monkeypatch.setattr(packing, "swap_into_place", replace_first)
    with pytest.raises(SourceChangedError, match="changed") as caught:
        pack_run(run)
    assert clip.name in caught.value.details[0]
    assert (target / "meta/episodes.jsonl").exists() == in_place
    assert not (tmp_path / "small_old").exists()


@pytest.mark.parametrize("file", ["data/chunk-000/episode_000001.parquet", "meta/info.json"])
def test_a_file_overwritten_on_another_host_stops_the_swap_though_its_attributes_are_remembered(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """An NFS client answers ``stat`` from memory for a while; opening a file asks the server."""
    changed = source_copy / file
    real, swap = os.stat, packing.swap_into_place
    remembered: dict[str, os.stat_result] = {}

    def stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{source_copy}/"):
            return remembered.setdefault(str(path), real(path, **options))
        return real(path, **options)

    def overwrite_first(*arguments: Any, **options: Any) -> None:
        changed.write_bytes(changed.read_bytes().replace(b"r", b"q"))
        swap(*arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(packing, "swap_into_place", overwrite_first)
    with pytest.raises(SourceChangedError, match="changed"):
        leconvert.convert(source_copy, proof=ProofOptions(delete_source=True))
    monkeypatch.undo()
    assert (source_copy / "meta/episodes.jsonl").exists()
    assert not (source_copy.parent / f"{source_copy.name}_old").exists()


def test_what_dead_and_losing_workers_wrote_is_gone_after_packing(
    small_source: Path, tmp_path: Path, quiet_digest: str
) -> None:
    run = plan(small_source, tmp_path / "out", tmp_path / "work")
    dead = LeaseStore(run.paths, WorkerIdentity("dead-1-0", "elsewhere", 1), lease_seconds=60)
    lease = dead.claim(0)
    assert lease is not None
    (lease.attempt_dir / "half").write_bytes(b"half a shard")
    lease.hand_back("as if it had expired")  # which keeps the folder of one who never came back
    lease.attempt_dir.mkdir()
    (lease.attempt_dir / "half").write_bytes(b"half a shard")
    run_worker(run.work_dir.root)
    assert (lease.attempt_dir / "half").exists(), "nobody else may remove it while it may live"
    pack_run(run)
    assert not run.paths.attempts_dir.exists()
    assert digest_of(tmp_path / "out") == quiet_digest
    with pytest.raises((LeconvertError, FileNotFoundError)):
        lease.publish_done({"shards": []})  # it comes back after all, and finds its folder gone
    assert digest_of(tmp_path / "out") == quiet_digest


@pytest.mark.parametrize("place", ["beside", "in place"])
def test_the_loser_that_planned_until_the_end_removes_the_work_dir(
    source_copy: Path,
    frozen_before: Callable[..., Frozen],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """It waits for the planner's lock, joins the run, and finds the result in place."""
    output = None if place == "in place" else source_copy.with_name("out")
    call = lambda: leconvert.convert(source_copy, output=output)  # noqa: E731
    with frozen_before(call, planner, "planner_lock") as loser:
        with monkeypatch.context() as patch:
            # The work dir is in use, so the winner leaves it.
            patch.setattr(api, "remove_work_dir", lambda *_: True)
            call()
        error = loser.thaw()
    if output is None:
        assert isinstance(error, BusyError), error
        assert "Another process finished this conversion during this command" in error.message
    wanted = {"small", "small_old"} if output is None else {"small", "out"}
    assert {path.name for path in source_copy.parent.iterdir()} == wanted


@pytest.mark.parametrize("place", ["beside", "in place"])
@pytest.mark.parametrize(
    "before",
    ["open_or_plan", "_write", "record_invocation", "work_and_pack", "pack_run", "packer_lock",
     "acquire_lock"],
)  # fmt: skip
def test_the_loser_of_two_conversions_says_that_all_is_done_and_leaves_nothing(
    source_copy: Path, frozen_before: Callable[..., Frozen], before: str, place: str
) -> None:
    """The same command twice; one freezes before a step while the other does everything."""
    output = None if place == "in place" else source_copy.with_name("out")
    call = lambda: leconvert.convert(source_copy, output=output)  # noqa: E731
    modules = {
        "open_or_plan": api, "_write": planner, "record_invocation": api,
        "work_and_pack": api, "pack_run": worker_pool, "packer_lock": packing,
        "acquire_lock": locks,
    }  # fmt: skip

    def packs(*arguments: Any, **_: Any) -> bool:
        return before != "acquire_lock" or arguments[0].name == "packer.lock"

    with frozen_before(call, modules[before], before, packs) as loser:
        if before == "_write":  # it holds the planner's lock
            with pytest.raises(BusyError, match="planner"):
                call()
            assert not isinstance(loser.thaw(), BaseException)
            return
        call()
        error = loser.thaw()
    assert isinstance(error, BusyError), error
    assert error.exit_code == 12
    assert "Another process finished this conversion during this command" in error.message
    assert str(output or source_copy) in error.message
    wanted = {"small", "small_old"} if output is None else {"small", "out"}
    assert {path.name for path in source_copy.parent.iterdir()} == wanted


@pytest.mark.parametrize(
    "before",
    ["open_or_plan", "check_target", "record_invocation", "work_and_pack", "pack_run",
     "packer_lock"],
)  # fmt: skip
def test_the_loser_of_two_trims_in_place_says_that_the_dataset_was_replaced_and_leaves_nothing(
    small_source: Path, tmp_path: Path, frozen_before: Callable[..., Frozen], before: str
) -> None:
    """Before and after, a v3.0 dataset is there, so its version does not tell them apart."""
    root = tmp_path / "v30"
    leconvert.convert(small_source, output=root)
    call = lambda: leconvert.trim(root, frames={0: (1, None)})  # noqa: E731
    owners = {
        "open_or_plan": api, "check_target": Conversion, "record_invocation": api,
        "work_and_pack": api, "pack_run": worker_pool, "packer_lock": packing,
    }  # fmt: skip
    with frozen_before(call, owners[before], before) as loser:
        call()
        trimmed = digest_of(root)
        error = loser.thaw()
    assert isinstance(error, BusyError), error
    assert error.message == f"Another process replaced {root} during this command."
    assert {path.name for path in tmp_path.iterdir()} == {"v30", "v30_old"}
    assert digest_of(root) == trimmed
