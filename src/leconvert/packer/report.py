"""What a packer reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["PackReport"]


@dataclass(frozen=True, slots=True)
class PackReport:
    """What the packer did.

    Attributes:
        target: The v3.0 dataset.
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

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        record["target"] = str(self.target)
        for name in ("kept", "removed"):
            record[name] = None if record[name] is None else str(record[name])
        return record
