"""``leconvert check-fs``."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leconvert.cli.options import add_json
from leconvert.cli.output import table
from leconvert.support.errors import OneHostOnlyError, StorageError
from leconvert.support.flags import seconds
from leconvert.support.text import amount, shorten

# Draws what ``leconvert check-fs`` found.


_NOTE_WIDTH = 58
_OPTIONS_WIDTH = 90
_WIDE = 80


def check_lines(outcome: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines."""
    mount = outcome["mount"]
    return [
        f"folder   {outcome['folder']}",
        f"mount    {mount['point']}, {mount['kind']}",
        f"options  {shorten(mount['options'], _OPTIONS_WIDTH)}",
        f"free     {amount(mount['free_bytes'])} of {amount(mount['total_bytes'])}",
        *_promises(outcome["findings"], width),
        _others(outcome),
        _verdict(outcome),
    ]


def _others(outcome: Mapping[str, Any]) -> str:
    if outcome["peer"] is None:
        return "Only this host was tested."
    if outcome["same_host"]:
        return "Both processes ran on this host, so this says nothing about two hosts."
    return f"Tested with {outcome['peer']}; delays count from the other host's report."


def _promises(findings: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return a table, with what was seen below a promise where the terminal is narrow."""
    rows: list[list[object]] = [["promise", "holds", "seen, or what leconvert does instead"]]
    for found in findings:
        note = found["note"]
        if not found["holds"]:
            note = f"{note}: {found['instead']}" if note else found["instead"]
        rows.append([found["says"], "yes" if found["holds"] else "no", note])
    if width >= _WIDE:
        return table([*row[:2], shorten(str(row[2]), _NOTE_WIDTH)] for row in rows).splitlines()
    lines = []
    for line, note in zip(
        table(row[:2] for row in rows).splitlines(),
        ("", *(row[2] for row in rows[1:])),
        strict=True,
    ):
        lines += [
            line,
            *textwrap.wrap(str(note), width, initial_indent="  ", subsequent_indent="  "),
        ]
    return lines


def _verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["fitness"] == "none":
        return "leconvert cannot work here."
    if any(found["promise"] == "link" and not found["holds"] for found in outcome["findings"]):
        return "Only one host may work here: a run refuses every host but the one that planned it."
    if outcome["fitness"] == "one_host":
        return "Only one host may work here: plan with --one-host, so that others are refused."
    if outcome["tested_between_hosts"]:
        return "Several hosts may work here."
    return "OK on this host; test a second one with: leconvert doctor DIR --peer"


# ``leconvert check-fs``.


_CODES = {
    "several_hosts": 0,
    "one_host": OneHostOnlyError.exit_code,
    "none": StorageError.exit_code,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder on the file system")
    add_peer_options(parser)
    add_json(parser)


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """Add how two hosts test one file system together; ``doctor`` takes them too."""
    parser.add_argument(
        "--peer", action="store_true",
        help="be the second host: wait for `leconvert doctor DIR --wait S` on the first",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=seconds, metavar="S",
        help="how long to wait for the other host (default: 0; with --peer 600)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Probe, and say which promise holds and what follows where one does not."""
    folder = options.folder.resolve()
    if not folder.is_dir():
        raise StorageError(
            f"{folder} is not a folder.", path=str(folder), next_step="Name one that exists."
        )
    if options.peer:
        outcome = _follow(folder, options.wait)
    else:
        from leconvert.workdir.fscheck import check_folder

        outcome = check_folder(folder, wait_seconds=options.wait or 0.0).as_record()
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        print("\n".join(check_lines(outcome, shutil.get_terminal_size((100, 24)).columns)))
    return _CODES[str(outcome["fitness"])]


def _follow(folder: Path, wait: float | None) -> Mapping[str, Any]:
    from leconvert.workdir.fscheck import follow

    def tell() -> None:
        print(
            f"Waiting for `leconvert check-fs {shlex.quote(str(folder))}` on another host.",
            file=sys.stderr,
        )

    return follow(folder, wait_seconds=600.0 if wait is None else wait, on_ready=tell)
