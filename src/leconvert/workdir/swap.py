"""Puts a finished tree in the place of another, so that a crash at any moment loses nothing.

Three places matter: the *target*, the *staging* tree beside it, and *old*, where a tree that was at
the target ends (``<target>_old``). Which tree is the new one is told by a small record in it,
``.leconvert-tree.json``, which names the run: unlike inode numbers it survives every file system's
rename, and unlike ``info.json`` it differs between two conversions of the same source. It is
written just before the swap and removed just after.

**What happens next is decided by what is there, never by what an operation reported**
(`next_action`, pure). The same loop swaps for the first time, goes on after a crash, and rolls
back. Where the file system exchanges two names in one step, a reader always finds a whole dataset
at the target; elsewhere (NFS) there is a moment between two renames with none, and the next run of
any command completes it (`recover_swap`).

What keeps a packer that was given up from moving anything is the name of the staging tree
(`leconvert.workdir.staging`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from leconvert.errors import TargetError, WorkDirError
from leconvert.workdir.durable import storage_errors, sync_dir, sync_tree
from leconvert.workdir.filesystem import CANNOT_FLAG, FileSystem
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.records import encode_record, read_record
from leconvert.workdir.staging import adopt_staging, is_listed, staging_dir, superseded
from leconvert.workdir.swap_decision import Action, TreeState, next_action
from leconvert.workdir.target import check_target, refusal

__all__ = ["TREE_RECORD", "SwapOutcome", "SwapPlan", "recover_swap", "swap_into_place"]

TREE_RECORD = ".leconvert-tree.json"
_TREE_VERSION = 1
_MOST_STEPS = 8


class SwapOutcome(StrEnum):
    """How a swap stands."""

    NOT_STARTED = "not-started"
    ROLLED_BACK = "rolled-back"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """What goes where; all three are siblings.

    Attributes:
        target: Where the new tree shall be; not a symbolic link.
        staging: The new tree, in this packer's own folder.
        old: Where the tree at the target goes, or None where there must be none.
    """

    target: Path
    staging: Path
    old: Path | None


def swap_into_place(
    plan: SwapPlan, journal: Journal, *, before_exchange: Callable[[], None] | None = None
) -> None:
    """Put the finished tree at ``plan.staging`` in the target's place.

    Everything in it must be complete and verified; it is forced to the disk here, names only.

    Write order: names of the new tree; its record; journal ``swapping``; the moves; journal
    ``swapped``; the record is removed. A crash after any of them is finished by `recover_swap`.

    Args:
        plan: What goes where.
        journal: The run's journal, begun by this packer.
        before_exchange: Called last thing before the first move, for example to look once more
            whether the source changed; what it raises stops the swap with nothing moved.

    Raises:
        TargetError: The target cannot be replaced (see `check_target`); nothing was moved.
        BusyError: Another packer took over.
        StorageError: The disk is read-only or fails; run again to finish.
    """
    fs = journal.fs
    check_target(plan.target, plan.old)
    sync_tree(plan.staging, files=False, fs=fs)
    _mark(plan.staging, journal)
    if before_exchange is not None:
        before_exchange()
    journal.write(
        PackStep.SWAPPING,
        swap={"target": str(plan.target), "old": None if plan.old is None else str(plan.old)},
    )
    if _move(plan, journal) is not SwapOutcome.COMPLETED:
        raise superseded(plan.staging)
    _finish(plan.target, journal)


def recover_swap(journal: Journal) -> SwapOutcome:
    """Finish or roll back a swap that was interrupted, if there was one.

    Call it after ``journal.begin()``, before anything looks at the target: between two renames the
    dataset is not there.

    Returns:
        ``COMPLETED`` if the new tree is in place, ``ROLLED_BACK`` if the old one was put back,
        ``NOT_STARTED`` if no swap had begun.

    Raises:
        TargetError: What is there fits no step of a swap: somebody moved things by hand. Nothing
            was touched, and the details say what is where.
        StorageError: The disk is read-only or fails.
    """
    state = journal.read()
    if state.swap is None:
        return SwapOutcome.NOT_STARTED
    target = Path(str(state.swap["target"]))
    if state.step is PackStep.PACKING and is_listed(target, journal.fs):
        return SwapOutcome.NOT_STARTED
    # While packing, the target can only be gone because a superseded packer died between its two
    # renames (a swap without an exchange): that is put right like a swap of our own.
    if state.step in {PackStep.PACKING, PackStep.SWAPPING}:
        # Adopting comes first: once the tree has our name, nobody else can move it.
        staging = adopt_staging(target, journal, create=False)
        old = state.swap.get("old")
        plan = SwapPlan(
            target,
            staging or staging_dir(target, journal.run_id, journal.generation),
            None if old is None else Path(str(old)),
        )
        outcome = _move(plan, journal)
        if outcome is not SwapOutcome.COMPLETED:
            journal.write(PackStep.PACKING)
            return outcome
    _finish(target, journal)
    return SwapOutcome.COMPLETED


def _mark(staging: Path, journal: Journal) -> None:
    # Written in place, without a temporary file that a crash would leave in the dataset: a torn
    # record is written again, since the journal does not say `swapping` yet.
    record, fs = staging / TREE_RECORD, journal.fs
    try:
        with storage_errors(record):
            with suppress(FileNotFoundError):
                fs.remove_file(record)
            fs.write_new(
                record, encode_record("tree", _TREE_VERSION, journal.run_id, {}), sync=True
            )
            fs.sync_dir(staging)
    except FileNotFoundError:
        raise superseded(staging) from None


def _move(plan: SwapPlan, journal: Journal) -> SwapOutcome:
    fs = journal.fs
    restored = False
    failure: OSError | None = None
    for _ in range(_MOST_STEPS):
        seen = _look(plan, journal.run_id, fs)
        action = next_action(*seen, keep_old=plan.old is not None)
        if action is Action.DONE:
            sync_dir(plan.target.parent, fs=fs)
            return SwapOutcome.COMPLETED
        if action is Action.NOT_STARTED:
            return SwapOutcome.ROLLED_BACK if restored else SwapOutcome.NOT_STARTED
        if action is Action.REFUSE:
            raise _unexpected(plan, seen)
        try:
            _act(action, plan, fs)
        except OSError as error:
            if _look(plan, journal.run_id, fs) == seen:
                # It reported an error and nothing moved. Once is enough: the state is known.
                failure = error
                break
        restored = restored or action is Action.RESTORE_OLD
        sync_dir(plan.target.parent, fs=fs)
    if failure is None:
        raise _unexpected(plan, _look(plan, journal.run_id, fs))
    with storage_errors(plan.target):
        if failure.errno in {errno.EBUSY, errno.EXDEV}:
            raise refusal(
                plan.target,
                f"{plan.target} cannot be renamed: {failure.strerror}",
                "Convert with --output to a folder of its own.",
            ) from failure
        raise failure


def _act(action: Action, plan: SwapPlan, fs: FileSystem) -> None:
    if action is Action.MOVE_NEW_IN:
        _rename(plan.staging, plan.target, fs)
    elif plan.old is None:
        raise AssertionError(action)
    elif action is Action.SET_OLD_ASIDE:
        _rename(plan.staging, plan.old, fs)
    elif action is Action.RESTORE_OLD:
        _rename(plan.old, plan.target, fs)
    else:
        try:
            fs.exchange(plan.staging, plan.target)
        except OSError as error:
            if error.errno not in CANNOT_FLAG:
                raise
            # A superseded packer must not move the target away: look again just before.
            if is_listed(plan.staging, fs):
                _rename(plan.target, plan.old, fs)


def _rename(source: Path, target: Path, fs: FileSystem) -> None:
    try:
        fs.rename_no_replace(source, target)
    except OSError as error:
        if error.errno not in CANNOT_FLAG:
            raise
        # A plain rename of a folder replaces nothing but an empty folder.
        fs.replace(source, target)


def _look(plan: SwapPlan, run_id: str, fs: FileSystem) -> tuple[TreeState, TreeState, TreeState]:
    with storage_errors(plan.target.parent):
        # Listing makes an NFS client forget names that it believes absent, or present.
        names = set(fs.list_names(plan.target.parent))
    places = (plan.target, plan.staging, plan.old)
    target, staging, old = (
        TreeState.MISSING
        if place is None or place.name not in names
        else _tree_state(place, run_id, fs)
        for place in places
    )
    return target, staging, old


def _tree_state(tree: Path, run_id: str, fs: FileSystem) -> TreeState:
    try:
        record = read_record(tree / TREE_RECORD, "tree", version=_TREE_VERSION, fs=fs)
    except (FileNotFoundError, NotADirectoryError):
        return TreeState.OTHER
    except WorkDirError:
        return TreeState.OTHER  # not ours, or of another program's making
    return TreeState.NEW if record.get("run_id") == run_id else TreeState.OTHER


def _finish(target: Path, journal: Journal) -> None:
    if journal.read().step in {PackStep.PACKING, PackStep.SWAPPING}:
        journal.write(PackStep.SWAPPED)
    record = target / TREE_RECORD
    if _tree_state(target, journal.run_id, journal.fs) is TreeState.NEW:
        with storage_errors(record), suppress(FileNotFoundError):
            journal.fs.remove_file(record)
        sync_dir(target, fs=journal.fs)


def _unexpected(plan: SwapPlan, seen: tuple[TreeState, TreeState, TreeState]) -> TargetError:
    words = {
        TreeState.MISSING: "nothing",
        TreeState.NEW: "the new tree of this run",
        TreeState.OTHER: "another tree",
    }
    places = [plan.target, plan.staging, *([plan.old] if plan.old is not None else [])]
    return TargetError(
        f"{plan.target} cannot be swapped: what is there fits no step of a swap.",
        path=str(plan.target),
        details=[f"{place}: {words[state]}" for place, state in zip(places, seen, strict=False)],
        next_step="Put the tree that you want to keep at the target and move the others away, then"
        " run again.",
    )
