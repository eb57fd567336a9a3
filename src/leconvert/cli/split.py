"""``leconvert split``."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from leconvert.cli.convert import print_report
from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import (
    add_conversion_options,
    add_json,
    add_quiet,
    conversion_options,
    local_path,
)
from leconvert.cli.output import print_findings
from leconvert.cli.plan import estimated_seconds, plan_lines
from leconvert.cli.progress import progress_for

if TYPE_CHECKING:
    from leconvert.api import SplitPart

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "dataset", type=local_path, metavar="DATASET", help="the dataset to split; it stays"
    )
    parser.add_argument(
        "--output-dir",
        type=local_path,
        required=True,
        metavar="DIR",
        help="the folder in which each part gets a folder of its name",
    )
    parser.add_argument(
        "--into",
        action="append",
        required=True,
        metavar="PARTS",
        help="names of parts, each with its share of the episodes, train=0.9,val=0.1, or with its "
        "episodes, train=0-99,val=100-120; may be given again",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="decides which episodes a share takes (default: 0)",
    )  # fmt: skip
    add_conversion_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plans and write nothing")
    add_quiet(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Split, and say what was done."""
    from leconvert.api import split
    from leconvert.selection import parse_parts

    how = conversion_options(options)
    with stop_on_signals() as stop:
        parts = split(
            options.dataset,
            output_dir=options.output_dir,
            into=parse_parts(options.into),
            seed=options.seed,
            dry_run=options.dry_run,
            **how,
            stop=stop,
            progress=progress_for(quiet=options.json or options.quiet),
        )
    if options.json:
        print(json.dumps({"parts": [part.as_record() for part in parts]}, indent=2))
        return 0
    for part in parts:
        _show(part, quiet=options.quiet)
    if options.dry_run:
        print("Nothing was written.")
    return 0


def _show(part: SplitPart, *, quiet: bool) -> None:
    if quiet:
        if part.report is not None:
            print_findings(part.report.findings)
        return
    if part.report is not None:
        print(f"{part.name}: episodes {part.episodes}")
        print_report(part.report)
    elif part.plan is not None:
        print(f"{part.name}: episodes {part.episodes}, {part.output}")
        print_findings(part.plan.findings)
        print("\n".join(plan_lines(part.plan, estimated_seconds(part.plan))))
    else:
        print(f"{part.name}: episodes {part.episodes}; {part.output} was finished before.")
