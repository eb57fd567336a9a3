"""``leconvert merge``."""

from __future__ import annotations

import argparse

from leconvert.cli.flow import make_dataset
from leconvert.cli.options import (
    add_conversion_options,
    add_json,
    add_push_options,
    add_quiet,
    add_report_option,
    add_work_dir,
    conversion_options,
    local_path,
    named_push_target,
)
from leconvert.cli.parser import EDITING_OPTIONS, Parser
from leconvert.cli.push import ResultPush
from leconvert.cli.sources import named_datasets


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--drop-feature", "--push-repo-id"}
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
    add_work_dir(parser, "output")
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
    from leconvert.api import check_several

    check_several(options.datasets)
    writes_nothing = "--dry-run writes nothing" if options.dry_run else None
    datasets = named_datasets(options.datasets, unfetched=writes_nothing)
    conversion = conversion_options(options)
    push = ResultPush(options, options.output.resolve(), named_push_target(options))
    return make_dataset(options, datasets, conversion, made="these datasets, merged so,", push=push)
