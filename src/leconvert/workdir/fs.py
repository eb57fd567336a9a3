"""The few file operations that publishing, leasing and the swap are made of, and what they make.

The operations are methods of one small class, `FileSystem`, so that a test can put faults between
any two of them. They raise plain ``OSError``; the functions turn what a user can act on into a
`StorageError`. No other module forces bytes to the disk or gives finished files their names.

**Outcome unknown.** Over NFS a request can succeed on the server while its answer gets lost;
the repeated request then finds its own work and reports EEXIST (or ENOENT for a rename), or the
client gives up with EIO, ESTALE or ETIMEDOUT. So no error of a publishing call is believed. The
folder is listed (which refreshes a cached "no such file"), the record is read back, and its
content decides: a record that is published exclusively contains a random token, so equal bytes
are the same record. If even reading back fails, `OutcomeUnknownError` says so, and whoever asks
again later gets the truth.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
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
"""What `FileSystem.link` fails with where there are no hard links, or not this many of one file."""


class FileSystem:
    """Plain operations of the operating system; each one happens as a whole or raises ``OSError``.

    It does not promise that an error means "did not happen": over NFS a repeated request can
    report EEXIST or ENOENT to the very host whose first request succeeded. Callers look.
    """

    def read_bytes(self, path: Path) -> bytes:
        """Return a file's content. Opening asks an NFS server anew; ``stat`` may answer late."""
        with path.open("rb") as file:
            return file.read()

    def write_new(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Create a file that must not exist, write it whole, and fsync it if asked."""
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
        """Force a file's content to the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            full_sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_dir(self, path: Path) -> None:
        """Force a folder's names to the disk, where the file system has such a call at all."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            full_sync(descriptor)
        except OSError as error:
            # Some network file systems have no fsync of a folder; they write names through.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
                raise
        finally:
            os.close(descriptor)

    def link(self, source: str | Path, target: str | Path) -> None:
        """Give a file a second name; exactly one of several callers succeeds for one name."""
        os.link(source, target)

    def give_name(self, source: Path, target: Path) -> None:
        """Give a small finished record a name that nobody else gets; ``source`` keeps its own.

        Here by a hard link, which any number of hosts may try at once.
        """
        self.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, replacing what ``target`` names."""
        source.replace(target)

    def rename_no_replace(self, source: Path, target: Path) -> None:
        """Rename unless ``target`` exists; EINVAL where the file system cannot do that."""
        rename_no_replace(source, target)

    def exchange(self, one: Path, other: Path) -> None:
        """Swap two names in one step; EINVAL where the file system cannot do that (NFS)."""
        exchange_names(one, other)

    def ask_again(self, folder: str | Path) -> None:
        """Make an NFS client ask again what is in a folder, also for a name that was not there.

        It opens the folder: unlike listing it that costs the same however much is in it.
        """
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def names_among(self, folder: Path, names: Iterable[str]) -> set[str]:
        """Return which of these names a folder has, asking as `ask_again` does."""
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
"""The operations as the operating system offers them."""


def status_now(path: str | os.PathLike[str], folder: int | None = None) -> os.stat_result:
    """Return a file's status by opening it; symbolic links are followed.

    An NFS client asks the server again when it opens a file. ``os.stat`` may answer with what the
    client remembers, which is up to a minute old.

    Args:
        path: The file; where a folder is given, its name in that.
        folder: A descriptor, from `folder_anew`.
    """
    # A named pipe would otherwise wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def forget_old_names(paths: Iterable[str]) -> None:
    """Make an NFS client ask again which files the names in these files' folders stand for.

    Opening a file is not enough where the name leads to another file now, and the old one exists
    under another name; or where the name was looked up in vain before. Opening the folder is.
    """
    for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
        with suppress(OSError):  # whoever opens a file in it meets the same error
            LOCAL.ask_again(folder)


@contextmanager
def folder_anew(folder: str) -> Iterator[int | None]:
    """Open a folder, as `forget_old_names` does; None where that fails, as it may for its files.

    A file that is opened by its name in it is found without a walk along its path.
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
    """Say whether there is a folder, also where an NFS client remembers that there was none."""
    if path.is_dir():
        return True
    with suppress(OSError):
        LOCAL.ask_again(path.parent)
    return path.is_dir()


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


def sync_file(path: str | Path, *, fs: FileSystem = LOCAL) -> None:
    """Force a finished file to the disk."""
    with storage_errors(path):
        fs.sync_file(path)


def sync_dir(path: Path, *, fs: FileSystem = LOCAL) -> None:
    """Force a folder's names to the disk."""
    with storage_errors(path):
        fs.sync_dir(path)


def sync_tree(root: Path, *, files: bool = True, fs: FileSystem = LOCAL) -> None:
    """Force ``root``, every folder below it and, if wanted, their files to the disk."""
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, topdown=False, onerror=_raise):
            subfolders.sort()
            if files:
                for name in sorted(names):
                    path = Path(folder, name)
                    if not path.is_symlink():  # it has no content, and may lead to nothing
                        sync_file(path, fs=fs)
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
    one host where the run has no hard links (`leconvert.workdir.locks`).

    ``source`` must be complete, closed, synced where ``sync`` matters, and contain a random token.
    It keeps its own name too.

    Guarantees: if this returns, ``target`` names our record (and survives a power loss, with
    ``sync``). If it raises `AlreadyPublishedError`, ``target`` names another record. It does not
    promise that a call which raises `OutcomeUnknownError` had no effect.
    """
    try:
        fs.give_name(source, target)
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


def make_durably(folder: Path) -> None:
    """Make a folder with those above it, and force the names of what was made to the disk.

    Records that are forced to the disk in a folder whose own name is not are lost with it; after a
    swap by two renames they are all that tells where the dataset is. What exists is kept.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        with storage_errors(made), suppress(FileExistsError):
            LOCAL.make_dir(made)
        # A folder that may be written but not read cannot be opened, and so not forced either.
        with storage_errors(made.parent), suppress(PermissionError):
            LOCAL.sync_dir(made.parent)


def make_folders_below(tree: Path, folder: Path, *, fs: FileSystem = LOCAL) -> None:
    """Make ``folder`` and what is missing between it and ``tree``, but never ``tree`` itself.

    A packer that was superseded finds its tree renamed away; making the tree anew would let it
    go on with half a dataset, so it must fail here.
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
    """Promote a finished shard to its place in the new tree; repeating it is harmless.

    The same inode at ``target`` is success. Another file there (left by an attempt that was voided
    since) is replaced. Across file systems, or where a hard link is refused, the bytes are copied
    to a temporary name, forced to the disk, and renamed; a copy with the same size and
    modification time as the source is kept. Folders' names are not forced to the disk here: call
    ``sync_tree(root, files=False)`` once before the swap.
    """
    with storage_errors(target):
        try:
            return _give_name(source, target, fs)
        except FileNotFoundError:
            if tree is None:
                raise
            # The first file of a folder: asked for each, that would cost more than the link.
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
        # The name appeared after the copy was on the disk, so a match is a whole copy.
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
    # Always the same name, so that what a crash left is replaced by the next try and never stays
    # in the tree.
    partial = target.with_name(f".{target.name}.leconvert-partial")
    with suppress(FileNotFoundError):
        fs.remove_file(partial)
    return partial


def remove_tree(path: Path, *, inside: Path | None = None) -> bool:
    """Remove a folder of ours with all that is in it; never follows symbolic links.

    Returns:
        Whether it is gone. What another host still holds open on NFS may linger; that is no error.
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
            next_step="It was not touched.",
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
    return not is_there(real)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Tell whether anything has this name, a link that leads nowhere too.

    Raises:
        StorageError: The disk does not say; `os.path.lexists` takes that for a no.
    """
    with storage_errors(os.fspath(path)):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


_PROBE_BYTES = 4096


def can_clone(source: Path, target_folder: Path) -> bool:
    """Tell whether blocks of files in one folder can be cloned into another.

    Both must be on the same file system, and it must share extents. The kernel is asked by trying;
    no type of file system is trusted to tell by its name. A file of one block is made
    in the target folder and removed again; nothing is written below ``source``.
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
