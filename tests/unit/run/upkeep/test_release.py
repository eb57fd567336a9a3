"""Giving batches back: what is done, what is refused, and that nothing is ever lost by it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.faults.faulty_files import FaultyFileSystem
from tests.trees import snapshot

from leconvert.api import run_worker
from leconvert.run.leasing import BatchState, LeaseStore, list_batches, read_done
from leconvert.run.leasing.state import Outcome
from leconvert.run.upkeep import Holder, ReleaseReport, Verdict, judge, release_batches
from leconvert.support.errors import UnreadableSourceError, UsageError
from leconvert.workdir.fs import LOCAL, FileSystem
from leconvert.workdir.run import OpenedRun

WorkerOn = Callable[..., LeaseStore]


@pytest.fixture
def release(planned: OpenedRun, clock: Any) -> Callable[..., ReleaseReport]:
    """Release with a clock that only the pauses move; ``during`` happens in each pause."""

    def call(
        *batches: int,
        during: Callable[[], object] = lambda: None,
        fs: FileSystem = LOCAL,
        **options: Any,
    ) -> Any:
        def pause(seconds: float) -> None:
            during()
            clock.seconds += seconds

        run = replace(planned, paths=planned.paths.using(fs))
        return release_batches(run, batches, clock=clock, pause=pause, **options)

    return call


def fail_batch(store: LeaseStore, batch_id: int) -> None:
    while (lease := store.claim(batch_id)) is not None:
        lease.fail(UnreadableSourceError("a clip is torn."))


def verdicts(report: ReleaseReport) -> dict[int, str]:
    return {row.batch_id: str(row.verdict) for row in report.batches}


def test_a_holder_on_this_host_is_refused_whatever_is_asked_and_one_that_is_gone_never() -> None:
    for force in (False, True):
        assert judge(BatchState.LEASED, Holder.HERE, force=force)[0] is Verdict.REFUSED
        assert judge(BatchState.LEASED, Holder.GONE, force=force)[0] is Verdict.RELEASED
        assert judge(BatchState.FAILED, None, force=force)[0] is Verdict.RELEASED


def test_only_force_overrules_a_holder_elsewhere_and_without_it_one_is_watched() -> None:
    table = {
        (holder, force): judge(BatchState.LEASED, holder, force=force)[0]
        for holder, force in product((Holder.BEATS, Holder.UNWATCHED), (False, True))
    }
    assert table == {
        (Holder.BEATS, False): Verdict.REFUSED,
        (Holder.BEATS, True): Verdict.RELEASED,
        (Holder.UNWATCHED, False): Verdict.WATCH,
        (Holder.UNWATCHED, True): Verdict.RELEASED,
    }


def test_failed_batches_get_their_attempts_anew(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport]
) -> None:
    for batch_id in (1, 3):
        fail_batch(worker_on("far"), batch_id)
    report = release(failed=True)
    assert verdicts(report) == {1: "released", 3: "released"}
    assert list_batches(planned.paths.failed_dir) == set()
    log = worker_on("far").log.read(1)
    assert (log.errors, len(log.generations)) == (0, 3)
    assert run_worker(planned.work_dir.root).batches_done == 5


def test_a_batch_that_is_done_or_waits_is_left_alone(
    planned: OpenedRun, release: Callable[..., ReleaseReport]
) -> None:
    run_worker(planned.work_dir.root, max_batches=2)
    before = snapshot(planned.paths.root)
    done = list_batches(planned.paths.done_dir)
    report = release(*range(5))
    assert {row.batch_id for row in report.batches if row.reason == "it is done"} == done
    assert set(verdicts(report).values()) == {"nothing to do"}
    assert snapshot(planned.paths.root) == before


def test_a_holder_elsewhere_that_is_silent_for_a_whole_lease_is_released(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport], clock: Any
) -> None:
    held = worker_on("far").claim(2)
    held.heartbeat()
    watched: list[int] = []
    began = clock.seconds
    report = release(2, lease_seconds=60, on_watch=watched.append)
    assert verdicts(report) == {2: "released"}
    assert (report.batches[0].host, report.batches[0].pid) == ("far", 7)
    assert watched == [1]
    assert 60 <= clock.seconds - began <= 70
    log = worker_on("near").log.read(2)
    assert (log.generations[0].outcome, log.losses) == (Outcome.HANDED_BACK, 0)
    assert worker_on("near").claim(2) is not None, "it is free at once"


def test_a_holder_that_beats_is_refused_and_by_force_released_without_watching(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport], clock: Any
) -> None:
    held = worker_on("far").claim(2)
    report = release(2, during=held.heartbeat)
    assert verdicts(report) == {2: "refused"}
    assert "--force" in report.refused[0].reason
    began = clock.seconds
    assert verdicts(release(2, force=True)) == {2: "released"}
    assert clock.seconds == began


def test_a_holder_that_was_overruled_may_still_publish_and_only_one_result_counts(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport]
) -> None:
    zombie = worker_on("far").claim(2)
    release(2, force=True)
    successor = worker_on("near").claim(2)
    assert zombie.publish_done({"shards": []}) == "won"
    assert successor.publish_done({"shards": []}) == "lost"
    assert read_done(planned.paths, 2)["host"] == "far"


def test_a_claim_that_changed_hands_while_it_was_watched_is_alive(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport]
) -> None:
    first = worker_on("far").claim(2)
    assert first is not None

    def change_hands() -> None:
        first.hand_back("moved")
        worker_on("near").claim(2)

    assert verdicts(release(2, during=change_hands)) == {2: "refused"}
    generations = worker_on("near").log.read(2).generations
    assert [entry.outcome for entry in generations] == [Outcome.HANDED_BACK, None]


def test_a_successor_that_claims_right_before_the_release_is_not_robbed(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport]
) -> None:
    first = worker_on("far").claim(2)
    assert first is not None
    folder = planned.paths.lease_dir(2).name
    fs = FaultyFileSystem()

    def change_hands() -> None:
        first.hand_back("moved")
        assert worker_on("near").claim(2) is not None

    # The first listing judges, the second comes right before the write.
    fs.before(
        "list_names", lambda: fs.before("list_names", change_hands, match=folder), match=folder
    )
    release(2, force=True, fs=fs)
    assert fs.pending_faults == 0
    generations = worker_on("near").log.read(2).generations
    assert [entry.outcome for entry in generations] == [Outcome.HANDED_BACK, None]


def test_a_process_of_this_host_keeps_its_batch_until_it_ends(
    release: Callable[..., ReleaseReport], holder_here: subprocess.Popen[str], clock: Any
) -> None:
    report = release(0, force=True)
    assert verdicts(report) == {0: "refused"}
    assert report.refused[0].pid == holder_here.pid
    assert "end that process" in report.refused[0].reason
    assert release(stuck=True, lease_seconds=5).batches == (), "it is not stuck, so nothing is said"
    holder_here.kill()
    holder_here.wait()
    began = clock.seconds
    assert verdicts(release(0)) == {0: "released"}
    assert clock.seconds == began, "that it ended is a fact; nothing needs to be watched"


def test_stuck_takes_the_silent_and_leaves_the_living(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport]
) -> None:
    silent, living = worker_on("far", 1).claim(1), worker_on("far", 2).claim(4)
    assert silent is not None
    assert verdicts(release(stuck=True, during=living.heartbeat)) == {1: "released"}


def test_a_dry_run_says_the_same_and_writes_nothing(
    planned: OpenedRun, worker_on: WorkerOn, release: Callable[..., ReleaseReport]
) -> None:
    fail_batch(worker_on("far"), 1)
    assert worker_on("far").claim(2) is not None
    before = snapshot(planned.work_dir.root)
    report = release(2, failed=True, force=True, dry_run=True)
    assert verdicts(report) == {1: "released", 2: "released"}
    assert report.dry_run
    assert snapshot(planned.work_dir.root) == before


@pytest.mark.parametrize("batches", [(), (5,), (-1,)])
def test_what_does_not_exist_cannot_be_released(
    release: Callable[..., ReleaseReport], batches: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError):
        release(*batches)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_lease_that_lasts_no_time_is_refused(
    release: Callable[..., ReleaseReport], seconds: float
) -> None:
    with pytest.raises(UsageError, match="lease_seconds must be above 0"):
        release(0, lease_seconds=seconds)
