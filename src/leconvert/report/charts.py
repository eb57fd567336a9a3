"""Charts as inline SVG: bars of sizes, throughput, durations.

Every chart is a `figure`: an image with a title and a description for those who do not see it, a
caption that says the same in words, and a table where numbers matter. Horizontal places are per
cent of the width, so that text keeps its size on any screen; heights are pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

from leconvert.report.markup import Content, Markup, element
from leconvert.report.timeline import Bin, TimeAxis, ticks
from leconvert.report.values import StreamFigures
from leconvert.text import amount, count, duration, shorten

__all__ = [
    "WIDTH_UNITS",
    "brief",
    "duration_chart",
    "figure",
    "image",
    "percent",
    "rate_chart",
    "size_chart",
    "stretched",
    "time_marks",
]

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


def figure(*content: Content, caption: Content, name: str) -> Markup:
    """Return a chart with its words below."""
    return element("figure", *content, element("figcaption", caption), id=name)


def image(name: str, title: str, description: str, height: int, *content: Content) -> Markup:
    """Return an SVG of the page's width with its title and description.

    Args:
        name: Unique on the page.
        title: What it is.
        description: What it shows, in words.
        height: In CSS pixels.
        content: What is drawn.
    """
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
    """Return throughput over time as an area, with a line at the mean.

    Args:
        name: Unique on the page.
        values: Bytes a second in equal pieces of the axis, at least one.
        axis: The axis.
        mean: Mean bytes a second.
    """
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
