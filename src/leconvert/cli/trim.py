"""``leconvert trim``."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from leconvert.cli.convert import print_report, show_finished
from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_conversion_options,
    add_json,
    add_quiet,
    control_of,
    conversion_options,
    local_path,
)
from leconvert.cli.output import print_findings
from leconvert.cli.plan import show_preview
from leconvert.cli.progress import progress_for
from leconvert.cli.sources import named_datasets
from leconvert.support.flags import whole

if TYPE_CHECKING:
    from pathlib import Path

    from leconvert.run.conversion import Conversion
    from leconvert.support.progress import Progress

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("dataset", metavar="DATASET", help="the dataset to trim")
    parser.add_argument(
        "--episode", type=whole(0), action="append", default=[], required=True, metavar="N",
        help="trim this episode to the next --frames; both may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--frames", action="append", default=[], required=True, metavar="FROM:TO",
        help="the first frame that stays, counted from 0, and the one after the last; either may "
        "be left out",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=local_path, metavar="DIR",
        help="where the result goes; DATASET is then never touched. Default: its place, with "
        "DATASET kept as DATASET_old",
    )  # fmt: skip
    add_conversion_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_quiet(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Trim, and say what was done."""
    from leconvert.api import find_finished, run_conversion
    from leconvert.model.selection import EpisodeSelection, parse_frames
    from leconvert.workdir.records import WorkDir
    from leconvert.workdir.swap import work_dir_beside

    selection = EpisodeSelection(frames=parse_frames(options.episode, options.frames))
    [dataset] = named_datasets([options.dataset], unfetched="A dataset is trimmed on this machine")
    conversion = conversion_options(options, selection)
    progress = progress_for(quiet=options.json or options.quiet)
    source = dataset.bring()
    with stop_on_signals() as stop:
        control = control_of(options, stop, progress)
        target = source if options.output is None else options.output.resolve()
        verified = None
        if WorkDir(work_dir_beside(target)).current_run_id() is None:
            verified = find_finished([source], target, conversion, control)
        if verified is not None:
            return show_finished(options, target, f"{options.dataset}, trimmed so,", verified)
        if options.dry_run:
            return _show_plan(options, source, target, conversion, progress)
        report = run_conversion([source], conversion, control, output=options.output)
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    elif options.quiet:
        print_findings(report.findings)
    else:
        print_report(report)
    return 0


def _show_plan(
    options: argparse.Namespace,
    source: Path,
    target: Path,
    conversion: Conversion,
    progress: Progress,
) -> int:
    from leconvert.run.planner import check_asked, preview_plan
    from leconvert.workdir.swap import work_dir_beside

    check_asked([source], target, conversion)
    conversion.check_target(source, target)
    plan = preview_plan([source], target, work_dir_beside(target), conversion, progress=progress)
    return show_preview(options, plan)
