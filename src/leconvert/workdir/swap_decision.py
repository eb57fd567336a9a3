"""What a swap does next: two tables over what is at its three places, and nothing else."""

from __future__ import annotations

from enum import Enum

__all__ = ["Action", "TreeState", "next_action", "next_recovery"]


class TreeState(Enum):
    """What is at one of the three places."""

    MISSING = "missing"
    NEW = "new"
    OTHER = "other"


class Action(Enum):
    """What to do next."""

    DONE = "done"
    NOT_STARTED = "nothing is moved"
    EXCHANGE = "exchange target and staging, or move the target to old"
    MOVE_NEW_IN = "rename staging to target"
    SET_OLD_ASIDE = "rename staging, which holds the old tree, to old"
    RESTORE_OLD = "rename old back to target"
    SUPERSEDED = "leave everything: another packer has the tree"
    REFUSE = "leave everything"


def next_action(target: TreeState, staging: TreeState, old: TreeState, *, keep_old: bool) -> Action:
    """Decide what the process does that has just compared the new tree; a pure table.

    Args:
        target: What is at the target.
        staging: What is at the staging folder.
        old: What is where the old tree goes.
        keep_old: Whether there is a tree to be set aside (False for a fresh output).
    """
    missing, new, other = TreeState.MISSING, TreeState.NEW, TreeState.OTHER
    if target is new and keep_old and old is missing:
        return Action.SET_OLD_ASIDE if staging is other else Action.SUPERSEDED
    if target is new:
        return Action.REFUSE if keep_old and staging is other else Action.DONE
    if staging is new:
        if target is missing:
            return Action.REFUSE if keep_old and old is missing else Action.MOVE_NEW_IN
        return Action.EXCHANGE if keep_old and old is missing else Action.REFUSE
    if target is other:
        return Action.SUPERSEDED if staging is missing else Action.REFUSE
    # Nothing at the target and no new tree beside it: whatever is at `old` belongs there.
    if keep_old and old is not missing:
        return Action.RESTORE_OLD
    return Action.SUPERSEDED if staging is missing and not keep_old else Action.REFUSE


def next_recovery(
    target: TreeState, staging: TreeState, old: TreeState, *, keep_old: bool
) -> Action:
    """Decide what a process does about a swap that another one began; a pure table.

    It has compared nothing, so it puts no new tree in place: a swap that came to its exchange is
    ended by giving the old tree its name, any other one is taken back.
    """
    missing, new, other = TreeState.MISSING, TreeState.NEW, TreeState.OTHER
    if target is new:
        if keep_old and staging is other:
            return Action.SET_OLD_ASIDE if old is missing else Action.REFUSE
        return Action.DONE
    if staging is other:
        return Action.RESTORE_OLD if target is missing and old is not missing else Action.REFUSE
    if target is other or not keep_old:
        return Action.NOT_STARTED
    return Action.REFUSE if old is missing else Action.RESTORE_OLD
