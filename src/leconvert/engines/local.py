"""Workers as processes of this machine, each with a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from leconvert.engines.logs import last_words
from leconvert.workdir.paths import RunPaths

__all__ = ["LocalEngine", "default_workers"]

_GRACE_SECONDS = 30.0
_MOST_WORKERS = 4
# What a worker takes besides what it shares with others: the interpreter, NumPy, Arrow and buffers
# (87 to 111 MiB in all for every dataset of docs/benchmarks.md), with room for a long episode.
_BYTES_A_WORKER = 256 * 2**20


def default_workers() -> int:
    """Return how many workers this machine feeds well.

    As many as it has cores, at most 4, as more wait for the disk; and no more than half of the free
    memory holds.
    """
    fitting = _free_memory() // 2 // _BYTES_A_WORKER
    return max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)), fitting))


def _free_memory() -> int:
    # Importing psutil for this one number would take a tenth of a small conversion.
    with Path("/proc/meminfo").open("rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name == b"MemAvailable":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class LocalEngine:
    """Starts ``leconvert work`` processes.

    A worker that crashes does not end the others. It does not restart workers: a batch that a
    crashed one held expires and is taken over by those that live.

    Attributes:
        workers: As many as this machine feeds well.
    """

    def __init__(self) -> None:
        self.workers = default_workers()
        self._workers: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Start ``count`` workers; see `leconvert.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            log = paths.logs_dir / f"local-{time.time_ns():x}-{len(self._workers)}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "leconvert", "work", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # A group of its own: Ctrl-C reaches the parent, which asks the workers to stop.
                    start_new_session=True,
                )
            self._workers.append((process, log))

    def running(self) -> int:
        """Return how many workers still run."""
        return sum(process.poll() is None for process, _ in self._workers)

    def failures(self) -> list[str]:
        """Return one line a worker that ended with an error, with the end of its log."""
        lines = []
        for process, log in self._workers:
            code = process.poll()
            if code:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                lines.append(f"worker {process.pid} {how}: {last_words(log)}")
        return lines

    def stop(self) -> None:
        """Send SIGTERM, wait for the workers to hand back, and kill whatever does not end."""
        for process, _ in self._workers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        for process, _ in self._workers:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
