"""``leconvert check-fs``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leconvert.cli.options import add_json
from leconvert.cli.text import amount, shorten, table
from leconvert.cli.values import seconds
from leconvert.errors import OneHostOnlyError, StorageError

__all__ = ["add_arguments", "run"]

_CODES = {
    "several_hosts": 0,
    "one_host": OneHostOnlyError.exit_code,
    "none": StorageError.exit_code,
}
_NOTE_WIDTH = 58
_OPTIONS_WIDTH = 90


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
        raise StorageError(f"{folder} is not a folder.", path=str(folder))
    outcome = _follow(folder, options.wait) if options.peer else _lead(folder, options.wait)
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        _show(outcome)
    return _CODES[str(outcome["fitness"])]


def _follow(folder: Path, wait: float | None) -> Mapping[str, Any]:
    from leconvert.fscheck import follow

    def tell() -> None:
        print(f"Waiting for `leconvert check-fs {folder}` on another host.", file=sys.stderr)

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


def _show(outcome: Mapping[str, Any]) -> None:
    mount = outcome["mount"]
    print(f"folder   {outcome['folder']}")
    print(f"mount    {mount['point']}, {mount['kind']}")
    print(f"options  {shorten(mount['options'], _OPTIONS_WIDTH)}")
    print(f"free     {amount(mount['free_bytes'])} of {amount(mount['total_bytes'])}")
    rows: list[list[object]] = [["promise", "holds", "seen, or what leconvert does instead"]]
    for found in outcome["findings"]:
        note = found["note"]
        if not found["holds"]:
            note = f"{note}: {found['instead']}" if note else found["instead"]
        rows.append([found["says"], "yes" if found["holds"] else "no", shorten(note, _NOTE_WIDTH)])
    print(table(rows))
    if outcome["peer"] is None:
        print("Only this host looked; on a second one run: leconvert check-fs DIR --peer")
    elif outcome["same_host"]:
        print("Both processes ran on this host, so nothing was learned about two hosts.")
    else:
        print(f"Played with {outcome['peer']}; delays count from the other host's word.")
    print(_verdict(outcome))


def _verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["fitness"] == "none":
        return "leconvert cannot work here."
    if any(found["promise"] == "link" and not found["holds"] for found in outcome["findings"]):
        return "Only one host may work here: a run refuses every host but the one that planned it."
    if outcome["fitness"] == "one_host":
        return "Only one host may work here: plan with --one-host, so that others are refused."
    if outcome["tested_between_hosts"]:
        return "Several hosts may work here."
    return "Nothing speaks against several hosts so far."
