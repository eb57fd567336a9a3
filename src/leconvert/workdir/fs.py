"""The few file operations that publishing, leasing and the swap are built on.

The operations are methods of one small class, `FileSystem`, so that a test can insert faults
between any two of them. They raise plain ``OSError``; the functions turn errors that a user can act
on into a `StorageError`. No other module syncs bytes to disk or gives finished files their names.

**Outcome unknown.** Over NFS a request can succeed on the server while its answer gets lost. The
repeated request then finds its own work and reports EEXIST (or ENOENT for a rename), or the client
gives up with EIO, ESTALE or ETIMEDOUT. So no error of a publishing call is believed. The folder is
listed (which refreshes a cached "no such file"), the record is read back, and its content decides:
a record that is published exclusively contains a random token, so equal bytes are the same record.
If even reading back fails, `OutcomeUnknownError` says so, and a later attempt finds the truth.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from leconvert.support.errors import LeconvertError, StorageError, WorkDirError
from leconvert.support.file_calls import (
    clone_range,
    copy_file,
    exchange_names,
    full_sync,
    rename_no_replace,
)
from leconvert.support.storage_errors import CHECK_DISK, storage_errors

Identity = tuple[int, int]
"""Device and inode number: two names with the same identity are one file."""

CANNOT_LINK = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""Errors of `FileSystem.link` if hard links are not supported, or not this many for one file."""


class FileSystem:
    """Plain operations of the operating system; each is atomic or raises ``OSError``.

    An error does not mean that the operation did not happen: over NFS a repeated request can report
    EEXIST or ENOENT to the very host whose first request succeeded. Callers check the result.
    """

    def read_bytes(self, path: Path) -> bytes:
        """Return a file's content. Opening asks an NFS server again; ``stat`` may be outdated."""
        with path.open("rb") as file:
            return file.read()

    def write_new(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Create a file that must not exist, write all of it, and sync it if ``sync``."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if sync:
                full_sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file(self, path: str | Path) -> None:
        """Sync a file's content to disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            full_sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_dir(self, path: Path) -> None:
        """Sync a folder's names to disk, if the file system supports that."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            full_sync(descriptor)
        except OSError as error:
            # Some network file systems have no fsync of a folder; they write names at once.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
                raise
        finally:
            os.close(descriptor)

    def link(self, source: str | Path, target: str | Path) -> None:
        """Give a file a second name; exactly one of several callers succeeds for one name."""
        os.link(source, target)

    def give_name(self, source: Path, target: Path) -> None:
        """Give a small finished record a name that nobody else gets; ``source`` keeps its own.

        This class uses a hard link, which any number of hosts may try at once.
        """
        self.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target``."""
        source.replace(target)

    def rename_no_replace(self, source: Path, target: Path) -> None:
        """Rename unless ``target`` exists; EINVAL if the file system cannot do that."""
        rename_no_replace(source, target)

    def exchange(self, one: Path, other: Path) -> None:
        """Swap two names in one step; EINVAL if the file system cannot do that (NFS)."""
        exchange_names(one, other)

    def ask_again(self, folder: str | Path) -> None:
        """Make an NFS client ask the server for the names in a folder, also for missing ones.

        It opens the folder. Unlike listing, this costs the same for a folder of any size.
        """
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def names_among(self, folder: Path, names: Iterable[str]) -> set[str]:
        """Return which of these names a folder has, asking the server as `ask_again` does."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return {name for name in names if _has_name(descriptor, name)}
        finally:
            os.close(descriptor)

    def list_names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208  (names, not paths)

    def make_dir(self, path: Path) -> None:
        """Make one folder that must not exist."""
        path.mkdir()

    def remove_file(self, path: Path) -> None:
        """Remove one name of a file."""
        path.unlink()

    def remove_dir(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def identity(self, path: Path) -> Identity:
        """Return device and inode of an existing file, by opening it (see ``read_bytes``)."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return status.st_dev, status.st_ino


def _has_name(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


LOCAL = FileSystem()
"""The operating system's own operations."""


def status_now(path: str | os.PathLike[str], folder: int | None = None) -> os.stat_result:
    """Return a file's status by opening it; symbolic links are followed.

    An NFS client asks the server when it opens a file. ``os.stat`` may answer from the client's
    cache, which is up to a minute old.

    Args:
        path: The file; if ``folder`` is given, its name in that folder.
        folder: A descriptor from `folder_anew`.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def forget_old_names(paths: Iterable[str]) -> None:
    """Make an NFS client ask the server again for the names in these files' folders.

    Opening a file is not enough if its name now belongs to another file while the old file exists
    under another name, or if the name was missing at an earlier look. Opening the folder is enough.
    """
    for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
        with suppress(OSError):  # opening a file in it meets the same error
            LOCAL.ask_again(folder)


@contextmanager
def folder_anew(folder: str) -> Iterator[int | None]:
    """Open a folder as `forget_old_names` does; yield None if that fails, as opening its files may.

    A file that is opened by its name within the folder is found without a walk along its path.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_folder(path: Path) -> bool:
    """Return whether a folder exists, even if an NFS client remembers that it was missing."""
    if path.is_dir():
        return True
    with suppress(OSError):
        LOCAL.ask_again(path.parent)
    return path.is_dir()


_READ_BACKS = 3

_NO_LINKS = (
    "The run was planned on a file system with hard links. Work on the host that planned "
    "it, or begin a new run with --restart."
)


class AlreadyPublishedError(LeconvertError):
    """Another record has the name; ``path`` is its path."""

    exit_code = 70


class OutcomeUnknownError(StorageError):
    """A publishing call failed, and the folder could not be read back: it may have succeeded."""


def sync_file(path: str | Path, *, fs: FileSystem = LOCAL) -> None:
    """Sync a finished file to disk."""
    with storage_errors(path):
        fs.sync_file(path)


def sync_dir(path: Path, *, fs: FileSystem = LOCAL) -> None:
    """Sync a folder's names to disk."""
    with storage_errors(path):
        fs.sync_dir(path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits."""
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def names_in(folder: Path, *, fs: FileSystem = LOCAL) -> list[str]:
    """Return the names in a folder, sorted; none if there is no folder."""
    with storage_errors(folder):
        try:
            return fs.list_names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def sync_tree(root: Path, *, files: bool = True, fs: FileSystem = LOCAL) -> None:
    """Sync ``root``, every folder below it and, if ``files``, their files to disk."""
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, topdown=False, onerror=_raise):
            subfolders.sort()
            if files:
                for name in sorted(names):
                    path = Path(folder, name)
                    # a link has no content, and its target may be missing
                    if not path.is_symlink():
                        sync_file(path, fs=fs)
            sync_dir(Path(folder), fs=fs)


def _raise(error: OSError) -> None:
    # By default `os.walk` skips a folder that cannot be listed.
    raise error


def write_durably(path: Path, data: bytes, *, fs: FileSystem = LOCAL) -> None:
    """Write or replace a small file so that after a crash it holds the old or the new content.

    The order is: a temporary file in the same folder, fsync, rename, fsync of the folder.
    """
    replace_record(path, data, sync=True, fs=fs)


def replace_record(path: Path, data: bytes, *, sync: bool = False, fs: FileSystem = LOCAL) -> None:
    """Write or replace a small file so that every reader sees the old or the new content.

    Without ``sync`` a power loss may leave it empty or missing, which is right for heartbeats and
    for records that are only displayed. A rename that reports an error but happened (see the
    module's docstring) counts as done.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
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
    """Give ``source`` the name ``target`` if it is free; exactly one caller succeeds.

    ``fs.give_name`` guarantees that: among all hosts by a hard link, or among the processes of one
    host if the run has no hard links (`leconvert.workdir.locks`).

    ``source`` must be complete, closed, synced if ``sync``, and contain a random token. It also
    keeps its own name.

    Guaranteed: if this returns, ``target`` is our record (and survives a power loss, with
    ``sync``). If it raises `AlreadyPublishedError`, ``target`` is another record. Not guaranteed:
    that a call which raises `OutcomeUnknownError` had no effect.

    Raises:
        AlreadyPublishedError: Another record has the name.
        OutcomeUnknownError: The call failed, and the folder could not be read back.
        StorageError: The call failed without effect.
    """
    try:
        fs.give_name(source, target)
    except OSError as error:
        _settle(source, target, error, fs)
    if sync:
        sync_dir(target.parent, fs=fs)


def _settle(source: Path, target: Path, failure: OSError, fs: FileSystem) -> None:
    # Returns if the name is ours after all; otherwise raises the true error.
    trouble: OSError | None = None
    for _ in range(_READ_BACKS):
        try:
            listed = target.name in fs.list_names(target.parent)
            if not listed:
                break
            if fs.read_bytes(target) == fs.read_bytes(source):
                return
            raise AlreadyPublishedError(f"{target} already holds another record.", path=str(target))
        except OSError as error:
            # Opening again repairs a stale handle; a name that vanished is missing.
            trouble = error
            if isinstance(error, FileNotFoundError):
                break
    else:
        raise OutcomeUnknownError(
            f"It is unknown whether {target} was written: {failure.strerror}, and reading "
            "it back failed too.",
            path=str(target),
            next_step=CHECK_DISK,
        ) from trouble
    if isinstance(failure, FileExistsError):
        # It existed for the server but is not listed: somebody renamed it in between.
        raise AlreadyPublishedError(
            f"{target} was written, but somebody moved it away.", path=str(target)
        )
    if failure.errno in CANNOT_LINK - {errno.EMLINK}:
        raise StorageError(
            f"Cannot use {target.parent}: its file system has no hard links, which "
            "leconvert needs there.",
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


def make_durably(folder: Path) -> None:
    """Make a folder and its missing parents, and sync their names to disk.

    Synced records are lost if the name of their folder is not synced; after a swap by two renames,
    these records alone tell where the dataset is. Existing folders are kept.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        with storage_errors(made), suppress(FileExistsError):
            LOCAL.make_dir(made)
        # A folder that is writable but not readable cannot be opened, and so cannot be synced.
        with storage_errors(made.parent), suppress(PermissionError):
            LOCAL.sync_dir(made.parent)


def make_folders_below(tree: Path, folder: Path, *, fs: FileSystem = LOCAL) -> None:
    """Make ``folder`` and missing folders between it and ``tree``, but never ``tree`` itself.

    A superseded packer finds its tree renamed away. If it made the tree again, it would continue
    with half a dataset, so it must fail here.
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
    source: str | Path,
    target: str | Path,
    *,
    tree: Path | None = None,
    fs: FileSystem = LOCAL,
) -> Literal["linked", "copied"]:
    """Move a finished shard to its path in the new tree; repeating it is harmless.

    Success is the same inode at ``target``. Another file there (left by an attempt that was voided
    since) is replaced. Across file systems, or if a hard link is refused, the bytes are copied to a
    temporary name, synced to disk, and renamed. An existing copy with the source's size and
    modification time is kept. Names in folders are not synced here: call ``sync_tree(root,
    files=False)`` once before the swap.

    Args:
        source: The shard.
        target: Its path in the tree.
        tree: The root of the tree; missing folders below it are made.
        fs: The file operations.

    Returns:
        How the file came to its path.
    """
    with storage_errors(target):
        try:
            return _give_name(source, target, fs)
        except FileNotFoundError:
            if tree is None:
                raise
            # The first file of a folder: checking each time would cost more than the link.
            make_folders_below(tree, Path(target).parent, fs=fs)
            return _give_name(source, target, fs)


def _give_name(
    name: str | Path, new_name: str | Path, fs: FileSystem
) -> Literal["linked", "copied"]:
    try:
        fs.link(name, new_name)
    except OSError as error:
        source, target = Path(name), Path(new_name)
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
        # The copy got its name after it was synced to disk, so a match is a complete copy.
        if (found.st_size, found.st_mtime_ns) == (wanted.st_size, wanted.st_mtime_ns):
            return "copied"
    temporary = _partial(target, fs)
    try:
        copy_file(source, temporary)
        os.utime(temporary, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
        fs.sync_file(temporary)
        fs.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            fs.remove_file(temporary)
        raise
    return "copied"


def _partial(target: Path, fs: FileSystem) -> Path:
    # Always the same name: the next attempt replaces the file that a crash left, so it never stays
    # in the tree.
    partial = target.with_name(f".{target.name}.leconvert-partial")
    with suppress(FileNotFoundError):
        fs.remove_file(partial)
    return partial


def remove_tree(path: Path, *, inside: Path | None = None) -> bool:
    """Remove a folder of ours with everything in it; symbolic links are never followed.

    Args:
        path: The folder.
        inside: The folder must be below this one; by default a name of leconvert must be in its
            path.

    Returns:
        Whether it is gone. A file that another host holds open on NFS may linger, which is not an
        error.

    Raises:
        WorkDirError: The folder is not ours. It was not touched.
    """
    # The folder's own name is not resolved, so a link is recognised as a link.
    real = Path(os.path.realpath(path.parent), path.name)
    if inside is not None:
        ours = real != (top := Path(os.path.realpath(inside))) and real.is_relative_to(top)
    else:
        ours = any(part.startswith(".") and ".leconvert-" in part for part in real.parts)
    if not ours or path.name in {"", ".", ".."} or real.is_symlink():
        raise WorkDirError(
            f"{path} was not removed: leconvert did not make this folder.",
            path=str(path),
            next_step="Look at the folder. Only you can decide whether you need it.",
        )
    with storage_errors(path):
        try:
            shutil.rmtree(real)
        except FileNotFoundError:
            # Another host removes it as well; a second call takes what that host had not reached.
            shutil.rmtree(real, ignore_errors=True)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EBUSY, errno.EEXIST}:
                raise
    return not is_there(real)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Return whether anything has this name, including a dangling link.

    Raises:
        StorageError: The disk fails; `os.path.lexists` would return False.
    """
    with storage_errors(os.fspath(path)):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


_PROBE_BYTES = 4096


def can_clone(source: Path, target_folder: Path) -> bool:
    """Return whether blocks of files in one folder can be shared with files in another.

    Both must be on the same file system, and it must share extents. The kernel is asked by trying,
    since the file system's type is no proof. A file of one block is made in the target folder and
    removed again; nothing is written below ``source``.
    """
    try:
        if os.stat(source).st_dev != os.stat(target_folder).st_dev:  # noqa: PTH116 - st_dev alone
            return False
        with (
            tempfile.TemporaryFile(dir=target_folder) as one,
            tempfile.TemporaryFile(dir=target_folder) as other,
        ):
            one.write(b"\0" * _PROBE_BYTES)
            one.flush()
            with suppress(OSError):
                clone_range(one.fileno(), other.fileno(), 0, 0, 0)
                return True
    except OSError:
        return False
    return False
