"""``leconvert status``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.json_option import add_json
from leconvert.cli.signals import stop_on_signals
from leconvert.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from leconvert.status import RunStatus

__all__ = ["add_arguments", "run"]

_WATCH_SECONDS = 2.0
_SHORTEST_SECONDS = 0.1
_CLEAR_SCREEN = "\x1b[H\x1b[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the run's shared folder")
    parser.add_argument(
        "--watch", type=float, nargs="?", const=_WATCH_SECONDS, metavar="SECONDS",
        help="look again every so many seconds, until the result is in place (default: 2)",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show batches by state, who holds what, how fast it goes, and what failed."""
    from leconvert.status import run_status, watch_run

    work_dir = options.work_dir.resolve()
    if options.watch is None:
        status = run_status(work_dir)
        _show(status, options, json_indent=2)
        return 0
    if not options.watch >= _SHORTEST_SECONDS:
        raise UsageError(f"--watch takes at least {_SHORTEST_SECONDS} seconds.")
    with stop_on_signals() as stop:
        for status in watch_run(work_dir, lambda: stop.wait(options.watch)):
            _show(status, options, json_indent=None)
            packed = status.packed
    return 0 if packed else InterruptedRunError.exit_code


def _show(status: RunStatus, options: argparse.Namespace, *, json_indent: int | None) -> None:
    if options.json:
        print(json.dumps(status.as_record(), indent=json_indent), flush=True)
        return
    from leconvert.cli.status_view import status_lines

    if options.watch is not None:
        print(_CLEAR_SCREEN if sys.stdout.isatty() else "", end="")
    print("\n".join(status_lines(status, options.work_dir)))
    if options.watch is not None:
        print(flush=True)
