"""``leconvert check``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from leconvert.cli.options import dataset_root, local_dataset
from leconvert.cli.output import (
    columns,
    findings_lines,
    planned_lines,
    print_planned_findings,
    print_sentence,
    show,
)
from leconvert.cli.parser import add_output
from leconvert.cli.progress import progress_for
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.text import count

if TYPE_CHECKING:
    from leconvert.dataset.check.dataset import DatasetReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "root",
        type=local_dataset,
        nargs="?",
        metavar="DATASET",
        help="the dataset folder itself, v2.x or v3.0, which holds meta/, data/ and videos/",
    )
    parser.add_argument(
        "--repo-id",
        metavar="ORG/NAME",
        help="check the folder $HF_LEROBOT_HOME/ORG/NAME instead of DATASET",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with code 3 for warnings too, not only for errors",
    )
    parser.add_argument(
        "--plan-repairs",
        action="store_true",
        help="print the command that repairs the dataset and loses the least data, and list the "
        "data that the command loses",
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Check one dataset, and list what is wrong with it."""
    from leconvert.dataset.check import check_dataset

    if options.root is not None and options.repo_id is not None:
        raise UsageError("Both DATASET and --repo-id are given. Give one of them.")
    if options.root is None and options.repo_id is None:
        raise UsageError(
            "No dataset is given.", next_step="Give the dataset's folder, or --repo-id ORG/NAME."
        )
    root = dataset_root(options).resolve()
    if options.plan_repairs:
        from leconvert.run.repairing import choose_repairs

        plan = choose_repairs(root, progress=progress_for(quiet=options.json))
        if not options.json:
            print_planned_findings(plan)
        return show(options, plan.as_record(), planned_lines(plan))
    report = check_dataset(root, progress=progress_for(quiet=options.json))
    failed = report.count("error") + (report.count("warning") if options.strict else 0)
    code = SourceError.exit_code if failed else 0
    show(options, report.as_record(), _lines(report))
    if not options.json and any(
        "leconvert repair" in (finding.remedy or "") for finding in report.findings
    ):
        command = shlex.join(["leconvert", "check", report.root, "--plan-repairs"])
        said = f"`{command}` prints one command that repairs all that can be repaired."
        print_sentence(said, margin="")
    return code


def _lines(report: DatasetReport) -> Iterator[str]:
    yield from findings_lines(report.findings, columns(), report.root)
    counts = ", ".join(
        count(report.count(severity), severity) for severity in ("error", "warning", "info")
    )
    yield (
        f"{report.root} ({report.version}): {counts} in {report.episodes:,} episodes, "
        f"{report.frames:,} frames, {report.files:,} files; {report.seconds:.1f} s."
    )
