"""A run's report as one page: HTML with its style in it, no script, nothing that is fetched.

The templates lay the page out, with Jinja's escaping on; what they show is computed here. Names of
datasets, hosts and files, and messages of errors are strangers' text: they reach the page as text
only, never as a tag, a style or a link.
"""

from __future__ import annotations

import os
import shlex
import statistics
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from leconvert._version import __version__
from leconvert.model.values import Finding
from leconvert.report.charts import (
    LEGEND,
    TimeAxis,
    brief,
    clean,
    duration_chart,
    durations,
    gantt,
    lanes_by_host,
    legend,
    rate_chart,
    rates,
    signs,
    size_chart,
    working_axis,
)
from leconvert.report.values import Attempt, AttemptEnd, RunReport, StoryState, gather_run, moment
from leconvert.support.errors import LeconvertError, StorageError, UsageError
from leconvert.support.storage_errors import any_storage_errors, storage_errors
from leconvert.support.text import amount, count, duration
from leconvert.workdir.activity import Invocation
from leconvert.workdir.fs import replace_record
from leconvert.workdir.run import OpenedRun
from leconvert.workdir.secrets import without_secrets

if TYPE_CHECKING:
    from jinja2 import Environment

# Rows of a table that is about single batches, episodes or findings; more are counted.
_MOST_ROWS = 200
_Rows = list[list[object]]


def page(story: RunReport) -> str:
    """Return the page; it takes time and room linear in attempts, findings and streams at most."""
    axis = working_axis(story)
    return (
        _templates()
        .get_template("report.html")
        .render(
            story=story,
            signs=signs(),
            version=__version__,
            most_rows=_MOST_ROWS,
            **_header(story, axis),
            **_conversion(story, axis),
            **_findings(story),
            **_verification(story),
            work=_work(story, axis),
            loading=_loading(story.probe),
            **_environment(story),
        )
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only a page pays for it

    made = Environment(
        loader=PackageLoader("leconvert.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    made.filters["commas"] = "{:,}".format
    return made


# ------------------------------------------------------------------------------------------------
# The top of the page: what was converted, how far it is, sizes before and after.


_SIGNS = {
    StoryState.FINISHED: "✓",
    StoryState.DIFFERS: "✕",
    StoryState.FAILED: "✕",
    StoryState.TO_PACK: "…",
    StoryState.UNFINISHED: "…",
    StoryState.RESULT_ONLY: "i",
}
_CLASSES = {StoryState.FINISHED: "good", StoryState.DIFFERS: "bad", StoryState.FAILED: "bad"}


def _header(story: RunReport, axis: TimeAxis | None) -> dict[str, object]:
    return {
        "state_sign": _SIGNS[story.state],
        "state_class": _CLASSES.get(story.state, "plain"),
        "sentence": _sentence(story),
        "tiles": _tiles(story, axis),
    }


def _tiles(story: RunReport, axis: TimeAxis | None) -> list[tuple[str, str, str | None]]:
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


def _sentence(story: RunReport) -> str:
    there = f"The {story.version} dataset is in its place."
    match story.state:
        case StoryState.FINISHED:
            if story.verification is None or not story.verification.ok:
                return f"{there} It was not compared with its source."
            what = "every byte" if story.verification.depth == "bytes" else "its structure"
            return f"{there[:-1]}, and {what} matched the source."
        case StoryState.DIFFERS:
            return "The new tree does not match its source. Nothing was replaced."
        case StoryState.FAILED:
            failed = story.batches.failed if story.batches else 0
            return (
                f"{count(failed, 'batch', 'batches')} failed; the rest is done. Fix "
                "what the attempts below name; then leconvert release "
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


_NO_RECORDING = (
    "LeRobot loads this dataset, but cannot resume recording it: its statistics have no quantiles, "
    "which convert --quantiles computes."
)


def _conversion(story: RunReport, axis: TimeAxis | None) -> dict[str, object]:
    video = (
        f"{amount(story.cloned_bytes)} shared with the source, {amount(story.copied_bytes)} copied"
    )
    memory = [
        f"{amount(peak)} {who}"
        for who, peak in (
            ("a worker's process at most", story.worker_peak_bytes),
            ("the packer's", story.packer_peak_bytes),
        )
        if peak is not None
    ]
    other = f"{count(story.other_files, 'file')}, {amount(story.other_bytes)} (meta/ and the like)"
    options = ", ".join(f"{key} {value}" for key, value in story.options.items())
    return {
        "conversion": [
            ("Source", ", ".join(story.sources) or None),
            ("Result", story.target),
            ("Kept source", story.kept_source),
            ("Work dir", story.work_dir),
            ("Run", story.run_id),
            ("Worked from", None if axis is None else f"{when(axis.began)} to {when(axis.ended)}"),
            ("Dataset", f"{count(story.episodes, 'episode')}, {count(story.frames, 'frame')} at "
                        f"{story.fps or '?'} frames/s"),
            ("Video bytes", video if story.cloned_bytes or story.copied_bytes else None),
            ("Peak memory", ", ".join(memory) or None),
            ("Other files", other if story.other_files else None),
            ("Options", options or None),
            ("Recording", _NO_RECORDING if story.quantiles is False else None),
        ],
        "sizes": _sizes(story) if story.streams else None,
    }  # fmt: skip


def _sizes(story: RunReport) -> dict[str, object]:
    known = story.source_bytes is not None
    rows: _Rows = []
    for stream in story.streams:
        before = [f"{stream.source_files:,}", f"{stream.source_bytes:,}"] if known else []
        planned, there = stream.planned_files, stream.result_files
        files = f"{planned:,}" if there == planned else f"{there:,} of {planned:,}"
        rows.append([stream.stream, *before, files, f"{stream.result_bytes:,}"])
    words = f"{count(len(story.streams), 'stream')}: "
    after = f"{amount(story.result_bytes)} in {count(story.result_files, 'file')}"
    if story.source_bytes is None:
        words += f"{after}."
    else:
        so_far = "after" if story.state is StoryState.FINISHED else "so far"
        files = count(story.source_files or 0, "file")
        words += f"{amount(story.source_bytes)} in {files} before, {after} {so_far}."
    return {
        **_figure("sizes", words, size_chart("sizes", story.streams, words)),
        "head": ["Stream", *(["Files before", "Bytes before"] if known else []),
                 "Files after", "Bytes after"],
        "rows": rows,
    }  # fmt: skip


def when(seconds: float | None) -> str:
    """Return a point in time as ``2026-11-21 07:00:00 UTC``."""
    if seconds is None:
        return "not known"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "not known"


def _figure(name: str, words: str, drawing: Markup) -> dict[str, object]:
    return {"name": name, "words": words, "drawing": drawing}


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


def _findings(story: RunReport) -> dict[str, object]:
    found = sorted(story.findings or (), key=_weight)
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        kinds.setdefault((finding.code, finding.severity), []).append(finding)
    repairs = story.repairs
    why = Counter(entry.code for entry in repairs.dropped_episodes)
    return {
        "finding_kinds": [
            [code, severity, f"{len(own):,}", own[0].message, own[0].remedy]
            for (code, severity), own in kinds.items()
        ],
        "finding_rows": [
            [f.code, f.severity, "" if f.episode is None else f"{f.episode:,}", f.stream, f.message]
            for f in found
        ],
        "repairs": {
            "changes": repairs.summary(),
            "dropped": [[f"{entry.episode:,}", entry.code] for entry in repairs.dropped_episodes],
            "dropped_why": ", ".join(
                f"{number:,} for {code}" for code, number in sorted(why.items())
            ),
            "tasks": sorted((repairs.task_map or {}).items()),
            "statistics": list(repairs.computed_stats or ()),
        },
    }


def _weight(finding: Finding) -> tuple[int, str, int]:
    known = finding.severity in _SEVERITIES
    rank = _SEVERITIES.index(finding.severity) if known else len(_SEVERITIES)
    return rank, finding.code, -1 if finding.episode is None else finding.episode


def _verification(story: RunReport) -> dict[str, object]:
    proof = story.verification
    if proof is None:
        command = f"leconvert verify {shlex.quote(story.target)} --source SOURCE --bytes"
        return {
            "no_proof": _NO_PROOF.get(story.state, "No verification is on record."),
            "proving_command": command if story.state is StoryState.RESULT_ONLY else None,
        }
    if proof.depth == "none":
        outcome = "The result was not compared with its source: it was asked not to be."
    elif proof.ok:
        outcome = "✓ The new tree matched its source in everything that was compared."
    elif proof.ok is False:
        outcome = f"✕ {count(proof.differences, 'difference')} from the source."
    else:
        outcome = "It is not known how it ended."
    seconds = proof.seconds
    took = None
    if seconds is not None:
        took = f"{seconds:.2f} s" if seconds < 10 else duration(seconds)
    return {
        "verification": [
            ("Depth", proof.depth),
            ("Outcome", outcome),
            *((f"{_COUNTED[key]} compared", f"{value:,}") for key, value in proof.counts.items()),
            ("Took", took),
        ]
    }


def _loading(probe: Mapping[str, Any] | None) -> dict[str, object] | None:
    """Return how fast the result loads, or None where nobody measured."""
    if probe is None:
        return None
    if "error" in probe:
        return {"error": probe.get("message", "")}
    figures: list[tuple[str, object]] = [
        ("Samples a second", _number(probe, "samples_per_s")),
        ("Decoded frames a second", _number(probe, "frames_per_s_node")),
        ("First batch after", _number(probe, "first_batch_latency_s", " s")),
    ]
    options = probe.get("options")
    if isinstance(options, Mapping):
        figures += [
            (words, options.get(key))
            for key, words in (
                ("loader", "Loader"), ("mode", "Mode"), ("batch_size", "Samples a batch"),
                ("num_workers", "Workers"), ("duration_s", "Seconds measured"),
            )
        ]  # fmt: skip
    return {"figures": figures}


def _number(probe: Mapping[str, Any], key: str, unit: str = "") -> str | None:
    value = probe.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:,.2f}{unit}"


# ------------------------------------------------------------------------------------------------
# Where and how the run was made: hosts, versions, and the exact commands, without secrets.


def _environment(story: RunReport) -> dict[str, object]:
    planned = story.planned_versions
    seen = {library: {version} for library, version in planned.items()}
    for entry in story.invocations:
        for library, version in entry.versions.items():
            seen.setdefault(library, set()).add(version)
    return {
        "commands": _commands(story.invocations),
        "hosts": _hosts(story),
        "versions": [
            [library, planned.get(library, "–"), ", ".join(sorted(versions))]
            for library, versions in sorted(seen.items())
        ],
        "mixed_versions": [library for library in sorted(seen) if len(seen[library]) > 1],
    }


def _commands(invocations: Sequence[Invocation]) -> _Rows:
    """Return each command once, with how often and where it ran: workers are started alike."""
    groups: dict[tuple[str, str], list[Invocation]] = {}
    for entry in invocations:
        groups.setdefault((_command_line(entry), entry.folder), []).append(entry)
    rows: _Rows = []
    for (line, folder), own in groups.items():
        hosts = sorted({entry.host for entry in own})
        where = hosts[0] if len(hosts) == 1 else count(len(hosts), "host")
        rows.append([line, folder, f"{len(own):,}", where, when(moment(own[0].at))])
    return rows


def _command_line(entry: Invocation) -> str:
    if entry.command is None:
        return f"leconvert.{entry.called}(…) in Python"
    # Records were written without secrets; once more costs nothing and covers those of others.
    return shlex.join(without_secrets(entry.command)).replace("'***'", "***")


def _hosts(story: RunReport) -> _Rows:
    rows: _Rows = []
    by_host: dict[str, list[Invocation]] = {}
    for entry in story.invocations:
        by_host.setdefault(entry.host, []).append(entry)
    for host, own in sorted(by_host.items()):
        system = Counter(entry.system for entry in own).most_common(1)[0][0]
        cpus = max(entry.cpus for entry in own)
        ahead = story.clocks.get(host)
        clock = "–" if ahead is None else ("agrees" if not ahead else f"{-ahead:+.1f} s")
        rows.append([host, system, f"{cpus:,}", f"{len(own):,}", clock])
    return rows


# ------------------------------------------------------------------------------------------------
# The part of the page about work: who did which batch when, how fast, and what went wrong.


_RATE_PIECES = 120
_SILENT = frozenset({AttemptEnd.LOST, AttemptEnd.LATE})
_SLOWEST = 10
_WORKERS_SHOWN = 16
_TROUBLE = frozenset(LEGEND) - {AttemptEnd.DONE, AttemptEnd.HELD}


def _work(story: RunReport, axis: TimeAxis | None) -> dict[str, object] | None:
    """Return the timeline, throughput and durations, or None where no run is known."""
    state = story.batches
    if state is None:
        return None
    timed = [a for a in story.attempts if a.began is not None]
    done = [a for a in timed if a.end is AttemptEnd.DONE]
    workers: dict[tuple[str, int, str], list[Attempt]] = {}
    hosts: dict[str, list[Attempt]] = {}
    for attempt in story.attempts:
        workers.setdefault((attempt.host, attempt.pid, attempt.token), []).append(attempt)
        hosts.setdefault(attempt.host, []).append(attempt)
    unknown = len(story.attempts) - len(timed)
    without_times = (
        f"Of {count(unknown, 'try', 'tries')} no time is on record; the tables count them."
    )
    return {
        "words": f"{count(state.total, 'batch', 'batches')}: {state.done:,} done, {state.failed:,} "
        f"failed, {state.held:,} held by a worker, {state.pending:,} waiting.",
        "timeline": _timeline(story, timed, axis) if axis is not None and timed else None,
        "notes": [
            words for words in (without_times if unknown else None, _clock_note(story)) if words
        ],
        **(_pace(done) if done else {"throughput": None}),
        "workers": [
            [host, pid, *_done_cells(own)] for (host, pid, _), own in sorted(workers.items())
        ],
        "hosts": [
            [host, len({a.token for a in own}), *_done_cells(own)]
            for host, own in sorted(hosts.items())
        ]
        if len(workers) > _WORKERS_SHOWN
        else None,
        "held": [
            [f"{a.batch_id:,}", a.generation, a.host, a.pid or "", when(a.began), when(a.ended)]
            for a in story.attempts
            if a.end is AttemptEnd.HELD
        ],
        **_trouble(story),
    }


def _timeline(story: RunReport, timed: Sequence[Attempt], axis: TimeAxis) -> dict[str, object]:
    hosts = lanes_by_host(timed)
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
    words = (
        f"{count(sum(map(len, hosts.values())), 'worker')} on {count(len(hosts), 'host')}, from "
        f"{when(axis.began)}, for {brief(axis.ended - axis.began)}. "
        f"{count(len(story.attempts), 'try', 'tries')}: "
        f"{ends[AttemptEnd.DONE]:,} done{', ' + trouble if trouble else ''}.{pauses}"
    )
    drawing = legend(timed) + gantt("timeline", hosts, story.packers, axis, words)
    return _figure("timeline", words, drawing)


def _clock_note(story: RunReport) -> str | None:
    shifted = {host: s for host, s in story.clocks.items() if s}
    hosts = {attempt.host for attempt in story.attempts} | {p.host for p in story.packers}
    if not shifted:
        if len(hosts) < 2:
            return None
        unknown = hosts - story.clocks.keys()
        said = "agreed with the work dir's file system" if not unknown else "could not be compared"
        return f"Each host's times are its own clock's; their clocks {said}."
    rows = ", ".join(
        f"{host} {abs(seconds):,.1f} s {'behind' if seconds > 0 else 'ahead'}"
        for host, seconds in sorted(shifted.items())
    )
    return (
        "Each host's times are its own clock's, moved to the clock of the work dir's file system "
        f"where they disagreed by seconds: {rows}. Durations do not depend on clocks."
    )


def _pace(done: Sequence[Attempt]) -> dict[str, object]:
    """Return throughput over time, and how long batches took."""
    axis = TimeAxis([(a.began, a.ended or a.began) for a in done if a.began is not None])
    values = rates(done, axis, _RATE_PIECES)
    mean = sum(attempt.source_bytes for attempt in done) / axis.busy_seconds
    words = (
        f"{amount(mean)} of source a second on average over {brief(axis.busy_seconds)} of work, "
        f"{amount(max(values))}/s at most. A batch's bytes are spread evenly over the time it took."
    )
    # Behind a cut, elapsed time is too coarse to tell two rows apart.
    shown = when if axis.breaks else lambda time: brief((time or 0.0) - axis.began)
    tenth = len(values) // 10
    tenths: _Rows = []
    for number in range(10):
        part = values[number * tenth : (number + 1) * tenth]
        start, stop = axis.time(number / 10), axis.time((number + 1) / 10)
        tenths.append([shown(start), shown(stop), f"{amount(sum(part) / len(part))}/s"])
    taken = [a.seconds if a.seconds is not None else (a.ended or 0.0) - (a.began or 0.0)
             for a in done]  # fmt: skip
    bins = durations(taken)
    ordered = sorted(taken)
    high = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    lengths = (
        f"{count(len(taken), 'batch', 'batches')}: half took at most "
        f"{brief(statistics.median(taken))}, 95 of 100 at most {brief(high)}, the longest "
        f"{brief(ordered[-1])}."
    )
    slowest = sorted(
        zip(taken, done, strict=True), key=lambda entry: (-entry[0], entry[1].batch_id)
    )
    return {
        "throughput": {
            **_figure("throughput", words, rate_chart("throughput", values, axis, mean)),
            "rows": tenths,
        },
        "durations": {
            **_figure("durations", lengths, duration_chart("durations", bins, lengths)),
            "rows": [[brief(b.low), brief(b.high), f"{b.count:,}"] for b in bins],
        },
        "slowest": [
            [
                f"{a.batch_id:,}",
                brief(seconds),
                amount(a.source_bytes),
                f"{a.frames:,}",
                a.host,
                a.pid,
            ]
            for seconds, a in slowest[:_SLOWEST]
        ],
    }


def _done_cells(own: Sequence[Attempt]) -> list[object]:
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


def _trouble(story: RunReport) -> dict[str, object]:
    winners = {a.batch_id: a for a in story.attempts if a.end is AttemptEnd.DONE}
    rows: _Rows = []
    ends: Counter[AttemptEnd] = Counter()
    for attempt in story.attempts:
        if attempt.end not in _TROUBLE:
            continue
        ends[attempt.end] += 1
        winner = winners.get(attempt.batch_id)
        if winner is None:
            then = "failed" if attempt.batch_id in story.set_aside else "no result yet"
        else:
            then = f"done by {winner.host} {winner.pid}, try {winner.generation}"
        silent = "No word of its end; the time is its last sign of life."
        said = attempt.message or (silent if attempt.end in _SILENT else "")
        rows.append(
            [f"{attempt.batch_id:,}", attempt.generation, attempt.end.value, attempt.host,
             attempt.pid or "", when(attempt.ended), said, then]
        )  # fmt: skip
    if rows:
        words = (
            "; ".join(f"{ends[end]:,} {words}" for end, words in LEGEND.items() if ends[end]) + "."
        )
    elif story.batches is not None and story.batches.done == story.batches.total:
        words = "None: every batch was done at the first try."
    else:
        words = "None so far."
    return {"trouble": rows, "trouble_words": words}


# ------------------------------------------------------------------------------------------------
# Where the page goes, and where it may not.


def default_report_place(target: Path) -> Path:
    """Return where a conversion's report goes: ``<target>.report.html``, beside the result."""
    return target.with_name(f"{target.name}.report.html")


def check_report_place(path: Path, datasets: list[Path]) -> None:
    """Refuse a place that the page cannot be written to; call it before any work is done, too."""
    place = path.resolve()
    for dataset in datasets:
        if place.is_relative_to(dataset.resolve()):
            raise UsageError(
                f"{path} lies in the dataset {dataset}, which holds only what the conversion made.",
                path=str(path),
                next_step="Choose a place beside it.",
            )
    if place.is_dir():
        raise UsageError(
            f"{path} is a folder.", path=str(path), next_step="Give the name of a file in it."
        )
    if not place.parent.is_dir():
        raise UsageError(
            f"The folder {place.parent} does not exist.",
            path=str(path),
            next_step="Make it first, or choose another place.",
        )
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"The folder {place.parent} cannot be written.",
            path=str(path),
            next_step="Make it writable, or choose another place.",
        )


def write_report(story: RunReport, path: Path) -> int:
    """Write the page, replacing what is there in one step.

    Returns:
        Its size in bytes.
    """
    _check_for(story.target, story.sources, path)
    data = page(story).encode("utf-8")
    with storage_errors(path):
        replace_record(path, data)
    return len(data)


def _check_for(target: str, sources: Sequence[str], path: Path) -> None:
    check_report_place(path, [Path(place) for place in (target, *sources)])


@contextmanager
def report_on_exit(run: OpenedRun, path: Path | None) -> Iterator[None]:
    """Write a run's report when the block ends, however it ends; not at all without a path.

    What ends the block matters more than its report: where both fail, the block's own error is
    raised.
    """
    if path is not None:
        _check_for(run.manifest.target, [s.root for s in run.manifest.sources], path)
    try:
        yield
    except BaseException:
        if path is not None:
            with suppress(OSError, LeconvertError):
                write_report(gather_run(run), path)
        raise
    if path is not None:
        try:
            with any_storage_errors():
                write_report(gather_run(run), path)
        except StorageError as error:
            raise StorageError(
                f"The run came to its end, but its report could not be written. {error.message}",
                path=error.path,
                next_step="Nothing needs to be done again. For the report: `leconvert report "
                f"{shlex.quote(str(run.work_dir.root))} -o FILE`, with room for FILE.",
            ) from error


# ------------------------------------------------------------------------------------------------
# Pages of facts and tables alone.


PageTable = tuple[str, str, Sequence[Sequence[object]], Collection[int]]
"""A table's title, what it shows, its rows with the head, and its columns that hold numbers."""


def write_tables(
    path: Path,
    *,
    kicker: str,
    heading: str,
    title: str,
    facts_title: str,
    facts: Sequence[tuple[str, object]],
    tables: Sequence[PageTable],
    pictures: Sequence[tuple[str, str]] = (),
) -> int:
    """Write a page of facts and tables, replacing what is there; return its size in bytes."""
    text = (
        _templates()
        .get_template("tables.html")
        .render(
            kicker=kicker,
            heading=heading,
            title=title,
            facts_title=facts_title,
            facts_shown=facts,
            tables=tables,
            pictures=pictures,
        )
    )
    data = text.encode("utf-8")
    with storage_errors(path):
        replace_record(path, data)
    return len(data)


# ------------------------------------------------------------------------------------------------
# The page of a resampling benchmark.


def write_resampling_report(
    document: Mapping[str, Any], path: Path, *, command: str, pictures: Sequence[Path]
) -> None:
    """Write what ``leconvert probe resample`` measured, with the PNG files of its plots."""
    from leconvert.bench import result_tables  # nobody else pays for its imports

    write_tables(
        path,
        kicker="leconvert probe resample",
        heading="Resampling",
        title="leconvert probe resample",
        facts_title="What was measured",
        facts=_resampling_facts(document, command),
        tables=[
            (title, words, rows, range(1, len(rows[0])))
            for title, words, rows in result_tables(document)
        ],
        pictures=[
            (picture.stem.rpartition("-")[2], b64encode(picture.read_bytes()).decode())
            for picture in pictures
        ],
    )


def _resampling_facts(document: Mapping[str, Any], command: str) -> list[tuple[str, object]]:
    host, versions, found = document["host"], document["versions"], document["set"]
    gpu = document["gpu"]
    return [
        ("Command", command),
        ("Started", document["started"]),
        ("Machine", f"{host['cpu']}, {host['cores']} cores"),
        ("Torch threads", document["torch_threads"]),
        ("GPU", "none" if gpu is None else gpu["name"]),
        ("Versions", ", ".join(f"{k} {versions[k]}" for k in ("leconvert", "torch", "numpy"))),
        ("Set", f"{found['source']}: {found['trajectories']} trajectories, "
                f"{found['samples']} samples"),
        ("Rates", _spread(found["rate_hz"], "Hz")),
        ("Durations", _spread(found["duration_s"], "s")),
        ("Target", f"{document['options']['hz']:g} Hz"),
        ("Baseline", f"NumPy, {document['baseline']}"),
    ]  # fmt: skip


def _spread(numbers: Mapping[str, float] | None, unit: str) -> str:
    if numbers is None:
        return "unknown"
    return f"{numbers['min']:.3g} to {numbers['max']:.3g} {unit}, median {numbers['median']:.3g}"
