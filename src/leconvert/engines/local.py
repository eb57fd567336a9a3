"""Workers as processes of this machine, each with a log of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["LocalEngine"]

_GRACE_SECONDS = 30.0
_LAST_LINES = 3


class LocalEngine:
    """Starts ``leconvert work`` processes.

    A worker that crashes does not end the others. It does not restart workers: a batch that a
    crashed one held expires and is taken over by those that live.

    Args:
        logs_dir: Where each worker's output goes.
    """

    def __init__(self, logs_dir: Path) -> None:
        self._logs_dir = logs_dir
        self._workers: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, count: int, arguments: Sequence[str]) -> None:
        """Start ``count`` workers; see `leconvert.engines.Engine`."""
        self._logs_dir.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            log = self._logs_dir / f"local-{time.time_ns():x}-{len(self._workers)}.log"
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
                said = log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                lines.append(f"worker {process.pid} {how}: {' / '.join(said) or 'no output'}")
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
