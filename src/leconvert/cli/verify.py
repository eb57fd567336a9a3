"""``leconvert verify``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.cli.progress import progress_for
from leconvert.errors import VerificationError

__all__ = ["add_arguments", "run"]

_DIFFERENCES_SHOWN = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("result", type=Path, metavar="RESULT", help="the v3.0 dataset")
    parser.add_argument(
        "--source", type=Path, required=True, metavar="SOURCE", help="the v2.x dataset it came from"
    )
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument(
        "--structure",
        dest="depth",
        action="store_const",
        const="structure",
        help="compare headers, tables, times, sizes and totals (the default)",
    )
    depth.add_argument(
        "--bytes",
        dest="depth",
        action="store_const",
        const="bytes",
        help="also compare every coded packet and every row",
    )
    parser.set_defaults(depth="structure")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Verify, and list what differs."""
    from leconvert.verify import verify_pair

    report = verify_pair(
        options.result.resolve(),
        options.source.resolve(),
        depth=options.depth,
        progress=progress_for(quiet=options.json),
    )
    if options.json:
        print(json.dumps({"ok": report.ok, **asdict(report)}, indent=2))
        return 0 if report.ok else VerificationError.exit_code
    for difference in report.differences[:_DIFFERENCES_SHOWN]:
        print(difference)
    if not report.ok:
        print(f"{len(report.differences)} differences: the result does not match its source.")
        return VerificationError.exit_code
    print(
        f"{options.result} matches {options.source} ({report.depth}): "
        f"{report.episodes:,} episodes, {report.rows:,} rows, {report.video_frames:,} camera "
        f"frames in {report.files:,} files."
    )
    return 0
