"""What is to be said of an output file as a whole: the header of a video, the footer of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np

from leconvert.latency import THREADS_THAT_WAIT, Latency
from leconvert.model import DATA_STREAM, IntArray, output_path
from leconvert.source import SourcePaths
from leconvert.source.info import DatasetInfo
from leconvert.verify.data_footer import DataSchemas, compare_footer
from leconvert.verify.difference import Difference
from leconvert.verify.metadata import SourceEpisodes
from leconvert.verify.video_header import compare_header

__all__ = ["compare_whole_files"]


def compare_whole_files(
    result: Path,
    paths: SourcePaths,
    info: DatasetInfo,
    episodes: SourceEpisodes,
    file_numbers: Mapping[str, IntArray],
    differing: Collection[str],
) -> list[Difference]:
    """Return where headers and footers are not what the files' episodes and the source demand.

    It costs O(files): of a video its index is read and that of one clip, of a table two footers.

    Args:
        result: The v3.0 dataset.
        paths: Where the source's files are.
        info: The source's ``info.json``.
        episodes: Its episodes as the result must hold them.
        file_numbers: The number of each episode's output file, by stream, shape (E,).
        differing: Files whose episodes are not as they should be; of videos among them there is
            nothing more to say.
    """
    schemas = DataSchemas(info, paths, episodes.index.tolist(), episodes.repairs)
    ends = np.cumsum(episodes.length)

    def look(stream: str, first: int, stop: int) -> Iterator[Difference]:
        path = output_path(stream, int(file_numbers[stream][first]))
        indices = episodes.index[first:stop].tolist()
        lengths = episodes.length[first:stop]
        if stream == DATA_STREAM:
            begins = (ends[first:stop] - lengths).tolist()
            yield from compare_footer(
                result, path, schemas, indices, lengths.tolist(), range(first, stop), begins
            )
        elif path not in differing:
            (clip,) = paths.absolute(stream, indices[:1])
            yield from compare_header(result, path, stream, lengths.tolist(), clip, info.fps)

    files = [
        (stream, first, stop)
        for stream, numbers in file_numbers.items()
        for first, stop in pairwise(
            [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        )
    ]
    with Latency() as latency:
        found = list(look(*files[0]))
    # Parsing holds Python's lock: where nothing waits, a second thread would only be in the way.
    threads = THREADS_THAT_WAIT if latency.dominates else 1
    with ThreadPoolExecutor(threads, thread_name_prefix="verify-files") as pool:
        for more in pool.map(lambda file: list(look(*file)), files[1:]):
            found += more
    return found
