"""Positions of everything in a report's charts: pure arithmetic. ``charts.html`` draws them.

Horizontal positions are shares of the width, between 0 and 1, or units of a drawing that is
stretched to the width, so that text keeps its size on any screen. Heights are pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from leconvert.report.values import Attempt, AttemptEnd, Packer, RunReport, StreamFigures
from leconvert.support.text import amount, duration
from leconvert.support.values import dataclass

_SHORTEST_BREAK_SECONDS = 30.0
_BREAK_SHARE_OF_WORK = 0.2
_BREAK_WIDTH = 0.04
_SHORTEST_SECONDS = 1e-3
_STEPS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
    7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
_MOST_TICKS = 5
_MOST_BINS = 10
_LEAST_DISTANCE = 0.18

WIDTH_UNITS = 10_000
"""Width of a drawing that is stretched to the width of a chart."""
PLOT_HEIGHT = 150
"""Height of the bars and areas of a chart."""


def brief(seconds: float) -> str:
    """Return a duration in few letters: ``0.25 s``, ``12 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.3g} s"
    return duration(seconds).removesuffix(" 00 s").removesuffix(" 00 min")


class TimeAxis:
    """Maps seconds to a position between 0 and 1, with idle stretches cut short.

    Without the cuts, a run that was interrupted and resumed the next day would be a line with a
    speck at each end.

    Args:
        spans: Times of work: (began, ended), in any order, at least one.

    Attributes:
        breaks: Positions of the cut stretches: (from, to, seconds that were cut).
        began: The earliest time.
        ended: The latest time.
        parts: The stretches between the cut ones: (began, ended).
        busy_seconds: Sum of the lengths of ``parts``.
    """

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        blocks = _united(spans)
        busy = sum(stop - start for start, stop in blocks)
        self.parts = _united(blocks, max(_SHORTEST_BREAK_SECONDS, _BREAK_SHARE_OF_WORK * busy))
        self.began, self.ended = self.parts[0][0], self.parts[-1][1]
        self.busy_seconds = max(sum(stop - start for start, stop in self.parts), _SHORTEST_SECONDS)
        cuts = len(self.parts) - 1
        width = min(_BREAK_WIDTH, 0.4 / max(1, cuts))
        scale = (1 - width * cuts) / self.busy_seconds
        self._times: list[float] = []
        self._places: list[float] = []
        self.breaks: list[tuple[float, float, float]] = []
        place = 0.0
        for number, (start, last) in enumerate(self.parts):
            if number:
                self.breaks.append((place, place + width, start - self._times[-1]))
                place += width
            stop = last if cuts else max(last, start + _SHORTEST_SECONDS)
            self._times += [start, stop]
            self._places += [place, place + (stop - start) * scale]
            place = self._places[-1]

    def place(self, time: float) -> float:
        """Return the position of a time, between 0 and 1."""
        return float(np.interp(time, self._times, self._places))

    def time(self, place: float) -> float:
        """Return the time at a position between 0 and 1."""
        return float(np.interp(place, self._places, self._times))

    def ticks(self) -> list[tuple[float, float]]:
        """Return the labels of the axis: (position, elapsed seconds).

        The steps are even up to the first cut. After each cut there is a label only at the start of
        work.
        """
        least = self.busy_seconds / _MOST_TICKS
        step = next((step for step in _STEPS if step >= least), _STEPS[-1])
        (_, first_stop), *later = self.parts
        marks = [
            (self.place(self.began + number * step), number * step)
            for number in range(int((first_stop - self.began) / step) + 1)
        ]
        for start, _ in later:
            place = self.place(start)
            while len(marks) > 1 and place - marks[-1][0] < _LEAST_DISTANCE:
                marks.pop()
            if place - marks[-1][0] >= _LEAST_DISTANCE:
                marks.append((place, start - self.began))
        return marks


def _united(spans: Iterable[tuple[float, float]], gap: float = 0.0) -> list[tuple[float, float]]:
    """Return spans in order; two are united if at most ``gap`` seconds lie between them."""
    united: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if united and start - united[-1][1] <= gap:
            united[-1] = united[-1][0], max(united[-1][1], stop)
        else:
            united.append((start, stop))
    return united


def working_axis(story: RunReport) -> TimeAxis | None:
    """Return the axis of a run's work, or None if its records hold no times.

    A packer that waits for workers does nothing, so only its beginning counts, and the time after
    the last attempt.
    """
    spans = [(a.began, a.ended or a.began) for a in story.attempts if a.began is not None]
    last = max((ended for _, ended in spans), default=0.0)
    for packer in story.packers:
        if packer.times:
            start, stop = packer.span
            spans += [(start, start), (min(stop, max(start, last)), stop)]
    return TimeAxis(spans) if spans else None


def by_worker(attempts: Iterable[Attempt]) -> dict[tuple[str, int, str], list[Attempt]]:
    """Return the attempts of each worker, by host, process and token, sorted."""
    found: dict[tuple[str, int, str], list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault((attempt.host, attempt.pid, attempt.token), []).append(attempt)
    return dict(sorted(found.items()))


def rates(done: Iterable[Attempt], axis: TimeAxis, count: int) -> list[float]:
    """Return source bytes a second in ``count`` equal pieces of the axis.

    The bytes of a batch are spread evenly over the attempt that finished it. Apart from sorting,
    the time is linear in attempts and pieces.
    """
    events = [(axis.began, 0.0)]
    for attempt in done:
        if attempt.began is not None:
            stop = max(attempt.ended or attempt.began, attempt.began + _SHORTEST_SECONDS)
            speed = attempt.source_bytes / (stop - attempt.began)
            events += [(attempt.began, speed), (stop, -speed)]
    times, changes = np.array(sorted(events)).T
    moved = np.concatenate([[0.0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(times))])
    edges = np.array([axis.time(number / count) for number in range(count + 1)])
    taken = np.diff(edges)
    found = np.diff(np.interp(edges, times, moved)) / np.where(taken > 0, taken, np.inf)
    return [float(rate) for rate in np.maximum(found, 0.0)]


def rate_area(values: Sequence[float], highest: float) -> str:
    """Return the corners of the area below the rates as SVG's ``points``; each rate is one step."""
    step = WIDTH_UNITS / len(values)
    heights = [round(PLOT_HEIGHT * (1 - value / highest), 1) for value in values]
    corners = [
        f"{round(edge * step)},{height}"
        for number, height in enumerate(heights)
        for edge in (number, number + 1)
    ]
    return " ".join([f"0,{PLOT_HEIGHT}", *corners, f"{WIDTH_UNITS},{PLOT_HEIGHT}"])


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a histogram: the number of durations from ``low`` to below ``high`` seconds."""

    low: float
    high: float
    count: int


def durations(seconds: Sequence[float]) -> list[Bin]:
    """Return a histogram; bins grow by a factor if durations differ widely, else they are even."""
    low, high = max(min(seconds), _SHORTEST_SECONDS), max(*seconds, _SHORTEST_SECONDS)
    count = max(1, min(_MOST_BINS, math.ceil(math.sqrt(len(seconds))) + 1))
    if high <= low * 1.001:
        return [Bin(low, high, len(seconds))]
    spaced = np.geomspace if high / low > 30 else np.linspace
    counts, edges = np.histogram(np.clip(seconds, low, high), spaced(low, high, count + 1))
    between = itertools.pairwise(edges.tolist())
    return [Bin(*edge, number) for edge, number in zip(between, counts.tolist(), strict=True)]


def size_rows(
    streams: Sequence[StreamFigures],
) -> tuple[list[tuple[int, str, list[tuple[str, int, float]]]], int]:
    """Return two bars a stream, before and after, and the total height.

    A row is its top in pixels, the stream, and its bars: (``before`` or ``after``, bytes, width).
    """
    largest = max([1, *(max(s.source_bytes or 0, s.result_bytes) for s in streams)])
    rows, top = [], 0
    for stream in streams:
        sizes = ("before", stream.source_bytes), ("after", stream.result_bytes)
        # The labels stand to the right of the longest bar.
        bars = [(word, size, 0.62 * size / largest) for word, size in sizes if size is not None]
        rows.append((top, stream.stream, bars))
        top += 26 + 16 * len(bars)
    return rows, top


# The timeline has a row a worker, grouped by host. Trouble is marked by shape and by colour. In a
# run of a hundred batches each has a tooltip. In a run of thousands, neighbours of one worker that
# would touch on the screen are drawn as one bar, and only the first of overlapping signs is drawn.
# With hundreds of workers a row is a host. So the drawing stays small however large the run.
_TITLED = 1_000
_MOST_LANES = 96
_MOST_BARS = 16_000
_MARK_DISTANCE = 0.02
_NARROWEST_BAR = 20
_HEADING_HEIGHT = 20
_GANTT_TOP = 4

LEGEND: Mapping[AttemptEnd, str] = {
    AttemptEnd.DONE: "done",
    AttemptEnd.ERROR: "ended in an error",
    AttemptEnd.LOST: "lost: the worker ended or froze, and another took over",
    AttemptEnd.HANDED_BACK: "handed back: the worker was stopped",
    AttemptEnd.LATE: "late: another attempt was finished first",
    AttemptEnd.VOID: "void: files of the attempt were missing or too short",
    AttemptEnd.HELD: "held: a worker still has the batch",
}
"""The meaning of each kind of bar, in the order of the legend."""
TROUBLE = frozenset(LEGEND) - {AttemptEnd.DONE, AttemptEnd.HELD}
"""Ends of attempts without a result."""
_AGAIN = "again"


class Bar(NamedTuple):
    """One shape of the timeline."""

    path: str  # SVG's ``d``
    kind: str  # CSS classes
    title: str | None = None  # text of the tooltip


class Row(NamedTuple):
    """One row of the timeline: a heading, or the bars of a worker, a host or a packer."""

    label: str
    top: int
    is_heading: bool
    bars: Sequence[Bar]
    marks: Sequence[tuple[float, str]]  # signs: (position, sign)


class Gantt(NamedTuple):
    """The timeline."""

    rows: Sequence[Row]
    pitch: int  # height of a row of bars
    top: int
    bottom: int
    legend: Sequence[tuple[str, str | None, str]]  # kinds of bars: CSS class, sign, meaning


def gantt(timed: Sequence[Attempt], packers: Iterable[Packer], axis: TimeAxis) -> Gantt:
    """Lay out the timeline of attempts that have a time."""
    tracks = [*_tracks(timed), *_packer_tracks([one for one in packers if one.times])]
    bars = sum(work is not None for _, work in tracks)
    pitch, top = 16 if bars <= 40 else 11, _GANTT_TOP
    many = len(timed) > _TITLED
    gap = max(5, WIDTH_UNITS * bars // _MOST_BARS)
    rows = []
    for label, work in tracks:
        drawn: Sequence[Bar] = ()
        marks: Sequence[tuple[float, str]] = ()
        if isinstance(work, Packer):
            drawn = _packer_bars(work, axis, top, pitch)
        elif work is not None:
            marks = _marks(work, axis, _MARK_DISTANCE if many else 0.0)
            if many:
                drawn = _merged_bars(work, axis, top, pitch, gap)
            else:
                drawn = [_titled_bar(attempt, axis, top, pitch) for attempt in work]
        rows.append(Row(label, top, work is None, drawn, marks))
        top += _HEADING_HEIGHT if work is None else pitch
    return Gantt(rows, pitch, _GANTT_TOP, top, _legend(timed))


_Track = tuple[str, Sequence[Attempt] | Packer | None]
"""The content of a timeline's row; None for a heading."""


def _tracks(timed: Sequence[Attempt]) -> list[_Track]:
    in_order = sorted(timed, key=lambda attempt: (attempt.began or 0.0, attempt.batch_id))
    workers = by_worker(in_order)
    tracks: list[_Track] = []
    if len(workers) <= _MOST_LANES:
        for host, own in itertools.groupby(workers, key=lambda worker: worker[0]):
            tracks += [(host, None), *((f"worker {key[1]}", workers[key]) for key in own)]
        return tracks
    names = sorted({host for host, _, _ in workers})
    row_of = {host: min(row, _MOST_LANES) for row, host in enumerate(names)}
    labels = names[:_MOST_LANES]
    if len(names) > _MOST_LANES:
        labels.append(f"{len(names) - _MOST_LANES} more hosts")
    rows: list[list[Attempt]] = [[] for _ in labels]
    for attempt in in_order:
        rows[row_of[attempt.host]].append(attempt)
    return list(zip(labels, rows, strict=True))


def _packer_tracks(packers: Sequence[Packer]) -> list[_Track]:
    heading: list[_Track] = [("packer", None)] if packers else []
    return [*heading, *((f"{packer.host} {packer.pid}", packer) for packer in packers)]


def _legend(timed: Iterable[Attempt]) -> list[tuple[str, str | None, str]]:
    """Return the legend of the kinds of bars that occur."""
    seen = {(attempt.end, _sign(attempt)) for attempt in timed}
    kinds = [(end, _slug(end) if end in TROUBLE else None, words) for end, words in LEGEND.items()]
    kinds.insert(1, (AttemptEnd.DONE, _AGAIN, "done at a later attempt"))
    return [(f"b-{_slug(end)}", sign, words) for end, sign, words in kinds if (end, sign) in seen]


def _sign(attempt: Attempt) -> str | None:
    """Return the sign that an attempt carries, if any."""
    if attempt.end is AttemptEnd.DONE:
        return _AGAIN if attempt.generation > 1 else None
    return _slug(attempt.end) if attempt.end in TROUBLE else None


def _slug(end: AttemptEnd) -> str:
    return end.value.replace(" ", "-")


def _marks(own: Sequence[Attempt], axis: TimeAxis, least: float) -> list[tuple[float, str]]:
    marks: list[tuple[float, str]] = []
    last = -1.0
    for attempt in own:
        place = axis.place(attempt.ended or attempt.began or 0.0)
        sign = _sign(attempt)
        if sign is not None and place - last >= least:
            last = place
            marks.append((min(max(place, 0.008), 0.992), sign))
    return marks


def _extent(began: float | None, ended: float | None, axis: TimeAxis) -> tuple[int, int]:
    began = began or 0.0
    first = round(WIDTH_UNITS * axis.place(began))
    last = max(round(WIDTH_UNITS * axis.place(ended or began)), first + _NARROWEST_BAR)
    return min(first, WIDTH_UNITS - _NARROWEST_BAR), min(last, WIDTH_UNITS)


def _path(first: int, last: int, top: int, pitch: int) -> str:
    height = pitch - 4
    return f"M{first} {top + 2}h{last - first}v{height}h-{last - first}z"


def _titled_bar(attempt: Attempt, axis: TimeAxis, top: int, pitch: int) -> Bar:
    took = "" if attempt.seconds is None else f" after {brief(attempt.seconds)}"
    words = (
        f"Batch {attempt.batch_id}, attempt {attempt.generation}: {attempt.end.value}{took}, "
        f"{amount(attempt.source_bytes)}"
    )
    extent = _extent(attempt.began, attempt.ended, axis)
    return Bar(_path(*extent, top, pitch), f"b-{_slug(attempt.end)}", words)


def _merged_bars(
    own: Sequence[Attempt], axis: TimeAxis, top: int, pitch: int, gap: int
) -> list[Bar]:
    spans: dict[AttemptEnd, list[tuple[int, int]]] = {end: [] for end in LEGEND}
    for attempt in own:
        first, last = _extent(attempt.began, attempt.ended, axis)
        merged = spans[attempt.end]
        if merged and first - merged[-1][1] < gap:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return [
        Bar(
            "".join(_path(first, last, top, pitch) for first, last in merged),
            f"b-{_slug(end)} merged",
        )
        for end, merged in spans.items()  # LEGEND's order: trouble is drawn above what went well
        if merged
    ]


def _packer_bars(packer: Packer, axis: TimeAxis, top: int, pitch: int) -> list[Bar]:
    start, stop = packer.span
    swap = packer.times.get("swapping")
    parts = [(start, stop if swap is None else swap, "packs and verifies")]
    if swap is not None:
        parts.append((swap, stop, "swaps the result into place"))
    return [
        Bar(
            _path(*_extent(began, ended, axis), top, pitch),
            "b-packer",
            f"Packer {packer.generation} {words}",
        )
        for began, ended, words in parts
    ]
