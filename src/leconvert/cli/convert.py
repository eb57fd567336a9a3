"""``leconvert convert``."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from leconvert.cli.flow import show_finished, show_outcome
from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_engine_options,
    add_group,
    add_keep_work_dir,
    add_plan_options,
    add_proof_options,
    add_push_options,
    add_push_wish,
    add_report_option,
    control_of,
    conversion_options,
    push_options,
    push_target,
    report_place,
    take_arguments,
)
from leconvert.cli.parser import USUAL_OPTIONS, Parser, add_output
from leconvert.cli.progress import progress_for
from leconvert.cli.push import ConvertPush
from leconvert.cli.sources import Places, places
from leconvert.run.conversion import Control, Conversion, LeaseOptions
from leconvert.support.errors import UsageError
from leconvert.support.flags import some_seconds
from leconvert.workdir.records import WorkDir

# The same command again, when its result is in place.


def show_if_finished(
    options: argparse.Namespace, found: Places, conversion: Conversion, control: Control
) -> int | None:
    """Say that the result of this command is in place already, and return the exit code.

    A command that asks for more than the result is not answered here.

    Returns:
        The exit code; None if there is something to do.
    """
    from leconvert.api import find_finished

    layout, proof = conversion.layout, conversion.proof
    asks_more = options.probe or options.report is not None or options.keep_work_dir
    # No result tells how its blocks are aligned. A source is removed only by a conversion.
    if asks_more or proof.delete_source or layout.block_align is not None or found.migrates:
        return None
    if ConvertPush(options, conversion, found).repo_id is not None or conversion.plan.restart:
        return None
    if _is_under_way(found.work_dir, to_look=options.dry_run):
        return None
    is_outline = bool(found.arrival and found.arrival.outline)
    if options.dry_run and is_outline:  # the run itself may have the whole source
        proof = replace(proof, verify="structure")
    proof.check_source(is_outline=is_outline)
    conversion = replace(conversion, proof=proof)
    verified = find_finished([found.source], found.target, conversion, control)
    if verified is None:
        return None
    made = f"the {layout.to} dataset made from {found.made_of}"
    return show_finished(options, found.target, made, verified)


def _is_under_way(work_dir: Path, *, to_look: bool) -> bool:
    """Return whether a run is unfinished; ``to_look``: if its swap began, it counts as finished."""
    from leconvert.run.packer import swap_has_begun
    from leconvert.workdir.run import open_run

    if WorkDir(work_dir).current_run_id() is None:
        return False
    return not (
        to_look and swap_has_begun(open_run(work_dir, allow_mixed_versions=True, only_look=True))
    )


# ``leconvert convert``.


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    add_plan_options(parser)
    add_engine_options(parser)
    add_group(parser, LeaseOptions, without=("trouble_seconds",))
    add_proof_options(parser)
    add_keep_work_dir(parser)
    add_push_wish(parser)
    add_push_options(parser)
    _add_probe_wish(parser)
    add_report_option(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run(options: argparse.Namespace) -> int:
    """Convert, and print the outcome."""
    from leconvert.api import run_conversion

    take_arguments(options)
    if options.probe_seconds is not None and not options.probe:
        raise UsageError("--probe-seconds works only with --probe.", next_step="Add --probe.")
    # Contradictory options of a push are refused before anything is read or downloaded.
    conversion = conversion_options(options)
    push_target(options, conversion.layout, None)
    progress = progress_for(quiet=options.json or options.quiet)
    with stop_on_signals() as stop:
        control = control_of(options, stop, progress)
        if options.dry_run:
            from leconvert.cli.plan import show_plan

            return show_plan(
                options,
                conversion,
                conversion.proof,
                finished=lambda found: show_if_finished(options, found, conversion, control),
            )
        in_processes = bool(conversion.workers.orchestrate)
        found = places(options, conversion, stream=in_processes, stop=stop, progress=progress)
        if isinstance(found, str):
            print(json.dumps({"already_converted": found}) if options.json else found)
            return 0
        code = show_if_finished(options, found, conversion, control)
        if code is not None:
            found.release()
            return code
        push = ConvertPush(options, conversion, found)
        report = None
        if not push.is_alone_left():
            if found.migrates:
                conversion = replace(conversion, push=push_options(options, None))
            report = run_conversion(
                [found.source],
                conversion,
                control,
                arrival=found.arrival,
                output=None if found.migrates or found.target == found.source else found.target,
                work_dir=found.work_dir if options.work_dir is not None else None,
                keep_work_dir=options.keep_work_dir,
                for_push=push.repo_id is not None,
                probe_seconds=(options.probe_seconds or 10.0) if options.probe else None,
                report=report_place(options.report, found.named),
            )
            found.release()
            push.done = report.push
    return show_outcome(report, push, as_json=options.json, quiet=options.quiet)


def _add_probe_wish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--probe", action="store_true", help="also measure how fast the result loads; needs torch"
    )
    parser.add_argument(
        "--probe-seconds",
        type=some_seconds,
        metavar="S",
        help="seconds to measure with --probe (default: 10)",
    )
