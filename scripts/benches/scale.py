"""How planning, leasing and packing metadata grow with the number of episodes.

Nothing here reads videos: the scan is simulated, so that the figures are those of the planner, the
leases and the metadata writers alone. Each size runs in a process of its own, so that peak memory
is its own.

    python scripts/bench.py scale plan --episodes 10000 100000 1000000
    python scripts/bench.py scale metadata --episodes 10000 100000 1000000
    python scripts/bench.py scale lease --batches 2500 20000 --workers 1 16 --scratch FOLDER

``lease`` plans so many batches and lets so many processes claim, beat for and publish each of them
(see `benches.leases`), then does what the packer and ``status`` do at the end of a run.

Raw rows go to ``bench_logs/<date>-scale-<part>.jsonl``.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benches import kit
from benches.leases import finish_run, lease_run
from leconvert import tables
from leconvert.dataset.formats import StatsBlock, v3
from leconvert.model.values import (
    KEEPING_LAYOUTS,
    OVERLAY,
    Batch,
    FileTable,
    LayoutOptions,
    Source,
    SourceScan,
    StreamLayout,
    StreamScan,
)
from leconvert.run.layout import count_out_of_reach, cut_batches, layout_streams
from leconvert.workdir.run import Manifest, tool_versions

CAMERAS = 4
# Episodes whose rows are made at a time, as of a source of v2.1.
BLOCK = 125
FRAMES = 300
# One episode's slices fill about a twentieth of an output file each.
EPISODES_PER_BATCH = 21
RUN_ID = "simulated"


def simulated_scan(episodes: int) -> SourceScan:
    """Return a scan of clips of about 2 MB and tables of about 60 kB."""
    chance = np.random.default_rng(0)
    zeros = np.zeros(episodes, dtype=np.int64)

    def stream(name: str, mean_bytes: int) -> StreamScan:
        sizes = chance.integers(mean_bytes // 2, mean_bytes * 2, episodes)
        files = FileTable(np.arange(episodes), sizes, sizes + 10**18, np.arange(episodes))
        return StreamScan.of_whole_files(
            name, files, frames=zeros + FRAMES, roll_bytes=sizes, group=zeros
        )

    return SourceScan(
        sources=(Source("/simulated", "v2.1", "0" * 64, ()),),
        fps=Fraction(30),
        episode_index=np.arange(episodes),
        length=zeros + FRAMES,
        streams=[
            stream("data", 60_000),
            *(stream(f"videos/observation.images.{n}", 2_000_000) for n in range(CAMERAS)),
        ],
        data_schema=b"",
        findings=(),
    )


def simulated_manifest(
    scan: SourceScan, layouts: Sequence[StreamLayout], batches: Sequence[Batch]
) -> Manifest:
    """Return the head of a simulated plan."""
    return Manifest(
        sources=scan.sources, target="/result",
        options={}, versions=tool_versions(), fps=scan.fps, block_align=0, streams=layouts,
        num_episodes=scan.num_episodes, num_frames=scan.num_episodes * FRAMES,
        source_bytes=scan.source_bytes,
        num_batches=len(batches), data_schema=scan.data_schema, findings=(),
    )  # fmt: skip


def bench_plan(episodes: int, layout: str, folder: Path) -> dict[str, Any]:
    """Lay out, cut batches and write the plan."""
    from leconvert.workdir.records import WorkDir
    from leconvert.workdir.run import BatchFile, ScanTable, write_plan

    scan = simulated_scan(episodes)
    started = time.perf_counter()
    layouts = layout_streams(scan, LayoutOptions(layout=layout))
    laid_out = time.perf_counter()
    fit = {}
    if layout in KEEPING_LAYOUTS:
        fit = {stream.stream: np.ones(episodes, np.bool_) for stream in scan.streams}
    # An overlay in place has nothing for workers.
    batches = [] if layout == OVERLAY else cut_batches(scan.streams, layouts, None, fit)
    cut = time.perf_counter()
    count_out_of_reach(scan, layouts)
    counted = time.perf_counter()
    run = WorkDir(folder / "work").run(RUN_ID)
    write_plan(run, simulated_manifest(scan, layouts, batches), scan, batches)
    written = time.perf_counter()
    table, file = ScanTable(run, layouts), BatchFile(run, layouts)
    some = range(0, len(file), max(1, len(file) // 100))
    for number in some:
        for shard in file.read(number).shards:
            table.stream(shard.stream, shard.first, shard.stop)
    looked_up = time.perf_counter()
    return {
        "episodes": episodes,
        "layout": layout,
        "layout_s": laid_out - started,
        "batches_s": cut - laid_out,
        "reach_s": counted - cut,
        "write_s": written - counted,
        "total_s": written - started,
        "batches": len(batches),
        "files": sum(layout.num_files for layout in layouts),
        "plan_bytes": sum(path.stat().st_size for path in run.root.iterdir() if path.is_file()),
        "look_up_ms_a_batch": 1000 * (looked_up - written) / max(1, len(some)),
    }


def bench_metadata(episodes: int, folder: Path) -> dict[str, Any]:
    """Write ``meta/episodes`` and aggregate statistics, an episode at a time."""
    chance = np.random.default_rng(0)
    vector = chance.normal(size=14).tolist()
    pixel = [[[0.5]], [[0.4]], [[0.3]]]
    stats: dict[str, Any] = {
        key: {"min": vector, "max": vector, "mean": vector, "std": vector, "count": [FRAMES]}
        for key in ("observation.state", "action")
    }
    for number in range(CAMERAS):
        stats[f"observation.images.{number}"] = {
            "min": pixel, "max": pixel, "mean": pixel, "std": pixel, "count": [100],
        }  # fmt: skip

    def records() -> Iterator[v3.EpisodeRecords]:
        for first in range(0, episodes, BLOCK):
            index = np.arange(first, min(first + BLOCK, episodes))
            begin, length = np.zeros_like(index), np.full_like(index, FRAMES)
            yield v3.EpisodeRecords(
                episode_index=index,
                data_file=index // 1000,
                dataset_from_index=index * FRAMES,
                length=length,
                videos=[
                    v3.VideoSpans(f"observation.images.{n}", index // 100, begin, length)
                    for n in range(CAMERAS)
                ],
                legacy=[
                    {"episode_index": number, "tasks": ["pick"], "length": FRAMES}
                    for number in index.tolist()
                ],
                stats=StatsBlock([stats] * len(index)),
            )

    started = time.perf_counter()
    written = v3.write_episodes(folder, records, fps=Fraction(30))
    rows = time.perf_counter()
    aggregate = v3.StatsAggregator()
    for block in records():
        aggregate.update_block(block.stats, block.episode_index.tolist())
    v3.write_stats(folder, aggregate.result())
    ended = time.perf_counter()
    return {
        "episodes": episodes,
        "episodes_table_s": rows - started,
        "aggregate_s": ended - rows,
        "total_s": ended - started,
        "files": len(written),
        "bytes": sum((folder / path).stat().st_size for path in written),
    }


def plan_leases(batches: int, work_dir: Path, source: Path) -> dict[str, Any]:
    """Plan a run of exactly so many batches, for workers that write nothing."""
    from leconvert.testing import DatasetSpec, make_dataset
    from leconvert.workdir.records import WorkDir
    from leconvert.workdir.run import write_plan

    make_dataset(source, DatasetSpec(episodes=1, cameras=()))  # a worker looks at its info.json
    scan = replace(
        simulated_scan(batches * EPISODES_PER_BATCH),
        sources=(Source(str(source), "v2.1", "0" * 64, ()),),
        data_schema=tables.serialize_schema(pa.schema([("index", pa.int64())])),
    )
    layouts = layout_streams(scan, LayoutOptions())
    cut = cut_batches(scan.streams, layouts, None)[:batches]
    if len(cut) < batches:
        raise SystemExit(f"{scan.num_episodes} episodes make only {len(cut)} batches")
    folder = WorkDir(work_dir)
    write_plan(folder.run(RUN_ID), simulated_manifest(scan, layouts, cut), scan, cut)
    folder.set_current(RUN_ID)
    return {"episodes": scan.num_episodes}


def bench_lease(batches: int, workers: int, folder: Path) -> dict[str, Any]:
    """Plan, lease and publish every batch, collect: each in processes of its own."""
    work_dir = folder / "work"
    planned = kit.measured_call(plan_leases, batches, work_dir, folder / "source")
    leased = lease_run(work_dir, batches, workers)
    finished = kit.measured_call(finish_run, work_dir)
    return {
        "batches": batches,
        "workers": workers,
        "folder": kit.file_system_of(folder),
        "episodes": planned["episodes"],
        **leased,
        **finished,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the asked part and log it."""
    parser = kit.parser(__doc__, repeats=None)
    parser.add_argument("part", choices=("plan", "metadata", "lease"))
    parser.add_argument("--episodes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--layout", nargs="+", default=["reference"], help="of plan")
    parser.add_argument("--batches", type=int, nargs="+", default=[2_500, 5_000, 10_000, 20_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64])
    options = parser.parse_args(arguments)
    # Ending by a signal unwinds like any error, so that no process and no folder stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    parts: Mapping[str, tuple[Callable[..., kit.Row], tuple[Sequence[Any], ...]]] = {
        "plan": (bench_plan, (options.episodes, options.layout)),
        "metadata": (bench_metadata, (options.episodes,)),
        "lease": (bench_lease, (options.batches, options.workers)),
    }
    measures, grows = parts[options.part]

    def run(size: tuple[Any, ...]) -> kit.Row:
        with tempfile.TemporaryDirectory(dir=options.scratch) as name:
            if options.part == "lease":  # its steps are processes of their own
                return measures(*size, Path(name))
            return kit.measured_call(measures, *size, Path(name))

    head = kit.header("bench.py scale", arguments, options.scratch, {})
    log = kit.new_log(options.log_dir, head, "scale", options.part)
    kit.rows_in_turns(log, head, [*product(*grows)], 1, run)
    return 0
