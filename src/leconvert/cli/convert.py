"""``leconvert convert``."""

from __future__ import annotations

import argparse
import json

from leconvert.cli.convert_call import convert_as_asked
from leconvert.cli.convert_push import ConvertPush
from leconvert.cli.convert_report import show_outcome
from leconvert.cli.engine_options import add_engine_options, chosen_engine
from leconvert.cli.json_option import add_json
from leconvert.cli.places import places
from leconvert.cli.plan_options import add_plan_options
from leconvert.cli.progress import progress_for
from leconvert.cli.proof_options import add_proof_options
from leconvert.cli.push_options import add_push_options, add_push_wish, push_target
from leconvert.cli.report_option import add_report_option
from leconvert.cli.signals import stop_on_signals
from leconvert.cli.values import some_seconds
from leconvert.cli.worker_options import add_lease_options

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_plan_options(parser)
    add_engine_options(parser)
    add_lease_options(parser)
    add_proof_options(parser)
    parser.add_argument(
        "--force-conversion", action="store_true", help="replace a v3.0 dataset at the target"
    )
    parser.add_argument(
        "--keep-work-dir", action="store_true", help="keep the run's records after success"
    )
    add_push_wish(parser)
    add_push_options(parser)
    _add_probe_wish(parser)
    add_report_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and say what was done."""
    if options.dry_run:
        from leconvert.cli import plan

        return plan.run(options)
    engine = chosen_engine(options)
    push_target(options, None)  # contradictions are told before anything is fetched
    progress = progress_for(quiet=options.json)
    with stop_on_signals() as stop:
        found = places(options, stream=bool(options.orchestrate), stop=stop, progress=progress)
        if isinstance(found, str):
            print(json.dumps({"already_converted": found}) if options.json else found)
            return 0
        push = ConvertPush(options, found)
        report = None
        if not push.is_alone_left():
            wanted = push.repo_id is not None
            report = convert_as_asked(options, found, engine, stop, progress, for_push=wanted)
            found.release()
    return show_outcome(report, push, as_json=options.json)


def _add_probe_wish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--probe", action="store_true", help="measure how fast the result loads; needs torch"
    )
    parser.add_argument(
        "--probe-seconds",
        type=some_seconds,
        default=10.0,
        metavar="S",
        help="for so long (default: 10)",
    )
