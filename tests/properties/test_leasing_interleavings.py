"""Any interleaving of workers, freezes and crashes: one result a batch, none lost, and an end.

Two machines: the pure decisions over a model of the log, and the real store over real files.
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
from leconvert.run.leasing.state import (
    Claim,
    Generation,
    GiveUp,
    LeaseLog,
    LeaseObservation,
    Limits,
    Outcome,
    decide,
    observe,
)
from leconvert.support.errors import LeconvertError
from leconvert.workdir.records import WorkDir

WORKERS, BATCHES = 3, 3
LEASE_SECONDS = 60.0
LIMITS = Limits(LEASE_SECONDS, max_attempts=3, max_losses=10)

workers = st.integers(0, WORKERS - 1)
batches = st.integers(0, BATCHES - 1)
seconds = st.sampled_from([0.0, 1.0, 14.0, 30.0, 59.0, 61.0, 3600.0])


class PureLeases(RuleBasedStateMachine):
    """One batch; each worker has a clock of its own, and some never run again."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[int, Outcome | None] = {}
        self.beats: dict[int, int] = {}
        self.claimed_by: dict[int, int] = {}
        self.published: list[int] = []
        self.failed = False
        self.clocks = [1000.0 * worker for worker in range(WORKERS)]
        self.seen: list[LeaseObservation | None] = [None] * WORKERS
        self.last_beat_at: dict[int, list[float]] = {}

    def log(self) -> LeaseLog:
        return LeaseLog(
            tuple(Generation(number, self.ends[number]) for number in sorted(self.ends))
        )

    @rule(worker=workers, passed=seconds)
    def time_passes_for_one(self, worker: int, passed: float) -> None:
        self.clocks[worker] += passed

    @rule(worker=workers)
    def look_and_claim(self, worker: int) -> None:
        if self.published:
            return
        log = self.log()
        now = self.clocks[worker]
        latest = log.latest
        if latest is not None and latest.outcome is None:
            nonce = str(self.beats[latest.number]).encode()
            self.seen[worker] = observe(self.seen[worker], latest.number, nonce, now)
        decision = decide(log, self.seen[worker], now=now, limits=LIMITS)
        if isinstance(decision, GiveUp):
            assert decision.errors >= 3 or decision.losses >= 10
            self.failed = True
        if isinstance(decision, Claim):
            assert decision.generation not in self.ends, "claims fence: no number twice"
            if latest is not None and latest.outcome is None:
                # Nobody beat since this worker began to watch, a lease ago on its own clock.
                watched_since = self.last_beat_at[latest.number][worker]
                assert now - watched_since >= LEASE_SECONDS
            self.ends[decision.generation] = None
            self.beats[decision.generation] = 0
            self.claimed_by[decision.generation] = worker
            self.last_beat_at[decision.generation] = list(self.clocks)

    @rule(pick=st.integers(0, 50))
    def a_holder_beats(self, pick: int) -> None:
        open_claims = [number for number, end in self.ends.items() if end is None]
        if open_claims:
            number = open_claims[pick % len(open_claims)]
            self.beats[number] += 1
            self.last_beat_at[number] = list(self.clocks)

    @rule(pick=st.integers(0, 50), outcome=st.sampled_from([Outcome.HANDED_BACK, Outcome.ERROR]))
    def a_holder_ends(self, pick: int, outcome: Outcome) -> None:
        open_claims = [number for number, end in self.ends.items() if end is None]
        if open_claims:
            self.ends[open_claims[pick % len(open_claims)]] = outcome

    @rule(pick=st.integers(0, 50))
    def a_holder_or_zombie_publishes(self, pick: int) -> None:
        open_claims = [number for number, end in self.ends.items() if end is None]
        if open_claims and not self.published:
            self.published.append(open_claims[pick % len(open_claims)])

    @invariant()
    def handing_back_never_gives_a_batch_up(self) -> None:
        log = self.log()
        ended = sum(end is not None for end in self.ends.values())
        assert log.errors <= ended
        if log.errors < 3 and len(self.ends) - ended < 10:
            assert not isinstance(decide(log, None, now=0, limits=LIMITS), GiveUp)

    def teardown(self) -> None:
        """One worker that stays alive settles the batch within two leases a claim."""
        if self.published:
            return
        now = self.clocks[0]
        seen = None
        for _ in range(100):
            log = self.log()
            latest = log.latest
            if latest is not None and latest.outcome is None:
                nonce = str(self.beats[latest.number]).encode()
                seen = observe(seen, latest.number, nonce, now)
            decision = decide(log, seen, now=now, limits=LIMITS)
            if isinstance(decision, Claim | GiveUp):
                return
            assert decision.until <= now + LEASE_SECONDS
            now = decision.until
        raise AssertionError("a live worker never got the batch")


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
            self.run,
            "r1",
            WorkerIdentity(f"w{number}", "host", number),
            lease_seconds=LEASE_SECONDS,
            clock=lambda: self.now,
            fs=FaultyFileSystem(),
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
        if void_done(self.run, "r1", batch_id, "short"):
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
            judged = {} if batch_id in self.torn else read_done(self.run, "r1", batch_id)
            self.judged[batch_id] = judged

    @rule(batch_id=batches)
    def a_frozen_packer_voids_nothing_but_what_it_judged(self, batch_id: int) -> None:
        if (judged := self.judged.pop(batch_id, None)) is None:
            return
        there = batch_id in self.winners
        is_it = there and (
            not judged if batch_id in self.torn else judged == read_done(self.run, "r1", batch_id)
        )
        assert void_done(self.run, "r1", batch_id, "short", judged=judged) == is_it
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
            folder = self.run.root / read_done(self.run, "r1", batch_id)["attempt"]
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


PureLeases.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
FileLeases.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)

TestPureLeases = PureLeases.TestCase
TestFileLeases = FileLeases.TestCase
