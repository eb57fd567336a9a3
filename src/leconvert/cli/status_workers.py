"""Draws the workers of a run, one by one or, where there are many, by host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from leconvert.cli.status_rows import HOST_WIDTH, ROWS_SHOWN, more_lines
from leconvert.cli.text import amount, duration, shorten, table
from leconvert.status import Liveness, RunStatus, WorkerStatus

__all__ = ["worker_lines"]

_WORKERS_SHOWN = 20


def worker_lines(status: RunStatus) -> list[str]:
    """Return who holds what: each worker, or each host where there are many."""
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
            lines += ["", *_each(status, doubtful[:ROWS_SHOWN]), *more_lines(doubtful)]
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
                shorten(worker.host, HOST_WIDTH),
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
                shorten(host, HOST_WIDTH),
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
