"""Removes work dirs that are no longer needed.

**A half-removed folder never stays.** Records refer to each other. If they were removed one by one,
a crash could leave a run that its own records no longer describe, and the next command could
neither resume nor remove it. So a folder first gets another name, in one step. Before this step the
folder is complete; after it there is no such folder, and the next command removes the renamed one.

**A removal never runs under a lock inside the folder**: over NFS an open file stays in its folder
under another name until it is closed, and so does the folder.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

from leconvert.support.errors import BusyError, LeconvertError, StorageError, TargetError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import remove_tree, sync_dir
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import Journal, WorkDir, removed_folder
from leconvert.workdir.swap import remove_new_tree, trees_of_run


def remove_work_dir(root: Path, run_id: str, target: Path) -> bool:
    """Remove the work dir of a finished conversion, unless a process planned or plans in it since.

    New trees of abandoned runs in it are removed first, since nothing else tells whose they are. A
    failing disk raises no error, since the result is already in place.

    Args:
        root: The work dir.
        run_id: The finished run.
        target: Its target.

    Returns:
        Whether it is gone, or another process's by now. The same command removes the rest when it
        runs again.
    """
    if not remove_leftovers(root):
        return False
    work = WorkDir(root)
    try:
        with ExitStack() as held:
            if not root.is_dir():
                return True
            with suppress(StorageError):  # a full disk has no room for the holder's record
                held.enter_context(planner_lock(work))
            if work.current_run_id() not in {None, run_id}:
                return True
            for each in work.list_runs():
                for tree in trees_of_run(target, Journal(work.run(each))):
                    with suppress(TargetError):  # the tree may hold a dataset
                        remove_new_tree(tree, each)
            set_work_dir_aside(root)
    except BusyError:
        return True
    except (OSError, LeconvertError):
        return False
    return remove_leftovers(root)


def give_up_run(root: Path, run_id: str) -> None:
    """Leave a work dir without a current run, if it is this one; then the next command plans."""
    work = WorkDir(root)
    with storage_errors(root), planner_lock(work):
        if work.current_run_id() == run_id:
            work.current.unlink(missing_ok=True)
            sync_dir(root)


def set_work_dir_aside(root: Path) -> None:
    """Give a work dir the name under which `remove_leftovers` removes it: the commit point.

    Call it under the planner's lock. Call `remove_leftovers` before, and once after the lock was
    released.
    """
    with storage_errors(root), suppress(FileNotFoundError):
        root.rename(removed_folder(root))
    # Otherwise, after a power failure, the removals below may be there without the rename above
    # them.
    sync_dir(root.parent)


def remove_leftovers(root: Path) -> bool:
    """Remove what a crash left of an earlier removal of this work dir; never raises for a disk.

    Returns:
        Whether nothing is left.
    """
    with suppress(StorageError, OSError):
        return remove_tree(removed_folder(root))
    return False
