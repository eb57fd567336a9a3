"""The common flow of commands that make a dataset: download, scan, plan or run, and report."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import control_of, report_place
from leconvert.cli.output import planned_lines, print_findings, print_planned_findings, show
from leconvert.cli.plan import replaced_target, show_preview
from leconvert.cli.progress import progress_for
from leconvert.model.repairs import Repairs
from leconvert.run.conversion import Conversion
from leconvert.support.text import amount, count
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import work_dir_beside

if TYPE_CHECKING:
    from leconvert.api import ConversionReport
    from leconvert.cli.push import ResultPush
    from leconvert.cli.sources import NamedDataset
    from leconvert.run.planner import MovedBytes, PlannedRepairs


def make_dataset(
    options: argparse.Namespace,
    datasets: Sequence[NamedDataset],
    conversion: Conversion,
    *,
    made: str | None = None,
    push: ResultPush | None = None,
    repairs: PlannedRepairs | None = None,
) -> int:
    """Make one dataset of one or several, as ``merge``, ``trim`` and ``repair`` do.

    Args:
        options: The options: where the result goes, what is only shown, and what is kept.
        datasets: The sources, in the order of their episodes.
        conversion: All options of the conversion.
        made: A name for the result, such as ``the result of this very merge``; None to compare
            no dataset that is there already.
        push: The push of the result; None for a command that does not push.
        repairs: The repairs that are made, to be shown before the work; else None.

    Returns:
        The exit code.
    """
    from leconvert.api import find_finished, run_conversion
    from leconvert.run.planner import check_all_places, preview_plan

    output, given = options.output, options.work_dir
    if push is not None:
        push.check()
    if len(datasets) > 1:  # impossible places are refused before anything is downloaded
        work_dir = work_dir_beside(output.resolve()) if given is None else given.resolve()
        check_all_places([dataset.folder for dataset in datasets], output.resolve(), work_dir)
    with stop_on_signals() as stop:
        control = control_of(options, stop, progress_for(quiet=options.json or options.quiet))
        sources = [dataset.bring(stop=stop, progress=control.progress) for dataset in datasets]
        target = sources[0] if output is None else output.resolve()
        work_dir = work_dir_beside(target) if given is None else given.resolve()
        report = verified = None
        # In place, the next call has the result as its source: --restart must not trim it again.
        looks = output is None or not conversion.plan.restart
        if made and looks and WorkDir(work_dir).current_run_id() is None:
            verified = find_finished(sources, target, conversion, control)
            if verified is not None and (push is None or push.repo_id is None):
                return show_finished(options, target, made, verified)
        if options.dry_run:
            replaced_target(sources, target, work_dir, conversion)
            plan = preview_plan(sources, target, work_dir, conversion, progress=control.progress)
            if repairs is None:
                return show_preview(options, plan, sources, target)
            if not (options.json or options.quiet):
                print_planned_findings(repairs)
            return show(options, repairs.as_record(), planned_lines(repairs))
        if repairs is not None and not (options.json or options.quiet):
            print(*planned_lines(repairs), sep="\n")
        if verified is None:
            report = run_conversion(
                sources,
                conversion,
                control,
                output=output,
                work_dir=given,
                keep_work_dir=options.keep_work_dir,
                for_push=push is not None and push.repo_id is not None,
                report=report_place(options.report, target),
            )
    return show_outcome(report, push, as_json=options.json, quiet=options.quiet)


def show_finished(options: argparse.Namespace, target: Path, made: str, verified: str) -> int:
    """Say that a result was in place before, and how it was compared now; return the exit code.

    Args:
        made: A name for the result, such as ``the v3.0 dataset made from SOURCE``.
    """
    how = "of every byte" if verified == "bytes" else "by structure"
    said = (
        f"{target} is already {made}. A comparison {how} found no difference. There is nothing to "
        "do."
    )
    return show(options, {"already_converted": str(target), "verified": verified}, [said])


def show_outcome(
    report: ConversionReport | None, push: ResultPush | None, *, as_json: bool, quiet: bool
) -> int:
    """Push if that is wanted, print the outcome, and return the exit code.

    Args:
        report: The conversion; None if the result was in place before.
        push: The push; None for a command that does not push.
    """
    # If the result could not be measured, the command ends with the code of the probe.
    code = int((report.probe or {}).get("exit_code", 0)) if report else 0
    if as_json:
        done = {} if report is None else report.as_record()
        if push is not None:
            done["push"], push_code = push.as_record()
            code = push_code or code
        print(json.dumps(done, indent=2))
        return code
    if quiet:
        if push is not None:
            push.run()
        if report is not None:
            print_findings(report.findings)
        return code
    if report is None:
        print("The dataset was converted before. Only the push is left to do.")
    else:
        print_report(report)
    if push is not None:
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
    source = report.kept_source or Path(report.source)
    if report.moves is not None or not source.is_dir():
        return said
    verify = shlex.join(
        ["leconvert", "verify", str(report.output), "--source", str(source), "--bytes"]
    )
    return f"{said} (`{verify}` compares every byte)"


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
        print(f"  kept          {report.kept_source}, the source{because}")
        print(
            f"  next          `leconvert undo {shlex.quote(str(report.output))}` puts the source "
            f"back; or `leconvert clean --of {shlex.quote(str(report.output))} --old` removes the "
            "kept source for good, if every byte of it is in the result"
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
