"""What a machine does while something else runs: memory of a process tree, and the use of a GPU.

RSS counts a page in every process that maps it, so that forked workers count what they share again
and again; PSS divides such a page among them, and is what the machine really spends. PSS is only
known on Linux.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Self


class Sampler[Sample]:
    """Reads something again and again from a thread, until ``with`` ends.

    Not guaranteed: a peak between two samples goes unseen. A reader that fails is asked no more.

    Attributes:
        seen: What was read.
    """

    def __init__(self, read: Callable[[], Sample], *, every_seconds: float) -> None:
        self._read = read
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.seen: list[Sample] = []

    def sample(self) -> None:
        """Look once; call it where a peak is expected, such as before workers end."""
        self.seen.append(self._read())

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread.ident is None:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.sample()
            except Exception:  # noqa: BLE001 - NVML's own errors among them; what was seen counts
                return
            self._ended.wait(self._every_seconds)


class TreeMemory(Sampler[tuple[int, int | None]]):
    """Keeps the peaks of a process tree, from `start` on.

    It starts once all processes that are forked from here are there: forking beside threads is
    asking for trouble. Shared memory that workers hand tensors over in counts as soon as a process
    has touched it.
    """

    def __init__(self, pid: int | None = None, *, every_seconds: float = 0.5) -> None:
        pid = os.getpid() if pid is None else pid
        super().__init__(lambda: tree_memory(pid), every_seconds=every_seconds)

    @property
    def peak_rss_bytes(self) -> int:
        """The largest sum of resident sets."""
        return max((rss for rss, _ in self.seen), default=0)

    @property
    def peak_pss_bytes(self) -> int | None:
        """The largest sum of proportional sets; None where unknown."""
        return max((pss for _, pss in self.seen if pss is not None), default=None)


class GpuUse(Sampler[float]):
    """Samples the use of a device in percent by NVML, from the beginning of ``with``."""

    def __init__(self, device: str) -> None:
        super().__init__(lambda: _utilization(device), every_seconds=0.1)

    @property
    def mean_pct(self) -> float | None:
        """Mean use in percent; None where nothing can tell it."""
        return fmean(self.seen) if self.seen else None

    def __enter__(self) -> Self:
        self.start()
        return self


def _utilization(device: str) -> float:
    import torch

    return float(torch.cuda.utilization(device))


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
