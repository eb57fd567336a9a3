"""Every operation by which this process uses a disk, numbered, so that a test can break each one.

`leconvert.testing.faults` stands in for the few operations of publishing, leasing and the swap.
This layer sees all of them, whoever calls: records, shards, tables, locks, clean-up. It takes the
places of the functions by which Python code reaches a disk (`leconvert.testing.interception`), for
paths below given folders only.

What it does not see: reads that a library makes by itself (pyarrow, NumPy, FFmpeg), and what FFmpeg
writes while it remuxes a clip. `names_and_sizes` rebuilds a folder from the operations alone; where
that gives what is really there, no change went unseen.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from leconvert.testing.descriptors import Descriptors
from leconvert.testing.faults import CrashError
from leconvert.testing.interception import intercepted
from leconvert.testing.power import Loss, PowerModel

__all__ = ["Fault", "FaultKind", "Operation", "WatchedDisk", "names_and_sizes"]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT})


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
        self._dead = False
        self._lock = threading.RLock()
        self._installed = ExitStack()

    def __enter__(self) -> Self:
        self._installed.enter_context(intercepted(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._installed.close()

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
        counts_bytes: bool = False,
    ) -> Result:
        """Do one operation, or what the fault makes of it.

        Args:
            call: Does it.
            half: Does half of it, where it writes bytes.
        """
        if not self.watches(paths):
            return call()
        with self._lock:
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
                self.power.after(name, paths)
            if counts_bytes and isinstance(result, int):
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
