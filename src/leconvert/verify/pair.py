"""A result against its source: routing, totals and metadata here, files in the other modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import tables
from leconvert.arrow import int64_values
from leconvert.errors import UnreadableSourceError
from leconvert.latency import THREADS_THAT_WAIT, Latency
from leconvert.model import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    IntArray,
    camera_of,
    output_path,
    stream_of_camera,
)
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.repairs import Repairs
from leconvert.source import EpisodeLines, SourcePaths, load_info
from leconvert.source.info import DatasetInfo
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH
from leconvert.verify.difference import Difference, VerificationReport
from leconvert.verify.metadata import (
    SourceEpisodes,
    compare_episodes,
    compare_info,
    compare_stats,
    compare_tasks,
    kept_lines,
    read_source_episodes,
)
from leconvert.verify.rows import RowRules, RowSpan, compare_table
from leconvert.verify.videos import Span, compare_video

__all__ = ["verify_pair"]


@dataclass(frozen=True, slots=True, eq=False)
class _Routing:
    """The columns of ``meta/episodes`` that lead to files, of length E, by stream."""

    file_number: Mapping[str, IntArray]
    from_timestamp: Mapping[str, pa.ChunkedArray]
    to_timestamp: Mapping[str, pa.ChunkedArray]


def verify_pair(
    result: Path,
    source: Path,
    *,
    depth: str = "structure",
    progress: Progress = NO_PROGRESS,
    num_threads: int | None = None,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None,
    repairs: Repairs | None = None,
) -> VerificationReport:
    """Compare a v3.0 result with the v2.x dataset that it was converted from.

    Args:
        result: The v3.0 dataset.
        source: The v2.x dataset.
        depth: ``structure`` compares tables, headers, sizes, times, keyframes, rows and totals;
            ``bytes`` also compares every coded packet and every row's values.
        progress: Where to report.
        num_threads: Files that are compared at a time after the first; by default many where
            storage makes it wait, two where bytes or clips are read, else one.
        clip_digests: For each camera's stream, what `leconvert.media.order_digest` gave for each
            episode's clip when a worker read it, shape (E,) of 16 bytes; ``structure`` then does
            not read the clips again.
        repairs: What the conversion was told to change; by default what the result says of itself
            in ``meta/repairs.json``. Anything else that differs is a difference.

    Raises:
        SourceError: The source itself cannot be read.
    """
    with suppress(OSError):
        # An NFS client that looked for the result in vain goes on missing it for half a minute,
        # unless it lists the folder.
        list(result.parent.iterdir())
    info = load_info(source)
    paths = SourcePaths(source, info)
    episodes = EpisodeLines(source / EPISODES_PATH)
    differences: list[Difference] = []

    try:
        declared = tables.read_repairs(result)
        if repairs is not None and declared != repairs:
            differences.append(
                Difference("repairs", tables.REPAIRS_PATH, str(repairs), str(declared))
            )
        repairs = repairs or declared
        expected = read_source_episodes(episodes, repairs)
        frames = expected.num_frames
        cameras = [key for key in info.camera_keys if key not in repairs.dropped_features]
        streams = [DATA_STREAM, *map(stream_of_camera, cameras)]
        table = tables.read_episodes(result, stats=depth == "bytes")
        differences += compare_info(result, info.raw, info.fps, expected, source)
        differences += compare_tasks(result, source, repairs)
        routing = _routing(table, streams)
    except (OSError, KeyError, ValueError, pa.ArrowException, UnreadableSourceError) as error:
        differences.append(Difference("readable metadata", "meta/", "its tables", repr(error)))
        return VerificationReport(depth, differences, 0, 0, 0, 0)
    differences += compare_episodes(table, expected, episodes)
    if depth == "bytes":
        differences += compare_stats(result, table, _stats_lines(source, expected), repairs)
    if table.num_rows != len(expected):
        return VerificationReport(depth, differences, 0, 0, 0, 0)

    jobs: list[Callable[[Callable[[int], None]], Iterator[Difference]]] = []
    expected_files: set[str] = set()
    for stream in streams:
        numbers = routing.file_number[stream]
        for first, stop in _runs(numbers):
            path = output_path(stream, int(numbers[first]))
            if path in expected_files:
                differences.append(Difference("episodes of a file", path, "one run", "several"))
            expected_files.add(path)
            jobs.append(
                _file_job(
                    result,
                    path,
                    stream,
                    range(first, stop),
                    expected,
                    routing,
                    paths,
                    info,
                    table,
                    clip_digests=None if clip_digests is None else clip_digests.get(stream),
                    deep=depth == "bytes",
                )
            )
    differences += _left_over(result, expected_files)

    with progress.stage("verify", frames * len(streams), "frames") as stage:
        with Latency() as latency:
            differences += jobs[0](stage.advance)
        if num_threads is None:
            # Tables and headers alone are Python's work, which threads do not share.
            num_threads = 2 if depth == "bytes" or clip_digests is None else 1
            if latency.dominates:
                num_threads = THREADS_THAT_WAIT
        with ThreadPoolExecutor(num_threads, thread_name_prefix="verify") as pool:
            for found in pool.map(lambda job: list(job(stage.advance)), jobs[1:]):
                differences += found
    return VerificationReport(
        depth=depth,
        differences=tuple(differences),
        files=len(jobs),
        episodes=len(expected),
        video_frames=frames * len(cameras),
        rows=frames,
    )


def _file_job(
    result: Path,
    path: str,
    stream: str,
    positions: range,
    episodes: SourceEpisodes,
    routing: _Routing,
    paths: SourcePaths,
    info: DatasetInfo,
    table: pa.Table,
    *,
    clip_digests: npt.NDArray[np.bytes_] | None,
    deep: bool,
) -> Callable[[Callable[[int], None]], Iterator[Difference]]:
    def compare(advance: Callable[[int], None]) -> Iterator[Difference]:
        first, stop = positions.start, positions.stop
        lengths = episodes.length[first:stop]
        indices = episodes.index[first:stop].tolist()
        # One at a time: thousands of short episodes may be in one file.
        sources = paths.absolute(stream, indices)
        if stream == DATA_STREAM:
            begins = (np.cumsum(episodes.length)[first:stop] - lengths).tolist()
            row_spans = map(RowSpan, indices, lengths.tolist(), sources, positions, begins)
            rules = RowRules(info, episodes.repairs, _computed_stats(table, episodes.repairs))
            yield from compare_table(
                result, path, len(indices), row_spans, rules, read_rows=deep, on_frames=advance
            )
        else:
            spans = map(
                Span,
                indices,
                lengths.tolist(),
                routing.from_timestamp[stream].slice(first, stop - first).to_pylist(),
                routing.to_timestamp[stream].slice(first, stop - first).to_pylist(),
                sources,
                _digests(clip_digests, first, stop),
            )
            yield from compare_video(
                result,
                path,
                stream,
                int(lengths.sum()),
                spans,
                info.fps,
                read_bytes=deep,
                on_frames=advance,
            )

    return compare


def _stats_lines(source: Path, episodes: SourceEpisodes) -> Iterator[dict[str, Any]]:
    path = source / STATS_PATH
    if path.exists():
        return kept_lines(EpisodeLines(path), episodes)
    return ({"episode_index": index, "stats": {}} for index in episodes.index.tolist())


def _computed_stats(table: pa.Table, repairs: Repairs) -> pa.Table:
    """Return the columns of statistics that the conversion computed."""
    prefixes = tuple(f"stats/{name}/" for name in repairs.computed_stats)
    return table.select([name for name in table.column_names if name.startswith(prefixes)])


def _digests(known: npt.NDArray[np.bytes_] | None, first: int, stop: int) -> Iterator[str | None]:
    if known is None:
        return itertools.repeat(None, stop - first)
    return (digest.decode("ascii") for digest in known[first:stop].tolist())


def _routing(table: pa.Table, streams: list[str]) -> _Routing:
    numbers, begins, ends = {}, {}, {}
    for stream in streams:
        chunk = int64_values(table.column(f"{stream}/chunk_index"))
        file = int64_values(table.column(f"{stream}/file_index"))
        numbers[stream] = chunk * FILES_PER_CHUNK + file
        if camera_of(stream) is not None:
            begins[stream] = table.column(f"{stream}/from_timestamp")
            ends[stream] = table.column(f"{stream}/to_timestamp")
    return _Routing(numbers, begins, ends)


def _runs(numbers: IntArray) -> Iterator[tuple[int, int]]:
    """Yield (first, stop) of each run of equal numbers."""
    edges = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    yield from itertools.pairwise([0, *edges, len(numbers)])


def _left_over(result: Path, expected: set[str]) -> Iterator[Difference]:
    found = {
        path.relative_to(result).as_posix()
        for folder in ("data", "videos")
        for path in (result / folder).rglob("*")
        if not path.is_dir()
    }
    for path in sorted(found - expected):
        yield Difference("file", path, "no such file", "a file that no episode names")
    for path in sorted(expected - found):
        yield Difference("file", path, "a file", "nothing")
