"""``leconvert report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from leconvert.cli.output import show
from leconvert.cli.parser import add_output
from leconvert.support.text import amount


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "place", type=Path, metavar="WORK_DIR|DATASET",
        help="the work dir of a run, finished or not, or a dataset; a report on a dataset contains "
        "less than a report on a run",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
        help="the HTML page; an existing file is replaced (default: report.html)",
    )  # fmt: skip
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Write the page, and print its place."""
    from leconvert.report import gather, write_report
    from leconvert.report.values import StoryState

    story = gather(options.place.resolve())
    size = write_report(story, options.output)
    record = {
        "report": str(options.output.resolve()),
        "size_bytes": size,
        "state": story.state.value,
        "run_id": story.run_id,
        "tries": len(story.attempts),
        "remarks": list(story.remarks),
    }
    told = story.state.value
    if story.state is StoryState.RESULT_ONLY:
        told = "the report shows only the dataset, since no record of its conversion was found"
    lines = (
        f"{story.name}: {told}.",
        *(f"  {remark}" for remark in story.remarks),
        f"  report  {options.output} ({amount(size)})",
    )
    return show(options, record, lines)
