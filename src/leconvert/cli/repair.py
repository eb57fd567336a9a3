"""``leconvert repair``."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_json,
    add_repair_options,
    control_of,
    local_path,
    repair_options,
)
from leconvert.cli.output import print_findings, print_planned_repairs
from leconvert.cli.progress import progress_for
from leconvert.support.errors import SourceError
from leconvert.support.text import amount, count

if TYPE_CHECKING:
    from leconvert.model.repairs import RepairOptions
    from leconvert.run.repairing import RepairReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "dataset", type=local_path, metavar="DATASET", help="the v3.0 dataset to repair"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=local_path,
        metavar="DIR",
        help="where the repaired dataset goes; DATASET is then never touched. Default: its place, "
        "with DATASET kept as DATASET_old",
    )
    add_repair_options(parser, of_v3=True)
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be changed, and write nothing"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Repair a dataset, and say what was changed and what is left."""
    from leconvert.run.repairing import follows_from_files, repair_dataset

    dataset: Path = options.dataset.resolve()
    output: Path | None = None if options.output is None else options.output.resolve()
    asked = repair_options(options)
    with stop_on_signals() as stop:
        if not follows_from_files(asked):
            return _write_anew(dataset, output, asked, options, stop)
        report = repair_dataset(
            dataset,
            output=output,
            retime=asked.retime,
            dry_run=options.dry_run,
            stop=stop,
            progress=progress_for(quiet=options.json),
        )
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    else:
        _show(report)
    return SourceError.exit_code if report.plan.errors_left else 0


def _write_anew(
    dataset: Path,
    output: Path | None,
    asked: RepairOptions,
    options: argparse.Namespace,
    stop: threading.Event,
) -> int:
    """Convert the dataset from v3.0 to v3.0, having said what it loses."""
    from leconvert.api import run_conversion
    from leconvert.cli.flow import print_report
    from leconvert.run.conversion import Conversion
    from leconvert.run.planner import check_asked, preview_plan
    from leconvert.run.repairing import plan_anew
    from leconvert.workdir.swap import work_dir_beside

    progress = progress_for(quiet=options.json)
    plan = plan_anew(dataset, asked, progress=progress)
    conversion = Conversion(repairs=plan.options)
    if options.dry_run:
        target = dataset if output is None else output
        check_asked([dataset], target, conversion)
        conversion.check_target(dataset, target)
        preview_plan([dataset], target, work_dir_beside(target), conversion)
        print_planned_repairs(plan, as_json=options.json)
        return 0
    if not options.json:
        print_planned_repairs(plan, with_findings=False)
    control = control_of(options, stop, progress)
    report = run_conversion([dataset], conversion, control, output=output)
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    else:
        print_report(report)
    return 0


def _show(report: RepairReport) -> None:
    plan = report.plan
    print_findings(plan.left)
    for remark in plan.remarks:
        print(remark)
    errors = len(plan.errors_left)
    if not plan and errors:
        stay = f"{count(errors, 'error')} {'stays' if errors == 1 else 'stay'}"
        print(f"{report.dataset}: nothing of it can be repaired; {stay}.")
        return
    if not plan:
        print(f"{report.dataset}: nothing to repair.")
        return
    if report.was_repaired:
        print(f"{report.target} is {report.dataset}, repaired so, already. There is nothing to do.")
        return
    verb = "would change" if report.dry_run else "changed"
    for line in plan.summary():
        print(f"{verb}: {line}")
    if report.dry_run:
        print(f"{count(len(plan.mended), 'finding')} of {report.dataset} would be gone.")
    else:
        bytes_said = (
            f"{amount(report.written_bytes)} written, {amount(report.copied_bytes)} copied, "
            f"{amount(report.cloned_bytes)} shared"
        )
        print(f"{count(len(plan.mended), 'finding')} gone; {bytes_said}; {report.seconds:.1f} s.")
        print(f"  dataset  {report.target}")
        if report.kept is not None:
            print(f"  kept     {report.kept}")
    if errors:
        print(f"{count(errors, 'error')} left; what helps stands beside each.")
