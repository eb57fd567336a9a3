"""Claims and results on a file system without hard links: the same promises, among one host."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from lease_fakes import FakeClock, MakeStore
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.run.leasing import Board, LeaseStore, read_done
from leconvert.run.leasing.leases import Lease
from leconvert.support.errors import StorageError
from leconvert.workdir.locks import OneHostFileSystem
from leconvert.workdir.records import RunPaths


class FaultyOneHost(OneHostFileSystem, FaultyFileSystem):
    """Operations of one host that a test can interrupt."""


MakeFileSystem = Callable[[], FaultyOneHost]


@pytest.fixture
def make_fs(run: RunPaths) -> MakeFileSystem:
    return lambda: FaultyOneHost(run.naming_lock)


def claim(store: LeaseStore) -> Lease:
    lease = store.claim(0)
    assert lease is not None
    return lease


def test_a_claim_carries_its_holder_and_excludes_the_next_worker(
    run: RunPaths, make_store: MakeStore, make_fs: MakeFileSystem
) -> None:
    first, second = (make_store(name, fs=make_fs()) for name in ("a", "b"))
    claim(first)
    assert second.claim(0) is None
    assert second.log.holder(0, 1)["host"] == "a"
    assert run.lease(0, 1).stat().st_nlink == 1


def test_of_two_that_claim_one_generation_at_once_one_gets_it(
    make_store: MakeStore, make_fs: MakeFileSystem
) -> None:
    meeting = make_fs()
    first, second = make_store("a", fs=meeting), make_store("b", fs=make_fs())
    taken: list[Lease | None] = []
    meeting.before("write_new", lambda: taken.append(second._claim_generation(0, 1)), match="0001")
    assert first.claim(0) is None
    assert taken[0] is not None
    assert first.log.holder(0, 1)["host"] == "b"


@pytest.mark.parametrize("zombie_first", [True, False])
def test_a_zombie_and_its_successor_publish_and_exactly_one_counts(
    run: RunPaths,
    make_store: MakeStore,
    make_fs: MakeFileSystem,
    clock: FakeClock,
    zombie_first: bool,
) -> None:
    stores = [make_store(name, fs=make_fs()) for name in ("zombie", "heir")]
    zombie = claim(stores[0])
    stores[1].observe(0)
    clock.advance(61)
    heir = claim(stores[1])
    first, second = (zombie, heir) if zombie_first else (heir, zombie)
    assert first.publish_done({"shards": []}) == "won"
    assert second.publish_done({"shards": []}) == "lost"
    assert read_done(run, "r1", 0)["generation"] == first.generation
    assert first.attempt_dir.exists()
    assert not second.attempt_dir.exists()


def test_a_zombie_that_comes_back_in_the_middle_of_its_successors_publication_wins_alone(
    run: RunPaths, make_store: MakeStore, make_fs: MakeFileSystem, clock: FakeClock
) -> None:
    meeting = make_fs()
    stores = make_store("zombie", fs=make_fs()), make_store("heir", fs=meeting)
    zombie = claim(stores[0])
    stores[1].observe(0)
    clock.advance(61)
    heir = claim(stores[1])
    outcome: list[str] = []
    meeting.before(
        "write_new", lambda: outcome.append(zombie.publish_done({"shards": []})), match="done/."
    )
    assert heir.publish_done({"shards": []}) == "lost"
    assert outcome == ["won"]
    assert read_done(run, "r1", 0)["host"] == "zombie"


def test_one_worker_after_the_other_finishes_everything(
    run: RunPaths, make_store: MakeStore, make_fs: MakeFileSystem
) -> None:
    boards = [Board(make_store(name, fs=make_fs()), 20) for name in ("a", "b", "c")]
    won = 0
    while not boards[0].all_settled():
        for board in boards:
            if (lease := board.next_lease()) is not None:
                won += lease.publish_done({"shards": []}) == "won"
        boards[0].refresh()
    assert won == 20
    assert len(list(run.done_dir.glob("*.json"))) == 20
    assert not [path for path in run.done_dir.iterdir() if path.name.startswith(".")]


def test_who_publishes_by_links_where_there_are_none_is_refused_and_not_believed(
    run: RunPaths, make_store: MakeStore
) -> None:
    fs = FaultyFileSystem()
    fs.fail("link", errno.EPERM, times=None)
    with pytest.raises(StorageError, match="hard links") as caught:
        make_store("a", fs=fs).claim(0)
    assert "host that planned it" in str(caught.value.next_step)
    assert not run.lease(0, 1).exists()
