"""Every operation by which this process uses a disk, numbered, so that a test can break each one.

`tests.faults.faulty_files` stands in for the few operations of publishing, leasing and the swap.
This layer sees all of them, whoever calls: records, shards, tables, locks, clean-up. It takes the
places of the functions by which Python code reaches a disk, for paths below given folders only:
`os`, ``open``, ``fcntl`` and the exclusive rename are replaced as attributes of their modules, so
that whoever looks them up there (pathlib, shutil, tempfile and filelock do) comes by. pyarrow opens
files by itself: its parquet writer gets an open file instead of a path, and writes the same bytes.

What it does not see: reads that a library makes by itself (pyarrow, NumPy, FFmpeg), and what FFmpeg
writes while it remuxes a clip. `names_and_sizes` rebuilds a folder from the operations alone; where
that gives what is really there, no change went unseen.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow.parquet as pq
from tests.faults.faulty_files import CrashError
from tests.faults.power import Loss, PowerModel

from leconvert.support import file_calls

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Descriptors", "Fault", "FaultKind", "Operation", "WatchedDisk", "names_and_sizes"]

_UNRESOLVED = re.compile(r"/\.{0,2}(/|\Z)")
_fstat = os.fstat
_NO_ROOM = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT})
_NAMES = ("mkdir", "rmdir", "unlink", "remove", "truncate", "utime", "chmod")
_PAIRS = ("link", "rename", "replace")
_DESCRIPTORS = ("ftruncate", "posix_fallocate", "fchmod")
_SYNCS = ("fsync", "fdatasync")
_OF_LINKS = frozenset({"rmdir", "unlink", "remove", "mkdir", "lstat", *_PAIRS})
_LOOKS = ("stat", "lstat", "listdir", "scandir", "pread", "preadv")
_CLONES = frozenset({0x40049409, 0x4020940D})  # FICLONE, FICLONERANGE
_MAKES = os.O_CREAT | os.O_TRUNC
_FLAG_NAMES = {1: "rename_no_replace", 2: "exchange"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: The function, such as ``pwrite``.
        paths: The absolute paths that it is about.
        changes: Whether it changes what is on the disk; the others only look.
        stage: What the program was doing, as the test says.
        size_bytes: Bytes that it wrote.
        error: The errno that it reported, or 0.
    """

    name: str
    paths: tuple[str, ...]
    changes: bool = True
    stage: str = ""
    size_bytes: int = 0
    error: int = 0


class FaultKind(StrEnum):
    """What goes wrong at one operation."""

    DIE = "the process dies before it"
    TEAR = "half of its bytes are written, then the process dies"
    SHORT = "half of its bytes are written, and it says so"
    FAIL = "it reports an error and does nothing"
    LIE = "it happens and reports an error"
    CHANGE = "somebody else changes a file before it"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    To die before operation *n + 1* is to die after operation *n*: a process that died does nothing
    in between.

    Attributes:
        at: Number of the operation, from 0.
        kind: What happens there.
        code: The errno of an error.
        lasts: Whether everything later fails as well. A full or read-only disk can still be read.
        loss: Where the process dies of a power failure, what it takes with it.
    """

    at: int
    kind: FaultKind
    code: int = 0
    lasts: bool = False
    loss: Loss | None = None

    def hits(self, number: int, operation: Operation) -> bool:
        """Say whether this operation is hit."""
        if number == self.at:
            return True
        return self.lasts and number > self.at and (operation.changes or self.code not in _NO_ROOM)


class WatchedDisk:
    """Counts the operations below some folders while the ``with`` block runs, and breaks one.

    Once the process "died", every further operation raises `CrashError` too. In a forked process
    ``on_death`` can end it for good instead, without any ``finally``.

    Args:
        roots: The folders that are watched.
        fault: What goes wrong, or None.
        can_exchange: Whether the file system knows the flags of ``renameat2``; NFS does not.
        has_links: Whether it has hard links; FAT and most mounts of object stores do not.
        has_locks: Whether it has ``flock``; some mounts of Lustre do not.
        on_death: Called instead of raising `CrashError`.
        on_change: Called where somebody else shall change a file.
        really_sync: Whether fsync reaches the disk; a test of process deaths does not need it.
        power: Follows what is on the disk for sure, or None.

    Attributes:
        operations: What was done so far, in order.
        stage: What operations from now on are marked with.
        descriptors: What is open.
    """

    def __init__(
        self,
        *roots: Path,
        fault: Fault | None = None,
        can_exchange: bool = True,
        has_links: bool = True,
        has_locks: bool = True,
        on_death: Callable[[], None] | None = None,
        on_change: Callable[[], None] = lambda: None,
        really_sync: bool = False,
        power: PowerModel | None = None,
    ) -> None:
        self.operations: list[Operation] = []
        self.stage = ""
        self.descriptors = Descriptors()
        self.can_exchange = can_exchange
        self.has_links = has_links
        self.has_locks = has_locks
        self.really_sync = really_sync
        self.power = power
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self._below = tuple(f"{root}/" for root in self._roots)
        self._fault = fault
        self._on_death = on_death
        self._on_change = on_change
        self._dead = False
        self._looks_itself = False  # whoever follows the operations does none
        self._lock = threading.RLock()
        self._installed = ExitStack()

    def __enter__(self) -> Self:
        self._installed.enter_context(_intercepted(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._installed.close()

    def root_of(self, path: str) -> str:
        """Return the watched folder that an absolute path lies in, or an empty string."""
        return next((root for root in self._roots if f"{path}/".startswith(f"{root}/")), "")

    def watches(self, paths: Iterable[str]) -> bool:
        """Say whether one of these absolute paths lies below a watched folder."""
        return any(path.startswith(self._below) or path in self._roots for path in paths)

    def do[Result](
        self,
        name: str,
        paths: tuple[str, ...],
        call: Callable[[], Result],
        *,
        changes: bool = True,
        half: Callable[[], Result] | None = None,
    ) -> Result:
        """Do one operation, or what the fault makes of it.

        Args:
            call: Does it.
            half: Does half of it, where it writes bytes and returns how many.
        """
        if not self.watches(paths):
            return call()
        with self._lock:
            if self._looks_itself:
                return call()
            operation = Operation(name, paths, changes, self.stage)
            number = len(self.operations)
            self.operations.append(operation)
            if self._dead:
                raise CrashError
            fault = self._fault
            if fault is not None and fault.hits(number, operation):
                return self._break(fault, operation, call, half)
            if self.power is not None and changes:
                self.power.before(name, paths)
            try:
                result = call()
            except OSError as error:
                self.operations[number] = replace(operation, error=error.errno or -1)
                raise
            if self.power is not None and changes:
                self._looks_itself = True
                try:
                    self.power.after(name, paths)
                finally:
                    self._looks_itself = False
            if half is not None and isinstance(result, int):
                self.operations[number] = replace(operation, size_bytes=result)
            return result

    def _break[Result](
        self,
        fault: Fault,
        operation: Operation,
        call: Callable[[], Result],
        half: Callable[[], Result] | None,
    ) -> Result:
        match fault.kind:
            case FaultKind.SHORT:
                return (half or call)()
            case FaultKind.FAIL | FaultKind.LIE:
                if fault.kind is FaultKind.LIE:
                    call()
                raise OSError(fault.code, os.strerror(fault.code), *operation.paths[:1])
            case FaultKind.CHANGE:
                self._on_change()
                return call()
            case FaultKind.TEAR if half is not None:
                half()
        self._dead = True
        if self._on_death is not None:
            self._on_death()
        raise CrashError


def names_and_sizes(operations: Iterable[Operation]) -> dict[str, int]:
    """Rebuild what operations made: each file's path and size in bytes, each folder's as -1.

    It goes by the operations alone and looks at no disk. Files that are written twice at one place
    come out too large.
    """
    files: dict[str, list[int]] = {}
    for done in operations:
        if not done.changes or done.error:
            continue
        match done.name, done.paths:
            case "open", (path,):
                files.setdefault(path, [0])
            case "mkdir", (path,):
                files[path] = [-1]
            case (("unlink" | "remove" | "rmdir"), (path,)):
                del files[path]
            case "link", (source, target):
                files[target] = files[source]
            case (("rename" | "replace" | "rename_no_replace"), (source, target)):
                _move(files, source, target)
            case "exchange", (one, other):
                _move(files, one, f"{one} *")
                _move(files, other, one)
                _move(files, f"{one} *", other)
            case _, (path, *_) if done.size_bytes:
                files[path][0] += done.size_bytes
    return {path: size_bytes for path, (size_bytes,) in files.items()}


def _move(files: dict[str, list[int]], source: str, target: str) -> None:
    moved = [path for path in files if path == source or path.startswith(f"{source}/")]
    for path in moved:
        files[target + path.removeprefix(source)] = files.pop(path)


class Descriptors:
    """The paths of descriptors that were opened while somebody watched.

    The kernel knows too (``/proc/self/fd``), but each process that asks it there leaves entries
    that the kernel has to clear away when the process ends; thousands of forked trials must not.

    A number that was closed and given to something else since is noticed by its inode: then, and
    for what was opened unseen, the path is empty.
    """

    def __init__(self) -> None:
        self._opened: dict[int, tuple[int, int, str]] = {}

    def opened(self, descriptor: int, path: str) -> None:
        """Note what a descriptor was opened at."""
        found = _fstat(descriptor)
        self._opened[descriptor] = (found.st_dev, found.st_ino, path)

    def path_of(self, descriptor: int) -> str:
        """Return the present path of a descriptor, or an empty string."""
        found = _fstat(descriptor)
        device, inode, path = self._opened.get(descriptor, (0, 0, ""))
        return path if (device, inode) == (found.st_dev, found.st_ino) else ""

    def renamed(self, source: str, target: str) -> None:
        """Let open files below a renamed name follow it."""
        for descriptor, (device, inode, path) in self._opened.items():
            if path == source or path.startswith(f"{source}/"):
                moved = target + path.removeprefix(source)
                self._opened[descriptor] = (device, inode, moved)

    def exchanged(self, one: str, other: str) -> None:
        """Let open files below two exchanged names follow them."""
        aside = f"{one}\0"  # no path holds it
        self.renamed(one, aside)
        self.renamed(other, one)
        self.renamed(aside, other)


def _where_of(watcher: WatchedDisk, target: Any, folder: int | None = None, name: str = "") -> str:
    """Return the absolute path of what an operation is about, without symbolic links.

    Args:
        target: Its argument: a path or a descriptor.
        folder: The folder that a path starts from, as a descriptor.
        name: The operation, since some are about a link and not about what it leads to.
    """
    if isinstance(target, int):
        return watcher.descriptors.path_of(target)
    text = target if isinstance(target, str) else os.fsdecode(target)
    if folder is not None:
        text = f"{watcher.descriptors.path_of(folder)}/{text}"
    if not text.startswith("/") or _UNRESOLVED.search(text):
        text = os.path.abspath(text)  # noqa: PTH100
    above, _, last = text.rpartition("/")
    if name in _OF_LINKS:
        return f"{_followed(above, watcher.root_of(above))}/{last}"
    return _followed(text, watcher.root_of(text))


def _followed(path: str, place: str = "", most_links: int = 40) -> str:
    """Return a path without symbolic links; `os.path.realpath` would look by watched functions.

    What is written and forced through a folder of links is on the disk as well.

    Args:
        path: An absolute path.
        place: A folder above it, or itself, in which no link is to be followed.
    """
    for name in path[len(place) + 1 :].split("/") if path != place else ():
        above, place = place, f"{place}/{name}"
        try:
            leads_to = os.path.join(f"{above}/", os.readlink(place))  # noqa: PTH115, PTH118
        except OSError:  # it is no link
            continue
        if most_links:
            place = _followed(os.path.normpath(leads_to), "", most_links - 1)
    return place


def _half_of(count: int) -> int:
    """Return half of a number of bytes, at least one."""
    return max(1, count // 2)


def _watched_open(watcher: WatchedDisk) -> Callable[..., Any]:
    """Return an ``open`` whose files are watched while they are written."""
    real = io.open

    class File(io.FileIO):
        """An unbuffered file whose opening and writing are watched."""

        def __init__(self, path: Any, mode: str, opener: Any) -> None:
            def begin() -> None:
                super(File, self).__init__(path, mode, opener=opener)

            if opener is not None or isinstance(path, int):
                begin()  # the opener is watched
            else:
                where = _where_of(watcher, path)
                watcher.do("open", (where,), begin, changes=mode != "r+")
                watcher.descriptors.opened(self.fileno(), where)

        def write(self, data: Any) -> int:
            view, write = memoryview(data).cast("B"), super().write
            half = view[: _half_of(len(view))]
            paths = (_where_of(watcher, self.fileno()),)
            return watcher.do(
                "write", paths, lambda: int(write(view) or 0), half=lambda: int(write(half) or 0)
            )

        def truncate(self, size: int | None = None) -> int:
            truncate, paths = super().truncate, (_where_of(watcher, self.fileno()),)
            return watcher.do("ftruncate", paths, lambda: truncate(size))

    def call(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        options = (buffering, encoding, errors, newline, closefd, opener)
        if isinstance(file, int) or not watcher.watches((where := _where_of(watcher, file),)):
            return real(file, mode, *options)
        if not set(mode) & set("wax+"):
            looked = watcher.do("open", (where,), lambda: real(file, mode, *options), changes=False)
            watcher.descriptors.opened(looked.fileno(), where)
            return looked
        raw = File(file, mode.replace("b", "").replace("t", ""), opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    return call


def _watched_parquet_writer(opened: Callable[..., Any]) -> type[Any]:
    """Return a parquet writer that writes into a file which ``opened`` opened."""

    class ParquetWriter(pq.ParquetWriter):  # type: ignore[misc]
        """Writes into a file that Python opened."""

        def __init__(self, where: Any, schema: Any, *rest: Any, **options: Any) -> None:
            file = opened(where, "wb") if isinstance(where, str | os.PathLike) else None
            try:
                super().__init__(where if file is None else file, schema, *rest, **options)
            finally:
                self.file_handle = file

    return ParquetWriter


@contextmanager
def _intercepted(watcher: WatchedDisk) -> Iterator[None]:
    """Let a watcher see every operation of this process until the ``with`` block ends."""
    replaced: list[tuple[ModuleType, str, Any]] = []
    try:
        for module, name, function in _replacements(watcher):
            replaced.append((module, name, getattr(module, name)))
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in reversed(replaced):
            setattr(module, name, function)


def _replacements(watcher: WatchedDisk) -> Iterator[tuple[ModuleType, str, Any]]:
    # All are made before the first takes its place: each keeps the real function.
    made: list[tuple[ModuleType, str, Any]] = [
        *(
            (os, name, _of_one_path(watcher, name, changes=True))
            for name in _NAMES + _DESCRIPTORS
            if hasattr(os, name)
        ),
        *((os, name, _of_one_path(watcher, name, changes=False)) for name in _LOOKS),
        *((os, name, _of_two_paths(watcher, name)) for name in _PAIRS),
        *((os, name, _sync(watcher, name)) for name in _SYNCS if hasattr(os, name)),
        *((os, name, _write(watcher, name)) for name in ("write", "pwrite")),
        *((os, name, _write_pieces(watcher, name)) for name in ("writev", "pwritev")),
        *((os, name, of(watcher)) for name, of in _KERNEL_COPIES.items() if hasattr(os, name)),
        (os, "open", _os_open(watcher)),
        (fcntl, "flock", _flock(watcher)),
        (fcntl, "ioctl", _ioctl(watcher)),
        (file_calls, "_rename", _rename_by_flags(watcher)),
    ]
    opened = _watched_open(watcher)
    writer = _watched_parquet_writer(opened)
    made += [(builtins, "open", opened), (io, "open", opened)]
    made += [(module, "ParquetWriter", writer) for module in (pq, pq.core)]
    return iter(made)


def _of_one_path(watcher: WatchedDisk, name: str, *, changes: bool) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(path: Any = ".", *rest: Any, **options: Any) -> Any:
        about = name if options.get("follow_symlinks", True) else "lstat"
        paths = (_where_of(watcher, path, options.get("dir_fd"), about),)
        return watcher.do(name, paths, lambda: real(path, *rest, **options), changes=changes)

    return call


def _of_two_paths(watcher: WatchedDisk, name: str) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(source: Any, target: Any, **options: Any) -> Any:
        paths = (
            _where_of(watcher, source, options.get("src_dir_fd"), name),
            _where_of(watcher, target, options.get("dst_dir_fd"), name),
        )

        def move() -> Any:
            if name == "link" and not watcher.has_links and watcher.watches(paths):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), paths[0], None, paths[1])
            moved = real(source, target, **options)
            if name != "link":
                watcher.descriptors.renamed(*paths)
            return moved

        return watcher.do(name, paths, move)

    return call


def _sync(watcher: WatchedDisk, name: str) -> Callable[[int], None]:
    real = getattr(os, name)

    def call(descriptor: int) -> None:
        path = _where_of(watcher, descriptor)
        skipped = watcher.watches((path,)) and not watcher.really_sync
        watcher.do(name, (path,), lambda: None if skipped else real(descriptor))

    return call


def _write(watcher: WatchedDisk, name: str) -> Callable[..., int]:
    real = getattr(os, name)

    def call(descriptor: int, data: Any, *place: int) -> int:
        view, paths = memoryview(data).cast("B"), (_where_of(watcher, descriptor),)

        def write(part: memoryview) -> int:
            return int(real(descriptor, part, *place))

        half = view[: _half_of(len(view))]
        return watcher.do(name, paths, lambda: write(view), half=lambda: write(half))

    return call


def _write_pieces(watcher: WatchedDisk, name: str) -> Callable[..., int]:
    real = getattr(os, name)

    def call(descriptor: int, pieces: Sequence[Any], *place: int) -> int:
        def half() -> int:
            content = b"".join(pieces)
            return int(real(descriptor, [content[: _half_of(len(content))]], *place))

        paths = (_where_of(watcher, descriptor),)
        return watcher.do(name, paths, lambda: int(real(descriptor, pieces, *place)), half=half)

    return call


def _copy_file_range(watcher: WatchedDisk) -> Callable[..., int]:
    real = os.copy_file_range

    def call(source: int, target: int, count: int, *places: int) -> int:
        def copy(size: int) -> int:
            return real(source, target, size, *places)

        paths, half = (_where_of(watcher, target),), _half_of(count)
        return watcher.do("copy_file_range", paths, lambda: copy(count), half=lambda: copy(half))

    return call


def _sendfile(watcher: WatchedDisk) -> Callable[..., int]:
    real = os.sendfile

    def call(target: int, source: int, offset: int, count: int) -> int:
        def half() -> int:
            left = max(0, _fstat(source).st_size - offset)
            return real(target, source, offset, _half_of(min(count, left)))

        paths = (_where_of(watcher, target),)
        return watcher.do("sendfile", paths, lambda: real(target, source, offset, count), half=half)

    return call


_KERNEL_COPIES = {"copy_file_range": _copy_file_range, "sendfile": _sendfile}


def _os_open(watcher: WatchedDisk) -> Callable[..., int]:
    real = os.open

    def call(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        where, makes = _where_of(watcher, path, options.get("dir_fd")), bool(flags & _MAKES)
        opening = partial(real, path, flags, *rest, **options)
        descriptor = watcher.do("open", (where,), opening, changes=makes)
        watcher.descriptors.opened(descriptor, where)
        return descriptor

    return call


def _flock(watcher: WatchedDisk) -> Callable[[int, int], None]:
    real = fcntl.flock

    def call(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_UN:
            return real(descriptor, operation)  # the kernel does it for the dead
        paths = (_where_of(watcher, descriptor),)

        def lock() -> None:
            if not watcher.has_locks and watcher.watches(paths):
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            real(descriptor, operation)

        return watcher.do("flock", paths, lock, changes=False)

    return call


def _ioctl(watcher: WatchedDisk) -> Callable[..., Any]:
    real = fcntl.ioctl

    def call(descriptor: Any, request: int, *rest: Any) -> Any:
        if request not in _CLONES:
            return real(descriptor, request, *rest)
        paths = (_where_of(watcher, descriptor),)
        return watcher.do("clone", paths, lambda: real(descriptor, request, *rest))

    return call


def _rename_by_flags(watcher: WatchedDisk) -> Callable[..., None]:
    real = getattr(file_calls, "_rename")  # noqa: B009 - private to the package, not to us

    def call(source: Any, target: Any, flags: int) -> None:
        paths = tuple(_where_of(watcher, each, name="rename") for each in (source, target))

        def move() -> None:
            if not watcher.can_exchange:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(source))
            real(source, target, flags)
            if _FLAG_NAMES[flags] == "exchange":
                watcher.descriptors.exchanged(*paths)
            else:
                watcher.descriptors.renamed(*paths)

        watcher.do(_FLAG_NAMES[flags], paths, move)

    return call
