"""``leconvert work``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_json,
    add_lease_options,
    add_quiet,
    add_scratch_options,
    add_version_option,
    lease_options,
    scratch_options,
)
from leconvert.cli.parser import seconds, whole
from leconvert.cli.progress import progress_for
from leconvert.text import amount, count

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the run's shared folder")
    add_lease_options(parser, trouble=True)
    parser.add_argument("--max-batches", type=whole(1), metavar="N", help="stop after N batches")
    parser.add_argument(
        "--max-idle-seconds",
        type=seconds,
        metavar="S",
        help="stop after waiting S seconds for work",
    )
    add_scratch_options(parser)
    add_version_option(parser)
    add_quiet(parser)
    add_json(parser)


def _failed(attempts: int) -> str:
    return f"{count(attempts, 'failed attempt')}" if attempts else "no failed attempts"


def run(options: argparse.Namespace) -> int:
    """Work until nothing is left, and say what was done."""
    from leconvert.api import run_worker

    with stop_on_signals() as stop:
        summary = run_worker(
            options.work_dir,
            leases=lease_options(options),
            scratch=scratch_options(options),
            max_batches=options.max_batches,
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            command=options.command_line,
            stop=stop,
            progress=progress_for(quiet=options.json or options.quiet),
        )
    if options.json:
        print(json.dumps(asdict(summary), indent=2))
    elif not options.quiet:
        print(
            f"Did {summary.batches_done} batches, {amount(summary.written_bytes)}, "
            f"in {summary.seconds:.1f} s; {_failed(summary.batches_failed)}."
        )
    return 0
