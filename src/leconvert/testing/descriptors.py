"""Which path an open descriptor belongs to, kept by what was opened and renamed.

The kernel knows too (``/proc/self/fd``), but each process that asks it there leaves entries that
the kernel has to clear away when the process ends; thousands of forked trials must not.
"""

from __future__ import annotations

import os

__all__ = ["Descriptors"]

_fstat = os.fstat


class Descriptors:
    """The paths of descriptors that were opened while somebody watched.

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
