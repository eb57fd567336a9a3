"""The workers of one conversion: as threads of this process, or as processes of an engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leconvert.model.values import DATA_STREAM, MEBIBYTE, camera_of
from leconvert.run.conversion import Control, Conversion, LeaseOptions, WorkerOptions
from leconvert.run.engines import Engine
from leconvert.run.engines.local import LocalEngine
from leconvert.run.leasing import Board, LeaseStore
from leconvert.run.packer import PackReport, WorkerMonitor, check_all_done, pack_run
from leconvert.run.worker import Worker
from leconvert.support.errors import StorageError
from leconvert.support.machine import Machine
from leconvert.support.parallel import run_threads
from leconvert.support.progress import Progress, Stage
from leconvert.tables import deserialize_schema
from leconvert.transfer.options import ScratchOptions
from leconvert.transfer.scratch import hold_slot
from leconvert.workdir.activity import WorkerRecord, WorkerReporter, read_workers
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import Backoff
from leconvert.workdir.run import Manifest, OpenedRun

if TYPE_CHECKING:
    from leconvert.remote.sparse_snapshot import HubInputs

# How often the parent of worker processes looks at the work dir. It looks for files that other
# processes make, of which nothing notifies it; on one machine, a look costs well under a
# millisecond.
_WATCH_SECONDS = 0.02
# As often as a worker reports its progress.
_SECONDS_BETWEEN_LOOKS = 1.0


class WorkerPool:
    """Makes workers of one process, each with its own identity.

    Attributes:
        run: The run of the workers.
    """

    def __init__(
        self,
        run: OpenedRun,
        leases: LeaseOptions,
        stop: threading.Event,
        scratch: ScratchOptions = ScratchOptions(),
    ) -> None:
        self.run = run
        self._scratch = scratch
        self._leases = leases
        self._stop = stop

    def board(self, identity: WorkerIdentity) -> Board:
        """Return a worker's view of the batches."""
        store = LeaseStore(
            self.run.paths,
            identity,
            lease_seconds=self._leases.lease_seconds,
            max_attempts=self._leases.max_attempts,
        )
        return Board(store, self.run.manifest.num_batches)

    def look(self) -> Board:
        """Return a current view of the batches."""
        board = self.board(WorkerIdentity.of_this_process())
        board.refresh()
        return board

    def check_all_done(self) -> None:
        """Raise an error unless every batch is done."""
        check_all_done(self.run, self.look())

    def cost_left(self) -> int:
        """Return the cost of batches without a result; see `batch_costs`."""
        left = dict(enumerate(self.costs))
        for batch_id in self.look().done_ids():
            del left[batch_id]
        return sum(left.values())

    @cached_property
    def costs(self) -> list[int]:
        """The cost of every batch."""
        return batch_costs(self.run, self.weights)

    @cached_property
    def weights(self) -> Mapping[str, int]:
        """How many times a decoded byte counts, by stream; empty if none is decoded."""
        return decoding_weights(self.run)

    def stage(self, progress: Progress, cost: int) -> Stage:
        """Return the progress stage of the workers; with weights, it shows per cent."""
        return progress.stage("work", cost, "%" if self.weights else "B")

    def workers(self) -> list[WorkerRecord]:
        """Return the records of all workers."""
        return read_workers(self.run.paths)

    @contextmanager
    def inputs(self) -> Iterator[HubInputs | None]:
        """Provide one worker's access to a source that is not on this machine; else None."""
        manifest = self.run.manifest
        if manifest.outline is None:
            yield None
            return
        from leconvert.remote.sparse_snapshot import HubInputs

        with hold_slot(self._scratch, self.run.paths.run_id) as slot:
            yield HubInputs(Path(manifest.source), slot)

    def make(
        self,
        on_bytes: Any,
        inputs: HubInputs | None = None,
        batch_ended: threading.Condition | None = None,
    ) -> Worker:
        """Return a worker."""
        identity = WorkerIdentity.of_this_process()
        reporter = WorkerReporter(self.run.paths, identity)
        return Worker(
            self.run,
            self.board(identity),
            stop=self._stop,
            on_bytes=on_bytes,
            weights=self.weights,
            reporter=reporter,
            batch_ended=batch_ended,
            patience=Backoff(self._leases.trouble_seconds),
            inputs=inputs,
        )


def work_in_threads(
    pool: WorkerPool, count: int, stop: threading.Event, progress: Progress
) -> None:
    """Run workers as threads until every batch is done.

    The first error that is not the fault of a batch ends them all. No thread is left at the end.
    """
    batch_ended = threading.Condition()
    with pool.stage(progress, pool.cost_left()) as stage:

        def work() -> None:
            with pool.inputs() as inputs:
                pool.make(stage.advance, inputs, batch_ended).run()

        run_threads(work, count, stop, name="worker")
    pool.check_all_done()


class EngineWatcher(WorkerMonitor):
    """Runs an engine's workers while the packer collects their shards.

    As a context, it starts workers, at most one per batch, unless nothing is left to do. They are
    stopped at its end in any case.

    Args:
        pool: The run's batches and options.
        engine: Starts the workers.
        count: Number of workers.
        arguments: Their arguments besides the work dir.
        progress: Receives the progress.
        clock: A monotonic clock in seconds.

    Attributes:
        ended_at: ``time.monotonic()`` when the workers' part was over, None before.
    """

    pause_seconds = _WATCH_SECONDS

    def __init__(
        self,
        pool: WorkerPool,
        engine: Engine,
        count: int,
        arguments: Sequence[str],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._count = count
        self._arguments = [str(pool.run.work_dir.root), *arguments]
        self._paths = pool.run.paths
        self._progress = progress
        self._source_bytes = [batch.source_bytes for batch in pool.run.batches]
        self._costs = pool.costs
        self._clock = clock
        self._next_look = clock()
        self._done: set[int] = set()
        self._begun: dict[str, tuple[int | None, int]] = {}
        self._left = self._done_cost = self._shown = 0
        self._stage: Stage | None = None
        self._open = ExitStack()
        self.ended_at: float | None = None

    def __enter__(self) -> Self:
        board = self._pool.look()
        self._done = set(board.done_ids())
        self._left = sum(self._costs) - sum(self._costs[done] for done in self._done)
        self._in_hand()
        with ExitStack() as begun:
            self._stage = begun.enter_context(self._pool.stage(self._progress, self._left))
            begun.callback(self._engine.stop)
            if not board.all_settled():
                count = min(self._count, len(self._source_bytes))
                self._engine.start(count, self._arguments, self._paths)
            self._open = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def working(self) -> bool:
        """Return whether a worker runs, and move the progress bar by the workers' own records.

        A batch with decoded statistics takes minutes, and would otherwise move it only at its end.
        """
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            with suppress(StorageError):  # only the display needs it
                self._show(self._done_cost + self._in_hand())
        return self._engine.running() > 0

    def saw_done(self, batch_ids: Collection[int]) -> None:
        """Move the progress bar."""
        fresh = set(batch_ids) - self._done
        self._done |= fresh
        self._done_cost += sum(self._costs[batch_id] for batch_id in fresh)
        self._show(self._done_cost)

    def _in_hand(self) -> int:
        """Return the cost done in workers' current batches since these were first seen."""
        cost = 0
        for worker in self._pool.workers():
            batch_id, before = self._begun.get(worker.token, (None, 0))
            if worker.batch_id != batch_id or worker.token not in self._begun:
                self._begun[worker.token] = worker.batch_id, worker.processed_bytes
                continue
            if batch_id is None or batch_id in self._done:
                continue
            size_bytes = max(1, self._source_bytes[batch_id])
            share = min(1.0, (worker.processed_bytes - before) / size_bytes)
            cost += int(share * self._costs[batch_id])
        return cost

    def _show(self, cost: int) -> None:
        """Move the bar forward, but not past its end: two workers may have the same batch."""
        forward = min(cost, self._left) - self._shown
        if self._stage is not None and forward > 0:
            self._stage.advance(forward)
            self._shown += forward

    def saw_the_end(self) -> None:
        """Stop idle workers, so they need not notice the end by themselves."""
        self._open.close()
        self.ended_at = time.monotonic()

    def remarks(self) -> Sequence[str]:
        """Return why workers failed."""
        return self._engine.failures()


# The cost of a source file apart from moving its bytes, and the rate of moving.
_SECONDS_A_FILE = 0.0002
_SECONDS_A_FRAME_IS_DECODED = 0.0007
_SECONDS_A_CLIP_IS_DECODED = 0.2  # of any length, where it is weighed against copied bytes
_BYTES_A_SECOND = 1e9

_MOST_MOVERS = 4
_MOST_HANDLERS = 16
_SHARE_OF_FREE_MEMORY = 0.5
# The most memory of a worker without an episode's rows; a test runs workers under this limit.
_BYTES_OF_A_WORKER = 256 * MEBIBYTE
# A worker that encodes rows holds an episode's table as read, as rows, and as written. In a dataset
# with images this can be gigabytes, and a worker that is killed for its memory is no help.
_TIMES_THE_EPISODE = 6


def auto_workers(run: OpenedRun, machine: Machine | None = None) -> int:
    """Return how many workers this machine can keep busy, at least 1.

    This is the number of cores, but at most 16 if handling files takes the time (more were not
    measured), and at most 4 if moving bytes does, since more would wait for the disk. With
    `worker_bytes` each, they take at most half of the free memory. The other half is for the page
    cache, through which they read and write everything.
    """
    machine = machine or Machine()
    handles = handling_seconds(run.manifest) > moving_seconds(run.manifest)
    feasible = min(machine.cores(), _MOST_HANDLERS if handles else _MOST_MOVERS)
    if feasible == 1:
        return 1
    fitting = int(machine.free_memory() * _SHARE_OF_FREE_MEMORY) // worker_bytes(run)
    return max(1, min(feasible, fitting))


def worker_bytes(run: OpenedRun) -> int:
    """Return the memory of a worker in bytes: 256 MiB, and 6 times the largest episode's table."""
    data, _ = run.scan.stream(DATA_STREAM)
    # The size in the file or uncompressed, whichever is larger.
    largest = int(max(data.size_bytes.max(), data.roll_bytes.max()))
    return _BYTES_OF_A_WORKER + _TIMES_THE_EPISODE * largest


def handling_seconds(manifest: Manifest) -> float:
    """Return an estimate of one core's seconds to open, parse, check and name files."""
    seconds = manifest.num_episodes * len(manifest.streams) * _SECONDS_A_FILE
    cameras = {camera_of(layout.stream) for layout in manifest.streams}
    decoded = cameras.intersection(manifest.computed_stats)
    return seconds + manifest.num_frames * len(decoded) * _SECONDS_A_FRAME_IS_DECODED


def batch_costs(run: OpenedRun, weights: Mapping[str, int] | None = None) -> list[int]:
    """Return the cost of every batch: its source bytes, times a weight if they are decoded.

    Estimates of the remaining time divide the cost of a batch evenly among its source bytes.
    """
    weights = decoding_weights(run) if weights is None else weights
    if not weights:
        return [batch.source_bytes for batch in run.batches]
    return [
        sum(
            weights.get(shard.stream, 1)
            * int(run.scan.stream(shard.stream, shard.first, shard.stop)[0].size_bytes.sum())
            for shard in batch.shards
        )
        for batch in run.batches
    ]


def decoding_weights(run: OpenedRun) -> dict[str, int]:
    """Return, by stream, how many times as long a decoded byte takes as a copied one.

    Only the estimate of the remaining time depends on it. Streams that are only copied are left
    out.
    """
    manifest, weights = run.manifest, dict[str, int]()
    repairs = [source.repairs for source in manifest.sources]
    schema = deserialize_schema(run.manifest.data_schema)
    images = [field.name for field in schema if str(field.type).startswith("struct")]
    for layout in run.manifest.streams:
        names = images if layout.stream == DATA_STREAM else [str(camera_of(layout.stream))]
        decoded = [name for name in names if name in manifest.computed_stats]
        if not decoded:
            continue
        scan, episodes = run.scan.stream(layout.stream)
        clips = sum(
            repairs[number].computes_stats(name, episode)
            for name in decoded
            for number, episode in zip(
                scan.files.source[scan.file].tolist(), episodes.tolist(), strict=True
            )
        )
        seconds = clips * _SECONDS_A_CLIP_IS_DECODED
        weights[layout.stream] = 1 + int(
            seconds * _BYTES_A_SECOND / max(1, int(scan.size_bytes.sum()))
        )
    return weights


def moving_seconds(manifest: Manifest) -> float:
    """Return an estimate of the seconds for moving the bytes."""
    return manifest.source_bytes / _BYTES_A_SECOND


# The least work for which processes are worth their start. Only the choice of the faster way of
# working depends on it.
_SECONDS_WORTH_PROCESSES = 1.0
_MOST_THREADS = 4  # more would wait for Python's lock or the disk


def work_and_pack(
    run: OpenedRun, conversion: Conversion, control: Control
) -> tuple[PackReport, dict[str, float]]:
    """Do the remaining work of a run.

    Returns:
        The packer's report, and the seconds that ``work`` and ``pack`` took.
    """
    workers, stop, progress = conversion.workers, control.stop, control.progress
    pool = WorkerPool(run, conversion.leases, stop, conversion.scratch)
    seconds: dict[str, float] = {}
    mark = time.monotonic()
    if workers.engine is not None or _in_processes(run, workers):
        engine = workers.engine or LocalEngine()
        count = None if workers.num_workers == "auto" else workers.num_workers
        arguments = conversion.work_arguments(fetches=run.manifest.outline is not None)
        count = count or engine.workers or auto_workers(run)
        with EngineWatcher(pool, engine, count, arguments, progress) as watcher:
            packed = pack_run(run, conversion.proof, watcher=watcher, stop=stop, progress=progress)
        ended = watcher.ended_at or time.monotonic()
        seconds["work"], mark = ended - mark, ended
    else:
        threads = workers.max_workers or min(_MOST_THREADS, auto_workers(run))
        work_in_threads(pool, threads, stop, progress)
        seconds["work"], mark = time.monotonic() - mark, time.monotonic()
        packed = pack_run(run, conversion.proof, stop=stop, progress=progress)
    seconds["pack"] = time.monotonic() - mark
    return packed, seconds


def _in_processes(run: OpenedRun, workers: WorkerOptions) -> bool:
    """Return whether to use processes: as requested, else by the kind of work."""
    if workers.orchestrate is not None:
        return workers.orchestrate
    if workers.num_workers is not None or workers.max_workers is not None:
        return workers.max_workers is None
    if auto_workers(run) == 1:
        return False
    worth_it = max(moving_seconds(run.manifest), _SECONDS_WORTH_PROCESSES)
    return handling_seconds(run.manifest) > worth_it
