"""``leconvert split``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.flow import print_report
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
from leconvert.cli.parser import EDITING_OPTIONS, Parser
from leconvert.cli.plan import print_plan
from leconvert.cli.progress import progress_for
from leconvert.cli.sources import named_datasets
from leconvert.support.text import amount, count

if TYPE_CHECKING:
    from leconvert.api import SplitPart
    from leconvert.run.planner import PlanSummary


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--into", "--output-dir", "--seed"}
    parser.add_argument("dataset", metavar="DATASET", help="the dataset to split; it stays")
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
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR",
        help="folder for the state of each part's run, in a folder of the part's name; default: a "
        "hidden sibling of each part",
    )  # fmt: skip
    add_conversion_options(parser)
    parser.add_argument(
        "--report", action="store_true",
        help="write an HTML report of each part beside it, PART.report.html",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="show the plans and write nothing")
    add_quiet(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Split, and say what was done."""
    from leconvert.api import split_dataset
    from leconvert.model.selection import parse_parts

    conversion = conversion_options(options)
    [dataset] = named_datasets([options.dataset], unfetched="A dataset is split on this machine")
    progress = progress_for(quiet=options.json or options.quiet)
    with stop_on_signals() as stop:
        parts = split_dataset(
            dataset.bring(stop=stop, progress=progress),
            conversion,
            control_of(options, stop, progress),
            output_dir=options.output_dir,
            into=parse_parts(options.into),
            seed=options.seed,
            dry_run=options.dry_run,
            work_dir=options.work_dir,
            reports=options.report,
        )
    if options.json:
        print(json.dumps({"parts": [part.as_record() for part in parts]}, indent=2))
        return 0
    for part in parts:
        _show(part, quiet=options.quiet)
    if options.dry_run and not options.quiet:
        _show_sums([part.plan for part in parts if part.plan is not None])
        print("Nothing was written.")
    return 0


def _show_sums(plans: Sequence[PlanSummary]) -> None:
    """Say what all parts come to: each one's plan knows the room that it alone takes."""
    needed: Counter[str] = Counter()
    for plan in plans:
        for room in plan.space.rooms:
            needed[room.folder] += room.bytes_needed
    rooms = ", ".join(f"{amount(size)} in {folder}" for folder, size in needed.items())
    print(
        f"Together {count(sum(plan.episodes for plan in plans), 'episode')}, "
        f"{count(sum(plan.frames for plan in plans), 'frame')} in {count(len(plans), 'part')}; "
        f"they need about {rooms or 'nothing'}."
    )


def _show(part: SplitPart, *, quiet: bool) -> None:
    if quiet:
        for done in (part.report, part.plan):
            if done is not None:
                print_findings(done.findings)
        return
    if part.report is not None:
        print(f"{part.name}: episodes {part.episodes}")
        print_report(part.report)
    elif part.plan is not None:
        print(f"{part.name}: episodes {part.episodes}, {part.output}")
        print_plan(part.plan)
    else:
        print(
            f"{part.name}: episodes {part.episodes}; {part.output} was finished before. Compared "
            f"with the source now: {part.verified}."
        )
