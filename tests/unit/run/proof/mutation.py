"""One way to damage a good result, and what a verification has to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "AV1",
    "BYTES",
    "DATA",
    "EPISODES",
    "HEVC",
    "SPARE_DATA",
    "SPARE_TOP",
    "STRUCTURE",
    "TOP",
    "WRIST",
    "Mutation",
]

STRUCTURE, BYTES = "structure", "bytes"

# Files of the result that is damaged; episodes 0 to 3 are in the first of each stream.
DATA = "data/chunk-000/file-000.parquet"
SPARE_DATA = "data/chunk-000/file-001.parquet"
TOP = "videos/observation.images.top/chunk-000/file-000.mp4"
SPARE_TOP = "videos/observation.images.top/chunk-000/file-001.mp4"
WRIST = "videos/observation.images.wrist/chunk-000/file-000.mp4"
HEVC = "videos/observation.images.hevc/chunk-000/file-000.mp4"
AV1 = "videos/observation.images.av1/chunk-000/file-000.mp4"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to damage a good result.

    Attributes:
        title: What was done, as the documentation lists it.
        depth: The depth at which it must be found; ``bytes`` finds what ``structure`` finds.
        damage: Does it to the result below a folder.
        path: The file that the difference must name.
        what: Words that must be in what differs.
        expected: Words that must be in what is expected.
        found: Words that must be in what is found.
        episode: The episode that it must name, if it is about one.
        pair: The fixture that makes the result and its source.
    """

    title: str
    depth: str
    damage: Callable[[Path], object]
    path: str
    what: str
    expected: str = ""
    found: str = ""
    episode: int | None = None
    pair: str = "pair"
