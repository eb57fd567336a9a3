"""Workers as processes of this machine, each with its own log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from leconvert.run.engines import how_a_worker_failed
from leconvert.support.errors import EngineError, InterruptedRunError, UsageError
from leconvert.support.forkserver import PythonProcess, start_python
from leconvert.workdir.records import RunPaths

_GRACE_SECONDS = 30.0
# Exit codes of a worker that was asked to stop; SIGTERM if it had hardly begun.
_AS_ASKED = frozenset((InterruptedRunError.exit_code, -signal.SIGTERM))


class LocalEngine:
    """Starts ``leconvert work`` processes.

    A worker that crashes does not end the others. Workers are not restarted: the batch of a crashed
    worker expires, and another worker takes it over.

    Args:
        workers: Number of workers; None lets cores and free memory of this machine decide.
        program: The command that starts a worker, before its arguments, such as ``("ionice", "-c3",
            "leconvert", "work")``; None for this Python's own leconvert.

    Attributes:
        workers: As given.

    Raises:
        UsageError: ``workers`` is below 1, or ``program`` is empty.
    """

    def __init__(
        self, workers: int | None = None, *, program: Sequence[str | os.PathLike[str]] | None = None
    ) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"workers must be at least 1, not {workers}.")
        if program is not None and not program:
            raise UsageError("program is empty. Give the command that starts a worker.")
        self.workers = workers
        self._program = None if program is None else tuple(program)
        self._workers: list[tuple[PythonProcess, Path]] = []
        self._asked_to_stop: set[int] = set()

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Start ``count`` workers; see `leconvert.run.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        # A worker that has ended belongs to an earlier run with this engine.
        self._workers = [worker for worker in self._workers if worker[0].poll() is None]
        self._asked_to_stop.intersection_update(process.pid for process, _ in self._workers)
        for _ in range(count):
            log = paths.logs_dir / f"local-{time.time_ns():x}-{len(self._workers)}.log"
            with log.open("wb") as output, open(os.devnull, "rb") as nothing:  # noqa: PTH123
                files = (nothing.fileno(), output.fileno(), output.fileno())
                process = self._started(arguments, files)
            self._workers.append((process, log))

    def _started(self, arguments: Sequence[str], files: tuple[int, int, int]) -> PythonProcess:
        try:
            if self._program is None:
                return start_python("leconvert", ["work", *arguments], files)
            stdin, stdout, stderr = files
            return subprocess.Popen(
                [*self._program, *arguments],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                # In its own group: Ctrl-C reaches only the parent, which asks the workers to stop.
                start_new_session=True,
            )
        except OSError as error:
            program = os.fspath((self._program or (sys.executable,))[0])
            raise EngineError(
                f"{program} cannot start a worker: {error.strerror}.",
                next_step="Check that the program exists, that this machine has enough memory, and "
                "that `ulimit -u` lets this user start another process.",
            ) from error

    def running(self) -> int:
        """Return how many workers still run."""
        return sum(process.poll() is None for process, _ in self._workers)

    def failures(self) -> list[str]:
        """Return one line per worker that ended with an error, with the end of its log."""
        lines = []
        for process, log in self._workers:
            code = process.poll()
            if process.pid in self._asked_to_stop and code in _AS_ASKED:
                continue
            if code:
                lines.append(how_a_worker_failed(process.pid, code, log))
        return lines

    def stop(self) -> None:
        """Send SIGTERM, wait for the workers to hand back, and kill those that do not end."""
        for process, _ in self._workers:
            if process.poll() is None:
                self._asked_to_stop.add(process.pid)
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        for process, _ in self._workers:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
