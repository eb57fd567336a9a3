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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leconvert.errors import LeconvertError, StorageError
from leconvert.workdir.filesystem import CANNOT_LINK, LOCAL, FileSystem
from leconvert.workdir.trouble import CHECK_DISK, storage_errors

__all__ = [
    "AlreadyPublishedError",
    "OutcomeUnknownError",
    "publish_exclusively",
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
