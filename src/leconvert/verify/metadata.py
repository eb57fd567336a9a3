"""The tables under ``meta/`` of a result against those of its source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert import tables
from leconvert.arrow import int64_values
from leconvert.model import IntArray
from leconvert.source import EpisodeLines, load_tasks
from leconvert.verify.difference import Difference

__all__ = [
    "SourceEpisodes",
    "compare_episodes",
    "compare_info",
    "compare_stats",
    "compare_tasks",
    "read_source_episodes",
]

_EPISODES = "meta/episodes"
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SourceEpisodes:
    """Index and length of every episode of the source, arrays of shape (E,)."""

    index: IntArray
    length: IntArray

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return int(self.length.sum())


def read_source_episodes(lines: EpisodeLines) -> SourceEpisodes:
    """Read lengths from ``episodes.jsonl``, a line at a time."""
    lengths = np.fromiter((int(line["length"]) for line in lines), np.int64, count=len(lines))
    return SourceEpisodes(lines.episode_index, lengths)


def compare_info(
    result: Path,
    source_info: Mapping[str, Any],
    fps: Fraction,
    episodes: SourceEpisodes,
    source: Path,
) -> Iterator[Difference]:
    """Compare ``info.json``: totals, rate, robot and every feature's declaration."""
    path = "meta/info.json"
    info = json.loads((result / path).read_bytes())
    totals = {
        "codebase_version": "v3.0",
        "total_episodes": len(episodes),
        "total_frames": episodes.num_frames,
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


def compare_tasks(result: Path, source: Path) -> Iterator[Difference]:
    """Compare the tasks, by index and text."""
    expected, found = load_tasks(source), tables.read_tasks(result)
    if expected != found:
        yield Difference("tasks", "meta/tasks.parquet", str(expected), str(found))


def compare_episodes(
    table: pa.Table, episodes: SourceEpisodes, lines: EpisodeLines
) -> Iterator[Difference]:
    """Compare ``meta/episodes`` without its statistics and routes, row by row."""
    if table.num_rows != len(episodes):
        yield Difference("episodes", _EPISODES, str(len(episodes)), str(table.num_rows))
        return
    ends = np.cumsum(episodes.length)
    expected = {
        "episode_index": episodes.index,
        "length": episodes.length,
        "dataset_from_index": ends - episodes.length,
        "dataset_to_index": ends,
    }
    for name, values in expected.items():
        found = int64_values(table.column(name))
        for row in np.flatnonzero(values != found).tolist():
            yield Difference(
                name,
                _EPISODES,
                str(values[row]),
                str(found[row]),
                episode=int(episodes.index[row]),
            )
    source_lines = iter(lines)
    tasks = table.column("tasks")
    for start in range(0, len(episodes), _ROWS_AT_A_TIME):
        found_tasks = tasks.slice(start, _ROWS_AT_A_TIME).to_pylist()
        for line, have in zip(islice(source_lines, len(found_tasks)), found_tasks, strict=True):
            if list(line["tasks"]) != have:
                index = int(line["episode_index"])
                yield Difference("tasks", _EPISODES, str(line["tasks"]), str(have), episode=index)


def compare_stats(result: Path, table: pa.Table, lines: EpisodeLines) -> Iterator[Difference]:
    """Compare every episode's statistics, and the dataset's with their aggregate."""
    aggregate = tables.StatsAggregator()
    columns = {name: table.column(name) for name in table.column_names if name.startswith("stats/")}
    records = iter(lines)
    for start in range(0, table.num_rows, _ROWS_AT_A_TIME):
        block = {
            name: column.slice(start, _ROWS_AT_A_TIME).to_pylist()
            for name, column in columns.items()
        }
        rows = min(_ROWS_AT_A_TIME, table.num_rows - start)
        for row, record in enumerate(islice(records, rows)):
            stats = record.get("stats", {})
            index = int(record["episode_index"])
            aggregate.update(stats, episode_index=index)
            expected = dict(_flatten(stats, "stats"))
            for name in sorted(columns.keys() | expected.keys()):
                found = block[name][row] if name in block else None
                if _nested(expected.get(name)) != _nested(found):
                    yield Difference(
                        name, _EPISODES, str(expected.get(name)), str(found), episode=index
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
