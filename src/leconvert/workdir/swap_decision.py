"""What a swap does next: a table over what is at its three places, and nothing else."""

from __future__ import annotations

from enum import Enum

__all__ = ["Action", "TreeState", "next_action"]


class TreeState(Enum):
    """What is at one of the three places."""

    MISSING = "missing"
    NEW = "new"
    OTHER = "other"


class Action(Enum):
    """What to do next."""

    DONE = "done"
    NOT_STARTED = "nothing is moved, and there is no new tree"
    EXCHANGE = "exchange target and staging, or move the target to old"
    MOVE_NEW_IN = "rename staging to target"
    SET_OLD_ASIDE = "rename staging, which holds the old tree, to old"
    RESTORE_OLD = "rename old back to target"
    REFUSE = "leave everything"


def next_action(target: TreeState, staging: TreeState, old: TreeState, *, keep_old: bool) -> Action:
    """Decide what to do, from what is at the three places; a pure table.

    Args:
        target: What is at the target.
        staging: What is at the staging folder.
        old: What is where the old tree goes.
        keep_old: Whether there is a tree to be set aside (False for a fresh output).
    """
    missing, new, other = TreeState.MISSING, TreeState.NEW, TreeState.OTHER
    if target is new:
        if staging is other and keep_old:
            return Action.SET_OLD_ASIDE if old is missing else Action.REFUSE
        return Action.DONE
    if staging is new:
        if target is missing:
            return Action.MOVE_NEW_IN
        return Action.EXCHANGE if keep_old and old is missing else Action.REFUSE
    if target is other:
        return Action.NOT_STARTED if staging is missing else Action.REFUSE
    # Nothing at the target and no new tree beside it: whatever is at `old` belongs there.
    if keep_old and old is not missing:
        return Action.RESTORE_OLD
    return Action.NOT_STARTED if staging is missing and not keep_old else Action.REFUSE
