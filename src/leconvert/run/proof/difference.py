"""What a verification reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the result is not what its source demands.

    Attributes:
        what: The property that differs, in a few words.
        path: The file of the result, relative to it.
        expected: What the source demands.
        found: What is there.
        episode: Index of the episode, where it is about one.
        stream: The stream, where it is about one.
    """

    what: str
    path: str
    expected: str
    found: str
    episode: int | None = None
    stream: str | None = None

    def __str__(self) -> str:
        place = self.path if self.episode is None else f"{self.path}, episode {self.episode}"
        return f"{place}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The outcome of a verification.

    Attributes:
        depth: ``structure`` or ``bytes``.
        differences: Everything that is not as it should be; empty for a proven result.
        files: Files of the result that were looked at.
        episodes: Episodes that were compared.
        video_frames: Camera frames that were compared.
        rows: Table rows that were compared.
        share: Share of the episodes whose files were compared.
        pictures: Pictures that were decoded on both sides.
        samples: Samples that were loaded through LeRobot.
    """

    depth: str
    differences: Sequence[Difference]
    files: int
    episodes: int
    video_frames: int
    rows: int
    share: float = 1.0
    pictures: int = 0
    samples: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences
