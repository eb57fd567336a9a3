"""``leconvert release``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.cli.output import table
from leconvert.support.errors import BusyError
from leconvert.support.flags import some_seconds, whole
from leconvert.support.text import shorten

_REASON_WIDTH = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir",
        type=Path,
        metavar="WORK_DIR|DATASET",
        help="the work dir, or a dataset beside it",
    )
    parser.add_argument(
        "batches", type=whole(0), nargs="*", default=[], metavar="BATCH", help="batch numbers"
    )
    parser.add_argument("--failed", action="store_true", help="release all batches that failed")
    parser.add_argument(
        "--stuck",
        action="store_true",
        help="release all batches whose worker ended or shows no sign of life",
    )
    parser.add_argument(
        "--force", action="store_true",
        help="take batches away from workers on other hosts at once, without first watching for "
        "signs of life",
    )  # fmt: skip
    parser.add_argument(
        "--lease-seconds", type=some_seconds, default=60.0, metavar="S",
        help="seconds of silence after which a worker counts as gone; use at least the "
        "--lease-seconds of the workers (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be done; change nothing"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Give batches back, and say why or why not."""
    from leconvert.run.upkeep import release_batches
    from leconvert.workdir.activity import record_invocation
    from leconvert.workdir.run import find_work_dir, open_run

    def tell(count: int) -> None:
        print(
            f"Watching {count} batches of workers for signs of life, for up to "
            f"{options.lease_seconds:g} s.",
            file=sys.stderr,
        )

    root = find_work_dir(options.work_dir.resolve())
    opened = open_run(root, allow_mixed_versions=True)
    if not options.dry_run:
        record_invocation(opened.paths, opened.manifest.run_id, "release", options.command_line)
    report = release_batches(
        opened,
        options.batches,
        failed=options.failed,
        stuck=options.stuck,
        force=options.force,
        dry_run=options.dry_run,
        lease_seconds=options.lease_seconds,
        on_watch=tell,
    )
    code = BusyError.exit_code if report.refused else 0
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
        return code
    rows: list[list[object]] = [["batch", "", "why", "host", "process"]]
    rows += [
        [b.batch_id, b.verdict, shorten(b.reason, _REASON_WIDTH), b.host or "-", b.pid or "-"]
        for b in report.batches
    ]
    print(table(rows) if report.batches else "There is nothing to release.")
    if options.dry_run:
        print("Nothing was written.")
    elif any(b.verdict == "released" for b in report.batches):
        again = f"leconvert work {shlex.quote(str(root))}"
        print(f"Running workers will take these batches. Start another worker with: {again}")
    return code
