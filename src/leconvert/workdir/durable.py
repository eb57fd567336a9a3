"""The only place that forces bytes to the disk and gives finished files their names.

**Outcome unknown.** Over NFS a request can succeed on the server while its answer gets lost; the
repeated request then finds its own work and reports EEXIST (or ENOENT for a rename), or the client
gives up with EIO, ESTALE or ETIMEDOUT. So no error of a publishing call is believed. The folder is
listed (which refreshes a cached "no such file"), the record is read back, and its content decides:
a record that is published exclusively contains a random token, so equal bytes are the same record.
If even reading back fails, `OutcomeUnknownError` says so, and whoever asks again later gets the
truth.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from leconvert.errors import LeconvertError, StorageError, WorkDirError
from leconvert.workdir.filesystem import CANNOT_LINK, LOCAL, FileSystem
from leconvert.workdir.trouble import CHECK_DISK, storage_errors

__all__ = [
    "AlreadyPublishedError",
    "OutcomeUnknownError",
    "link_into_tree",
    "make_folders_below",
    "publish_exclusively",
    "remove_tree",
    "replace_record",
    "storage_errors",
    "sync_dir",
    "sync_file",
    "sync_tree",
    "write_durably",
]

_READ_BACKS = 3

_NO_LINKS = (
    "The run was planned where there were some: work on the host that planned it, or begin anew"
    " with --restart."
)


class AlreadyPublishedError(LeconvertError):
    """Another record has the name; ``path`` is its path."""

    exit_code = 70


class OutcomeUnknownError(StorageError):
    """A publishing call failed and the folder could not be read back: it may have happened."""


def sync_file(path: Path, *, fs: FileSystem = LOCAL) -> None:
    """Force a finished file to the disk.

    Raises:
        StorageError: The disk is full or fails; the content must not be trusted.
    """
    with storage_errors(path):
        fs.sync_file(path)


def sync_dir(path: Path, *, fs: FileSystem = LOCAL) -> None:
    """Force a folder's names to the disk.

    Raises:
        StorageError: The disk fails.
    """
    with storage_errors(path):
        fs.sync_dir(path)


def sync_tree(root: Path, *, files: bool = True, fs: FileSystem = LOCAL) -> None:
    """Force every folder below and including ``root`` to the disk, and its files unless told not.

    Args:
        root: The top folder.
        files: Whether the files' content is forced too; a promoted shard's already was.
        fs: File operations.

    Raises:
        StorageError: The disk is full or fails.
    """
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, topdown=False, onerror=_raise):
            subfolders.sort()
            if files:
                for name in sorted(names):
                    sync_file(Path(folder, name), fs=fs)
            sync_dir(Path(folder), fs=fs)


def _raise(error: OSError) -> None:
    # By default `os.walk` passes over a folder that cannot be listed.
    raise error


def write_durably(
    path: Path,
    data: bytes,
    *,
    fs: FileSystem = LOCAL,
    randomness: Callable[[int], bytes] = os.urandom,
) -> None:
    """Write or replace a small file so that after a crash it holds the old or the new content.

    The order is: a temporary file in the same folder, fsync, rename, fsync of the folder.

    Raises:
        StorageError: The disk is full, read-only, or fails.
        FileNotFoundError: The folder does not exist.
    """
    replace_record(path, data, sync=True, fs=fs, randomness=randomness)


def replace_record(
    path: Path,
    data: bytes,
    *,
    sync: bool = False,
    fs: FileSystem = LOCAL,
    randomness: Callable[[int], bytes] = os.urandom,
) -> None:
    """Write or replace a small file so that every reader sees the old or the new content.

    Without ``sync`` a power loss may leave it empty or missing: right for heartbeats and for what
    is only looked at. A rename that reports an error but happened (the module's docstring) counts
    as done.

    Raises:
        StorageError: The disk is full, read-only, or fails.
        FileNotFoundError: The folder does not exist.
    """
    temporary = path.with_name(f".{path.name}.{randomness(6).hex()}.tmp")
    with storage_errors(path):
        try:
            fs.write_new(temporary, data, sync=sync)
            try:
                fs.replace(temporary, path)
            except OSError:
                if _content(path, fs) != data:
                    raise
        except BaseException:
            with suppress(OSError):
                fs.remove_file(temporary)
            raise
        if sync:
            fs.sync_dir(path.parent)


def publish_exclusively(
    source: Path, target: Path, *, sync: bool = True, fs: FileSystem = LOCAL
) -> None:
    """Give ``source`` the name ``target`` if nobody has it; exactly one caller succeeds.

    That is what ``fs.give_name`` promises: among all hosts by a hard link, among the processes of
    one host where the run has no hard links (`leconvert.workdir.exclusion`).

    ``source`` must be complete, closed, synced where ``sync`` matters, and contain a random token.
    It keeps its own name too.

    Guarantees: if this returns, ``target`` names our record (and survives a power loss, with
    ``sync``). If it raises `AlreadyPublishedError`, ``target`` names another record. It does not
    promise that a call which raises `OutcomeUnknownError` had no effect.

    Args:
        source: The record in the caller's own folder.
        target: The name to win.
        sync: Whether to force the folder's names to the disk.
        fs: File operations.

    Raises:
        AlreadyPublishedError: Another record has the name.
        OutcomeUnknownError: It failed, and so did reading back.
        StorageError: It certainly did not happen: full, read-only, no hard links.
        FileNotFoundError: ``source`` or the folder of ``target`` does not exist.
    """
    try:
        fs.give_name(source, target, sync=sync)
    except OSError as error:
        _settle(source, target, error, fs)
    if sync:
        sync_dir(target.parent, fs=fs)


def _settle(source: Path, target: Path, failure: OSError, fs: FileSystem) -> None:
    # Returns if the name is ours after all; otherwise raises what is true.
    trouble: OSError | None = None
    for _ in range(_READ_BACKS):
        try:
            listed = target.name in fs.list_names(target.parent)
            if not listed:
                break
            if fs.read_bytes(target) == fs.read_bytes(source):
                return
            raise AlreadyPublishedError(f"{target} is another record already.", path=str(target))
        except OSError as error:
            # A handle that went stale is cured by opening again; a name that vanished is not there.
            trouble = error
            if isinstance(error, FileNotFoundError):
                break
    else:
        raise OutcomeUnknownError(
            f"{target} may or may not have been published: {failure.strerror}, and reading it"
            " back failed as well.",
            path=str(target),
            next_step=CHECK_DISK,
        ) from trouble
    if isinstance(failure, FileExistsError):
        # It existed for the server, yet it is not listed: somebody renamed it in between.
        raise AlreadyPublishedError(f"{target} was published and moved away.", path=str(target))
    if failure.errno in CANNOT_LINK - {errno.EMLINK}:
        raise StorageError(
            f"Cannot use {target.parent}: it does not allow hard links, and they decide who wins.",
            path=str(target.parent),
            next_step=_NO_LINKS,
        ) from failure
    with storage_errors(target):
        raise failure


def _content(path: Path, fs: FileSystem) -> bytes | None:
    try:
        return fs.read_bytes(path)
    except OSError:
        return None


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
