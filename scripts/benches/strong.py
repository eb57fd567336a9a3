"""Do n workers take an n-th of the time where the machine is not the limit? A simulated slow disk.

    python scripts/bench.py strong --repeats 3

Converts one generated dataset again and again by `LocalEngine` with 1, 2, 4, 8 and 16 real worker
processes, in turns. A worker is `leconvert work`, but for every byte that it deals with it sleeps
(`slow_worker.py`), in all `--seconds` in each conversion, however many workers share them. So two
cores are enough for sixteen workers, and what is lost is lost by leases, idle workers and the tail.

Two times are taken of each conversion: its wall clock, with scan, start of Python, packer, proof
and swap; and that from the first claim of a batch to the last `done`, from the records of both.
Efficiency is T(1) / (n T(n)), with medians over repeats.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benches import kit
from leconvert import convert
from leconvert.model.values import DATA_STREAM, LayoutOptions
from leconvert.run.conversion import WorkerOptions
from leconvert.run.engines import LocalEngine
from leconvert.run.leasing import read_done
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.testing.dataset import RandomLengths
from leconvert.workdir.run import open_run

SLOW_WORKER = Path(__file__).with_name("slow_worker.py")


def make_source(root: Path, episodes: int) -> None:
    """Generate the dataset: a camera, episodes that differ threefold in length."""
    camera = CameraSpec(width=64, height=48, noise_amplitude=48, target_clip_bytes=100_000)
    lengths = RandomLengths(seed=0, minimum=15, maximum=45)
    make_dataset(
        root, DatasetSpec(episodes=episodes, frames=lengths, cameras=(camera,), distinct_clips=1)
    )


def run_once(source: Path, folder: Path, workers: int, seconds_a_byte: float) -> dict[str, Any]:
    """Convert once and return the measured row.

    Args:
        source: The dataset.
        folder: An empty folder for the run and its result.
        workers: Worker processes.
        seconds_a_byte: How slow the disk is.
    """
    slow = (sys.executable, SLOW_WORKER, "0", str(seconds_a_byte), "work")
    before = os.times()
    started = time.perf_counter()
    report = convert(
        source,
        output=folder / "result",
        work_dir=folder / "work",
        workers=WorkerOptions(engine=LocalEngine(workers, program=slow)),
        keep_work_dir=True,
        # A batch an episode, so that there are many; ten or so make a file.
        layout=LayoutOptions(
            data_file_size_in_mb=0.05, video_file_size_in_mb=1, episodes_per_batch=1
        ),
    )
    wall_seconds = time.perf_counter() - started
    after = os.times()
    return {
        "workers": workers,
        "batches": report.batches,
        "wall_seconds": round(wall_seconds, 4),
        **_window(folder / "work"),
        "stage_seconds": {name: round(s, 4) for name, s in report.stage_seconds.items()},
        # The CPU time of this process and of its workers, which have ended.
        "cpu_seconds": round(sum(after[:4]) - sum(before[:4]), 4),
    }


def _window(work_dir: Path) -> dict[str, Any]:
    """Return what the records of a finished run say of its workers' time."""
    run = open_run(work_dir, only_look=True)
    began: dict[str, list[datetime]] = {}
    ends: dict[str, list[datetime]] = {}
    busy = 0.0
    for batch_id in range(run.manifest.num_batches):
        record = read_done(run.paths, batch_id)
        began.setdefault(record["token"], []).append(datetime.fromisoformat(record["began"]))
        ends.setdefault(record["token"], []).append(datetime.fromisoformat(record["ended"]))
        busy += record["seconds"]
    first, last = min(map(min, began.values())), max(map(max, ends.values()))
    return {
        "window_seconds": (last - first).total_seconds(),
        "last_worker_began_after": (max(map(min, began.values())) - first).total_seconds(),
        "first_worker_ended_before": (last - min(map(max, ends.values()))).total_seconds(),
        "batches_a_worker": sorted(map(len, began.values())),
        "busy_seconds": round(busy, 3),
    }


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = kit.parser(__doc__, repeats=3)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=320, help="of sleep in a conversion (320)")
    parser.add_argument("--episodes", type=int, default=640, help="a batch each (640)")
    options = parser.parse_args(arguments)
    with kit.scratch_folder(options.scratch, "strong") as scratch:
        # Workers find compiled modules, as of an installed program, wherever this is a checkout.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")
        source = scratch / "source"
        make_source(source, options.episodes)
        kit.read_through(source)
        shape = kit.dataset_shape(source, "slow-disk")
        data_bytes = kit.size_of(source / DATA_STREAM)
        seconds_a_byte = options.seconds / (shape["video_bytes"] + data_bytes)

        def run(workers: int, seconds_a_byte: float = seconds_a_byte) -> kit.Row:
            folder = scratch / "run"
            folder.mkdir()
            row = run_once(source, folder, workers, seconds_a_byte)
            shutil.rmtree(folder)
            return row

        run(1, 0.0)  # warms up
        first = kit.header("bench.py strong", arguments, scratch, shape)
        first |= {"sleep_seconds": options.seconds, "seconds_a_byte": seconds_a_byte}
        log = kit.new_log(options.log_dir, first, "strong-scaling")
        kit.rows_in_turns(log, first, options.workers, options.repeats, run)
    return 0
