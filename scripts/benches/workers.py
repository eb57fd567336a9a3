"""Do two workers do the same batches in half the time? Workers alone, without scan and packer.

    python scripts/bench.py workers many mid --repeats 5

Plans once a run, then starts N `leconvert work` processes together and waits for all of them; N
takes turns. Starting Python is in the time. CPU time over wall clock says what the limit was: near
the number of workers (or cores) it was the processors, far below it was storage.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benches import kit


def run_workers(count: int, scratch: Path) -> kit.Row:
    """Plan, let workers do every batch, and return the measured row."""
    run_dir = scratch / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    work_dir = run_dir / "work"
    place = ["--root", scratch / "source", "--output", run_dir / "dataset"]
    # Small files, so that the batches can be shared out evenly.
    sizes = ["--data-file-size-in-mb", "5", "--video-file-size-in-mb", "50"]
    kit.run_quietly([*kit.LECONVERT, "plan", *place, *sizes, "--work-dir", work_dir, "--json"])
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [*kit.LECONVERT, "work", str(work_dir), "--json"]
    workers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
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


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("profiles", nargs="+", choices=kit.PROFILE_NAMES)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args(arguments)
    for profile in options.profiles:
        with kit.scratch_folder(options.scratch, "workers") as scratch:
            kit.make_profile(profile, scratch / "source")
            shape = kit.dataset_shape(scratch / "source", profile)
            first = kit.header("bench.py workers", arguments, scratch, shape)
            log = kit.new_log(options.log_dir, first, "workers", profile, first["file_system"])
            run = partial(run_workers, scratch=scratch)
            rows = kit.rows_in_turns(log, first, options.workers, options.repeats, run)
        for count in options.workers:
            mine = [row for row in rows if row["workers"] == count]
            wall = statistics.median(row["wall_seconds"] for row in mine)
            busy = statistics.median(
                (row["user_seconds"] + row["system_seconds"]) / row["wall_seconds"] for row in mine
            )
            print(f"{profile}: {count} workers {wall:.2f} s, {busy:.2f} cores busy")
    return 0
