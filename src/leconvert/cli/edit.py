"""``leconvert merge``, ``split`` and ``trim``, which name sources or episodes in their own ways."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.flow import make_dataset, print_report
from leconvert.cli.options import (
    add_conversion_options,
    add_keep_work_dir,
    add_push_options,
    add_report_option,
    add_target,
    add_work_dir,
    controlled,
    conversion_options,
    local_path,
    named_push_target,
)
from leconvert.cli.output import print_findings
from leconvert.cli.parser import EDITING_OPTIONS, Parser, add_output
from leconvert.cli.plan import print_plan
from leconvert.cli.push import ResultPush
from leconvert.cli.sources import named_datasets, named_places
from leconvert.model.selection import EpisodeSelection, parse_frames, parse_parts
from leconvert.support.flags import whole
from leconvert.support.text import amount, count, numbered

if TYPE_CHECKING:
    from leconvert.api import SplitPart
    from leconvert.run.planner import PlanSummary


# ``leconvert merge``.


def add_merge_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--drop-feature", "--push-repo-id"}
    parser.add_argument(
        "datasets",
        nargs="+",
        metavar="DATASET",
        help="the datasets to merge, two or more: folders, or ORG/NAME or "
        "hf://datasets/ORG/NAME@REV on the Hub; their episodes follow each other in this "
        "order; the datasets stay as they are",
    )
    parser.add_argument(
        "-o", "--output", type=local_path, required=True, metavar="DIR",
        help="where the merged dataset goes",
    )  # fmt: skip
    add_work_dir(parser, "output")
    add_conversion_options(parser)
    add_keep_work_dir(parser)
    add_push_options(parser, of_several=True)
    add_report_option(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)


def run_merge(options: argparse.Namespace) -> int:
    """Merge, and print the outcome."""
    from leconvert.api import check_several

    check_several(options.datasets)
    writes_nothing = "--dry-run writes nothing" if options.dry_run else None
    datasets = named_datasets(options.datasets, unfetched=writes_nothing)
    conversion = conversion_options(options)
    push = ResultPush(options, options.output.resolve(), named_push_target(options))
    push.check()
    return make_dataset(
        options,
        conversion,
        partial(named_places, options, datasets),
        push_of=lambda _: push,
    )


# ``leconvert split``.


def add_split_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--into", "--output-dir", "--seed"}
    parser.add_argument(
        "dataset", metavar="DATASET", help="the dataset to split; it stays as it is"
    )
    parser.add_argument(
        "--output-dir",
        type=local_path,
        required=True,
        metavar="DIR",
        help="the folder for the parts; each part becomes a subfolder with the name of the part",
    )
    parser.add_argument(
        "--into",
        action="append",
        required=True,
        metavar="PARTS",
        help="the parts, each with its share of the episodes (train=0.9,val=0.1) or with the "
        "numbers of its episodes (train=0-99,val=100-120); may be given several times",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="seed of the random choice of episodes for shares (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR",
        help="the folder for the state of the runs, with one folder for each part (default: a "
        "hidden folder beside each part)",
    )  # fmt: skip
    add_conversion_options(parser)
    parser.add_argument(
        "--report", action="store_true",
        help="write an HTML report of each part beside the part, as PART.report.html",
    )  # fmt: skip
    add_output(parser, dry_run="show the plans; write nothing", quiet=True)


def run_split(options: argparse.Namespace) -> int:
    """Split, and print the outcome."""
    from leconvert.api import split_dataset

    conversion = conversion_options(options)
    [dataset] = named_datasets([options.dataset], unfetched="A dataset is split on this machine")
    with controlled(options) as control:
        parts = split_dataset(
            dataset.bring(control),
            conversion,
            control,
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
        _show_part(part, quiet=options.quiet)
    if options.dry_run and not options.quiet:
        print(_sums([part.plan for part in parts if part.plan is not None]))
        print("Nothing was written.")
    return 0


def _sums(plans: Sequence[PlanSummary]) -> str:
    """Return the totals of all parts. The plan of each part knows only the room of that part."""
    needed: Counter[str] = Counter()
    for plan in plans:
        for room in plan.space.rooms:
            needed[room.folder] += room.bytes_needed
    rooms = ", ".join(f"{amount(size)} in {folder}" for folder, size in needed.items())
    return (
        f"In all: {count(sum(plan.episodes for plan in plans), 'episode')}, "
        f"{count(sum(plan.frames for plan in plans), 'frame')} in "
        f"{count(len(plans), 'part')}. Disk space needed: about {rooms or 'none'}."
    )


def _show_part(part: SplitPart, *, quiet: bool) -> None:
    named = f"{part.name}: {numbered('episode', part.episodes)}"
    if quiet:
        for done in (part.report, part.plan):
            if done is not None:
                print_findings(done.findings)
        return
    if part.report is not None:
        print(named)
        print_report(part.report)
    elif part.plan is not None:
        print(f"{named}, {part.output}")
        print_plan(part.plan)
    else:
        print(
            f"{named}; {part.output} was finished before and matches "
            f"the source (compared now: {part.verified})."
        )


# ``leconvert trim``.


def add_trim_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--episode", "--frames"}
    parser.add_argument("dataset", metavar="DATASET", help="the dataset to trim")
    parser.add_argument(
        "--episode", type=whole(0), action="append", default=[], required=True, metavar="N",
        help=(
            "number of the episode to trim; the next --frames gives the frames to keep; give both "
            "options once for each episode"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--frames", action="append", default=[], required=True, metavar="FROM:TO",
        help="frames to keep; FROM is the first frame to keep, counted from 0; TO is the last "
            "frame to keep plus 1; FROM or TO may be left out",
    )  # fmt: skip
    add_target(parser, "DATASET", "DATASET_old")
    add_conversion_options(parser)
    add_report_option(parser)
    add_output(parser, dry_run="show the plan; write nothing", quiet=True)
    parser.set_defaults(keep_work_dir=False)


def run_trim(options: argparse.Namespace) -> int:
    """Trim, and print the outcome."""
    selection = EpisodeSelection(frames=parse_frames(options.episode, options.frames))
    datasets = named_datasets([options.dataset], unfetched="A dataset is trimmed on this machine")
    conversion = conversion_options(options, selection)
    return make_dataset(options, conversion, partial(named_places, options, datasets))
