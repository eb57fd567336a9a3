"""How a worker finds its next batch, and what that costs."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from lease_fakes import MakeStore, TurnedClock
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.run.leasing import BatchState, BatchStatus, Board, Lease, void_done
from leconvert.run.leasing.state import Outcome
from leconvert.support.errors import LeconvertError, StorageError
from leconvert.workdir.records import RunPaths


def finish(lease: Lease | None) -> int:
    assert lease.publish_done({}) == "won"
    return lease.batch_id


def test_one_worker_does_every_batch_once(make_store: MakeStore) -> None:
    board = Board(make_store("a"), 40)
    done = [finish(board.next_lease()) for _ in range(40)]
    assert sorted(done) == list(range(40))
    assert board.next_lease() is None
    assert board.all_settled()
    assert board.done_ids() == list(range(40))


def test_expensive_batches_come_first(make_store: MakeStore) -> None:
    board = Board(make_store("a"), 160)
    first = [finish(board.next_lease()) for _ in range(10)]
    assert sorted(first) == list(range(10))


def test_few_batches_are_taken_strictly_in_order(make_store: MakeStore) -> None:
    boards = [Board(make_store(name), 6) for name in "abc"]
    taken = [lease.batch_id for board in boards * 2 if (lease := board.next_lease())]
    assert taken == [0, 1, 2, 3, 4, 5]


def test_workers_share_the_batches_without_doing_one_twice(make_store: MakeStore) -> None:
    boards = [Board(make_store(name), 200) for name in "abcd"]
    done = []
    while len(done) < 200:
        done += [finish(lease) for board in boards if (lease := board.next_lease())]
    assert sorted(done) == list(range(200))


@pytest.mark.parametrize("count", [160, 1600])
def test_the_number_of_folder_lists_does_not_grow_with_the_batches(
    make_store: MakeStore, count: int
) -> None:
    fs = FaultyFileSystem()
    board = Board(make_store("a", fs=fs), count)
    for _ in range(count):
        assert board.next_lease() is not None
    calls = [name for name, _ in fs.operations]
    assert calls.count("list_names") <= 3 * 17, "three folders a look, a look every sixteenth"
    assert calls.count("link") == count
    assert calls.count("make_dir") == 3 * count


def test_meeting_workers_waste_few_claims(make_store: MakeStore) -> None:
    count, names = 480, "abcdefgh"
    systems = [FaultyFileSystem() for _ in names]
    boards = [
        Board(make_store(name, fs=fs), count) for name, fs in zip(names, systems, strict=True)
    ]
    for number in range(count):
        assert boards[number % len(boards)].next_lease() is not None
    calls = [name for fs in systems for name, _ in fs.operations]
    tries = sum(
        name == "make_dir" and path.parent.name == "leases"
        for fs in systems
        for name, path in fs.operations
    )
    assert tries <= 3 * count
    assert calls.count("list_names") <= 3 * 17 * len(names)


def test_an_idle_worker_watches_and_takes_over_what_expires(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    held = Board(make_store("a"), 1).next_lease()
    assert held is not None
    board = Board(make_store("b"), 1)
    began = clock.seconds
    while (lease := board.next_lease()) is None:
        assert not board.all_settled()
        assert 0 < board.wait_hint() < 2.001
        clock.advance(board.wait_hint())
    assert lease.generation == 2
    assert 60 <= clock.seconds - began <= 65, "within twice the lease, and not before its end"


def test_an_idle_worker_whose_find_was_taken_goes_on_to_the_next(make_store: MakeStore) -> None:
    """Two batches are free again; another worker is faster with the one that is found first."""
    gone = make_store("a")
    for batch_id in (0, 1):
        held = gone.claim(batch_id)
        held.hand_back("SIGTERM")
    fs = FaultyFileSystem()
    other, taken = make_store("c"), []

    def take_what_was_found() -> None:
        found = next(path.parent for name, path in reversed(fs.operations) if name == "read_bytes")
        taken.append(other.claim(int(found.name)))

    fs.before("link", take_what_was_found, match="0002")
    lease = Board(make_store("b", fs=fs), 2).next_lease()
    assert taken[0] is not None
    assert {lease.batch_id, taken[0].batch_id} == {0, 1}
    assert lease.generation == taken[0].generation == 2


def test_an_idle_worker_notices_the_end_of_the_run_soon(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    held = Board(make_store("a"), 1).next_lease()
    board = Board(make_store("b"), 1)
    assert board.next_lease() is None
    assert board.wait_hint() <= 0.05, "the first look comes soon"
    finish(held)
    clock.advance(board.wait_hint())
    assert board.next_lease() is None
    assert board.all_settled()


def test_an_idle_worker_takes_what_was_handed_back(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    held = Board(make_store("a"), 1).next_lease()
    board = Board(make_store("b"), 1)
    assert board.next_lease() is None
    held.hand_back("SIGTERM")
    clock.advance(board.wait_hint())
    assert finish(board.next_lease()) == 0


def test_a_voided_batch_is_found_again(make_store: MakeStore, run: RunPaths) -> None:
    board = Board(make_store("a"), 2)
    for _ in range(2):
        finish(board.next_lease())
    assert board.next_lease() is None
    void_done(run, 1, "short")
    board.refresh()
    assert not board.all_settled()
    assert finish(Board(make_store("b"), 2).next_lease()) == 1


def test_a_failed_batch_does_not_keep_the_others_from_being_done(make_store: MakeStore) -> None:
    board = Board(make_store("a", max_attempts=2), 5)
    tries = []
    while (lease := board.next_lease()) is not None:
        tries.append(lease.batch_id)
        if lease.batch_id == 3:
            lease.fail(LeconvertError("clip 3 is torn."))
        else:
            lease.publish_done({})
    assert tries.count(3) == 2
    assert board.all_settled()
    assert (board.done_ids(), board.failed()) == ([0, 1, 2, 4], [3])
    counts = board.counts()
    assert (counts.pending, counts.leased, counts.done, counts.failed) == (0, 0, 4, 1)


def test_a_late_done_cures_a_failed_batch(make_store: MakeStore, clock: TurnedClock) -> None:
    zombie = Board(make_store("a", max_attempts=1), 1).next_lease()
    board = Board(make_store("b", max_attempts=1), 1)
    while (lease := board.next_lease()) is None:
        clock.advance(board.wait_hint())
    lease.fail(LeconvertError("broken."))
    board.refresh()
    assert board.failed() == [0]
    assert zombie.publish_done({}) == "won"
    board.refresh()
    assert (board.failed(), board.done_ids()) == ([], [0])


@pytest.mark.parametrize("folder", ["leases", "failed", "done"])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_a_work_dir_that_cannot_be_listed_is_a_storage_error(
    make_store: MakeStore, run: RunPaths, code: int, folder: str
) -> None:
    fs = FaultyFileSystem()
    fs.fail("list_names", code, match=folder)
    board = Board(make_store("a", fs=fs), 3)
    with pytest.raises(StorageError) as caught:
        board.next_lease()
    assert caught.value.path == str(run.root / folder)
    assert board.next_lease() is not None, "the next try works again"


@pytest.mark.parametrize("folder", ["failed", "done"])
def test_a_batch_that_is_settled_while_the_folders_are_listed_is_not_tried(
    make_store: MakeStore, run: RunPaths, folder: str
) -> None:
    fs = FaultyFileSystem()
    other = make_store("a", max_attempts=1).claim_fresh

    def resolve_repairs() -> None:
        lease = other(0)
        assert lease is not None
        if folder == "done":
            lease.publish_done({})
        else:
            lease.fail(LeconvertError("broken."))

    fs.before("list_names", resolve_repairs, match="failed")
    lease = Board(make_store("b", fs=fs), 3).next_lease()
    assert lease.batch_id == 1
    assert ("make_dir", run.lease_dir(0)) not in fs.operations


def test_an_error_without_a_message_is_shown_as_none(make_store: MakeStore) -> None:
    store = make_store("a")
    assert store.claim(0) is not None
    store.log.write_end(0, 1, Outcome.ERROR, {"error": None})
    (row,) = Board(make_store("viewer"), 1).status()
    assert (row.state, row.errors, row.message) == (BatchState.PENDING, 1, None)


def test_workers_begin_at_different_places_of_the_sixteenth(make_store: MakeStore) -> None:
    systems = [FaultyFileSystem() for _ in range(8)]
    boards = [
        Board(make_store(name, fs=fs), 1600) for name, fs in zip("abcdefgh", systems, strict=True)
    ]
    for board in boards:
        board.refresh()
    for board in boards:
        assert board.next_fresh() is not None
    begun = {
        int(next(path.name for operation, path in fs.operations if operation == "make_dir"))
        for fs in systems
    }
    assert len(begun) == 8
    assert max(begun) < 100


def test_observers_of_the_same_free_batches_begin_at_different_ones(make_store: MakeStore) -> None:
    for batch_id in range(64):
        held = make_store("gone").claim(batch_id)
        held.hand_back("SIGTERM")
    begun = set()
    for name in "bcdefghi":
        lease = Board(make_store(name), 64).next_lease()
        begun.add(lease.batch_id)
    assert len(begun) == 8
    assert min(begun) > 0


def test_a_batch_that_is_held_does_not_hide_the_free_ones(make_store: MakeStore) -> None:
    held = [make_store("a").claim(batch_id) for batch_id in range(6)]
    assert held[3] is not None
    held[3].hand_back("SIGTERM")
    found = [Board(make_store(name), 6).next_lease() for name in "bcdef"]
    assert [lease.batch_id for lease in found if lease] == [3]


def test_where_nothing_is_free_each_batch_is_looked_at_once(make_store: MakeStore) -> None:
    for batch_id in range(5):
        make_store("a").claim(batch_id)
    fs = FaultyFileSystem()
    assert Board(make_store("b", fs=fs), 5).next_lease() is None
    looked = [path.name for name, path in fs.operations if name == "list_names"]
    assert sorted(name for name in looked if name.isdigit()) == [f"{n:06d}" for n in range(5)]


@pytest.mark.parametrize("after_a_find", [False, True])
def test_who_meets_others_leaves_out_one_batch_then_two_then_four(
    make_store: MakeStore, after_a_find: bool
) -> None:
    fs = FaultyFileSystem()
    board = Board(make_store("b", fs=fs), 16 * 64)
    board.refresh()
    if after_a_find:
        assert board.next_fresh() is not None
    for batch_id in range(64):
        make_store("a").claim_fresh(batch_id)
    before = len(fs.operations)
    assert board.next_fresh() is not None
    tried = [
        int(path.name)
        for name, path in fs.operations[before:]
        if name == "make_dir" and path.parent.name == "leases"
    ]
    assert [batch_id - tried[0] for batch_id in tried[:4]] == [0, 2, 5, 10]


def test_the_counts_tell_the_pending_from_the_leased(make_store: MakeStore) -> None:
    board = Board(make_store("a"), 48)
    finish(board.next_lease())
    board.refresh()
    counts = board.counts()
    assert (counts.pending, counts.leased, counts.done, counts.failed) == (47, 0, 1, 0)
    board.next_lease()
    board.next_lease()
    counts = board.counts()
    assert (counts.pending, counts.leased, counts.done, counts.failed) == (45, 2, 1, 0)


def test_an_idle_worker_looks_half_as_often_each_time_and_at_last_every_two_seconds(
    make_store: MakeStore, clock: TurnedClock
) -> None:
    Board(make_store("a"), 1).next_lease()
    board = Board(make_store("b"), 1)
    waits = []
    for _ in range(8):
        assert board.next_lease() is None
        waits.append(board.wait_hint())
        clock.advance(board.wait_hint())
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


@pytest.mark.parametrize(("seconds", "pause"), [(0.25, 5.0), (0.5, 10.0), (2.0, 15.0)])
def test_a_look_that_takes_long_is_repeated_after_twenty_times_that_or_a_quarter_lease(
    make_store: MakeStore, clock: TurnedClock, seconds: float, pause: float
) -> None:
    Board(make_store("a"), 1).next_lease()
    fs = FaultyFileSystem()
    board = Board(make_store("b", fs=fs), 1)
    assert board.next_lease() is None
    clock.advance(board.wait_hint())
    fs.before("list_names", lambda: clock.advance(seconds), match="leases")
    assert board.next_lease() is None
    assert board.wait_hint() == pytest.approx(pause)


def test_status_tells_every_field_of_a_batch(make_store: MakeStore, clock: TurnedClock) -> None:
    store = make_store("node7", max_attempts=9)
    finish(store.claim(0))
    failed, handed, spoilt = (
        store.claim(2),
        store.claim(3),
        make_store("c", max_attempts=1).claim(4),
    )
    failed.fail(LeconvertError("clip 3 is torn."))
    store.claim(2)
    handed.hand_back("SIGTERM")
    spoilt.fail(LeconvertError("clip 4 is torn."))
    viewer = make_store("viewer", max_attempts=9)
    board = Board(viewer, 6)
    board.status()
    clock.advance(60)
    assert viewer.claim(1) is not None
    assert viewer.claim(2) is not None
    board.status()
    clock.advance(12)
    held: dict[str, Any] = {"host": "viewer", "pid": 1, "token": "viewer-1-00000000"}
    node7: dict[str, Any] = {"host": "node7", "pid": 1, "token": "node7-1-00000000"}
    assert board.status() == [
        BatchStatus(0, BatchState.DONE),
        BatchStatus(1, BatchState.LEASED, generation=1, heartbeat_age_seconds=12.0, **held),
        BatchStatus(
            2,
            BatchState.LEASED,
            generation=3,
            heartbeat_age_seconds=12.0,
            errors=1,
            losses=1,
            message="clip 3 is torn.",
            **held,
        ),
        BatchStatus(3, BatchState.PENDING, generation=1, **node7),
        BatchStatus(
            4,
            BatchState.FAILED,
            generation=1,
            host="c",
            pid=1,
            token="c-1-00000000",
            errors=1,
            message="clip 4 is torn.",
        ),
        BatchStatus(5, BatchState.PENDING),
    ]


def test_status_shows_no_heartbeat_of_a_batch_that_was_set_aside(
    make_store: MakeStore, run: RunPaths
) -> None:
    """Its last claim has no end: its worker was lost."""
    make_store("a").claim(0)
    run.failed(0).write_bytes(b"")
    run.failed(1).write_bytes(b"")
    lost, removed = Board(make_store("viewer"), 2).status()
    assert (lost.state, lost.generation, lost.host) == (BatchState.FAILED, 1, "a")
    assert lost.heartbeat_age_seconds is None
    assert removed == BatchStatus(1, BatchState.FAILED), "nothing is left of its claims"
