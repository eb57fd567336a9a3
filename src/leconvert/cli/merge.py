"""``leconvert merge``."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from leconvert.cli.convert import print_report
from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_conversion_options,
    add_json,
    add_quiet,
    add_report_option,
    conversion_options,
    layout_options,
    local_path,
    proof_options,
    repair_options,
    report_place,
)
from leconvert.cli.output import print_findings
from leconvert.cli.plan import plan_record, print_plan
from leconvert.cli.progress import progress_for
from leconvert.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "datasets",
        type=local_path,
        nargs="+",
        metavar="DATASET",
        help="the datasets to merge, two or more, in the order of their episodes; they stay",
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
    add_report_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_quiet(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Merge, and say what was done."""
    from leconvert.api import is_merged, merge
    from leconvert.workdir.records import WorkDir
    from leconvert.workdir.swap import work_dir_beside

    for dataset in options.datasets:
        if not dataset.is_dir():
            raise UsageError(
                f"{dataset} is not a folder.",
                path=str(dataset),
                next_step="Datasets that are merged must be on this machine: `hf download "
                f"--repo-type dataset {shlex.quote(str(dataset))} --local-dir DIR` fetches one of "
                "that name on the Hub.",
            )
    how = conversion_options(options)
    if options.dry_run:
        return _show_plan(options)
    sources = [dataset.resolve() for dataset in options.datasets]
    target = options.output.resolve()
    work_dir = options.work_dir or work_dir_beside(target)
    begins_anew = how["plan"].restart or how["proof"].force_conversion
    is_new = begins_anew or WorkDir(work_dir).current_run_id() is not None
    if not is_new and is_merged(target, sources, how["layout"], how["repairs"]):
        said = f"{target} is these datasets, merged so, already: a comparison by structure found "
        said += "no difference. There is nothing to do."
        print(json.dumps({"already_converted": str(target)}) if options.json else said)
        return 0
    with stop_on_signals() as stop:
        report = merge(
            options.datasets,
            output=options.output,
            work_dir=options.work_dir,
            keep_work_dir=options.keep_work_dir,
            report=report_place(options.report, target),
            **how,
            stop=stop,
            progress=progress_for(quiet=options.json or options.quiet),
        )
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    elif options.quiet:
        print_findings(report.findings)
    else:
        print_report(report)
    return 0


def _show_plan(options: argparse.Namespace) -> int:
    from leconvert.planner import check_all_places, check_asked, draft_plan
    from leconvert.workdir.swap import work_dir_beside

    sources = [dataset.resolve() for dataset in options.datasets]
    target = options.output.resolve()
    layout, repairs = layout_options(options), repair_options(options)
    work_dir = options.work_dir.resolve() if options.work_dir else work_dir_beside(target)
    check_all_places(sources, target, work_dir)
    check_asked(sources, target, layout, repairs)
    proof_options(options).check_target(sources[0], target, layout.to)
    progress = progress_for(quiet=options.json or options.quiet)
    plan = draft_plan(sources, target, work_dir, layout, repairs, progress=progress).summary
    if options.json:
        told = {"sources": list(map(str, sources)), "target": str(target), "work_dir": None}
        print(json.dumps(plan_record(plan, **told), indent=2))
        return 0
    print_plan(plan)
    print("Nothing was written.")
    return 0
