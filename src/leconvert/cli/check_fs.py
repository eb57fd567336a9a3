"""``leconvert check-fs``."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leconvert.cli.check_fs_view import check_lines
from leconvert.cli.json_option import add_json
from leconvert.cli.values import seconds
from leconvert.errors import OneHostOnlyError, StorageError

__all__ = ["add_arguments", "run"]

_CODES = {
    "several_hosts": 0,
    "one_host": OneHostOnlyError.exit_code,
    "none": StorageError.exit_code,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder on the file system")
    parser.add_argument(
        "--peer", action="store_true",
        help="be the second host: wait for `leconvert check-fs DIR` on the first",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=seconds, metavar="S",
        help="how long to wait for the other host (default: 0; with --peer 600)",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Probe, and say which promise holds and what follows where one does not."""
    folder = options.folder.resolve()
    if not folder.is_dir():
        raise StorageError(
            f"{folder} is not a folder.", path=str(folder), next_step="Name one that exists."
        )
    outcome = _follow(folder, options.wait) if options.peer else _lead(folder, options.wait)
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        print("\n".join(check_lines(outcome, shutil.get_terminal_size((100, 24)).columns)))
    return _CODES[str(outcome["fitness"])]


def _follow(folder: Path, wait: float | None) -> Mapping[str, Any]:
    from leconvert.fscheck import follow

    def tell() -> None:
        print(
            f"Waiting for `leconvert check-fs {shlex.quote(str(folder))}` on another host.",
            file=sys.stderr,
        )

    return follow(folder, wait_seconds=600.0 if wait is None else wait, on_ready=tell)


def _lead(folder: Path, wait: float | None) -> Mapping[str, Any]:
    from leconvert.fscheck import CheckReport, lead, mount_of, probe_folder

    findings = probe_folder(folder)
    met = lead(folder, wait_seconds=wait or 0.0)
    if met is None:
        return CheckReport(str(folder), mount_of(folder), tuple(findings)).as_record()
    peer, more, channel = met
    outcome = CheckReport(
        str(folder), mount_of(folder), (*findings, *more), peer.host, peer.same_host
    ).as_record()
    channel.send(do="end", outcome=outcome)
    return outcome
