"""The tables under ``meta/`` of a result against those of its source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
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
from leconvert.repairs import Repairs
from leconvert.source import EpisodeLines, load_tasks
from leconvert.verify.difference import Difference

__all__ = [
    "SourceEpisodes",
    "compare_episodes",
    "compare_info",
    "compare_stats",
    "compare_tasks",
    "kept_lines",
    "read_source_episodes",
    "same_statistic",
    "stats_of_row",
]

_EPISODES = "meta/episodes"
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SourceEpisodes:
    """The source's episodes as the result must hold them; arrays of shape (E,).

    Attributes:
        index: Index in the source.
        length: Frames.
        repairs: What the conversion changed.
    """

    index: IntArray
    length: IntArray
    repairs: Repairs

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return int(self.length.sum())


def read_source_episodes(lines: EpisodeLines, repairs: Repairs) -> SourceEpisodes:
    """Read lengths from ``episodes.jsonl``, a line at a time, of the episodes that were kept."""
    lengths = np.fromiter((int(line["length"]) for line in lines), np.int64, count=len(lines))
    dropped = [dropped.episode for dropped in repairs.dropped_episodes]
    kept = ~np.isin(lines.episode_index, dropped)
    return SourceEpisodes(lines.episode_index[kept], lengths[kept], repairs)


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
        "total_tasks": len(episodes.repairs.tasks(load_tasks(source))),
        "fps": int(fps) if fps.denominator == 1 else float(fps),
        "robot_type": source_info.get("robot_type"),
    }
    for key, expected in totals.items():
        if info.get(key) != expected:
            yield Difference(key, path, str(expected), str(info.get(key)))
    features = info.get("features", {})
    expected_features = episodes.repairs.features(source_info["features"])
    if set(features) != set(expected_features):
        yield Difference("features", path, str(sorted(expected_features)), str(sorted(features)))
        return
    for key, feature in expected_features.items():
        for name, expected in feature.items():
            if name == "video_info" and "info" not in feature:
                name = "info"  # noqa: PLW2901 - v2.0's name for it
            if name != "fps" and features[key].get(name) != expected:
                yield Difference(
                    f"{name} of feature {key!r}", path, str(expected), str(features[key].get(name))
                )


def compare_tasks(result: Path, source: Path, repairs: Repairs) -> Iterator[Difference]:
    """Compare the tasks, by index and text."""
    expected, found = repairs.tasks(load_tasks(source)), tables.read_tasks(result)
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
        "episode_index": np.arange(len(episodes)),
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
    source_lines = kept_lines(lines, episodes)
    tasks = table.column("tasks")
    for start in range(0, len(episodes), _ROWS_AT_A_TIME):
        found_tasks = tasks.slice(start, _ROWS_AT_A_TIME).to_pylist()
        for line, have in zip(islice(source_lines, len(found_tasks)), found_tasks, strict=True):
            if list(line["tasks"]) != have:
                index = int(line["episode_index"])
                yield Difference("tasks", _EPISODES, str(line["tasks"]), str(have), episode=index)


def kept_lines(lines: EpisodeLines, episodes: SourceEpisodes) -> Iterator[dict[str, Any]]:
    """Yield a line for each episode that was kept; one without statistics where there is none."""
    remaining = iter(lines)
    line = next(remaining, None)
    for index in episodes.index.tolist():
        while line is not None and line["episode_index"] < index:
            line = next(remaining, None)
        is_there = line is not None and line["episode_index"] == index
        yield line if is_there and line is not None else {"episode_index": index, "stats": {}}


def compare_stats(
    result: Path,
    table: tables.EpisodesReader,
    lines: Iterator[dict[str, Any]],
    repairs: Repairs,
) -> Iterator[Difference]:
    """Compare every episode's statistics, and the dataset's with their aggregate.

    Statistics that the conversion computed are not compared here but with the rows that they are
    of; those of videos are taken as they stand.
    """
    changed = {*repairs.dropped_features, *repairs.computed_stats}
    aggregate = tables.StatsAggregator()
    features: Set[str] = frozenset()
    names: list[str] = []
    for rows in table.blocks(lambda name: name.startswith("stats/")):
        block = {name: rows.column(name).to_pylist() for name in rows.column_names}
        for row, record in enumerate(islice(lines, rows.num_rows)):
            stats = {
                name: values
                for name, values in record.get("stats", {}).items()
                if name not in changed
            }
            index = int(record["episode_index"])
            expected = dict(_flatten(stats, "stats"))
            for name in repairs.computed_stats:
                found_stats = stats_of_row(block, name, row)
                if not found_stats:
                    yield Difference(
                        f"statistics of {name!r}", _EPISODES, "computed ones", "none", episode=index
                    )
                stats[name] = found_stats
                expected |= _flatten({name: found_stats}, "stats")
            aggregate.update(stats, episode_index=index)
            if expected.keys() != features:
                features = frozenset(expected)
                names = sorted(block.keys() | features)
            for name in names:
                wanted, found = expected.get(name), block[name][row] if name in block else None
                if wanted != found and not same_statistic(_nested(wanted), _nested(found)):
                    yield Difference(name, _EPISODES, str(wanted), str(found), episode=index)
    found_aggregate = json.loads((result / "meta/stats.json").read_bytes())
    if not same_statistic(_plain(aggregate.result()), found_aggregate):
        yield Difference("aggregate", "meta/stats.json", "the episodes' aggregate", "other values")


def same_statistic(expected: object, found: object) -> bool:
    """Tell whether nested mappings and lists hold the same numbers; NaN equals NaN."""
    if expected == found:  # mostly, and many times faster than looking into lists here
        return True
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(
            same_statistic(value, found[key]) for key, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same_statistic, expected, found))
    return expected != expected and found != found  # noqa: PLR0124


def stats_of_row(block: Mapping[str, Sequence[Any]], feature: str, row: int) -> dict[str, Any]:
    """Return one feature's statistics of one episode, from columns ``stats/<feature>/<name>``."""
    prefix = f"stats/{feature}/"
    return {
        column.removeprefix(prefix): values[row]
        for column, values in block.items()
        if column.startswith(prefix) and values[row] is not None
    }


def _flatten(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        if isinstance(entry, dict):
            yield from _flatten(entry, f"{prefix}/{key}")
        else:
            yield f"{prefix}/{key}", entry


def _nested(value: object) -> object:
    return value if value is None or isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
