"""A run's report as one HTML page with its style inside, without scripts and external files.

The templates hold the layout, with Jinja's escaping on; their content is computed here. Names of
datasets, hosts and files, and error messages are untrusted text: they reach the page only as text,
never as a tag, a style or a link.
"""

from __future__ import annotations

import os
import re
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
from urllib.parse import quote

from markupsafe import Markup

from leconvert._version import __version__
from leconvert.model.values import Finding
from leconvert.report import charts
from leconvert.report.charts import LEGEND, TROUBLE, TimeAxis, working_axis
from leconvert.report.status import moment
from leconvert.report.values import (
    Attempt,
    AttemptEnd,
    BatchCounts,
    RunReport,
    StoryState,
    gather_run,
)
from leconvert.support.errors import LeconvertError, StorageError, UsageError
from leconvert.support.storage_errors import any_storage_errors, lacking_right, storage_errors
from leconvert.support.text import amount, count, duration, shorten, without_secrets
from leconvert.workdir.activity import Invocation
from leconvert.workdir.fs import replace_record
from leconvert.workdir.run import OpenedRun
from leconvert.workdir.swap import lies_in

if TYPE_CHECKING:
    from jinja2 import Environment

# Row limit of tables about single batches, episodes or findings; further rows are counted.
_MOST_ROWS = 200
_RATE_PIECES = 120
_SLOWEST = 10
_WORKERS_SHOWN = 16
_Rows = list[Sequence[object]]


def page(story: RunReport) -> str:
    """Return the page; time and memory are linear in attempts, findings and streams."""
    axis = working_axis(story)
    template = _templates().get_template("report.html")
    return template.render(
        story=story,
        axis=axis,
        version=__version__,
        most_rows=_MOST_ROWS,
        sentence=_sentence(story),
        tiles=_tiles(story, axis),
        conversion=_conversion(story, axis),
        sizes=_sizes(story) if story.streams else None,
        work=None if story.batches is None else _work(story, story.batches, axis),
        loading=_loading(story.probe),
        **_findings(story),
        **_verification(story),
        **_environment(story),
    )


def _commands(words: object) -> object:
    """Return a sentence with its commands, which stand between backticks, set as code."""
    if not isinstance(words, str) or isinstance(words, Markup):
        return words
    parts = [clean(part) for part in words.split("`")]
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if n % 2 else part for n, part in enumerate(parts))


def _link(path: Path) -> Markup:
    return Markup('<a href="{}">{}</a>').format(quote(os.fsencode(path)), clean(str(path)))


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only a page needs it

    made = Environment(
        loader=PackageLoader("leconvert.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    made.filters |= {
        "amount": amount,
        "brief": charts.brief,
        "commas": "{:,}".format,
        "commands": _commands,
        "percent": lambda place: f"{100 * place:.2f}%",
        "when": when,
    }
    made.globals |= {
        "count": count,
        "quote": shlex.quote,
        "rate_area": charts.rate_area,
        "shorten": shorten,
        "size_rows": charts.size_rows,
        "width_units": charts.WIDTH_UNITS,
    }
    return made


# Characters that HTML forbids, and those that turn the direction of all text after them.
_UNFIT = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ufffe\\uffff]"
)


def clean(value: object) -> str:
    """Return text without characters that a page must not hold; None gives ""."""
    if value is None:
        return ""
    # Paths that are not UTF-8 contain lone surrogates, which cannot be encoded.
    whole = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", whole)


def when(seconds: float | None) -> str:
    """Return a point in time as ``2026-11-21 07:00:00 UTC``."""
    with suppress(OverflowError, ValueError, OSError):
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return "not known"


def _tiles(story: RunReport, axis: TimeAxis | None) -> list[tuple[str, str, str | None]]:
    tiles: list[tuple[str, str, str | None]] = [
        ("Episodes", f"{story.episodes:,}", count(story.frames, "frame"))
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
        again = sum(a.end in charts.TROUBLE for a in story.attempts)
        tiles.append(
            (
                "Extra attempts",
                f"{again:,}",
                "after an error, a lost worker or a stop" if again else "none needed",
            )
        )
    return tiles


def _sentence(story: RunReport) -> str:
    there = f"The {story.version} dataset is in place."
    match story.state:
        case StoryState.FINISHED:
            if story.verification is None or not story.verification.ok:
                return f"{there} The dataset was not compared with its source."
            what = "every byte" if story.verification.depth == "bytes" else "its structure"
            return f"{there[:-1]}, and {what} matched the source."
        case StoryState.DIFFERS:
            return "The new dataset does not match its source. Nothing was replaced."
        case StoryState.FAILED:
            failed = story.batches.failed if story.batches else 0
            return (
                f"{count(failed, 'batch', 'batches')} failed; all others are done. Fix the "
                "causes that are listed below, then run: leconvert release "
                f"{shlex.quote(story.work_dir or 'WORK_DIR')} --failed"
            )
        case StoryState.TO_PACK:
            return "Every batch is done. The result is not in place yet."
        case StoryState.UNFINISHED:
            return (
                "Some batches are not done: the run is under way or was interrupted. The "
                "same command continues where it stopped."
            )
    return (
        "This report was made from the result alone. The course of the run and its proof "
        "are recorded in the work dir, which does not exist any more (--keep-work-dir "
        "keeps it)."
    )


_NO_RECORDING = (
    "This dataset is ready for training. To record more episodes into it, convert with --quantiles."
)


def _conversion(story: RunReport, axis: TimeAxis | None) -> list[tuple[str, str | None]]:
    peaks = (
        ("at most, of a worker process", story.worker_peak_bytes),
        ("the packer's", story.packer_peak_bytes),
    )
    video = (
        f"{amount(story.cloned_bytes)} shared with the source, {amount(story.copied_bytes)} copied"
    )
    other = f"{count(story.other_files, 'file')}, {amount(story.other_bytes)} (meta/ and the like)"
    return [
        ("Source", ", ".join(story.sources) or None),
        ("Result", story.target),
        ("Kept source", story.kept_source),
        ("Earlier result", story.kept_result),
        ("Work dir", story.work_dir),
        ("Run", story.run_id),
        ("Worked from", None if axis is None else f"{when(axis.began)} to {when(axis.ended)}"),
        ("Dataset", f"{count(story.episodes, 'episode')}, {count(story.frames, 'frame')} at "
                    f"{story.fps or '?'} frames/s"),
        ("Video bytes", video if story.cloned_bytes or story.copied_bytes else None),
        ("Peak memory",
         ", ".join(f"{amount(peak)} {who}" for who, peak in peaks if peak is not None) or None),
        ("Other files", other if story.other_files else None),
        ("Options", ", ".join(f"{key} {value}" for key, value in story.options.items()) or None),
        ("Recording", _NO_RECORDING if story.quantiles is False else None),
    ]  # fmt: skip


def _sizes(story: RunReport) -> dict[str, object]:
    known = story.source_bytes is not None
    rows: _Rows = []
    for stream in story.streams:
        planned, there = stream.planned_files, stream.result_files
        before = [stream.source_files, stream.source_bytes] if known else []
        files = planned if there == planned else f"{there:,} of {planned:,}"
        rows.append([stream.stream, *before, files, stream.result_bytes])
    words = f"{amount(story.result_bytes)} in {count(story.result_files, 'file')}"
    if known:
        files = count(story.source_files or 0, "file")
        so_far = "after" if story.state is StoryState.FINISHED else "so far"
        words = f"{amount(story.source_bytes or 0)} in {files} before; {words} {so_far}"
    return {
        "words": f"{count(len(story.streams), 'stream')}: {words}.",
        "head": ["Stream", *(["Files before", "Bytes before"] if known else []),
                 "Files after", "Bytes after"],
        "rows": rows,
    }  # fmt: skip


_SEVERITIES = ("error", "repaired", "warning", "info")


def _findings(story: RunReport) -> dict[str, object]:
    found = sorted(story.findings or (), key=_weight)
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        kinds.setdefault((finding.code, finding.severity), []).append(finding)
    dropped = story.repairs.dropped_episodes
    why = Counter(entry.code for entry in dropped)
    return {
        "finding_kinds": [
            (*kind, len(own), own[0].message, own[0].remedy) for kind, own in kinds.items()
        ],
        "finding_rows": [(f.code, f.severity, f.episode, f.stream, f.message) for f in found],
        "dropped": [(f"{entry.episode:,}", entry.code) for entry in dropped],
        "dropped_why": ", ".join(f"{number:,} for {code}" for code, number in sorted(why.items())),
    }


def _weight(finding: Finding) -> tuple[int, str, int]:
    known = finding.severity in _SEVERITIES
    rank = _SEVERITIES.index(finding.severity) if known else len(_SEVERITIES)
    return rank, finding.code, -1 if finding.episode is None else finding.episode


_NO_PROOF = {
    StoryState.UNFINISHED: "Not compared yet: the result is compared when all batches are done.",
    StoryState.TO_PACK: "Not compared yet: the packer compares the result.",
    StoryState.FAILED: "Not compared yet: the result is compared when all batches are done.",
}
_COUNTED = {
    "files": "Files",
    "episodes": "Episodes",
    "rows": "Rows",
    "video_frames": "Camera frames",
}


def _verification(story: RunReport) -> dict[str, object]:
    proof = story.verification
    if proof is None:
        return {
            "no_proof": _NO_PROOF.get(story.state, "No comparison with the source is recorded.")
        }
    if proof.depth == "none":
        outcome = "The result was not compared with its source, as asked (--verify none)."
    elif proof.ok:
        outcome = "✓ The new dataset matched its source in everything that was compared."
    elif proof.ok is False:
        outcome = f"✕ The new dataset has {count(proof.differences, 'difference')} from its source."
    else:
        outcome = "The end of the comparison is not recorded."
    return {
        "verification": [
            ("Depth", proof.depth),
            ("Outcome", outcome),
            *((f"{_COUNTED[key]} compared", f"{value:,}") for key, value in proof.counts.items()),
            ("Took", None if proof.seconds is None else f"{proof.seconds:.2f} s"
             if proof.seconds < 10 else duration(proof.seconds)),
        ]
    }  # fmt: skip


def _loading(probe: Mapping[str, Any] | None) -> dict[str, object] | None:
    """Return how fast the result loads, or None if nobody measured it."""
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


def _environment(story: RunReport) -> dict[str, object]:
    """Return hosts, versions, and each command once, with how often and on which hosts it ran."""
    planned = story.planned_versions
    seen = {library: {version} for library, version in planned.items()}
    commands: dict[tuple[str, str], list[Invocation]] = {}
    by_host: dict[str, list[Invocation]] = {}
    for entry in story.invocations:
        for library, version in entry.versions.items():
            seen.setdefault(library, set()).add(version)
        commands.setdefault((_command_line(entry), entry.folder), []).append(entry)
        by_host.setdefault(entry.host, []).append(entry)
    return {
        "commands": [
            (line, folder, len(own), _where({entry.host for entry in own}), when(moment(own[0].at)))
            for (line, folder), own in commands.items()
        ],
        "hosts": [
            (
                host,
                Counter(entry.system for entry in own).most_common(1)[0][0],
                max(entry.cpus for entry in own),
                len(own),
                _clock(story.clocks.get(host)),
            )
            for host, own in sorted(by_host.items())
        ],
        "versions": [
            (library, planned.get(library, "–"), ", ".join(sorted(versions)))
            for library, versions in sorted(seen.items())
        ],
        "mixed_versions": [library for library in sorted(seen) if len(seen[library]) > 1],
    }


def _command_line(entry: Invocation) -> str:
    if entry.command is None:
        return f"leconvert.{entry.called}(…) in Python"
    # Records are written without secrets; this covers records by other programs.
    return shlex.join(without_secrets(entry.command)).replace("'***'", "***")


def _where(hosts: Collection[str]) -> str:
    return next(iter(hosts)) if len(hosts) == 1 else count(len(hosts), "host")


def _clock(ahead: float | None) -> str:
    if ahead is None:
        return "–"
    return f"{-ahead:+.1f} s" if ahead else "agrees"


def _work(story: RunReport, state: BatchCounts, axis: TimeAxis | None) -> dict[str, object]:
    """Return who worked on which batch when, how fast, and all trouble."""
    timed = [a for a in story.attempts if a.began is not None]
    done = [a for a in timed if a.end is AttemptEnd.DONE]
    workers = charts.by_worker(story.attempts)
    hosts: dict[str, list[Attempt]] = {}
    for attempt in story.attempts:
        hosts.setdefault(attempt.host, []).append(attempt)
    unknown = count(len(story.attempts) - len(timed), "attempt")
    without_times = f"{unknown} without a recorded time are only in the tables."
    known = len(timed) == len(story.attempts)
    return {
        "words": f"{count(state.total, 'batch', 'batches')}: {state.done:,} done, {state.failed:,} "
        f"failed, {state.held:,} in work, {state.pending:,} pending.",
        "timeline": _timeline(story, timed, axis) if axis is not None and timed else None,
        "notes": [*([] if known else [without_times]), *_clock_notes(story)],
        "pace": _pace(done) if done else None,
        "workers": [(host, str(pid), *_done_cells(own)) for (host, pid, _), own in workers.items()],
        "hosts": [
            (host, len({a.token for a in own}), *_done_cells(own))
            for host, own in sorted(hosts.items())
        ]
        if len(workers) > _WORKERS_SHOWN
        else None,
        "held": [
            (a.batch_id, a.generation, a.host, str(a.pid or ""), when(a.began), when(a.ended))
            for a in story.attempts
            if a.end is AttemptEnd.HELD
        ],
        **_trouble(story, state),
    }


def _timeline(story: RunReport, timed: Sequence[Attempt], axis: TimeAxis) -> dict[str, object]:
    ends = Counter(attempt.end for attempt in story.attempts)
    trouble = [f", {ends[end]:,} {end.value}" for end in LEGEND if end in TROUBLE and ends[end]]
    cut = duration(sum(seconds for _, _, seconds in axis.breaks))
    pauses = f" No worker worked for {cut} in all, shown as hatched strips."
    workers, hosts = len(charts.by_worker(timed)), len({attempt.host for attempt in timed})
    words = (
        f"{count(workers, 'worker')} on {count(hosts, 'host')}, from "
        f"{when(axis.began)}, for {charts.brief(axis.ended - axis.began)}. "
        f"{count(len(story.attempts), 'attempt')}: "
        f"{ends[AttemptEnd.DONE]:,} done{''.join(trouble)}.{pauses if axis.breaks else ''}"
    )
    return {"words": words, "chart": charts.gantt(timed, story.packers, axis)}


def _clock_notes(story: RunReport) -> list[str]:
    shifted = {host: s for host, s in story.clocks.items() if s}
    hosts = {attempt.host for attempt in story.attempts} | {p.host for p in story.packers}
    if shifted:
        rows = ", ".join(
            f"{host} {abs(seconds):,.1f} s {'behind' if seconds > 0 else 'ahead'}"
            for host, seconds in sorted(shifted.items())
        )
        return [
            "Times are from the clock of each host, corrected to the clock of the work "
            f"dir's file system where the two differed by seconds: {rows}. Durations do "
            "not depend on the clocks."
        ]
    if len(hosts) < 2:
        return []
    known = hosts <= story.clocks.keys()
    said = "agreed with that of the work dir's file system" if known else "could not be compared"
    return [f"Times are from the clock of each host; the clocks {said}."]


def _pace(done: Sequence[Attempt]) -> dict[str, object]:
    """Return throughput over time, and how long batches took."""
    axis = TimeAxis([(a.began, a.ended or a.began) for a in done if a.began is not None])
    values = charts.rates(done, axis, _RATE_PIECES)
    # After a cut, elapsed time is too coarse to distinguish two rows.
    shown = when if axis.breaks else lambda time: charts.brief((time or 0.0) - axis.began)
    tenth = _RATE_PIECES // 10
    taken = [a.seconds if a.seconds is not None else (a.ended or 0.0) - (a.began or 0.0)
             for a in done]  # fmt: skip
    bins = charts.durations(taken)
    ordered = sorted(taken)
    high = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    slowest = sorted(zip(taken, done, strict=True), key=lambda one: (-one[0], one[1].batch_id))
    return {
        "axis": axis,
        "rates": values,
        # A single batch makes a plateau whose rates differ by rounding: take its beginning.
        "peak": next(n for n, rate in enumerate(values) if rate >= 0.99 * max(values)),
        "mean": sum(attempt.source_bytes for attempt in done) / axis.busy_seconds,
        "tenths": [
            (
                shown(axis.time(number / 10)),
                shown(axis.time((number + 1) / 10)),
                f"{amount(sum(values[number * tenth :][:tenth]) / tenth)}/s",
            )
            for number in range(10)
        ],
        "bins": bins,
        "durations": [(charts.brief(b.low), charts.brief(b.high), b.count) for b in bins],
        "words": f"{count(len(taken), 'batch', 'batches')}: half of them took at most "
        f"{charts.brief(statistics.median(taken))}, 95 of 100 at most "
        f"{charts.brief(high)}, the longest {charts.brief(ordered[-1])}.",
        "slowest": [
            (a.batch_id, charts.brief(took), amount(a.source_bytes), a.frames, a.host, str(a.pid))
            for took, a in slowest[:_SLOWEST]
        ],
    }


def _done_cells(own: Sequence[Attempt]) -> Sequence[object]:
    done = [a for a in own if a.end is AttemptEnd.DONE]
    seconds = sum(a.seconds or 0.0 for a in done)
    size = sum(a.source_bytes for a in done)
    return (
        len(done),
        amount(size),
        charts.brief(seconds),
        f"{amount(size / seconds)}/s" if seconds else "–",
        sum(a.end in TROUBLE for a in own),
    )


def _trouble(story: RunReport, state: BatchCounts) -> dict[str, object]:
    winners = {a.batch_id: a for a in story.attempts if a.end is AttemptEnd.DONE}
    rows: _Rows = []
    ends: Counter[AttemptEnd] = Counter()
    for attempt in story.attempts:
        if attempt.end not in TROUBLE:
            continue
        ends[attempt.end] += 1
        winner = winners.get(attempt.batch_id)
        if winner is None:
            then = "failed" if attempt.batch_id in story.set_aside else "no result yet"
        else:
            then = f"done by process {winner.pid} on {winner.host}, attempt {winner.generation}"
        silent = attempt.end in {AttemptEnd.LOST, AttemptEnd.LATE}
        no_word = "The end is not recorded; the time is the last sign of life." if silent else ""
        rows.append(
            (attempt.batch_id, attempt.generation, attempt.end.value, attempt.host,
             str(attempt.pid or ""), when(attempt.ended), attempt.message or no_word, then)
        )  # fmt: skip
    words = "No batch is done so far."
    if rows:
        words = "; ".join(f"{ends[end]:,} {said}" for end, said in LEGEND.items() if ends[end])
        words += "."
    elif state.done == state.total:
        words = "Every batch was done at the first attempt."
    return {"trouble": rows, "trouble_words": words}


def default_report_place(target: Path) -> Path:
    """Return the default path of a conversion's report: ``<target>.report.html``."""
    return target.with_name(f"{target.name}.report.html")


def check_report_place(path: Path, datasets: list[Path]) -> None:
    """Refuse a path that the page cannot be written to.

    Call it before any work begins, too.

    Raises:
        UsageError: The path is in one of the datasets, or cannot be written.
    """
    place = path.resolve()
    within = next((one for one in datasets if lies_in(place, one.resolve())), None)
    if within is not None:
        said = (
            f"{path} is inside the dataset {within}, which must contain only files of the dataset."
        )
        helps = "Choose a place outside the dataset."
    elif place.is_dir():
        said, helps = f"{path} is a folder.", "Give the name of a file in it."
    elif not place.parent.is_dir():
        said = f"The folder {place.parent} does not exist."
        helps = "Make it first, or choose another place."
    elif not os.access(place.parent, os.W_OK | os.X_OK):
        said, helps = lacking_right(place.parent, "wx", "write in the folder")
    else:
        return
    raise UsageError(said, path=str(path), next_step=helps)


def write_report(story: RunReport, path: Path) -> int:
    """Write the page, replacing an existing file in one step.

    Returns:
        Size of the page in bytes.

    Raises:
        UsageError: The path is in the source or the result, or cannot be written.
        StorageError: Writing failed.
    """
    _check_for(story.target, story.sources, path)
    return _write(page(story), path)


def _write(text: str, path: Path) -> int:
    data = text.encode("utf-8")
    with storage_errors(path):
        replace_record(path, data)
    return len(data)


def _check_for(target: str, sources: Sequence[str], path: Path) -> None:
    check_report_place(path, [Path(place) for place in (target, *sources)])


@contextmanager
def report_on_exit(run: OpenedRun, path: Path) -> Iterator[None]:
    """Write a run's report when the block ends, however it ends.

    The block's error matters more than its report: if both fail, the block's error is raised.

    Raises:
        UsageError: The path cannot be used; raised before the block runs.
        StorageError: The block succeeded, but the report could not be written.
    """
    _check_for(run.manifest.target, [s.root for s in run.manifest.sources], path)
    try:
        yield
    except BaseException:
        with suppress(OSError, LeconvertError):
            write_report(gather_run(run), path)
        raise
    try:
        with any_storage_errors():
            write_report(gather_run(run), path)
    except StorageError as error:
        raise StorageError(
            f"The run is finished, but its report could not be written. {error.message}",
            path=error.path,
            next_step="The run need not be repeated. Write the report with `leconvert "
            f"report {shlex.quote(str(run.work_dir.root))} -o FILE`.",
        ) from error


PageTable = tuple[str, str, Sequence[Sequence[object]], Collection[int]]
"""A table: title, explanation, rows with the head first, and columns that hold numbers."""


def write_tables(
    path: Path,
    *,
    kicker: str,
    heading: str,
    facts_title: str,
    facts: Sequence[tuple[str, object]],
    tables: Sequence[PageTable],
    pictures: Sequence[tuple[str, str]] = (),
    state: tuple[str, str, str] | None = None,
    lead: str = "",
    tiles: Sequence[tuple[str, object, str]] = (),
) -> int:
    """Write a page of facts and tables, replacing an existing file; return its size in bytes.

    Args:
        path: The page.
        kicker: The command that made the page, which is also its title.
        heading: The subject of the page.
        facts_title: Heading of the facts.
        facts: Terms with their values; a path, relative to the page, becomes a link.
        tables: The tables.
        pictures: Names with PNG files in base64.
        state: Class (``good``, ``bad`` or ``plain``), sign and words of the state. If given, the
            page links to its sections and its tables fit a narrow screen.
        lead: A sentence below the state.
        tiles: Terms, values, and remarks, which may be empty.
    """
    template = _templates().get_template("tables.html")
    text = template.render(
        state=state,
        lead=lead,
        tiles=tiles,
        named=[(f"table-{n}", title) for n, (title, *_) in enumerate(tables, 1)],
        kicker=kicker,
        heading=heading,
        facts_title=facts_title,
        facts_shown=[
            (term, _link(value) if isinstance(value, Path) else value) for term, value in facts
        ],
        tables=tables,
        pictures=pictures,
    )
    return _write(text, path)


def write_resampling_report(
    document: Mapping[str, Any], path: Path, *, command: str, pictures: Sequence[Path]
) -> None:
    """Write the results of ``leconvert probe resample`` as a page, with its plots (PNG files)."""
    from leconvert.bench import result_tables  # only this function needs its imports

    write_tables(
        path,
        kicker="leconvert probe resample",
        heading="Resampling",
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
