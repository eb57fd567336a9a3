"""Folders of ours as wholes: made below a tree, filled with finished files, removed.

What is in them was forced to the disk before, or is here; their names are forced once a tree is
whole (`leconvert.workdir.durable.sync_tree`).
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Literal

from leconvert.errors import WorkDirError
from leconvert.workdir.filesystem import CANNOT_LINK, LOCAL, FileSystem
from leconvert.workdir.trouble import storage_errors

__all__ = ["link_into_tree", "make_folders_below", "remove_tree"]


def make_folders_below(tree: Path, folder: Path, *, fs: FileSystem = LOCAL) -> None:
    """Make ``folder`` and what is missing between it and ``tree``, but never ``tree`` itself.

    A packer that was superseded finds its tree renamed away; making the tree anew would let it
    go on with half a dataset, so it must fail here.

    Raises:
        FileNotFoundError: ``tree`` does not exist.
        ValueError: ``folder`` is not below ``tree``.
        StorageError: The disk is full, read-only, or fails.
    """
    missing = []
    at = folder
    while at != tree:
        if at == at.parent:
            raise ValueError(f"{folder} is not below {tree}")
        missing.append(at)
        at = at.parent
    with storage_errors(folder):
        for at in reversed(missing):
            with suppress(FileExistsError):
                fs.make_dir(at)


def link_into_tree(
    source: Path, target: Path, *, tree: Path | None = None, fs: FileSystem = LOCAL
) -> Literal["linked", "copied"]:
    """Promote a finished shard to its place in the new tree; repeating it is harmless.

    The same inode at ``target`` is success. Another file there (left by an attempt that was voided
    since) is replaced. Across file systems, or where a hard link is refused, the bytes are copied
    to a temporary name, forced to the disk, and renamed; a copy with the same size and
    modification time as the source is kept. Folders' names are not forced to the disk here: call
    ``sync_tree(root, files=False)`` once before the swap.

    Args:
        source: The shard in the winning attempt's folder.
        target: Its path in the new tree.
        tree: If given, folders missing between it and ``target`` are made (never ``tree`` itself).
        fs: File operations.

    Raises:
        FileNotFoundError: The shard, or the folder of ``target``, is not there (any more).
        StorageError: The disk is full, read-only, or fails.
    """
    if tree is not None:
        make_folders_below(tree, target.parent, fs=fs)
    with storage_errors(target):
        try:
            fs.link(source, target)
        except OSError as error:
            if _same_file(source, target, fs):
                return "linked"
            if isinstance(error, FileExistsError):
                return _replace_in_tree(source, target, fs)
            if error.errno in CANNOT_LINK or error.errno == errno.EXDEV:
                return _copy_into_tree(source, target, fs)
            raise
    return "linked"


def _same_file(source: Path, target: Path, fs: FileSystem) -> bool:
    try:
        return fs.identity(source) == fs.identity(target)
    except OSError:
        return False


def _replace_in_tree(source: Path, target: Path, fs: FileSystem) -> Literal["linked", "copied"]:
    temporary = _partial(target, fs)
    try:
        fs.link(source, temporary)
    except OSError as error:
        if error.errno in CANNOT_LINK or error.errno == errno.EXDEV:
            return _copy_into_tree(source, target, fs)
        if not _same_file(source, temporary, fs):
            raise
    fs.replace(temporary, target)
    return "linked"


def _copy_into_tree(source: Path, target: Path, fs: FileSystem) -> Literal["copied"]:
    wanted = source.stat()
    with suppress(FileNotFoundError):
        found = target.stat()
        # The name appeared after the copy was on the disk, so a match is a whole copy.
        if (found.st_size, found.st_mtime_ns) == (wanted.st_size, wanted.st_mtime_ns):
            return "copied"
    temporary = _partial(target, fs)
    try:
        shutil.copyfile(source, temporary)
        os.utime(temporary, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
        fs.sync_file(temporary)
        fs.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            fs.remove_file(temporary)
        raise
    return "copied"


def _partial(target: Path, fs: FileSystem) -> Path:
    # Always the same name, so that what a crash left is replaced by the next try and never stays
    # in the tree.
    partial = target.with_name(f".{target.name}.leconvert-partial")
    with suppress(FileNotFoundError):
        fs.remove_file(partial)
    return partial


def remove_tree(path: Path, *, inside: Path | None = None) -> bool:
    """Remove a folder of ours with all that is in it; never follows symbolic links.

    Args:
        path: The folder.
        inside: A folder that must contain it, such as ``attempts/``. Without it, the path itself
            must lie in a folder with one of our names (``.<name>.leconvert-…``).

    Returns:
        Whether it is gone. What another host still holds open on NFS may linger; that is no error.

    Raises:
        WorkDirError: The folder is not ours, or is a symbolic link.
        StorageError: The disk is read-only or fails.
    """
    # The folder's own last name is not resolved, so that a link is seen as a link.
    real = Path(os.path.realpath(path.parent), path.name)
    if inside is not None:
        ours = real != (top := Path(os.path.realpath(inside))) and real.is_relative_to(top)
    else:
        ours = any(part.startswith(".") and ".leconvert-" in part for part in real.parts)
    if not ours or path.name in {"", ".", ".."} or real.is_symlink():
        raise WorkDirError(
            f"Refusing to remove {path}: it is not a folder that leconvert made.",
            path=str(path),
            next_step="Remove it by hand if you are sure.",
        )
    with storage_errors(path):
        try:
            shutil.rmtree(real)
        except FileNotFoundError:
            # Another host removes it as well; once more takes what that one had not reached.
            shutil.rmtree(real, ignore_errors=True)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EBUSY, errno.EEXIST}:
                raise
    return not os.path.lexists(real)
