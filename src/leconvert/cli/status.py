"""``leconvert status``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.cli.text import amount, table

__all__ = ["add_arguments", "run"]

_ROWS_SHOWN = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the run's shared folder")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show batches by state, who holds what, and what failed."""
    from leconvert.status import run_status

    status = run_status(options.work_dir.resolve())
    if options.json:
        print(json.dumps(status.as_record(), indent=2))
        return 0
    print(f"run {status.run_id}: {status.source} -> {status.target}")
    print(
        f"{status.done} done, {status.leased} leased, {status.pending} pending, "
        f"{status.failed} failed of {status.batches} batches; "
        f"{amount(status.done_bytes)} of {amount(status.total_bytes)}"
    )
    if status.packed:
        print("The result is in place.")
    held = [b for b in status.unsettled if b.state != "done"][:_ROWS_SHOWN]
    if held:
        rows: list[list[object]] = [["batch", "state", "worker", "errors", "lost", "message"]]
        rows += [
            [b.batch_id, b.state, b.token or "-", b.errors, b.losses, b.message or ""] for b in held
        ]
        print(table(rows))
    return 0
