"""The process that talks to Ray, so that nobody else has to.

    python -m leconvert.engines.ray

Its first line of input is an order, as JSON; the end of its input, or a line ``stop``, tells it to
ask all workers to hand back and to end. It answers in lines of JSON: ``begun`` once the first
workers are on their way, ``refused`` if there will be none, ``state`` every second, and ``ended``.
Everything else that it, or Ray, has to say goes to standard error.

It is a process, not a thread, for what Ray does to its drivers: calls that never return while a
link is cut, and an end of the whole process when the cluster's head is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from leconvert.engines.logs import last_words
from leconvert.engines.ray.cluster import Cluster, RayCluster, WorkerOrder
from leconvert.engines.ray.fleet import Fleet, Limits
from leconvert.engines.ray.options import RayOptions
from leconvert.errors import EngineError, LeconvertError

__all__ = ["Driver", "Order", "check_room", "main"]

_SECONDS_A_ROUND = 0.5
_GRACE_SECONDS = 25.0


@dataclass(frozen=True, slots=True)
class Order:
    """What a driver is told.

    Attributes:
        options: Which cluster, and what workers ask for.
        count: How many workers at most.
        arguments: What follows ``leconvert work``.
        logs_dir: Where workers' output goes.
        name: Begins the names of their logs, unique in the folder.
    """

    options: RayOptions
    count: int
    arguments: Sequence[str]
    logs_dir: Path
    name: str

    def as_line(self) -> str:
        """Return the order as a line of input."""
        record = {
            "options": self.options.as_record(),
            "count": self.count,
            "arguments": list(self.arguments),
            "logs_dir": str(self.logs_dir),
            "name": self.name,
        }
        return json.dumps(record) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Order:
        """Return the order that a line of input says."""
        record = json.loads(line)
        return cls(
            RayOptions(**record["options"]),
            record["count"],
            record["arguments"],
            Path(record["logs_dir"]),
            record["name"],
        )


class Driver:
    """Starts the workers that a fleet wants, and tells it what became of them.

    Args:
        order: What to do.
        cluster: Where.
        tell: Called with every event.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        order: Order,
        cluster: Cluster,
        tell: Callable[[Mapping[str, Any]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = Limits(order.count, order.options.most_on_a_node, order.options.node_wait_seconds)
        self._order = order
        self._cluster = cluster
        self._tell = tell
        self._clock = clock
        self._fleet = Fleet(limits, clock=clock)
        # Ray's handle of the worker at each place that has one, and the worker's log.
        self._busy: dict[Any, tuple[int, Path]] = {}

    @property
    def started(self) -> int:
        """How many workers run or wait for room."""
        return len(self._busy)

    def run(self, stop: threading.Event) -> None:
        """Keep workers going until none is wanted any more, or ``stop`` is set."""
        while not stop.is_set() and self._fleet.running():
            self.look(stop, _SECONDS_A_ROUND)
            failures = self._fleet.failures()
            if self._fleet.is_hopeless:
                waited = self._order.options.node_wait_seconds
                failures.append(f"no node of the cluster had room for a worker for {waited:g} s")
                self._tell({"event": "state", "running": 0, "failures": failures})
                return
            running = self._fleet.running()
            self._tell({"event": "state", "running": running, "failures": failures})

    def begin(self) -> None:
        """Start the first workers."""
        self._see_nodes()
        self._start_due()

    def look(self, stop: threading.Event, seconds: float) -> None:
        """See what changed, and start what is wanted now.

        Args:
            stop: Ends a wait early where there is no worker to wait for.
            seconds: How long to wait for a worker's end.
        """
        if self._busy:
            for handle, outcome in self._cluster.ended(self._busy, seconds).items():
                number, log = self._busy.pop(handle)
                if outcome.failure is not None:
                    self._fleet.failed(number, outcome.failure)
                elif outcome.code is None:
                    self._fleet.lost(number)
                else:
                    self._fleet.ended(number, outcome.code, outcome.host, last_words(log))
        else:
            stop.wait(seconds)
        self._see_nodes()
        self._start_due()

    def end(self) -> None:
        """Ask all workers to hand back, and wait for that, but not for long."""
        self._cluster.cancel(self._busy)
        deadline = self._clock() + _GRACE_SECONDS
        while self._busy and (left := deadline - self._clock()) > 0:
            for handle in self._cluster.ended(self._busy, min(left, _SECONDS_A_ROUND)):
                del self._busy[handle]

    def _see_nodes(self) -> None:
        abandoned = set(self._fleet.see_nodes(self._cluster.fitting_nodes()))
        lost = [handle for handle, (number, _) in self._busy.items() if number in abandoned]
        for handle in lost:
            del self._busy[handle]
        self._cluster.cancel(lost)

    def _start_due(self) -> None:
        order = self._order
        for place in self._fleet.due():
            log = order.logs_dir / f"{order.name}-{place.number}-{place.tries}.log"
            worker = WorkerOrder(("work", *order.arguments), log, place.node)
            self._busy[self._cluster.start(worker)] = (place.number, log)


def main() -> int:
    """Run as a process; see the module's head."""
    # Ray prints to standard output: our events keep it to themselves.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(event: Mapping[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    order = Order.from_line(sys.stdin.readline())
    if not order.options.runtime_env:  # which may name folders relative to this one
        # Ray lets workers import from its driver's folder, where a user's inspect.py may lie.
        os.chdir(order.logs_dir)
    try:
        cluster = RayCluster(order.options)
        check_room(cluster)
    except LeconvertError as error:
        tell({"event": "refused", **error.as_record()})
        return error.exit_code
    driver = Driver(order, cluster, tell)
    stop = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, stop), daemon=True).start()
    driver.begin()
    tell({"event": "begun", "job_id": cluster.job_id, "workers": driver.started})
    driver.run(stop)
    driver.end()
    cluster.close()
    tell({"event": "ended"})
    return 0


def check_room(cluster: RayCluster) -> None:
    """Fail if no node is large enough for a worker: Ray would wait for one without a word.

    Raises:
        EngineError: None is.
    """
    if not cluster.fitting_nodes():
        raise EngineError(
            f"No node of the Ray cluster can hold a worker: {cluster.largest_node()}.",
            next_step="Ask for less with --cpus-per-task, --mem and --ray-resource, or add nodes.",
        )


def _listen(orders: TextIO, stop: threading.Event) -> None:
    """Wait for the order to stop, or for the end of whoever gives orders."""
    for line in orders:
        if line.strip() == "stop":
            break
    stop.set()
