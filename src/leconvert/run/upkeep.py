"""Cleans up after runs: removes leftovers, puts a kept source back, and releases batches.

**Removal.** Records and existing files decide what is removed, never only names or ages:

- A run that its work dir no longer names was given up by ``--restart``, or its planning never
  finished. It is removed, unless it was interrupted between the moves of its swap, because the
  dataset is then elsewhere.
- The run that the work dir names is removed when it is finished and its result is at the target.
- From a run under way, only these are removed: attempts whose batch another attempt has done, and
  new trees of packers that a later packer replaced.
- A new tree is removed only if it carries its run's mark: after an exchange, the source has its
  name.

The planner's lock is held throughout, and a run's packer lock while its files are removed. A lock
may be lost, so everything is checked again right before it is removed, and also whether a packer
has begun since.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from leconvert.dataset.files import dataset_with_meta
from leconvert.dataset.formats.v2 import INFO_PATH
from leconvert.dataset.formats.v3 import (
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    Dataset,
    has_files_of_v3,
    read_repairs,
)
from leconvert.dataset.scan import FileFacts
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.selection import EpisodeRanges
from leconvert.run.appending import what_is_lost
from leconvert.run.leasing import BatchState, LeaseStore, list_batches, read_done, release_failed
from leconvert.run.leasing.leases import Observed
from leconvert.run.leasing.state import Outcome, Wait, derive_state
from leconvert.run.packer import (
    TreePair,
    facts_of_tree,
    reason_to_keep,
    remove_compared,
    rest_of_removal,
    tree_facts,
)
from leconvert.run.proof import VerificationReport, check_stop, verify_pair
from leconvert.run.repairing import REPAIR_RUNS, compare_trees, read_changes, repairs_of
from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    LeconvertError,
    StorageError,
    TargetError,
    UnreadableSourceError,
    UsageError,
    VerificationError,
    WorkDirError,
)
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import any_storage_errors, storage_errors
from leconvert.support.text import count, first_few, json_record
from leconvert.support.values import dataclass
from leconvert.workdir.former import FormerState, former_states
from leconvert.workdir.fs import LOCAL, FileSystem, is_there, remove_tree, sync_dir
from leconvert.workdir.identity import WorkerIdentity, process_is_gone, process_is_running
from leconvert.workdir.locks import packer_lock, planner_lock, remove_planner_lock, target_lock
from leconvert.workdir.records import (
    Journal,
    JournalState,
    PackStep,
    RunPaths,
    WorkDir,
    beside,
    default_work_dir,
    target_lock_path,
)
from leconvert.workdir.removal import remove_leftovers, set_work_dir_aside
from leconvert.workdir.run import Manifest, OpenedRun, read_manifest
from leconvert.workdir.swap import (
    META,
    SwapPlan,
    codebase_version,
    exchange_trees,
    has_source_tables,
    is_being_removed,
    is_converted,
    is_listed,
    is_new_tree,
    kept_meta,
    mark_tree,
    marked_by,
    old_dir,
    old_of_swap,
    remove_mark,
    remove_new_tree,
    removed_dir,
    removed_old_dir,
    result_aside,
    run_of,
    staging_trees,
    take_back_undo,
    work_dir_beside,
)

_ATTEMPT = re.compile(r"([0-9]{4,})-")
_HALF_REMOVED = "its removal was interrupted"
_NO_MARK = "it does not have the mark of its run, so it may be a dataset"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A leftover of a run.

    Attributes:
        path: Its path.
        kind: ``run``, ``attempt``, ``new tree``, ``outline``, ``work dir``, ``kept source``,
            ``former state`` or ``record``.
        removable: Whether it may be removed.
        reason: Why, or why not, as a clause.
    """

    path: Path
    kind: str
    removable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CleanReport:
    """The findings and actions of a clean-up.

    Attributes:
        dry_run: Whether nothing was removed.
        removed: Leftovers that were removed, or would be.
        kept: Leftovers that stay, with the reasons.
    """

    dry_run: bool
    removed: tuple[Leftover, ...]
    kept: tuple[Leftover, ...]

    @classmethod
    def of(cls, rows: Iterable[Leftover], *, dry_run: bool) -> CleanReport:
        """Return a report that separates removed and kept leftovers, each in the given order."""
        listed = tuple(rows)
        removed = tuple(row for row in listed if row.removable)
        return cls(dry_run, removed, tuple(row for row in listed if not row.removable))

    def __add__(self, other: CleanReport) -> CleanReport:
        """Return the sum of two reports."""
        return CleanReport(self.dry_run, self.removed + other.removed, self.kept + other.kept)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


def clean_work_dir(
    root: Path, *, target: Path | None = None, give_up: bool = False, dry_run: bool = False
) -> CleanReport:
    """Remove leftovers of a work dir's runs.

    Args:
        root: The work dir.
        target: A dataset beside which new trees of unknown runs are reported too; None for none.
        give_up: Also remove a run under way that no worker holds.
        dry_run: Remove nothing.

    Returns:
        The report.

    Raises:
        BusyError: A batch is held, or a packer or planner began meanwhile.
        WorkDirError: The folder is no work dir, or is a fleet's.
    """
    work = WorkDir(root)
    folders = (work.runs_dir, work.outlines_dir)
    if not work.current.exists() and not any(folder.is_dir() for folder in folders):
        if target is None and _is_only_locked(work):
            if not dry_run:
                _remove_empty(work)
        elif target is None and not _is_empty(root):
            raise WorkDirError(
                f"{root} is not a work dir.",
                path=str(root),
                next_step="Give the folder that `leconvert plan` or `leconvert convert` printed, "
                "or --of DATASET.",
            )
        strange = () if target is None else _strange_trees(target, set())
        return CleanReport.of(strange, dry_run=dry_run)
    if work.is_fleet():
        raise WorkDirError(
            f"{root} is the work dir of a fleet. Each of its datasets has its own work dir.",
            path=str(root),
            next_step=f"`leconvert clean {shlex.quote(str(root / 'datasets'))}/NAME` removes "
            "the leftovers of one dataset. After the last worker has ended, nothing "
            "needs the whole folder any more.",
        )
    with ExitStack() as held:
        if not dry_run:
            held.enter_context(planner_lock(work))
        current = work.current_run_id()
        seen = {run_id: _generation(work, run_id) for run_id in work.list_runs()}
        found = list(_leftovers(work, give_up=give_up, locks=None if dry_run else held))
        found += _outlines(work, {row.path for row in found if row.removable})
        if target is not None:
            found += _strange_trees(target, set(work.list_runs()))
        removable = [row for row in found if row.removable]
        planned = [_planned(work.run(run_id)) for run_id in seen]
        targets = {target, *(Path(each.target) for each in planned if each is not None)}
        if not dry_run:
            # Leftovers that only records explain are removed before the records.
            for row in sorted(removable, key=lambda row: _ORDER.index(row.kind)):
                _remove(work, row, current, seen)
    if not dry_run:
        for place in targets:
            if (
                place is not None and target_lock_path(place).parent.exists()
            ):  # locks of a packer that died
                with suppress(BusyError, StorageError, OSError), target_lock(place, "-"):
                    pass
        for row in removable:
            _remove_unlocked(work, row)
        if work.root.is_dir():
            _remove_empty(work)
    return CleanReport.of(found, dry_run=dry_run)


_ORDER = ("new tree", "attempt", "work dir", "run", "outline")


def _leftovers(work: WorkDir, *, give_up: bool, locks: ExitStack | None) -> Iterator[Leftover]:
    current = work.current_run_id()
    runs = work.list_runs()
    for run_id in runs:
        run = work.run(run_id)
        try:
            if locks is not None:
                locks.enter_context(packer_lock(run))
            target, state = _target(run), Journal(run).read()
        except BusyError as busy:
            yield Leftover(run.root, "run", False, f"a packer works on it: {busy.message}")
            continue
        for tree in [] if target is None else _trees(target, run_id):
            if is_being_removed(tree):
                yield _judged(tree, _HALF_REMOVED)
        if run_id != current:
            why = "its work dir has another run now" if current else "its work dir has no run"
            yield from _given_up(run, target, state, why)
        elif state.step is PackStep.FINISHED:
            yield _finished(work, run, _planned(run), alone=len(runs) == 1)
        elif give_up:
            _check_nobody_holds(run)
            yield from _given_up(run, target, state, "it is discarded now")
        else:
            yield from _losers(run)
            yield from _replaced_trees(run_id, target, state)
            yield Leftover(run.root, "run", False, "the run is not finished; --give-up discards it")


def _outlines(work: WorkDir, going: Collection[Path]) -> Iterator[Leftover]:
    """Yield sparse snapshots of sources on the Hub that no remaining run needs."""
    if work.root in going or not work.outlines_dir.is_dir():
        return
    needed: set[Path] = set()
    for run_id in work.list_runs():
        run = work.run(run_id)
        if run.root not in going:
            try:
                needed.add(Path(read_manifest(run).source).parent)
            except WorkDirError:
                if run.manifest.exists():
                    return  # only its version of leconvert knows which it needs
    for outline in sorted(work.outlines_dir.iterdir()):
        if outline not in needed:
            yield Leftover(outline, "outline", True, "no run needs it")


def _target(run: RunPaths) -> Path | None:
    """Return the folder that a run's swap exchanges."""
    manifest = _planned(run)
    return None if manifest is None else manifest.exchanged


def _planned(run: RunPaths) -> Manifest | None:
    with suppress(WorkDirError):
        return read_manifest(run)
    return None  # planning never finished, so no worker ever ran


def _given_up(
    run: RunPaths, target: Path | None, state: JournalState, why: str
) -> Iterator[Leftover]:
    between = None if target is None else _between_moves(target, run.run_id, state)
    if between is not None:
        yield Leftover(run.root, "run", False, between)
        return
    trees = [] if target is None else _whole_trees(target, run.run_id)
    rows = [_judged(tree, f"of run {run.run_id}: {why}") for tree in trees]
    yield from rows
    if all(row.removable for row in rows):
        yield Leftover(run.root, "run", True, why)
    else:
        yield Leftover(
            run.root, "run", False, "a folder with the name of its new tree may contain a dataset"
        )


def _between_moves(target: Path, run_id: str, state: JournalState) -> str | None:
    """Return why the dataset may be elsewhere than at the target; None if it is not."""
    again = "run the command that made it again to finish it"
    with suppress(FileNotFoundError):
        if state.is_packed:
            return None
        if marked_by(target) == run_id:
            return f"it was interrupted when its result had taken the place of {target}; {again}"
        old = old_of_swap(target, state.swap)
        if old is not None and is_listed(old, LOCAL) > is_listed(target, LOCAL):
            return f"it was interrupted between two renames, and the dataset is {old}; {again}"
    return None


def _judged(tree: Path, why: str) -> Leftover:
    with suppress(FileNotFoundError):
        if not is_new_tree(tree, run_of(tree)):
            return Leftover(tree, "new tree", False, _NO_MARK)
    return Leftover(tree, "new tree", True, why)


def _trees(target: Path, run_id: str) -> list[Path]:
    with suppress(FileNotFoundError):
        return [path for owner, path in staging_trees(target) if owner == run_id]
    return []


def _whole_trees(target: Path, run_id: str) -> list[Path]:
    return [tree for tree in _trees(target, run_id) if not is_being_removed(tree)]


def _finished(work: WorkDir, run: RunPaths, manifest: Manifest | None, *, alone: bool) -> Leftover:
    if manifest is None:
        reason = f"the run is finished, but {run.manifest.name} cannot be read"
        return Leftover(run.root, "run", False, reason)
    target, to = Path(manifest.target), manifest.to
    if not is_converted(target, to):
        return Leftover(
            run.root, "run", False, f"the run is finished, but {target} is not a {to} dataset"
        )
    reason = f"the run is finished; its result is {target}"
    if alone and work.root == default_work_dir(target):
        return Leftover(work.root, "work dir", True, reason)
    return Leftover(run.root, "run", True, reason)


def _losers(run: RunPaths) -> Iterator[Leftover]:
    log = LeaseStore(run, WorkerIdentity.of_this_process()).log
    for batch_id in sorted(list_batches(run.done_dir)):
        folder = run.attempts_of(batch_id)
        try:
            attempts = sorted(path for path in folder.iterdir() if _ATTEMPT.match(path.name))
            winner = run.root / str(read_done(run, batch_id)["attempt"])
        except (FileNotFoundError, WorkDirError):
            continue  # already removed, or damaged: the packer opens the batch again
        if winner not in attempts:
            continue
        generations = log.read(batch_id).generations
        ended = {g.number for g in generations if g.outcome is not None or g is not generations[-1]}
        for attempt in attempts:
            found = _ATTEMPT.match(attempt.name)
            if attempt != winner and found and int(found[1]) in ended:
                reason = f"batch {batch_id} was done by {winner.name}"
                yield Leftover(attempt, "attempt", True, reason)


def _replaced_trees(run_id: str, target: Path | None, state: JournalState) -> Iterator[Leftover]:
    if target is None or _between_moves(target, run_id, state) is not None:
        return
    trees = _whole_trees(target, run_id)
    for tree in sorted(trees, key=lambda path: int(path.suffix[1:]))[:-1]:
        yield _judged(tree, "a later packer works in another folder")


def _strange_trees(target: Path, known: set[str]) -> Iterator[Leftover]:
    """Yield new trees of unknown runs; they stay."""
    with suppress(FileNotFoundError):
        for run_id, tree in staging_trees(target):
            if run_id not in known and is_being_removed(tree):
                yield _judged(tree, _HALF_REMOVED)
            elif run_id in REPAIR_RUNS:
                reason = (
                    "leftover of an interrupted repair; run the same repair command again to "
                    "remove it"
                )
                yield Leftover(tree, "new tree", False, reason)
            elif run_id not in known:
                reason = f"the records of run {run_id} are in another work dir or do not exist"
                yield Leftover(tree, "new tree", False, reason)


def _check_nobody_holds(run: RunPaths) -> None:
    store = LeaseStore(run, WorkerIdentity.of_this_process())
    held = []
    for batch_id, claim in sorted(_held(store).items()):
        holder = store.log.holder(batch_id, claim)
        if not process_is_gone(holder):
            held.append(f"batch {batch_id}: process {holder.get('pid')} on {holder.get('host')}")
    if held:
        raise BusyError(
            f"Workers hold {count(len(held), 'batch', 'batches')} of run {run.run_id}.",
            path=str(run.root),
            details=held,
            next_step="End these workers. `leconvert release --stuck` releases the batches of "
            "workers that ended.",
        )


def _held(store: LeaseStore) -> dict[int, int]:
    """Return the newest claim of each held batch, whether its holder is alive or not."""
    run, fs = store.run, store.fs
    settled = list_batches(run.done_dir, fs=fs) | list_batches(run.failed_dir, fs=fs)
    return {
        batch_id: latest.number
        for batch_id in list_batches(run.leases_dir, fs=fs) - settled
        if (latest := store.log.read(batch_id).latest) and latest.outcome is None
    }


def _generation(work: WorkDir, run_id: str) -> int:
    return max(Journal(work.run(run_id)).generations(), default=0)


def _ask_again(work: WorkDir, row: Leftover, seen: Mapping[str, int]) -> None:
    """Check again that no packer has begun. A lock may be lost, a generation's number is not.

    Raises:
        BusyError: Something has changed.
    """
    run_ids = {
        "new tree": [run_of(row.path)],
        "attempt": [row.path.parents[2].name],
        "run": [row.path.name],
    }.get(row.kind, list(seen) if row.kind == "work dir" else [])
    for run_id in run_ids:
        if run_id in seen and _generation(work, run_id) != seen[run_id]:
            raise _changed(f"A packer of run {run_id} started", row)
    if row.kind == "attempt":
        run = work.run(row.path.parents[2].name)
        winner = str(read_done(run, int(row.path.parent.name))["attempt"])
        if run.root / winner == row.path:
            raise _changed(f"{row.path} was published", row)


def _changed(what: str, row: Leftover) -> BusyError:
    return BusyError(
        f"{what} during this command.",
        path=str(row.path),
        next_step="Nothing was removed. Run the same command again.",
    )


def _remove(work: WorkDir, row: Leftover, current: str | None, seen: Mapping[str, int]) -> None:
    """Remove a leftover; if it holds locks, only make sure that it is not used again."""
    _ask_again(work, row, seen)
    if row.kind == "work dir":
        if work.current_run_id() != current:
            # Over NFS, a host that was frozen has lost its lock when it returns.
            raise BusyError(
                f"Somebody planned a new run in {work.root} during this command.",
                path=str(work.root),
                next_step="The new run was not touched. Run the same command again.",
            )
        remove_leftovers(row.path)
        set_work_dir_aside(row.path)
    elif row.kind == "run":
        # A current run that is partly removed could be neither resumed nor judged.
        if work.current_run_id() == row.path.name:
            with storage_errors(work.current):
                work.current.unlink()
            sync_dir(work.root)
    elif row.kind == "outline":
        remove_tree(row.path, inside=work.outlines_dir)
    elif row.kind == "attempt":
        remove_tree(row.path, inside=row.path.parents[1])
    else:
        remove_new_tree(row.path, run_of(row.path))


def _is_only_locked(work: WorkDir) -> bool:
    """Return whether only a dead planner's lock is left in the work dir."""
    lock = work.planner_lock.name
    names = [path.name for path in work.root.iterdir()] if work.root.is_dir() else []
    return bool(names) and all(name.removeprefix(".").startswith(lock) for name in names)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _remove_empty(work: WorkDir) -> None:
    """Remove empty folders of a work dir without a current run, and the planner's lock."""
    with suppress(BusyError, StorageError, OSError), planner_lock(work):
        if work.current_run_id() is not None:
            return
        for folder in (work.outlines_dir, work.runs_dir):
            with suppress(FileNotFoundError):
                folder.rmdir()
        remove_planner_lock(work)


def _remove_unlocked(work: WorkDir, row: Leftover) -> None:
    """Remove leftovers that contained held locks; see `leconvert.workdir.removal`."""
    if row.kind == "run":
        remove_tree(row.path, inside=work.runs_dir)
    elif row.kind == "work dir" and not remove_leftovers(row.path):
        raise StorageError(
            f"{row.path} could not be removed.",
            path=str(row.path),
            next_step="Check the permissions of the folder, then run the same command again.",
        )


# Removes datasets that runs put aside, after a proof that the dataset at the target holds
# everything in them. The steps are those of ``convert --delete-source``
# (`leconvert.run.packer.remove_compared`). The rest of an interrupted removal is compared like any
# other tree, and kept if it cannot be compared.


def clean_kept_source(
    target: Path, *, dry_run: bool = False, progress: Progress = NO_PROGRESS
) -> CleanReport:
    """Remove ``<target>_old`` and former states if the target provably holds everything in them.

    ``<target>_old`` is the source of a conversion in place, or a result that was replaced; after an
    overlay in place, it is the ``meta/`` that was replaced.

    The proof is made here: every coded packet and every row are compared, and every other file must
    be in the result with the same bytes. A former state must also match its record.
    """
    result = _exchanged(target)
    report = clean_former_states(target, dry_run=dry_run, progress=progress)
    old = old_dir(result)
    if report.removed + report.kept and not old.exists() and not removed_dir(old).is_dir():
        return report
    rows = _cleaned(target, result, old, "kept source", dry_run, progress)
    return report + CleanReport.of(rows, dry_run=dry_run)


def clean_former_states(
    target: Path, *, dry_run: bool = False, progress: Progress = NO_PROGRESS
) -> CleanReport:
    """Remove former states as `clean_kept_source` does; a name without a record is not enough."""
    result = _exchanged(target)
    found: list[Leftover] = []
    for state in former_states([result])[result]:
        rows = list(_cleaned(target, result, state.path, "former state", dry_run, progress, state))
        found += rows
        if all(row.removable for row in rows) and state.facts is not None:
            if not dry_run and not _remove_record(result, state):
                continue
            if not rows:
                reason = "the dataset of this record does not exist"
                found.append(Leftover(state.record, "record", True, reason))
    return CleanReport.of(found, dry_run=dry_run)


def _remove_record(target: Path, state: FormerState) -> bool:
    """Remove the record of a missing former state, unless its run may still put one there."""
    with suppress(BusyError), target_lock(target, "-"):
        if any(run_id == state.run_id for run_id, _ in staging_trees(target)) or any(
            each.is_there for each in former_states([target])[target] if each.path == state.path
        ):
            return False
        with storage_errors(state.record), suppress(FileNotFoundError):
            state.record.unlink()
        return True
    return False


def _cleaned(
    target: Path,
    result: Path,
    old: Path,
    kind: str,
    dry_run: bool,
    progress: Progress,
    state: FormerState | None = None,
) -> Iterator[Leftover]:
    """Remove one tree that was put aside, and the rest of its interrupted removal."""
    doomed, seen = removed_dir(old), False
    for place in (doomed, old):
        if place == doomed and not doomed.is_dir():
            continue
        if place == old and not old.exists() and (seen or state is not None):
            break  # the only tree had the other name
        seen = True
        before = TreePair.now(result, place)
        doubt = None if state is None else _doubt_of_record(place, state)
        doubt = doubt or _doubt(target, result, place, progress)
        if doubt is None and not dry_run:
            try:
                with target_lock(target, "-"):
                    doubt = remove_compared(result, old, before, kept=place)
            except BusyError:
                doubt = f"another process, which may need it, puts a dataset in place at {target}"
        if doubt is not None:
            if place == doomed and doomed.exists():
                doubt = rest_of_removal(doomed)
            yield Leftover(place, kind, False, doubt)
            continue
        proven = f"every packet, row and other file of it is in {target}"
        yield Leftover(place, kind, True, proven)


def _doubt_of_record(place: Path, state: FormerState) -> str | None:
    if state.facts is None:
        return "no record says which run kept it"
    try:
        is_it = not place.is_symlink() and tree_facts(place) == state.facts
    except (LeconvertError, OSError) as error:
        return f"it cannot be compared with its record: {error}"
    return None if is_it else "it was changed after the run kept it"


def _doubt(root: Path, result: Path, old: Path, progress: Progress) -> str | None:
    if old.is_symlink() or not old.is_dir():
        return "it does not exist"
    with _as_dataset(root, result, result) as target, _as_dataset(root, result, old) as source:
        if is_converted(source) and is_converted(target):
            return _former_doubt(target, source, None, progress)
        versions = codebase_version(target), codebase_version(source)
        if versions != ("v3.0", "v2.1"):
            found = f"the two are {versions[1]} and {versions[0]}"
            return f"only a v2.1 source and a v3.0 result can be compared in this way; {found}"
        try:
            report = verify_pair(target, source, depth="bytes", progress=progress)
        except (LeconvertError, OSError) as error:
            return f"the two could not be compared: {error}"
        if not report.ok:
            return f"the result differs from it: {report.differences[0]}"
        return reason_to_keep(target, source, read_repairs(target))


# Files of a former result about itself and its repairs, and values computed from its episodes.
_OF_FORMER_EPISODES = frozenset({REPAIRS_PATH, STATS_PATH})
_OF_FORMER_TASKS = frozenset({(TASKS_PATH, "tasks"), (INFO_PATH, "total_tasks")})


def _former_doubt(
    new: Path,
    old: Path,
    stop: threading.Event | None,
    progress: Progress,
    *,
    others: bool = True,
) -> str | None:
    """Return which part of an old v3.0 dataset may be missing in a new one; None if nothing is.

    The new one may be the old one with appended episodes. Then, without ``others``, files of no
    episode and other keys of info.json are not compared. Or the new one is a conversion of a source
    that has grown: it begins with the same episodes, in files with other limits. Then the old one
    is compared as if it were made from these episodes. Its statistics of all episodes differ, and
    its table of tasks may be shorter.
    """
    if what_is_lost(new, old, others=others) is None:
        return None
    try:
        before, after = Dataset(old), Dataset(new)
        kept, now = len(before.episodes), len(after.episodes)
        if kept > now:
            return f"it has {kept:,} episodes, but the result has {now:,}"
        if list(before.task_table) != list(after.task_table)[: len(before.task_table)]:
            return "its tasks differ"
        selected = None if kept == now else EpisodeRanges(((0, kept - 1),))
        made = Repairs(selected_episodes=selected)
        report = verify_pair(old, new, depth="bytes", repairs=made, progress=progress, stop=stop)
        frames = int(before.episodes.length.sum())
    except InterruptedRunError:
        raise
    except (LeconvertError, OSError) as error:
        return f"the two could not be compared: {error}"
    found = [
        each
        for each in report.differences
        if kept == now
        or not (each.path in _OF_FORMER_EPISODES or (each.path, each.what) in _OF_FORMER_TASKS)
    ]
    if found:
        return f"it differs from the result: {found[0]}"
    if (report.episodes, report.rows) != (kept, frames):
        return f"only {report.episodes:,} of its {kept:,} episodes could be compared"
    return reason_to_keep(new, old, NO_REPAIRS)


# Puts a kept source back in its place, and the result beside it.
#
# Only the content of the places decides (``DATASET``, the dataset that was put aside last, and
# ``DATASET_v30`` or ``DATASET_v21``), so the same command finishes after a crash. The dataset that
# was put aside last is ``DATASET_old`` or the newest former state. In every case, both trees are
# compared to the byte before one of them is moved. Versions do not tell the source from the result,
# since a conversion can go either way. The source is the dataset that was put aside.
#
# Before anything moves, the result gets a mark. The mark identifies it until everything is done,
# and is then removed. (The source may be a folder that only its owner may change.)


_DIFFERENCES_SHOWN = 20
_UNDO_RUN = "undo"


class Found(Enum):
    """The content of one of the places of an undo."""

    NOTHING = "does not exist"
    V2 = "a v2.x dataset"
    V3 = "a v3.0 dataset"
    OTHER = "something else"


_ASIDE_OF = {Found.V2: "v2.1", Found.V3: "v3.0"}
"""The version of the result of a conversion in place; no conversion writes v2.0."""


@dataclass(frozen=True, slots=True)
class UndoReport:
    """The report of an undo.

    Attributes:
        dataset: The folder of the source, as before the conversion.
        result: The folder that keeps the converted dataset.
        dry_run: Whether nothing was moved.
        was_undone: Whether the undo was complete before, so nothing was compared.
        episodes: Number of episodes compared.
        rows: Number of their rows.
        camera_frames: Number of their coded frames, over all cameras.
    """

    dataset: Path
    result: Path
    dry_run: bool
    was_undone: bool = False
    episodes: int = 0
    rows: int = 0
    camera_frames: int = 0

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


@any_storage_errors()
def undo_conversion(
    target: Path,
    *,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
    fs: FileSystem = LOCAL,
) -> UndoReport:
    """Put the dataset that was put aside last back at the target; keep the result beside it.

    The dataset put aside is ``<target>_old``, or the newest former state
    (`leconvert.workdir.former`). The result goes to ``<target>_v30``, or to ``<target>_v21`` if it
    is v2.1. After an overlay in place, only ``meta/`` is put back, and the replaced one kept in
    this way. After a repair in place, the repaired dataset goes to ``<target>_repaired``.

    Both are compared first, every coded packet and every row, in this process. Nothing is deleted.

    Returns:
        The report.

    Raises:
        BusyError: A run of the dataset is not finished.
        TargetError: There is nothing to undo, or the datasets have changed meanwhile.
        VerificationError: The two do not hold the same.
    """
    root = target
    if _places_of_repair(target) is None:
        target = _exchanged(target)
    places = _places_of_undo(target)
    if places.result != places.aside and not places.is_repair:
        _check_no_run_under_way(root)
    with nullcontext() if dry_run else target_lock(root, "-"):
        places = _places_of_undo(target)
        source, result, aside = places.source, places.result, places.aside
        report = UndoReport(root, aside, dry_run)
        if source == target and result == aside:
            if not dry_run:
                remove_mark(result, _UNDO_RUN, fs=fs)
            return replace(report, was_undone=True)
        try:
            with ExitStack() as opened:
                datasets = [
                    opened.enter_context(_as_dataset(root, target, place))
                    for place in (source, result)
                ]
                before, compared = _compared(places, datasets, stop, progress)
        except InterruptedRunError:
            raise
        except (LeconvertError, OSError):
            if not dry_run:  # an incomplete dataset does not stay in the target's place
                take_back_undo(target, kept=places.kept, aside=aside, is_source=_is_unmarked, fs=fs)
                remove_mark(target, _UNDO_RUN, fs=fs)
            raise
        if not dry_run:

            def check(tree: Path) -> None:
                if facts_of_tree(tree) != before:
                    raise _changed_meanwhile(result)

            mark_tree(result, _UNDO_RUN, fs=fs)
            try:
                exchange_trees(
                    SwapPlan(target, places.kept, aside),
                    is_new=_is_unmarked,
                    came_out=check,
                    run_id=_UNDO_RUN,
                    fs=fs,
                )
            except (LeconvertError, OSError):
                with suppress(LeconvertError, OSError):
                    # the mark stays only if nothing has moved
                    remove_mark(target, _UNDO_RUN, fs=fs)
                raise
            remove_mark(aside, _UNDO_RUN, fs=fs)
            for state in former_states([target], fs=fs)[target]:
                if state.path == places.kept:  # its record is wrong now
                    with storage_errors(state.record):
                        fs.remove_file(state.record)
    return replace(
        report,
        episodes=compared.episodes,
        rows=compared.rows,
        camera_frames=compared.video_frames,
    )


def _places_of_repair(target: Path) -> _UndoPlaces | None:
    """Return the places of a repaired dataset and its source; None if there is no such pair.

    The repaired dataset has one more repair than the other. If it is already aside, the source is
    at the target and nothing is left to do.
    """
    places = (target, old_dir(target), beside(target, "{}_repaired"))
    times = [repairs_of(place) for place in places]
    for source, result, third in ((1, 0, 2), (0, 1, 2), (1, 2, 0), (0, 2, 1)):
        first, second = times[source], times[result]
        if first is None or second is None or times[third] is not None:
            continue
        if second == first + 1:
            return _UndoPlaces(places[source], places[result], *places[1:], is_repair=True)
    return None


def _exchanged(target: Path) -> Path:
    """Return the folder that an undo exchanges: ``meta/`` after an overlay, else the dataset."""
    kept = kept_meta(target)
    is_overlay = old_dir(target / META).name in kept or (kept and not old_dir(target).exists())
    return target / META if is_overlay else target


def _as_dataset(root: Path, exchanged: Path, place: Path) -> AbstractContextManager[Path]:
    """Enter one of the places of an undo as a dataset."""
    return nullcontext(place) if exchanged == root else dataset_with_meta(root, place)


def _found(place: Path) -> Found:
    """Return the kind of a dataset, or of a dataset's ``meta/``."""
    if not is_there(place):
        return Found.NOTHING
    is_v3 = is_converted(place)
    if not is_v3 and (has_source_tables(place) or (place / "episodes.jsonl").is_file()):
        return Found.V2
    is_v3 = is_v3 or (place / "episodes").is_dir() or has_files_of_v3(place)
    return Found.V3 if is_v3 else Found.OTHER


def _is_unmarked(tree: Path) -> bool:
    """Return whether no undo has marked this tree as the result."""
    return marked_by(tree) != _UNDO_RUN


@dataclass(frozen=True, slots=True)
class _UndoPlaces:
    """The current folders of source and result, the kept source's folder, and the result's new one.

    The result of a repair is compared by the record of the repair's changes.
    """

    source: Path
    result: Path
    kept: Path
    aside: Path
    is_repair: bool = False


def _places_of_undo(target: Path) -> _UndoPlaces:
    """Return the folders of source and result; their final ones if everything is done."""
    if (repaired := _places_of_repair(target)) is not None:
        return repaired
    old, found = newest_kept(target), {}
    asides = {kind: result_aside(target, version) for kind, version in _ASIDE_OF.items()}
    for place in (target, old, *asides.values()):
        found[place] = _found(place)
    marked = [place for place in found if not _is_unmarked(place)]
    datasets = {place for place, kind in found.items() if kind in asides}
    for result in [*marked, target, *asides.values()]:
        if result not in datasets:
            continue
        aside = asides[found[result]]
        source = target if result == old or (result != target and target in datasets) else old
        third = ({target, old, aside} - {source, result}).pop()
        is_done = (source, result) == (target, aside)
        if is_done and result in marked and source in datasets:
            return _UndoPlaces(source, result, old, aside)  # `old` is from an earlier run
        if source not in datasets or found[third] is not Found.NOTHING:
            continue
        said_so = found[source] is not found[result] or result in marked
        if is_done and not said_so and not _holds_same(source, result):
            continue
        return _UndoPlaces(source, result, old, aside)
    raise _nothing_to_undo(target, old, found)


def newest_kept(target: Path) -> Path:
    """Return the dataset that was put aside last: the newest former state or ``<target>_old``."""
    target = _exchanged(target)
    old = old_dir(target)
    for state in former_states([target])[target]:
        if state.facts is not None and state.is_there:
            # There is only one ``_old``, and it may have got its name after the former state.
            is_older = not is_there(old) or old.lstat().st_ino == state.old_inode
            return state.path if is_older else old
    return old


def _holds_same(source: Path, result: Path) -> bool:
    """Return whether a dataset is the result of converting another of its own version."""
    try:
        return _of_former(source, result) is not None or verify_pair(result, source).ok
    except (LeconvertError, OSError):
        return False


def _nothing_to_undo(target: Path, old: Path, found: Mapping[Path, Found]) -> TargetError:
    at_target = found[target]
    datasets = {place for place, kind in found.items() if kind in _ASIDE_OF}
    there = f"{target} is not the result of a conversion in place"
    helps = (
        "Nothing was moved. Look at these folders, then give the right one the name "
        f"{shlex.quote(str(target))} with `mv`."
    )
    details = [f"{place}: {kind.value}" for place, kind in found.items()]
    if {target, old} <= datasets:
        aside = result_aside(target, _ASIDE_OF[at_target])
        there = f"{aside} exists already, but the result would be moved there"
        helps = "Rename that folder, then run the same command again."
    elif at_target is found[old] is Found.NOTHING:
        there, helps = f"{target} does not exist", "Give the dataset that was converted in place."
    elif target in datasets and found[old] is Found.NOTHING:
        there = f"{target} is {at_target.value}, but no kept source {old} exists"
        helps = "Give a dataset that was converted in place. A conversion with --output leaves its "
        helps += "source where it is."
        if removed_old_dir(target).exists():
            there = f"{old} cannot be put back: its removal has begun"
            helps = f"The remaining part is {removed_old_dir(target)}."
    return TargetError(f"{there}.", path=str(target), details=details, next_step=helps)


def _check_no_run_under_way(target: Path) -> None:
    work = WorkDir(work_dir_beside(target))
    run_id = work.current_run_id()
    if run_id is None or Journal(work.run(run_id)).read().step is PackStep.FINISHED:
        return
    raise BusyError(
        f"Run {run_id} of {target} is not finished.",
        path=str(work.root),
        next_step=f"`leconvert status {shlex.quote(str(work.root))}` shows its progress. "
        f"`leconvert clean {shlex.quote(str(work.root))} --give-up` discards the run.",
    )


def _compared(
    places: _UndoPlaces,
    datasets: Sequence[Path],
    stop: threading.Event | None,
    progress: Progress,
) -> tuple[Mapping[str, FileFacts], VerificationReport]:
    """Return the facts of the result's files, and the report of the comparison.

    Raises:
        VerificationError: The two do not hold the same.
        TargetError: A file was changed while they were compared.
    """
    source, result = places.source, places.result
    before = TreePair.now(result, source)
    if not places.is_repair:
        report = _of_former(*datasets, stop=stop, progress=progress) or verify_pair(
            datasets[1], datasets[0], depth="bytes", stop=stop, progress=progress
        )
        check_stop(stop)
        differences = list(map(str, report.differences))
    elif (changes := read_changes(result)) is not None:
        differences = compare_trees(source, result, changes, stop=stop, progress=progress)
        report = _all_of(Dataset(result))  # a table of the source may be derived
    else:
        raise _changed_meanwhile(result)
    if differences:
        raise VerificationError(
            f"{source} no longer matches its result {result}: one of them was changed or damaged.",
            path=str(source),
            details=first_few(differences, _DIFFERENCES_SHOWN),
            next_step="Nothing was moved. If you want the source back all the same, rename "
            "both folders with `mv`.",
        )
    if before.changed(result, source):
        raise _changed_meanwhile(result)
    return before.result, report


def _all_of(dataset: Dataset) -> VerificationReport:
    rows, cameras = int(dataset.episodes.length.sum()), len(dataset.streams) - 1
    files = sum(len(dataset.slices(stream).paths) for stream in dataset.streams)
    return VerificationReport("bytes", (), files, len(dataset.episodes), rows * cameras, rows)


def _of_former(
    source: Path,
    result: Path,
    *,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> VerificationReport | None:
    """Return the report for a result whose source has grown; None if it is no such pair.

    The dataset that was put aside is then an earlier result, with fewer episodes.
    """
    if not is_converted(source) or not is_converted(result):
        return None
    dataset = Dataset(source)
    try:
        if len(dataset.episodes) >= len(Dataset(result).episodes):
            return None
    except UnreadableSourceError:  # a later comparison reports the error
        return None
    doubt = _former_doubt(result, source, stop, progress, others=False)
    return _all_of(dataset) if doubt is None else None


def _changed_meanwhile(result: Path) -> TargetError:
    return TargetError(
        f"{result} or its source was changed during the comparison.",
        path=str(result),
        next_step="Nothing was moved. Run the same command again when no other program writes "
        "to them.",
    )


# Releases batches: failed ones get another attempt, stuck ones another worker.
#
# No result can be changed or lost here. The next claim may take a released batch, its former holder
# may still publish, and the first publisher wins. Only a holder's work can be lost. So a holder on
# this host is never overruled (end the process instead). A holder on another host is overruled only
# if it gives no sign of life for a whole lease, or by force.


_LOOKS_PER_LEASE = 20


class Holder(Enum):
    """The known facts about the holder of a batch."""

    GONE = "has ended, or gave no sign of life for --lease-seconds"
    HERE = "runs on this host"
    BEATS = "gave a sign of life during this command"
    UNWATCHED = "has not been watched for long enough"


class Verdict(StrEnum):
    """The outcome for a batch to be released."""

    RELEASED = "released"
    NOTHING = "nothing to do"
    REFUSED = "refused"
    WATCH = "watch"
    """Not decided yet; never in a report."""


@dataclass(frozen=True, slots=True)
class Released:
    """One batch of a release.

    Attributes:
        batch_id: The batch.
        verdict: The outcome.
        state: Its state before.
        reason: Why, as a clause.
        host: The host that held it or set it aside, or None.
        pid: The process there, or None.
        generation: Its newest claim when it was judged, or 0.
    """

    batch_id: int
    verdict: Verdict
    state: BatchState
    reason: str
    host: str | None = None
    pid: int | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """The report of a release.

    Attributes:
        run_id: The run.
        dry_run: Whether nothing was changed.
        batches: The requested batches, ascending.
    """

    run_id: str
    dry_run: bool
    batches: tuple[Released, ...]

    @property
    def refused(self) -> tuple[Released, ...]:
        """Batches that a living worker holds."""
        return tuple(row for row in self.batches if row.verdict is Verdict.REFUSED)

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


def judge(state: BatchState, holder: Holder | None, *, force: bool) -> tuple[Verdict, str]:
    """Return the decision about one batch and its reason; a pure table."""
    if state is BatchState.DONE:
        return Verdict.NOTHING, "it is done"
    if state is BatchState.PENDING:
        return Verdict.NOTHING, "it already waits for a worker"
    if state is BatchState.FAILED:
        return Verdict.RELEASED, "it failed; its attempts now count from 0 again"
    match holder:
        case Holder.GONE:
            return Verdict.RELEASED, f"its worker {Holder.GONE.value}"
        case Holder.HERE:
            return Verdict.REFUSED, f"its worker {Holder.HERE.value}: end that process"
        case Holder.BEATS | Holder.UNWATCHED if force:
            return Verdict.RELEASED, "by force; the work of its worker may be lost"
        case Holder.BEATS:
            return Verdict.REFUSED, f"its worker {Holder.BEATS.value}; --force takes it anyway"
        case _:
            return Verdict.WATCH, f"its worker {Holder.UNWATCHED.value}"


def release_batches(
    run: OpenedRun,
    batches: Collection[int] = (),
    *,
    failed: bool = False,
    stuck: bool = False,
    force: bool = False,
    dry_run: bool = False,
    lease_seconds: float = 60.0,
    on_watch: Callable[[int], None] = lambda _count: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> ReleaseReport:
    """Release batches for the next worker that looks for work.

    Args:
        run: The run.
        batches: Numbers of batches to release.
        failed: Also release all failed batches.
        stuck: Also release batches whose holder gives no sign of life.
        force: Overrule holders on other hosts.
        dry_run: Change nothing.
        lease_seconds: How long a holder must be silent.
        on_watch: Called with the number of batches before they are watched.
        clock: A monotonic clock in seconds.
        pause: Waits for some seconds.

    Returns:
        The report.

    Raises:
        UsageError: No batch is named, or there is no such batch.
    """
    if not batches and not failed and not stuck:
        raise UsageError("No batch is given.", next_step="Give batch numbers, --failed or --stuck.")
    unknown = sorted(b for b in batches if not 0 <= b < run.manifest.num_batches)
    if unknown:
        raise UsageError(
            f"There is no batch {unknown[0]}. The run has "
            f"{count(run.manifest.num_batches, 'batch', 'batches')}, counted from 0.",
            path=str(run.work_dir.root),
        )
    if not lease_seconds > 0:
        raise UsageError(f"lease_seconds must be above 0, not {lease_seconds}.")
    identity = WorkerIdentity.of_this_process()
    # The store only looks; it writes ends and resets here, never a claim.
    store = LeaseStore(run.paths, identity, lease_seconds=lease_seconds, clock=clock)
    beats: dict[int, tuple[int, bytes]] = {}
    wanted = set(batches)
    if failed:
        done = list_batches(store.run.done_dir, fs=store.fs)
        wanted |= list_batches(store.run.failed_dir, fs=store.fs) - done
    judged = _judge_all(store, {*wanted, *(_held(store) if stuck else ())}, beats, force=force)
    watched = {row.batch_id for row in judged.values() if row.verdict is Verdict.WATCH}
    if watched:
        on_watch(len(watched))
        until = clock() + lease_seconds + lease_seconds / _LOOKS_PER_LEASE
        while watched and clock() <= until:
            pause(lease_seconds / _LOOKS_PER_LEASE)
            judged |= _judge_all(store, watched, beats, force=force)
            watched = {row.batch_id for row in judged.values() if row.verdict is Verdict.WATCH}
    rows = [
        row for row in judged.values() if row.batch_id in wanted or row.verdict is Verdict.RELEASED
    ]
    if not dry_run:
        for row in rows:
            if row.verdict is Verdict.RELEASED:
                _release(store, row)
    return ReleaseReport(run.paths.run_id, dry_run, tuple(rows))


def _judge_all(
    store: LeaseStore,
    batches: Iterable[int],
    beats: dict[int, tuple[int, bytes]],
    *,
    force: bool,
) -> dict[int, Released]:
    """Look at batches once, and judge each.

    Args:
        beats: The claim and the heartbeat of each batch at its first look; this look adds its own.
    """
    done = list_batches(store.run.done_dir, fs=store.fs)
    failed = list_batches(store.run.failed_dir, fs=store.fs)
    judged = {}
    for batch_id in sorted(batches):
        seen = store.observe(batch_id)
        state = derive_state(done=batch_id in done, failed=batch_id in failed, log=seen.log)
        latest = seen.log.latest
        fields = store.log.holder(batch_id, latest.number) if latest else {}
        holder = _holder(batch_id, seen, fields, beats) if state is BatchState.LEASED else None
        verdict, reason = judge(state, holder, force=force)
        judged[batch_id] = Released(
            batch_id,
            verdict,
            state,
            reason,
            host=fields.get("host"),
            pid=fields.get("pid"),
            generation=latest.number if latest else 0,
        )
    return judged


def _holder(
    batch_id: int, seen: Observed, fields: Any, beats: dict[int, tuple[int, bytes]]
) -> Holder:
    if process_is_running(fields):
        return Holder.HERE
    if not isinstance(seen.decision, Wait):
        return Holder.GONE
    if seen.observation is None:
        return Holder.UNWATCHED
    now = (seen.observation.generation, seen.observation.nonce)
    # Another heartbeat, or a newer claim than at the first look: a worker is at work.
    return Holder.BEATS if beats.setdefault(batch_id, now) != now else Holder.UNWATCHED


def _release(store: LeaseStore, row: Released) -> None:
    reason = f"released by process {os.getpid()} on {os.uname().nodename}"
    if row.state is BatchState.FAILED:
        release_failed(store.run, row.batch_id, reason)
        return
    # Only the claim that was judged: its successor may have begun since.
    latest = store.log.read(row.batch_id).latest
    if latest is not None and latest.number == row.generation and latest.outcome is None:
        store.log.write_end(row.batch_id, row.generation, Outcome.HANDED_BACK, {"reason": reason})
