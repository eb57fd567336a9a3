"""``meta/stats.json``: is it complete, possible, of the right shapes, and what the episodes say?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leconvert.model import Finding
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.tables.paths import STATS_PATH
from leconvert.verify.catalogue import found
from leconvert.verify.columns import FloatArray
from leconvert.verify.declared import Feature
from leconvert.verify.json_files import read_json_object

__all__ = ["check_stats", "has_stats"]

_NEEDED = ("min", "max", "mean", "std", "count")
_IMAGE_SHAPES = ((3, 1, 1), (1, 1, 1))
# Recorders merge episode by episode in single and double precision; what is stale differs by more.
_RELATIVE_TO_RANGE = 1e-3
_RELATIVE_TO_SIZE = 1e-6
# LeRobot's recompute_stats writes statistics of relative actions here, on request.
_MAY_BE_RELATIVE = "action"


def has_stats(feature: Feature) -> bool:
    """Tell whether policies normalise a feature, so that it needs statistics."""
    return (
        feature.dtype in ("image", "video") or feature.is_number
    ) and feature.key not in DEFAULT_COLUMNS


def check_stats(
    root: Path,
    features: Mapping[str, Feature],
    aggregate: Mapping[str, Mapping[str, FloatArray]],
) -> Iterator[Finding]:
    """Yield what is wrong with the statistics.

    Args:
        root: The dataset.
        features: Its features.
        aggregate: Statistics of all episodes by meta/episodes, for the features it has them of.
    """
    try:
        stats = read_json_object(root / STATS_PATH)
    except FileNotFoundError:
        yield found("stats-missing", f"There is no {STATS_PATH}.", path=STATS_PATH)
        return
    except (OSError, ValueError) as error:
        yield found("unreadable-file", f"{STATS_PATH} cannot be read: {error}", path=STATS_PATH)
        return
    for key, feature in features.items():
        if has_stats(feature):
            yield from _check_feature(feature, stats.get(key), aggregate.get(key))


def _check_feature(
    feature: Feature, stats: Any, aggregate: Mapping[str, FloatArray] | None
) -> Iterator[Finding]:
    def wrong(code: str, message: str, severity: str | None = None) -> Finding:
        message = f"{feature.key}: {message}."
        return found(code, message, stream=feature.key, path=STATS_PATH, severity=severity)

    if not isinstance(stats, Mapping):
        yield wrong("stats-missing", "there are no statistics")
        return
    missing = [name for name in _NEEDED if name not in stats]
    if missing:
        yield wrong("stats-missing", f"there is no {' and no '.join(missing)}")
        return
    values: dict[str, FloatArray] = {}
    for name, value in stats.items():
        array = _array(value)
        if array is None:
            yield wrong("stats-shape", f"{name} is no regular list of numbers")
            return
        values[name] = array
        shapes = _shapes(feature) if name != "count" else ((1,),)
        if array.shape not in shapes:
            allowed = " or ".join(map(str, shapes))
            yield wrong("stats-shape", f"{name} has shape {array.shape} and not {allowed}")
            return
    problem = _impossible(feature, values)
    if problem is not None:
        yield wrong("stats-value", problem)
        return
    differing = [] if aggregate is None else _differences(values, aggregate)
    if differing:
        severity = "info" if feature.key == _MAY_BE_RELATIVE else None
        yield wrong(
            "stats-aggregate",
            f"{', '.join(differing)} differ from what the episodes' statistics add up to",
            severity,
        )


def _array(value: Any) -> FloatArray | None:
    try:
        array = np.atleast_1d(np.array(value))
    except (ValueError, OverflowError):
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _shapes(feature: Feature) -> tuple[tuple[int, ...], ...]:
    if feature.dtype in ("image", "video"):
        return _IMAGE_SHAPES
    # LeRobot's recorder reduces all axes of a matrix but the last.
    return (feature.shape, feature.shape[-1:]) if len(feature.shape) > 1 else (feature.shape,)


def _impossible(feature: Feature, values: Mapping[str, FloatArray]) -> str | None:
    for name, array in values.items():
        if not np.isfinite(array).all():
            return f"{name} is not finite"
    if values["min"].shape != values["mean"].shape or values["max"].shape != values["mean"].shape:
        return "min, max and mean have different shapes"
    slack = _slack(values["min"], values["max"])
    if np.any(values["min"] > values["mean"] + slack):
        return "min is above the mean"
    if np.any(values["mean"] > values["max"] + slack):
        return "the mean is above max"
    if np.any(values["std"] < 0):
        return "std is below 0"
    if values["count"][0] < 1:
        return "count is 0"
    if feature.dtype in ("image", "video") and not feature.is_depth:
        low, high = float(values["min"].min()), float(values["max"].max())
        if low < -_RELATIVE_TO_RANGE or high > 1 + _RELATIVE_TO_RANGE:
            return f"values go from {low:g} to {high:g}, not from 0 to 1"
    return None


def _slack(minimum: FloatArray, maximum: FloatArray) -> FloatArray:
    size = np.maximum(np.abs(minimum), np.abs(maximum))
    slack: FloatArray = (maximum - minimum) * _RELATIVE_TO_RANGE + size * _RELATIVE_TO_SIZE
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
