"""How many claims a second workers make: `python scripts/bench_claims.py --batches 2000`.

Each worker is a process that claims until nobody has anything fresh; nothing is worked on. Prints
one JSON line a repeat, with what it ran on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from queue import Empty
from typing import Any

from leconvert.run.leasing import Board, LeaseStore, WorkerIdentity
from leconvert.workdir.records import RunPaths, WorkDir

RUN_ID = "bench"
_LOOK_SECONDS = 1.0


def claim_all(
    root: Path, batches: int, ready: Any, go: Any, results: multiprocessing.Queue[dict[str, Any]]
) -> None:
    """Claim until nothing fresh is left, and report how long it took."""
    run = WorkDir(root).run(RUN_ID)
    store = LeaseStore(
        run,
        RUN_ID,
        WorkerIdentity.of_this_process(),
        lease_seconds=3600,
        process_gone=lambda _: False,  # a worker that finished first has not died
    )
    board = Board(store, batches)
    ready.release()
    go.wait()
    began = time.monotonic()
    claims = 0
    while (lease := board.next_fresh()) is not None:
        claims += 1
        # Nobody ends a claim here, so a second generation cannot come up.
        if lease.generation != 1:
            raise SystemExit(f"batch {lease.batch_id} was claimed twice")
    results.put({"claims": claims, "seconds": time.monotonic() - began})


def one_round(folder: Path, batches: int, workers: int) -> dict[str, Any]:
    """Let so many processes claim all batches of a fresh run."""
    root = Path(tempfile.mkdtemp(prefix="claims-", dir=folder))
    try:
        run: RunPaths = WorkDir(root).run(RUN_ID)
        run.ensure()
        context = multiprocessing.get_context("spawn")
        ready, go, results = context.Semaphore(0), context.Event(), context.Queue()
        processes = [
            context.Process(target=claim_all, args=(root, batches, ready, go, results))
            for _ in range(workers)
        ]
        for process in processes:
            process.start()
        for _ in processes:
            ready.acquire()
        began = time.monotonic()
        go.set()
        reports: list[dict[str, Any]] = []
        while len(reports) < workers:
            try:
                reports.append(results.get(timeout=_LOOK_SECONDS))
            except Empty:
                if any(process.exitcode for process in processes):
                    raise SystemExit("a worker died; its error is above") from None
        seconds = time.monotonic() - began
        for process in processes:
            process.join()
        claimed = len(list(run.leases_dir.iterdir()))
        if claimed != batches or sum(report["claims"] for report in reports) != batches:
            raise SystemExit(f"{claimed} of {batches} batches were claimed")
        return {
            "workers": workers,
            "batches": batches,
            "seconds": round(seconds, 3),
            "claims_per_second": round(batches / seconds),
        }
    finally:
        shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    host = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    for workers in args.workers:
        rounds = [one_round(args.folder, args.batches, workers) for _ in range(args.repeats)]
        for report in rounds:
            print(json.dumps(report | host))
        median = statistics.median(report["claims_per_second"] for report in rounds)
        print(f"{workers} workers: {median:.0f} claims a second (median of {args.repeats})")


if __name__ == "__main__":
    main()
