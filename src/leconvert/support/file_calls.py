"""The services of the platform for files: copies in the kernel, clones, exchanges, locks, mounts.

Only this module and `leconvert.support.machine` name services that Linux alone has. If a file
system or a platform lacks a service, the function raises the same `OSError` for both, and the
caller takes a plainer way.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import shutil
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

CANNOT_FLAG = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors of an exclusive rename or an exchange if the file system does not support it."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def rename_no_replace(source: Path, target: Path) -> None:
    """Rename a file or folder without replacing another.

    Raises:
        FileExistsError: ``target`` exists.
        OSError: Another error; one of `CANNOT_FLAG` if this cannot be done in one step.
    """
    _rename(source, target, _RENAME_NOREPLACE)


def exchange_names(one: Path, other: Path) -> None:
    """Exchange two names in one step.

    Raises:
        OSError: An error of `CANNOT_FLAG` if this cannot be done in one step.
    """
    _rename(one, other, _RENAME_EXCHANGE)


def _rename(source: Path, target: Path, flags: int) -> None:
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


_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("@qQQQ")


def clone_range(source: int, target: int, start: int, count: int, target_start: int) -> None:
    """Let two open files share the blocks of a range.

    Args:
        source: Descriptor of the file that has the blocks.
        target: Descriptor of the file that gets them.
        start: First byte in ``source``.
        count: Number of bytes; 0 means up to the end.
        target_start: First byte in ``target``.

    Raises:
        OSError: The file system or the platform cannot share blocks.
    """
    fcntl.ioctl(target, _FICLONERANGE, _CLONE_RANGE.pack(source, start, count, target_start))


def _copy_range(source: int, target: int, start: int, count: int, target_start: int) -> int:
    return os.copy_file_range(source, target, count, start, target_start)


def _send(source: int, target: int, start: int, count: int, target_start: int) -> int:
    os.lseek(target, target_start, os.SEEK_SET)
    return os.sendfile(target, source, start, count)


# Calls that copy in the kernel, the better one first. Each takes the arguments of `clone_range` and
# returns the number of bytes copied.
KERNEL_COPIES: dict[str, Callable[[int, int, int, int, int], int]] = {
    "copy_file_range": _copy_range,
    "sendfile": _send,
}


def read_ahead(descriptor: int, size_bytes: int) -> None:
    """Let the kernel read the first bytes of a file ahead of their use."""
    os.posix_fadvise(descriptor, 0, size_bytes, os.POSIX_FADV_WILLNEED)


# The struct flock of Linux with an off_t of 64 bits: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi")


def try_lock_range(descriptor: int, start: int, length: int) -> None:
    """Lock a range of bytes of an open file for writing, without waiting.

    The lock belongs to the open file description, so it also excludes other threads that opened
    the file themselves.

    Raises:
        BlockingIOError: Another open file description has locked some of these bytes.
    """
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)


class MemoryFile:
    """A file in memory that has a path, for libraries that open files by path.

    The file exists as long as this object.

    Attributes:
        path: The path; valid in this process alone.
        descriptor: The descriptor, open for reading and writing.
    """

    def __init__(self, size_bytes: int = 0) -> None:
        self.descriptor = os.memfd_create("leconvert", os.MFD_CLOEXEC)
        # The process id makes the path valid in threads with another view of /proc, too.
        self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        # Files of a stream in the training process are closed only when the stream is collected.
        self._end = weakref.finalize(self, os.close, self.descriptor)
        self._end.atexit = False
        os.ftruncate(self.descriptor, size_bytes)
        self._size_bytes = size_bytes
        self._memory: mmap.mmap | None = None

    def give_back(self, start: int, stop: int) -> None:
        """Free the pages from byte ``start`` to ``stop``, both multiples of the page size.

        They read as zeros from now on.
        """
        if self._memory is None:
            self._memory = mmap.mmap(self.descriptor, self._size_bytes)
        self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)

    def close(self) -> None:
        """Free the memory; the path becomes invalid."""
        if self._memory is not None:
            self._memory.close()
        self._end()


_MOUNTS = Path("/proc/self/mountinfo")
_FLEETING = frozenset({"exfat", "fuse", "fuseblk", "msdos", "vfat"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount, as the kernel reports it.

    Attributes:
        point: The mount point.
        kind: Type of the file system, such as ``nfs4``; ``unknown`` if the kernel does not report
            it.
        source: Device or server.
        options: Options of the mount and of the file system.
        free_bytes: Free space for this user.
        total_bytes: Size of the file system.
        device: Device number of its files, as in `os.stat`; 0 if unknown.
    """

    point: str
    kind: str = "unknown"
    source: str = ""
    options: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    device: int = 0

    @property
    def has_fleeting_inodes(self) -> bool:
        """Whether inode numbers of files may change after a new mount or after a while.

        FAT and exFAT store none, so Linux invents them when files are looked at. Most programs
        behind FUSE leave inode numbers to libfuse, which does the same.
        """
        return self.kind in _FLEETING or self.kind.startswith("fuse.")


def mount_of(folder: Path) -> Mount:
    """Return the mount that holds a folder."""
    usage = shutil.disk_usage(folder)
    real = Path(os.path.realpath(folder))
    mounts = parse_mounts(_mount_table())
    # If two mounts have the same point, the later one hides the earlier.
    found = [mount for mount in mounts if real.is_relative_to(mount.point)]
    best = max(found, key=lambda mount: len(Path(mount.point).parts), default=Mount(str(real)))
    for mount in found:
        if mount.point == best.point:
            best = mount
    return replace(best, free_bytes=usage.free, total_bytes=usage.total)


def is_mount_point(folder: Path) -> bool:
    """Return whether a folder is a mount point, which cannot be renamed.

    A folder that is mounted a second time elsewhere (a bind mount) has its parent's device number,
    so ``Path.is_mount`` does not recognise it.
    """
    real = os.path.realpath(folder)
    return any(mount.point == real for mount in parse_mounts(_mount_table()))


def devices_with_fleeting_inodes() -> frozenset[int]:
    """Return the device numbers of current mounts without lasting inode numbers."""
    mounts = parse_mounts(_mount_table())
    return frozenset(mount.device for mount in mounts if mount.has_fleeting_inodes)


def _mount_table() -> str:
    # Never cached, since mounts change.
    try:
        return _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of a ``mountinfo`` file, in its order; malformed lines are skipped.

    proc_pid_mountinfo(5) describes the fields: any number of optional ones end with ``-``.
    """
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        if dash and len(head) >= 6 and len(tail) >= 3:
            point, kind, source = _plain(head[4]), tail[0], _plain(tail[1])
            options = f"{head[5]},{tail[2]}"
            mounts.append(Mount(point, kind, source, options, device=_device(head[2])))
    return mounts


def _device(field: str) -> int:
    major, _, minor = field.partition(":")
    return os.makedev(int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else 0


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)
