"""Where attempts lie in time: pure arithmetic, no HTML.

A run that was interrupted and resumed the next day would be a line with a speck at each end. So
stretches in which nobody worked are cut short on the `TimeAxis`, and shown as cut.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leconvert.report.values import Attempt, AttemptEnd, Packer, Story

__all__ = [
    "Bin",
    "Lane",
    "TimeAxis",
    "durations",
    "lanes_by_host",
    "packer_span",
    "rates",
    "ticks",
    "working_axis",
]

_SHORTEST_BREAK_SECONDS = 30.0
_BREAK_SHARE_OF_WORK = 0.2
_BREAK_WIDTH = 0.04
_SHORTEST_SECONDS = 1e-3
_STEPS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
    7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
_MOST_TICKS = 5
_LEAST_DISTANCE = 0.18


@dataclass(frozen=True, slots=True)
class Lane:
    """The attempts of one worker, by the time they began."""

    host: str
    pid: int
    token: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a histogram: durations from ``low`` to below ``high`` seconds, and how many."""

    low: float
    high: float
    count: int


class TimeAxis:
    """Maps seconds to a place between 0 and 1, with idle stretches cut short.

    Args:
        spans: When somebody worked: (began, ended), in any order, at least one.

    Attributes:
        breaks: Places of the cut stretches: (from, to, seconds that were cut).
        began: The earliest time.
        ended: The latest.
        parts: The stretches between the cut ones: (began, ended).
        busy_seconds: What is left after cutting.
    """

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        blocks = _blocks(spans)
        gaps = [after[0] - before[1] for before, after in itertools.pairwise(blocks)]
        busy = sum(stop - start for start, stop in blocks)
        limit = max(_SHORTEST_BREAK_SECONDS, _BREAK_SHARE_OF_WORK * busy)
        parts: list[list[float]] = [list(blocks[0])]
        for block, gap in zip(blocks[1:], gaps, strict=True):
            if gap > limit:
                parts.append(list(block))
            else:
                parts[-1][1] = block[1]
        self.began, self.ended = parts[0][0], parts[-1][1]
        self.parts = [(start, stop) for start, stop in parts]
        self.busy_seconds = max(sum(stop - start for start, stop in parts), _SHORTEST_SECONDS)
        width = min(_BREAK_WIDTH, 0.4 / max(1, len(parts) - 1))
        scale = (1 - width * (len(parts) - 1)) / self.busy_seconds
        self._times: list[float] = []
        self._places: list[float] = []
        self.breaks: list[tuple[float, float, float]] = []
        place = 0.0
        for number, (start, last) in enumerate(parts):
            if number:
                cut = start - self._times[-1]
                self.breaks.append((place, place + width, cut))
                place += width
            stop = max(last, start + (_SHORTEST_SECONDS if len(parts) == 1 else 0.0))
            self._times += [start, stop]
            self._places += [place, place + (stop - start) * scale]
            place = self._places[-1]

    def place(self, time: float) -> float:
        """Return where a time lies, between 0 and 1."""
        return _interpolated(time, self._times, self._places)

    def time(self, place: float) -> float:
        """Return the time at a place between 0 and 1."""
        return _interpolated(place, self._places, self._times)


def _blocks(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans united where they touch, in order."""
    united: list[list[float]] = []
    for start, stop in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1][1] = max(united[-1][1], stop)
        else:
            united.append([start, stop])
    return [(start, stop) for start, stop in united]


def _interpolated(value: float, knots: Sequence[float], values: Sequence[float]) -> float:
    index = min(max(bisect.bisect_right(knots, value) - 1, 0), len(knots) - 2)
    low, high = knots[index], knots[index + 1]
    share = 0.0 if high <= low else min(max((value - low) / (high - low), 0.0), 1.0)
    return values[index] + share * (values[index + 1] - values[index])


def packer_span(packer: Packer) -> tuple[float, float] | None:
    """Return when a packer worked, as far as its record says, or None."""
    if not packer.times:
        return None
    return min(packer.times.values()), max(packer.times.values())


def working_axis(story: Story) -> TimeAxis | None:
    """Return the axis of a run's work, or None where its records hold no times.

    A packer that waits for workers does nothing: it counts when it begins, and after the last of
    them.
    """
    spans = [(a.began, a.ended or a.began) for a in story.attempts if a.began is not None]
    last = max((ended for _, ended in spans), default=0.0)
    for packer in story.packers:
        if (span := packer_span(packer)) is not None:
            start, stop = span
            spans += [(start, start), (min(stop, max(start, last)), stop)]
    return TimeAxis(spans) if spans else None


def lanes_by_host(attempts: Iterable[Attempt]) -> dict[str, list[Lane]]:
    """Return attempts that have a time, a lane a worker, in order of host and process."""
    by_worker: dict[tuple[str, int, str], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.began is not None:
            key = (attempt.host, attempt.pid, attempt.token)
            by_worker.setdefault(key, []).append(attempt)
    hosts: dict[str, list[Lane]] = {}
    for (host, pid, token), own in sorted(by_worker.items(), key=lambda entry: entry[0]):
        own.sort(key=lambda attempt: (attempt.began or 0.0, attempt.batch_id))
        hosts.setdefault(host, []).append(Lane(host, pid, token, tuple(own)))
    return hosts


def rates(attempts: Iterable[Attempt], axis: TimeAxis, count: int) -> list[float]:
    """Return source bytes a second in ``count`` equal pieces of the axis.

    The bytes of a batch are spread evenly over its winning attempt. Sorting apart, the time this
    takes is linear in attempts and pieces.
    """
    edges = [axis.time(number / count) for number in range(count + 1)]
    events: list[tuple[float, float]] = []
    for attempt in attempts:
        if attempt.end is AttemptEnd.DONE and attempt.began is not None:
            stop = max(attempt.ended or attempt.began, attempt.began + _SHORTEST_SECONDS)
            speed = attempt.source_bytes / (stop - attempt.began)
            events += [(attempt.began, speed), (stop, -speed)]
    events.sort()
    done, speed, seen, next_event = 0.0, 0.0, edges[0], 0
    at_edges = []
    for edge in edges:
        while next_event < len(events) and events[next_event][0] <= edge:
            time, change = events[next_event]
            done += speed * (time - seen)
            seen, speed = time, speed + change
            next_event += 1
        done += speed * max(edge - seen, 0.0)
        seen = max(seen, edge)
        at_edges.append(done)
    return [
        0.0 if stop <= start else max(0.0, (at_edges[n + 1] - at_edges[n]) / (stop - start))
        for n, (start, stop) in enumerate(itertools.pairwise(edges))
    ]


def durations(seconds: Sequence[float], most_bins: int = 10) -> list[Bin]:
    """Return a histogram; its edges grow evenly, or by a factor where durations differ widely.

    Args:
        seconds: One duration a batch, at least one.
        most_bins: Bars at most.
    """
    low, high = max(min(seconds), _SHORTEST_SECONDS), max(*seconds, _SHORTEST_SECONDS)
    count = max(1, min(most_bins, math.ceil(math.sqrt(len(seconds))) + 1))
    if high <= low * 1.001:
        return [Bin(low, high, len(seconds))]
    if high / low > 30:
        edges = [low * (high / low) ** (number / count) for number in range(count + 1)]
    else:
        edges = [low + (high - low) * number / count for number in range(count + 1)]
    counts = [0] * count
    for value in seconds:
        counts[min(max(bisect.bisect_right(edges, value) - 1, 0), count - 1)] += 1
    return [Bin(edges[n], edges[n + 1], counts[n]) for n in range(count)]


def ticks(axis: TimeAxis) -> list[tuple[float, float]]:
    """Return where to write which elapsed seconds below the axis: (place, seconds).

    Even steps up to the first stretch that was cut; behind each cut only where work went on.
    """
    least = axis.busy_seconds / _MOST_TICKS
    step = next((step for step in _STEPS if step >= least), _STEPS[-1])
    (_, first_stop), *later = axis.parts
    marks = [
        (axis.place(axis.began + number * step), number * step)
        for number in range(int((first_stop - axis.began) / step) + 1)
    ]
    for start, _ in later:
        place = axis.place(start)
        while len(marks) > 1 and place - marks[-1][0] < _LEAST_DISTANCE:
            marks.pop()
        if place - marks[-1][0] >= _LEAST_DISTANCE:
            marks.append((place, start - axis.began))
    return marks
