"""Draws the batches of a run that were tried in vain, and those that were set aside."""

from __future__ import annotations

import shlex
from pathlib import Path

from leconvert.cli.status_rows import HOST_WIDTH, ROWS_SHOWN, more_lines
from leconvert.cli.text import shorten, table
from leconvert.engines.sbatch import ENDED
from leconvert.status import Liveness, RunStatus

__all__ = ["failure_lines", "next_lines", "tried_lines"]

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


def next_lines(status: RunStatus, work_dir: Path) -> list[str]:
    """Say what comes next where nobody does it: a release, workers, or the packer."""
    lines = []
    if status.failures:
        command = f"leconvert release {shlex.quote(str(work_dir))} --failed"
        lines.append(f"Mend what the reasons name, then: {command}")
    if status.packed or _somebody_comes(status):
        return lines
    if status.done == status.batches:
        if status.packer.liveness is not Liveness.RUNNING:
            command = f"leconvert pack {shlex.quote(str(work_dir))}"
            lines.append(f"Unless a packer is at work somewhere: {command}")
    elif status.pending or status.leased:
        lines.append(f"To go on with the rest: leconvert work {shlex.quote(str(work_dir))}")
    return lines


def _somebody_comes(status: RunStatus) -> bool:
    """Tell whether a worker may live, or a job still run; in doubt they do."""
    if any(worker.liveness is not Liveness.ENDED for worker in status.workers):
        return True
    return any(job.states is None or job.states.keys() - ENDED for job in status.jobs)
