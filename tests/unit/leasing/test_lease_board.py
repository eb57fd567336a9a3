"""How a worker finds its next batch, and what that costs."""

from __future__ import annotations

import errno

import pytest
from lease_fakes import FakeClock, MakeStore

from leconvert.errors import LeconvertError, StorageError
from leconvert.leasing import BatchState, Board, Lease, void_done
from leconvert.testing.faults import FaultyFileSystem
from leconvert.workdir.paths import RunPaths


def finish(lease: Lease | None) -> int:
    assert lease is not None
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
    make_store: MakeStore, clock: FakeClock
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
        assert held is not None
        held.hand_back("SIGTERM")
    fs = FaultyFileSystem()
    other, taken = make_store("c"), []

    def take_what_was_found() -> None:
        found = next(path.parent for name, path in reversed(fs.operations) if name == "read_bytes")
        taken.append(other.claim(int(found.name)))

    fs.before("link", take_what_was_found, match="0002")
    lease = Board(make_store("b", fs=fs), 2).next_lease()
    assert lease is not None
    assert taken[0] is not None
    assert {lease.batch_id, taken[0].batch_id} == {0, 1}
    assert lease.generation == taken[0].generation == 2


def test_an_idle_worker_notices_the_end_of_the_run_soon(
    make_store: MakeStore, clock: FakeClock
) -> None:
    held = Board(make_store("a"), 1).next_lease()
    board = Board(make_store("b"), 1)
    assert board.next_lease() is None
    assert board.wait_hint() <= 0.05, "the first look comes soon"
    finish(held)
    clock.advance(board.wait_hint())
    assert board.next_lease() is None
    assert board.all_settled()


def test_an_idle_worker_takes_what_was_handed_back(make_store: MakeStore, clock: FakeClock) -> None:
    held = Board(make_store("a"), 1).next_lease()
    assert held is not None
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
    void_done(run, "r1", 1, "short")
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


def test_a_late_done_cures_a_failed_batch(make_store: MakeStore, clock: FakeClock) -> None:
    zombie = Board(make_store("a", max_attempts=1), 1).next_lease()
    assert zombie is not None
    board = Board(make_store("b", max_attempts=1), 1)
    while (lease := board.next_lease()) is None:
        clock.advance(board.wait_hint())
    lease.fail(LeconvertError("broken."))
    board.refresh()
    assert board.failed() == [0]
    assert zombie.publish_done({}) == "won"
    board.refresh()
    assert (board.failed(), board.done_ids()) == ([], [0])


def test_status_tells_who_holds_what_and_what_went_wrong(
    make_store: MakeStore, clock: FakeClock
) -> None:
    store = make_store("node7", max_attempts=1)
    store.claim(1)
    finish(store.claim(2))
    failed = store.claim(3)
    assert failed is not None
    failed.fail(LeconvertError("clip 3 is torn."))
    handed = store.claim(4)
    assert handed is not None
    handed.hand_back("SIGTERM")
    board = Board(make_store("viewer"), 5)
    board.status()
    clock.advance(12)
    rows = board.status()
    assert [row.state for row in rows] == [
        BatchState.PENDING,
        BatchState.LEASED,
        BatchState.DONE,
        BatchState.FAILED,
        BatchState.PENDING,
    ]
    assert (rows[1].host, rows[1].token, rows[1].heartbeat_age_seconds) == (
        "node7",
        "node7-1-00000000",
        12,
    )
    assert (rows[3].errors, rows[3].message) == (1, "clip 3 is torn.")
    assert rows[4].generation == 1


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_a_work_dir_that_cannot_be_listed_is_a_storage_error(
    make_store: MakeStore, code: int
) -> None:
    fs = FaultyFileSystem()
    fs.fail("list_names", code)
    board = Board(make_store("a", fs=fs), 3)
    with pytest.raises(StorageError):
        board.next_lease()
    assert board.next_lease() is not None, "the next try works again"
