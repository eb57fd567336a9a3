"""The charts of a report as inline SVG: safe markup, bars, and the timeline of attempts.

Every chart is a `figure`: an image with a title and a description for those who do not see it, a
caption that says the same in words, and a table where numbers matter. Horizontal places are per
cent of the width, so that text keeps its size on any screen; heights are pixels.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from markupsafe import Markup, escape

from leconvert.report.values import Attempt, AttemptEnd, Packer, RunReport, StreamFigures
from leconvert.support.text import amount, count, duration, shorten

# ------------------------------------------------------------------------------------------------
# SVG that is safe by construction: whatever is not `Markup` is escaped.


# Characters that HTML forbids, and those that turn the direction of all text after them.
_UNFIT = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ufffe\\uffff]"
)

Content = Union[str, int, None, Iterable["Content"]]  # noqa: UP007 - recursive: `|` needs a type


def clean(value: object) -> str:
    """Return text without characters that no page may hold; None is no text."""
    if value is None:
        return ""
    # Paths that are no UTF-8 come as lone surrogates, which cannot be written.
    whole = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", whole)


def element(name: str, /, *content: Content, **attributes: object) -> Markup:
    """Return one element; attributes and contents that are None are left out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), clean(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, _joined(content))


def _joined(content: Content) -> Markup:
    if isinstance(content, Markup):
        return content
    if content is None or isinstance(content, str | int):
        return escape(clean(content))
    return Markup("").join(map(_joined, content))


# ------------------------------------------------------------------------------------------------
# Where attempts lie in time: pure arithmetic, no HTML.
#
# A run that was interrupted and resumed the next day would be a line with a speck at each end. So
# stretches in which nobody worked are cut short on the `TimeAxis`, and shown as cut.


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


def working_axis(story: RunReport) -> TimeAxis | None:
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
    """Return a histogram; its edges grow evenly, or by a factor where durations differ widely."""
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


# ------------------------------------------------------------------------------------------------
# Bars: sizes, throughput, durations.


WIDTH_UNITS = 10_000
"""Width of what is stretched to the width of a chart."""
_PLOT_HEIGHT = 150
_AXIS_HEIGHT = 22
_TOP = 18


def brief(seconds: float) -> str:
    """Return a stretch of time in few letters: ``0.25 s``, ``12 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.3g} s"
    return duration(seconds).removesuffix(" 00 s").removesuffix(" 00 min")


def percent(place: float) -> str:
    """Return a place between 0 and 1 as SVG and CSS write it."""
    return f"{100 * place:.2f}%"


def image(name: str, title: str, description: str, height: int, *content: Content) -> Markup:
    """Return an SVG of the page's width with its title and description."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *content,
        class_="chart",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
        width="100%",
        height=height,
    )


def stretched(y: int, height: int, *content: Content) -> Markup:
    """Return an inner drawing of `WIDTH_UNITS` by ``height`` units that fills the width."""
    return element(
        "svg",
        *content,
        x=0,
        y=y,
        width="100%",
        height=height,
        viewBox=f"0 0 {WIDTH_UNITS} {height}",
        preserveAspectRatio="none",
    )


def _text(x: str, y: float, anchor: str, *content: Content, class_: str | None = None) -> Markup:
    return element("text", *content, x=x, y=y, text_anchor=anchor, class_=class_)


def _anchor(place: float) -> str:
    if place < 0.06:
        return "start"
    return "end" if place > 0.94 else "middle"


def _line(x1: str, y1: float, x2: str, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def time_marks(axis: TimeAxis, top: int, bottom: int) -> list[Markup]:
    """Return grid lines with elapsed time below, and stretches that were cut, hatched."""
    drawn = []
    for place, seconds in ticks(axis):
        drawn += [
            _line(percent(place), top, percent(place), bottom, "grid"),
            _text(percent(place), bottom + 15, _anchor(place), brief(seconds) if seconds else "0"),
        ]
    for start, stop, _ in axis.breaks:
        drawn.append(
            element(
                "rect", x=percent(start), y=top, width=percent(stop - start), height=bottom - top,
                class_="cut",
            )
        )  # fmt: skip
    return drawn


def rate_chart(name: str, values: Sequence[float], axis: TimeAxis, mean: float) -> Markup:
    """Return throughput over time as an area, with a line at the mean."""
    highest = max(*values, mean, 1.0)
    step = WIDTH_UNITS / len(values)
    points = []
    for number, value in enumerate(values):
        y = round(_PLOT_HEIGHT * (1 - value / highest), 1)
        points.append(f"{round(number * step)},{y} {round((number + 1) * step)},{y}")
    area = f"0,{_PLOT_HEIGHT} {' '.join(points)} {WIDTH_UNITS},{_PLOT_HEIGHT}"
    bottom = _TOP + _PLOT_HEIGHT
    mean_y = round(_TOP + _PLOT_HEIGHT * (1 - mean / highest), 1)
    peak = values.index(max(values)) / len(values)
    description = (
        f"Source bytes converted a second: {amount(mean)}/s on average, at most "
        f"{amount(max(values))}/s, {brief(axis.time(peak) - axis.began)} after the beginning."
    )
    return image(
        name,
        "Throughput over time",
        description,
        bottom + _AXIS_HEIGHT,
        time_marks(axis, _TOP, bottom),
        stretched(_TOP, _PLOT_HEIGHT, element("polygon", points=area, class_="area")),
        _line("0%", mean_y, "100%", mean_y, "mean"),
        _line("0%", bottom, "100%", bottom, "base"),
        _text("0%", 12, "start", f"{amount(highest)}/s at the top"),
        _text("100%", 12, "end", f"mean {amount(mean)}/s (dashed)"),
    )


def duration_chart(name: str, bins: Sequence[Bin], description: str) -> Markup:
    """Return a histogram of batch durations, a bar a bin with its number above."""
    highest = max(entry.count for entry in bins)
    bottom = _TOP + _PLOT_HEIGHT
    drawn: list[Markup] = []
    for number, entry in enumerate(bins):
        left, width = number / len(bins), 1 / len(bins)
        height = _PLOT_HEIGHT * entry.count / highest
        if entry.count:
            height = max(height, 2.0)
        drawn += [
            element(
                "rect",
                element("title", f"{_range(entry)}: {count(entry.count, 'batch', 'batches')}"),
                x=percent(left + 0.05 * width),
                y=round(bottom - height, 1),
                width=percent(0.9 * width),
                height=round(height, 1),
                class_="bar",
            ),
            _text(percent(left + width / 2), round(bottom - height - 4, 1), "middle",
                  f"{entry.count:,}" if entry.count else None, class_="small"),
        ]  # fmt: skip
    middle = len(bins) // 2
    marks = {0: 0.0, middle: middle / len(bins), len(bins): 1.0} if len(bins) > 1 else {0: 0.0}
    for number, place in marks.items():
        edge = bins[number].low if number < len(bins) else bins[-1].high
        drawn.append(_text(percent(place), bottom + 15, _anchor(place), brief(edge)))
    return image(
        name,
        "How long batches took",
        description,
        bottom + _AXIS_HEIGHT,
        drawn,
        _line("0%", bottom, "100%", bottom, "base"),
    )


def _range(entry: Bin) -> str:
    return f"{brief(entry.low)} to {brief(entry.high)}"


def size_chart(name: str, streams: Sequence[StreamFigures], description: str) -> Markup:
    """Return bytes before and after, two bars a stream: outlined before, solid after."""
    largest = max(
        (max(stream.source_bytes or 0, stream.result_bytes) for stream in streams), default=1
    )
    drawn: list[Markup] = []
    y = 0
    for stream in streams:
        drawn.append(_text("0%", y + 13, "start", shorten(stream.stream, 40, keep="tail")))
        y += 18
        for word, size, kind in (
            ("before", stream.source_bytes, "before"),
            ("after", stream.result_bytes, "bar"),
        ):
            if size is None:
                continue
            # The words stand to the right of the longest bar.
            share = 0.62 * size / max(largest, 1)
            drawn += [
                element("rect", x="0.1%", y=y + 1, width=percent(max(share, 0.003)), height=12,
                        class_=kind),
                _text(percent(share + 0.015), y + 11, "start", f"{word} {amount(size)}",
                      class_="small"),
            ]  # fmt: skip
            y += 16
        y += 8
    return image(name, "Size of each stream", description, y, drawn)


# ------------------------------------------------------------------------------------------------
# The timeline: a row a worker, grouped by host; what went wrong is marked by shape and by colour.
#
# A run of a hundred batches shows each with a tooltip. Where there are thousands, neighbours of
# one worker that would touch on the screen are drawn as one bar, and of signs that would cover
# each other the first; where there are hundreds of workers, a row is a host. So the drawing stays
# small however large the run.


_TITLED = 1_000
_MOST_LANES = 96
_MOST_BARS = 16_000
_MARK_DISTANCE = 0.02
_NARROWEST_BAR = 20
_HEAD = 20
_GANTT_TOP = 4

LEGEND: Mapping[AttemptEnd, str] = {
    AttemptEnd.DONE: "done",
    AttemptEnd.ERROR: "ended in an error",
    AttemptEnd.LOST: "lost: its worker died or froze, another took over",
    AttemptEnd.HANDED_BACK: "handed back: its worker was stopped",
    AttemptEnd.LATE: "late: another attempt was first",
    AttemptEnd.VOID: "void: its files were found missing or short",
    AttemptEnd.HELD: "still held",
}
"""What each kind of bar means, in the order of the legend."""

_AGAIN = "again"
_SIGNS = {
    "error": "M-4-4 4 4M-4 4 4-4",
    "lost": "M-4-4H4L0 4Z",
    "handed-back": "M4-4-4 0 4 4Z",
    "late": "M-4-2H4M-4 2H4",
    _AGAIN: "M-4 0H4M0-4V4",
    "void": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0M-3 3 3-3",
}


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the drawing: a head with a name, or bars."""

    label: str
    attempts: tuple[Attempt, ...] = ()
    packer: Packer | None = None
    head: bool = False


def gantt(
    name: str,
    hosts: Mapping[str, Sequence[Lane]],
    packers: Sequence[Packer],
    axis: TimeAxis,
    description: str,
) -> Markup:
    """Return the timeline with the names of its rows at the left."""
    rows = _rows(hosts, packers)
    bars = sum(not row.head for row in rows)
    pitch = 16 if bars <= 40 else 11
    attempts = sum(len(row.attempts) for row in rows)
    labels: list[Markup] = []
    drawn: list[Markup] = []
    marks: list[Markup] = []
    y = _GANTT_TOP
    small = "" if pitch == 16 else "-small"
    least = _MARK_DISTANCE if attempts > _TITLED else 0.0
    gap = max(5, WIDTH_UNITS * bars // _MOST_BARS)
    for row in rows:
        height = _HEAD if row.head else pitch
        kind = "host" if row.head else f"worker p{pitch}"
        labels.append(element("li", row.label, class_=kind, title=row.label))
        if row.packer is not None:
            drawn += _packer_bars(row.packer, axis, y, pitch)
        elif attempts <= _TITLED:
            drawn += [_titled_bar(attempt, axis, y, pitch) for attempt in row.attempts]
        else:
            drawn += _merged_bars(row.attempts, axis, y, pitch, gap)
        marked = -1.0
        for attempt in row.attempts:
            place = axis.place(attempt.ended or attempt.began or 0.0)
            sign = _sign(attempt)
            if sign is not None and place - marked >= least:
                marked = place
                marks.append(
                    element("use", href=f"#sign-{sign}{small}",
                            x=percent(min(max(place, 0.008), 0.992)), y=y + pitch // 2)
                )  # fmt: skip
        y += height
    chart = image(
        name,
        "Who worked when",
        description,
        y + _AXIS_HEIGHT,
        time_marks(axis, _GANTT_TOP, y),
        stretched(0, y, drawn),
        marks,
    )
    names = element("ol", labels, class_="rows", aria_hidden="true")
    return element("div", names, chart, class_="gantt")


def legend(attempts: Iterable[Attempt]) -> Markup:
    """Return what the kinds of bars that occur mean, each beside a sample of it."""
    seen = {(attempt.end, _sign(attempt)) for attempt in attempts}
    kinds = [
        (AttemptEnd.DONE, None, LEGEND[AttemptEnd.DONE]),
        (AttemptEnd.DONE, _AGAIN, "done at a later try"),
    ]
    kinds += [
        (end, _slug(end) if _slug(end) in _SIGNS else None, words)
        for end, words in LEGEND.items()
        if end is not AttemptEnd.DONE
    ]
    entries = []
    for end, sign, words in kinds:
        if (end, sign) not in seen:
            continue
        sample = element(
            "svg",
            element("rect", x=1, y=3, width=24, height=10, class_=f"b-{_slug(end)}"),
            None if sign is None else element("use", href=f"#sign-{sign}", x=13, y=8),
            width=26, height=16, class_="sample", aria_hidden="true",
        )  # fmt: skip
        entries.append(element("li", sample, " ", words))
    return element("ul", entries, class_="legend")


def signs() -> Markup:
    """Return the signs' definitions, once a page."""
    symbols = [
        element(
            "g",
            element("path", d=path, class_="halo"),
            element("path", d=path),
            id=f"sign-{sign}{suffix}",
            class_="sign",
            transform=transform,
        )
        for sign, path in _SIGNS.items()
        for suffix, transform in (("", None), ("-small", "scale(.72)"))
    ]
    hatch = element(
        "pattern",
        element("path", d="M0 6 6 0", class_="hatching"),
        id="hatch", width=6, height=6, patternUnits="userSpaceOnUse",
    )  # fmt: skip
    return element(
        "svg", element("defs", symbols, hatch),
        width=0, height=0, aria_hidden="true", class_="hidden",
    )  # fmt: skip


def _rows(hosts: Mapping[str, Sequence[Lane]], packers: Sequence[Packer]) -> list[_Row]:
    lanes = sum(map(len, hosts.values()))
    rows: list[_Row] = []
    if lanes <= _MOST_LANES:
        for host, own in hosts.items():
            rows.append(_Row(host, head=True))
            rows += [_Row(f"worker {lane.pid}", lane.attempts) for lane in own]
    else:
        shown = list(hosts.items())
        if len(shown) > _MOST_LANES:
            rest = [lane for _, own in shown[_MOST_LANES:] for lane in own]
            shown = [*shown[:_MOST_LANES], (f"{len(shown) - _MOST_LANES} more hosts", rest)]
        for host, own in shown:
            attempts = [attempt for lane in own for attempt in lane.attempts]
            attempts.sort(key=lambda attempt: attempt.began or 0.0)
            rows.append(_Row(host, tuple(attempts)))
    timed = [packer for packer in packers if packer_span(packer) is not None]
    if timed:
        rows.append(_Row("packer", head=True))
        rows += [_Row(f"{packer.host} {packer.pid}", packer=packer) for packer in timed]
    return rows


def _sign(attempt: Attempt) -> str | None:
    """Return the sign that an attempt carries, if any."""
    if attempt.end is AttemptEnd.DONE:
        return _AGAIN if attempt.generation > 1 else None
    slug = _slug(attempt.end)
    return slug if slug in _SIGNS else None


def _slug(end: AttemptEnd) -> str:
    return end.value.replace(" ", "-")


def _extent(began: float, ended: float, axis: TimeAxis) -> tuple[int, int]:
    first = round(WIDTH_UNITS * axis.place(began))
    last = max(round(WIDTH_UNITS * axis.place(ended)), first + _NARROWEST_BAR)
    return min(first, WIDTH_UNITS - _NARROWEST_BAR), min(last, WIDTH_UNITS)


def _bar(first: int, last: int, y: int, pitch: int) -> str:
    height = pitch - 4
    return f"M{first} {y + 2}h{last - first}v{height}h-{last - first}z"


def _titled_bar(attempt: Attempt, axis: TimeAxis, y: int, pitch: int) -> Markup:
    began = attempt.began or 0.0
    first, last = _extent(began, attempt.ended or began, axis)
    took = "" if attempt.seconds is None else f" after {brief(attempt.seconds)}"
    words = (
        f"Batch {attempt.batch_id}, attempt {attempt.generation}: {attempt.end.value}{took}, "
        f"{amount(attempt.source_bytes)}"
    )
    return element(
        "path", element("title", words), d=_bar(first, last, y, pitch),
        class_=f"b-{_slug(attempt.end)}",
    )  # fmt: skip


def _merged_bars(
    attempts: Sequence[Attempt], axis: TimeAxis, y: int, pitch: int, gap: int
) -> list[Markup]:
    spans: dict[AttemptEnd, list[list[int]]] = {end: [] for end in LEGEND}
    for attempt in attempts:  # in order of time
        began = attempt.began or 0.0
        first, last = _extent(began, attempt.ended or began, axis)
        own = spans[attempt.end]
        if own and first - own[-1][1] < gap:
            own[-1][1] = max(own[-1][1], last)
        else:
            own.append([first, last])
    return [
        element("path", d="".join(_bar(first, last, y, pitch) for first, last in own),
                class_=f"b-{_slug(end)} merged")
        for end, own in spans.items()  # what went wrong lies above what went well
        if own
    ]  # fmt: skip


def _packer_bars(packer: Packer, axis: TimeAxis, y: int, pitch: int) -> list[Markup]:
    span = packer_span(packer)
    if span is None:
        return []
    swap = packer.times.get("swapping")
    parts = [(span[0], span[1] if swap is None else swap, "packs and verifies")]
    if swap is not None:
        parts.append((swap, span[1], "swaps the result into place"))
    return [
        element(
            "path",
            element("title", f"Packer {packer.generation} {words}"),
            d=_bar(*_extent(start, stop, axis), y, pitch),
            class_="b-packer",
        )
        for start, stop, words in parts
    ]
