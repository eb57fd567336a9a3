"""Leases on disk: races, zombies, lost answers, damaged files."""

from __future__ import annotations

import errno
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from lease_fakes import MakeStore, TurnedClock, claim, taken_over
from tests.faults.faulty_files import CrashError, FaultyFileSystem

from leconvert.run.leasing import (
    HeartbeatKeeper,
    Lease,
    LeaseLostError,
    LeaseStore,
    WorkerIdentity,
    list_batches,
    read_done,
    read_failed,
    release_failed,
    void_done,
)
from leconvert.run.leasing.state import Limits
from leconvert.support.errors import LeconvertError, SourceError, StorageError
from leconvert.workdir.fs import OutcomeUnknownError
from leconvert.workdir.records import RunPaths


def test_a_claim_makes_the_attempts_folder_and_is_the_only_one(
    make_store: MakeStore, run: RunPaths
) -> None:
    lease = claim(make_store("a"))
    assert lease.generation == 1
    assert lease.attempt_dir == run.attempt(7, 1, "a-1-00000000")
    assert lease.attempt_dir.is_dir()
    assert make_store("b").claim(7) is None


def test_of_two_claimers_who_meet_in_the_middle_one_gets_the_batch(make_store: MakeStore) -> None:
    fs = FaultyFileSystem()
    a, b = make_store("a", fs=fs), make_store("b")
    others: list[Lease | None] = []
    fs.before("link", lambda: others.append(b.claim(7)))
    assert a.claim(7) is None
    assert [lease is not None for lease in others] == [True]


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ESTALE])
def test_a_claim_whose_answer_was_lost_is_still_ours(make_store: MakeStore, code: int) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", code, happens=True)
    assert claim(make_store("a", fs=fs)).generation == 1
    assert make_store("b").claim(7) is None


def test_a_folder_whose_making_was_answered_twice_is_still_claimed(make_store: MakeStore) -> None:
    fs = FaultyFileSystem()
    fs.fail("make_dir", errno.EEXIST, happens=True)
    assert claim(make_store("a", fs=fs)).generation == 1


def test_a_claim_goes_on_when_a_file_has_no_room_for_more_names(make_store: MakeStore) -> None:
    fs = FaultyFileSystem()
    store = make_store("a", fs=fs)
    claim(store, 1)
    fs.fail("link", errno.EMLINK)
    assert claim(store, 2).generation == 1
    assert make_store("b").claim(2) is None


def test_a_heartbeat_keeps_the_lease_and_silence_loses_it(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    a, b = make_store("a"), make_store("b")
    lease = claim(a)
    for _ in range(5):
        assert b.claim(7) is None
        clock.advance(45)
        lease.heartbeat()
    successor = taken_over(b, clock)
    assert successor.generation == 2
    with pytest.raises(LeaseLostError):
        lease.heartbeat()


def test_only_the_observers_own_time_counts(make_store: MakeStore, clock: TurnedClock) -> None:
    claim(make_store("a"))
    clock.advance(1e6)
    late = make_store("b")
    assert late.claim(7) is None, "it only begins to watch now"
    clock.advance(60)
    assert late.claim(7) is not None


def test_an_observer_frozen_between_its_clock_and_the_file_sees_no_silence(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a"))
    b = make_store("b", fs=fs)
    # Frozen for an hour after it read its clock; the holder's heartbeat is fresh when it reads.
    fs.before("read_bytes", lambda: (clock.advance(3600), lease.heartbeat()), match=".beat")
    lease.heartbeat()
    assert b.claim(7) is None
    clock.advance(1)
    assert b.claim(7) is None


def test_a_zombie_that_publishes_after_its_lease_expired_can_win_but_only_once(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths
) -> None:
    a, b = make_store("a"), make_store("b")
    zombie = claim(a)
    (zombie.attempt_dir / "shard").write_bytes(b"zombie's")
    successor = taken_over(b, clock)
    (successor.attempt_dir / "shard").write_bytes(b"successor's")
    assert zombie.publish_done({"shards": ["shard"]}) == "won"
    assert successor.publish_done({"shards": ["shard"]}) == "lost"
    record = read_done(run, 7)
    assert (record["generation"], record["token"]) == (1, "a-1-00000000")
    assert (run.root / record["attempt"] / "shard").read_bytes() == b"zombie's"
    assert not successor.attempt_dir.exists(), "the loser's folder is removed"


def test_a_worker_that_lost_its_lease_cannot_replace_its_successors_result(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths
) -> None:
    a, b = make_store("a"), make_store("b")
    zombie = claim(a)
    assert taken_over(b, clock).publish_done({}) == "won"
    before = run.done(7).read_bytes()
    assert zombie.publish_done({}) == "lost"
    zombie.hand_back("too late")
    assert run.done(7).read_bytes() == before
    assert make_store("c").claim(7) is None


def test_publishing_in_the_middle_of_another_publish_has_one_winner(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    a, b = make_store("a", fs=fs), make_store("b")
    zombie = claim(a)
    successor = taken_over(b, clock)
    results: list[str] = []
    fs.before("link", lambda: results.append(successor.publish_done({})), match="done")
    results.append(zombie.publish_done({}))
    assert results == ["won", "lost"]
    assert read_done(run, 7)["generation"] == 2


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ESTALE])
def test_a_publish_whose_answer_was_lost_is_won(
    make_store: MakeStore, run: RunPaths, code: int
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    fs.fail("link", code, match="done", happens=True)
    assert lease.publish_done({"size_bytes": 5}) == "won"
    assert read_done(run, 7)["size_bytes"] == 5
    assert lease.attempt_dir.is_dir()


def test_an_unknown_outcome_keeps_the_attempt_and_asking_again_tells(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    fs.fail("link", errno.EIO, match="done", happens=True)
    fs.fail("list_names", errno.EIO, match="done", times=3)
    with pytest.raises(OutcomeUnknownError):
        lease.publish_done({})
    lease.hand_back("the disk fails")
    assert lease.attempt_dir.is_dir(), "a done record may name it"
    assert lease.publish_done({}) == "won"


def test_the_record_is_on_the_disk_before_it_has_its_name(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    del fs.operations[:]
    lease.publish_done({})
    steps = [(name, path.name) for name, path in fs.operations]
    link = next(i for i, (name, _) in enumerate(steps) if name == "link")
    folders = ["0001-a-1-00000000", "000007", "attempts"]
    assert [path for name, path in steps[:link] if name == "sync_dir"] == folders
    assert steps[link + 1 :] == [("sync_dir", "done")]


def test_a_crash_at_any_point_of_a_batch_leaves_it_done_or_open(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths
) -> None:
    for point in range(200):
        batch_id = point
        store = make_store(f"a{point}", fs=FaultyFileSystem(point))
        try:
            lease = store.claim(batch_id)
            lease.heartbeat()
            assert lease.publish_done({}) == "won"
        except CrashError:
            pass
        else:
            assert point > 20
            break
        other = make_store(f"b{point}")
        successor = other.claim(batch_id)
        if successor is None and batch_id not in list_batches(run.done_dir):
            clock.advance(60)
            successor = other.claim(batch_id)
        if successor is not None:
            assert successor.publish_done({}) == "won"
        winner = read_done(run, batch_id)
        assert (run.root / winner["attempt"]).is_dir()
    else:
        pytest.fail("the worker never came to its end")


def test_a_batch_handed_back_is_free_at_once_and_its_attempt_is_gone(make_store: MakeStore) -> None:
    lease = claim(make_store("a"))
    (lease.attempt_dir / "half").write_bytes(b"x")
    lease.hand_back("SIGTERM")
    lease.hand_back("again")
    assert not lease.attempt_dir.exists()
    assert claim(make_store("b")).generation == 2


def test_errors_use_up_attempts_and_then_the_batch_is_set_aside(
    make_store: MakeStore, run: RunPaths
) -> None:
    store = make_store("a", max_attempts=2)
    error = SourceError("clip 3 is torn.", path="clip3", next_step="Drop it.")
    assert claim(store).fail(error, "Traceback") is False
    assert claim(store).fail(error, "Traceback") is True
    assert store.claim(7) is None
    record = read_failed(run, 7)
    assert (record["errors"], record["host"]) == (2, "a")
    assert record["error"]["message"] == "clip 3 is torn."
    assert record["traceback"] == "Traceback"


def test_a_worker_that_died_before_setting_its_batch_aside_is_helped_by_the_next(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EIO, match="failed")
    with pytest.raises(StorageError):
        claim(make_store("a", fs=fs, max_attempts=1)).fail(LeconvertError("broken."))
    assert list_batches(run.failed_dir) == set()
    assert make_store("b", max_attempts=1).claim(7) is None
    record = read_failed(run, 7)
    assert record["error"]["message"] == "broken."
    assert [path.name for path in run.failed_dir.iterdir()] == ["000007.json"]


def test_a_released_batch_gets_all_its_attempts_again(make_store: MakeStore, run: RunPaths) -> None:
    store = make_store("a", max_attempts=1)
    claim(store).fail(LeconvertError("disk full."))
    assert release_failed(run, 7, "the disk has room again")
    assert not release_failed(run, 7, "again")
    again = claim(store)
    assert again.generation == 2
    assert again.fail(LeconvertError("disk full.")) is True
    assert release_failed(run, 7, "once more")
    assert sorted(path.name for path in run.failed_dir.iterdir()) == [
        "000007.released-1",
        "000007.released-2",
    ]


def test_a_done_without_its_shards_is_voided_and_the_batch_opens_at_once(
    make_store: MakeStore, run: RunPaths
) -> None:
    store = make_store("a")
    assert claim(store).publish_done({"round": 1}) == "won"
    assert void_done(run, 7, "a shard is missing")
    assert not void_done(run, 7, "a shard is missing")
    second = claim(make_store("b"))
    assert second.generation == 2
    assert second.publish_done({"round": 2}) == "won"
    assert void_done(run, 7, "again")
    assert sorted(path.name for path in run.done_dir.iterdir()) == [
        "000007.void-1",
        "000007.void-2",
    ]
    assert b'"round": 1' in run.voided(7, 1).read_bytes()


def test_a_torn_done_record_can_be_voided(make_store: MakeStore, run: RunPaths) -> None:
    run.done(7).write_bytes(b'{"format": "leconv')
    assert void_done(run, 7, "torn")
    assert claim(make_store("a")).generation == 1


def test_a_loser_whose_winner_was_voided_meanwhile_publishes_after_all(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    a, b = make_store("a", fs=fs), make_store("b")
    lease = claim(a)
    assert taken_over(b, clock).publish_done({}) == "won"
    # Voided between the link that found it and the look at whose it is.
    fs.before("list_names", lambda: void_done(run, 7, "short"), match="done")
    assert lease.publish_done({}) == "won"
    assert read_done(run, 7)["generation"] == 1


def test_a_name_that_comes_and_goes_three_times_is_an_unknown_outcome(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    fs.fail("link", errno.EEXIST, match="done", times=3)
    with pytest.raises(OutcomeUnknownError, match="Another process creates and removes") as caught:
        lease.publish_done({})
    assert caught.value.path == str(run.done(7))
    assert caught.value.next_step == (
        "Check that only one packer runs, then run the same command again."
    )
    assert lease.attempt_dir.is_dir()
    assert lease.publish_done({}) == "won"


def test_a_publisher_that_finds_a_torn_done_has_lost_and_keeps_its_attempt(
    make_store: MakeStore, run: RunPaths
) -> None:
    lease = claim(make_store("a"))
    run.done(7).write_bytes(b'{"format": "leconv')
    assert lease.publish_done({}) == "lost"
    lease.abandon()
    assert lease.attempt_dir.is_dir(), "nothing readable names another attempt"


@pytest.mark.parametrize("operation", ["list_names", "read_bytes"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_while_the_winner_is_looked_up_is_not_the_batchs_fault(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths, operation: str, code: int
) -> None:
    fs = FaultyFileSystem()
    a, b = make_store("a", fs=fs), make_store("b")
    lease = claim(a)
    assert taken_over(b, clock).publish_done({}) == "won"
    # The first look settles that another record has the name; the second asks whose it is.
    fs.fail(operation, code, match="done/" if operation == "read_bytes" else "done", skip=1)
    with pytest.raises(StorageError) as caught:
        lease.publish_done({})
    looked_at = run.done_dir if operation == "list_names" else run.done(7)
    assert caught.value.path == str(looked_at)
    lease.abandon()
    assert not lease.attempt_dir.exists(), "another's result was read after all"


def test_an_error_that_is_told_twice_counts_once(make_store: MakeStore, run: RunPaths) -> None:
    lease = claim(make_store("a", max_attempts=2))
    assert lease.fail(LeconvertError("broken.")) is False
    assert lease.fail(LeconvertError("broken.")) is False
    assert list_batches(run.failed_dir) == set()
    assert claim(make_store("a", max_attempts=2)).fail(LeconvertError("broken.")) is True


def test_a_batch_that_two_set_aside_at_once_is_set_aside_once(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EIO, match="failed")
    with pytest.raises(StorageError):
        claim(make_store("a", fs=fs, max_attempts=1)).fail(LeconvertError("broken."))
    slow = FaultyFileSystem()
    slow.before("link", lambda: make_store("c", max_attempts=1).claim(7), match="failed")
    assert make_store("b", fs=slow, max_attempts=1).claim(7) is None
    assert read_failed(run, 7)["token"] == "c-1-00000000"
    assert [path.name for path in run.failed_dir.iterdir()] == ["000007.json"]


def test_of_two_who_release_a_batch_one_does(make_store: MakeStore, run: RunPaths) -> None:
    claim(make_store("a", max_attempts=1)).fail(LeconvertError("disk full."))
    fs = FaultyFileSystem()
    first: list[bool] = []
    fs.before("replace", lambda: first.append(release_failed(run, 7, "one")), match="released")
    assert release_failed(run.using(fs), 7, "other") is False
    assert first == [True]
    assert [path.name for path in run.failed_dir.iterdir()] == ["000007.released-1"]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_an_end_that_vanishes_while_it_is_opened_is_read_the_next_time(
    make_store: MakeStore, code: int
) -> None:
    claim(make_store("a")).hand_back("SIGTERM")
    fs = FaultyFileSystem()
    fs.fail("read_bytes", code, match=".end")
    b = make_store("b", fs=fs)
    assert b.claim(7) is None, "no end, and nobody was silent for long enough"
    assert claim(b).generation == 2


def test_an_end_on_a_disk_that_fails_is_told_with_its_path(
    make_store: MakeStore, run: RunPaths
) -> None:
    claim(make_store("a")).hand_back("SIGTERM")
    fs = FaultyFileSystem()
    fs.fail("read_bytes", errno.EIO, match=".end")
    with pytest.raises(StorageError) as caught:
        make_store("b", fs=fs).claim(7)
    assert caught.value.path == str(run.lease_end(7, 1))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_claim_that_cannot_be_read_is_taken_over_when_it_is_silent(
    make_store: MakeStore, clock: TurnedClock, code: int
) -> None:
    """The name alone is the claim; who holds it is a hint, and for people."""
    claim(make_store("a"))
    fs = FaultyFileSystem()
    fs.fail("read_bytes", code, match="0001", times=None)
    b = make_store("b", fs=fs)
    assert b.log.holder(7, 1) == {}
    assert taken_over(b, clock).generation == 2


def test_a_claim_on_a_disk_that_fails_is_told(make_store: MakeStore, run: RunPaths) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.ENOSPC)
    with pytest.raises(StorageError, match="no space left"):
        make_store("a", fs=fs).claim(7)
    gone = FaultyFileSystem()
    gone.before("link", lambda: run.claim_source("c-1-00000000").unlink())
    with pytest.raises(FileNotFoundError):
        make_store("c", fs=gone).claim(7)
    assert claim(make_store("b")).generation == 1


@pytest.mark.parametrize("raw", [b"", b"{", b'{"format": "leconvert/lease-end", "version": 9}'])
def test_an_end_that_cannot_be_read_is_no_end(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths, raw: bytes
) -> None:
    claim(make_store("a"))
    run.lease_end(7, 1).write_bytes(raw)
    b = make_store("b")
    assert taken_over(b, clock).generation == 2


def test_a_claim_file_emptied_by_a_power_loss_still_counts_as_a_claim(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths
) -> None:
    run.lease_dir(7).mkdir()
    run.lease(7, 1).write_bytes(b"")
    b = make_store("b")
    assert taken_over(b, clock).generation == 2


def test_a_holder_that_died_on_this_host_is_replaced_at_once(
    run: RunPaths, make_store: MakeStore, clock: TurnedClock
) -> None:
    claim(make_store("a"))
    asked: list[Any] = []

    def is_gone(fields: Any) -> bool:
        asked.append(fields["token"])
        return True

    store = LeaseStore(run, WorkerIdentity("b-1-0", "b", 1), clock=clock, process_gone=is_gone)
    assert claim(store).generation == 2
    assert asked == ["a-1-00000000"]


def test_a_full_disk_while_claiming_gives_the_batch_back(make_store: MakeStore) -> None:
    fs = FaultyFileSystem()
    fs.fail("make_dir", errno.ENOSPC, match="attempts")
    store = make_store("a", fs=fs)
    with pytest.raises(StorageError, match="no space left") as caught:
        store.claim(7)
    record = store.log.end_record(7, 1)
    assert (record["outcome"], record["reason"]) == ("handed-back", caught.value.message)
    assert claim(make_store("b")).generation == 2


def test_reserved_fields_of_a_done_record_are_refused(make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match="generation, token"):
        claim(make_store("a")).publish_done({"token": "x", "generation": 1})


def test_an_abandoned_attempt_is_removed_only_if_it_cannot_have_won(make_store: MakeStore) -> None:
    first = claim(make_store("a"), 1)
    first.abandon()
    assert not first.attempt_dir.exists()
    second = claim(make_store("a"), 2)
    second.publish_done({})
    second.abandon()
    assert second.attempt_dir.exists()


class Beats:
    """Lets a keeper beat so many times, moving the clock before each."""

    def __init__(self, clock: TurnedClock, times: int, between: Any = None) -> None:
        self._clock, self._times, self._between = clock, times, between
        self.waits: list[float] = []
        self.over = threading.Event()

    def __call__(self, _stop: threading.Event, seconds: float) -> bool:
        if self._between is not None and len(self.waits) == self._times - 1:
            self._between()
        if len(self.waits) == self._times:
            self.over.set()
            return True
        self.waits.append(seconds)
        self._clock.advance(seconds)
        return False


def test_the_keeper_beats_four_times_a_lease(make_store: MakeStore, clock: TurnedClock) -> None:
    lease = claim(make_store("a"))
    watcher = make_store("b")
    beats = Beats(clock, 8)
    assert watcher.claim(7) is None
    with HeartbeatKeeper(lease, clock=clock, waiter=beats) as keeper:
        assert beats.over.wait(10)
    assert beats.waits == [15.0] * 8
    assert not keeper.lost.is_set()
    assert watcher.claim(7) is None


def test_the_keeper_notices_a_takeover(make_store: MakeStore, clock: TurnedClock) -> None:
    lease = claim(make_store("a"))
    watcher = make_store("b")
    watcher.claim(7)

    def take_over() -> None:
        clock.advance(60)
        assert watcher.claim(7) is not None

    with HeartbeatKeeper(lease, clock=clock, waiter=Beats(clock, 1, take_over)) as keeper:
        assert keeper.lost.wait(10)


def test_limits_are_what_was_given_or_sixty_seconds_three_errors_and_ten_losses(
    run: RunPaths,
) -> None:
    worker = WorkerIdentity("a-1-00000000", "a", 1)
    assert LeaseStore(run, worker).limits == Limits(60.0, 3, 10)
    given = LeaseStore(run, worker, lease_seconds=5.0, max_attempts=2, max_losses=4)
    assert given.limits == Limits(5.0, 2, 4)


def test_a_claim_costs_one_link_and_forces_nothing_to_the_disk(
    make_store: MakeStore, run: RunPaths
) -> None:
    fs = FaultyFileSystem()
    store = make_store("a", fs=fs)
    claim(store, 1)
    assert [name for name, _ in fs.operations].count("sync_dir") == 1, "of the claims' source"
    for error in (None, errno.EMLINK):
        fs.operations.clear()
        if error:
            fs.fail("link", error)
        lease = claim(store, 2 if error else 3)
        source = run.claim_source("a-1-00000000")
        again = [name for name, _ in fs.operations if name in ("write_new", "replace", "sync_dir")]
        assert again == (["write_new", "replace", "sync_dir"] if error else [])
        links = [path for name, path in fs.operations if name == "link"]
        assert links == [source] * (2 if error else 1)
        made = [path for name, path in fs.operations if name == "make_dir"]
        assert made == [run.lease_dir(lease.batch_id), lease.attempt_dir.parent, lease.attempt_dir]


@pytest.mark.parametrize("set_aside", [False, True])
def test_a_settled_batch_is_not_claimed_however_silent_its_last_worker_is(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths, set_aside: bool
) -> None:
    lease = claim(make_store("a"))
    if set_aside:
        run.failed(7).write_bytes(b"")
    else:
        assert lease.publish_done({}) == "won"
    fs = FaultyFileSystem()
    late = make_store("b", fs=fs)
    assert late.claim(7) is None
    clock.advance(60)
    assert late.claim(7) is None
    assert not run.lease(7, 2).exists()
    looked = [path for name, path in fs.operations if name == "list_names"]
    assert looked[-1] == (run.failed_dir if set_aside else run.done_dir)


@pytest.mark.parametrize("match", ["leases", "attempts"])
def test_a_folder_that_cannot_be_made_is_told_with_its_path(
    make_store: MakeStore, run: RunPaths, match: str
) -> None:
    fs = FaultyFileSystem()
    fs.fail("make_dir", errno.ENOSPC, match=match)
    fs.fail("write_new", errno.ENOSPC, match=".end")
    with pytest.raises(StorageError) as caught:
        make_store("a", fs=fs).claim(7)
    told = run.lease_dir(7) if match == "leases" else run.attempt(7, 1, "a-1-00000000")
    assert caught.value.path == str(told), "not what failed while the batch was given back"


def test_a_lease_takes_its_times_from_the_clock_of_its_store(run: RunPaths) -> None:
    noon = datetime(2026, 2, 3, 12, tzinfo=UTC)
    worker = WorkerIdentity("a-1-00000000", "a", 1)
    assert claim(LeaseStore(run, worker, now=lambda: noon)).publish_done({}) == "won"
    assert read_done(run, 7)["began"].startswith("2026-02-03T12:00:00")


def test_nothing_is_observed_of_a_batch_that_nobody_holds(make_store: MakeStore) -> None:
    store = make_store("a")
    assert store.observe(7).observation is None
    lease = claim(store)
    assert store.observe(7).observation is not None
    lease.hand_back("SIGTERM")
    assert store.observe(7).observation is None


@pytest.mark.parametrize("errors", [0, 2])
def test_a_batch_that_is_set_aside_for_losses_says_how_often_and_the_last_error(
    make_store: MakeStore, clock: TurnedClock, run: RunPaths, errors: int
) -> None:
    for number in range(errors):
        assert claim(make_store("a")).fail(LeconvertError(f"error {number}."), f"at {number}") is (
            False
        )
    watcher = make_store("watcher")
    claim(make_store("w"))
    while not list_batches(run.failed_dir):
        watcher.claim(7)
        clock.advance(60)
    record = read_failed(run, 7)
    assert list(record)[3:] == [
        "batch_id", "token", "host", "pid", "lock",
        "generation", "errors", "losses", "error", "traceback",
    ]  # fmt: skip
    assert (record["generation"], record["errors"], record["losses"]) == (10 + errors, errors, 10)
    if errors:
        assert (record["error"]["message"], record["traceback"]) == ("error 1.", "at 1")
    else:
        assert (record["error"], record["traceback"]) == (None, "")


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(("failures", "lost"), [(3, False), (4, True)])
def test_the_keeper_gives_up_at_the_first_beat_that_fails_a_lease_after_the_last_good_one(
    make_store: MakeStore, clock: TurnedClock, before: int, failures: int, lost: bool
) -> None:
    fs = FaultyFileSystem()
    lease = claim(make_store("a", fs=fs))
    fs.fail("write_new", errno.EROFS, match=".beat", skip=before, times=failures)
    beats = Beats(clock, before + failures + 2)
    keeper = HeartbeatKeeper(lease, clock=clock, waiter=beats)
    assert keeper.error is None
    with keeper:
        assert (keeper.lost if lost else beats.over).wait(10)
    assert keeper.lost.is_set() == lost
    assert isinstance(keeper.error, StorageError)
    assert len(beats.waits) == before + failures + (0 if lost else 2)


def test_the_keepers_thread_is_named_after_its_batch(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    names: list[str] = []
    asked = threading.Event()

    def waiter(_stop: threading.Event, _seconds: float) -> bool:
        names.append(threading.current_thread().name)
        asked.set()
        return True

    with HeartbeatKeeper(claim(make_store("a")), clock=clock, waiter=waiter):
        assert asked.wait(10)
    assert names == ["heartbeat-7"]
