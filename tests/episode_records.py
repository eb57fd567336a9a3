"""``meta/episodes`` written from one record an episode."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leconvert.dataset.formats import StatsBlock, v3


class VideoSpan(NamedTuple):
    """Where one camera's frames of an episode are."""

    key: str
    file: int
    from_frame: int
    to_frame: int


class EpisodeRecord(NamedTuple):
    """What `leconvert.dataset.formats.v3.EpisodeRecords` says, of one episode."""

    episode_index: int
    data_file: int
    dataset_from_index: int
    length: int
    videos: tuple[VideoSpan, ...]
    legacy: Mapping[str, Any]
    stats: Mapping[str, Any] | None


def write_episodes(
    root: Path,
    episodes: Callable[[], Iterable[EpisodeRecord]],
    *,
    fps: Fraction,
    file_size_limit_bytes: int = 100 * 1024**2,
    block_rows: int = 125,
) -> list[str]:
    """Write the table; the records, which have the same cameras, are given in blocks of rows."""

    def blocks() -> Iterator[v3.EpisodeRecords]:
        remaining = iter(episodes())
        while block := list(islice(remaining, block_rows)):
            yield _together(block)

    return v3.write_episodes(root, blocks, fps=fps, file_size_limit_bytes=file_size_limit_bytes)


def _together(records: list[EpisodeRecord]) -> v3.EpisodeRecords:
    index, data_file, start, length, videos, legacy, stats = zip(*records, strict=True)
    spans = [
        v3.VideoSpans(keys[0], *map(np.array, columns))
        for keys, *columns in (zip(*own, strict=True) for own in zip(*videos, strict=True))
    ]
    arrays = map(np.array, (index, data_file, start, length))
    return v3.EpisodeRecords(*arrays, videos=spans, legacy=legacy, stats=StatsBlock(stats))
