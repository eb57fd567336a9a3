"""The packer's steps in order, and the state that each step leaves for a successor."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from leconvert.dataset.scan import (
    FileFacts,
    check_source_unchanged,
    check_tables_unchanged,
    files_along,
)
from leconvert.run.appending import former_episodes, not_as_planned, what_is_lost
from leconvert.run.conversion import ProofOptions
from leconvert.run.leasing import Board, LeaseStore
from leconvert.run.packer.assembly import Assembly, Collector, check_all_done
from leconvert.run.packer.proof import (
    Packing,
    PackReport,
    Proof,
    as_dataset,
    check_source_as_compared,
    facts_of_tree,
    kept_source,
    prove_tree,
    remove_source,
    tree_facts,
)
from leconvert.support.errors import (
    BatchesFailedError,
    IncompleteError,
    InterruptedRunError,
    LeconvertError,
    PlanMismatchError,
    SourceChangedError,
    TargetError,
    VerificationError,
)
from leconvert.support.machine import Machine
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import any_storage_errors
from leconvert.workdir.former import former_dir, stands_as_left, write_former
from leconvert.workdir.fs import is_there, remove_tree
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import LockWait, packer_lock, target_lock
from leconvert.workdir.records import Journal, PackStep
from leconvert.workdir.run import OpenedRun, check_current
from leconvert.workdir.swap import (
    META,
    SwapOutcome,
    SwapPlan,
    adopt_staging,
    check_no_other_swap,
    is_converted,
    marked_by,
    old_dir,
    old_of_swap,
    recover_swap,
    remove_left_trees,
    remove_new_tree,
    result_aside,
    superseded,
    swap_into_place,
)

# A look lists three folders, so pauses grow with its cost.
_LOOKS_TO_PAUSES = 20
_LONGEST_PAUSE_SECONDS = 10.0


class WorkerMonitor:
    """Waits for workers that this process did not start: they may come at any time.

    Attributes:
        pause_seconds: The shortest pause between two looks at the work dir.
    """

    pause_seconds = 1.0

    def working(self) -> bool:
        """Return whether any worker runs, or may still come."""
        return True

    def saw_done(self, batch_ids: Collection[int]) -> None:
        """Receive the batches that were done since the last call."""

    def saw_the_end(self) -> None:
        """Take note that every batch is settled, or that no worker runs."""

    def remarks(self) -> Sequence[str]:
        """Return lines that say why no worker runs."""
        return ()


@any_storage_errors()
def pack_run(
    run: OpenedRun,
    options: ProofOptions = ProofOptions(),
    *,
    wait: bool = True,
    watcher: WorkerMonitor | None = None,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> PackReport:
    """Assemble a run's result and swap it into place, or end a run whose swap has begun.

    Args:
        run: The run.
        options: The depth of the proof, and the datasets to replace and remove.
        wait: Whether to wait for workers.
        watcher: Monitors the workers; by default, workers come from elsewhere.
        stop: Set from outside to end the work.
        progress: Receives the progress.
    """
    with _packing(run, options, stop or threading.Event(), progress) as packing:
        return _finish_swapped(packing) or _pack(packing, watcher or WorkerMonitor(), wait=wait)


@any_storage_errors()
def finish_run(
    run: OpenedRun,
    options: ProofOptions,
    *,
    check: Callable[[], None],
    stop: threading.Event,
    progress: Progress = NO_PROGRESS,
) -> PackReport | None:
    """End a run whose swap has begun, if its result is in place; else take the swap back.

    The result is compared with its source again, at least by structure: no process relies on
    another one's proof.

    Args:
        run: The run.
        options: The depth of the proof, and the datasets to replace and remove.
        check: Called when the result is known to be in place, before the comparison; its errors are
            raised.
        stop: Set from outside to end the work.
        progress: Receives the progress.

    Returns:
        The report; None if no result is in place, so the run continues normally.

    Raises:
        NoResultError: The run is over, but its result is gone.
    """
    with _packing(run, options, stop, progress) as packing:
        return _finish_swapped(packing, check)


class NoResultError(TargetError):
    """A run is over, but its result is no longer at its target."""


@contextmanager
def _packing(
    run: OpenedRun, options: ProofOptions, stop: threading.Event, progress: Progress
) -> Iterator[Packing]:
    """Hold the packer's lock of a run, under a new generation."""
    run_id = run.manifest.run_id
    options.check_source(is_outline=run.manifest.outline is not None)
    lock_wait = LockWait(options.max_wait_seconds, progress.say, stop.wait)
    with packer_lock(run.paths, run_id, wait=lock_wait, beats=True):
        journal = Journal(run.paths, run_id, fs=run.fs)
        journal.begin()
        yield Packing(run, journal, options, lock_wait, stop, progress)


def _pack(packing: Packing, watcher: WorkerMonitor, *, wait: bool) -> PackReport:
    """Assemble the tree, prove it, and swap it into place."""
    run, journal, options = packing.run, packing.journal, packing.options
    manifest = run.manifest
    source, target, exchanged = Path(manifest.source), Path(manifest.target), manifest.exchanged
    appends = bool(manifest.kept_episodes)
    _check_not_converted(run)
    options.check_target(source, target, manifest.to, manifest.layout, appends=appends)
    former = _former_files(run)
    board = _board(run)
    if not wait or board.all_settled():
        check_all_done(run, board)
    check_tables_unchanged(run)
    tree = adopt_staging(exchanged, journal)
    with _while_ours(tree, journal), as_dataset(run, tree) as dataset:
        remove_left_trees(target, journal)
        collector, assembly = Collector(run), Assembly(run, dataset)
        try:
            _assemble(packing, assembly, collector, board, watcher)
        except (BatchesFailedError, IncompleteError, PlanMismatchError):
            # The tree has only links and tables: the next packer makes them again, or removes them.
            with suppress(LeconvertError, OSError):
                remove_new_tree(tree, manifest.run_id)
            raise
        if appends and (lost := what_is_lost(tree, target, others=not stands_as_left(target))):
            raise not_as_planned(target, f"as its source is now, {lost}")
        proof = Proof()
        if options.depth != "none":
            proof = prove_tree(packing, tree, None, options.depth, collector.clip_digests)
    _check_stop(packing.stop)
    notes = {
        "linked": assembly.linked,
        "copied": assembly.copied,
        "joined": assembly.joined,
        "cloned_bytes": collector.cloned_bytes,
        "copied_bytes": collector.copied_bytes,
        "verified": options.depth,
        "verification": proof.outcome,
        "peak_memory_bytes": Machine().peak_memory(),
    }
    journal.write(PackStep.PACKING, notes=notes)

    def check_once_more() -> None:
        _check_not_converted(run)
        check_source_unchanged(run)
        check_current(run)

    with target_lock(target, manifest.run_id, wait=packing.lock_wait):
        _check_not_converted(run)
        old = options.old_place(
            source, target, manifest.to, manifest.layout, appends=appends, run_id=manifest.run_id
        )
        if old == former_dir(target, manifest.run_id):
            write_former(target, tree, manifest.run_id, tree_facts(target), fs=run.fs)
        swap_into_place(
            SwapPlan(exchanged, tree, old),
            journal,
            before_exchange=check_once_more,
            came_out=_planned_tree_of(run, former, proof),
        )
        return _finish(packing, proof)


def _finish_swapped(
    packing: Packing, check: Callable[[], None] = lambda: None
) -> PackReport | None:
    """End a run whose swap has begun; None if no part of its result is in place."""
    run, options = packing.run, packing.options
    source, target = Path(run.manifest.source), Path(run.manifest.target)
    if not swap_has_begun(run) or not target.parent.is_dir():
        return None
    with target_lock(target, run.manifest.run_id, wait=packing.lock_wait):
        if recover_swap(packing.journal, run.manifest.exchanged) is not SwapOutcome.COMPLETED:
            return None
        if not is_converted(target, run.manifest.to):
            raise _no_result(run)
        options.check_proof(source, target)
        check()
        return _finish(packing, _prove_again(packing))


def _prove_again(packing: Packing) -> Proof:
    """Compare a result that another process put in place with its source at its current place."""
    run = packing.run
    target = run.manifest.exchanged
    place: Path | None = None
    if run.manifest.in_place:
        place = kept_source(target)
        if place is None:
            return _checked_alone(packing, f"{old_dir(target)} does not exist")
    else:
        gone = [each.root for each in run.manifest.sources if not is_there(Path(each.root))]
        if gone:
            return _checked_alone(packing, f"{', '.join(gone)} does not exist")
    try:
        check_source_unchanged(run, place)
    except SourceChangedError as error:
        if place is not None and place != old_dir(target):
            # Its removal has begun, so the rest proves nothing.
            return _checked_alone(packing, "the removal of its source has begun")
        raise _result_is_of_another(run, error) from error
    depth = "bytes" if packing.options.depth == "bytes" else "structure"
    return prove_tree(packing, target, place, depth)


def _checked_alone(packing: Packing, because: str) -> Proof:
    """Check a result whose source is gone, as `leconvert check` does; this proves no depth.

    Raises:
        VerificationError: The result has errors.
    """
    from leconvert.dataset.check import check_dataset

    target = Path(packing.run.manifest.target)
    report = check_dataset(target, progress=packing.progress)
    errors = [finding.message for finding in report.findings if finding.severity == "error"]
    if errors:
        raise VerificationError(
            f"{target} is not complete, and its source does not exist any more.",
            path=str(target),
            details=errors,
            next_step=f"`leconvert check {shlex.quote(str(target))}` lists what is wrong with it.",
        )
    return Proof(because=f"{because}; the result was checked by itself instead")


def _result_is_of_another(run: OpenedRun, error: SourceChangedError) -> SourceChangedError:
    """Return the error for a source that changed after its result took its place."""
    place, target = error.path, run.manifest.exchanged
    if run.manifest.in_place:
        aside = result_aside(target, run.manifest.to)
        there, kept = shlex.quote(str(target)), shlex.quote(str(place))
        helps = (
            f"To convert the new state, put the source back with `mv {there} "
            f"{shlex.quote(str(aside))} && mv {kept} {there}`, and convert again. If the "
            "source has nothing new, `leconvert clean --of "
            f"{shlex.quote(str(run.manifest.target))} --old` compares both and removes the "
            "source."
        )
    else:
        helps = (
            "--force-conversion converts the new state and keeps the present result as "
            f"{old_dir(target)}."
        )
    return SourceChangedError(
        f"{place} changed after the conversion was planned. {target} contains the earlier state.",
        path=place,
        details=error.details,
        next_step=f"Nothing was removed. {helps}",
    )


def _no_result(run: OpenedRun) -> NoResultError:
    target = run.manifest.exchanged
    kept = kept_source(target)
    back = f"Put the result back at {target}, then run the command again."
    if not run.manifest.in_place or target.exists():
        helps = "`leconvert convert` converts again; `leconvert plan --restart` plans again."
    elif kept is None:
        helps = f"Its source was removed. {back}"
    elif kept == old_dir(target) or _is_whole(run, kept):
        there, place = shlex.quote(str(target)), shlex.quote(str(kept))
        helps = f"The source is kept. Put it back with `mv {place} {there}`, then convert again."
    else:
        helps = f"The removal of its source was interrupted: {kept} is the remaining part. {back}"
    return NoResultError(
        f"Run {run.manifest.run_id} is finished, but {target} is not a {run.manifest.to} "
        "dataset any more.",
        path=str(target),
        next_step=helps,
    )


def _is_whole(run: OpenedRun, source: Path) -> bool:
    """Return whether a folder from which a removal may have taken files has all of the source."""
    try:
        check_source_unchanged(run, source)
    except LeconvertError:
        return False
    return True


def _check_not_converted(run: OpenedRun) -> None:
    """Raise an error if another run has put its result in the source's place since the planning."""
    target = Path(run.manifest.target)
    was_converted = run.manifest.sources[0].codebase_version == run.manifest.to
    if not run.manifest.in_place or was_converted or not is_converted(target, run.manifest.to):
        return
    check_no_other_swap(run.manifest.exchanged, run.manifest.run_id)
    kept = kept_source(run.manifest.exchanged)
    where = "" if kept is None else f"; the source is kept as {kept}"
    raise TargetError(
        f"Another run converted {target} during this run{where}.",
        path=str(target),
        next_step="There is nothing left to convert. `leconvert clean "
        f"{shlex.quote(str(run.work_dir.root))} --give-up` removes the leftovers of this run.",
    )


def _planned_tree_of(
    run: OpenedRun, former: Mapping[str, FileFacts], proof: Proof
) -> Callable[[Path], None]:
    """Return a check that a tree from the target is the planned one.

    Args:
        former: The files of the result to which episodes are appended, as they were when the new
            tree got them.
        proof: This process's comparison of the new tree.
    """

    def look(tree: Path) -> None:
        if run.manifest.in_place:
            check_tables_unchanged(run, tree)
            check_source_as_compared(proof, tree, run.manifest.exchanged)
        if former and facts_of_tree(tree, gets_links=True) != former:
            raise not_as_planned(Path(run.manifest.target), "it was changed meanwhile")

    return look


def _former_files(run: OpenedRun) -> Mapping[str, FileFacts]:
    """Return the facts of the files to which episodes are appended; empty if none are."""
    target, planned = Path(run.manifest.target), run.manifest.kept_episodes
    if not planned:
        return {}
    files = facts_of_tree(target, gets_links=True)
    found = former_episodes(target)
    if found != planned:
        raise not_as_planned(target, f"it had {planned} episodes in the plan, but has {found} now")
    return files


@contextmanager
def _while_ours(tree: Path, journal: Journal) -> Iterator[None]:
    """If a newer packer has taken the tree, say so instead of any other error."""
    try:
        yield
    except InterruptedRunError:
        raise
    except (LeconvertError, OSError) as error:
        newest = journal.generation
        with suppress(LeconvertError, OSError):
            newest = journal.generations()[-1]
        if newest == journal.generation:
            raise
        raise superseded(tree) from error


def _assemble(
    packing: Packing,
    assembly: Assembly,
    collector: Collector,
    board: Board,
    watcher: WorkerMonitor,
) -> None:
    """Fill the tree: tables while workers still run, and each file when its shards are there."""
    run, stop = packing.run, packing.stop
    along = files_along(run.manifest.sources)
    if run.manifest.is_overlay_in_place:  # everything outside `meta/` stays where it is
        along = {path: source for path, source in along.items() if path.startswith(f"{META}/")}
    assembly.add_former()
    # Workers compute statistics, which are complete when the last worker is done.
    early = not board.all_settled() and not run.manifest.computed_stats
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
        idle = not watcher.working()  # one more look finds their last batches
        started = time.monotonic()
        board.refresh()
        check_current(run)
        pause = min(_LONGEST_PAUSE_SECONDS, _LOOKS_TO_PAUSES * (time.monotonic() - started))
        # Other processes make files, without a notification.
        if not idle and stop.wait(max(watcher.pause_seconds, pause)):
            _check_stop(stop)
    watcher.saw_the_end()
    check_all_done(run, board, watcher.remarks())
    num_files = sum(layout.num_files for layout in run.manifest.streams)
    with packing.progress.stage("pack", num_files + len(along) + 1, "files") as stage:
        stage.advance(num_files)
        if not early:
            assembly.add_meta(collector.stats_files)
        assembly.add_quantiles()
        stage.advance(1)
        for relative, source in along.items():
            _check_stop(stop)
            assembly.add_copy(source, relative)
            stage.advance(1)


def _finish(packing: Packing, proof: Proof) -> PackReport:
    """Remove files that are no longer needed, and return the report; harmless to repeat."""
    run, journal = packing.run, packing.journal
    state = journal.read()
    source, target = Path(run.manifest.source), Path(run.manifest.target)
    outcome = proof.outcome or state.notes.get("verification")
    journal.write(PackStep.FINISHED, notes={**state.notes, "verification": outcome})
    old = old_of_swap(target, state.swap)
    report = PackReport(
        target=target,
        kept=kept_source(run.manifest.exchanged) if source == target else old,
        linked=state.notes.get("linked", 0),
        copied=state.notes.get("copied", 0),
        joined=state.notes.get("joined", 0),
        cloned_bytes=state.notes.get("cloned_bytes", 0),
        copied_bytes=state.notes.get("copied_bytes", 0),
        verified=proof.depth,
        verified_because=proof.because,
    )
    if packing.options.delete_source:
        try:
            report = remove_source(packing, report, proof)
        except SourceChangedError as error:
            raise _result_is_of_another(run, error) from error
    # Last: many of these files are files of the result, and removing a name changes a file's facts.
    if run.paths.attempts_dir.exists():
        remove_tree(run.paths.attempts_dir, inside=run.paths.root)
    return report


def swap_has_begun(run: OpenedRun) -> bool:
    """Return whether the run's swap has begun, so the source may no longer be at its place."""
    state = Journal(run.paths, run.manifest.run_id).read()
    if state.swap is not None or state.step is not PackStep.PACKING:
        return True
    # A packer that lost its lock may have noted the swap in a journal that is no longer read.
    return marked_by(run.manifest.exchanged) == run.manifest.run_id


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedRunError(
            "The run was interrupted. Finished work stays finished.",
            next_step="Run the same command again to continue.",
        )


def _board(run: OpenedRun) -> Board:
    store = LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    board.refresh()
    return board
