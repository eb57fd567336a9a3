"""The packer's steps in order, and what each leaves for a successor."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import (
    BatchesFailedError,
    IncompleteError,
    InterruptedRunError,
    LeconvertError,
    PlanMismatchError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.leasing import Board, LeaseStore
from leconvert.packer.assembly import Assembly
from leconvert.packer.collection import Collector, check_all_done
from leconvert.packer.removal import remove_source
from leconvert.packer.report import PackReport
from leconvert.packer.watcher import Watcher
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import (
    check_source_unchanged,
    check_tables_unchanged,
)
from leconvert.verify import verify_pair
from leconvert.workdir.durable import (
    remove_tree,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.locks import LockWait, packer_lock
from leconvert.workdir.opened import OpenedRun, check_current
from leconvert.workdir.swap import (
    SwapOutcome,
    SwapPlan,
    adopt_staging,
    recover_swap,
    swap_into_place,
)
from leconvert.workdir.target import check_target, codebase_version, old_dir
from leconvert.workdir.trouble import any_storage_errors

__all__ = ["PackOptions", "is_packed", "pack_run", "swap_has_begun"]

# A look lists three folders: pauses grow with what it costs.
_LOOKS_TO_PAUSES = 20
_LONGEST_PAUSE_SECONDS = 10.0
_DIFFERENCES_SHOWN = 20
_DEPTHS = ("structure", "bytes", "none")


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a run is packed.

    Attributes:
        verify: ``structure``, ``bytes`` or ``none``: what is proven before the swap. None proves
            the structure, or the bytes where the source is to be removed.
        force_conversion: Replace a v3.0 dataset at the target; it is kept as ``<target>_old``.
        delete_source: Remove the source that the result replaced, once the result is in place and
            nothing would be lost.
        max_wait_seconds: How long to wait for the lock of a packer that gives no sign of life.
    """

    verify: str | None = None
    force_conversion: bool = False
    delete_source: bool = False
    max_wait_seconds: float = 120.0

    @property
    def depth(self) -> str:
        """What is proven before the swap."""
        return self.verify or ("bytes" if self.delete_source else "structure")

    def check_source(self, *, is_outline: bool) -> None:
        """Refuse a proof that needs the whole source where only its outline is here.

        Raises:
            UsageError: ``verify`` is ``bytes``.
        """
        if self.verify == "bytes" and is_outline:
            raise UsageError(
                "--verify bytes needs the whole source on this machine, and it is on the Hub.",
                next_step="Use --verify structure, and `leconvert verify --bytes` with a download.",
            )

    def check_target(self, source: Path, target: Path) -> None:
        """Refuse a target that something stands in, before any work is done.

        Raises:
            UsageError: ``verify`` is no known depth, or too little to remove the source, or the
                source is not to be replaced at all.
            TargetError: Something is in the way; the message says what helps.
        """
        if self.depth not in _DEPTHS:
            raise UsageError(f"--verify takes {', '.join(_DEPTHS)}, not {self.verify!r}.")
        if self.delete_source and self.depth != "bytes":
            raise UsageError(
                f"--delete-source demands --verify bytes, not {self.depth}.",
                next_step="Leave --verify out: --delete-source then compares every byte.",
            )
        if self.delete_source and source != target:
            raise UsageError(
                f"--delete-source removes a source that was replaced; {source} is not touched when "
                f"the result goes to {target}.",
                next_step=f"Convert, prove it with `leconvert verify {target} --source {source} "
                "--bytes`, and remove the source by hand.",
            )
        check_target(target, self.old_place(source, target))

    def old_place(self, source: Path, target: Path) -> Path | None:
        """Return where the tree at the target goes, None where the target must be free.

        Raises:
            TargetError: Something is at the target that may not be replaced.
        """
        if source == target:
            return old_dir(target)
        if not os.path.lexists(target):
            return None
        version = codebase_version(target)
        if version is None or not version.startswith("v3"):
            raise TargetError(
                f"{target} exists and is no v3.0 dataset.",
                path=str(target),
                next_step="Choose another --output, or move it away.",
            )
        if not self.force_conversion:
            raise TargetError(
                f"{target} already holds a {version} dataset.",
                path=str(target),
                next_step="Nothing needs to be done if it is this one; --force-conversion replaces "
                f"it and keeps it as {old_dir(target)}.",
            )
        return old_dir(target)


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
        collector, assembly = Collector(run), Assembly(run, tree)
        try:
            _assemble(run, assembly, collector, board, watcher or Watcher(), stop, progress)
        except (BatchesFailedError, IncompleteError, PlanMismatchError):
            remove_tree(tree)  # only links and tables: whoever packs next makes them again
            raise
        verification: dict[str, Any] | None = None
        if options.depth != "none":
            verification = _verify(
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


def is_packed(run: OpenedRun) -> bool:
    """Tell whether the run's result is in place."""
    return Journal(run.paths, run.manifest.run_id).read().step in {
        PackStep.SWAPPED,
        PackStep.FINISHED,
    }


def swap_has_begun(run: OpenedRun) -> bool:
    """Tell whether the run's swap began, so that the source may no longer be at its place."""
    state = Journal(run.paths, run.manifest.run_id).read()
    return state.swap is not None or state.step is not PackStep.PACKING


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedRunError(
            "Packing was interrupted.", next_step="Run the same command again to go on."
        )


def _board(run: OpenedRun) -> Board:
    store = LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    board.refresh()
    return board


def _verify(
    run: OpenedRun,
    journal: Journal,
    tree: Path,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]],
    stop: threading.Event,
    progress: Progress,
) -> dict[str, Any]:
    """Return the outcome for the journal's notes, where a report finds it."""
    source = Path(run.manifest.source)
    started = time.monotonic()
    report = verify_pair(
        tree,
        source,
        depth=depth,
        progress=progress,
        clip_digests=clip_digests,
        repairs=run.manifest.repairs,
        proven_in=run.paths.proven_dir,
        stop=stop,
    )
    outcome: dict[str, Any] = {
        "depth": report.depth,
        "ok": report.ok,
        "files": report.files,
        "episodes": report.episodes,
        "rows": report.rows,
        "video_frames": report.video_frames,
        "seconds": round(time.monotonic() - started, 3),
        "differences": len(report.differences),
    }
    if not report.ok:
        shown = [str(difference) for difference in report.differences[:_DIFFERENCES_SHOWN]]
        if len(report.differences) > len(shown):
            shown.append(f"... and {len(report.differences) - len(shown)} more")
        with suppress(OSError, LeconvertError):  # what differs is raised in any case
            journal.write(PackStep.PACKING, notes={"verification": {**outcome, "shown": shown}})
        raise VerificationError(
            f"The new dataset does not match {source}; nothing was replaced.",
            path=str(tree),
            details=shown,
            next_step="The new tree stays for inspection: "
            f"leconvert verify {tree} --source {source} --bytes. Please report this; --restart "
            "converts anew.",
        )
    return outcome
