"""``leconvert merge``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.convert import show_finished, show_outcome
from leconvert.cli.main import end_on_signals, stop_on_signals
from leconvert.cli.options import (
    add_conversion_options,
    add_json,
    add_push_options,
    add_quiet,
    add_report_option,
    control_of,
    conversion_options,
    local_path,
    named_push_target,
    report_place,
)
from leconvert.cli.plan import show_preview
from leconvert.cli.progress import progress_for
from leconvert.cli.push import ResultPush
from leconvert.cli.sources import named_datasets
from leconvert.support.progress import Progress

if TYPE_CHECKING:
    from leconvert.run.conversion import Conversion

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "datasets",
        nargs="+",
        metavar="DATASET",
        help="the datasets to merge, two or more, in the order of their episodes; each a folder, "
        "or ORG/NAME or hf://datasets/ORG/NAME@REV on the Hub; they stay",
    )
    parser.add_argument(
        "-o", "--output", type=local_path, required=True, metavar="DIR",
        help="where the merged dataset goes",
    )  # fmt: skip
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR",
        help="folder for the run's state, on a file system that all workers share; default: a "
        "hidden sibling of the output",
    )  # fmt: skip
    add_conversion_options(parser)
    parser.add_argument(
        "--keep-work-dir", action="store_true", help="keep the run's records after success"
    )
    add_push_options(parser, of_several=True)
    add_report_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_quiet(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Merge, and say what was done."""
    from leconvert.api import check_several, find_finished, run_conversion
    from leconvert.run.planner import check_all_places
    from leconvert.workdir.records import WorkDir
    from leconvert.workdir.swap import work_dir_beside

    check_several(options.datasets)
    writes_nothing = "--dry-run writes nothing" if options.dry_run else None
    datasets = named_datasets(options.datasets, unfetched=writes_nothing)
    conversion = conversion_options(options)
    target = options.output.resolve()
    push = ResultPush(options, target, named_push_target(options))
    push.check()
    work_dir = options.work_dir or work_dir_beside(target)
    # Places that cannot be are told before anything is fetched.
    check_all_places([dataset.folder for dataset in datasets], target, work_dir.resolve())
    progress = progress_for(quiet=options.json or options.quiet)
    with stop_on_signals() as stop:
        control = control_of(options, stop, progress)
        with end_on_signals(stop):
            sources = [dataset.bring(stop=stop, progress=progress) for dataset in datasets]
        report = verified = None
        if not conversion.plan.restart and WorkDir(work_dir).current_run_id() is None:
            verified = find_finished(sources, target, conversion, control)
        if verified is not None and push.repo_id is None:
            return show_finished(options, target, "these datasets, merged so,", verified)
        if options.dry_run:
            return _show_plan(options, sources, conversion, progress)
        if verified is None:
            report = run_conversion(
                sources,
                conversion,
                control,
                output=options.output,
                work_dir=options.work_dir,
                keep_work_dir=options.keep_work_dir,
                for_push=push.repo_id is not None,
                report=report_place(options.report, target),
            )
    return show_outcome(report, push, as_json=options.json, quiet=options.quiet)


def _show_plan(
    options: argparse.Namespace, sources: Sequence[Path], conversion: Conversion, progress: Progress
) -> int:
    from leconvert.run.planner import check_all_places, check_asked, preview_plan
    from leconvert.workdir.swap import work_dir_beside

    target = options.output.resolve()
    work_dir = options.work_dir.resolve() if options.work_dir else work_dir_beside(target)
    check_all_places(sources, target, work_dir)
    check_asked(sources, target, conversion)
    conversion.check_target(sources[0], target)
    plan = preview_plan(sources, target, work_dir, conversion, progress=progress)
    told = {"sources": list(map(str, sources)), "target": str(target), "work_dir": None}
    return show_preview(options, plan, **told)
