"""How long a fleet takes with many workers, on a clock that is turned: near what cannot be less.

The workers are real, and so are all leases. What is simulated is what takes time: planning a
dataset, writing a batch, packing. One thread runs at a time, and time goes on when all sleep.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leconvert.fleet import FleetDataset, FleetWorker, open_fleet, plan_fleet
from leconvert.fleet.work import Fleet, Free
from leconvert.run.conversion import LeaseOptions
from leconvert.run.leasing import Board, LeaseStore, WorkerIdentity, list_batches

# Heartbeats are sent by the real clock, which stands still beside the turned one.
LEASES = LeaseOptions(lease_seconds=1e9)


@dataclass(frozen=True)
class Cost:
    """What a dataset takes: one worker plans and packs it, any number writes its batches."""

    plan: float
    batches: tuple[float, ...]
    pack: float

    @property
    def total(self) -> float:
        return self.plan + sum(self.batches) + self.pack


class TurnedTime:
    """A clock, and threads of which one runs at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sleeping: list[tuple[float, int, threading.Event]] = []
        self._number = 0
        self._errors: list[BaseException] = []

    def clock(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        mine = self._enter(seconds)
        self._wake_next()
        mine.wait()

    def wait_for(self, event: threading.Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()

    def run(self, works: list[Callable[[], object]]) -> None:
        threads = []
        for work in works:
            thread = threading.Thread(target=self._run, args=(work, self._enter(0.0)))
            thread.start()
            threads.append(thread)
        self._wake_next()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _enter(self, seconds: float) -> threading.Event:
        event = threading.Event()
        self._number += 1
        heapq.heappush(self._sleeping, (self.seconds + seconds, self._number, event))
        return event

    def _wake_next(self) -> None:
        if self._sleeping:
            self.seconds, _, event = heapq.heappop(self._sleeping)
            event.set()

    def _run(self, work: Callable[[], object], turn: threading.Event) -> None:
        turn.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            self._errors.append(error)
        finally:
            self._wake_next()


class Simulated:
    """Conversions of which only the leases are real, as one worker has them."""

    def __init__(self, fleet: Fleet, costs: Mapping[str, Cost], time: TurnedTime, me: str) -> None:
        self._fleet = fleet
        self._costs = costs
        self._time = time
        self._me = WorkerIdentity(me, "host", 1)

    def take(self, dataset: FleetDataset) -> Mapping[str, Any]:
        cost = self._costs[dataset.name]
        self._time.sleep(cost.plan)
        self._fleet.work_dir.dataset(dataset.name).run("r1").ensure()
        board = self._board(dataset)
        while not self._work(dataset, board) or not board.all_settled():
            self._time.sleep(0.1)
            board.refresh()
        self._time.sleep(cost.pack)
        return {"was_finished": False, "flags": []}

    def free(self, dataset: FleetDataset) -> Free | None:
        paths = self._fleet.work_dir.dataset(dataset.name).run("r1")
        if not paths.leases_dir.is_dir():
            return None
        number = len(self._costs[dataset.name].batches)
        claimed, done = len(list_batches(paths.leases_dir)), len(list_batches(paths.done_dir))
        left = number - claimed
        return Free(left, left / number, claimed - done) if left else None

    def join(self, dataset: FleetDataset, max_batches: int) -> bool:
        return self._work(dataset, self._board(dataset), max_batches)

    def _board(self, dataset: FleetDataset) -> Board:
        store = LeaseStore(
            self._fleet.work_dir.dataset(dataset.name).run("r1"), self._me, lease_seconds=1e9,
            clock=self._time.clock,
        )  # fmt: skip
        return Board(store, len(self._costs[dataset.name].batches))

    def _work(self, dataset: FleetDataset, board: Board, max_batches: int = 10**9) -> bool:
        did = 0
        while did < max_batches and (lease := board.next_lease()) is not None:
            self._time.sleep(self._costs[dataset.name].batches[lease.batch_id])
            lease.publish_done({})
            did += 1
        board.refresh()
        return did > 0 or board.all_settled()


def makespan(
    folder: Path, costs: Mapping[str, Cost], workers: int, guess: Callable[[float], float]
) -> float:
    planned = plan_fleet(
        [FleetDataset(name, folder / "in" / name, folder / "out" / name) for name in costs],
        folder / "work",
    )
    datasets = [
        FleetDataset(one.name, one.source, one.target, cost_seconds=guess(costs[one.name].total))
        for one in planned.datasets
    ]
    fleet = Fleet(
        planned.work_dir, planned.run_id, planned.paths,
        sorted(datasets, key=lambda one: -one.cost_seconds), planned.policy,
    )  # fmt: skip
    time, stop = TurnedTime(), threading.Event()

    def worker(number: int) -> Callable[[], object]:
        simulated = Simulated(fleet, costs, time, f"host-{number}-0000000a")
        identity = WorkerIdentity(f"host-{number}-0000000b", "host", 1)
        store = LeaseStore(fleet.paths, identity, lease_seconds=1e9, clock=time.clock)
        fleet_worker = FleetWorker(
            fleet, LEASES, stop, conversions=simulated, store=store, waiter=time.wait_for,
            clock=time.clock,
        )  # fmt: skip

        return fleet_worker.run

    time.run([worker(number) for number in range(workers)])
    board = open_fleet(folder / "work").board(LEASES)
    board.refresh()
    assert board.done_ids() == list(range(len(costs)))
    return time.seconds


def lower_bound(costs: Mapping[str, Cost], workers: int) -> float:
    """No schedule is shorter: all work shared evenly, or one dataset on which everybody works."""
    of_one = max(
        cost.plan + max(sum(cost.batches) / workers, *cost.batches) + cost.pack
        for cost in costs.values()
    )
    return max(sum(cost.total for cost in costs.values()) / workers, of_one)


def many_small_and_one_huge(chance: random.Random) -> dict[str, Cost]:
    huge = Cost(30.0, tuple(chance.uniform(15.0, 25.0) for _ in range(100)), 45.0)
    small = {f"s{n:03d}": small_one(chance) for n in range(75)}
    return {"huge": huge, **small}


def small_one(chance: random.Random) -> Cost:
    work = chance.lognormvariate(2.5, 0.6)
    return Cost(0.2 * work, (0.5 * work,), 0.3 * work)


def sizes_of_every_kind(chance: random.Random) -> dict[str, Cost]:
    found = {}
    for n in range(60):
        total = min(chance.lognormvariate(3.0, 1.8), 4000.0)
        batches = max(1, int(total / 20))
        found[f"d{n:03d}"] = Cost(0.04 * total, (0.9 * total / batches,) * batches, 0.06 * total)
    return found


@pytest.mark.parametrize(
    ("datasets", "workers"), [(many_small_and_one_huge, 8), (sizes_of_every_kind, 12)]
)
def test_a_fleet_takes_at_most_a_tenth_longer_than_it_must(
    tmp_path: Path, datasets: Callable[[random.Random], dict[str, Cost]], workers: int
) -> None:
    chance = random.Random(7)
    costs = datasets(chance)
    # Nobody knows what a dataset costs before it is done; a guess by its description is far off.
    took = makespan(tmp_path, costs, workers, lambda seconds: seconds * chance.uniform(0.6, 1.6))
    print(f"{took:.0f} s, at least {lower_bound(costs, workers):.0f} s")
    assert took <= 1.1 * lower_bound(costs, workers)
