"""The packer's steps in order, and what each leaves for a successor."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from leconvert.errors import (
    BatchesFailedError,
    IncompleteError,
    InterruptedRunError,
    PlanMismatchError,
    StorageError,
)
from leconvert.leasing import Board, LeaseStore
from leconvert.packer.assembly import Assembly
from leconvert.packer.collection import Collector, check_all_done
from leconvert.packer.options import PackOptions
from leconvert.packer.proof import prove_tree
from leconvert.packer.removal import remove_source
from leconvert.packer.report import PackReport
from leconvert.packer.watcher import Watcher
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import (
    check_source_unchanged,
    check_tables_unchanged,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.locks import LockWait, packer_lock
from leconvert.workdir.opened import OpenedRun, check_current
from leconvert.workdir.removal import remove_left_trees, remove_new_tree
from leconvert.workdir.staging import adopt_staging
from leconvert.workdir.swap import (
    SwapOutcome,
    SwapPlan,
    recover_swap,
    swap_into_place,
)
from leconvert.workdir.trees import remove_tree
from leconvert.workdir.trouble import any_storage_errors

__all__ = ["pack_run", "swap_has_begun"]

# A look lists three folders: pauses grow with what it costs.
_LOOKS_TO_PAUSES = 20
_LONGEST_PAUSE_SECONDS = 10.0


@any_storage_errors()
def pack_run(
    run: OpenedRun,
    options: PackOptions | None = None,
    *,
    wait: bool = True,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> PackReport:
    """Assemble a run's result and swap it into place.

    Args:
        run: The run.
        options: What to prove, and whether a v3.0 target may be replaced.
        wait: Wait for workers until every batch is done; otherwise say what is missing.
        watcher: Knows whether anybody works; by default somebody always might.
        stop: Set it from another thread to stop between two steps, or two pieces of the
            verification.
        progress: Where to report.

    Raises:
        BusyError: Another process packs this run, or holds its lock and stays silent.
        IncompleteError: Batches are missing and ``wait`` is false, or their shards were lost.
        BatchesFailedError: Batches were set aside.
        PlanMismatchError: The run was given up for another one.
        SourceChangedError: The source changed since it was planned.
        VerificationError: The new tree does not match the source; it stays for inspection.
        TargetError: Something stands at the target.
    """
    options = options or PackOptions()
    stop = stop or threading.Event()
    manifest = run.manifest
    options.check_source(is_outline=manifest.outline is not None)
    source, target = Path(manifest.source), Path(manifest.target)
    silent = LockWait(options.max_wait_seconds, progress.say, stop.wait)
    with packer_lock(run.paths, manifest.run_id, wait=silent, beats=True):
        journal = Journal(run.paths, manifest.run_id, fs=run.fs)
        before = journal.begin()
        if before.step is PackStep.FINISHED or recover_swap(journal) is SwapOutcome.COMPLETED:
            return _finish(run, journal, options)
        options.check_target(source, target)
        board = _board(run)
        if not wait or board.all_settled():
            check_all_done(run, board)
        check_tables_unchanged(run)
        tree = adopt_staging(target, journal)
        if tree is None:
            raise AssertionError("a staging tree is made where there is none")
        remove_left_trees(target, manifest.run_id)
        collector, assembly = Collector(run), Assembly(run, tree)
        try:
            _assemble(run, assembly, collector, board, watcher or Watcher(), stop, progress)
        except (BatchesFailedError, IncompleteError, PlanMismatchError):
            # Only links and tables: whoever packs next makes them again, or removes them.
            with suppress(StorageError, OSError):
                remove_new_tree(tree)
            raise
        verification: dict[str, object] | None = None
        if options.depth != "none":
            verification = prove_tree(
                run, journal, tree, options.depth, collector.clip_digests, stop, progress
            )
        _check_stop(stop)
        old = options.old_place(source, target)
        notes = {
            "linked": assembly.linked,
            "copied": assembly.copied,
            "joined": assembly.joined,
            "cloned_bytes": collector.cloned_bytes,
            "copied_bytes": collector.copied_bytes,
            "verified": options.depth,
            "verification": verification,
        }
        journal.write(PackStep.PACKING, notes=notes)

        def check_once_more() -> None:
            check_source_unchanged(run)
            check_current(run)

        swap_into_place(SwapPlan(target, tree, old), journal, before_exchange=check_once_more)
        return _finish(run, journal, options)


def _assemble(
    run: OpenedRun,
    assembly: Assembly,
    collector: Collector,
    board: Board,
    watcher: Watcher,
    stop: threading.Event,
    progress: Progress,
) -> None:
    """Fill the tree: tables while workers still work, each file as soon as it is there."""
    extra_files = run.manifest.extra_files
    # Statistics that workers compute are there when the last of them is done.
    early = not board.all_settled() and not run.manifest.repairs.computed_stats
    if early:
        assembly.add_meta({})
    taken: set[int] = set()
    idle = False
    while True:
        fresh = [batch_id for batch_id in board.done_ids() if batch_id not in taken]
        for file, shards in collector.take(fresh):
            _check_stop(stop)
            assembly.add_file(file, shards)
        taken.update(fresh)
        watcher.saw_done(fresh)
        if board.all_settled() or idle:
            break
        idle = not watcher.working()  # what they did before they ended is seen by one more look
        started = time.monotonic()
        board.refresh()
        check_current(run)
        pause = min(_LONGEST_PAUSE_SECONDS, _LOOKS_TO_PAUSES * (time.monotonic() - started))
        # Other processes make files; nothing notifies of them.
        if not idle and stop.wait(max(watcher.pause_seconds, pause)):
            _check_stop(stop)
    watcher.saw_the_end()
    check_all_done(run, board, watcher.remarks())
    num_files = sum(layout.num_files for layout in run.manifest.streams)
    with progress.stage("pack", num_files + len(extra_files) + 1, "files") as stage:
        stage.advance(num_files)
        if not early:
            assembly.add_meta(collector.stats_files)
        stage.advance(1)
        for relative in extra_files:
            _check_stop(stop)
            assembly.add_copy(Path(run.manifest.source) / relative, relative)
            stage.advance(1)


def _finish(run: OpenedRun, journal: Journal, options: PackOptions) -> PackReport:
    """Remove what nobody needs any more, and say what was done; harmless to repeat."""
    state = journal.read()
    if run.paths.attempts_dir.exists():
        remove_tree(run.paths.attempts_dir, inside=run.paths.root)
    journal.write(PackStep.FINISHED)
    old = (state.swap or {}).get("old")
    report = PackReport(
        target=Path(run.manifest.target),
        kept=None if old is None else Path(old),
        linked=state.notes.get("linked", 0),
        copied=state.notes.get("copied", 0),
        joined=state.notes.get("joined", 0),
        cloned_bytes=state.notes.get("cloned_bytes", 0),
        copied_bytes=state.notes.get("copied_bytes", 0),
        verified=state.notes.get("verified", "none"),
    )
    if not options.delete_source:
        return report
    return remove_source(Path(run.manifest.source), report, run.manifest.repairs)


def swap_has_begun(run: OpenedRun) -> bool:
    """Tell whether the run's swap began, so that the source may no longer be at its place."""
    state = Journal(run.paths, run.manifest.run_id).read()
    return state.swap is not None or state.step is not PackStep.PACKING


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedRunError(
            "The run was interrupted; what is done stays done.",
            next_step="Run the same command again to go on.",
        )


def _board(run: OpenedRun) -> Board:
    store = LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    board.refresh()
    return board
