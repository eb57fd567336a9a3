"""``leconvert pack``."""

from __future__ import annotations

import argparse
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_proof_options,
    add_report_option,
    add_version_option,
    filled,
    report_place,
)
from leconvert.cli.output import show
from leconvert.cli.parser import add_output
from leconvert.cli.progress import progress_for
from leconvert.run.conversion import LeaseOptions, ProofOptions

if TYPE_CHECKING:
    from leconvert.run.packer import PackReport
    from leconvert.support.progress import Progress
    from leconvert.workdir.run import OpenedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the work dir of the run")
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="do not wait for workers: say what is missing, and end",
    )
    add_proof_options(parser, may_wait=True)
    add_version_option(parser)
    add_report_option(parser)
    add_output(parser, quiet=True)


def _say_what_it_waits_for(run: OpenedRun, progress: Progress) -> None:
    """Print how many batches are not done. Without workers they would never be."""
    from leconvert.run.worker_pool import WorkerPool

    board = WorkerPool(run, LeaseOptions(), threading.Event()).look()
    if board.all_settled():
        return
    progress.say(
        f"Waiting for workers: {len(board.done_ids()):,} of {run.manifest.num_batches:,} batches "
        "are done. Start a worker on any host with: leconvert work "
        f"{shlex.quote(str(run.work_dir.root))}"
    )


def run(options: argparse.Namespace) -> int:
    """Pack, and print the place of the result."""
    from leconvert.remote.provenance import note_result
    from leconvert.report import report_on_exit
    from leconvert.run.packer import pack_run
    from leconvert.workdir.activity import record_invocation
    from leconvert.workdir.run import open_run

    opened = open_run(options.work_dir.resolve(), allow_mixed_versions=options.allow_mixed_versions)
    page = report_place(options.report, Path(opened.manifest.target))
    with report_on_exit(opened, page), stop_on_signals() as stop:
        record_invocation(opened.paths, "pack", options.command_line)
        progress = progress_for(quiet=options.json or options.quiet)
        if not options.no_wait:
            _say_what_it_waits_for(opened, progress)
        packed = pack_run(
            opened,
            filled(ProofOptions, options),
            wait=not options.no_wait,
            stop=stop,
            progress=progress,
        )
        note_result(opened, packed.kept, for_push=False, progress=progress)
    return show(options, packed.as_record(), _lines(packed, page))


def _lines(packed: PackReport, page: Path | None) -> Iterator[str]:
    yield f"made          {packed.target}"
    if packed.kept is not None:
        reason = f": {packed.kept_because}" if packed.kept_because else ""
        yield f"kept          {packed.kept}{reason}"
    if packed.removed is not None:
        yield f"removed       {packed.removed}: every byte of it is proven to be in the result"
    because = f": {packed.verified_because}" if packed.verified_because else ""
    yield (
        f"files         {packed.linked} taken from the work dir (hard links), {packed.copied} "
        f"copied, {packed.joined} joined"
    )
    yield f"checked       {packed.verified} compared with the source{because}"
    if page is not None:
        yield f"report        {page}"
