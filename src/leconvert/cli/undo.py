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
        help="the dataset that was converted or repaired in place, or a result that was replaced",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="compare the two and show what would be done"
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
        print(f"{dataset} is back already; what had taken its place is {report.result}.")
        return 0
    compared = (
        f"{count(report.episodes, 'episode')}, {count(report.rows, 'frame')}, "
        f"{count(report.camera_frames, 'camera frame')}"
    )
    print(f"Source and result hold the same: {compared}.")
    if options.dry_run:
        place = dataset / "meta" if overlaid_meta(dataset) else dataset
        print(f"would put {kept} back as {place}")
        print(f"would keep the result as {report.result}")
        return 0
    print(f"  dataset  {dataset}")
    print(f"  kept     {report.result}")
    return 0
