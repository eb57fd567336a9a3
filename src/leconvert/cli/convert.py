"""``leconvert convert``."""

from __future__ import annotations

import argparse
from functools import partial

from leconvert.cli.flow import make_dataset
from leconvert.cli.options import (
    add_engine_options,
    add_group,
    add_keep_work_dir,
    add_plan_options,
    add_proof_options,
    add_push_options,
    add_push_wish,
    add_report_option,
    conversion_options,
    push_target,
    take_arguments,
)
from leconvert.cli.parser import USUAL_OPTIONS, Parser, add_output
from leconvert.cli.push import ConvertPush
from leconvert.cli.sources import places
from leconvert.run.conversion import LeaseOptions
from leconvert.support.errors import UsageError
from leconvert.support.flags import some_seconds


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
    take_arguments(options)
    if options.probe_seconds is not None and not options.probe:
        raise UsageError("--probe-seconds works only with --probe.", next_step="Add --probe.")
    # Contradictory options of a push are refused before anything is read or downloaded.
    conversion = conversion_options(options)
    push_target(options, conversion.layout, None)
    return make_dataset(
        options,
        conversion,
        partial(places, options, conversion, stream=bool(conversion.workers.orchestrate)),
        push_of=partial(ConvertPush, options, conversion),
        probe_seconds=(options.probe_seconds or 10.0) if options.probe else None,
    )


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
