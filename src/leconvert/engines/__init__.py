"""How workers are started. An engine knows nothing of batches: it starts, watches and stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Engine"]


class Engine(Protocol):
    """Something that starts workers on a work dir and notices that they ended."""

    def start(self, count: int, arguments: Sequence[str]) -> None:
        """Start ``count`` workers.

        Args:
            count: How many.
            arguments: What follows ``leconvert work``: the work dir and options.
        """

    def running(self) -> int:
        """Return how many workers still run."""

    def failures(self) -> list[str]:
        """Return one line a worker that ended badly."""

    def stop(self) -> None:
        """Ask all workers to hand back what they hold, and wait until they ended."""
