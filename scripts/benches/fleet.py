"""A rehearsal of a fleet of 100 TB: the real list, planner, leases and workers, and no bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.unit.fleet.test_makespan import Cost, lower_bound, makespan

from benches import kit
from benches.scale import RUN_ID, simulated_manifest, simulated_scan
from leconvert.fleet import Line, plan_fleet, read_list
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion
from leconvert.run.layout import cut_batches, layout_streams
from leconvert.run.leasing import list_batches
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import write_plan

LAYOUT = LayoutOptions(video_file_size_in_mb=4000, data_file_size_in_mb=4000)
MEAN_BYTES = 100e12 / 5000  # of a dataset
EPISODE_BYTES = 4 * 2.5e6 + 7.5e4  # of `simulated_scan`
# docs/scaling.md: 2.7 h of scanning and 4.9 h of packing for 12.4 million episodes, and 5 GB/s that
# 64 hosts share.
SCAN_SECONDS_AN_EPISODE = 2.7 * 3600 / 12.4e6
PACK_SECONDS_AN_EPISODE = 4.9 * 3600 / 12.4e6
BYTES_A_SECOND = 5e9
CAMERA = {"dtype": "video", "shape": [480, 640, 3], "names": ["height", "width", "channels"]}
VECTOR = {"dtype": "float32", "shape": [14], "names": None}


def episodes_of(datasets: int) -> list[int]:
    """Return how many episodes each dataset has."""
    chance = random.Random(1)
    sizes = [chance.lognormvariate(0.0, 1.8) for _ in range(datasets)]
    scale = datasets * MEAN_BYTES / EPISODE_BYTES / sum(sizes)
    return [max(1, round(size * scale)) for size in sizes]


def begin(folder: Path, episodes: Sequence[int]) -> kit.Row:
    """Write the list's folders, read the list, and begin the fleet."""
    features = {f"observation.images.{n}": CAMERA for n in range(4)}
    for number, count in enumerate(episodes):
        info = {
            "codebase_version": "v2.1", "total_episodes": count, "total_frames": 200 * count,
            "features": {**features, "action": VECTOR, "observation.state": VECTOR},
        }  # fmt: skip
        path = folder / f"in/set_{number:05d}/meta/info.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(info))
    (folder / "list.txt").write_text("in/*\n")
    began = time.perf_counter()
    datasets = read_list(
        folder / "list.txt", folder / "out",
        lambda words: Line(words[0], options=Conversion(layout=LAYOUT)), say=print,
    )  # fmt: skip
    read = time.perf_counter()
    fleet = plan_fleet(datasets, folder / "work")
    return {
        "datasets": len(datasets),
        "read_list_s": round(read - began, 2),
        "plan_fleet_s": round(time.perf_counter() - read, 2),
        "record_mb": round(fleet.paths.fleet_datasets.stat().st_size / 1e6, 2),
    }


def plan(folder: Path, episodes: Sequence[int]) -> kit.Row:
    """Plan each dataset as a worker does, but for its scan."""
    batches, written, longest = [], 0, 0.0
    began = time.perf_counter()
    for count in episodes:
        of_one = time.perf_counter()
        scan = simulated_scan(count)
        layouts = layout_streams(scan, LAYOUT)
        cut = cut_batches(scan.streams, layouts, None)
        paths = WorkDir(folder / "one").run(RUN_ID)
        write_plan(paths, simulated_manifest(scan, layouts, cut), scan, cut)
        written += sum(path.stat().st_size for path in paths.root.rglob("*") if path.is_file())
        shutil.rmtree(folder / "one")
        batches.append(len(cut))
        longest = max(longest, time.perf_counter() - of_one)
    (folder / "batches.json").write_text(json.dumps(batches))
    return {
        "batches": sum(batches),
        "plan_s": round(time.perf_counter() - began, 1),
        "longest_s": round(longest, 2),
        "written_mb": round(written / 1e6, 1),
    }


def work(folder: Path, episodes: Sequence[int], workers: int) -> kit.Row:
    """Let workers claim and publish everything, on a clock that is turned."""
    batches = json.loads((folder / "batches.json").read_text())
    rate = BYTES_A_SECOND / workers
    costs = {
        f"set_{number:05d}": Cost(
            SCAN_SECONDS_AN_EPISODE * count,
            (count * EPISODE_BYTES / rate / of_it,) * of_it,
            PACK_SECONDS_AN_EPISODE * count,
        )
        for number, (count, of_it) in enumerate(zip(episodes, batches, strict=True))
    }
    chance = random.Random(1)
    began, cpu = time.perf_counter(), time.process_time()
    took = makespan(folder / "run", costs, workers, lambda s: s * chance.uniform(0.6, 1.6))
    cpu = time.process_time() - cpu
    claims = len(costs) + sum(
        len(list_batches(WorkDir(folder / "run/work").dataset(name).run("r1").done_dir))
        for name in costs
    )
    bound = lower_bound(costs, workers)
    return {
        "workers": workers,
        "claims": claims,
        "cpu_ms_a_claim": round(1000 * cpu / claims, 2),
        "claims_a_second_here": round(claims / (time.perf_counter() - began)),
        "claims_a_second_of_the_fleet": round(claims / took, 2),
        "makespan_h": round(took / 3600, 2),
        "lower_bound_h": round(bound / 3600, 2),
        "over_the_bound": round(took / bound - 1, 3),
        "largest_dataset_h": round(max(cost.total for cost in costs.values()) / 3600, 2),
    }


def fleet(case: kit.Case) -> None:
    """Rehearse a fleet of 100 TB: the real list, planner, leases and workers; no bytes are moved.

        python scripts/bench.py fleet

    makes 5,000 folders with an ``info.json`` and nothing else, of log-normal sizes, and

    1. reads the list and begins the fleet;
    2. lays out, cuts and writes the plan of each dataset, from a simulated scan;
    3. lets 64 workers take datasets and batches on a clock that is turned, with all leases real:
       what a dataset takes is reckoned from the rates of docs/scaling.md.

    Each step is a process of its own, so that peak memory is its own.
    """
    add = case.parser.add_argument
    add("--datasets", type=int, default=5000)
    add("--workers", type=int, default=64)
    options = case.parse()
    sizes = episodes_of(options.datasets)
    shape = {"episodes": sum(sizes), "largest": max(sizes)}
    steps: dict[Callable[..., kit.Row], tuple[int, ...]]
    steps = {begin: (), plan: (), work: (options.workers,)}
    with (
        case.scratch_folder() as folder,
        case.log(folder, "rehearse-fleet", dataset=shape, load=os.getloadavg()) as keep,
    ):
        for step, more in steps.items():
            row = {"step": step.__name__, **kit.measured_call(step, folder, sizes, *more)}
            keep(row)
            print(json.dumps(row), flush=True)
