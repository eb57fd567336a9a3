"""Which workers a driver starts on a cluster whose every move a test decides."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leconvert.run.engines.ray import Driver, Order, Outcome, RayOptions

if TYPE_CHECKING:
    from tests.unit.conftest import TurnedClock

LOST = Outcome(None)
NOTHING_LEFT = Outcome(0, "host")
FAILED = Outcome(11, "host")


class FakeCluster:
    """Nodes that come and go, and workers that end, when a test says so.

    Attributes:
        started: The arguments, log and node of every worker; its position is its handle.
    """

    def __init__(self, nodes: str) -> None:
        self.nodes = nodes
        self.started: list[tuple[Iterable[str], Path, str | None]] = []
        self.cancelled: list[int] = []
        self.outcomes: dict[int, Outcome] = {}

    def fitting_nodes(self) -> Collection[str]:
        return list(self.nodes)

    def start(self, arguments: Iterable[str], log: Path, node: str | None) -> int:
        self.started.append((arguments, log, node))
        return len(self.started) - 1

    def ended(self, handles: Iterable[int], _seconds: float) -> Mapping[int, Outcome]:
        return {one: self.outcomes.pop(one) for one in list(handles) if one in self.outcomes}

    def cancel(self, handles: Iterable[int]) -> None:
        self.cancelled += handles


class Drive:
    """A driver on such a cluster that has taken its first look."""

    def __init__(
        self, clock: TurnedClock, folder: Path, nodes: str, count: int, per_node: int | None,
        cluster: FakeCluster | None = None,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.cluster = cluster or FakeCluster(nodes)
        self.told: list[Mapping[str, Any]] = []
        options = RayOptions(workers=count, workers_per_node=per_node, node_wait_seconds=60.0)
        order = Order(options, count, ["WORK"], folder, "ray-1")
        self.driver = Driver(order, self.cluster, self.told.append, clock=clock)  # type: ignore[arg-type]
        self.stop = threading.Event()
        self._seen = 0
        self.driver.start_missing()

    def look(self, nodes: str | None = None, *, after: float = 0.0, **ended: Outcome) -> str:
        """Look again; return the nodes of the workers started since the last look, ``*`` for any.

        Args:
            nodes: The nodes from now on.
            after: So many seconds later.
            ended: How workers ended: ``w0`` is the one that was started first.
        """
        self.clock.seconds += after
        self.cluster.nodes = self.cluster.nodes if nodes is None else nodes
        self.cluster.outcomes |= {int(name[1:]): outcome for name, outcome in ended.items()}
        self.driver.look(self.stop, 0.0)
        return self.fresh()

    def fresh(self) -> str:
        fresh, self._seen = self.cluster.started[self._seen :], len(self.cluster.started)
        return "".join(node or "*" for _, _, node in fresh)

    @property
    def running(self) -> int:
        return self.driver.running()


@pytest.fixture
def drive(tmp_path: Path, clock: TurnedClock) -> Any:
    def make(nodes: str, count: int, per_node: int | None, **options: Any) -> Drive:
        return Drive(clock, tmp_path, nodes, count, per_node, **options)

    return make


def test_every_node_gets_its_share_and_without_a_limit_losses_are_replaced(drive: Any) -> None:
    two = drive("ab", 100, 2)
    assert (two.fresh(), two.look("abc"), two.look(), two.running) == ("abab", "cc", "", 6)
    anywhere = drive("a", 3, None)
    assert (anywhere.fresh(), anywhere.look("b")) == ("***", "")
    assert (anywhere.look(w1=LOST), anywhere.look(after=2.0)) == ("", "*")


def test_workers_of_a_lost_node_start_elsewhere_whether_it_is_heard_of_or_not(drive: Any) -> None:
    lossy = drive("abc", 4, 2)
    assert lossy.fresh() == "abca"
    assert lossy.look("ac") == "c"
    assert lossy.cluster.cancelled == [1]
    assert lossy.look(w1=NOTHING_LEFT) == ""  # too late: nobody waits for it any more
    assert lossy.running == 4
    lossy = drive("a", 1, 1)
    assert (lossy.fresh(), lossy.look(w0=LOST), lossy.running) == ("a", "", 1)
    assert lossy.look("b") == "b"
    assert (lossy.cluster.cancelled, lossy.driver.failures()) == ([], [])


def test_a_worker_that_finds_nothing_left_ends_the_search_for_more(drive: Any) -> None:
    ending = drive("ab", 10, 1)
    assert (ending.fresh(), ending.look(w0=NOTHING_LEFT)) == ("ab", "")
    assert ending.running == 1
    assert ending.look("abc", w1=LOST) == ""
    assert ending.look(after=100.0) == ""
    assert (ending.running, ending.driver.failures()) == (0, [])
    ending.look("")
    assert ending.running == 0, "no node is waited for any more"


@pytest.mark.parametrize("code", [130, -15, -2])
def test_a_worker_that_handed_back_is_not_replaced(drive: Any, code: int) -> None:
    shrinking = drive("ab", 2, 1)
    shrinking.fresh()
    assert shrinking.look(w0=Outcome(code, "host")) == ""
    assert shrinking.look("abc", after=100.0) == ""
    assert shrinking.look("bc") == ""
    assert (shrinking.running, shrinking.driver.failures()) == (1, [])
    shrinking.look("", w1=Outcome(code, "host"))
    assert shrinking.running == 0


def test_a_worker_that_fails_is_started_twice_with_growing_pauses(
    drive: Any, tmp_path: Path
) -> None:
    failing = drive("a", 1, 1)
    failing.fresh()
    (tmp_path / "ray-1-1.log").write_text("leconvert: the disk is full\n")
    for worker, pause in (("w0", 5.0), ("w1", 10.0)):
        assert failing.look(**{worker: FAILED}) == ""
        assert (failing.look(after=pause - 0.1), failing.running) == ("", 1)
        assert failing.look(after=0.2) == "a"
    failing.look(w2=Outcome(-9, "host"))
    assert (failing.look(after=1000.0), failing.running) == ("", 0)
    assert failing.driver.failures() == [
        "worker on host ended with code 11: leconvert: the disk is full",
        "worker on host ended with code 11: no output",
        "worker on host was killed by signal 9: no output (not started again after 3 failures)",
    ]


def test_a_slot_that_was_given_up_leaves_its_worker_and_long_good_work_counts(drive: Any) -> None:
    failing = drive("a", 1, 1)
    for worker in ("w0", "w1", "w2"):
        failing.look(after=60.0, **{worker: Outcome(None, "host", "it cannot be started")})
        failing.look(after=60.0)
    assert failing.fresh() == ""
    assert failing.look("ab") == "b"
    failing = drive("a", 1, 1)
    for number in range(5):
        failing.look(after=700.0, **{f"w{number}": FAILED})
        assert failing.look(after=6.0) == "a"
    assert failing.running == 1


def test_a_cluster_without_a_node_is_waited_for_but_not_for_ever(drive: Any) -> None:
    empty = drive("a", 2, 1)
    assert empty.fresh() == "a"
    empty.look("")
    assert (empty.cluster.cancelled, empty.running) == ([0], 1)
    assert (empty.look(after=59.0), empty.running) == ("", 1)
    assert empty.look("b") == "b"
    empty.look("")
    empty.clock.seconds += 61.0
    empty.driver.run(empty.stop)
    assert empty.told == [
        {
            "event": "state",
            "running": 0,
            "failures": ["no node of the cluster had room for a worker for 60 s"],
        }
    ]


def test_an_end_cancels_all_workers_and_what_became_of_them_is_told(drive: Any) -> None:
    ending = drive("ab", 2, 1)
    ending.cluster.outcomes = {0: Outcome(130, "host-a"), 1: Outcome(130, "host-b")}
    ending.driver.end()
    assert (ending.cluster.cancelled, ending.cluster.outcomes) == ([0, 1], {})
    ending = drive("ab", 2, 1)
    ending.cluster.outcomes = {
        0: Outcome(None, "host-a", "leconvert is not installed on host-a"),
        1: NOTHING_LEFT,
    }
    ending.driver.run(ending.stop)
    failures = ["leconvert is not installed on host-a"]
    assert ending.told == [{"event": "state", "running": 0, "failures": failures}]


def test_an_order_is_the_same_again_after_its_way_through_a_pipe(tmp_path: Path) -> None:
    options = RayOptions(
        workers=7, mem="2G", resources={"disk": 0.5}, runtime_env={"env_vars": {"A": "B"}}
    )
    order = Order(options, 5, ["WORK", "--lease-seconds=4"], tmp_path, "ray-1")
    assert order.as_line().count("\n") == 1
    assert Order.from_line(order.as_line()) == order
