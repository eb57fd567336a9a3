"""One way to damage a good result, and what a verification has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from tests.dataset_damage import Damage

__all__ = [
    "AV1", "BYTES", "DATA", "EPISODES", "HEVC", "SPARE_DATA", "SPARE_TOP", "STRUCTURE", "TOP",
    "WRIST", "Mutation", "break_page", "bytes_of", "chunk_of", "cut", "exchange",
]  # fmt: skip

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


@contextmanager
def bytes_of(path: Path) -> Iterator[bytearray]:
    """Give the content of a file, and write what became of it."""
    content = bytearray(path.read_bytes())
    yield content
    path.write_bytes(content)


def chunk_of(path: Path, column: str, row_group: int = 0) -> pq.ColumnChunkMetaData:
    """Return where a column's values lie in a row group."""
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(row_group)
        chunks = [group.column(number) for number in range(group.num_columns)]
    return next(chunk for chunk in chunks if chunk.path_in_schema.startswith(column))


def break_page(path: Path, column: str) -> None:
    """Overwrite the header of a column's first page, which then cannot be read."""
    chunk = chunk_of(path, column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    with bytes_of(path) as content:
        content[begin : begin + 8] = b"\xff" * 8


def exchange(one: str, other: str) -> Damage:
    """Let each of two files have the other's name."""

    def damage(root: Path) -> None:
        (root / one).rename(root / "kept")
        (root / other).rename(root / one)
        (root / "kept").rename(root / other)

    return damage


def cut(path: str, keep: Callable[[int], int]) -> Damage:
    """Keep so many bytes of a file, by its size."""

    def damage(root: Path) -> None:
        content = (root / path).read_bytes()
        (root / path).write_bytes(content[: keep(len(content))])

    return damage
