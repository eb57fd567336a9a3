"""The driver between a fleet and a cluster whose every move a test decides."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leconvert.run.engines.ray import Driver, Order, Outcome, RayOptions, WorkerOrder

if TYPE_CHECKING:
    from conftest import TurnedClock


class FakeCluster:
    """Nodes that come and go, and workers that end, when a test says so."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = {node: f"host-{node}" for node in nodes}
        self.orders: list[WorkerOrder] = []
        self.cancelled: list[int] = []
        self._ended: dict[int, Outcome] = {}

    def end(self, worker: int, outcome: Outcome) -> None:
        self._ended[worker] = outcome

    def lose(self, node: str) -> None:
        del self.nodes[node]

    def fitting_nodes(self) -> Mapping[str, str]:
        return dict(self.nodes)

    def start(self, order: WorkerOrder) -> int:
        self.orders.append(order)
        return len(self.orders) - 1

    def ended(self, handles: Iterable[Any], _seconds: float) -> Mapping[Any, Outcome]:
        return {one: self._ended.pop(one) for one in list(handles) if one in self._ended}

    def cancel(self, handles: Iterable[Any]) -> None:
        self.cancelled += handles

    @property
    def workers_on(self) -> list[str | None]:
        return [order.node for order in self.orders]


class Drive:
    """A driver on such a cluster, one look at a time."""

    def __init__(
        self, cluster: FakeCluster, options: RayOptions, folder: Path, clock: TurnedClock
    ) -> None:
        self.cluster = cluster
        self.told: list[Mapping[str, Any]] = []
        order = Order(options, min(10, options.most_workers), ["WORK"], folder, "ray-1")
        self.driver = Driver(order, cluster, self.told.append, clock=clock)
        self.stop = threading.Event()
        self.driver.begin()

    def look(self) -> None:
        self.driver.look(self.stop, 0.0)


@pytest.fixture
def drive(tmp_path: Path, clock: TurnedClock) -> Drive:
    options = RayOptions(nodes=2, workers_per_node=1, node_wait_seconds=30.0)
    return Drive(FakeCluster("a", "b", "c"), options, tmp_path, clock)


def test_workers_get_logs_of_their_own_and_the_arguments(drive: Drive, tmp_path: Path) -> None:
    assert drive.cluster.workers_on == ["a", "b"]
    assert [order.log for order in drive.cluster.orders] == [
        tmp_path / "ray-1-1-1.log",
        tmp_path / "ray-1-2-1.log",
    ]
    assert list(drive.cluster.orders[0].arguments) == ["work", "WORK"]
    assert drive.driver.started == 2


def test_a_node_that_dies_is_replaced_although_its_task_never_answers(drive: Drive) -> None:
    drive.cluster.lose("b")
    drive.look()
    assert drive.cluster.workers_on == ["a", "b", "c"]
    assert drive.cluster.cancelled == [1]
    drive.cluster.end(1, Outcome(0, "host-b"))  # too late: nobody waits for it any more
    drive.look()
    assert drive.driver.started == 2


def test_a_lost_task_is_started_where_its_node_is_not(drive: Drive, clock: TurnedClock) -> None:
    drive.cluster.end(1, Outcome(None))
    drive.cluster.lose("b")
    drive.look()
    assert drive.cluster.workers_on == ["a", "b", "c"]


def test_the_end_of_a_worker_s_log_says_why_it_failed(
    drive: Drive, tmp_path: Path, clock: TurnedClock
) -> None:
    (tmp_path / "ray-1-1-1.log").write_text("leconvert: the disk is full\n")
    drive.cluster.end(0, Outcome(11, "host-a"))
    drive.look()
    clock.seconds += 6.0
    drive.look()
    assert drive.cluster.orders[2].log.name == "ray-1-1-2.log"
    drive.cluster.end(1, Outcome(0, "host-b"))
    drive.cluster.end(2, Outcome(0, "host-a"))
    drive.driver.run(drive.stop)
    assert drive.told[-1] == {
        "event": "state",
        "running": 0,
        "failures": ["worker on host-a ended with code 11: leconvert: the disk is full"],
    }


def test_what_kept_a_worker_from_starting_is_a_failure(drive: Drive) -> None:
    drive.cluster.end(0, Outcome(None, "host-a", "leconvert is not installed on host-a"))
    drive.cluster.end(1, Outcome(0))
    drive.driver.run(drive.stop)
    assert drive.told[-1]["failures"] == ["leconvert is not installed on host-a"]


def test_a_cluster_that_loses_its_last_node_is_given_up_in_the_end(
    drive: Drive, clock: TurnedClock
) -> None:
    drive.cluster.nodes.clear()
    drive.look()
    clock.seconds += 31.0
    drive.driver.run(drive.stop)
    assert drive.told == [
        {
            "event": "state",
            "running": 0,
            "failures": ["no node of the cluster had room for a worker for 30 s"],
        }
    ]


def test_an_end_cancels_all_workers_and_waits_until_they_handed_back(drive: Drive) -> None:
    drive.cluster.end(0, Outcome(130, "host-a"))
    drive.cluster.end(1, Outcome(130, "host-b"))
    drive.driver.end()
    assert drive.cluster.cancelled == [0, 1]
    assert drive.driver.started == 0


def test_an_end_does_not_wait_for_ever(tmp_path: Path, clock: TurnedClock) -> None:
    class Hanging(FakeCluster):
        def ended(self, _: Iterable[Any], seconds: float) -> Mapping[Any, Outcome]:
            clock.seconds += seconds
            return {}

    drive = Drive(Hanging("a"), RayOptions(workers_per_node=1), tmp_path, clock)
    before = clock.seconds
    drive.driver.end()
    assert clock.seconds - before == pytest.approx(25.0)


def test_an_order_is_the_same_again_after_its_way_through_a_pipe(tmp_path: Path) -> None:
    options = RayOptions(
        workers=7, mem="2G", resources={"disk": 0.5}, runtime_env={"env_vars": {"A": "B"}}
    )
    order = Order(options, 5, ["WORK", "--lease-seconds=4"], tmp_path, "ray-1")
    assert order.as_line().count("\n") == 1
    assert Order.from_line(order.as_line()) == order
