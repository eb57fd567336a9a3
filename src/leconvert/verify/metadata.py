"""The tables under ``meta/`` of a result against those of its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert import tables
from leconvert.arrow import int64_values
from leconvert.errors import LeconvertError, SourceError, UnreadableSourceError
from leconvert.model import IntArray
from leconvert.repairs import Repairs
from leconvert.source import EpisodeLines, load_tasks
from leconvert.source.episode_table import episode_length
from leconvert.source.info import STATS_PATH as LEGACY_STATS_PATH
from leconvert.tables.paths import STATS_PATH, TASKS_PATH
from leconvert.verify.difference import Difference
from leconvert.verify.episode_columns import compare_own_values
from leconvert.verify.json_files import read_json_object
from leconvert.verify.task_table import pandas_index
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = [
    "SourceEpisodes",
    "compare_aggregate_form",
    "compare_episodes",
    "compare_stats",
    "compare_tasks",
    "kept_lines",
    "read_source_episodes",
    "same_statistic",
    "stats_of_row",
    "unreadable_metadata",
]

_EPISODES = "meta/episodes"
_TASK_COLUMNS = ["task", "task_index"]
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
    """Read lengths from ``episodes.jsonl``, a line at a time, of the episodes that were kept.

    Raises:
        SourceError: A line cannot be read, or gives no length.
    """
    dropped = {dropped.episode for dropped in repairs.dropped_episodes}
    each = (
        episode_length(lines.path, line, may_be_empty=line["episode_index"] in dropped)
        for line in lines
    )
    lengths = np.fromiter(each, np.int64, count=len(lines))
    kept = ~np.isin(lines.episode_index, list(dropped))
    return SourceEpisodes(lines.episode_index[kept], lengths[kept], repairs)


def unreadable_metadata(result: Path, error: Exception, expected: str = "its tables") -> Difference:
    """Return the difference of a table without which nothing can be compared.

    Args:
        result: The v3.0 dataset.
        error: What reading it raised.
        expected: What should have been there.
    """
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    inside = path is not None and Path(path).is_relative_to(result)
    place = Path(path).relative_to(result).as_posix() if path and inside else "meta/"
    said = str(error) if isinstance(error, LeconvertError | OSError) else repr(error)
    return Difference("readable metadata", place, expected, said)


def compare_tasks(result: Path, source: Path, repairs: Repairs) -> Iterator[Difference]:
    """Compare the tasks, by index and text, and how the table presents them to pandas.

    Raises:
        UnreadableSourceError: A table cannot be read, on either side.
    """
    expected, found = repairs.tasks(load_tasks(source, repairs)), tables.read_tasks(result)
    for have, wanted in zip_longest(found, expected):
        if have != wanted:
            yield Difference("tasks", TASKS_PATH, _task(wanted), _task(have))
    schema = tables.read_data_schema(result / TASKS_PATH)
    if pandas_index(schema) != "task":
        found_layout = f"the columns {schema.names} without such an index"
        yield Difference("layout", TASKS_PATH, "texts as pandas index", found_layout)
    if sorted(schema.names) != _TASK_COLUMNS:
        yield Difference("columns", TASKS_PATH, str(_TASK_COLUMNS), str(sorted(schema.names)))
    elif (kind := schema.field("task_index").type) != pa.int64():
        yield Difference("type of column 'task_index'", TASKS_PATH, "int64", str(kind))


def _task(task: tuple[int, str] | None) -> str:
    return "no such row" if task is None else f"task {task[0]}, {task[1]!r}"


def compare_episodes(
    table: pa.Table, episodes: SourceEpisodes, lines: EpisodeLines, placing: Sequence[str]
) -> Iterator[Difference]:
    """Compare ``meta/episodes`` without its statistics and routes, row by row.

    Args:
        table: It.
        episodes: The source's episodes as the result must hold them.
        lines: ``episodes.jsonl`` of the source.
        placing: Columns that say where episodes are.
    """
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
    own = [
        name for name in table.column_names if name not in placing and not name.startswith("stats/")
    ]
    for start in range(0, len(episodes), _ROWS_AT_A_TIME):
        block = table.slice(start, _ROWS_AT_A_TIME)
        rows = {name: block.column(name).to_pylist() for name in own}
        block_lines = list(islice(source_lines, block.num_rows))
        yield from compare_own_values(block_lines, rows, placing)


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

    Raises:
        UnreadableSourceError: A table cannot be read, on either side.
        SourceError: Statistics of the source are none.
    """
    try:
        yield from _compare_stats(result, table, lines, repairs)
    except SourceError as error:
        if isinstance(error, UnreadableSourceError) or not repairs.computed_stats:
            raise
        # The source's own could be added up when the conversion began; the result's cannot.
        yield Difference("computed statistics", _EPISODES, "ones that add up", str(error))


def _compare_stats(
    result: Path,
    table: tables.EpisodesReader,
    lines: Iterator[dict[str, Any]],
    repairs: Repairs,
) -> Iterator[Difference]:
    aggregate = tables.StatsAggregator()
    features: Set[str] = frozenset()
    names: list[str] = []
    for rows in table.blocks(lambda name: name.startswith("stats/")):
        columns = enumerate(rows.column_names)  # a name may be there twice
        block = {name: rows.column(number).to_pylist() for number, name in columns}
        for row, record in enumerate(islice(lines, rows.num_rows)):
            index = int(record["episode_index"])
            stats = {
                name: values
                for name, values in _source_stats(record, index).items()
                if name not in repairs.dropped_features and not repairs.computes_stats(name, index)
            }
            expected = dict(_flatten(stats, "stats"))
            for name in repairs.computed_stats:
                if not repairs.computes_stats(name, index):
                    continue
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
    yield from _compare_aggregate(result, _plain(aggregate.result()))


def _source_stats(record: Mapping[str, Any], episode: int) -> Mapping[str, Any]:
    stats = record.get("stats")
    if stats is None:
        return {}
    if not isinstance(stats, Mapping):
        raise SourceError(
            f"{LEGACY_STATS_PATH} of the source has no table of statistics for episode {episode}.",
            next_step="Mend the line, or restore the table from another copy of the dataset.",
        )
    return stats


def compare_aggregate_form(result: Path) -> Iterator[Difference]:
    """Say where ``stats.json`` is nothing that could be read, without a look at what it says."""
    found = _read_aggregate(result)
    if isinstance(found, Difference):
        yield found


def _read_aggregate(result: Path) -> dict[str, Any] | Difference:
    try:
        return read_json_object(result / STATS_PATH)
    except (OSError, ValueError) as error:
        raise_storage_trouble(error, result / STATS_PATH)
        return Difference("aggregate", STATS_PATH, "readable statistics", str(error))


def _compare_aggregate(result: Path, expected: Mapping[str, Any]) -> Iterator[Difference]:
    found = _read_aggregate(result)
    if isinstance(found, Difference):
        yield found
        return
    for feature in sorted(expected.keys() | found.keys()):
        wanted, have = expected.get(feature), found.get(feature)
        if not isinstance(wanted, Mapping) or not isinstance(have, Mapping):
            if not same_statistic(wanted, have):
                what = f"aggregate of {feature!r}"
                yield Difference(what, STATS_PATH, _kind(wanted), _kind(have))
            continue
        for name in sorted(wanted.keys() | have.keys()):
            if not same_statistic(wanted.get(name), have.get(name)):
                yield Difference(
                    f"aggregate {name} of {feature!r}",
                    STATS_PATH,
                    str(wanted.get(name)),
                    str(have.get(name)),
                )


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "statistics" if isinstance(value, Mapping) else str(value)


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
