"""``leconvert undo``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import add_json
from leconvert.cli.progress import progress_for
from leconvert.support.text import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "dataset",
        type=Path,
        metavar="DATASET",
        help="the dataset that was converted or repaired in place, or whose result was replaced",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="compare both datasets and show what would be done; change nothing",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Put the kept source back, and say where the result is."""
    from leconvert.run.upkeep import newest_kept, undo_conversion
    from leconvert.workdir.swap import overlaid_meta

    dataset = options.dataset.resolve()
    kept = newest_kept(dataset)
    with stop_on_signals() as stop:
        report = undo_conversion(
            dataset,
            dry_run=options.dry_run,
            stop=stop,
            progress=progress_for(quiet=options.json),
        )
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
        return 0
    if report.was_undone:
        print(
            f"{dataset} was put back before. The result that had its place is now {report.result}."
        )
        return 0
    compared = (
        f"{count(report.episodes, 'episode')}, {count(report.rows, 'frame')}, "
        f"{count(report.camera_frames, 'camera frame')}"
    )
    print(f"Source and result contain the same: {compared}.")
    if options.dry_run:
        place = dataset / "meta" if overlaid_meta(dataset) else dataset
        print(f"Would put {kept} back as {place}.")
        print(f"Would keep the result as {report.result}.")
        return 0
    print(f"  restored  {dataset}")
    print(f"  kept      {report.result}, the result")
    return 0
