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
    conversion_options,
    layout_options,
    local_path,
    plan_options,
    proof_options,
    repair_options,
)
from leconvert.cli.output import print_findings
from leconvert.cli.parser import whole
from leconvert.cli.plan import show_preview
from leconvert.cli.progress import progress_for
from leconvert.cli.sources import named_datasets

if TYPE_CHECKING:
    from pathlib import Path

    from leconvert.model.selection import EpisodeSelection
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
    from leconvert.api import find_finished, trim
    from leconvert.model.selection import EpisodeSelection, parse_frames
    from leconvert.workdir.records import WorkDir
    from leconvert.workdir.swap import work_dir_beside

    intervals = parse_frames(options.episode, options.frames)
    selection = EpisodeSelection(frames=intervals)
    layout, repairs = layout_options(options), repair_options(options)
    [dataset] = named_datasets([options.dataset], unfetched="A dataset is trimmed on this machine")
    how = conversion_options(options)
    progress = progress_for(quiet=options.json or options.quiet)
    source = dataset.bring()
    with stop_on_signals() as stop:
        target = source if options.output is None else options.output.resolve()
        verified = None
        if WorkDir(work_dir_beside(target)).current_run_id() is None:
            verified = find_finished(
                [source], target, layout, repairs, selection, how["proof"],
                stop=stop,
                progress=progress,
            )  # fmt: skip
        if verified is not None:
            return show_finished(options, target, f"{options.dataset}, trimmed so,", verified)
        if options.dry_run:
            return _show_plan(options, source, selection, progress)
        report = trim(
            source,
            frames={each.episode: (each.first, each.stop) for each in intervals},
            output=options.output,
            **how,
            stop=stop,
            progress=progress,
        )
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    elif options.quiet:
        print_findings(report.findings)
    else:
        print_report(report)
    return 0


def _show_plan(
    options: argparse.Namespace, source: Path, selection: EpisodeSelection, progress: Progress
) -> int:
    from leconvert.run.planner import check_asked, preview_plan
    from leconvert.workdir.swap import work_dir_beside

    target = source if options.output is None else options.output.resolve()
    layout, repairs = layout_options(options), repair_options(options)
    check_asked([source], target, layout, repairs, selection)
    proof_options(options).check_target(source, target, layout.to)
    plan = preview_plan(
        [source], target, work_dir_beside(target), layout, repairs,
        selection=selection,
        plan=plan_options(options),
        progress=progress,
    )  # fmt: skip
    return show_preview(options, plan)
