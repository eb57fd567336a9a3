"""Draws what ``leconvert check-fs`` found."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from leconvert.cli.text import amount, shorten, table

__all__ = ["check_lines"]

_NOTE_WIDTH = 58
_OPTIONS_WIDTH = 90
_WIDE = 80


def check_lines(outcome: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines.

    Args:
        outcome: As `leconvert.fscheck.CheckReport.as_record` returns it.
        width: Columns of the terminal.
    """
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
        return "Only this host looked; on a second one run: leconvert check-fs DIR --peer"
    if outcome["same_host"]:
        return "Both processes ran on this host, so nothing was learned about two hosts."
    return f"Played with {outcome['peer']}; delays count from the other host's word."


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
    return "Nothing speaks against several hosts so far."
