"""Removes work dirs and new trees that are no longer needed.

**A half-removed folder never stays.** Records refer to each other. If they were removed one by one,
a crash could leave a run that its own records no longer describe, and the next command could
neither resume nor remove it. So a folder first gets another name, in one step. Before this step the
folder is complete; after it there is no such folder, and the next command removes the renamed one.

**A removal that was frozen removes only its own folder.** It goes from folder to folder by their
handles, and no rename of a parent folder stops it. Suppose a packer was frozen half way through
removing its tree, lost its lock and came back: it would go on in the tree after its successor
adopted it, completed it and put it in place. So nothing is removed under a name that another
process may take up.

**A name does not prove the content of a tree.** A new tree is removed only if it carries its run's
mark (`leconvert.workdir.swap`). The mark is read after the tree got the other name, and is removed
last, so a process that continues a removal sees whose tree it is.

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
from leconvert.workdir.swap import TREE_RECORD, is_new_tree, trees_of_run


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
                for tree in trees_of_run(target, Journal(work.run(each), each)):
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


def remove_new_tree(tree: Path, run_id: str) -> None:
    """Remove a packer's new tree, also after an interrupted removal.

    Raises:
        TargetError: The tree does not carry the run's mark.
    """
    doomed = tree if is_being_removed(tree) else removed_folder(tree)
    with suppress(FileNotFoundError):
        _check_mark(tree, run_id)
        if doomed != tree:
            with storage_errors(tree):
                tree.rename(doomed)
            try:
                # A packer that was frozen may have exchanged it for the target since.
                _check_mark(doomed, run_id)
            except TargetError:
                with storage_errors(tree):
                    doomed.rename(tree)
                raise
    # As for a work dir: a half-removed tree must not come back under a name that is taken up.
    sync_dir(tree.parent)
    with suppress(FileNotFoundError):
        _check_mark(doomed, run_id)
        for path in list(doomed.iterdir()):
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            elif path.name != TREE_RECORD:
                with storage_errors(path), suppress(FileNotFoundError):
                    path.unlink()
        remove_tree(doomed)


def _check_mark(tree: Path, run_id: str) -> None:
    if not is_new_tree(tree, run_id):
        raise TargetError(
            f"{tree} does not have the mark of run {run_id}, so it may be a dataset.",
            path=str(tree),
            next_step="The folder was not touched. Look at its content, then give it another name.",
        )


def remove_left_trees(target: Path, journal: Journal) -> None:
    """Remove the trees of a run whose removal was interrupted."""
    for tree in trees_of_run(target, journal):
        if is_being_removed(tree):
            with suppress(TargetError):  # it stays: `leconvert clean` names it
                remove_new_tree(tree, journal.run_id)


def is_being_removed(tree: Path) -> bool:
    """Return whether this is the name of a new tree whose removal began."""
    return tree.suffix == removed_folder(tree).suffix
