"""Draws a run's status as text of at most 100 columns, however many workers there are."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from leconvert.cli.text import amount, duration, shorten, table
from leconvert.status import Liveness, RunStatus, WorkerStatus

__all__ = ["WIDTH", "status_lines"]

WIDTH = 100
_WORKERS_SHOWN = 20
_BATCHES_SHOWN = 10
_HOST_WIDTH = 20
_JOBS_SHOWN = 6
_MESSAGE_WIDTH = 60


def status_lines(status: RunStatus, work_dir: Path) -> list[str]:
    """Return the lines; no line is longer than `WIDTH` characters.

    Args:
        status: What was seen.
        work_dir: As the user gave it, for the commands that are suggested.
    """
    lines = [*_head(status), *_workers(status), *_tried(status), *_failures(status, work_dir)]
    return [shorten_line(line) for line in lines]


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
        *_hosts(status),
        *(f"jobs     {line}" for line in _jobs(status)),
    ]


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
    name = shorten(status.one_host, _HOST_WIDTH)
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
        text += f"; process {packer.pid} on {shorten(packer.host, _HOST_WIDTH)}"
        text += {Liveness.ENDED: " has ended", Liveness.RUNNING: " runs"}.get(packer.liveness, "")
    return text


def _workers(status: RunStatus) -> list[str]:
    workers = status.workers
    if not workers:
        return ["", "No worker holds a batch."] if not status.packed else []
    if len(workers) <= _WORKERS_SHOWN:
        lines = ["", *_each(status, workers)]
    else:
        lines = ["", *_by_host(workers)]
        doubtful = [w for w in workers if w.liveness in {Liveness.SILENT, Liveness.ENDED}]
        doubtful.sort(key=lambda worker: -worker.silent_seconds)
        if doubtful:
            lines += ["", *_each(status, doubtful[:_BATCHES_SHOWN]), *_more(doubtful)]
    if not status.observed_seconds:
        lines += [
            "One look: rates are the workers' own means, and it cannot be told who is silent;",
            "--watch observes both.",
        ]
    return lines


def _each(status: RunStatus, workers: Sequence[WorkerStatus]) -> list[str]:
    attempts = {row.batch_id: (row.errors, row.losses) for row in status.unsettled}
    rows: list[list[object]] = [
        ["host", "pid", "process", "batch", "err/lost", "quiet", "did", "written", "rate", "frames"]
    ]
    for worker in workers:
        errors, losses = attempts.get(-1 if worker.batch_id is None else worker.batch_id, (0, 0))
        rows.append(
            [
                shorten(worker.host, _HOST_WIDTH),
                worker.pid,
                worker.liveness.value,
                "-" if worker.batch_id is None else worker.batch_id,
                f"{errors}/{losses}",
                duration(worker.silent_seconds) if status.observed_seconds else "-",
                worker.batches,
                amount(worker.written_bytes),
                f"{amount(worker.bytes_per_second)}/s",
                f"{worker.frames_per_second:,.0f}/s",
            ]
        )
    return table(rows).splitlines()


def _by_host(workers: Sequence[WorkerStatus]) -> list[str]:
    hosts: defaultdict[str, list[WorkerStatus]] = defaultdict(list)
    for worker in workers:
        hosts[worker.host].append(worker)
    rows: list[list[object]] = [
        ["host", "workers", "hold", "silent", "ended", "did", "written", "rate", "frames"]
    ]
    busiest = sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = dict(busiest[:_WORKERS_SHOWN])
    rest = [worker for _, crew in busiest[_WORKERS_SHOWN:] for worker in crew]
    if rest:
        shown[f"and {len(hosts) - _WORKERS_SHOWN} more hosts"] = rest
    for host, crew in shown.items():
        rows.append(
            [
                shorten(host, _HOST_WIDTH),
                len(crew),
                sum(worker.batch_id is not None for worker in crew),
                sum(worker.liveness is Liveness.SILENT for worker in crew),
                sum(worker.liveness is Liveness.ENDED for worker in crew),
                sum(worker.batches for worker in crew),
                amount(sum(worker.written_bytes for worker in crew)),
                f"{amount(sum(worker.bytes_per_second for worker in crew))}/s",
                f"{sum(worker.frames_per_second for worker in crew):,.0f}/s",
            ]
        )
    return table(rows).splitlines()


def _tried(status: RunStatus) -> list[str]:
    """List what was tried in vain and waits for another try."""
    tried = [r for r in status.unsettled if r.state == "pending" and (r.errors or r.losses)]
    if not tried:
        return []
    rows: list[list[object]] = [["waits again", "errors", "lost", "last error"]]
    rows += [
        [row.batch_id, row.errors, row.losses, shorten(row.message or "-", _MESSAGE_WIDTH)]
        for row in tried[:_BATCHES_SHOWN]
    ]
    return ["", *table(rows).splitlines(), *_more(tried)]


def _failures(status: RunStatus, work_dir: Path) -> list[str]:
    if not status.failures:
        return []
    rows: list[list[object]] = [["set aside", "errors", "lost", "host", "reason"]]
    rows += [
        [f.batch_id, f.errors, f.losses, shorten(f.host, _HOST_WIDTH), shorten(f.message, 2000)]
        for f in status.failures[:_BATCHES_SHOWN]
    ]
    return [
        "",
        *table(rows).splitlines(),
        *_more(status.failures),
        f"Mend what the reasons name, then: leconvert release {shlex.quote(str(work_dir))} "
        "--failed",
    ]


def _more(rows: Sequence[object]) -> list[str]:
    left = len(rows) - _BATCHES_SHOWN
    return [f"... and {left} more; --json lists them all"] if left > 0 else []
