"""``leconvert mirror``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import add_json
from leconvert.cli.progress import progress_for
from leconvert.support.text import amount

if TYPE_CHECKING:
    from leconvert.remote.stores import UploadReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("result", type=Path, metavar="RESULT", help="a v3.0 dataset")
    parser.add_argument(
        "url", metavar="URL", help="an empty place in a store, such as s3://BUCKET/NAME"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Send a dataset to a store, and say what was sent."""
    from leconvert.remote.stores import upload_tree

    with stop_on_signals() as stop:
        report = upload_tree(
            options.result.resolve(),
            options.url,
            stop=stop,
            progress=progress_for(quiet=options.json),
        )
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    else:
        show_upload(report)
    return 0


def show_upload(report: UploadReport) -> None:
    """Print what an upload did."""
    print(
        f"Sent {report.sent:,} of {report.files:,} files, {amount(report.sent_bytes)}, to "
        f"{report.url}"
    )
