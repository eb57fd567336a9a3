"""The packer's steps in order, and the state that each step leaves for a successor."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.dataset.files import dataset_with_meta
from leconvert.dataset.scan import (
    FileFacts,
    check_source_unchanged,
    check_tables_unchanged,
    files_along,
    source_changed,
)
from leconvert.run.appending import former_episodes, not_as_planned, what_is_lost
from leconvert.run.conversion import ProofOptions
from leconvert.run.leasing import Board, LeaseStore
from leconvert.run.packer.assembly import Assembly, Collector, check_all_done
from leconvert.run.packer.removal import (
    TreePair,
    facts_of_tree,
    first_change,
    kept_source,
    reason_to_keep,
    remove_compared,
    rest_of_removal,
    tree_facts,
)
from leconvert.run.proof import verify_pair
from leconvert.support.errors import (
    REPORT_IT,
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
from leconvert.support.text import first_few, json_record, shown
from leconvert.support.values import dataclass
from leconvert.workdir.former import former_dir, stands_as_left, write_former
from leconvert.workdir.fs import is_there, remove_tree
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.locks import LockWait, packer_lock, target_lock
from leconvert.workdir.records import Journal, PackStep, run_removed
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
    overlaid_meta,
    recover_swap,
    remove_left_trees,
    remove_new_tree,
    removed_old_dir,
    result_aside,
    staging_dir,
    superseded,
    swap_into_place,
)

# A look lists three folders, so pauses grow with its cost.
_LOOKS_TO_PAUSES = 20
_LONGEST_PAUSE_SECONDS = 10.0
_DIFFERENCES_SHOWN = 20
# Counts in the notes of a journal, which the report repeats.
_COUNTS = ("linked", "copied", "joined", "cloned_bytes", "copied_bytes")


@dataclass(frozen=True, slots=True)
class Packing:
    """A run whose packer's lock this process holds.

    Attributes:
        run: The run.
        journal: Its journal, under this packer's generation.
        options: The depth of the proof, and the datasets to replace and remove.
        lock_wait: How to wait for the target's lock.
        stop: Set from outside to end the work.
        progress: Receives the progress.
    """

    run: OpenedRun
    journal: Journal
    options: ProofOptions
    lock_wait: LockWait
    stop: threading.Event
    progress: Progress


@dataclass(frozen=True, slots=True)
class PackReport:
    """The report of the packer.

    Attributes:
        target: The result.
        kept: The folder of the replaced dataset, or None.
        linked: Number of files that were linked into the tree.
        copied: Number of shards that had to be copied, because the work dir is on another file
            system or on one without hard links.
        joined: Number of files that were joined from parts.
        cloned_bytes: Coded video bytes that the workers shared with the source.
        copied_bytes: Coded video bytes that the workers copied.
        verified: The depth of the check.
        removed: The replaced source, if it was removed on request.
        kept_because: The reason why it was kept although its removal was requested.
        verified_because: Why less was compared than requested; else None.
    """

    target: Path
    kept: Path | None
    linked: int
    copied: int
    joined: int
    cloned_bytes: int
    copied_bytes: int
    verified: str
    removed: Path | None = None
    kept_because: str | None = None
    verified_because: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


def as_dataset(run: OpenedRun, tree: Path) -> AbstractContextManager[Path]:
    """Enter the swapped tree as a dataset; after an overlay in place, it is only ``meta/``."""
    if run.manifest.is_overlay_in_place:
        return dataset_with_meta(Path(run.manifest.target), tree)
    return nullcontext(tree)


@dataclass(frozen=True, slots=True)
class Proof:
    """A comparison by this process.

    Attributes:
        depth: ``structure``, ``bytes``, or ``none`` for no comparison.
        outcome: Its outcome, for the journal's notes, where reports read it; None for ``none``. No
            process relies on these notes.
        trees: The tree and the source that it replaces, as they were when the comparison of their
            bytes began; None if bytes were not compared.
        because: Why less was compared than requested; else None.
    """

    depth: str = "none"
    outcome: dict[str, Any] | None = None
    trees: TreePair | None = None
    because: str | None = None


def prove_tree(
    packing: Packing,
    tree: Path,
    place: Path | None,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None,
) -> Proof:
    """Compare a finished tree with the run's sources.

    Args:
        packing: The run.
        tree: The tree; for an overlay in place, its ``meta/``.
        place: The folder of the only source now, if it is not the planned one; for an overlay in
            place, its ``meta/``.
        depth: ``structure`` or ``bytes``.
        clip_digests: Digests of its clips by the workers of this run; None to read the clips.

    Raises:
        VerificationError: They differ.
    """
    run, journal = packing.run, packing.journal
    roots = [place or Path(source.root) for source in run.manifest.sources]
    if place is None and run.manifest.is_overlay_in_place:
        roots = [run.manifest.exchanged]
    started = time.monotonic()
    deletable = depth == "bytes" and run.manifest.in_place
    trees = TreePair.now(tree, roots[0]) if deletable else None
    with ExitStack() as opened:
        report = verify_pair(
            opened.enter_context(as_dataset(run, tree)),
            [opened.enter_context(as_dataset(run, root)) for root in roots],
            depth=depth,
            progress=packing.progress,
            clip_digests=clip_digests,
            read_rows=run.manifest.kept_episodes,
            keeps_further=bool(run.manifest.kept_episodes),
            repairs=[source.repairs for source in run.manifest.sources],
            stop=packing.stop,
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
        lines = first_few(report.differences, _DIFFERENCES_SHOWN)
        with suppress(OSError, LeconvertError):  # the differences are raised in any case
            state = journal.read()
            noted = {**state.notes, "verification": {**outcome, "shown": lines}}
            journal.write(state.step, notes=noted)
        raise _differs(run, tree, roots, lines)
    return Proof(depth, outcome, trees)


def _differs(
    run: OpenedRun, tree: Path, roots: Sequence[Path], details: list[str]
) -> VerificationError:
    target = run.manifest.exchanged
    source = ", ".join(map(str, roots))
    given = [word for root in roots for word in ("--source", str(root))]
    verify = shlex.join(["leconvert", "verify", str(tree), *given, "--bytes"])
    if tree != target:
        return VerificationError(
            f"The new dataset does not match its source {source}. Nothing was replaced.",
            path=str(tree),
            details=details,
            next_step="The new dataset stays for inspection"
            + ("" if run.manifest.is_overlay_in_place else f": {verify}")
            + ". If a file of the source was overwritten during the conversion by a tool that "
            "keeps file times (`cp -p`, `rsync -t`), run the command again with --restart. "
            f"Otherwise: {REPORT_IT}.",
        )
    return does_not_match(target, roots, details, in_place=run.manifest.in_place)


def does_not_match(
    target: Path, sources: Sequence[Path], differences: Sequence[str], *, in_place: bool
) -> VerificationError:
    """Return the error for a result in its place that differs from its sources.

    Args:
        target: The result; for an overlay in place, its ``meta/``.
        sources: Their current folders.
        differences: The first differences.
        in_place: Whether the result replaced its only source, which is kept beside it.
    """
    # An overlay exchanged only `meta/`; only the whole dataset can be compared.
    result = target.parent if overlaid_meta(target.parent) == sources[0] else target
    named = [word for source in sources for word in ("--source", str(source))]
    verify = shlex.join(["leconvert", "verify", str(result), *named, "--bytes"])
    if in_place:
        moved, source = shlex.quote(f"{target}_damaged"), shlex.quote(str(sources[0]))
        helps = (
            f"`mv {shlex.quote(str(target))} {moved} && mv {source} {shlex.quote(str(target))}` "
            "puts the source back; then convert again."
        )
    else:
        helps = "--force-conversion converts again and keeps the present result beside the new one."
    return VerificationError(
        f"{target} no longer matches its source {', '.join(map(str, sources))}: one of them was "
        "changed after the conversion. Nothing was changed or removed now.",
        path=str(target),
        details=differences,
        next_step=f"{helps} `{verify}` lists every difference.",
    )


def check_source_as_compared(proof: Proof, tree: Path, source: Path) -> None:
    """Raise an error if the source of a result has changed since their comparison began.

    Args:
        proof: The comparison; if it did not cover all bytes, nothing is raised.
        tree: The current folder of the source.
        source: The folder where users find it, for the message.

    Raises:
        SourceChangedError: The source has changed.
    """
    name = None if proof.trees is None else first_change(proof.trees.source, tree)
    if name is not None:
        raise source_changed(source, [f"{shown(name)}: changed after the comparison"])


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
    options.check_source(is_outline=run.manifest.outline is not None)
    lock_wait = LockWait(options.max_wait_seconds, progress.say, stop.wait)
    with packer_lock(run.paths, wait=lock_wait, beats=True):
        journal = Journal(run.paths)
        journal.begin()
        with _while_ours(run, journal):
            yield Packing(run, journal, options, lock_wait, stop, progress)


@contextmanager
def _while_ours(run: OpenedRun, journal: Journal) -> Iterator[None]:
    """If a newer packer took over, or ended the run, say so instead of any other error."""
    try:
        yield
    except InterruptedRunError:
        raise
    except (LeconvertError, OSError) as error:
        newest = journal.generation
        with suppress(LeconvertError, OSError):
            newest = max(journal.generations(), default=0)
        if newest == journal.generation:
            raise
        tree = staging_dir(run.manifest.exchanged, run.paths.run_id, journal.generation)
        raise (superseded(tree) if newest else run_removed(run.paths)) from error


def _pack(packing: Packing, watcher: WorkerMonitor, *, wait: bool) -> PackReport:
    """Assemble the tree, prove it, and swap it into place."""
    run, journal, options = packing.run, packing.journal, packing.options
    manifest = run.manifest
    source, target, exchanged = Path(manifest.source), Path(manifest.target), manifest.exchanged
    appends = bool(manifest.kept_episodes)
    check_current(run.work_dir, run.paths, run.one_host)
    _check_not_converted(run)
    options.check_target(source, target, manifest.to, manifest.layout, appends=appends)
    former = _former_files(run)
    board = _board(run)
    if not wait or board.all_settled():
        check_all_done(run, board)
    check_tables_unchanged(run)
    tree = adopt_staging(exchanged, journal)
    with as_dataset(run, tree) as dataset:
        remove_left_trees(target, journal)
        collector, assembly = Collector(run), Assembly(run, dataset)
        try:
            _assemble(packing, assembly, collector, board, watcher)
        except (BatchesFailedError, IncompleteError, PlanMismatchError):
            # The tree has only links and tables: the next packer makes them again, or removes them.
            with suppress(LeconvertError, OSError):
                remove_new_tree(tree, run.paths.run_id)
            raise
        if appends and (lost := what_is_lost(tree, target, others=not stands_as_left(target))):
            raise not_as_planned(target, f"as its source is now, {lost}")
        proof = Proof()
        if options.depth != "none":
            proof = prove_tree(packing, tree, None, options.depth, collector.clip_digests)
    _check_stop(packing.stop)
    notes = {
        **assembly.counts,
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
        _check_not_discarded(run, tree)

    with target_lock(target, run.paths.run_id, wait=packing.lock_wait):
        _check_not_discarded(run, tree)
        _check_not_converted(run)
        old = options.old_place(
            source, target, manifest.to, manifest.layout, appends=appends, run_id=run.paths.run_id
        )
        if old == former_dir(target, run.paths.run_id):
            write_former(target, tree, run.paths.run_id, tree_facts(target), fs=journal.fs)
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
    with target_lock(target, run.paths.run_id, wait=packing.lock_wait):
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
    elif _is_whole(run, kept):
        there, place = shlex.quote(str(target)), shlex.quote(str(kept))
        helps = f"The source is kept. Put it back with `mv {place} {there}`, then convert again."
    elif kept == old_dir(target):
        helps = (
            f"{kept} is not the source that the run recorded. `leconvert check "
            f"{shlex.quote(str(kept))}` checks it. {back}"
        )
    else:
        helps = f"The removal of its source was interrupted: {kept} is the remaining part. {back}"
    return NoResultError(
        f"Run {run.paths.run_id} is finished, but {target} is not a {run.manifest.to} "
        "dataset any more.",
        path=str(target),
        next_step=helps,
    )


def _is_whole(run: OpenedRun, source: Path) -> bool:
    """Return whether a folder has all of the source, as the run recorded it."""
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
    check_no_other_swap(run.manifest.exchanged, run.paths.run_id)
    kept = kept_source(run.manifest.exchanged)
    where = "" if kept is None else f"; the source is kept as {kept}"
    raise TargetError(
        f"Another run converted {target} during this run{where}.",
        path=str(target),
        next_step="There is nothing left to convert. `leconvert clean "
        f"{shlex.quote(str(run.work_dir.root))} --give-up` removes the leftovers of this run.",
    )


def _check_not_discarded(run: OpenedRun, tree: Path) -> None:
    """Raise an error if the run was discarded, and remove its tree, for which nobody comes."""
    try:
        check_current(run.work_dir, run.paths, run.one_host)
    except PlanMismatchError:
        with suppress(LeconvertError, OSError):
            remove_new_tree(tree, run.paths.run_id)
        raise


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
        check_current(run.work_dir, run.paths, run.one_host)
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
        **{name: state.notes.get(name, 0) for name in _COUNTS},
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


def remove_source(packing: Packing, report: PackReport, proof: Proof) -> PackReport:
    """Remove the kept source of a finished conversion, unless something would be lost with it.

    The new dataset is already in place. This process has compared the source with the plan and the
    result with the source, byte by byte, and both are unchanged since then. The old tree first gets
    a name of leconvert's own, under which no other program looks for it, and is checked once more.
    After a crash before that, it is still where it was kept. After a later crash, the next process
    compares the rest again, and keeps what it cannot compare.

    Returns:
        The report, with the source kept or removed.

    Raises:
        SourceChangedError: The source has changed since it was planned or compared.
    """
    run = packing.run
    target = run.manifest.exchanged
    kept, doomed = kept_source(target), removed_old_dir(target)
    if kept is None:
        return replace(report, kept=None, removed=report.kept)
    try:
        check_source_unchanged(run, kept)
        check_source_as_compared(proof, kept, kept)
    except SourceChangedError:
        if kept != doomed:
            raise
        return replace(report, kept=kept, kept_because=rest_of_removal(doomed))
    trees = proof.trees
    if trees is None or first_change(trees.result, target) is not None:
        trees = prove_tree(packing, target, kept, "bytes").trees
    assert trees is not None, "a proof by bytes, in place"
    reason = _reason_to_keep(run, target, kept) or remove_compared(
        target, old_dir(target), trees, kept=kept
    )
    if reason is not None:
        return replace(report, kept=kept_source(target), kept_because=reason)
    return replace(report, kept=None, removed=old_dir(target))


def _reason_to_keep(run: OpenedRun, target: Path, kept: Path) -> str | None:
    with as_dataset(run, target) as result, as_dataset(run, kept) as source:
        return reason_to_keep(result, source, run.manifest.sources[0].repairs)


def swap_has_begun(run: OpenedRun) -> bool:
    """Return whether the run's swap has begun, so the source may no longer be at its place."""
    state = Journal(run.paths).read()
    if state.swap is not None or state.step is not PackStep.PACKING:
        return True
    # A packer that lost its lock may have noted the swap in a journal that is no longer read.
    return marked_by(run.manifest.exchanged) == run.paths.run_id


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedRunError(
            "The run was interrupted. Finished work stays finished.",
            next_step="Run the same command again to continue.",
        )


def _board(run: OpenedRun) -> Board:
    store = LeaseStore(run.paths, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    board.refresh()
    return board
