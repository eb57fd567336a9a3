"""The few file operations that publishing, leasing and the swap are made of.

They are methods of one small class so that a test can put faults between any two of them. They
raise plain ``OSError``; `leconvert.workdir.durable` turns what a user can act on into a
`StorageError`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = [
    "CANNOT_FLAG",
    "CANNOT_LINK",
    "LOCAL",
    "FileSystem",
    "Identity",
    "forget_old_names",
    "status_now",
]

Identity = tuple[int, int]
"""Device and inode number: two names with the same identity are one file."""

CANNOT_LINK = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What `FileSystem.link` fails with where there are no hard links, or not this many of one file."""
CANNOT_FLAG = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What an exclusive rename or an exchange fails with where the file system has no such thing."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


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
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file(self, path: Path) -> None:
        """Force a file's content to the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_dir(self, path: Path) -> None:
        """Force a folder's names to the disk, where the file system has such a call at all."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network file systems have no fsync of a folder; they write names through.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
                raise
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; exactly one of several callers succeeds for one name."""
        os.link(source, target)

    def give_name(self, source: Path, target: Path, *, sync: bool) -> None:  # noqa: ARG002
        """Give a small finished record a name that nobody else gets; ``source`` keeps its own.

        Here by a hard link, which any number of hosts may try at once.

        Args:
            source: The record; on the disk already where ``sync`` matters.
            target: The name.
            sync: Whether what has the name must be on the disk before it has it.
        """
        self.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, replacing what ``target`` names."""
        source.replace(target)

    def rename_no_replace(self, source: Path, target: Path) -> None:
        """Rename unless ``target`` exists; EINVAL where the file system cannot do that."""
        _renameat2(source, target, _RENAME_NOREPLACE)

    def exchange(self, one: Path, other: Path) -> None:
        """Swap two names in one step; EINVAL where the file system cannot do that (NFS)."""
        _renameat2(one, other, _RENAME_EXCHANGE)

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


def _renameat2(source: Path, target: Path, flags: int) -> None:
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source), None, str(target))
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ]
    function.restype = ctypes.c_int
    if function(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(source), None, str(target))


def status_now(path: str | os.PathLike[str]) -> os.stat_result:
    """Return a file's status by opening it; symbolic links are followed.

    An NFS client asks the server again when it opens a file. ``os.stat`` may answer with what the
    client remembers, which is up to a minute old.

    Raises:
        OSError: The file is not there, or cannot be opened for reading.
    """
    # A named pipe would otherwise wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
            os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


LOCAL = FileSystem()
"""The operations as the operating system offers them."""
