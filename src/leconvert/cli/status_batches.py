"""Draws the batches of a run that were tried in vain, and those that were set aside."""

from __future__ import annotations

import shlex
from pathlib import Path

from leconvert.cli.status_rows import HOST_WIDTH, ROWS_SHOWN, more_lines
from leconvert.cli.text import shorten, table
from leconvert.status import RunStatus

__all__ = ["failure_lines", "release_lines", "tried_lines"]

_MESSAGE_WIDTH = 60


def tried_lines(status: RunStatus) -> list[str]:
    """List what was tried in vain and waits for another try."""
    tried = [r for r in status.unsettled if r.state == "pending" and (r.errors or r.losses)]
    if not tried:
        return []
    rows: list[list[object]] = [["waits again", "errors", "lost", "last error"]]
    rows += [
        [row.batch_id, row.errors, row.losses, shorten(row.message or "-", _MESSAGE_WIDTH)]
        for row in tried[:ROWS_SHOWN]
    ]
    return ["", *table(rows).splitlines(), *more_lines(tried)]


def failure_lines(status: RunStatus) -> list[str]:
    """List what was set aside."""
    if not status.failures:
        return []
    rows: list[list[object]] = [["set aside", "errors", "lost", "host", "reason"]]
    rows += [
        [f.batch_id, f.errors, f.losses, shorten(f.host, HOST_WIDTH), shorten(f.message, 2000)]
        for f in status.failures[:ROWS_SHOWN]
    ]
    return ["", *table(rows).splitlines(), *more_lines(status.failures)]


def release_lines(status: RunStatus, work_dir: Path) -> list[str]:
    """Say how what was set aside is tried again."""
    if not status.failures:
        return []
    command = f"leconvert release {shlex.quote(str(work_dir))} --failed"
    return [f"Mend what the reasons name, then: {command}"]
