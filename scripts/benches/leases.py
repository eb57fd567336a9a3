"""Workers that lease every batch of a run and write no bytes: what leasing itself costs.

`bench.py scale lease` uses it. Every worker is a process with the real worker loop, store
and board; only the writing of shards is replaced, by one heartbeat and an empty file for each shard
(the packer asks for it). So forcing shards to the disk is not part of the figures; forcing the
records to the disk is.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from itertools import pairwise
from pathlib import Path
from queue import Empty
from typing import Any

from leconvert.model.values import DATA_STREAM, Batch
from leconvert.report.status import run_status
from leconvert.run.leasing import Board, Lease, LeaseLostError, LeaseStore
from leconvert.run.packer import check_all_done
from leconvert.run.packer.assembly import Collector
from leconvert.run.worker import Worker
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.run import open_run

_CLIP_DIGEST = "0" * 16
_LOOK_SECONDS = 1.0


class ShardlessWorker(Worker):
    """A worker whose shards are empty files; ``last_wrote`` is when it wrote its last ones."""

    last_wrote = 0.0

    def _write_shards(
        self, lease: Lease, batch: Batch, lease_lost: threading.Event
    ) -> list[dict[str, Any]]:
        lease.heartbeat()
        if lease_lost.is_set():
            raise LeaseLostError(f"batch {batch.batch_id} was taken over")
        written = []
        for shard in batch.shards:
            path = lease.attempt_dir / shard.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            record: dict[str, Any] = {"path": shard.name, "size_bytes": 0}
            if shard.stream != DATA_STREAM:
                # As long as a real record: reading it is most of what collecting costs.
                record |= {
                    "copied_bytes": 0, "cloned_bytes": 0,
                    "clip_digests": [_CLIP_DIGEST] * (shard.stop - shard.first),
                }  # fmt: skip
            written.append(record)
        self.last_wrote = time.monotonic()
        return written


def work(work_dir: Path, ready: Any, go: Any, reports: Any) -> None:
    """Be one worker from the common start to the end of the run, and report."""
    run = open_run(work_dir)
    identity = WorkerIdentity.of_this_process()
    # A worker that sees the end first exits first; its last claims must not look abandoned.
    store = LeaseStore(run.paths, identity, process_gone=lambda _: False)
    worker = ShardlessWorker(
        run,
        Board(store, run.manifest.num_batches),
        stop=threading.Event(),
        reporter=WorkerReporter(run.paths, identity),
    )
    ready.release()
    go.wait()
    cpu = time.process_time()
    summary = worker.run()
    reports.put(
        {
            "done": summary.batches_done,
            "not_done": summary.batches_lost + summary.batches_failed,
            "last_wrote": worker.last_wrote,
            "cpu_s": time.process_time() - cpu,
        }
    )


def lease_run(work_dir: Path, batches: int, workers: int) -> dict[str, Any]:
    """Let so many processes lease and publish all batches of a planned run.

    Args:
        work_dir: A work dir with a fresh plan.
        batches: Its batches.
        workers: Processes.

    Returns:
        Wall clock until the last batch was written, and until every worker noticed that; CPU, a
        batch unless the name says otherwise.

    Raises:
        SystemExit: A worker died, or a batch was done twice, lost or failed.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once, however many workers there are.
    context.set_forkserver_preload(["leconvert.run.worker", "leconvert.report.status"])
    ready, go, queue = context.Semaphore(0), context.Event(), context.Queue()
    processes = [
        context.Process(target=work, args=(work_dir, ready, go, queue)) for _ in range(workers)
    ]
    reports: list[dict[str, Any]] = []
    try:
        for process in processes:
            process.start()
        for _ in processes:
            ready.acquire()
        began = time.monotonic()
        go.set()
        while len(reports) < workers:
            try:
                reports.append(queue.get(timeout=_LOOK_SECONDS))
            except Empty:
                if any(process.exitcode for process in processes):
                    raise SystemExit("a worker died; its error is above") from None
        ended = time.monotonic()
    finally:
        for process in processes:
            if len(reports) < workers and process.is_alive():
                process.terminate()
            process.join()
    if (
        sum(report["done"] for report in reports) != batches
        or sum(report["not_done"] for report in reports) != 0
    ):
        raise SystemExit(f"not every one of {batches} batches was done exactly once")
    # One machine has one monotonic clock, so times of different processes compare.
    wall_s = max(report["last_wrote"] for report in reports) - began
    return {
        "wall_s": wall_s,
        "until_noticed_s": ended - began - wall_s,
        "wall_ms_a_batch": 1000 * wall_s / batches,
        "cpu_ms_a_batch": 1000 * sum(report["cpu_s"] for report in reports) / batches,
        "batches_of_a_worker": [
            min(report["done"] for report in reports), max(report["done"] for report in reports)
        ],
    }  # fmt: skip


def finish_run(work_dir: Path) -> dict[str, Any]:
    """Do what the packer and ``status`` do once every batch is done; all of it O(batches)."""
    run = open_run(work_dir)
    store = LeaseStore(run.paths, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    marks = [(time.perf_counter(), time.process_time())]

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    board.refresh()
    mark()
    check_all_done(run, board)
    mark()
    files = sum(1 for _ in Collector(run).take(board.done_ids()))
    mark()
    status = run_status(work_dir)
    mark()
    batches = run.manifest.num_batches
    if status.done != batches or files < batches:
        raise SystemExit(f"{status.done} of {batches} batches done, {files} files collected")
    row: dict[str, Any] = {}
    steps = zip(("refresh", "check", "collect", "status"), pairwise(marks), strict=True)
    for step, ((began, cpu_began), (ended, cpu_ended)) in steps:
        row[f"{step}_s"] = ended - began
        row[f"{step}_cpu_us_a_batch"] = 1e6 * (cpu_ended - cpu_began) / batches
    return row | {
        "packer_peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "work_dir_files": sum(len(names) for _, _, names in os.walk(work_dir)),
    }
