"""What a packer asks and tells whoever runs the workers that it waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["Watcher"]


class Watcher:
    """Waits for workers that nobody here knows of: they may come at any time.

    Attributes:
        pause_seconds: How long the packer waits at least between two looks at the work dir.
    """

    pause_seconds = 1.0

    def working(self) -> bool:
        """Say whether anybody works, or may yet come to work."""
        return True

    def saw_done(self, batch_ids: Collection[int]) -> None:
        """Hear of batches that are done since the last call."""

    def saw_the_end(self) -> None:
        """Hear that every batch is settled, or that nobody works any more."""

    def remarks(self) -> Sequence[str]:
        """Return lines that say why nobody works any more."""
        return ()
