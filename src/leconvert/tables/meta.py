"""The JSON records of a v3.0 dataset: ``meta/info.json`` and ``meta/stats.json``."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.arrow import array_of
from leconvert.errors import SourceError, UnreadableSourceError
from leconvert.model import FILES_PER_CHUNK, IntArray
from leconvert.repairs import NO_REPAIRS, Repairs
from leconvert.tables.footers import open_parquet, unreadable
from leconvert.workdir.fs import make_folders_below

__all__ = [
    "DATA_PATH_TEMPLATE",
    "EPISODES_DIR",
    "INFO_PATH",
    "REPAIRS_PATH",
    "STATS_PATH",
    "TASKS_PATH",
    "VIDEO_PATH_TEMPLATE",
    "StatsAggregator",
    "converted_info",
    "episodes_path",
    "fps_number",
    "kept_splits",
    "pandas_index",
    "read_repairs",
    "read_tasks",
    "write_info",
    "write_repairs",
    "write_stats",
    "write_tasks",
]


# ------------------------------------------------------------------------------------------------
# Where the tables and records of a v3.0 dataset lie, relative to its root.


INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
REPAIRS_PATH = "meta/repairs.json"
EPISODES_DIR = "meta/episodes"

# The templates that info.json carries; readers fill them with str.format.
DATA_PATH_TEMPLATE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH_TEMPLATE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def episodes_path(number: int) -> str:
    """Return the path of the episodes table's file ``number``, counted from 0."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return f"{EPISODES_DIR}/chunk-{chunk:03d}/file-{file:03d}.parquet"


# ------------------------------------------------------------------------------------------------
# The JSON records of a v3.0 dataset: ``meta/info.json`` and ``meta/stats.json``.


_CODEBASE_VERSION = "v3.0"
# v2.x counted these; in v3.0 files and chunks are found through meta/episodes.
_DROPPED_KEYS = frozenset({"total_chunks", "total_videos"})
_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


def fps_number(fps: Fraction) -> int | float:
    """Return a frame rate as ``info.json`` writes it: whole rates as integers."""
    return fps.numerator if fps.denominator == 1 else float(fps)


def converted_info(
    info: Mapping[str, Any],
    *,
    fps: Fraction,
    data_file_size_in_mb: float,
    video_file_size_in_mb: float,
    has_videos: bool,
    total_episodes: int,
    total_frames: int,
    total_tasks: int,
    splits: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the v3.0 ``info.json`` of a v2.x one.

    The known keys come first, in LeRobot's order; keys that we do not know follow as they stand.
    A video feature's ``video_info``, as v2.0 wrote it, becomes ``info``; what is no table of facts
    there is left out.
    ``info`` is left alone.
    """
    rate = fps_number(fps)
    features = copy.deepcopy(dict(info["features"]))
    for key, feature in features.items():
        for name in ("info", "video_info"):
            if not isinstance(feature.get(name) or {}, Mapping):
                del feature[name]  # LeRobot looks for keys in it
        # Video features carry the rate among the facts about their encoding.
        if feature.get("dtype") != "video":
            feature["fps"] = rate
        elif "video_info" in feature and "info" not in feature:
            # v2.0's name for these facts; readers of v3.0 look for the other.
            renamed = {"video_info": "info"}
            features[key] = {renamed.get(name, name): value for name, value in feature.items()}
    converted: dict[str, Any] = {
        "codebase_version": _CODEBASE_VERSION,
        "fps": rate,
        "features": features,
        "total_episodes": total_episodes,
        "total_frames": total_frames,
        "total_tasks": total_tasks,
        "chunks_size": info.get("chunks_size", FILES_PER_CHUNK),
        "data_files_size_in_mb": data_file_size_in_mb,
        "video_files_size_in_mb": video_file_size_in_mb,
        "data_path": DATA_PATH_TEMPLATE,
        "video_path": VIDEO_PATH_TEMPLATE if has_videos else None,
        "robot_type": info.get("robot_type"),
        "splits": _table(info.get("splits") if splits is None else splits),
    }
    if info.get("tools") is not None:
        converted["tools"] = copy.deepcopy(info["tools"])
    for key, value in info.items():
        if key not in converted and key not in _DROPPED_KEYS and key != "tools":
            converted[key] = copy.deepcopy(value)
    return converted


def _table(splits: object) -> dict[str, Any]:
    # LeRobot's readers do not look at them: what is no table is no reason to stop.
    return dict(splits) if isinstance(splits, Mapping) else {}


def kept_splits(splits: object, index: IntArray) -> dict[str, str]:
    """Return splits by the result's numbering; those that are no range stay as they are."""
    if not isinstance(splits, Mapping):
        return {}
    kept = {}
    for name, text in splits.items():
        stated = _RANGE.fullmatch(str(text))
        if stated is not None:
            first, stop = np.searchsorted(index, [int(stated[1]), int(stated[2])]).tolist()
            kept[str(name)] = f"{first}:{stop}"
        else:
            kept[str(name)] = text
    return kept


def write_info(root: str | os.PathLike[str], info: Mapping[str, Any]) -> None:
    """Write ``meta/info.json`` below ``root``, formatted as LeRobot formats it."""
    _write_text(Path(root), INFO_PATH, json.dumps(info, indent=4, ensure_ascii=False))


def write_stats(root: str | os.PathLike[str], stats: Mapping[str, Any]) -> None:
    """Write ``meta/stats.json`` below ``root``, keys sorted."""
    text = json.dumps(stats, indent=4, ensure_ascii=False, sort_keys=True, default=_without_numpy)
    _write_text(Path(root), STATS_PATH, text + "\n")


def _without_numpy(value: Any) -> Any:
    """Turn an array or a NumPy number into what JSON knows."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a statistic cannot be of type {type(value).__name__}")


def _write_text(root: Path, name: str, text: str) -> None:
    path = root / name
    make_folders_below(root, path.parent)
    path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------------
# ``meta/tasks.parquet``: the text of each task, which readers find by row position.


# The name that pandas gives to an index without one.
_NAMELESS_INDEX = "__index_level_0__"


def write_tasks(root: str | os.PathLike[str], tasks: Sequence[tuple[int, str]]) -> None:
    """Write ``meta/tasks.parquet`` below ``root``.

    pandas reads it as a frame with the column ``task_index`` and the index ``task``.
    """
    ordered = sorted((int(index), text) for index, text in tasks)
    indices = [index for index, _ in ordered]
    if indices != list(range(len(ordered))):
        wrong = next(row for row, index in enumerate(indices) if row != index)
        raise SourceError(
            f"The task indices have a gap or a repetition: row {wrong} would hold task "
            f"{indices[wrong]}.",
            next_step="Number the tasks from 0 without gaps, in tasks.jsonl and in the data.",
        )
    schema = pa.schema(
        [pa.field("task_index", pa.int64()), pa.field("task", pa.string())],
        metadata={"pandas": json.dumps(_pandas_metadata())},
    )
    columns = [
        array_of(indices, pa.int64()),
        array_of([text for _, text in ordered], pa.string()),
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    path = Path(root) / TASKS_PATH
    make_folders_below(Path(root), path.parent)
    pq.write_table(table, path)


def read_tasks(root: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Return index and text of each task, in row order.

    The column of the texts is ``task``, or the index without a name as LeRobot first wrote it.
    """
    path = Path(root) / TASKS_PATH
    reader = open_parquet(path)
    try:
        table = reader.read_all(use_threads=False)
        texts = _NAMELESS_INDEX if _NAMELESS_INDEX in table.column_names else "task"
        table = table.select(["task_index", texts])
        table.validate(full=True)  # texts are texts
    except (OSError, KeyError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    finally:
        reader.close()
    return list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))


def _pandas_metadata() -> dict[str, Any]:
    """Describe the frame for pandas; the key order is the one that pandas' writers use."""

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": pandas_type,
            "numpy_type": numpy_type,
            "metadata": None,
        }

    return {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
    }


def pandas_index(schema: pa.Schema) -> str | None:
    """Return the column that pandas takes as index; None if it is not one column of texts."""
    try:
        described = json.loads((schema.metadata or {})[b"pandas"])
        names = described["index_columns"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        return None
    at = schema.get_field_index(names[0])
    if at < 0:
        return None
    kind = schema.field(at).type
    return names[0] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


# ------------------------------------------------------------------------------------------------
# ``meta/repairs.json``: what a conversion changed beside the format; absent where nothing was.


_FORMAT = "leconvert/repairs"
_VERSION = 2
# Version 1 had fewer fields, which are those of a source that is read as it stands.
_KNOWN_VERSIONS = (1, _VERSION)


def write_repairs(root: str | os.PathLike[str], repairs: Repairs) -> None:
    """Write the record below ``root``, whose ``meta`` folder exists."""
    record = {"format": _FORMAT, "version": _VERSION, **repairs.as_record()}
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (Path(root) / REPAIRS_PATH).write_text(text, encoding="utf-8")


def read_repairs(root: str | os.PathLike[str]) -> Repairs:
    """Return what was changed about the dataset below ``root``."""
    path = Path(root) / REPAIRS_PATH
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != _FORMAT or record["version"] not in _KNOWN_VERSIONS:
            raise ValueError(f"it is {record['format']} version {record['version']}")
        return Repairs.from_record(record)
    except FileNotFoundError:
        return NO_REPAIRS
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.",
            path=str(path),
            next_step="Convert again, or use the version of leconvert that wrote it.",
        ) from error


# ------------------------------------------------------------------------------------------------
# Statistics of a whole dataset from the statistics of its episodes.
#
# With count n, mean m and standard deviation s of each episode: the mean is Σnm/Σn, the variance
# Σn(s² + (m - mean)²)/Σn, the count Σn; min and max are the extremes. Quantiles, where every
# episode has them, are weighted by count: an estimate, and LeRobot's. These are the formulas of
# LeRobot's ``aggregate_stats``, in its order of operations.


Array = npt.NDArray[Any]

_REQUIRED = ("min", "max", "mean", "std", "count")
_QUANTILE = re.compile(r"q\d+")
# Statistics of an image are one value a colour channel.
_IMAGE_SHAPES = ((3, 1, 1), (1, 1, 1))
# Episodes whose parsed JSON is held before it is packed into arrays: Python's numbers in nested
# lists take ten times the room.
_RUN_EPISODES = 64


class StatsAggregator:
    """Aggregates the statistics of episodes one after another.

    Up to ``block_episodes`` episodes the result is LeRobot's to the last bit. Beyond, blocks are
    merged with the same formulas, which rounds differently in the last digits; the result does not
    depend on anything but the episodes, their order and the block size. Memory is bounded by one
    block. Errors may come up to a block after the episode that they name.

    Args:
        block_episodes: Episodes that are reduced together.
        image_features: Features whose statistics must have one value a channel, shape (3,1,1) or
            (1,1,1). By default those with "image" in their name, as LeRobot has it.
    """

    def __init__(
        self, *, block_episodes: int = 4096, image_features: Collection[str] | None = None
    ) -> None:
        self._block_episodes = block_episodes
        self._image_features = None if image_features is None else frozenset(image_features)
        self._features: dict[str, _FeatureStats] = {}
        self._next_episode = 0
        self._in_block = 0

    def update(self, stats: Mapping[str, Any], *, episode_index: int | None = None) -> None:
        """Add one episode."""
        episode = self._next_episode if episode_index is None else episode_index
        self._next_episode += 1
        for name, values in _features_of(stats, "", episode):
            feature = self._features.get(name)
            if feature is None:
                is_image = (
                    "image" in name
                    if self._image_features is None
                    else name in self._image_features
                )
                feature = self._features[name] = _FeatureStats(name, is_image)
            feature.add(episode, values)
        self._in_block += 1
        if self._in_block >= self._block_episodes:
            self._in_block = 0
            for feature in self._features.values():
                feature.reduce_block()

    def result(self) -> dict[str, dict[str, Array]]:
        """Return the statistics of all episodes: feature to statistic to array, features sorted."""
        self._in_block = 0
        for feature in self._features.values():
            feature.reduce_block()
        return {name: self._features[name].total() for name in sorted(self._features)}


@dataclass(slots=True)
class _Partial:
    """What is known of a stretch of episodes; the variance is kept as it is, not as a root."""

    values: dict[str, Array]
    variance: Array
    quantiles: dict[str, Array]


@dataclass(slots=True)
class _FeatureStats:
    name: str
    is_image: bool
    episodes: list[int] = field(default_factory=list)
    run: list[Mapping[str, Any]] = field(default_factory=list)
    packed: dict[str, list[Array]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    partial: _Partial | None = None

    def add(self, episode: int, values: Mapping[str, Any]) -> None:
        self.episodes.append(episode)
        self.run.append(values)
        if len(self.run) == _RUN_EPISODES:
            self._pack()

    def reduce_block(self) -> None:
        if not self.episodes:
            return
        self._pack()
        stacked = {key: np.concatenate(self.packed[key]) for key in self.keys}
        block = _reduce(stacked, stacked["std"] ** 2)
        if self.partial is not None:
            pair = {
                key: np.stack([self.partial.values[key], block.values[key]])
                for key in _REQUIRED
                if key != "std"
            }
            quantiles = self.partial.quantiles
            pair |= {
                key: np.stack([quantiles[key], value])
                for key, value in block.quantiles.items()
                if key in quantiles
            }
            block = _reduce(pair, np.stack([self.partial.variance, block.variance]))
        self.partial = block
        self.episodes.clear()
        self.packed.clear()

    def total(self) -> dict[str, Array]:
        assert self.partial is not None
        values = {**self.partial.values, "std": np.sqrt(self.partial.variance)}
        return {key: values[key] for key in _REQUIRED} | self.partial.quantiles

    def _pack(self) -> None:
        """Turn the parsed values of the last few episodes into one array a statistic."""
        if not self.run:
            return
        episodes = self.episodes[-len(self.run) :]
        if not self.keys:
            quantiles = [key for key in self.run[0] if _QUANTILE.fullmatch(key)]
            self.keys = (*_REQUIRED, *quantiles)
        for key in self.keys:
            try:
                values = [stats[key] for stats in self.run]
            except KeyError as error:
                if key not in _REQUIRED:
                    # A quantile that one episode lacks is dropped for all.
                    self.keys = tuple(other for other in self.keys if other != key)
                    continue
                lacking = next(
                    episode
                    for episode, stats in zip(episodes, self.run, strict=True)
                    if key not in stats
                )
                raise _malformed(self.name, lacking, f"{key} is missing") from error
            array = self._array(key, values, episodes)
            if key == "count" and (array < 0).any():
                strange = episodes[int(np.flatnonzero(array[:, 0] < 0)[0])]
                raise _malformed(self.name, strange, "count is negative")
            shape = array.shape[1:]
            if key != "count":
                self.shape = self.shape or shape
                if shape != self.shape:
                    raise _malformed(
                        self.name, episodes[0], f"{key} has shape {shape} beside {self.shape}"
                    )
            self.packed.setdefault(key, []).append(array)
        self.run.clear()

    def _array(self, key: str, values: list[Any], episodes: list[int]) -> Array:
        try:
            array = np.array(values)
        except (ValueError, OverflowError):
            array = self._one_by_one(key, values, episodes)
        shape = array.shape[1:] or (1,)
        if array.dtype.kind not in "biuf" or self._shape_problem(key, shape) is not None:
            array = self._one_by_one(key, values, episodes)
        return array.reshape(len(values), *shape)

    def _shape_problem(self, key: str, shape: tuple[int, ...]) -> str | None:
        if key == "count":
            return None if shape == (1,) else f"count has shape {shape} and not (1,)"
        if self.is_image and shape not in _IMAGE_SHAPES:
            return f"{key} has shape {shape} and not (3, 1, 1) or (1, 1, 1)"
        return None

    def _one_by_one(self, key: str, values: list[Any], episodes: list[int]) -> Array:
        """Stack values that do not convert together, or name the episode that does not fit."""
        arrays: list[Array] = []
        for episode, value in zip(episodes, values, strict=True):
            try:
                array = np.atleast_1d(np.array(value))
            except (ValueError, OverflowError) as error:
                raise _malformed(self.name, episode, f"{key} is ragged") from error
            if array.dtype.kind not in "biuf":
                raise _malformed(self.name, episode, f"{key} is not made of numbers")
            problem = self._shape_problem(key, array.shape)
            if problem is None and arrays and array.shape != arrays[0].shape:
                problem = f"{key} has shape {array.shape}, before {arrays[0].shape}"
            if problem is not None:
                raise _malformed(self.name, episode, problem)
            arrays.append(array)
        return np.stack(arrays)


def _reduce(stacked: Mapping[str, Array], variances: Array) -> _Partial:
    """Aggregate along the first axis, which runs over episodes or blocks."""
    means, counts = stacked["mean"], stacked["count"]
    total_count = counts.sum(axis=0)
    weights = counts.reshape(counts.shape + (1,) * (means.ndim - counts.ndim))
    # A count of 0 gives nan, as in LeRobot, and no warning on the terminal.
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (means * weights).sum(axis=0) / total_count
        spread = variances + (means - mean) ** 2
        variance = (spread * weights).sum(axis=0) / total_count
        quantiles = {
            key: (values * weights).sum(axis=0) / total_count
            for key, values in stacked.items()
            if key not in _REQUIRED
        }
    values = {
        "min": np.min(stacked["min"], axis=0),
        "max": np.max(stacked["max"], axis=0),
        "mean": mean,
        "count": total_count,
    }
    return _Partial(values, variance, quantiles)


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
        next_step="Correct the line in meta/episodes_stats.jsonl, or compute the statistics again.",
    )
