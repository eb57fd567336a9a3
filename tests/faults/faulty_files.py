"""File operations that fail, lie or stop where a test says so.

`FaultyFileSystem` stands in for `leconvert.workdir.fs.FileSystem`. Between any two
operations a test can let a process die, another process act, or the network lose an answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from leconvert.workdir.fs import FileSystem, Identity

__all__ = ["KINDS", "CrashError", "FaultyFileSystem", "MakeFs", "nfs"]


class CrashError(BaseException):
    """The process died here. Nothing that it would still do to the disk happens."""


@dataclass(slots=True)
class _Rule:
    operation: str
    match: str
    action: Callable[[], None] | None
    code: int | None
    happens: bool
    times: int | None
    skip: int = 0


def _below(folder: str) -> Iterator[tuple[str, bytes | None]]:
    """Yield every path below a folder, and what a file holds; texts, for it is done very often."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.path, Path(entry.path).read_bytes() if entry.is_file() else None
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)


class FaultyFileSystem(FileSystem):
    """Real operations with planned faults.

    Every operation has two crash points: before its effect and after it. Once crashed, every
    further operation raises `CrashError` as well, as if the process were gone.

    Args:
        crash_at: The crash point to die at, counted from 0, or None.
        really_sync: Whether fsync reaches the disk; a test of process deaths does not need it.

    Attributes:
        operations: What was called: name and first path, in order.
        points: Crash points passed so far.
    """

    def __init__(self, crash_at: int | None = None, *, really_sync: bool = False) -> None:
        self.operations: list[tuple[str, Path]] = []
        self.points = 0
        self._crash_at = crash_at
        self._crashed = False
        self._really_sync = really_sync
        self._rules: list[_Rule] = []

    def fail(
        self,
        operation: str,
        code: int,
        *,
        match: str = "",
        happens: bool = False,
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Let an operation report an error."""
        self._rules.append(_Rule(operation, match, None, code, happens, times, skip))

    @property
    def pending_faults(self) -> int:
        """Planned faults and actions that did not come up yet."""
        return len(self._rules)

    def before(self, operation: str, action: Callable[[], None], *, match: str = "") -> None:
        """Let something else happen right before the next such operation, once.

        It comes before faults of the same operation, whichever was planned first.
        """
        self._rules.insert(0, _Rule(operation, match, action, None, False, 1))

    def crash_before(self, operation: str) -> None:
        """Let the process die right before the next such operation."""
        self.before(operation, self._crash)

    def _crash(self) -> None:
        self._crashed = True
        raise CrashError

    def points_that_differ(self, folder: Path, act: Callable[[], object]) -> list[int]:
        """Do something; return the crash points before which something below a folder changed.

        Whoever dies at another point leaves what a death at the one before it leaves.
        """
        found: list[int] = []
        states: list[dict[str, bytes | None]] = []
        pass_by = self._point

        def point() -> None:
            state = dict(_below(os.fspath(folder)))
            if states[-1:] != [state]:
                states.append(state)
                found.append(self.points)
            pass_by()

        self._point = point  # type: ignore[method-assign]
        act()
        return found

    def read_bytes(self, path: Path) -> bytes:
        """See the base class, as for the others."""
        read = super().read_bytes
        return self._do("read_bytes", lambda: read(path), path)

    def write_new(self, path: Path, data: bytes, *, sync: bool) -> None:
        real = sync and self._really_sync
        write = super().write_new
        self._do("write_new", lambda: write(path, data, sync=real), path)

    def sync_file(self, path: str | Path) -> None:
        sync = super().sync_file
        self._do("sync_file", lambda: sync(path) if self._really_sync else None, Path(path))

    def sync_dir(self, path: Path) -> None:
        sync = super().sync_dir
        self._do("sync_dir", lambda: sync(path) if self._really_sync else None, path)

    def link(self, source: str | Path, target: str | Path) -> None:
        link = super().link
        self._do("link", lambda: link(source, target), Path(source), Path(target))

    def replace(self, source: Path, target: Path) -> None:
        replace = super().replace
        self._do("replace", lambda: replace(source, target), source, target)

    def rename_no_replace(self, source: Path, target: Path) -> None:
        rename = super().rename_no_replace
        self._do("rename_no_replace", lambda: rename(source, target), source, target)

    def exchange(self, one: Path, other: Path) -> None:
        exchange = super().exchange
        self._do("exchange", lambda: exchange(one, other), one, other)

    def names_among(self, folder: Path, names: Iterable[str]) -> set[str]:
        among, wanted = super().names_among, list(names)
        return self._do(
            "names_among", lambda: among(folder, wanted), folder, *map(folder.joinpath, wanted)
        )

    def list_names(self, path: Path) -> list[str]:
        names = super().list_names
        return self._do("list_names", lambda: names(path), path)

    def make_dir(self, path: Path) -> None:
        make = super().make_dir
        self._do("make_dir", lambda: make(path), path)

    def remove_file(self, path: Path) -> None:
        remove = super().remove_file
        self._do("remove_file", lambda: remove(path), path)

    def remove_dir(self, path: Path) -> None:
        remove = super().remove_dir
        self._do("remove_dir", lambda: remove(path), path)

    def identity(self, path: Path) -> Identity:
        identity = super().identity
        return self._do("identity", lambda: identity(path), path)

    def _do[Result](self, operation: str, call: Callable[[], Result], *paths: Path) -> Result:
        self._point()
        self.operations.append((operation, paths[0]))
        for rule in list(self._rules):
            if rule.operation != operation or not any(rule.match in str(path) for path in paths):
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
            if rule.action is not None:
                rule.action()
            if rule.code is not None:
                if rule.happens:
                    call()
                raise OSError(rule.code, os.strerror(rule.code), *map(str, paths[:1]))
        result = call()
        self._point()
        return result

    def _point(self) -> None:
        if self._crashed or self.points == self._crash_at:
            self._crashed = True
            raise CrashError
        self.points += 1


def nfs(crash_at: int | None = None) -> FaultyFileSystem:
    """Return a file system that knows no flags of renameat2."""
    fs = FaultyFileSystem(crash_at)
    for operation in ("exchange", "rename_no_replace"):
        fs.fail(operation, errno.EINVAL, times=None)
    return fs


MakeFs = Callable[[int | None], FaultyFileSystem]
KINDS = [pytest.param(FaultyFileSystem, id="exchange"), pytest.param(nfs, id="two-renames")]
"""File systems on which a swap is one exchange, or two renames."""
