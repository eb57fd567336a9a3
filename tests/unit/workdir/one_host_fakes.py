"""A file system of one host whose operations a test can break, and other hosts."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.faults.faulty_files import FaultyFileSystem

from leconvert.workdir.identity import HostIdentity
from leconvert.workdir.locks import OneHostFileSystem

HERE = HostIdentity("here", "a" * 32, "boot-1")
ELSEWHERE = HostIdentity("elsewhere", "b" * 32, "boot-2")


class FaultyOneHost(OneHostFileSystem, FaultyFileSystem):
    """`OneHostFileSystem` over operations that fail, lie or stop where a test says so."""

    def __init__(
        self, lock: Path, *, crash_at: int | None = None, wait_seconds: float = 20.0
    ) -> None:
        OneHostFileSystem.__init__(self, lock, wait_seconds=wait_seconds)
        FaultyFileSystem.__init__(self, crash_at)


def without_links(*, code: int = errno.EPERM) -> FaultyFileSystem:
    """Return operations as on FAT."""
    fs = FaultyFileSystem()
    fs.fail("link", code, times=None)
    return fs
