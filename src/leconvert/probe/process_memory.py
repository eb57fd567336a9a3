"""The memory of a process and all its children, sampled while something else runs.

RSS counts a page in every process that maps it, so that forked workers count what they share again
and again; PSS divides such a page among them, and is what the machine really spends. PSS is only
known on Linux.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Self

__all__ = ["TreeMemory", "tree_memory"]

_EVERY_SECONDS = 0.5


def tree_memory(pid: int) -> tuple[int, int | None]:
    """Return RSS and PSS of a process and its descendants, in bytes.

    A process that ends meanwhile is left out. PSS is None where the system does not tell it.
    """
    import psutil

    if not psutil.pid_exists(pid):
        return 0, None
    rss = 0
    pss: int | None = 0
    for each in (pid, *_descendants(pid)):
        try:
            # One look gives both; it walks the page tables, some milliseconds a gigabyte.
            memory = psutil.Process(each).memory_full_info()
        except psutil.Error:
            continue
        rss += memory.rss
        share = getattr(memory, "pss", None)
        pss = None if share is None or pss is None else pss + share
    return rss, pss


def _descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on, parents first.

    Linux lists the children of each thread, so that looking twice a second costs what the tree
    costs, not what the machine runs. psutil reads the state of every process that there is, which
    is left for systems without such lists.
    """
    import psutil

    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            # A thread or process that ended meanwhile has no list any more.
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in children.read_text("ascii").split())
    return found[1:]


class TreeMemory:
    """Samples a process tree from a thread, from `start` to the end of ``with``; keeps the peaks.

    Not guaranteed: a peak between two samples goes unseen. Shared memory that workers hand tensors
    over in counts as soon as a process has touched it.

    Attributes:
        peak_rss_bytes: The largest sum of resident sets.
        peak_pss_bytes: The largest sum of proportional sets; None where unknown.
    """

    def __init__(self, pid: int | None = None, *, every_seconds: float = _EVERY_SECONDS) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tree-memory", daemon=True)
        self.peak_rss_bytes = 0
        self.peak_pss_bytes: int | None = None

    def sample(self) -> None:
        """Look once; call it where a peak is expected, such as before workers end."""
        rss, pss = tree_memory(self._pid)
        with self._lock:
            self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
            if pss is not None:
                self.peak_pss_bytes = max(self.peak_pss_bytes or 0, pss)

    def start(self) -> None:
        """Begin, if it has not begun: once all processes that are forked from here are there."""
        if self._thread.ident is None:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            self.sample()
