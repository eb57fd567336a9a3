"""One command from source to result: plan, work, pack, verify, swap."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leconvert.engines import Engine
from leconvert.engines.local import LocalEngine
from leconvert.errors import (
    InterruptedRunError,
    UsageError,
)
from leconvert.leasing import Board, LeaseStore
from leconvert.leasing.registry import WorkerReporter
from leconvert.model import Finding, LayoutOptions
from leconvert.packer import PackOptions, PackReport, check_all_done, pack_run, swap_has_begun
from leconvert.planner import open_or_plan
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import load_info
from leconvert.workdir.durable import remove_tree
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.opened import OpenedRun, open_run
from leconvert.workdir.paths import WorkDir, default_work_dir
from leconvert.worker import Bell, Worker, WorkerSummary

__all__ = ["ConversionReport", "LeaseOptions", "convert", "run_worker"]

# How often the parent of worker processes looks at the work dir. It watches files that other
# processes make, for which nothing notifies; on one machine a look costs well under a millisecond.
_WATCH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """What governs leases.

    Attributes:
        lease_seconds: A batch whose holder is silent for so long is taken over.
        max_attempts: A batch is set aside after so many errors.
    """

    lease_seconds: float = 60.0
    max_attempts: int = 3

    def __post_init__(self) -> None:
        if not self.lease_seconds > 0 or self.max_attempts < 1:
            raise UsageError(
                f"A lease of {self.lease_seconds} s with {self.max_attempts} attempts cannot work."
            )


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        source: The v2.x dataset as it was given.
        output: The v3.0 dataset.
        kept_source: Where the replaced dataset is kept; None if nothing was replaced.
        run_id: The run.
        episodes: Episodes of the dataset.
        frames: Frames of the dataset.
        files: Data and video files of the result.
        source_bytes: Bytes of the source's data and video files.
        batches: Batches of the plan.
        cloned_bytes: Coded video bytes that are shared with the source.
        copied_bytes: Coded video bytes that were copied.
        seconds: Wall clock of the whole command.
        stage_seconds: Wall clock of plan, work and pack.
        verified: The depth of the check before the swap, ``none`` if it was skipped.
        findings: What the scan found, warnings and remarks.
    """

    source: Path
    output: Path
    kept_source: Path | None
    run_id: str
    episodes: int
    frames: int
    files: int
    source_bytes: int
    batches: int
    cloned_bytes: int
    copied_bytes: int
    seconds: float
    stage_seconds: dict[str, float] = field(default_factory=dict)
    verified: str = "structure"
    findings: Sequence[Finding] = ()

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        for name in ("source", "output", "kept_source"):
            record[name] = None if record[name] is None else str(record[name])
        return record


def convert(
    root: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    data_file_size_in_mb: float = 100,
    video_file_size_in_mb: float = 200,
    episodes_per_batch: int | None = None,
    block_align: int | None = None,
    orchestrate: bool = False,
    num_workers: int | None = None,
    max_workers: int | None = None,
    verify: str = "structure",
    force_conversion: bool = False,
    restart: bool = False,
    allow_mixed_versions: bool = False,
    leases: LeaseOptions | None = None,
    keep_work_dir: bool = False,
    push: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> ConversionReport:
    """Convert a v2.1 dataset to v3.0.

    The result appears at its place at once and complete, or not at all. A call that was
    interrupted, killed or failed is resumed by the same call.

    Args:
        root: The dataset folder, the one that holds ``meta/``.
        output: Where the result goes; the source is then never touched. None puts the result in
            the source's place and keeps the source beside it as ``<root>_old``.
        work_dir: Folder for the state of the run; shared by all hosts that work on it. None takes
            a hidden sibling of the target, which is removed after success.
        data_file_size_in_mb: Limit of a data file, uncompressed, in MiB.
        video_file_size_in_mb: Limit of a video file, in MiB.
        episodes_per_batch: Episodes a batch; None for an output file a batch. The result does not
            depend on it.
        block_align: Block size in bytes that episodes in video files are aligned to, so that file
            systems that share extents need not copy them; 0 for none, None to decide by the size
            of the clips.
        orchestrate: Work in processes that lease batches, instead of threads of this process.
        num_workers: Processes with ``orchestrate``; None for as many as there are cores, at most 4.
        max_workers: Threads without ``orchestrate``; None likewise.
        verify: ``structure``, ``bytes`` or ``none``: what is proven before the swap.
        force_conversion: Replace a v3.0 dataset at the target; it is kept as ``<target>_old``.
        restart: Give up a run under way and begin anew.
        allow_mixed_versions: Join a run that other library versions planned.
        leases: Lease time and attempts.
        keep_work_dir: Keep the run's records after success.
        push: Reserved for pushing to the Hub; must be False.
        stop: Set it from another thread to stop; the run can be resumed.
        progress: Where to report.

    Returns:
        What was done.

    Raises:
        LeconvertError: One of its subclasses; see `leconvert.errors` for which.
    """
    if push:
        raise UsageError("This version does not push to the Hub.")
    for name, count in (("num_workers", num_workers), ("max_workers", max_workers)):
        if count is not None and count < 1:
            raise UsageError(f"{name} must be at least 1, not {count}.")
    started = time.monotonic()
    source = Path(root).resolve()
    target = Path(output).resolve() if output is not None else source
    folder = Path(work_dir).resolve() if work_dir is not None else default_work_dir(target)
    pack_options = PackOptions(verify=verify, force_conversion=force_conversion)
    leases = leases or LeaseOptions()
    stop = stop or threading.Event()
    seconds: dict[str, float] = {}

    run = None if restart else _run_in_swap(folder, source, target)
    if run is None:
        load_info(source)  # what the source is comes before what stands at the target
        pack_options.check_target(source, target)
        run = open_or_plan(
            source,
            target,
            folder,
            LayoutOptions(
                data_file_size_in_mb, video_file_size_in_mb, episodes_per_batch, block_align
            ),
            restart=restart,
            allow_mixed_versions=allow_mixed_versions,
            progress=progress,
        )
        seconds["plan"] = time.monotonic() - started
        mark = time.monotonic()
        if orchestrate:
            engine = LocalEngine(run.paths.logs_dir)
            _work_with_engine(
                run,
                engine,
                num_workers or default_workers(),
                leases,
                stop,
                progress,
                allow_mixed_versions=allow_mixed_versions,
            )
        else:
            _work_in_threads(run, max_workers or default_workers(), leases, stop, progress)
        seconds["work"] = time.monotonic() - mark
    mark = time.monotonic()
    packed = pack_run(run, pack_options, stop=stop, progress=progress)
    seconds["pack"] = time.monotonic() - mark
    if not keep_work_dir and work_dir is None:
        remove_tree(run.work_dir.root)
    return _report(run, packed, seconds, time.monotonic() - started)


def run_worker(
    work_dir: str | os.PathLike[str],
    *,
    leases: LeaseOptions | None = None,
    max_batches: int | None = None,
    max_idle_seconds: float | None = None,
    allow_mixed_versions: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> WorkerSummary:
    """Run one worker on a work dir until nothing is left for it.

    Args:
        work_dir: The folder that all hosts share.
        leases: Lease time and attempts.
        max_batches: Stop after so many batches.
        max_idle_seconds: Stop after waiting so long for something to do.
        allow_mixed_versions: Work although library versions differ from the planner's.
        stop: Set it from another thread to make the worker hand back and return.
        progress: Where to report.

    Raises:
        LeconvertError: One of its subclasses.
    """
    run = open_run(Path(work_dir).resolve(), allow_mixed_versions=allow_mixed_versions)
    worker = _Crew(run, leases or LeaseOptions(), stop or threading.Event())
    left = worker.bytes_left()
    with progress.stage("work", left, "B") as stage:
        return worker.make(stage.advance).run(
            max_batches=max_batches, max_idle_seconds=max_idle_seconds
        )


class _Crew:
    """Makes workers of one process, each with an identity of its own."""

    def __init__(self, run: OpenedRun, leases: LeaseOptions, stop: threading.Event) -> None:
        self._run = run
        self._leases = leases
        self._stop = stop
        self._bell = Bell()

    @property
    def work_dir(self) -> Path:
        """The folder that all hosts share."""
        return self._run.work_dir.root

    def board(self) -> tuple[LeaseStore, Board, WorkerIdentity]:
        """Return a new worker's view of the batches."""
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(
            self._run.paths,
            self._run.manifest.run_id,
            identity,
            lease_seconds=self._leases.lease_seconds,
            max_attempts=self._leases.max_attempts,
        )
        return store, Board(store, self._run.manifest.num_batches), identity

    def check_all_done(self, remarks: Sequence[str] = ()) -> None:
        """Raise unless every batch is done; ``remarks`` say what became of the workers."""
        _, board, _ = self.board()
        board.refresh()
        check_all_done(self._run, board, remarks)

    def bytes_left(self) -> int:
        """Return the source bytes of batches without a result."""
        _, board, _ = self.board()
        board.refresh()
        done = set(board.done_ids())
        return sum(b.source_bytes for b in self._run.batches if b.batch_id not in done)

    def make(self, on_bytes: Any) -> Worker:
        """Return a worker."""
        store, board, identity = self.board()
        reporter = WorkerReporter(self._run.paths, self._run.manifest.run_id, identity)
        return Worker(
            self._run,
            store,
            board,
            stop=self._stop,
            on_bytes=on_bytes,
            reporter=reporter,
            bell=self._bell,
        )


def default_workers() -> int:
    """Return how many workers this machine feeds well: its cores, at most 4."""
    return max(1, min(4, len(os.sched_getaffinity(0))))


def _run_in_swap(work_dir: Path, source: Path, target: Path) -> OpenedRun | None:
    """Return this conversion's run if its swap began: then only the packer knows what is where."""
    if WorkDir(work_dir).current_run_id() is None:
        return None
    run = open_run(work_dir, allow_mixed_versions=True)
    if (run.manifest.source, run.manifest.target) != (str(source), str(target)):
        return None
    return run if swap_has_begun(run) else None


def _work_in_threads(
    run: OpenedRun, count: int, leases: LeaseOptions, stop: threading.Event, progress: Progress
) -> None:
    """Run workers as threads; the first error that is not a batch's own ends them all."""
    crew = _Crew(run, leases, stop)
    errors: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)
            stop.set()

    with (
        progress.stage("work", crew.bytes_left(), "B") as stage,
        ThreadPoolExecutor(count, thread_name_prefix="worker") as pool,
    ):
        for _ in range(count):
            pool.submit(work, crew.make(stage.advance))
    if errors:  # the first says why; the others were only asked to stop
        raise errors[0]
    crew.check_all_done()


def _work_with_engine(
    run: OpenedRun,
    engine: Engine,
    count: int,
    leases: LeaseOptions,
    stop: threading.Event,
    progress: Progress,
    *,
    allow_mixed_versions: bool,
) -> None:
    """Let an engine's workers do the batches, and watch the work dir until all are settled."""
    crew = _Crew(run, leases, stop)
    _, board, _ = crew.board()
    arguments = [
        str(run.work_dir.root),
        f"--lease-seconds={leases.lease_seconds}",
        f"--max-attempts={leases.max_attempts}",
        *(["--allow-mixed-versions"] if allow_mixed_versions else []),
    ]
    source_bytes = [batch.source_bytes for batch in run.batches]
    board.refresh()
    seen = set(board.done_ids())
    left = sum(source_bytes) - sum(source_bytes[batch_id] for batch_id in seen)
    with progress.stage("work", left, "B") as stage:
        if not board.all_settled():
            engine.start(min(count, len(source_bytes)), arguments)
        try:
            while engine.running() and not stop.wait(_WATCH_SECONDS):
                board.refresh()
                fresh = set(board.done_ids()) - seen
                stage.advance(sum(source_bytes[batch_id] for batch_id in fresh))
                seen |= fresh
                if board.all_settled():
                    break  # idle workers need not find out by themselves: they are told to end
        finally:
            engine.stop()
        board.refresh()
        stage.advance(sum(source_bytes[batch_id] for batch_id in set(board.done_ids()) - seen))
    if stop.is_set():
        raise InterruptedRunError(
            "The run was stopped; its workers handed back what they were writing.",
            next_step="Run the same command again to go on; finished batches stay finished.",
        )
    crew.check_all_done(engine.failures())


def _report(
    run: OpenedRun, packed: PackReport, seconds: dict[str, float], total_seconds: float
) -> ConversionReport:
    manifest = run.manifest
    return ConversionReport(
        source=Path(manifest.source),
        output=Path(manifest.target),
        kept_source=packed.kept,
        run_id=manifest.run_id,
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        files=sum(layout.num_files for layout in manifest.streams),
        source_bytes=manifest.source_bytes,
        batches=manifest.num_batches,
        cloned_bytes=packed.cloned_bytes,
        copied_bytes=packed.copied_bytes,
        seconds=total_seconds,
        stage_seconds=seconds,
        verified=packed.verified,
        findings=manifest.findings,
    )
