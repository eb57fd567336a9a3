"""The common flow of commands that make a dataset: download, scan, plan or run, and report."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.options import controlled, push_options, report_place
from leconvert.cli.output import planned_lines, print_findings, show
from leconvert.cli.plan import show_dry_run
from leconvert.cli.push import ResultPush
from leconvert.model.repairs import Repairs
from leconvert.run.conversion import Control, Conversion
from leconvert.support.text import amount, count
from leconvert.workdir.records import WorkDir

if TYPE_CHECKING:
    from leconvert.api import ConversionReport
    from leconvert.cli.sources import Places
    from leconvert.run.planner import MovedBytes, PlannedRepairs


def make_dataset(
    options: argparse.Namespace,
    conversion: Conversion,
    bring: Callable[[Control], AbstractContextManager[Places | str]],
    *,
    push_of: Callable[[Places], ResultPush] | None = None,
    repairs: PlannedRepairs | None = None,
    probe_seconds: float | None = None,
) -> int:
    """Make one dataset of one or several, as ``convert``, ``merge``, ``trim`` and ``repair`` do.

    Args:
        options: The options: where the result goes, what is only shown, and what is kept.
        conversion: All options of the conversion.
        bring: Provides the sources, the target and the work dir; or says that the Hub has the
            dataset in this version already.
        push_of: Returns the push of the result; None for a command that does not push.
        repairs: The repairs that are made, to be shown before the work; else None.
        probe_seconds: Seconds to measure how fast the result loads; None for no measurement.

    Returns:
        The exit code.
    """
    from leconvert.api import run_conversion

    report = None
    with controlled(options) as control, bring(control) as found:
        if isinstance(found, str):
            return show(options, {"already_converted": found}, [found])
        push = push_of(found) if push_of else ResultPush(options, found.target, None)
        pushes = push.repo_id is not None
        is_there, verified = push.is_alone_left(), None
        # A repair has planned changes, so there is something to do.
        if is_there is None and repairs is None:
            asks_more = not pushes and _asks_more(options, conversion, probe_seconds)
            verified = None if asks_more else _compared(options, found, conversion, control)
            is_there = verified is not None
        if verified is not None and not pushes:
            found.release()
            return _show_finished(options, found, conversion, verified)
        if options.dry_run and is_there:
            record = {"already_converted": str(found.target), "verified": verified}
            return show(options, record, [_PUSH_LEFT, "Nothing was written."])
        if options.dry_run:
            return show_dry_run(options, found, conversion, control, repairs)
        if repairs is not None and not (options.json or options.quiet):
            print(*planned_lines(repairs), sep="\n")
        if not is_there:
            if found.migrates:
                conversion = replace(conversion, push=push_options(options, None))
            report = run_conversion(
                found.sources,
                conversion,
                control,
                arrival=found.arrival,
                output=None if found.migrates or found.in_place else found.target,
                work_dir=None if options.work_dir is None else found.work_dir,
                keep_work_dir=options.keep_work_dir,
                for_push=pushes,
                probe_seconds=probe_seconds,
                report=report_place(options.report, found.named),
            )
            push.done = report.push
        found.release()
    return _show_outcome(options, report, push)


# The same command again, when its result is in place.


def _asks_more(
    options: argparse.Namespace, conversion: Conversion, probe_seconds: float | None
) -> bool:
    """Return whether a command asks for more than a result."""
    return (
        probe_seconds is not None
        or options.report is not None
        or options.keep_work_dir
        or conversion.layout.block_align is not None  # no result tells how its blocks are aligned
    )


def _compared(
    options: argparse.Namespace, found: Places, conversion: Conversion, control: Control
) -> str | None:
    """Compare a result that is in place with the result of this command.

    Returns:
        The depth of the comparison; None if there is something to do.
    """
    from leconvert.api import find_finished

    proof = conversion.proof
    # In place, the next call has the result as its source: --restart must not trim it again.
    begins_anew = conversion.plan.restart and not found.in_place
    # A source is removed only by a conversion.
    if begins_anew or found.migrates or proof.delete_source:
        return None
    if _is_under_way(found.work_dir, to_look=options.dry_run):
        return None
    if options.dry_run and found.outline:  # the run itself may have the whole source
        proof = replace(proof, verify="structure")
    proof.check_source(is_outline=found.outline is not None)
    return find_finished(found.sources, found.target, replace(conversion, proof=proof), control)


def _is_under_way(work_dir: Path, *, to_look: bool) -> bool:
    """Return whether a run is unfinished; ``to_look``: if its swap began, it counts as finished."""
    from leconvert.run.packer import swap_has_begun
    from leconvert.workdir.run import open_run

    if WorkDir(work_dir).current_run_id() is None:
        return False
    return not (
        to_look and swap_has_begun(open_run(work_dir, allow_mixed_versions=True, only_look=True))
    )


def _show_finished(
    options: argparse.Namespace,
    found: Places,
    conversion: Conversion,
    verified: str,
) -> int:
    """Say that a result was in place before, and how it was compared now; return the exit code."""
    how = "of every byte" if verified == "bytes" else "by structure"
    said = (
        f"{found.target} is already the {conversion.layout.to} dataset made from {found.made_of}. "
        f"A comparison {how} found no difference. There is nothing to do."
    )
    record = {"already_converted": str(found.target), "verified": verified}
    return show(options, record, [said])


_PUSH_LEFT = "The dataset was converted before. Only the push is left to do."


def _show_outcome(
    options: argparse.Namespace, report: ConversionReport | None, push: ResultPush
) -> int:
    """Push if that is wanted, print the outcome, and return the exit code.

    Args:
        report: The conversion; None if the result was in place before.
        push: The push.
    """
    # If the result could not be measured, the command ends with the code of the probe.
    code = int((report.probe or {}).get("exit_code", 0)) if report else 0
    if options.json:
        done = {} if report is None else report.as_record()
        done["push"], push_code = push.as_record()
        print(json.dumps(done, indent=2))
        return push_code or code
    if options.quiet:
        push.run()
        if report is not None:
            print_findings(report.findings)
        return code
    if report is None:
        print(_PUSH_LEFT)
    else:
        print_report(report)
    for line in push.lines(push.run()):
        print(line)
    return code


def print_report(report: ConversionReport) -> None:
    """Print findings, sizes and places."""
    print_findings(report.findings)
    rate = report.source_bytes / report.seconds if report.seconds else 0.0
    if report.kept_episodes:
        print(
            f"Appended {count(report.episodes - report.kept_episodes, 'episode')}, "
            f"{amount(report.source_bytes)}, in {report.seconds:.1f} s. The "
            f"{report.kept_episodes:,} earlier episodes stay in their files. The result has "
            f"{report.files:,} files now."
        )
    else:
        print(
            f"Converted {count(report.episodes, 'episode')}, {count(report.frames, 'frame')}, "
            f"{amount(report.source_bytes)} into {count(report.files, 'file')} "
            f"in {report.seconds:.1f} s ({amount(rate)}/s)."
        )
    if report.moves is None:
        print(f"  made          {report.output} ({report.version})")
    else:
        print(f"  made          the {report.version} dataset, on the Hub only")
        _print_moves(report.moves)
    print(f"  checked       {_checked(report)}")
    print(f"  use           {_use(report)}")
    _print_source(report)
    if report.kept_files is not None:
        print(
            f"  unchanged     {count(report.kept_files, 'file is', 'files are')} taken from the "
            "source without a change"
        )
    if report.cloned_bytes:
        print(f"  shared        {amount(report.cloned_bytes)} of video with the source, not copied")
    changes = Repairs.from_record(report.repairs).summary()
    if changes:
        print(f"  changed       {changes[0]}")
        for change in changes[1:]:
            print(f"                {change}")
    if report.work_dir is not None:
        clean = f"leconvert clean {shlex.quote(str(report.work_dir))}"
        print(f"  records       {report.work_dir}; `{clean}` removes them")
    if report.report is not None:
        print(f"  report        {report.report}")
    if report.probe is not None:
        print(f"  loads         {_loading(report.probe)}")
    print(f"  peak memory   {_memory(report.peak_memory_bytes)}")


def _checked(report: ConversionReport) -> str:
    """Return how the result was compared with its source, and the command that compares more."""
    because = "" if report.verified_because is None else f": {report.verified_because}"
    if report.verified == "none":
        return f"not compared with the source{because}"
    if report.verified == "bytes":
        return f"matches the source; every byte compared{because}"
    said = f"matches the source; {report.verified} compared{because}"
    source = Path(report.source)
    if _is_in_place(report) and report.kept_source is not None:
        source = report.kept_source
    if report.moves is not None or not source.is_dir():
        return said
    verify = shlex.join(
        ["leconvert", "verify", str(report.output), "--source", str(source), "--bytes"]
    )
    return f"{said} (`{verify}` compares every byte)"


def _is_in_place(report: ConversionReport) -> bool:
    """Return whether the source was replaced: an append, and --force-conversion, keep a result."""
    return report.source == str(report.output)


def _use(report: ConversionReport) -> str:
    if report.version != "v3.0":
        return "ready for GR00T, openpi and LeRobot up to 0.3.3"
    if report.quantiles:
        return "ready for training, and for recording more episodes into it"
    return "ready for training; to record more episodes into it, convert with --quantiles (slower)"


def _print_source(report: ConversionReport) -> None:
    """Print what happened to a source that the result replaced."""
    if report.kept_source is not None:
        because = f"; not removed: {report.kept_because}" if report.kept_because else ""
        in_place = _is_in_place(report)
        what = "the source" if in_place else "the earlier result"
        print(f"  kept          {report.kept_source}, {what}{because}")
        print(
            f"  next          `leconvert undo {shlex.quote(str(report.output))}` puts {what} "
            f"back; or `leconvert clean --of {shlex.quote(str(report.output))} --old` removes "
            f"{'the kept source' if in_place else 'it'} for good, if every byte of it is in the "
            "result"
        )
    if report.removed_source is not None:
        print(
            f"  removed       {report.removed_source}, the source: every byte of it is in the "
            "result"
        )


def _print_moves(moves: MovedBytes) -> None:
    received = moves.received + moves.to_fetch
    print(
        f"  network       {amount(received)} downloaded, about {amount(moves.to_send)} uploaded; "
        f"the dataset has {amount(moves.of)}"
    )


def _memory(peak: Mapping[str, int | None]) -> str:
    command, workers = peak.get("command"), peak.get("workers")
    own = amount(command) if command else "unknown"
    return own if not workers else f"{own} for this command, {amount(workers)} for a worker"


def _loading(probe: Mapping[str, Any]) -> str:
    if "error" in probe:
        return str(probe["message"])
    return (
        f"{probe['samples_per_s']:,.0f} samples/s, {probe['frames_per_s_node']:,.0f} decoded "
        f"frames/s, first batch after {probe['first_batch_latency_s']:.1f} s"
    )
