"""Which workers a cluster should have: decisions without a cluster.

A *place* is where one worker is wanted. Whoever watches the cluster tells the fleet what happened
and starts what is `Fleet.due`.

What is not promised: that two workers never serve one place. A node whose link is cut counts as
lost, and its worker may go on working behind the cut; leases make that harmless.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Fleet", "Limits", "Place"]

_MOST_FAILURES = 3
# A failure after so long is no sign of a place where workers cannot work.
_SECONDS_OF_GOOD_WORK = 600.0
_SECONDS_A_FAILURE = 5.0
_SECONDS_AFTER_A_LOSS = 1.0
_FAILURES_SHOWN = 10
# How `leconvert work` ends when it was asked to hand back, also while it was still starting.
_HANDED_BACK = frozenset((130, -15, -2))


class _State(enum.Enum):
    WAITING = enum.auto()
    BUSY = enum.auto()
    HANDED_BACK = enum.auto()
    GIVEN_UP = enum.auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """How many workers there may be.

    Attributes:
        total: In all.
        per_node: On one node; None to leave it to Ray where workers go.
        node_wait_seconds: How long to go on while no node can hold a worker.
    """

    total: int
    per_node: int | None
    node_wait_seconds: float


@dataclass(slots=True)
class Place:
    """Where one worker is wanted.

    Attributes:
        number: Its name, from 1.
        node: The id of the node it belongs to; None for wherever there is room.
        tries: Workers that were started here.
        failures: Workers that failed here in a row.
        not_before: When the next may be started.
        started_at: When the last was started.
    """

    number: int
    node: str | None
    tries: int = 0
    failures: int = 0
    not_before: float = 0.0
    started_at: float = 0.0
    state: _State = _State.WAITING


class Fleet:
    """The places of one run, and what happened at them.

    With a limit a node, every node that can hold a worker has its own places, a node that joins
    gets some, and those of a node that is lost move on to others with fewer than their share.
    Without, there are as many places as workers may be, and Ray finds room for each.

    A worker that ends because nothing is left ends the search for more; one that was asked to hand
    back is not replaced; one that failed is, twice, with growing pauses.

    Args:
        limits: How many there may be.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._nodes: dict[str, str] = {}
        self._places: dict[int, Place] = {}
        self._made = 0
        self._nothing_left = False
        self._nodes_seen_at = clock()
        self._failures: list[str] = []
        self._failed = 0

    def see_nodes(self, nodes: Mapping[str, str]) -> list[int]:
        """Take note of the nodes that live and can hold a worker, as host names by id.

        Returns:
            Places whose node is gone, and whose workers count as lost from now on.
        """
        self._nodes = dict(nodes)
        if nodes:
            self._nodes_seen_at = self._clock()
        gone = [p for p in self._places.values() if p.node is not None and p.node not in nodes]
        abandoned = []
        for place in gone:
            if place.state is _State.BUSY:
                abandoned.append(place.number)
            # Hand-backs count for good: whoever takes workers away wants fewer of them.
            if place.state is not _State.HANDED_BACK:
                del self._places[place.number]
        self._make_places()
        return abandoned

    def due(self) -> list[Place]:
        """Return the places where a worker is to be started now; they count as started."""
        if self._nothing_left:
            return []
        now = self._clock()
        due = [
            place
            for place in self._places.values()
            if place.state is _State.WAITING and place.not_before <= now
        ]
        for place in due:
            place.state, place.started_at, place.tries = _State.BUSY, now, place.tries + 1
        return due

    def ended(self, number: int, code: int, host: str, said: str) -> None:
        """Hear that a worker ended by itself.

        Args:
            number: Its place.
            code: Its exit code, negative for a signal.
            host: Where it ran.
            said: The end of its log.
        """
        if code == 0:
            self._nothing_left = True
            del self._places[number]
        elif code in _HANDED_BACK:
            self._places[number].state = _State.HANDED_BACK
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self.failed(number, f"worker on {host} {how}: {said}")

    def failed(self, number: int, reason: str) -> None:
        """Hear that a worker failed, or could not be started."""
        place, now = self._places[number], self._clock()
        if now - place.started_at > _SECONDS_OF_GOOD_WORK:
            place.failures = 0
        place.failures += 1
        place.not_before = now + _SECONDS_A_FAILURE * place.failures
        place.state = _State.WAITING
        if place.failures >= _MOST_FAILURES:
            place.state = _State.GIVEN_UP
            reason += f" (not started again after {_MOST_FAILURES} failures)"
        self._failed += 1
        self._failures = [*self._failures, reason][-_FAILURES_SHOWN:]

    def lost(self, number: int) -> None:
        """Hear that a worker is gone with its node; it is replaced as soon as there is a place."""
        place = self._places[number]
        place.state = _State.WAITING
        place.not_before = self._clock() + _SECONDS_AFTER_A_LOSS

    @property
    def is_hopeless(self) -> bool:
        """Whether no node could hold a worker for too long."""
        waited = self._clock() - self._nodes_seen_at
        return not self._nodes and waited > self._limits.node_wait_seconds

    def running(self) -> int:
        """Return how many workers run, wait to be started, or may yet get a node."""
        states = Counter(place.state for place in self._places.values())
        busy = states[_State.BUSY]
        if self._nothing_left:
            return busy
        wanted = busy + states[_State.WAITING]
        if wanted == 0 and not self._nodes and states[_State.HANDED_BACK] < self._limits.total:
            return 1
        return wanted

    def failures(self) -> list[str]:
        """Return one line a worker that failed: the last of them."""
        left = self._failed - len(self._failures)
        return [*([f"{left} more failed before"] if left else []), *self._failures]

    def _make_places(self) -> None:
        per_node = self._limits.per_node
        if per_node is None:
            while self._made < self._limits.total:
                self._make(None)
            return
        # A place that was given up keeps its node from more of the same, and no other node.
        taken = sum(place.state is not _State.GIVEN_UP for place in self._places.values())
        held = Counter(place.node for place in self._places.values())
        for _ in range(self._limits.total - taken):
            node = min(self._nodes, key=lambda node: held[node], default=None)
            if node is None or held[node] >= per_node:
                return
            held[node] += 1
            self._make(node)

    def _make(self, node: str | None) -> None:
        self._made += 1
        self._places[self._made] = Place(self._made, node)
