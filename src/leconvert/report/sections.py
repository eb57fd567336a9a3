"""The top of the page: what was converted, how far it is, sizes before and after."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from leconvert.model import Finding
from leconvert.report.charts import (
    LEGEND,
    Lane,
    TimeAxis,
    brief,
    duration_chart,
    durations,
    figure,
    gantt,
    lanes_by_host,
    legend,
    rate_chart,
    rates,
    size_chart,
    working_axis,
)
from leconvert.report.parts import (
    MOST_ROWS,
    Content,
    Markup,
    element,
    facts,
    folded,
    name,
    note,
    section,
    table,
    when,
)
from leconvert.report.values import Attempt, AttemptEnd, RunReport, StoryState, moment
from leconvert.text import amount, count, duration
from leconvert.workdir.activity import Invocation
from leconvert.workdir.secrets import without_secrets

__all__ = [
    "conversion_section",
    "environment_section",
    "findings_section",
    "header",
    "loading_section",
    "verification_section",
    "work_section",
]


_SIGNS = {
    StoryState.FINISHED: "✓",
    StoryState.DIFFERS: "✕",
    StoryState.FAILED: "✕",
    StoryState.TO_PACK: "…",
    StoryState.UNFINISHED: "…",
    StoryState.RESULT_ONLY: "i",
}
_KINDS = {
    StoryState.FINISHED: "good",
    StoryState.DIFFERS: "bad",
    StoryState.FAILED: "bad",
}


def header(story: RunReport) -> Markup:
    """Return the heading, the state in a word and a sentence, and the figures that matter most."""
    state = element(
        "p",
        element("span", _SIGNS[story.state], aria_hidden="true", class_="mark"),
        " ",
        story.state.value.capitalize(),
        class_=f"state {_KINDS.get(story.state, 'plain')}",
    )
    return element(
        "header",
        element("p", "leconvert report", class_="kicker"),
        element("h1", element("bdi", story.name or "dataset")),
        state,
        element("p", _sentence(story), class_="lead"),
        element("dl", [_tile(*tile) for tile in _tiles(story)], class_="tiles"),
    )


def _tile(term: str, value: str, remark: str | None) -> Markup:
    small = element("span", remark, class_="remark") if remark else None
    return element("div", element("dt", term), element("dd", value, small))


def _tiles(story: RunReport) -> list[tuple[str, str, str | None]]:
    tiles: list[tuple[str, str, str | None]] = [
        ("Episodes", f"{story.episodes:,}", f"{count(story.frames, 'frame')}")
    ]
    before, after = story.source_bytes, story.result_bytes
    if before is None:
        tiles.append(("Size", amount(after), count(story.result_files, "file")))
    else:
        tiles.append(("Before", amount(before), count(story.source_files or 0, "file")))
        label = "After" if story.state is StoryState.FINISHED else "So far"
        tiles.append((label, amount(after), count(story.result_files, "file")))
    axis = working_axis(story)
    if axis is not None:
        seconds = axis.busy_seconds
        done = sum(a.source_bytes for a in story.attempts if a.end is AttemptEnd.DONE)
        rate = f"{amount(done / seconds)}/s in all" if done else None
        tiles.append(("Work", f"{seconds:.1f} s" if seconds < 10 else duration(seconds), rate))
    if story.batches is not None:
        workers = len({a.token for a in story.attempts})
        hosts = len({a.host for a in story.attempts})
        who = f"{count(workers, 'worker')} on {count(hosts, 'host')}" if workers else None
        done_of = f"{story.batches.done:,} of {story.batches.total:,}"
        tiles.append(("Batches done", done_of, who))
    if story.attempts:
        again = sum(a.end is not AttemptEnd.DONE and a.end is not AttemptEnd.HELD
                    for a in story.attempts)  # fmt: skip
        tiles.append(
            ("Extra tries", f"{again:,}", "errors, losses, hand-backs" if again else "none needed")
        )
    return tiles


def _sentence(story: RunReport) -> Content:
    match story.state:
        case StoryState.FINISHED:
            if story.verification is None or not story.verification.ok:
                return "The v3.0 dataset is in its place. It was not compared with its source."
            what = "every byte" if story.verification.depth == "bytes" else "its structure"
            return f"The v3.0 dataset is in its place, and {what} matched the source."
        case StoryState.DIFFERS:
            return "The new tree does not match its source. Nothing was replaced."
        case StoryState.FAILED:
            failed = story.batches.failed if story.batches else 0
            return (
                f"{count(failed, 'batch was', 'batches were')} set aside; the rest is done. Mend "
                "what the tries below name; then leconvert release "
                f"{shlex.quote(story.work_dir or 'WORK_DIR')} --failed gives them back."
            )
        case StoryState.TO_PACK:
            return "Every batch is done. The result has not been put into its place yet."
        case StoryState.UNFINISHED:
            return (
                "Batches are missing: the run is under way, or was interrupted. The same command "
                "goes on where it ended."
            )
    return (
        "Only the result itself was read. Who did what when, and what was proven, is in the run's "
        "work dir, which is not here (--keep-work-dir keeps it)."
    )


def conversion_section(story: RunReport) -> Markup:
    """Return what was converted, with which options, and each stream before and after."""
    known = story.source_bytes is not None
    axis = working_axis(story)
    rows: list[tuple[str, Content]] = [
        ("Source", None if story.source is None else name(story.source)),
        ("Result", name(story.target)),
        ("Kept source", None if story.kept_source is None else name(story.kept_source)),
        ("Work dir", None if story.work_dir is None else name(story.work_dir)),
        ("Run", None if story.run_id is None else name(story.run_id)),
        ("Worked from", None if axis is None else f"{when(axis.began)} to {when(axis.ended)}"),
        ("Dataset", f"{count(story.episodes, 'episode')}, {count(story.frames, 'frame')} at "
                    f"{story.fps or '?'} frames/s"),
        ("Video bytes", _video(story)),
        ("Peak memory", _memory(story)),
        ("Other files", None if not story.other_files else
         f"{count(story.other_files, 'file')}, {amount(story.other_bytes)} (meta/ and the like)"),
        ("Options", ", ".join(f"{key} {value}" for key, value in story.options.items()) or None),
    ]  # fmt: skip
    parts: list[Content] = [facts("What was converted", rows)]
    if story.streams:
        words = _sizes_in_words(story)
        chart = size_chart("sizes", story.streams, words)
        head = ["Stream"]
        head += ["Files before", "Bytes before"] if known else []
        head += ["Files after", "Bytes after"]
        lines: list[list[Content]] = []
        for stream in story.streams:
            line: list[Content] = [name(stream.stream)]
            if known:
                line += [f"{stream.source_files:,}", f"{stream.source_bytes:,}"]
            planned = stream.planned_files
            whole = stream.result_files == planned
            line += [
                f"{planned:,}" if whole else f"{stream.result_files:,} of {planned:,}",
                f"{stream.result_bytes:,}",
            ]
            lines.append(line)
        numbers = table("Streams, in bytes", head, lines, numbers=range(1, len(head)))
        parts += [figure(chart, caption=words, name="sizes"), folded("Sizes as a table", numbers)]
    return section("conversion", "What was converted", parts)


def _memory(story: RunReport) -> str | None:
    told = [
        f"{amount(peak)} {who}"
        for who, peak in (
            ("a worker's process at most", story.worker_peak_bytes),
            ("the packer's", story.packer_peak_bytes),
        )
        if peak is not None
    ]
    return ", ".join(told) or None


def _video(story: RunReport) -> str | None:
    if not story.cloned_bytes and not story.copied_bytes:
        return None
    return (
        f"{amount(story.cloned_bytes)} shared with the source, {amount(story.copied_bytes)} copied"
    )


def _sizes_in_words(story: RunReport) -> str:
    streams = count(len(story.streams), "stream")
    after = f"{amount(story.result_bytes)} in {count(story.result_files, 'file')}"
    if story.source_bytes is None:
        return f"{streams}: {after}."
    before = f"{amount(story.source_bytes)} in {count(story.source_files or 0, 'file')}"
    when = "after" if story.state is StoryState.FINISHED else "so far"
    return f"{streams}: {before} before, {after} {when}."


# ------------------------------------------------------------------------------------------------
# Findings, repairs, what was proven, and how fast the result loads.


_NO_PROOF = {
    StoryState.UNFINISHED: "It has not come to that: the result is compared when it is whole.",
    StoryState.TO_PACK: "It has not come to that: the packer compares the result.",
    StoryState.FAILED: "It has not come to that: the result is compared when it is whole.",
}
_SEVERITIES = ("error", "repaired", "warning", "info")
_COUNTED = {
    "files": "Files",
    "episodes": "Episodes",
    "rows": "Rows",
    "video_frames": "Camera frames",
}


def findings_section(story: RunReport) -> Markup:
    """Return what the scan found and what was repaired."""
    parts: list[Content] = []
    if story.findings is None:
        parts.append(note("What the scan found is recorded in the work dir, which is not here."))
    elif not story.findings:
        parts.append(element("p", "The scan found nothing wrong with the source."))
    else:
        parts.append(_finding_kinds(story.findings))
        rows = [
            [f.code, f.severity, "" if f.episode is None else f"{f.episode:,}",
             name(f.stream) if f.stream else "", f.message]
            for f in sorted(story.findings, key=_weight)
        ]  # fmt: skip
        head = ["Finding", "Severity", "Episode", "Stream", "What was seen"]
        each = table("Every finding", head, rows, numbers=[2], long=[4], most=MOST_ROWS)
        parts.append(folded(f"Every finding ({len(story.findings):,})", each))
    parts.append(element("h3", "Repairs"))
    changes = story.repairs.summary()
    if not changes:
        parts.append(element("p", "Nothing was changed beside the format."))
    else:
        parts.append(element("ul", [element("li", change) for change in changes]))
        parts.append(_repairs(story))
    return section("findings", "Findings and repairs", parts)


def _weight(finding: Finding) -> tuple[int, str, int]:
    known = finding.severity in _SEVERITIES
    rank = _SEVERITIES.index(finding.severity) if known else len(_SEVERITIES)
    return rank, finding.code, -1 if finding.episode is None else finding.episode


def _finding_kinds(findings: Any) -> Markup:
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=_weight):
        kinds.setdefault((finding.code, finding.severity), []).append(finding)
    rows = [
        [code, severity, f"{len(own):,}", own[0].message, own[0].remedy or ""]
        for (code, severity), own in kinds.items()
    ]
    head = ["Finding", "Severity", "Times", "The first", "What helps"]
    return table("What the scan found, by kind", head, rows, numbers=[2], long=[3, 4])


def _repairs(story: RunReport) -> Content:
    repairs = story.repairs
    parts: list[Content] = []
    if repairs.dropped_episodes:
        why = Counter(entry.code for entry in repairs.dropped_episodes)
        reasons = ", ".join(f"{number:,} for {code}" for code, number in sorted(why.items()))
        rows = [[f"{entry.episode:,}", entry.code] for entry in repairs.dropped_episodes]
        each = table(f"Episodes left out: {reasons}", ["Episode", "Why"], rows, most=MOST_ROWS)
        parts.append(folded("Episodes left out", each))
    if repairs.task_map:
        moved = [[old, new] for old, new in sorted(repairs.task_map.items())]
        each = table("Task indices", ["Before", "After"], moved, most=MOST_ROWS)
        parts.append(folded("Tasks numbered anew", each))
    if repairs.computed_stats:
        names = [element("li", name(feature)) for feature in repairs.computed_stats]
        parts.append(folded("Statistics computed from the data", element("ul", names)))
    return parts


def verification_section(story: RunReport) -> Markup:
    """Return what was proven before the result took its place."""
    proof = story.verification
    if proof is None:
        words = (
            f"leconvert verify {shlex.quote(story.target)} --source SOURCE --bytes"
            if story.state is StoryState.RESULT_ONLY
            else None
        )
        parts: list[Content] = [
            element("p", _NO_PROOF.get(story.state, "No verification is on record.")),
            None if words is None else element("p", "This proves the result: ", name(words)),
        ]
        return section("verification", "Verification", parts)
    if proof.depth == "none":
        outcome: Content = "The result was not compared with its source: it was asked not to be."
    elif proof.ok:
        outcome = "✓ The new tree matched its source in everything that was compared."
    elif proof.ok is False:
        outcome = f"✕ {count(proof.differences, 'difference')} from the source."
    else:
        outcome = "It is not known how it ended."
    rows: list[tuple[str, Content]] = [
        ("Depth", proof.depth),
        ("Outcome", outcome),
        *((f"{_COUNTED[key]} compared", f"{value:,}") for key, value in proof.counts.items()),
        ("Took", None if proof.seconds is None else _took(proof.seconds)),
    ]
    parts = [facts("What was proven before the swap", rows)]
    if proof.shown:
        lines = [element("li", name(line)) for line in proof.shown]
        parts.append(element("h3", "The first differences"))
        parts.append(element("ul", lines))
    return section("verification", "Verification", parts)


def _took(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def loading_section(story: RunReport) -> Markup | None:
    """Return how fast the result loads, or None where nobody measured."""
    probe = story.probe
    if probe is None:
        return None
    if "error" in probe:
        words = element("p", "It could not be measured: ", str(probe.get("message", "")))
        return section("loading", "Loading", words)
    figures: list[tuple[str, Content]] = [
        ("Samples a second", _number(probe, "samples_per_s")),
        ("Decoded frames a second", _number(probe, "frames_per_s_node")),
        ("First batch after", _number(probe, "first_batch_latency_s", " s")),
    ]
    options = probe.get("options")
    if isinstance(options, Mapping):
        figures += [
            (words, str(options[key]))
            for key, words in (
                ("loader", "Loader"), ("mode", "Mode"), ("batch_size", "Samples a batch"),
                ("num_workers", "Workers"), ("duration_s", "Seconds measured"),
            )
            if options.get(key) is not None
        ]  # fmt: skip
    return section("loading", "Loading", facts("How fast the result loads here", figures))


def _number(probe: Mapping[str, Any], key: str, unit: str = "") -> str | None:
    value = probe.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:,.2f}{unit}"


# ------------------------------------------------------------------------------------------------
# Where and how the run was made: hosts, versions, and the exact commands, without secrets.


def environment_section(story: RunReport) -> Markup | None:
    """Return commands, hosts and versions, or None where no run is known."""
    if story.work_dir is None:
        return None
    parts: list[Content] = []
    if not story.invocations:
        parts.append(note("Commands and hosts of this run are not on record."))
    else:
        parts += [_commands(story), _hosts(story)]
    parts.append(_versions(story))
    return section("environment", "Commands and environment", parts)


def _commands(story: RunReport) -> Content:
    """Return each command once, with how often and where it ran: workers are started alike."""
    groups: dict[tuple[str, str], list[Invocation]] = {}
    for entry in story.invocations:
        groups.setdefault((_command_line(entry), entry.folder), []).append(entry)
    rows = []
    for (line, folder), own in groups.items():
        hosts = sorted({entry.host for entry in own})
        where = hosts[0] if len(hosts) == 1 else count(len(hosts), "host")
        place = name(folder) if folder else ""
        rows.append([name(line), place, f"{len(own):,}", where, when(moment(own[0].at))])
    head = ["Command", "In folder", "Times", "Host", "First at"]
    return [
        element("h3", "Commands"),
        table(
            "Every command of the run, secrets hidden",
            head,
            rows,
            numbers=[2],
            long=[0, 1],
            most=MOST_ROWS,
        ),
    ]


def _command_line(entry: Invocation) -> str:
    if entry.command is None:
        return f"leconvert.{entry.called}(…) in Python"
    # Records were written without secrets; once more costs nothing and covers those of others.
    return shlex.join(without_secrets(entry.command)).replace("'***'", "***")


def _hosts(story: RunReport) -> Content:
    rows = []
    by_host: dict[str, list[Invocation]] = {}
    for entry in story.invocations:
        by_host.setdefault(entry.host, []).append(entry)
    for host, own in sorted(by_host.items()):
        system = Counter(entry.system for entry in own).most_common(1)[0][0]
        cpus = max(entry.cpus for entry in own)
        ahead = story.clocks.get(host)
        clock = "–" if ahead is None else ("agrees" if not ahead else f"{-ahead:+.1f} s")
        rows.append([host, system, f"{cpus:,}", f"{len(own):,}", clock])
    head = ["Host", "System", "Cores", "Processes", "Clock against the work dir's"]
    return [
        element("h3", "Hosts"),
        table("Hosts", head, rows, numbers=[2, 3, 4], most=MOST_ROWS, quiet=True),
    ]


def _versions(story: RunReport) -> Content:
    seen: dict[str, Counter[str]] = {}
    for entry in story.invocations:
        for library, version in entry.versions.items():
            seen.setdefault(library, Counter())[version] += 1
    for library, version in story.planned_versions.items():
        seen.setdefault(library, Counter())[version] += 0
    rows = [
        [library, story.planned_versions.get(library, "–"), ", ".join(sorted(versions))]
        for library, versions in sorted(seen.items())
    ]
    mixed = [library for library, versions in sorted(seen.items()) if len(versions) > 1]
    warning = (
        note(
            f"Not everybody had the same {', '.join(mixed)}: the result is equal in content, but "
            "perhaps not byte for byte to one made with one version."
        )
        if mixed
        else None
    )
    return [
        element("h3", "Versions"),
        table("Versions of what writes bytes", ["Library", "Planned with", "Seen"], rows),
        warning,
    ]


# ------------------------------------------------------------------------------------------------
# The part of the page about work: who did which batch when, how fast, and what went wrong.


_RATE_PIECES = 120
_SILENT = frozenset({AttemptEnd.LOST, AttemptEnd.LATE})
_SLOWEST = 10
_TROUBLE_SHOWN = 12
_WORKERS_SHOWN = 16
_DONE_HEAD = ("Batches", "Size", "Time at work", "Rate at work", "Came to nothing")
_TROUBLE = frozenset(LEGEND) - {AttemptEnd.DONE, AttemptEnd.HELD}


def work_section(story: RunReport) -> Markup | None:
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


def _timeline(story: RunReport) -> Content:
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


def _timeline_in_words(
    story: RunReport, hosts: Mapping[str, Sequence[Lane]], axis: TimeAxis
) -> str:
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


def _clock_note(story: RunReport) -> Content:
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


def _workers(story: RunReport) -> Content:
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


def _held(story: RunReport) -> Content:
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


def _trouble(story: RunReport) -> Content:
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
