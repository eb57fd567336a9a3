"""How planning, leasing and packing metadata grow with the number of episodes.

Nothing here reads videos: the scan is simulated, so that the figures are those of the planner, the
leases and the metadata writers alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.run.layout.layout_scans import of_whole_files

from benches import kit
from leconvert import tables
from leconvert.dataset.formats import StatsBlock, v3
from leconvert.model.values import (
    DATA_STREAM,
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
from leconvert.run.leasing import Board, Lease, LeaseLostError, LeaseStore
from leconvert.run.worker import Worker
from leconvert.testing import DatasetSpec, make_dataset
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import (
    BatchFile,
    Manifest,
    ScanTable,
    open_run,
    tool_versions,
    write_plan,
)

CAMERAS = 4
# Episodes whose rows are made at a time, as of a source of v2.1.
BLOCK = 125
FRAMES = 300
# One episode's slices fill about a twentieth of an output file each.
EPISODES_PER_BATCH = 21
RUN_ID = "simulated"


def scale(case: kit.Case) -> None:
    """Measure how planning, leasing and packing metadata grow with the number of episodes.

        python scripts/bench.py scale plan --episodes 10000 100000 1000000
        python scripts/bench.py scale metadata --episodes 10000 100000 1000000
        python scripts/bench.py scale lease --batches 2500 20000 --workers 1 16 --scratch FOLDER

    Each size runs in a process of its own, so that peak memory is its own. ``lease`` plans so many
    batches and lets so many processes claim, beat for and publish each of them.
    """
    add = case.parser.add_argument
    add("part", choices=("plan", "metadata", "lease"))
    add("--episodes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    add("--layout", nargs="+", default=["reference"], help="of plan")
    add("--batches", type=int, nargs="+", default=[2_500, 5_000, 10_000, 20_000])
    add("--workers", type=int, nargs="+", default=[1, 4, 16, 64])
    options = case.parse()
    # Ending by a signal unwinds like any error, so that no process and no folder stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    parts: Mapping[str, tuple[Callable[..., kit.Row], tuple[Sequence[Any], ...]]] = {
        "plan": (bench_plan, (options.episodes, options.layout)),
        "metadata": (bench_metadata, (options.episodes,)),
        "lease": (bench_lease, (options.batches, options.workers)),
    }
    measures, grows = parts[options.part]

    def run(size: tuple[Any, ...]) -> kit.Row:
        with case.scratch_folder() as folder:
            if options.part == "lease":  # its steps are processes of their own
                return measures(*size, folder)
            return kit.measured_call(measures, *size, folder)

    with case.log(options.scratch, "scale", options.part) as keep:
        case.in_turns(keep, [*product(*grows)], run)


def simulated_scan(episodes: int) -> SourceScan:
    """Return a scan of clips of about 2 MB and tables of about 60 kB."""
    chance = np.random.default_rng(0)
    zeros = np.zeros(episodes, dtype=np.int64)

    def stream(name: str, mean_bytes: int) -> StreamScan:
        sizes = chance.integers(mean_bytes // 2, mean_bytes * 2, episodes)
        files = FileTable(np.arange(episodes), sizes, sizes + 10**18, np.arange(episodes))
        return of_whole_files(name, files, frames=zeros + FRAMES, roll_bytes=sizes, group=zeros)

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


def bench_plan(episodes: int, layout: str, folder: Path) -> kit.Row:
    """Lay out, cut batches and write the plan."""
    scan = simulated_scan(episodes)
    run = WorkDir(folder / "work").run(RUN_ID)
    fit = {}
    if layout in KEEPING_LAYOUTS:
        fit = {stream.stream: np.ones(episodes, np.bool_) for stream in scan.streams}
    started = time.perf_counter()
    layouts = layout_streams(scan, LayoutOptions(layout=layout))
    laid_out = time.perf_counter()
    # An overlay in place has nothing for workers.
    batches = [] if layout == OVERLAY else cut_batches(scan.streams, layouts, None, fit)
    cut = time.perf_counter()
    count_out_of_reach(scan, layouts)
    counted = time.perf_counter()
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


def bench_metadata(episodes: int, folder: Path) -> kit.Row:
    """Write ``meta/episodes`` and aggregate statistics, an episode at a time."""
    chance = np.random.default_rng(0)
    vector = chance.normal(size=14).tolist()
    pixel = [[[0.5]], [[0.4]], [[0.3]]]
    four = ("min", "max", "mean", "std")
    stats: dict[str, Any] = {
        key: {**dict.fromkeys(four, vector), "count": [FRAMES]}
        for key in ("observation.state", "action")
    }
    for number in range(CAMERAS):
        camera = {**dict.fromkeys(four, pixel), "count": [100]}
        stats[f"observation.images.{number}"] = camera

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
    return {
        "episodes": episodes,
        "episodes_table_s": rows - started,
        "aggregate_s": time.perf_counter() - rows,
        "files": len(written),
        "bytes": sum((folder / path).stat().st_size for path in written),
    }


def bench_lease(batches: int, workers: int, folder: Path) -> kit.Row:
    """Plan, then lease and publish every batch, each in processes of its own."""
    work_dir = folder / "work"
    planned = kit.measured_call(plan_leases, batches, work_dir, folder / "source")
    about = {"batches": batches, "workers": workers, "folder": kit.file_system_of(folder)}
    leased = lease_run(work_dir, batches, workers)
    return {**about, "episodes": planned["episodes"], **leased}


def plan_leases(batches: int, work_dir: Path, source: Path) -> kit.Row:
    """Plan a run of exactly so many batches, for workers that write nothing."""
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


class ShardlessWorker(Worker):
    """A worker whose shards are empty files; ``last_wrote`` is when it wrote its last ones.

    It leases as every worker does, with one heartbeat for a batch. So forcing shards to the disk is
    not part of the figures; forcing the records to the disk is.
    """

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
                digests = ["0" * 16] * (shard.stop - shard.first)
                record |= {"copied_bytes": 0, "cloned_bytes": 0, "clip_digests": digests}
            written.append(record)
        self.last_wrote = time.monotonic()
        return written


_all_workers: threading.Barrier
"""All workers begin at this; a process of a pool can be given it only when it starts."""


def know_all_workers(barrier: threading.Barrier) -> None:
    """Begin a process of the pool."""
    global _all_workers  # noqa: PLW0603
    _all_workers = barrier


def work(work_dir: Path) -> tuple[float, int, int, float, float]:
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
    _all_workers.wait()
    began, cpu = time.monotonic(), time.process_time()
    summary = worker.run()
    cpu = time.process_time() - cpu
    not_done = summary.batches_lost + summary.batches_failed
    return began, summary.batches_done, not_done, worker.last_wrote, cpu


def lease_run(work_dir: Path, batches: int, workers: int) -> kit.Row:
    """Let so many processes lease and publish all batches of a planned run.

    Wall clock is until the last batch was written, and from then until every worker noticed.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once, however many workers there are.
    context.set_forkserver_preload(["leconvert.run.worker", "leconvert.report.status"])
    with ProcessPoolExecutor(
        workers, context, initializer=know_all_workers, initargs=(context.Barrier(workers),)
    ) as pool:
        reports = [*pool.map(work, [work_dir] * workers)]
        ended = time.monotonic()
    starts, done, not_done, last_wrote, cpu_s = zip(*reports, strict=True)
    if sum(done) != batches or sum(not_done):
        raise SystemExit(f"not every one of {batches} batches was done exactly once")
    # One machine has one monotonic clock, so times of different processes compare.
    began = min(starts)
    wall_s = max(last_wrote) - began
    return {
        "wall_s": wall_s,
        "until_noticed_s": ended - began - wall_s,
        "wall_ms_a_batch": 1000 * wall_s / batches,
        "cpu_ms_a_batch": 1000 * sum(cpu_s) / batches,
        "batches_of_a_worker": [min(done), max(done)],
    }
