"""The check of ``meta/`` of a v3.0 dataset: its tables, compared with each other and the files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert.dataset.files import Spelling
from leconvert.dataset.findings import found
from leconvert.dataset.formats import PROVENANCE_PATH, read_provenance, v3
from leconvert.dataset.formats.stats import IMAGE_SHAPES
from leconvert.dataset.formats.v2 import left_over_tables
from leconvert.model.repairs import DEFAULT_COLUMNS, VISUAL_DTYPES
from leconvert.model.values import DATA_STREAM, Finding, FloatArray, camera_of, is_depth_map
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import count
from leconvert.tables.arrow import nested_floats

# The statistics in ``meta/episodes``, aggregated a block of rows at a time.


class EpisodeStats:
    """Aggregates the statistics of features, except unusable statistics."""

    def __init__(self, features: Collection[str]) -> None:
        self._features = sorted(features)
        self._totals: dict[str, v3.FeatureStats] = {}
        self._unusable: dict[str, str] = {}
        self._has_columns = False

    def add(self, block: pa.Table) -> None:
        """Add a block of rows of meta/episodes."""
        (batch,) = block.to_batches()
        self._has_columns |= any(name.startswith(v3.STATS_PREFIX) for name in batch.schema.names)
        for feature in self._features:
            if feature not in self._unusable:
                problem = self._add(feature, batch)
                if problem is not None:
                    self._unusable[feature] = problem

    def _add(self, feature: str, batch: pa.RecordBatch) -> str | None:
        block: dict[str, FloatArray] = {}
        for statistic in v3.REQUIRED_STATS:
            name = f"{v3.STATS_PREFIX}{feature}/{statistic}"
            at = batch.schema.get_field_index(name)
            if at < 0:
                return f"the column {name!r} is missing"
            values = nested_floats(batch.column(at))
            if values is None:
                return f"{name} is not an array of numbers for each episode"
            block[statistic] = values
        shapes = {name: values.shape[1:] for name, values in block.items()}
        # A statistic that is a single number has no axis. LeRobot cannot aggregate such statistics.
        if shapes.pop("count") != (1,) or len(set(shapes.values())) > 1 or not shapes["mean"]:
            return f"the shapes of its statistics contradict each other: {shapes}"
        total = self._totals.setdefault(feature, v3.FeatureStats(feature, is_image=False))
        if total.partial is not None and total.shape != shapes["mean"]:
            return f"its statistics have several shapes, {total.shape} and {shapes['mean']}"
        total.add_columns(block)
        with np.errstate(invalid="ignore", over="ignore"):
            total.reduce_block()
        return None

    def findings(self) -> Iterator[Finding]:
        """Yield the features with unusable statistics."""
        if self._features and not self._has_columns:
            message = "meta/episodes contains no statistics."
            yield found("episode-stats", message, path=v3.EPISODES_DIR)
            return
        for feature, problem in self._unusable.items():
            message = f"The statistics of {feature} are wrong: {problem}."
            yield found("episode-stats", message, stream=feature, path=v3.EPISODES_DIR)

    def aggregate(self) -> dict[str, dict[str, FloatArray]]:
        """Return the statistics of each usable feature over all episodes."""
        return {
            feature: total.total()
            for feature, total in self._totals.items()
            if feature not in self._unusable
        }


# ``meta/stats.json``: complete, possible, of the right shapes, and equal to the episodes' sum?


# Recorders aggregate in single and double precision. Stale statistics differ by more than that.
_RELATIVE_TO_RANGE = 1e-3
_RELATIVE_TO_SIZE = 1e-6
# LeRobot adds the rows of an episode in single precision, one by one. Each sum of n equal values
# may be wrong by 2**-24 of itself, and their mean by n / 2 times as much.
_RELATIVE_TO_ROWS = 2.0**-25
# On request, LeRobot's recompute_stats stores statistics of relative actions here.
_MAY_BE_RELATIVE = "action"


def has_stats(feature: v3.Feature) -> bool:
    """Return whether policies normalise a feature, so that it needs statistics."""
    return (
        feature.dtype in VISUAL_DTYPES or feature.is_number
    ) and feature.key not in DEFAULT_COLUMNS


def check_stats(
    root: Path,
    features: Mapping[str, v3.Feature],
    aggregate: Mapping[str, Mapping[str, FloatArray]],
    longest: int,
) -> Iterator[Finding]:
    """Yield faults of the statistics, given the number of frames of the longest episode."""
    try:
        stats = v3.read_json_object(root / v3.STATS_PATH)
    except FileNotFoundError:
        yield found("stats-missing", f"{v3.STATS_PATH} is missing.", path=v3.STATS_PATH)
        return
    except (OSError, ValueError) as error:
        yield found(
            "unreadable-file", f"{v3.STATS_PATH} cannot be read: {error}", path=v3.STATS_PATH
        )
        return
    for key, feature in features.items():
        if has_stats(feature):
            yield from check_feature_stats(feature, stats.get(key), aggregate.get(key), longest)


def check_feature_stats(
    feature: v3.Feature, stats: Any, aggregate: Mapping[str, FloatArray] | None, longest: int
) -> Iterator[Finding]:
    """Yield faults of the statistics of one feature; see `check_stats`."""

    def wrong(code: str, message: str, severity: str | None = None) -> Finding:
        message = f"{feature.key}: {message}."
        return found(code, message, stream=feature.key, path=v3.STATS_PATH, severity=severity)

    if not isinstance(stats, Mapping):
        yield wrong("stats-missing", "there are no statistics")
        return
    missing = [name for name in v3.REQUIRED_STATS if name not in stats]
    if missing:
        yield wrong("stats-missing", f"it has no {' and no '.join(missing)}")
        return
    values: dict[str, FloatArray] = {}
    for name, value in stats.items():
        array = _array(value)
        if array is None:
            yield wrong("stats-shape", f"{name} is not a regular list of numbers")
            return
        values[name] = array
        shapes = _shapes(feature) if name != "count" else ((1,),)
        if array.shape not in shapes:
            allowed = " or ".join(map(str, shapes))
            yield wrong("stats-shape", f"{name} has shape {array.shape} instead of {allowed}")
            return
    problem = _impossible(feature, values, longest)
    if problem is not None:
        yield wrong("stats-value", problem)
        return
    differing = [] if aggregate is None else _differences(values, aggregate)
    if differing:
        severity = "info" if feature.key == _MAY_BE_RELATIVE else None
        yield wrong(
            "stats-aggregate",
            f"{', '.join(differing)} differ from the sum of the episodes' statistics",
            severity,
        )


def _array(value: Any) -> FloatArray | None:
    try:
        array = np.atleast_1d(np.array(value))
    except (ValueError, OverflowError):
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _shapes(feature: v3.Feature) -> tuple[tuple[int, ...], ...]:
    if feature.dtype in VISUAL_DTYPES:
        return IMAGE_SHAPES
    # LeRobot's recorder reduces all axes of a matrix except the last.
    return (feature.shape, feature.shape[-1:]) if len(feature.shape) > 1 else (feature.shape,)


def _impossible(feature: v3.Feature, values: Mapping[str, FloatArray], longest: int) -> str | None:
    for name, array in values.items():
        if not np.isfinite(array).all():
            return f"{name} is not finite"
    if values["min"].shape != values["mean"].shape or values["max"].shape != values["mean"].shape:
        return "min, max and mean have different shapes"
    slack = _slack(values["min"], values["max"], _RELATIVE_TO_ROWS * longest)
    if np.any(values["min"] > values["mean"] + slack):
        return "min is above the mean"
    if np.any(values["mean"] > values["max"] + slack):
        return "the mean is above max"
    if np.any(values["std"] < 0):
        return "std is below 0"
    if values["count"][0] < 1:
        return "count is 0"
    if feature.dtype in VISUAL_DTYPES and not is_depth_map(feature.raw):
        low, high = float(values["min"].min()), float(values["max"].max())
        if low < -_RELATIVE_TO_RANGE or high > 1 + _RELATIVE_TO_RANGE:
            return f"values go from {low:g} to {high:g}, not from 0 to 1"
    return None


def _slack(minimum: FloatArray, maximum: FloatArray, relative_to_size: float = 0.0) -> FloatArray:
    size = np.maximum(np.abs(minimum), np.abs(maximum))
    slack: FloatArray = (maximum - minimum) * _RELATIVE_TO_RANGE
    slack += size * (_RELATIVE_TO_SIZE + relative_to_size)
    return slack


def _differences(
    values: Mapping[str, FloatArray], aggregate: Mapping[str, FloatArray]
) -> list[str]:
    if values["mean"].shape != aggregate["mean"].shape:
        return ["shapes"]
    slack = _slack(aggregate["min"], aggregate["max"])
    differing = [
        name
        for name in ("min", "max", "mean", "std")
        if not np.all(np.abs(values[name] - aggregate[name]) <= slack)
    ]
    return differing + (["count"] if values["count"][0] != aggregate["count"][0] else [])


# From ``meta/episodes`` to files: the episodes of each file, and files that nothing names.


def check_order(files: list[v3.RoutedFile]) -> Iterator[Finding]:
    """Yield the first data file whose name or episodes break the order of rows.

    Loaders concatenate data files in the order of their names.
    """
    for before, after in pairwise(files):
        out_of_order = PurePosixPath(after.path) <= PurePosixPath(before.path)
        if out_of_order or int(before.episodes[-1]) > int(after.episodes[0]):
            message = f"{after.path} has later episodes than {before.path}, but an earlier name."
            yield after.wrong("file-order", message, episode=int(after.episodes[0]))
            return


def left_over(
    root: Path, routed: Mapping[str, object], complete: bool, declared: v3.Declared
) -> Iterator[Finding]:
    """Yield files below data/, videos/ and meta/episodes that nothing names, and tables of v2.x."""
    undeclared: dict[str, list[str]] = {}
    if of_v2 := left_over_tables(root):
        message = f"{', '.join(of_v2)} are tables of v2.x. Readers of v3.0 do not use them."
        yield found("stray-file", message, path=of_v2[0])
    for folder in ("data", "videos", v3.EPISODES_DIR):
        for path in _files_below(root, folder):
            pure = PurePosixPath(path)
            depth = len(pure.relative_to(folder).parts)
            is_table = pure.suffix == ".parquet" and depth == 2
            if path in routed or (folder == v3.EPISODES_DIR and is_table):
                continue
            if folder == "data" and is_table:
                if complete:
                    message = f"{path} belongs to no episode."
                    yield found("stray-data", message, stream=DATA_STREAM, path=path)
            elif camera := _undeclared_camera(pure, declared):
                undeclared.setdefault(camera, []).append(path)
            elif complete or pure.suffix not in (".parquet", ".mp4"):
                # Desktop and download programs leave such files everywhere.
                hidden = any(part.startswith(".") for part in pure.parts)
                yield found(
                    "stray-file",
                    f"{path} belongs to no episode.",
                    path=path,
                    severity="info" if hidden else None,
                )
    for camera, paths in undeclared.items():
        message = f"info.json does not declare {camera}, which has {count(len(paths), 'video')}."
        yield found("undeclared-camera", message, path=paths[0])


def _undeclared_camera(path: PurePosixPath, declared: v3.Declared) -> str | None:
    """Return the camera with the folder of a video, if no feature has its name."""
    is_video = path.parts[0] == "videos" and path.suffix == ".mp4" and len(path.parts) == 4
    return path.parts[1] if is_video and path.parts[1] not in declared.cameras else None


def provenance_findings(root: Path, num_episodes: int) -> Iterator[Finding]:
    """Report a record of sources that does not fit the episodes."""
    try:
        told = read_provenance(root)
    except UnreadableSourceError as error:
        yield found("provenance", error.message, path=PROVENANCE_PATH)
        return
    if told is None:
        return
    number = np.arange(num_episodes)
    if not np.array_equal(told.episode_index, number):
        said = f"{PROVENANCE_PATH} has {count(len(told.episode_index), 'episode')}"
        if len(told.episode_index) == num_episodes:
            at = int(np.flatnonzero(told.episode_index != number)[0])
            said += f", and its row {at} is episode {told.episode_index[at]}."
        else:
            said += f", but the dataset has {num_episodes}."
        yield found("provenance", said, path=PROVENANCE_PATH)
    strange = np.flatnonzero((told.source < 0) | (told.source >= len(told.sources)))
    if len(strange):
        at = int(strange[0])
        said = f"{PROVENANCE_PATH} names source {told.source[at]} for episode {at}, but has "
        said += f"{count(len(told.sources), 'source')}, numbered from 0."
        yield found("provenance", said, episode=at, path=PROVENANCE_PATH)


def _files_below(root: Path, folder: str) -> Iterator[str]:
    spelling = Spelling(root)
    for place, folders, names in os.walk(root / folder):
        folders.sort()
        relative = Path(place).relative_to(root)
        for name in sorted(names):
            yield spelling.of((relative / name).as_posix())


def errors_of_meta(dataset: v3.Dataset, *, lists_files: bool) -> Iterator[Finding]:
    """Yield the errors of ``meta/`` for a dataset that is opened. No row and no frame is read.

    Args:
        dataset: A dataset with readable tables.
        lists_files: Whether to look for data files without an episode.
    """
    declared, table = dataset.declared, dataset.episodes
    _, findings = v3.declaration(declared.raw)
    findings += v3.check_task_table(dataset.stored_tasks, declared.raw)[1]
    findings += dataset.contradictions
    routed = {stream: v3.routed_files(table, declared, stream) for stream in table.placed}
    findings += check_order(routed[DATA_STREAM])
    for stream, files in routed.items():
        if camera_of(stream) is not None:
            findings += _shared_spans(files, table, declared)
    if lists_files:
        findings += left_over(
            dataset.root, {each.path: None for each in routed[DATA_STREAM]}, True, declared
        )
    return (finding for finding in findings if finding.severity == "error")


def _shared_spans(
    files: list[v3.RoutedFile], table: v3.EpisodeTable, declared: v3.Declared
) -> Iterator[Finding]:
    """Yield the first episodes of a stream that share frames, by their times and lengths."""
    for file in files:
        begin = table.placed[file.stream].begin_seconds[file.episodes] * float(declared.fps)
        begin = np.rint(begin)
        order = np.argsort(begin, kind="stable")
        begin, episodes = begin[order], file.episodes[order]
        stop = np.maximum.accumulate(begin + table.length[episodes])
        shared = np.flatnonzero(begin[1:] < stop[:-1])
        if len(shared):
            at = int(shared[0]) + 1
            message = f"{file.path}: episode {episodes[at]} shares frames with another episode."
            yield file.wrong("shared-frames", message, episode=int(episodes[at]))
            return


def streaming_findings(files: Mapping[str, list[v3.RoutedFile]]) -> Iterator[Finding]:
    """Yield the cameras that LeRobot 0.6.1 cannot stream."""
    for stream, routed in files.items():
        if camera_of(stream) is not None and len(routed) > 1:
            yield found("streaming-video", f"{len(routed):,} video files.", stream=stream)
