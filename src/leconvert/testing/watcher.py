"""What is asked before each operation on a disk, and what an operation is about."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Protocol

from leconvert.testing.descriptors import Descriptors

__all__ = ["Watcher", "half_of", "where_of"]

_UNRESOLVED = re.compile(r"/\.{0,2}(/|\Z)")


class Watcher(Protocol):
    """What is asked before each operation; see `leconvert.testing.disk.WatchedDisk`."""

    can_exchange: bool
    has_links: bool
    has_locks: bool
    really_sync: bool
    descriptors: Descriptors

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
        """Do one operation, or something else."""

    def watches(self, paths: tuple[str, ...]) -> bool:
        """Say whether an operation on these paths is watched."""


def where_of(watcher: Watcher, target: Any, folder: int | None = None) -> str:
    """Return the absolute path of an operation's argument; no symbolic link is followed."""
    if isinstance(target, int):
        return watcher.descriptors.path_of(target)
    text = target if isinstance(target, str) else os.fsdecode(target)
    if folder is not None:
        text = f"{watcher.descriptors.path_of(folder)}/{text}"
    if text.startswith("/") and not _UNRESOLVED.search(text):
        return text  # nothing to resolve: nearly always
    return os.path.abspath(text)  # noqa: PTH100


def half_of(count: int) -> int:
    """Return half of a number of bytes, at least one."""
    return max(1, count // 2)
