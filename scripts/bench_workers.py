"""Do two workers do the same batches in half the time? Workers alone, without scan and packer.

    python scripts/bench_workers.py many mid --repeats 5

Plans once a run, then starts N `leconvert work` processes together and waits for all of them; N
takes turns. Starting Python is in the time. CPU time over wall clock says what the limit was: near
the number of workers (or cores) it was the processors, far below it was storage.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from bench_common import (
    PROFILE_NAMES,
    REPOSITORY,
    bench_parser,
    in_turns,
    new_log,
    read_through,
    rows_kept,
)
from bench_convert import Bench, header


def run_workers(count: int, bench: Bench) -> dict[str, Any]:
    """Plan, let workers do every batch, and return the measured row."""
    shutil.rmtree(bench.run_dir, ignore_errors=True)
    bench.run_dir.mkdir(parents=True)
    work_dir = bench.run_dir / "work"
    ours = [sys.executable, "-m", "leconvert"]
    place = ["--root", str(bench.source), "--output", str(bench.output)]
    # Small files, so that the batches can be shared out evenly.
    sizes = ["--data-file-size-in-mb", "5", "--video-file-size-in-mb", "50"]
    plan = [*ours, "plan", *place, *sizes, "--work-dir", str(work_dir), "--json"]
    subprocess.run(plan, check=True, stdout=subprocess.DEVNULL)
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    workers = [
        subprocess.Popen([*ours, "work", str(work_dir), "--json"], stdout=subprocess.DEVNULL)
        for _ in range(count)
    ]
    codes = [worker.wait() for worker in workers]
    wall_seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(codes):
        raise SystemExit(f"workers ended with {codes}")
    [run] = (work_dir / "runs").iterdir()
    return {
        "workers": count,
        "batches": len(list((run / "done").glob("*.json"))),
        "wall_seconds": round(wall_seconds, 4),
        "user_seconds": round(after.ru_utime - before.ru_utime, 4),
        "system_seconds": round(after.ru_stime - before.ru_stime, 4),
    }


def main() -> int:
    """Parse and run."""
    parser = bench_parser(__doc__, repeats=5)
    parser.add_argument("profiles", nargs="+", choices=PROFILE_NAMES)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    for profile in options.profiles:
        scratch = options.scratch / f"leconvert-workers-{os.getpid()}"
        bench = Bench(scratch, scratch / "source", sync=False)
        scratch.mkdir(parents=True)
        try:
            make = [sys.executable, str(REPOSITORY / "scripts/bench_convert.py")]
            subprocess.run([*make, "--make", str(bench.source), profile], check=True)
            read_through(bench.source)
            first = header(bench, profile, sys.argv[1:])
            first["command"] = first["command"].replace("bench_convert", "bench_workers")
            stem = f"{first['started'][:10]}-workers-{profile}-{first['file_system']}"
            rows: list[dict[str, Any]] = []
            with rows_kept(new_log(options.log_dir, stem), first) as keep:
                for repeat, count in in_turns(options.workers, options.repeats):
                    row = {"repeat": repeat, **run_workers(count, bench)}
                    rows.append(row)
                    keep(row)
                    print(f"{profile}: {json.dumps(row)}", flush=True)
            for count in options.workers:
                mine = [row for row in rows if row["workers"] == count]
                wall = statistics.median(row["wall_seconds"] for row in mine)
                busy = statistics.median(
                    (row["user_seconds"] + row["system_seconds"]) / row["wall_seconds"]
                    for row in mine
                )
                print(f"{profile}: {count} workers {wall:.2f} s, {busy:.2f} cores busy")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
