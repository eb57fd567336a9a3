"""What a packer reports, and how it asks whoever runs the workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PackReport:
    """What the packer did.

    Attributes:
        target: The result.
        kept: Where the replaced dataset is, or None.
        linked: Files that were linked into the tree.
        copied: Shards that had to be copied, because the work dir is on another file system
            or on one without hard links.
        joined: Files that were joined from parts.
        cloned_bytes: Coded video bytes that the workers shared with the source.
        copied_bytes: Coded video bytes that they copied.
        verified: The depth of the check.
        removed: The replaced source, where it was removed on request.
        kept_because: Why it was kept although it was to be removed.
        verified_because: Why less was compared than was asked for; None otherwise.
    """

    target: Path
    kept: Path | None
    linked: int
    copied: int
    joined: int
    cloned_bytes: int
    copied_bytes: int
    verified: str
    removed: Path | None = None
    kept_because: str | None = None
    verified_because: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        record["target"] = str(self.target)
        for name in ("kept", "removed"):
            record[name] = None if record[name] is None else str(record[name])
        return record


class WorkerMonitor:
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
