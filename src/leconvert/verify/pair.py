"""A result against its source: routing, totals and metadata here, files in the other modules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert import tables
from leconvert.arrow import int64_values
from leconvert.errors import UnreadableSourceError
from leconvert.model import DATA_STREAM, FILES_PER_CHUNK, camera_of, output_path, stream_of_camera
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import EpisodeLines, SourcePaths, load_info, load_tasks
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH
from leconvert.verify.difference import Difference, VerificationReport
from leconvert.verify.rows import RowSpan, compare_table
from leconvert.verify.videos import Span, compare_video

__all__ = ["verify_pair"]


@dataclass(frozen=True, slots=True, eq=False)
class _Routing:
    """The columns of ``meta/episodes`` that lead to files, as lists of length E."""

    file_number: Mapping[str, list[int]]
    from_timestamp: Mapping[str, list[float]]
    to_timestamp: Mapping[str, list[float]]


def verify_pair(
    result: Path,
    source: Path,
    *,
    depth: str = "structure",
    progress: Progress = NO_PROGRESS,
    num_threads: int = 2,
    clip_digests: Mapping[str, Sequence[str | None]] | None = None,
) -> VerificationReport:
    """Compare a v3.0 result with the v2.x dataset that it was converted from.

    Args:
        result: The v3.0 dataset.
        source: The v2.x dataset.
        depth: ``structure`` compares tables, headers, sizes, times, keyframes, rows and totals;
            ``bytes`` also compares every coded packet and every row's values.
        progress: Where to report.
        num_threads: Files that are compared at a time.
        clip_digests: For each camera's stream, what `leconvert.media.order_digest` gave for each
            episode's clip when a worker read it; ``structure`` then does not read it again.

    Raises:
        SourceError: The source itself cannot be read.
    """
    info = load_info(source)
    paths = SourcePaths(source, info)
    episodes = EpisodeLines(source / EPISODES_PATH)
    records = [(int(r["episode_index"]), int(r["length"]), r["tasks"]) for r in episodes]
    streams = [DATA_STREAM, *(stream_of_camera(key) for key in info.camera_keys)]
    differences: list[Difference] = []

    try:
        table = tables.read_episodes(result, stats=depth == "bytes")
        differences += _compare_info(result, info.raw, info.fps, records, source)
        differences += _compare_tasks(result, source)
        routing = _routing(table, streams)
    except (OSError, KeyError, ValueError, pa.ArrowException, UnreadableSourceError) as error:
        differences.append(Difference("readable metadata", "meta/", "its tables", repr(error)))
        return VerificationReport(depth, differences, 0, 0, 0, 0)
    differences += _compare_episodes(table, records)
    if depth == "bytes":
        differences += _compare_stats(result, table, EpisodeLines(source / STATS_PATH))
    if table.num_rows != len(records):
        return VerificationReport(depth, differences, 0, 0, 0, 0)

    jobs: list[Callable[[Callable[[int], None]], Iterator[Difference]]] = []
    expected_files: set[str] = set()
    for stream in streams:
        numbers = routing.file_number[stream]
        for first, stop in _runs(numbers):
            path = output_path(stream, numbers[first])
            if path in expected_files:
                differences.append(Difference("episodes of a file", path, "one run", "several"))
            expected_files.add(path)
            jobs.append(
                _file_job(
                    result,
                    path,
                    stream,
                    range(first, stop),
                    records,
                    routing,
                    paths,
                    info.fps,
                    clip_digests=None if clip_digests is None else clip_digests.get(stream),
                    deep=depth == "bytes",
                )
            )
    differences += _left_over(result, expected_files)

    frames = sum(length for _, length, _ in records)
    with (
        progress.stage("verify", frames * len(streams), "frames") as stage,
        ThreadPoolExecutor(max(1, num_threads), thread_name_prefix="verify") as pool,
    ):
        for found in pool.map(lambda job: list(job(stage.advance)), jobs):
            differences += found
    return VerificationReport(
        depth=depth,
        differences=tuple(differences),
        files=len(jobs),
        episodes=len(records),
        video_frames=frames * len(info.camera_keys),
        rows=frames,
    )


def _file_job(
    result: Path,
    path: str,
    stream: str,
    positions: range,
    records: list[tuple[int, int, Any]],
    routing: _Routing,
    paths: SourcePaths,
    fps: Fraction,
    *,
    clip_digests: Sequence[str | None] | None,
    deep: bool,
) -> Callable[[Callable[[int], None]], Iterator[Difference]]:
    def compare(advance: Callable[[int], None]) -> Iterator[Difference]:
        members = [(position, records[position]) for position in positions]
        frames = sum(length for _, (_, length, _) in members)
        if stream == DATA_STREAM:
            row_spans = [
                RowSpan(index, length, paths.absolute(stream, index))
                for _, (index, length, _) in members
            ]
            yield from compare_table(
                result, path, row_spans, read_rows=deep, on_rows=lambda _: None
            )
        else:
            spans = [
                Span(
                    index,
                    length,
                    routing.from_timestamp[stream][position],
                    routing.to_timestamp[stream][position],
                    paths.absolute(stream, index),
                    None if clip_digests is None else clip_digests[position],
                )
                for position, (index, length, _) in members
            ]
            yield from compare_video(
                result, path, stream, spans, fps, read_bytes=deep, on_bytes=lambda _: None
            )
        advance(frames)

    return compare


def _routing(table: pa.Table, streams: list[str]) -> _Routing:
    numbers, begins, ends = {}, {}, {}
    for stream in streams:
        chunk = int64_values(table.column(f"{stream}/chunk_index"))
        file = int64_values(table.column(f"{stream}/file_index"))
        numbers[stream] = (chunk * FILES_PER_CHUNK + file).tolist()
        if camera_of(stream) is not None:
            begins[stream] = table.column(f"{stream}/from_timestamp").to_pylist()
            ends[stream] = table.column(f"{stream}/to_timestamp").to_pylist()
    return _Routing(numbers, begins, ends)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, stop) of each run of equal numbers."""
    edges = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    yield from zip([0, *edges], [*edges, len(numbers)], strict=True)


def _compare_info(
    result: Path,
    source_info: Mapping[str, Any],
    fps: Fraction,
    records: list[tuple[int, int, Any]],
    source: Path,
) -> Iterator[Difference]:
    path = "meta/info.json"
    info = json.loads((result / path).read_bytes())
    totals = {
        "codebase_version": "v3.0",
        "total_episodes": len(records),
        "total_frames": sum(length for _, length, _ in records),
        "total_tasks": len(load_tasks(source)),
        "fps": int(fps) if fps.denominator == 1 else float(fps),
        "robot_type": source_info.get("robot_type"),
    }
    for key, expected in totals.items():
        if info.get(key) != expected:
            yield Difference(key, path, str(expected), str(info.get(key)))
    features, expected_features = info.get("features", {}), source_info["features"]
    if set(features) != set(expected_features):
        yield Difference("features", path, str(sorted(expected_features)), str(sorted(features)))
        return
    for key, feature in expected_features.items():
        for name, expected in feature.items():
            if name != "fps" and features[key].get(name) != expected:
                yield Difference(
                    f"{name} of feature {key!r}", path, str(expected), str(features[key].get(name))
                )


def _compare_tasks(result: Path, source: Path) -> Iterator[Difference]:
    expected, found = load_tasks(source), tables.read_tasks(result)
    if expected != found:
        yield Difference("tasks", "meta/tasks.parquet", str(expected), str(found))


def _compare_episodes(table: pa.Table, records: list[tuple[int, int, Any]]) -> Iterator[Difference]:
    path = "meta/episodes"
    if table.num_rows != len(records):
        yield Difference("episodes", path, str(len(records)), str(table.num_rows))
        return
    ends = np.cumsum([length for _, length, _ in records])
    expected = {
        "episode_index": [index for index, _, _ in records],
        "length": [length for _, length, _ in records],
        "tasks": [list(tasks) for _, _, tasks in records],
        "dataset_from_index": [0, *ends[:-1].tolist()],
        "dataset_to_index": ends.tolist(),
    }
    for name, values in expected.items():
        found = table.column(name).to_pylist()
        for (index, _, _), want, have in zip(records, values, found, strict=True):
            if want != have:
                yield Difference(name, path, str(want), str(have), episode=index)


def _compare_stats(result: Path, table: pa.Table, lines: EpisodeLines) -> Iterator[Difference]:
    """Compare every episode's statistics, and the dataset's with their aggregate."""
    aggregate = tables.StatsAggregator()
    columns = {name: table.column(name) for name in table.column_names if name.startswith("stats/")}
    for position, record in enumerate(lines):
        stats = record.get("stats", {})
        aggregate.update(stats)
        expected = dict(_flatten(stats, "stats"))
        for name in sorted(columns.keys() | expected.keys()):
            found = columns[name][position].as_py() if name in columns else None
            if _nested(expected.get(name)) != _nested(found):
                yield Difference(
                    name,
                    "meta/episodes",
                    str(expected.get(name)),
                    str(found),
                    episode=int(record["episode_index"]),
                )
    found_stats = json.loads((result / "meta/stats.json").read_bytes())
    if _plain(aggregate.result()) != found_stats:
        yield Difference("aggregate", "meta/stats.json", "the episodes' aggregate", "other values")


def _flatten(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flatten(entry, f"{prefix}/{key}")
        else:
            yield f"{prefix}/{key}", entry


def _nested(value: object) -> object:
    return value if value is None or isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


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
