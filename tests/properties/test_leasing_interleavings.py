"""Any interleaving of workers, freezes and crashes: one result a batch, none lost, and an end.

The real store over real files; each worker has a clock of its own. What is decided stands in
tests/unit/run/leasing/test_lease_decisions.py.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.run.leasing import (
    Board,
    Lease,
    LeaseLostError,
    LeaseStore,
    WorkerIdentity,
    list_batches,
    read_done,
    void_done,
)
from leconvert.support.errors import LeconvertError
from leconvert.workdir.records import WorkDir

WORKERS, BATCHES = 3, 3
LEASE_SECONDS = 60.0

workers = st.integers(0, WORKERS - 1)
batches = st.integers(0, BATCHES - 1)
seconds = st.sampled_from([0.0, 1.0, 14.0, 30.0, 59.0, 61.0, 3600.0])


class FileLeases(RuleBasedStateMachine):
    """Real files; workers freeze with a lease in hand, die, or lose answers."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="leases-"))
        self.run = WorkDir(self.root).run("r1")
        self.run.ensure()
        self.now = 0.0
        self.stores = [self.make_store(worker) for worker in range(WORKERS)]
        self.held: list[Lease] = []
        self.winners: dict[int, str] = {}
        self.torn: set[int] = set()
        self.judged: dict[int, dict[str, Any]] = {}
        self.counter = WORKERS

    def make_store(self, number: int) -> LeaseStore:
        return LeaseStore(
            self.run.using(FaultyFileSystem()),
            WorkerIdentity(f"w{number}", "host", number),
            lease_seconds=LEASE_SECONDS,
            clock=lambda: self.now + 1000.0 * number,
            process_gone=lambda _: False,
        )

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        self.now += passed

    @rule(worker=workers, batch_id=batches)
    def claim(self, worker: int, batch_id: int) -> None:
        lease = self.stores[worker].claim(batch_id)
        if lease is not None:
            assert batch_id not in self.winners, "a done batch is never leased again"
            self.held.append(lease)

    @rule(worker=workers)
    def a_worker_dies(self, worker: int) -> None:
        # Its leases stay in `held`: from now on they are zombies that may still publish.
        self.stores[worker] = self.make_store(self.counter)
        self.counter += 1

    @rule(pick=st.integers(0, 50))
    def beat(self, pick: int) -> None:
        if self.held:
            lease = self.held[pick % len(self.held)]
            newer = any(
                other.batch_id == lease.batch_id and other.generation > lease.generation
                for other in self.held
            )
            try:
                lease.heartbeat()
                assert not newer, "a heartbeat tells of the successor"
            except LeaseLostError:
                pass

    @rule(pick=st.integers(0, 50), lie=st.booleans())
    def publish(self, pick: int, lie: bool) -> None:
        if not self.held:
            return
        lease = self.held.pop(pick % len(self.held))
        (lease.attempt_dir / "shard").write_text(lease.attempt_dir.name)
        fs = lease._log.fs
        assert isinstance(fs, FaultyFileSystem)
        if lie and lease.batch_id not in self.winners:
            fs.fail("link", 17, match="done", happens=True)
        outcome = lease.publish_done({})
        assert (outcome == "won") == (lease.batch_id not in self.winners)
        if outcome == "won":
            self.winners[lease.batch_id] = lease.attempt_dir.name

    @rule(pick=st.integers(0, 50), is_error=st.booleans())
    def give_back(self, pick: int, is_error: bool) -> None:
        if self.held:
            lease = self.held.pop(pick % len(self.held))
            if is_error:
                lease.fail(LeconvertError("broken."))
            else:
                lease.hand_back("asked to")

    @rule(batch_id=batches)
    def the_packer_voids(self, batch_id: int) -> None:
        if void_done(self.run, batch_id, "short"):
            self.opened(batch_id)

    @rule(batch_id=batches, kept_bytes=st.integers(0, 80))
    def a_record_is_torn(self, batch_id: int, kept_bytes: int) -> None:
        path = self.run.done(batch_id)
        if batch_id in self.winners:
            content = path.read_bytes()[:kept_bytes]
            path.unlink()  # the attempt's own record stays whole
            path.write_bytes(content)
            self.torn.add(batch_id)

    @rule(batch_id=batches)
    def the_packer_judges_and_freezes(self, batch_id: int) -> None:
        if batch_id in self.winners:
            judged = {} if batch_id in self.torn else read_done(self.run, batch_id)
            self.judged[batch_id] = judged

    @rule(batch_id=batches)
    def a_frozen_packer_voids_nothing_but_what_it_judged(self, batch_id: int) -> None:
        if (judged := self.judged.pop(batch_id, None)) is None:
            return
        there = batch_id in self.winners
        is_it = there and (
            not judged if batch_id in self.torn else judged == read_done(self.run, batch_id)
        )
        assert void_done(self.run, batch_id, "short", judged=judged) == is_it
        if is_it:
            self.opened(batch_id)

    def opened(self, batch_id: int) -> None:
        del self.winners[batch_id]
        self.torn.discard(batch_id)

    @invariant()
    def every_done_record_names_its_winner_whose_shards_are_there(self) -> None:
        if not hasattr(self, "run"):
            return
        assert list_batches(self.run.done_dir) == set(self.winners)
        for batch_id, attempt in self.winners.items():
            if batch_id in self.torn:
                continue
            folder = self.run.root / read_done(self.run, batch_id)["attempt"]
            assert folder.name == attempt
            assert (folder / "shard").read_text() == attempt

    def teardown(self) -> None:
        """One live worker settles everything, while all others are silent."""
        if not hasattr(self, "run"):
            return
        board = Board(self.make_store(self.counter), BATCHES)
        for _ in range(2000):
            lease = board.next_lease()
            if lease is not None:
                assert lease.publish_done({}) == "won"
            elif board.all_settled():
                break
            else:
                self.now += max(board.wait_hint(), 0.01)
        else:
            raise AssertionError("one live worker did not finish the run")
        settled = set(board.done_ids()) | set(board.failed())
        assert settled == set(range(BATCHES))
        shutil.rmtree(self.root)


FileLeases.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)

TestFileLeases = FileLeases.TestCase
