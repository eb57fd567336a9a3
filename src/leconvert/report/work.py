"""The part of the page about work: who did which batch when, how fast, and what went wrong."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from leconvert.report.charts import brief, duration_chart, figure, rate_chart
from leconvert.report.gantt import LEGEND, gantt, legend
from leconvert.report.markup import Content, Markup, element
from leconvert.report.parts import MOST_ROWS, folded, note, section, table, when
from leconvert.report.timeline import (
    Lane,
    TimeAxis,
    durations,
    lanes_by_host,
    rates,
    working_axis,
)
from leconvert.report.values import Attempt, AttemptEnd, Story
from leconvert.text import amount, count, duration

__all__ = ["work_section"]

_RATE_PIECES = 120
_SILENT = frozenset({AttemptEnd.LOST, AttemptEnd.LATE})
_SLOWEST = 10
_TROUBLE_SHOWN = 12
_WORKERS_SHOWN = 16
_DONE_HEAD = ("Batches", "Size", "Time at work", "Rate at work", "Came to nothing")
_TROUBLE = frozenset(LEGEND) - {AttemptEnd.DONE, AttemptEnd.HELD}


def work_section(story: Story) -> Markup | None:
    """Return the timeline, throughput and durations, or None where no run is known."""
    if story.batches is None:
        return None
    state = story.batches
    parts: list[Content] = [
        element(
            "p",
            f"{count(state.total, 'batch', 'batches')}: {state.done:,} done, {state.failed:,} set "
            f"aside, {state.held:,} held by a worker, {state.pending:,} waiting.",
        )
    ]
    if not story.attempts:
        parts.append(element("p", "Nobody has worked on a batch yet."))
        return section("work", "Work", parts)
    parts += [_timeline(story), _clock_note(story)]
    timed = [a for a in story.attempts if a.began is not None]
    done = [a for a in timed if a.end is AttemptEnd.DONE]
    if done:
        parts += [_throughput(done), _durations(done)]
    parts += [_workers(story), _held(story), _trouble(story)]
    return section("work", "Work", parts)


def _timeline(story: Story) -> Content:
    axis = working_axis(story)
    hosts = lanes_by_host(story.attempts)
    unknown = sum(attempt.began is None for attempt in story.attempts)
    missing = (
        note(f"Of {count(unknown, 'try', 'tries')} no time is on record; the tables count them.")
        if unknown
        else None
    )
    if axis is None or not hosts:
        return [note("This run's records hold no times: there is no timeline."), missing]
    words = _timeline_in_words(story, hosts, axis)
    return [
        element("h3", "Who worked when"),
        figure(
            legend(attempt for attempt in story.attempts if attempt.began is not None),
            gantt("timeline", hosts, story.packers, axis, words),
            caption=words,
            name="timeline",
        ),
        missing,
    ]


def _timeline_in_words(story: Story, hosts: Mapping[str, Sequence[Lane]], axis: TimeAxis) -> str:
    workers = sum(map(len, hosts.values()))
    ends = Counter(attempt.end for attempt in story.attempts)
    trouble = ", ".join(
        f"{ends[end]:,} {end.value}" for end in LEGEND if end in _TROUBLE and ends[end]
    )
    cut = sum(seconds for _, _, seconds in axis.breaks)
    pauses = (
        f" Nobody worked for {duration(cut)} in all; the hatched strips stand for it."
        if axis.breaks
        else ""
    )
    return (
        f"{count(workers, 'worker')} on {count(len(hosts), 'host')}, from {when(axis.began)}, for "
        f"{brief(axis.ended - axis.began)}. {count(len(story.attempts), 'try', 'tries')}: "
        f"{ends[AttemptEnd.DONE]:,} done{', ' + trouble if trouble else ''}.{pauses}"
    )


def _clock_note(story: Story) -> Content:
    shifted = {host: s for host, s in story.clocks.items() if s}
    hosts = {attempt.host for attempt in story.attempts} | {p.host for p in story.packers}
    if not shifted:
        if len(hosts) < 2:
            return None
        unknown = hosts - story.clocks.keys()
        said = "agreed with the work dir's file system" if not unknown else "could not be compared"
        return note(f"Each host's times are its own clock's; their clocks {said}.")
    rows = ", ".join(
        f"{host} {abs(seconds):,.1f} s {'behind' if seconds > 0 else 'ahead'}"
        for host, seconds in sorted(shifted.items())
    )
    return note(
        "Each host's times are its own clock's, moved to the clock of the work dir's file system "
        f"where they disagreed by seconds: {rows}. Durations do not depend on clocks."
    )


def _throughput(done: Sequence[Attempt]) -> Content:
    spans = [(a.began, a.ended or a.began) for a in done if a.began is not None]
    axis = TimeAxis(spans)
    values = rates(done, axis, _RATE_PIECES)
    mean = sum(attempt.source_bytes for attempt in done) / axis.busy_seconds
    words = (
        f"{amount(mean)} of source a second on average over {brief(axis.busy_seconds)} of work, "
        f"{amount(max(values))}/s at most. A batch's bytes are spread evenly over the time it took."
    )
    chart = rate_chart("throughput", values, axis, mean)
    # Behind a cut, elapsed time is too coarse to tell two rows apart.
    shown = when if axis.breaks else lambda time: brief((time or 0.0) - axis.began)
    tenth = len(values) // 10
    rows = []
    for number in range(10):
        part = values[number * tenth : (number + 1) * tenth]
        start, stop = axis.time(number / 10), axis.time((number + 1) / 10)
        rows.append([shown(start), shown(stop), f"{amount(sum(part) / len(part))}/s"])
    as_table = table(
        "Throughput, by tenths of the chart", ["From", "To", "Mean"], rows, numbers=[0, 1, 2]
    )
    return [
        element("h3", "Throughput"),
        figure(chart, caption=words, name="throughput"),
        folded("Throughput as a table", as_table),
    ]


def _durations(done: Sequence[Attempt]) -> Content:
    taken = [a.seconds if a.seconds is not None else (a.ended or 0.0) - (a.began or 0.0)
             for a in done]  # fmt: skip
    bins = durations(taken)
    ordered = sorted(taken)
    high = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    words = (
        f"{count(len(taken), 'batch', 'batches')}: half took at most "
        f"{brief(statistics.median(taken))}, 95 of 100 at most {brief(high)}, the longest "
        f"{brief(ordered[-1])}."
    )
    rows = [[brief(b.low), brief(b.high), f"{b.count:,}"] for b in bins]
    as_table = table("Batches by duration", ["From", "To", "Batches"], rows, numbers=[0, 1, 2])
    slowest = sorted(
        zip(taken, done, strict=True), key=lambda entry: (-entry[0], entry[1].batch_id)
    )
    lines: list[list[Content]] = [
        [f"{a.batch_id:,}", brief(seconds), amount(a.source_bytes), f"{a.frames:,}", a.host, a.pid]
        for seconds, a in slowest[:_SLOWEST]
    ]
    head = ["Batch", "Took", "Size", "Frames", "Host", "Process"]
    return [
        element("h3", "How long batches took"),
        figure(duration_chart("durations", bins, words), caption=words, name="durations"),
        folded("Durations as a table", as_table),
        folded(
            f"The {len(lines)} slowest",
            table("The slowest batches", head, lines, numbers=[0, 1, 2, 3, 5]),
        ),
    ]


def _workers(story: Story) -> Content:
    workers: dict[tuple[str, int, str], list[Attempt]] = {}
    hosts: dict[str, list[Attempt]] = {}
    for attempt in story.attempts:
        workers.setdefault((attempt.host, attempt.pid, attempt.token), []).append(attempt)
        hosts.setdefault(attempt.host, []).append(attempt)
    by_worker = table(
        "What each worker did",
        ["Host", "Process", *_DONE_HEAD],
        [[host, pid, *_done_cells(own)] for (host, pid, _), own in sorted(workers.items())],
        numbers=range(1, 7),
        most=MOST_ROWS,
        quiet=True,
    )
    if len(workers) <= _WORKERS_SHOWN:
        return [element("h3", "What each worker did"), by_worker]
    by_host = table(
        "What each host did",
        ["Host", "Workers", *_DONE_HEAD],
        [[host, len({a.token for a in own}), *_done_cells(own)]
         for host, own in sorted(hosts.items())],
        numbers=range(1, 7),
        most=MOST_ROWS,
        quiet=True,
    )  # fmt: skip
    return [
        element("h3", "What each host did"),
        by_host,
        folded("What each worker did", by_worker),
    ]


def _done_cells(own: Sequence[Attempt]) -> list[Content]:
    done = [a for a in own if a.end is AttemptEnd.DONE]
    seconds = sum(a.seconds or 0.0 for a in done)
    size = sum(a.source_bytes for a in done)
    return [
        f"{len(done):,}",
        amount(size),
        brief(seconds),
        f"{amount(size / seconds)}/s" if seconds else "–",
        f"{sum(a.end in _TROUBLE for a in own):,}",
    ]


def _held(story: Story) -> Content:
    held = [attempt for attempt in story.attempts if attempt.end is AttemptEnd.HELD]
    if not held:
        return None
    rows: list[list[Content]] = [
        [f"{a.batch_id:,}", a.generation, a.host, a.pid or "", when(a.began), when(a.ended)]
        for a in held
    ]
    head = ["Batch", "Try", "Host", "Process", "Since", "Last sign of life"]
    words = "Held by a worker"
    return [
        element("h3", words),
        table(words, head, rows, numbers=[0, 1, 3], most=MOST_ROWS, quiet=True),
    ]


def _trouble(story: Story) -> Content:
    winners = {a.batch_id: a for a in story.attempts if a.end is AttemptEnd.DONE}
    bad = [attempt for attempt in story.attempts if attempt.end in _TROUBLE]
    heading = element("h3", "Tries that came to nothing")
    if not bad:
        whole = story.batches is not None and story.batches.done == story.batches.total
        words = "None: every batch was done at the first try." if whole else "None so far."
        return [heading, element("p", words)]
    silent = "No word of its end; the time is its last sign of life."
    rows: list[list[Content]] = []
    for attempt in bad:
        winner = winners.get(attempt.batch_id)
        if winner is None:
            then = "set aside" if attempt.batch_id in story.set_aside else "no result yet"
        else:
            then = f"done by {winner.host} {winner.pid}, try {winner.generation}"
        said = attempt.message or (silent if attempt.end in _SILENT else "")
        rows.append(
            [f"{attempt.batch_id:,}", attempt.generation, attempt.end.value, attempt.host,
             attempt.pid or "", when(attempt.ended), said, then]
        )  # fmt: skip
    head = ["Batch", "Try", "End", "Host", "Process", "When", "What was said", "Then"]
    ends = Counter(attempt.end for attempt in bad)
    meanings = "; ".join(f"{ends[end]:,} {words}" for end, words in LEGEND.items() if ends[end])
    shown, rest = rows[:_TROUBLE_SHOWN], rows[_TROUBLE_SHOWN:]
    parts: list[Content] = [
        heading,
        element("p", f"{meanings}."),
        table("Tries by batch", head, shown, numbers=[0, 1, 4], long=[6]),
    ]
    if rest:
        words = "The tries after these"
        more = table(words, head, rest, numbers=[0, 1, 4], long=[6], most=MOST_ROWS)
        parts.append(folded(f"{len(rest):,} more", more))
    return parts
