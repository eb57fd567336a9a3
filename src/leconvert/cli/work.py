"""``leconvert work``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_group,
    add_version_option,
    filled,
    lease_options,
)
from leconvert.cli.output import show
from leconvert.cli.parser import add_output
from leconvert.cli.progress import progress_for
from leconvert.run.conversion import LeaseOptions
from leconvert.support.errors import UsageError
from leconvert.support.flags import seconds, whole
from leconvert.support.text import amount, count
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.records import WorkDir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the shared folder of a run or a fleet"
    )
    add_group(parser, LeaseOptions)
    parser.add_argument("--max-batches", type=whole(1), metavar="N", help="stop after N batches")
    parser.add_argument(
        "--max-idle-seconds",
        type=seconds,
        metavar="S",
        help="stop after S seconds without work",
    )
    add_group(parser, ScratchOptions)
    add_version_option(parser)
    add_output(parser, quiet=True)


def _work_on_fleet(options: argparse.Namespace) -> int:
    from leconvert.fleet import work_on_fleet

    if options.max_batches is not None:
        raise UsageError(
            f"--max-batches does not work for a fleet; {options.work_dir} is the work dir of a "
            "fleet.",
            next_step="Use --max-idle-seconds S, or end the worker with SIGTERM.",
        )
    with stop_on_signals() as stop:
        summary = work_on_fleet(
            options.work_dir,
            leases=lease_options(options),
            scratch=filled(ScratchOptions, options),
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            stop=stop,
        )
    said = (
        f"This worker converted {count(summary.converted, 'dataset')}, set {summary.set_aside:,} "
        f"aside and helped with others {count(summary.joined, 'time')}, in {summary.seconds:.1f} s."
    )
    return show(options, asdict(summary), [said])


def run(options: argparse.Namespace) -> int:
    """Work until nothing is left, and print the outcome."""
    from leconvert.api import run_worker

    if WorkDir(options.work_dir.resolve()).is_fleet():
        return _work_on_fleet(options)
    with stop_on_signals() as stop:
        summary = run_worker(
            options.work_dir,
            leases=lease_options(options),
            scratch=filled(ScratchOptions, options),
            max_batches=options.max_batches,
            max_idle_seconds=options.max_idle_seconds,
            allow_mixed_versions=options.allow_mixed_versions,
            command=options.command_line,
            stop=stop,
            progress=progress_for(quiet=options.json or options.quiet),
        )
    failed = count(summary.batches_failed, "failed attempt")
    said = (
        f"This worker finished {count(summary.batches_done, 'batch', 'batches')}, "
        f"{amount(summary.written_bytes)}, in {summary.seconds:.1f} s; "
        f"{failed if summary.batches_failed else 'no failed attempts'}."
    )
    return show(options, asdict(summary), [said])
