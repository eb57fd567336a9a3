"""The services of the platform for files: copies in the kernel, clones, exchanges, locks, mounts.

Only this module and `leconvert.support.machine` name services that Linux or macOS alone has. If a
file system or a platform lacks a service, a function takes a plainer way, or it raises the same
`OSError` for both and the caller takes one.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from leconvert.support.errors import InterruptedRunError, StorageError, UnreadableSourceError
from leconvert.support.storage_errors import CHECK_DISK
from leconvert.support.text import GET_AGAIN_OR_DROP
from leconvert.support.values import dataclass

CANNOT_FLAG = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors of an exclusive rename or an exchange if the file system does not support it."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
# The same flags on macOS: RENAME_EXCL and RENAME_SWAP of its sys/stdio.h.
_FLAGS_OF_MACOS = {_RENAME_NOREPLACE: 4, _RENAME_EXCHANGE: 2}


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

    library = ctypes.CDLL(None, use_errno=True)
    paths = ctypes.c_char_p(os.fsencode(source)), ctypes.c_char_p(os.fsencode(target))
    code = 0
    if function := getattr(library, "renameat2", None):
        if function(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], ctypes.c_uint(flags)) != 0:
            code = ctypes.get_errno()
    elif function := getattr(library, "renamex_np", None):
        if function(*paths, ctypes.c_uint(_FLAGS_OF_MACOS[flags])) != 0:
            code = ctypes.get_errno()
    else:
        code = errno.ENOSYS
    if code:
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
    if sys.platform == "linux":  # another system may give the number another meaning
        fcntl.ioctl(target, _FICLONERANGE, _CLONE_RANGE.pack(source, start, count, target_start))
    else:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copy a file's content to a new or existing file; the bytes may be shared.

    macOS clones whole files in one call; elsewhere `shutil.copyfile` copies in the kernel.
    """
    import ctypes

    clone = getattr(ctypes.CDLL(None), "clonefile", None)
    if clone is not None and not os.path.lexists(target):
        paths = ctypes.c_char_p(os.fsencode(source)), ctypes.c_char_p(os.fsencode(target))
        if clone(*paths, ctypes.c_uint32(0)) == 0:
            # A clone also has the source's mode.
            os.chmod(target, os.stat(target).st_mode | stat.S_IWUSR)  # noqa: PTH101, PTH116
            return
    shutil.copyfile(source, target)


def full_sync(descriptor: int) -> None:
    """Force an open file, or a folder's names, to the disk itself.

    On macOS, ``fsync`` leaves them in the disk's own cache, and F_FULLFSYNC empties this cache.
    File systems that do not support F_FULLFSYNC (network, FAT) get an ``fsync``.
    """
    if hasattr(fcntl, "F_FULLFSYNC"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(descriptor)


_NO_FULL_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY})


def _copy_range(source: int, target: int, start: int, count: int, target_start: int) -> int:
    if sys.platform == "linux" and hasattr(os, "copy_file_range"):
        return os.copy_file_range(source, target, count, start, target_start)
    return 0


def _send(source: int, target: int, start: int, count: int, target_start: int) -> int:
    # On other platforms it can only send to sockets.
    if sys.platform == "linux" and hasattr(os, "sendfile"):
        os.lseek(target, target_start, os.SEEK_SET)
        return os.sendfile(target, source, start, count)
    return 0


# Calls that copy in the kernel, the better one first. Each takes the arguments of `clone_range` and
# returns the number of bytes copied; 0 if the platform lacks the call.
KERNEL_COPIES: dict[str, Callable[[int, int, int, int, int], int]] = {
    "copy_file_range": _copy_range,
    "sendfile": _send,
}


# Ways to move a range, from best to last: share the extents, copy in the kernel, read and write. A
# way that two file systems refuse once is not tried again.

_STEP_BYTES = 64 * 1024**2
_BUFFER_BYTES = 1024**2

_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])


class RangeMover:
    """Moves byte ranges into one open destination, and remembers which ways work.

    Guaranteed: after :meth:`move` the destination holds the bytes of the source range, and a source
    that ends early is an error. It does not sync, and after an error a part of the range may be
    there.

    Args:
        destination: Descriptor of a file open for reading and writing.
        path: Its name, for errors.
        block_align: Share whole blocks of this size if both offsets are equal modulo it; 0 for
            never.
        on_bytes: Called with the number of bytes after each step.
        should_stop: Called before each step.

    Attributes:
        copied_bytes: Bytes that were copied.
        cloned_bytes: Bytes that are shared with their source.
    """

    def __init__(
        self,
        destination: int,
        path: str,
        *,
        block_align: int = 0,
        on_bytes: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.copied_bytes = 0
        self.cloned_bytes = 0
        self._destination = destination
        self._path = path
        self._block_align = block_align
        self._on_bytes = on_bytes
        self._should_stop = should_stop
        self._refused: set[tuple[int, str]] = set()
        self._buffer = memoryview(b"")

    def move(
        self, source: int, source_path: str, start: int, length: int, target_start: int
    ) -> None:
        """Move one range.

        Raises:
            UnreadableSourceError: The source cannot be read, or ends early.
            StorageError: The destination cannot be written.
            InterruptedRunError: ``should_stop`` returned true.
        """
        align = self._block_align
        if align and (start - target_start) % align == 0 and not self._refuses(source, "clone"):
            inner_start = -(-start // align) * align
            inner_stop = (start + length) // align * align
            if inner_start < inner_stop:
                head = inner_start - start
                self._copy(source, source_path, start, head, target_start)
                done = head + self._clone(source, inner_start, inner_stop, target_start + head)
                start, length, target_start = start + done, length - done, target_start + done
        self._copy(source, source_path, start, length, target_start)

    def _refuses(self, source: int, way: str) -> bool:
        """Return whether a way was refused before for files on the same device."""
        return bool(self._refused) and (os.fstat(source).st_dev, way) in self._refused

    def _note_refusal(self, source: int, way: str) -> None:
        self._refused.add((os.fstat(source).st_dev, way))

    def _clone(self, source: int, start: int, stop: int, target_start: int) -> int:
        """Share whole blocks; return how many of their bytes are shared now."""
        done = 0
        while start + done < stop:
            self._check_stop()
            count = min(stop - start - done, _STEP_BYTES)
            try:
                clone_range(source, self._destination, start + done, count, target_start + done)
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                # For any other error, copying will either succeed or give a more exact error.
                self._note_refusal(source, "clone")
                break
            done += count
            self.cloned_bytes += count
            self._report(count)
        return done

    def _copy(self, source: int, path: str, start: int, length: int, target_start: int) -> None:
        while length:
            self._check_stop()
            count = min(length, _STEP_BYTES)
            moved = self._copy_in_kernel(source, start, count, target_start)
            if not moved:
                moved = self._copy_through_memory(source, path, start, count, target_start)
            start, length, target_start = start + moved, length - moved, target_start + moved
            self.copied_bytes += moved
            self._report(moved)

    def _copy_in_kernel(self, source: int, start: int, count: int, target_start: int) -> int:
        """Copy some of a range; return 0 if the kernel refuses, for any reason."""
        for name, way in KERNEL_COPIES.items():
            if self._refuses(source, name):
                continue
            try:
                moved = way(source, self._destination, start, count, target_start)
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                moved = 0
            if moved:
                return moved
            # Some file systems move nothing without an error.
            self._note_refusal(source, name)
        return 0

    def _copy_through_memory(
        self, source: int, path: str, start: int, count: int, target_start: int
    ) -> int:
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        try:
            moved = os.preadv(source, [self._buffer[: min(count, _BUFFER_BYTES)]], start)
        except OSError as error:
            raise UnreadableSourceError(
                f"{path} cannot be read: {error.strerror or error}.",
                path=path,
                next_step=CHECK_DISK,
            ) from error
        if not moved:
            raise UnreadableSourceError(
                f"{path} is shorter than its index says: the file is cut off.",
                path=path,
                next_step=GET_AGAIN_OR_DROP,
            )
        self.write([self._buffer[:moved]], target_start)
        return moved

    def write(self, pieces: Sequence[bytes | memoryview], target_start: int) -> None:
        """Write bytes from memory, one piece after another; at most 1,024 pieces."""
        missing = sum(map(len, pieces))
        try:
            while missing:
                count = os.pwritev(self._destination, pieces, target_start)
                missing -= count
                target_start += count
                if missing:
                    # Rare: a write that was cut short.
                    pieces = [b"".join(pieces)[count:]]
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self._path} cannot be written: {error.strerror or error}.",
            path=self._path,
            next_step="Free disk space or check the disk, then run the same command again.",
        )

    def _report(self, count: int) -> None:
        if self._on_bytes is not None:
            self._on_bytes(count)

    def _check_stop(self) -> None:
        if self._should_stop is not None and self._should_stop():
            raise InterruptedRunError(
                f"Stopped while writing {self._path}.",
                path=self._path,
                next_step="Run the same command again to resume.",
            )


def read_ahead(descriptor: int, size_bytes: int) -> None:
    """Let the kernel read the first bytes of a file ahead of their use."""
    if sys.platform == "linux" and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, size_bytes, os.POSIX_FADV_WILLNEED)


# The struct flock of Linux with an off_t of 64 bits: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi")


def locks_ranges() -> bool:
    """Return whether a range of bytes can be locked for an open file description."""
    return hasattr(fcntl, "F_OFD_SETLK")


def try_lock_range(descriptor: int, start: int, length: int) -> None:
    """Lock a range of bytes of an open file for writing, without waiting.

    The lock belongs to the open file description, so it also excludes other threads that opened
    the file themselves.

    On a platform without such locks, the whole file is locked; see `locks_ranges`.

    Raises:
        BlockingIOError: Another open file description has locked some of these bytes.
    """
    if locks_ranges():
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class MemoryFile:
    """A file in memory that has a path, for libraries that open files by path.

    The file exists as long as this object.

    On a platform without such files, it is a sparse file in the folder for temporary files.

    Attributes:
        path: The path; valid in this process alone.
        descriptor: The descriptor, open for reading and writing.
        gives_parts_back: Whether `give_back` works; otherwise only `clear` does.
    """

    def __init__(self, size_bytes: int = 0) -> None:
        # Files of a stream in the training process are closed only when the stream is collected.
        if sys.platform == "linux" and hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("leconvert", os.MFD_CLOEXEC)
            # The process id makes the path valid in threads with another view of /proc, too.
            self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
            self._end = weakref.finalize(self, _remove, self.descriptor)
            self._end.atexit = False
        else:
            self.descriptor, self.path = tempfile.mkstemp(prefix="leconvert-")
            self._end = weakref.finalize(self, _remove, self.descriptor, self.path)
        os.ftruncate(self.descriptor, size_bytes)
        self._size_bytes = size_bytes
        self._memory: mmap.mmap | None = None
        self.gives_parts_back = hasattr(mmap, "MADV_REMOVE")

    def give_back(self, start: int, stop: int) -> None:
        """Free the pages from byte ``start`` to ``stop``, both multiples of the page size.

        They read as zeros from now on.
        """
        if sys.platform == "linux":
            if self._memory is None:
                self._memory = mmap.mmap(self.descriptor, self._size_bytes)
            self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)

    def clear(self) -> None:
        """Free all pages; they read as zeros from now on."""
        os.ftruncate(self.descriptor, 0)
        os.ftruncate(self.descriptor, self._size_bytes)

    def close(self) -> None:
        """Free the memory; the path becomes invalid."""
        if self._memory is not None:
            self._memory.close()
        self._end()


def _remove(descriptor: int, path: str | None = None) -> None:
    os.close(descriptor)
    if path is not None:
        with suppress(OSError):  # the folder for temporary files was cleaned before
            os.unlink(path)  # noqa: PTH108


def is_same_path(one: str, other: str) -> bool:
    """Return whether two spellings are the path of one file or folder that exists.

    File systems of macOS and Windows take ``A`` and ``a`` for one name. On those of macOS, an
    accented letter is also the same as its two parts, and some of them list the parts even if the
    name was given with the letter. If both spellings are found but only one of them is listed, they
    are one name. Inode numbers do not tell: behind FUSE each spelling may have a number of its own.
    """
    if one == other:
        return True
    if folded_name(one) != folded_name(other):
        return False
    if not (os.path.lexists(one) and os.path.lexists(other)):
        return False
    folder = ""
    for mine, others in zip(one.split("/"), other.split("/"), strict=True):
        if mine != others:
            wanted = folded_name(mine)
            try:
                names = os.listdir(folder or ".")  # noqa: PTH208
            except OSError:
                return False
            if sum(folded_name(name) == wanted for name in names) != 1:
                return False
        folder += f"{mine}/"
    return True


def folded_name(name: str) -> str:
    """Return a text that is equal for all spellings that a file system may take for one name."""
    if name.isascii():
        return name.lower()
    from unicodedata import normalize

    return normalize("NFD", normalize("NFD", name).casefold())


_MOUNTS = Path("/proc/self/mountinfo")
_FLEETING = frozenset({"exfat", "fuse", "fuseblk", "macfuse", "msdos", "vfat"})
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

    @property
    def is_remote(self) -> bool:
        """Whether a server answers for it, such as ``host:/export``, or a program behind FUSE."""
        return ":" in self.source or self.source[:2] == "//" or self.kind.startswith("fuse.")


def mount_of(folder: Path) -> Mount:
    """Return the mount that holds a folder."""
    usage = shutil.disk_usage(folder)
    real = Path(os.path.realpath(folder))
    mounts = _mounts()
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
    return any(mount.point == real for mount in _mounts())


def devices_with_fleeting_inodes() -> frozenset[int]:
    """Return the device numbers of current mounts without lasting inode numbers."""
    return frozenset(mount.device for mount in _mounts() if mount.has_fleeting_inodes)


def _mounts() -> list[Mount]:
    # Never cached, since mounts change.
    if table := _mount_table():
        return parse_mounts(table)
    import psutil

    mounts = []
    try:
        for part in psutil.disk_partitions(all=True):
            mount = Mount(part.mountpoint, part.fstype, part.device, part.opts)
            if mount.has_fleeting_inodes:  # no other device number is needed
                mount = replace(mount, device=os.stat(mount.point).st_dev)  # noqa: PTH116
            mounts.append(mount)
    except (OSError, psutil.Error):  # unknown, or unmounted meanwhile
        pass
    return mounts


def _mount_table() -> str:
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
