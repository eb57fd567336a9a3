"""``leconvert fleet report``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.support.errors import UsageError
from leconvert.support.text import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the work dir of a fleet, finished or not"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("fleet.html"), metavar="FILE",
        help="the page; the CSV goes beside it, with .csv as its ending; what is there is replaced "
        "(default: fleet.html)",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the page and the CSV, and say where they are."""
    from leconvert.fleet import fleet_status, write_fleet_report

    page = options.output.resolve()
    table = page.with_suffix(".csv")
    if table == page:
        raise UsageError(
            f"{page} is where the CSV goes.", path=str(page), next_step="End its name in .html."
        )
    status = fleet_status(options.work_dir.resolve())
    write_fleet_report(status, page, table)
    if options.json:
        print(json.dumps({"report": str(page), "csv": str(table), "run_id": status.run_id}))
        return 0
    print(f"{count(len(status.datasets), 'dataset')}, {len(status.set_aside):,} set aside.")
    print(f"  report  {options.output}")
    print(f"  CSV     {options.output.with_suffix('.csv')}")
    return 0
