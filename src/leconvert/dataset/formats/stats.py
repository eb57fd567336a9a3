"""Statistics as stored in tables: for some episodes, or for a whole dataset.

Nearly always, all episodes have the same statistics with the same shapes. Then each column is one
array, which is made once for all readers, and no loop over Python's lists is needed.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.model.repairs import VISUAL_DTYPES
from leconvert.support.errors import SourceError
from leconvert.support.values import dataclass
from leconvert.workdir.fs import make_folders_below

# Number of episodes whose parsed JSON is in memory at a time: Python's numbers in nested lists take
# ten times the space of arrays.
BLOCK_EPISODES = 125

Row = Mapping[str, Any] | None
"""One episode's statistics: feature to statistic to value; None for no table."""
Columns = Mapping[str, Mapping[str, npt.NDArray[Any]]]
"""Feature to statistic to array of shape (episodes, ...); int64, float64 or bool."""

_JOINED_EPISODES = 1000
_FORMATS = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}


class StatsBlock:
    """The statistics of some episodes, at least one.

    It is made of rows or of columns; the other form is made at its first use.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._length = len(rows)
        self.rows = rows

    @classmethod
    def of_columns(cls, columns: Columns, length: int) -> StatsBlock:
        """Return a block from columns."""
        block = cls(())
        del block.rows
        block._length, block.columns = length, columns
        return block

    def __len__(self) -> int:
        return self._length

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The statistics of each episode, as in JSON."""
        listed = [
            (feature, tuple(own), zip(*(array.tolist() for array in own.values()), strict=True))
            for feature, own in (self.columns or {}).items()
        ]
        return [
            {feature: dict(zip(names, next(row), strict=True)) for feature, names, row in listed}
            for _ in range(self._length)
        ]

    @cached_property
    def columns(self) -> Columns | None:
        """The same as arrays; None if episodes differ in their statistics, shapes or types.

        No value changes: rows made from the columns equal the rows from which the columns are made.
        """
        try:
            return _columns(self.rows)
        except (TypeError, ValueError, struct.error):
            return None

    @property
    def _known_columns(self) -> Columns | None:
        found: Columns | None = vars(self).get("columns")
        return found

    def __getitem__(self, part: slice | npt.NDArray[np.bool_]) -> StatsBlock:
        """Return the block of some episodes: consecutive ones, or those of a mask."""
        places = np.arange(self._length)[part].tolist()
        if (columns := self._known_columns) is None:
            return StatsBlock([self.rows[place] for place in places])
        found = {
            feature: {name: array[part] for name, array in own.items()}
            for feature, own in columns.items()
        }
        return StatsBlock.of_columns(found, len(places))

    def without(self, features: Collection[str]) -> StatsBlock:
        """Return the block without some features."""
        return self._each(
            lambda own: {name: item for name, item in own.items() if name not in features}
        )

    def renamed(self, names: Mapping[str, str]) -> StatsBlock:
        """Return the block with new names for some features."""
        if not names:
            return self
        return self._each(lambda own: {names.get(name, name): item for name, item in own.items()})

    def _each(self, changed: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> StatsBlock:
        """Return the block with a change to the features of each row, or of the columns."""
        if (columns := self._known_columns) is None:
            return StatsBlock([row if row is None else changed(row) for row in self.rows])
        return StatsBlock.of_columns(changed(columns), self._length)


def blocks_of_nothing(episodes: int) -> Iterator[StatsBlock]:
    """Yield blocks of episodes without statistics."""
    for first in range(0, episodes, BLOCK_EPISODES):
        yield StatsBlock([{}] * min(BLOCK_EPISODES, episodes - first))


def rows_of(blocks: Iterable[StatsBlock]) -> Iterator[Row]:
    """Yield what each episode of some blocks has."""
    return chain.from_iterable(block.rows for block in blocks)


def joined(blocks: Iterable[StatsBlock]) -> Iterator[StatsBlock]:
    """Yield blocks as fewer large ones, as far as they have the same columns."""
    alike: list[Columns] = []
    length = 0
    for block in blocks:
        columns = block.columns
        is_full = length + len(block) > _JOINED_EPISODES
        if alike and (columns is None or is_full or _form(columns) != _form(alike[0])):
            yield StatsBlock.of_columns(_together(alike), length)
            alike, length = [], 0
        if columns is None:
            yield block
        else:
            alike.append(columns)
            length += len(block)
    if alike:
        yield StatsBlock.of_columns(_together(alike), length)


def _form(columns: Columns) -> list[object]:
    """Return what columns have, in order, and of which type and shape."""
    return [
        (feature, [(name, array.dtype, array.shape[1:]) for name, array in own.items()])
        for feature, own in columns.items()
    ]


def _together(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {
        feature: {name: np.concatenate([part[feature][name] for part in parts]) for name in own}
        for feature, own in parts[0].items()
    }


def _columns(rows: Sequence[Row]) -> Columns | None:
    """Return rows as columns; None, or an error of a wrong type, if they are not regular."""
    columns: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for feature, found in _transposed(rows):
        own = columns[feature] = {}
        for name, values in _transposed(found):
            array = _array(values)
            if array is None:
                return None
            own[name] = array
        if not own:
            return None
    return columns


def _transposed(tables: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each key with its values in mappings that have the same keys in the same order.

    Raises:
        TypeError: An entry is not a dictionary.
        ValueError: Keys or their order differ.
    """
    keys = tuple(tables[0])
    if set(map(tuple, tables)) != {keys}:
        raise ValueError("the keys differ")
    return zip(keys, zip(*map(dict.values, tables), strict=True), strict=True)


def _array(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return lists of numbers of one type as an array; NumPy would not distinguish 1 from 1.0."""
    flat, shape, value = values, [len(values)], values[0]
    while type(value) is list:
        if not value or set(map(len, flat)) != {len(value)}:
            return None
        shape.append(len(value))
        # A value other than a list yields its keys or characters, which are no numbers either.
        flat, value = list(chain.from_iterable(flat)), value[0]
    form = _FORMATS.get(type(value))
    if len(shape) == 1 or form is None or set(map(type, flat)) != {type(value)}:
        return None
    return np.frombuffer(struct.pack(f"{len(flat)}{form.char}", *flat), form).reshape(shape)


# ``meta/stats.json`` of a v3.0 dataset: written, and aggregated from the statistics of episodes.
# With count n, mean m and standard deviation s of each episode: the mean is Σnm/Σn, the variance
# Σn(s² + (m - mean)²)/Σn, the count Σn; min and max are the extremes. These are the formulas of
# LeRobot's ``aggregate_stats``, in its order of operations. Quantiles cannot be computed from
# quantiles of episodes. If every episode has them, the least is taken for quantiles up to the
# median and the greatest above it; these are bounds, as in LeRobot after 0.6.1. Then quantiles of
# columns are computed from the rows (`leconvert.dataset.statistics.dataset_quantiles`).


STATS_PATH = "meta/stats.json"
"""Statistics of a whole dataset, in every version."""


def write_stats(root: str | os.PathLike[str], stats: Mapping[str, Any]) -> None:
    """Write ``meta/stats.json`` below ``root``, keys sorted."""
    text = json.dumps(stats, indent=4, ensure_ascii=False, sort_keys=True, default=_without_numpy)
    path = Path(root) / STATS_PATH
    make_folders_below(Path(root), path.parent)
    path.write_text(text + "\n", encoding="utf-8")


def _without_numpy(value: Any) -> Any:
    """Convert an array or a NumPy number for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a statistic cannot be of type {type(value).__name__}")


Array = npt.NDArray[Any]

REQUIRED_STATS = ("min", "max", "mean", "std", "count")
_QUANTILE = re.compile(r"q\d+")
_MEDIAN = 50
# Statistics of an image have one value per colour channel.
IMAGE_SHAPES = ((3, 1, 1), (1, 1, 1))
# Number of episodes that are added at once. More arrays than that, each of one episode, become one.
_RUN_EPISODES = 64


class StatsAggregator:
    """Aggregates the statistics of episodes one after another.

    Up to ``block_episodes`` episodes, the result equals LeRobot's to the last bit. Beyond that,
    blocks are merged with the same formulas, which rounds differently in the last digits. The
    result depends only on the episodes, their order and the block size. Memory is bounded by one
    block. Errors may come up to a block after the episode that they name.

    Args:
        block_episodes: Number of episodes that are reduced together.
        features: The declared features. Statistics of cameras must have one value per channel,
            shape (3, 1, 1) or (1, 1, 1). LeRobot requires it of features with "image" in their
            name, so it refuses an ``image_embedding``.
    """

    def __init__(
        self, features: Mapping[str, Mapping[str, Any]] = {}, *, block_episodes: int = 4096
    ) -> None:
        self._block_episodes = block_episodes
        self._images = {name for name, ft in features.items() if ft["dtype"] in VISUAL_DTYPES}
        self._features: dict[str, FeatureStats] = {}
        self._next_episode = 0
        self._in_block = 0
        self._waiting: list[tuple[int, Mapping[str, Any]]] = []

    def update(self, stats: Mapping[str, Any], *, episode_index: int | None = None) -> None:
        """Add one episode."""
        episode = self._next_episode if episode_index is None else episode_index
        self._next_episode += 1
        self._waiting.append((episode, stats))
        if len(self._waiting) == _RUN_EPISODES:
            self._add_waiting()

    def update_block(self, block: StatsBlock, episodes: Sequence[int]) -> None:
        """Add some consecutive episodes, with the result of `update` for each."""
        self._add_waiting()
        self._next_episode += len(block)
        self._add(block, episodes)

    def _add_waiting(self) -> None:
        if self._waiting:
            episodes, rows = zip(*self._waiting, strict=True)
            self._waiting.clear()
            self._add(StatsBlock(rows), episodes)

    def _add(self, block: StatsBlock, episodes: Sequence[int]) -> None:
        done = 0
        while done < len(block):
            stop = min(len(block), done + self._block_episodes - self._in_block)
            if not self._add_columns(block, done, stop):
                for row in range(done, stop):
                    for name, values in _features_of(block.rows[row] or {}, "", episodes[row]):
                        self._feature(name).add(episodes[row], values)
            self._in_block += stop - done
            done = stop
            if self._in_block >= self._block_episodes:
                self._reduce_block()

    def _add_columns(self, block: StatsBlock, first: int, stop: int) -> bool:
        """Add episodes of a block as columns; False if they do not fit, and nothing changes."""
        columns = block.columns
        if columns is None:
            return False
        features = {name: self._feature(name) for name in columns}
        if not all(feature.takes(columns[name]) for name, feature in features.items()):
            return False
        for name, feature in features.items():
            feature.add_columns({key: array[first:stop] for key, array in columns[name].items()})
        return True

    def _feature(self, name: str) -> FeatureStats:
        feature = self._features.get(name)
        if feature is None:
            feature = self._features[name] = FeatureStats(name, name in self._images)
        return feature

    def _reduce_block(self) -> None:
        self._in_block = 0
        for feature in self._features.values():
            feature.reduce_block()

    def result(self) -> dict[str, dict[str, Array]]:
        """Return the statistics of all episodes: feature to statistic to array, features sorted."""
        self._add_waiting()
        self._reduce_block()
        return {name: self._features[name].total() for name in sorted(self._features)}

    def bounds(self, feature: str, quantile: str) -> tuple[Array, Array]:
        """Return the least and the greatest of a quantile among the episodes of `result`."""
        partial = self._features[feature].partial
        assert partial is not None
        return partial.quantiles[quantile]


@dataclass(slots=True)
class _Partial:
    """Statistics of a range of episodes, with the variance instead of its root."""

    values: dict[str, Array]
    variance: Array
    # The least and the greatest of each quantile.
    quantiles: dict[str, tuple[Array, Array]] = field(default_factory=dict)


@dataclass(slots=True)
class FeatureStats:
    """The statistics of one feature over episodes, added one by one or as columns."""

    name: str
    is_image: bool
    packed: dict[str, list[Array]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    partial: _Partial | None = None

    def add(self, episode: int, values: Mapping[str, Any]) -> None:
        """Add one episode."""
        columns = {}
        for key in self.keys or _keys_of(values):
            if key in values:
                columns[key] = self._checked(key, values[key], episode)[np.newaxis]
            elif key in REQUIRED_STATS:
                raise _malformed(self.name, episode, f"{key} is missing")
        self.keys = tuple(columns)  # a quantile that one episode lacks is dropped for all
        self.add_columns(columns)

    def takes(self, columns: Mapping[str, Array]) -> bool:
        """Return whether columns have all required statistics, in the right shapes."""
        if not all(key in columns for key in self.keys or REQUIRED_STATS):
            return False
        count, shape = columns["count"], self.shape or columns["min"].shape[1:]
        return (
            self._shape_problem("count", count.shape[1:]) is None
            and self._shape_problem("min", shape) is None
            and bool((count >= 0).all())
            and all(
                columns[key].shape[1:] == shape
                for key in self.keys or _keys_of(columns)
                if key != "count"
            )
        )

    def add_columns(self, columns: Mapping[str, Array]) -> None:
        """Add episodes that `takes` accepted."""
        self.keys = self.keys or _keys_of(columns)
        self.shape = self.shape or columns["min"].shape[1:]
        for key in self.keys:
            packed = self.packed.setdefault(key, [])
            packed.append(columns[key])
            if len(packed) > _RUN_EPISODES:
                packed[:] = [np.concatenate(packed)]

    def reduce_block(self) -> None:
        """Aggregate the episodes that were added since the last block."""
        if not self.packed:
            return
        stacked = {key: np.concatenate(self.packed[key]) for key in self.keys}
        block = _reduce(stacked, stacked["std"] ** 2)
        quantiles = {
            key: (values.min(axis=0), values.max(axis=0))
            for key, values in stacked.items()
            if key not in REQUIRED_STATS
        }
        if self.partial is not None:
            pair = {
                key: np.stack([self.partial.values[key], block.values[key]])
                for key in REQUIRED_STATS
                if key != "std"
            }
            before = self.partial.quantiles
            quantiles = {
                key: (np.minimum(before[key][0], least), np.maximum(before[key][1], greatest))
                for key, (least, greatest) in quantiles.items()
                if key in before
            }
            block = _reduce(pair, np.stack([self.partial.variance, block.variance]))
        block.quantiles = quantiles
        self.partial = block
        self.packed.clear()

    def total(self) -> dict[str, Array]:
        """Return the statistics of all blocks."""
        assert self.partial is not None
        values = {**self.partial.values, "std": np.sqrt(self.partial.variance)}
        quantiles = {
            key: bounds[int(key[1:]) > _MEDIAN] for key, bounds in self.partial.quantiles.items()
        }
        return {key: values[key] for key in REQUIRED_STATS} | quantiles

    def _checked(self, key: str, value: Any, episode: int) -> Array:
        """Return a value as an array; raise if it is no statistic of this feature."""
        try:
            array = np.atleast_1d(np.array(value))
        except (ValueError, OverflowError) as error:
            raise _malformed(self.name, episode, f"the lists of {key} differ in length") from error
        if array.dtype.kind not in "biuf":
            raise _malformed(self.name, episode, f"{key} does not consist of numbers")
        problem = self._shape_problem(key, array.shape)
        if key == "count" and not problem and not array[0] >= 0:
            problem = "count is negative or not a number"
        elif key != "count" and not problem:
            self.shape = self.shape or array.shape
            if array.shape != self.shape:
                problem = f"{key} has shape {array.shape}, but others have {self.shape}"
        if problem:
            raise _malformed(self.name, episode, problem)
        return array

    def _shape_problem(self, key: str, shape: tuple[int, ...]) -> str | None:
        if key == "count":
            return None if shape == (1,) else f"count has shape {shape} instead of (1,)"
        if self.is_image and shape not in IMAGE_SHAPES:
            return f"{key} has shape {shape} instead of (3, 1, 1) or (1, 1, 1)"
        return None


def adds_up(feature: str, values: Any, *, is_image: bool) -> bool:
    """Return whether a feature's statistics of an episode can be added up with those of others."""
    try:
        for name, found in _features_of({feature: values}, "", 0):
            FeatureStats(name, is_image).add(0, found)
    except SourceError:
        return False
    return True


def _keys_of(stats: Mapping[str, Any]) -> tuple[str, ...]:
    return *REQUIRED_STATS, *(key for key in stats if _QUANTILE.fullmatch(key))


def _reduce(stacked: Mapping[str, Array], variances: Array) -> _Partial:
    """Aggregate along the first axis, which runs over episodes or blocks."""
    means, counts = stacked["mean"], stacked["count"]
    total_count = counts.sum(axis=0)
    weights = counts.reshape(counts.shape + (1,) * (means.ndim - counts.ndim))
    # As in LeRobot, a count of 0 gives NaN, without a warning on the terminal.
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (means * weights).sum(axis=0) / total_count
        spread = variances + (means - mean) ** 2
        variance = (spread * weights).sum(axis=0) / total_count
    values = {
        "min": np.min(stacked["min"], axis=0),
        "max": np.max(stacked["max"], axis=0),
        "mean": mean,
        "count": total_count,
    }
    return _Partial(values, variance)


def _features_of(
    stats: Mapping[str, Any], prefix: str, episode: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the innermost mappings with their path."""
    for name, values in stats.items():
        path = f"{prefix}{name}"
        if type(values) is not dict and not isinstance(values, Mapping):
            raise _malformed(path, episode, "the statistics are not a mapping")
        for value in values.values():
            if type(value) is not list and isinstance(value, Mapping):
                yield from _features_of(values, f"{path}/", episode)
                break
        else:
            yield path, values


def _malformed(feature: str, episode: int, reason: str) -> SourceError:
    return SourceError(
        f"The statistics of {feature} in episode {episode} cannot be used: {reason}.",
        next_step="Correct the line in meta/episodes_stats.jsonl, or compute all statistics "
        "with --recompute-stats.",
    )
