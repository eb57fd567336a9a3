"""The timeline: a row a worker, grouped by host; what went wrong is marked by shape and by colour.

A run of a hundred batches shows each with a tooltip. Where there are thousands, neighbours of one
worker that would touch on the screen are drawn as one bar, and of signs that would cover each other
the first; where there are hundreds of workers, a row is a host. So the drawing stays small however
large the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leconvert.report.charts import WIDTH_UNITS, brief, image, percent, stretched, time_marks
from leconvert.report.markup import Markup, element
from leconvert.report.timeline import Lane, TimeAxis, packer_span
from leconvert.report.values import Attempt, AttemptEnd, Packer
from leconvert.text import amount

__all__ = ["LEGEND", "gantt", "legend", "signs"]

_TITLED = 1_000
_MOST_LANES = 96
_MOST_BARS = 16_000
_MARK_DISTANCE = 0.02
_NARROWEST_BAR = 20
_HEAD = 20
_TOP = 4
_AXIS_HEIGHT = 22

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
    """Return the timeline with the names of its rows at the left.

    Args:
        name: Unique on the page.
        hosts: Workers' attempts by host.
        packers: Packers; those without times are left out.
        axis: The axis, which covers all of them.
        description: What it shows, in words.
    """
    rows = _rows(hosts, packers)
    bars = sum(not row.head for row in rows)
    pitch = 16 if bars <= 40 else 11
    attempts = sum(len(row.attempts) for row in rows)
    labels: list[Markup] = []
    drawn: list[Markup] = []
    marks: list[Markup] = []
    y = _TOP
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
        time_marks(axis, _TOP, y),
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
