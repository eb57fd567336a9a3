"""Claims and results on a file system without hard links: the same promises, among one host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lease_fakes import MakeStore, TurnedClock, claim
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.run.leasing import read_done
from leconvert.run.leasing.leases import Lease
from leconvert.workdir.locks import OneHostFileSystem
from leconvert.workdir.records import RunPaths


class FaultyOneHost(OneHostFileSystem, FaultyFileSystem):
    """Operations of one host that a test can interrupt."""


MakeFileSystem = Callable[[], FaultyOneHost]


@pytest.fixture
def make_fs(run: RunPaths) -> MakeFileSystem:
    return lambda: FaultyOneHost(run.naming_lock)


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
    clock: TurnedClock,
    zombie_first: bool,
) -> None:
    stores = [make_store(name, fs=make_fs()) for name in ("zombie", "heir")]
    zombie = claim(stores[0], 0)
    stores[1].observe(0)
    clock.advance(61)
    heir = claim(stores[1], 0)
    first, second = (zombie, heir) if zombie_first else (heir, zombie)
    assert first.publish_done({"shards": []}) == "won"
    assert second.publish_done({"shards": []}) == "lost"
    assert read_done(run, 0)["generation"] == first.generation
    assert first.attempt_dir.exists()
    assert not second.attempt_dir.exists()


def test_a_zombie_that_comes_back_in_the_middle_of_its_successors_publication_wins_alone(
    run: RunPaths, make_store: MakeStore, make_fs: MakeFileSystem, clock: TurnedClock
) -> None:
    meeting = make_fs()
    stores = make_store("zombie", fs=make_fs()), make_store("heir", fs=meeting)
    zombie = claim(stores[0], 0)
    stores[1].observe(0)
    clock.advance(61)
    heir = claim(stores[1], 0)
    outcome: list[str] = []
    meeting.before(
        "write_new", lambda: outcome.append(zombie.publish_done({"shards": []})), match="done/."
    )
    assert heir.publish_done({"shards": []}) == "lost"
    assert outcome == ["won"]
    assert read_done(run, 0)["host"] == "zombie"
