"""The workers of one conversion: as threads of this process, or as processes of an engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leconvert.bell import Bell
from leconvert.engines import Engine
from leconvert.errors import UsageError
from leconvert.hub.scratch import ScratchOptions, hold_slot
from leconvert.leasing import Board, LeaseStore
from leconvert.leasing.registry import WorkerReporter
from leconvert.packer import Watcher, check_all_done
from leconvert.progress import Progress, Stage
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.paths import RunPaths
from leconvert.workdir.patience import Patience
from leconvert.worker import Worker

if TYPE_CHECKING:
    from leconvert.hub.inputs import HubInputs

__all__ = ["Crew", "EngineWatcher", "LeaseOptions", "work_in_threads"]

# How often the parent of worker processes looks at the work dir. It watches files that other
# processes make, for which nothing notifies; on one machine a look costs well under a millisecond.
_WATCH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """What governs leases.

    Attributes:
        lease_seconds: A batch whose holder is silent for so long is taken over.
        max_attempts: A batch is set aside after so many errors.
        trouble_seconds: A worker whose disk or mount fails tries again for so long before it ends.
    """

    lease_seconds: float = 60.0
    max_attempts: int = 3
    trouble_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.trouble_seconds >= 0:
            raise UsageError(f"A disk cannot be borne for {self.trouble_seconds} s.")
        if not self.lease_seconds > 0 or self.max_attempts < 1:
            raise UsageError(
                f"A lease of {self.lease_seconds} s with {self.max_attempts} attempts cannot work."
            )

    def as_arguments(self) -> list[str]:
        """Return the options of ``leconvert work`` that say the same."""
        return [
            f"--lease-seconds={self.lease_seconds}",
            f"--max-attempts={self.max_attempts}",
            f"--max-trouble-seconds={self.trouble_seconds}",
        ]


class Crew:
    """Makes workers of one process, each with an identity of its own."""

    def __init__(
        self,
        run: OpenedRun,
        leases: LeaseOptions,
        stop: threading.Event,
        scratch: ScratchOptions | None = None,
    ) -> None:
        self._run = run
        self._scratch = scratch or ScratchOptions()
        self._leases = leases
        self._stop = stop
        self._bell = Bell()

    @property
    def work_dir(self) -> Path:
        """The folder that all hosts share."""
        return self._run.work_dir.root

    @property
    def paths(self) -> RunPaths:
        """The run's own folders."""
        return self._run.paths

    def board(self) -> tuple[LeaseStore, Board, WorkerIdentity]:
        """Return a new worker's view of the batches."""
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(
            self._run.paths,
            self._run.manifest.run_id,
            identity,
            lease_seconds=self._leases.lease_seconds,
            max_attempts=self._leases.max_attempts,
            fs=self._run.fs,
        )
        return store, Board(store, self._run.manifest.num_batches), identity

    def look(self) -> Board:
        """Return a view of the batches as they are now."""
        _, board, _ = self.board()
        board.refresh()
        return board

    def check_all_done(self) -> None:
        """Raise unless every batch is done."""
        check_all_done(self._run, self.look())

    def bytes_left(self) -> int:
        """Return the source bytes of batches without a result."""
        left = dict(enumerate(self.source_bytes()))
        for batch_id in self.look().done_ids():
            del left[batch_id]
        return sum(left.values())

    def source_bytes(self) -> list[int]:
        """Return the source bytes of every batch."""
        return [batch.source_bytes for batch in self._run.batches]

    @contextmanager
    def inputs(self) -> Iterator[HubInputs | None]:
        """Provide one worker's access to a source that is not on this machine; else None."""
        manifest = self._run.manifest
        if manifest.outline is None:
            yield None
            return
        from leconvert.hub.inputs import HubInputs

        with hold_slot(self._scratch, manifest.run_id) as slot:
            yield HubInputs(Path(manifest.source), slot, self._scratch.limit_bytes)

    def make(self, on_bytes: Any, inputs: HubInputs | None = None) -> Worker:
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
            patience=Patience(self._leases.trouble_seconds),
            inputs=inputs,
        )


def work_in_threads(
    run: OpenedRun,
    count: int,
    leases: LeaseOptions,
    stop: threading.Event,
    progress: Progress,
    scratch: ScratchOptions | None = None,
) -> None:
    """Run workers as threads; the first error that is not a batch's own ends them all.

    None is left when this returns, or raises.
    """
    crew = Crew(run, leases, stop, scratch)
    errors: list[BaseException] = []

    def work(on_bytes: Callable[[int], None]) -> None:
        try:
            with crew.inputs() as inputs:
                crew.make(on_bytes, inputs).run()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)
            stop.set()

    with (
        progress.stage("work", crew.bytes_left(), "B") as stage,
        ThreadPoolExecutor(count, thread_name_prefix="worker") as pool,
    ):
        try:
            wait([pool.submit(work, stage.advance) for _ in range(count)])
        except BaseException:  # a KeyboardInterrupt, as in a notebook: they would work on unseen
            stop.set()
            raise
    if errors:  # the first says why; the others were only asked to stop
        raise errors[0]
    crew.check_all_done()


class EngineWatcher(Watcher):
    """Runs an engine's workers while the packer collects what they leave.

    A context: it starts workers, no more than there are batches, unless nothing is left to do; and
    whatever ends it, they are stopped.

    Args:
        crew: Knows the run's batches.
        engine: Starts the workers.
        count: How many.
        arguments: What they are told besides the work dir.
        progress: Where to report.

    Attributes:
        ended_at: ``time.monotonic()`` when the workers' part was over, None before.
    """

    pause_seconds = _WATCH_SECONDS

    def __init__(
        self,
        crew: Crew,
        engine: Engine,
        count: int,
        arguments: Sequence[str],
        progress: Progress,
    ) -> None:
        self._crew = crew
        self._engine = engine
        self._count = count
        self._arguments = [str(crew.work_dir), *arguments]
        self._paths = crew.paths
        self._progress = progress
        self._source_bytes = crew.source_bytes()
        self._before: set[int] = set()
        self._stage: Stage | None = None
        self._open = ExitStack()
        self.ended_at: float | None = None

    def __enter__(self) -> Self:
        board = self._crew.look()
        self._before = set(board.done_ids())
        left = sum(self._source_bytes) - sum(self._source_bytes[done] for done in self._before)
        with ExitStack() as begun:
            self._stage = begun.enter_context(self._progress.stage("work", left, "B"))
            begun.callback(self._engine.stop)
            if not board.all_settled():
                count = min(self._count, len(self._source_bytes))
                self._engine.start(count, self._arguments, self._paths)
            self._open = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def working(self) -> bool:
        """Say whether a worker runs."""
        return self._engine.running() > 0

    def saw_done(self, batch_ids: Collection[int]) -> None:
        """Move the progress bar."""
        fresh = set(batch_ids) - self._before
        if self._stage is not None:
            self._stage.advance(sum(self._source_bytes[batch_id] for batch_id in fresh))

    def saw_the_end(self) -> None:
        """Stop idle workers: they need not find out by themselves."""
        self._open.close()
        self.ended_at = time.monotonic()

    def remarks(self) -> Sequence[str]:
        """Return what became of workers that failed."""
        return self._engine.failures()
