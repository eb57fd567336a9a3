"""``leconvert demo``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.cli.progress import progress_for
from leconvert.support.errors import VerificationError
from leconvert.support.text import amount


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("leconvert-demo"),
        metavar="FOLDER",
        help="a new folder for both datasets (default: leconvert-demo)",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo, and say what happened and where."""
    from leconvert.cli.demonstration import run_demo

    report = run_demo(options.folder.resolve(), progress=progress_for(quiet=options.json))
    proof = report.verification
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    else:
        done = report.conversion
        print(f"v2.1 dataset  {done.source}  ({amount(done.source_bytes)})")
        print(f"v3.0 dataset  {done.output}  ({done.files} files, {done.seconds:.2f} s)")
        for difference in proof.differences:
            print(difference)
        if proof.ok:
            print(
                f"Verified: {proof.rows:,} rows and {proof.video_frames:,} camera frames of "
                f"{proof.episodes} episodes hold the same bytes as the source, at exact times."
            )
    return 0 if proof.ok else VerificationError.exit_code
