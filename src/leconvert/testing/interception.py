"""Puts a watcher in the place of the functions by which Python code reaches a disk.

`os`, ``open``, ``fcntl`` and the exclusive rename are replaced as attributes of their modules, so
that whoever looks them up there (pathlib, shutil, tempfile and filelock do) comes by. pyarrow opens
files by itself: its parquet writer gets an open file instead of a path, and writes the same bytes.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from leconvert.testing.watched_files import watched_open, watched_parquet_writer
from leconvert.testing.watcher import Watcher, half_of, where_of
from leconvert.workdir import fs

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["intercepted"]

_fstat = os.fstat

_NAMES = ("mkdir", "rmdir", "unlink", "remove", "truncate", "utime", "chmod")
_PAIRS = ("link", "rename", "replace")
_DESCRIPTORS = ("ftruncate", "posix_fallocate", "fchmod")
_SYNCS = ("fsync", "fdatasync")
_LOOKS = ("stat", "lstat", "listdir", "scandir", "pread", "preadv")
_CLONES = frozenset({0x40049409, 0x4020940D})  # FICLONE, FICLONERANGE
_MAKES = os.O_CREAT | os.O_TRUNC
_FLAG_NAMES = {1: "rename_no_replace", 2: "exchange"}


@contextmanager
def intercepted(watcher: Watcher) -> Iterator[None]:
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


def _replacements(watcher: Watcher) -> Iterator[tuple[ModuleType, str, Any]]:
    # All are made before the first takes its place: each keeps the real function.
    made: list[tuple[ModuleType, str, Any]] = [
        *((os, name, _of_one_path(watcher, name, changes=True)) for name in _NAMES + _DESCRIPTORS),
        *((os, name, _of_one_path(watcher, name, changes=False)) for name in _LOOKS),
        *((os, name, _of_two_paths(watcher, name)) for name in _PAIRS),
        *((os, name, _sync(watcher, name)) for name in _SYNCS),
        *((os, name, _write(watcher, name)) for name in ("write", "pwrite")),
        *((os, name, _write_pieces(watcher, name)) for name in ("writev", "pwritev")),
        (os, "copy_file_range", _copy_file_range(watcher)),
        (os, "sendfile", _sendfile(watcher)),
        (os, "open", _os_open(watcher)),
        (fcntl, "flock", _flock(watcher)),
        (fcntl, "ioctl", _ioctl(watcher)),
        (fs, "_renameat2", _renameat2(watcher)),
    ]
    opened = watched_open(watcher)
    writer = watched_parquet_writer(opened)
    made += [(builtins, "open", opened), (io, "open", opened)]
    made += [(module, "ParquetWriter", writer) for module in (pq, pq.core)]
    return iter(made)


def _of_one_path(watcher: Watcher, name: str, *, changes: bool) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(path: Any = ".", *rest: Any, **options: Any) -> Any:
        paths = (where_of(watcher, path, options.get("dir_fd")),)
        return watcher.do(name, paths, lambda: real(path, *rest, **options), changes=changes)

    return call


def _of_two_paths(watcher: Watcher, name: str) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(source: Any, target: Any, **options: Any) -> Any:
        paths = (
            where_of(watcher, source, options.get("src_dir_fd")),
            where_of(watcher, target, options.get("dst_dir_fd")),
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


def _sync(watcher: Watcher, name: str) -> Callable[[int], None]:
    real = getattr(os, name)

    def call(descriptor: int) -> None:
        path = where_of(watcher, descriptor)
        skipped = watcher.watches((path,)) and not watcher.really_sync
        watcher.do(name, (path,), lambda: None if skipped else real(descriptor))

    return call


def _write(watcher: Watcher, name: str) -> Callable[..., int]:
    real = getattr(os, name)

    def call(descriptor: int, data: Any, *place: int) -> int:
        view = memoryview(data).cast("B")
        return watcher.do(
            name,
            (where_of(watcher, descriptor),),
            lambda: int(real(descriptor, view, *place)),
            half=lambda: int(real(descriptor, view[: half_of(len(view))], *place)),
            counts_bytes=True,
        )

    return call


def _write_pieces(watcher: Watcher, name: str) -> Callable[..., int]:
    real = getattr(os, name)

    def call(descriptor: int, pieces: Sequence[Any], *place: int) -> int:
        def half() -> int:
            content = b"".join(pieces)
            return int(real(descriptor, [content[: half_of(len(content))]], *place))

        return watcher.do(
            name,
            (where_of(watcher, descriptor),),
            lambda: int(real(descriptor, pieces, *place)),
            half=half,
            counts_bytes=True,
        )

    return call


def _copy_file_range(watcher: Watcher) -> Callable[..., int]:
    real = os.copy_file_range

    def call(source: int, target: int, count: int, *places: int) -> int:
        return watcher.do(
            "copy_file_range",
            (where_of(watcher, target),),
            lambda: real(source, target, count, *places),
            half=lambda: real(source, target, half_of(count), *places),
            counts_bytes=True,
        )

    return call


def _sendfile(watcher: Watcher) -> Callable[..., int]:
    real = os.sendfile

    def call(target: int, source: int, offset: int, count: int) -> int:
        def half() -> int:
            left = max(0, _fstat(source).st_size - offset)
            return real(target, source, offset, half_of(min(count, left)))

        return watcher.do(
            "sendfile",
            (where_of(watcher, target),),
            lambda: real(target, source, offset, count),
            half=half,
            counts_bytes=True,
        )

    return call


def _os_open(watcher: Watcher) -> Callable[..., int]:
    real = os.open

    def call(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        where = where_of(watcher, path, options.get("dir_fd"))
        descriptor = watcher.do(
            "open",
            (where,),
            lambda: real(path, flags, *rest, **options),
            changes=bool(flags & _MAKES),
        )
        watcher.descriptors.opened(descriptor, where)
        return descriptor

    return call


def _flock(watcher: Watcher) -> Callable[[int, int], None]:
    real = fcntl.flock

    def call(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_UN:
            return real(descriptor, operation)  # the kernel does it for the dead
        paths = (where_of(watcher, descriptor),)

        def lock() -> None:
            if not watcher.has_locks and watcher.watches(paths):
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            real(descriptor, operation)

        return watcher.do("flock", paths, lock, changes=False)

    return call


def _ioctl(watcher: Watcher) -> Callable[..., Any]:
    real = fcntl.ioctl

    def call(descriptor: Any, request: int, *rest: Any) -> Any:
        if request not in _CLONES:
            return real(descriptor, request, *rest)
        return watcher.do(
            "clone", (where_of(watcher, descriptor),), lambda: real(descriptor, request, *rest)
        )

    return call


def _renameat2(watcher: Watcher) -> Callable[..., None]:
    real = getattr(fs, "_renameat2")  # noqa: B009 - private to the package, not to us

    def call(source: Any, target: Any, flags: int) -> None:
        paths = (where_of(watcher, source), where_of(watcher, target))

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
