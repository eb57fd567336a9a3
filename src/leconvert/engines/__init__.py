"""How workers are started. An engine knows nothing of batches: it starts, watches and stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from leconvert.workdir.paths import RunPaths

__all__ = ["Engine"]


class Engine(Protocol):
    """Something that starts workers on a work dir and notices that they ended.

    What workers do, and how far they are, is in the work dir alone: an engine that lies, hangs or
    is killed can delay a run and never change its result.

    Attributes:
        workers: How many it starts unless it is told otherwise.
    """

    workers: int

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Start ``count`` workers.

        Args:
            count: How many.
            arguments: What follows ``leconvert work``: the work dir and options.
            paths: The run's own folders: ``logs_dir`` for what workers say, ``jobs_dir`` for what
                was submitted.

        Raises:
            EngineError: They cannot be started.
        """

    def running(self) -> int:
        """Return how many workers run or wait to be started.

        It is asked many times a second and must answer at once: an engine that has to ask somebody
        else does so now and then, and answers from memory meanwhile.
        """

    def failures(self) -> list[str]:
        """Return one line a worker that ended badly."""

    def stop(self) -> None:
        """Ask all workers to hand back what they hold, and wait until they ended."""
