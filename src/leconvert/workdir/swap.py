"""Puts a finished tree in the place of another, so that a crash at any moment loses nothing.

Three places matter: the *target*, the *staging* tree beside it, and *old*, where a tree that was at
the target ends (``<target>_old``). Which tree is the new one is told by its mark
(`leconvert.workdir.staging`).

**What happens next is decided by what is there, never by what an operation reported** (two pure
tables, `leconvert.workdir.swap_decision`). Where the file system exchanges two names in one step, a
reader always finds a whole dataset at the target; elsewhere (NFS) there is a moment between two
renames with none.

**Only a process that has just compared the new tree with its source puts it in place**
(`swap_into_place`). Who comes after a crash (`recover_swap`) gives the old tree its name if the
exchange has happened, and takes everything else back: then the tree is compared anew.

**What comes out of the target is looked at before it gets its name.** If another run put its own
tree there in the same moment, the two are exchanged back.

What keeps a packer that was given up from moving anything is the name of the staging tree. What
keeps runs with other work dirs away is a lock beside the target
(`leconvert.workdir.locks.target_lock`), as far as locks go.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from leconvert.errors import LeconvertError, TargetError
from leconvert.workdir.durable import storage_errors, sync_dir, sync_tree
from leconvert.workdir.filesystem import CANNOT_FLAG, LOCAL, FileSystem
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.staging import (
    TREE_RECORD,
    is_listed,
    marked_by,
    staging_dir,
    staging_generations,
    superseded,
    take_over,
)
from leconvert.workdir.swap_decision import Action, TreeState, next_action, next_recovery
from leconvert.workdir.target import check_target, old_dir, refusal

__all__ = [
    "SwapOutcome",
    "SwapPlan",
    "check_no_other_swap",
    "recover_swap",
    "swap_into_place",
]

_MOST_STEPS = 8
_INFO_PATH = "meta/info.json"

TreeStates = tuple[TreeState, TreeState, TreeState]


class SwapOutcome(StrEnum):
    """How a swap that was interrupted stands."""

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
    plan: SwapPlan,
    journal: Journal,
    *,
    before_exchange: Callable[[], None] | None = None,
    came_out: Callable[[Path], None] | None = None,
) -> None:
    """Put the finished tree at ``plan.staging`` in the target's place.

    Everything in it must be complete and verified by this process; it is forced to the disk here,
    names only.

    Write order: names of the new tree; journal ``swapping``; the moves; journal ``swapped``; the
    new tree's mark is removed. `recover_swap` ends or takes back what a crash leaves.

    Args:
        plan: What goes where.
        journal: The run's journal, begun by this packer.
        before_exchange: Called last thing before the first move, for example to look once more
            whether the source changed; what it raises stops the swap with nothing moved.
        came_out: Called with the tree that was at the target before that gets its name; what it
            raises takes the swap back.

    Raises:
        TargetError: The target cannot be replaced (see `check_target`), or is not what it was a
            moment ago; nothing was moved.
        BusyError: Another packer took over.
        StorageError: The disk is read-only or fails; nothing was moved, or the next run ends it.
    """
    fs = journal.fs
    check_target(plan.target, plan.old)
    check_no_other_swap(plan.target, journal.run_id, fs=fs)
    if marked_by(plan.staging, fs=fs) != journal.run_id:
        raise superseded(plan.staging)
    sync_tree(plan.staging, files=False, fs=fs)
    seen = _content(plan.target, fs)
    if before_exchange is not None:
        before_exchange()

    def check(tree: Path) -> None:
        if _content(tree, fs) != seen:
            raise refusal(
                plan.target,
                f"another run put its result at {plan.target} in the same moment",
                "It stands there. Look at it before you convert again with --force-conversion.",
            )
        if came_out is not None:
            came_out(tree)

    journal.write(
        PackStep.SWAPPING,
        swap={"target": str(plan.target), "old": None if plan.old is None else str(plan.old)},
    )
    _swap(plan, journal, check)
    _finish(plan.target, journal)


def check_no_other_swap(target: Path, run_id: str, *, fs: FileSystem = LOCAL) -> None:
    """Refuse a target where another run has put its tree and has not ended its swap.

    Raises:
        TargetError: The tree at the target carries another run's mark.
    """
    owner = marked_by(target, fs=fs)
    if owner not in {None, run_id}:
        raise refusal(
            target,
            f"{target} is the result of run {owner}, whose swap has not ended",
            "Give that run's command again, which ends it. If its work dir is gone, look at "
            f"{target}, and remove {target / TREE_RECORD} if you want to replace it.",
        )


def recover_swap(journal: Journal, target: Path) -> SwapOutcome:
    """End or take back a swap that was interrupted, if there was one.

    Call it after ``journal.begin()``, before anything looks at the target: between two renames the
    dataset is not there. It compares nothing and deletes nothing.

    Args:
        journal: The run's journal, begun by this packer.
        target: The run's target.

    Returns:
        ``COMPLETED`` if the new tree was put in place by an earlier process; whether it still
        stands there, and is whole, is for the caller to see. ``ROLLED_BACK`` if the old one was put
        back, ``NOT_STARTED`` if nothing had been moved.

    Raises:
        TargetError: What is there fits no step of a swap: somebody moved things by hand. Nothing
            was touched, and the details say what is where.
        StorageError: The disk is read-only or fails.
    """
    state, fs = journal.read(), journal.fs
    # The mark counts more than the journal: a packer that lost its lock may have swapped while
    # this one began, and noted it where nobody reads.
    is_in = marked_by(target, fs=fs) == journal.run_id
    if state.step in {PackStep.SWAPPED, PackStep.FINISHED}:
        _finish(target, journal)
        return SwapOutcome.COMPLETED
    if not is_in and (
        state.swap is None or (state.step is PackStep.PACKING and is_listed(target, fs))
    ):
        return SwapOutcome.NOT_STARTED
    # While packing, the target can only be gone because a superseded packer died between its two
    # renames (a swap without an exchange): that is put right like a swap of our own.
    found = _generation_to_settle(target, journal, is_in=is_in)
    # Taking it over comes first: once it has our name, nobody else can move it.
    staging = staging_dir(target, journal.run_id, journal.generation)
    if found is not None:
        take_over(target, found, journal)
    keeps_old = bool((state.swap or {}).get("old")) or (
        is_in and found is not None and marked_by(staging, fs=fs) != journal.run_id
    )
    outcome = _settle(SwapPlan(target, staging, old_dir(target) if keeps_old else None), journal)
    if outcome is SwapOutcome.COMPLETED:
        _finish(target, journal)
    else:
        journal.write(PackStep.PACKING)
    return outcome


def _generation_to_settle(target: Path, journal: Journal, *, is_in: bool) -> int | None:
    """Return whose tree matters: where the new one is in, the old one's; else the newest."""
    generations = staging_generations(target, journal.run_id, fs=journal.fs)
    if is_in:
        others = [
            number
            for number in generations
            if marked_by(staging_dir(target, journal.run_id, number), fs=journal.fs)
            != journal.run_id
        ]
        return others[-1] if others else None
    return generations[-1] if generations else None


def _swap(plan: SwapPlan, journal: Journal, check: Callable[[Path], None]) -> None:
    """Put the new tree in, or raise with everything as it was, as far as the disk allows."""
    fs = journal.fs
    failure: OSError | None = None
    for _ in range(_MOST_STEPS):
        seen = _look(plan, journal.run_id, fs)
        action = next_action(*seen, keep_old=plan.old is not None)
        if action is Action.DONE:
            sync_dir(plan.target.parent, fs=fs)
            return
        if action is Action.SUPERSEDED:
            raise superseded(plan.staging)
        if action is Action.REFUSE:
            if plan.old is not None and seen[:2] == (TreeState.NEW, TreeState.OTHER):
                # Whoever put something at `old` meanwhile is another run that swapped here.
                _take_back(plan, seen, fs)
            raise _unexpected(plan, seen)
        if (where := _came_out(plan, seen)) is not None:
            try:
                check(where)
            except (LeconvertError, OSError):
                _take_back(plan, seen, fs)
                raise
        try:
            _act(action, plan, fs)
        except OSError as error:
            if _look(plan, journal.run_id, fs) == seen:
                # It reported an error and nothing moved. Once is enough: the state is known.
                failure = error
                break
        sync_dir(plan.target.parent, fs=fs)
    seen = _look(plan, journal.run_id, fs)
    if failure is None:
        raise _unexpected(plan, seen)
    if seen[0] is TreeState.MISSING and plan.old is not None:
        _take_back(plan, seen, fs)  # a reader shall not go without until the next run
    with storage_errors(plan.target):
        if failure.errno in {errno.EBUSY, errno.EXDEV}:
            raise refusal(
                plan.target,
                f"{plan.target} cannot be renamed: {failure.strerror}",
                "Convert with --output to a folder of its own.",
            ) from failure
        raise failure


def _settle(plan: SwapPlan, journal: Journal) -> SwapOutcome:
    """End or take back what another process began."""
    fs = journal.fs
    restored = False
    for _ in range(_MOST_STEPS):
        seen = _look(plan, journal.run_id, fs)
        action = next_recovery(*seen, keep_old=plan.old is not None)
        if action is Action.DONE:
            sync_dir(plan.target.parent, fs=fs)
            return SwapOutcome.COMPLETED
        if action is Action.NOT_STARTED:
            return SwapOutcome.ROLLED_BACK if restored else SwapOutcome.NOT_STARTED
        is_foreign = action is Action.SET_OLD_ASIDE and marked_by(plan.staging, fs=fs) is not None
        if action is Action.REFUSE or is_foreign:
            raise _unexpected(plan, seen)
        try:
            _act(action, plan, fs)
        except OSError:
            if _look(plan, journal.run_id, fs) == seen:
                with storage_errors(plan.target):
                    raise
        restored = restored or action is Action.RESTORE_OLD
        sync_dir(plan.target.parent, fs=fs)
    raise _unexpected(plan, _look(plan, journal.run_id, fs))


def _came_out(plan: SwapPlan, seen: TreeStates) -> Path | None:
    """Return where the tree is that was at the target and has just been taken away."""
    if plan.old is None:
        return None
    if seen[0] is TreeState.NEW and seen[1] is TreeState.OTHER:
        return plan.staging
    if seen[0] is TreeState.MISSING and seen[1] is TreeState.NEW:
        return plan.old
    return None


def _take_back(plan: SwapPlan, seen: TreeStates, fs: FileSystem) -> None:
    # What cannot be taken back stays where it is; the next run finds out by looking.
    with suppress(OSError):
        if seen[0] is TreeState.NEW:
            fs.exchange(plan.staging, plan.target)
        elif plan.old is not None:
            _rename(plan.old, plan.target, fs)
        fs.sync_dir(plan.target.parent)


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


def _look(plan: SwapPlan, run_id: str, fs: FileSystem) -> TreeStates:
    with storage_errors(plan.target.parent):
        # Listing makes an NFS client forget names that it believes absent, or present.
        names = set(fs.list_names(plan.target.parent))
    places = (plan.target, plan.staging, plan.old)
    target, staging, old = (
        TreeState.MISSING
        if place is None or place.name not in names
        else TreeState.NEW
        if marked_by(place, fs=fs) == run_id
        else TreeState.OTHER
        for place in places
    )
    return target, staging, old


def _content(tree: Path, fs: FileSystem) -> tuple[bytes | None, bytes | None]:
    """Return what tells a tree from another run's: its mark, if it has one, and its info."""

    def read(path: Path) -> bytes | None:
        with storage_errors(path):
            try:
                return fs.read_bytes(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    return read(tree / TREE_RECORD), read(tree / _INFO_PATH)


def _finish(target: Path, journal: Journal) -> None:
    if journal.read().step in {PackStep.PACKING, PackStep.SWAPPING}:
        journal.write(PackStep.SWAPPED)
    record = target / TREE_RECORD
    if marked_by(target, fs=journal.fs) == journal.run_id:
        with storage_errors(record), suppress(FileNotFoundError):
            journal.fs.remove_file(record)
        sync_dir(target, fs=journal.fs)


def _unexpected(plan: SwapPlan, seen: TreeStates) -> TargetError:
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
