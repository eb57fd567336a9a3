"""Draws a run's status as text of at most 100 columns, however many workers there are."""

from __future__ import annotations

from pathlib import Path

from leconvert.cli.status_batches import failure_lines, next_lines, tried_lines
from leconvert.cli.status_rows import HOST_WIDTH
from leconvert.cli.status_workers import worker_lines
from leconvert.cli.text import amount, duration, shorten
from leconvert.status import Liveness, RunStatus

__all__ = ["WIDTH", "status_lines"]

WIDTH = 100
_JOBS_SHOWN = 6


def status_lines(status: RunStatus, work_dir: Path) -> list[str]:
    """Return the lines; none is longer than `WIDTH` characters but one with a long command.

    Args:
        status: What was seen.
        work_dir: As the user gave it, for the commands that are suggested.
    """
    lines = [
        *_head(status),
        *worker_lines(status),
        *tried_lines(status),
        *failure_lines(status),
    ]
    # A command that is cut could not be pasted.
    return [*map(shorten_line, lines), *next_lines(status, work_dir)]


def shorten_line(line: str) -> str:
    """Cut a line at the last column, and keep its spaces."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _head(status: RunStatus) -> list[str]:
    share = status.done_bytes / status.total_bytes if status.total_bytes else 1.0
    pace = f"{amount(status.bytes_per_second)}/s, {status.frames_per_second:,.0f} frames/s"
    if status.seconds_left:
        pace += f", {duration(status.seconds_left)} left"
    video = f"{amount(status.video.cloned)} cloned, {amount(status.video.copied)} copied"
    if status.video.batches_read < status.done:
        video += f" ({status.video.batches_read:,} of {status.done:,} batches counted so far)"
    path_width = WIDTH - 9
    return [
        f"run      {status.run_id}",
        f"source   {shorten(status.source, path_width, keep='tail')}",
        f"target   {shorten(status.target, path_width, keep='tail')}",
        f"batches  {status.done:,} done, {status.leased:,} leased, {status.pending:,} pending, "
        f"{status.failed:,} failed of {status.batches:,}",
        f"bytes    {amount(status.done_bytes)} of {amount(status.total_bytes)} ({share:.0%}), "
        f"{pace}",
        f"video    {video}",
        f"packer   {_packer(status)}",
        *_memory(status),
        *_hosts(status),
        *(f"jobs     {line}" for line in _jobs(status)),
    ]


def _memory(status: RunStatus) -> list[str]:
    told = [
        f"{what} {amount(peak)}"
        for what, peak in (
            ("of a worker", status.peak_memory_bytes),
            ("of the packer", status.packer.peak_memory_bytes),
        )
        if peak
    ]
    return [f"memory   peak {', '.join(told)}"] if told else []


def _jobs(status: RunStatus) -> list[str]:
    jobs = status.jobs[-_JOBS_SHOWN:]
    lines = []
    for job in jobs:
        if job.engine == "ray":
            said = "listed below as soon as they hold a batch"
        elif job.states is None:
            said = "the scheduler does not answer here"
        else:
            said = ", ".join(f"{count:,} {state.lower()}" for state, count in job.states.items())
            said = said or "ended, and forgotten by the scheduler"
        if job.reason is not None and job.reason != "None":
            said += f" ({job.reason})"
        lines.append(f"{job.engine} {job.job_id}, {job.tasks:,} {job.role}: {said}")
    return lines


def _hosts(status: RunStatus) -> list[str]:
    if status.one_host is None:
        return []
    name = shorten(status.one_host, HOST_WIDTH)
    return [f"hosts    {name} alone; others are refused"]


def _packer(status: RunStatus) -> str:
    packer = status.packer
    if status.packed:
        return "the result is in place"
    if not packer.number:
        return "none began"
    step = packer.step
    if step == "packing" and status.done < status.batches:
        step = "waiting for workers"
    text = f"number {packer.number}, {step}"
    if packer.host is not None:
        text += f"; process {packer.pid} on {shorten(packer.host, HOST_WIDTH)}"
        text += {Liveness.ENDED: " has ended", Liveness.RUNNING: " runs"}.get(packer.liveness, "")
    return text
