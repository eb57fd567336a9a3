"""One to sixteen workers where the machine is not the limit: on a simulated slow disk."""

from __future__ import annotations

import os
import shutil
import sys
import time
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
    """Convert once and return the measured row."""
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
        "window_seconds": _window(folder / "work"),
        "stage_seconds": {name: round(s, 4) for name, s in report.stage_seconds.items()},
        # The CPU time of this process and of its workers, which have ended.
        "cpu_seconds": round(sum(after[:4]) - sum(before[:4]), 4),
    }


def _window(work_dir: Path) -> float:
    """Return the seconds from the first claim to the last ``done``, as the records say."""
    run = open_run(work_dir, only_look=True)
    ids = range(run.manifest.num_batches)
    records = [read_done(run.paths, batch_id) for batch_id in ids]
    first, last = (
        pick(datetime.fromisoformat(record[key]) for record in records)
        for pick, key in ((min, "began"), (max, "ended"))
    )
    return (last - first).total_seconds()


def strong(case: kit.Case) -> None:
    """Do n workers take an n-th of the time where the machine is not the limit?

        python scripts/bench.py strong --repeats 3

    Converts one generated dataset again and again by `LocalEngine` with 1, 2, 4, 8 and 16 real
    worker processes, in turns. A worker is `leconvert work`, but for every byte that it deals with
    it sleeps (`slow_worker.py`), in all `--seconds` in each conversion, however many workers share
    them. So two cores are enough for sixteen workers, and what is lost is lost by leases, idle
    workers and the tail.

    Two times are taken of each conversion: its wall clock, with scan, start of Python, packer,
    proof and swap; and that from the first claim of a batch to the last `done`, from the records of
    both. Efficiency is T(1) / (n T(n)), with medians over repeats.
    """
    add = case.parser.add_argument
    add("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    add("--seconds", type=float, default=320, help="of sleep in a conversion (320)")
    add("--episodes", type=int, default=640, help="a batch each (640)")
    options = case.parse(repeats=3)
    with case.scratch_folder() as scratch:
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
        facts = {"sleep_seconds": options.seconds, "seconds_a_byte": seconds_a_byte}
        with case.log(scratch, "strong-scaling", dataset=shape, **facts) as keep:
            case.in_turns(keep, options.workers, run)
