"""``leconvert trim``."""

from __future__ import annotations

import argparse

from leconvert.cli.flow import make_dataset
from leconvert.cli.options import (
    add_conversion_options,
    add_json,
    add_quiet,
    add_report_option,
    add_work_dir,
    conversion_options,
    local_path,
)
from leconvert.cli.parser import EDITING_OPTIONS, Parser
from leconvert.cli.sources import named_datasets
from leconvert.support.flags import whole


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = EDITING_OPTIONS | {"--episode", "--frames"}
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
    add_work_dir(parser)
    add_conversion_options(parser)
    add_report_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_quiet(parser)
    add_json(parser)
    parser.set_defaults(keep_work_dir=False)


def run(options: argparse.Namespace) -> int:
    """Trim, and say what was done."""
    from leconvert.model.selection import EpisodeSelection, parse_frames

    selection = EpisodeSelection(frames=parse_frames(options.episode, options.frames))
    datasets = named_datasets([options.dataset], unfetched="A dataset is trimmed on this machine")
    conversion = conversion_options(options, selection)
    return make_dataset(options, datasets, conversion, made=f"{options.dataset}, trimmed so,")
