"""Removes the work dir of a finished run, so that a crash never leaves half of one.

Records name each other. Were they removed one by one, a crash could leave a run that its own
records no longer describe, and the next command would neither resume nor tidy it. So the folder
first gets another name, in one step: before it the run is whole, after it there is none, and what
bears that name is removed by whoever comes next.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from leconvert.errors import StorageError
from leconvert.workdir.durable import sync_dir
from leconvert.workdir.paths import removed_work_dir
from leconvert.workdir.trees import remove_tree

__all__ = ["remove_leftovers", "remove_work_dir"]


def remove_work_dir(root: Path) -> bool:
    """Remove a work dir of ours that nobody needs any more.

    Never raises for a disk that fails: the result is in its place by then.

    Args:
        root: The work dir, `leconvert.workdir.paths.default_work_dir` of a target.

    Returns:
        Whether it is gone. What is left is removed when the same command runs again.
    """
    if not remove_leftovers(root):
        return False
    try:
        with suppress(FileNotFoundError):
            root.rename(removed_work_dir(root))
        # After a power failure the removals below may be there without the rename above them.
        sync_dir(root.parent)
    except (OSError, StorageError):
        return False
    return remove_leftovers(root)


def remove_leftovers(root: Path) -> bool:
    """Remove what a crash left of an earlier removal of this work dir; never raises for a disk.

    Returns:
        Whether nothing is left.
    """
    with suppress(StorageError, OSError):
        return remove_tree(removed_work_dir(root))
    return False
