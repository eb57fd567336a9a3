"""The JSON records of a v3.0 dataset: ``meta/info.json`` and ``meta/stats.json``."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from leconvert.model import FILES_PER_CHUNK, IntArray
from leconvert.tables.paths import DATA_PATH_TEMPLATE, INFO_PATH, STATS_PATH, VIDEO_PATH_TEMPLATE
from leconvert.workdir.trees import make_folders_below

__all__ = ["converted_info", "fps_number", "kept_splits", "write_info", "write_stats"]

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

    Args:
        info: ``meta/info.json`` of the source.
        fps: Frames a second, exact.
        data_file_size_in_mb: Limit of a data file, in MiB.
        video_file_size_in_mb: Limit of a video file, in MiB.
        has_videos: Whether the dataset has video files; without, ``video_path`` is null.
        total_episodes: Episodes of the result.
        total_frames: Frames of the result.
        total_tasks: Tasks of the result.
        splits: Replaces the source's splits where given; what is no mapping of names counts for
            none.
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
    """Return splits by the result's numbering; those that are no range stay as they are.

    Args:
        splits: ``splits`` of the source.
        index: The indices in the source of the episodes that are kept, ascending, shape (E,).
    """
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
    """Write ``meta/stats.json`` below ``root``, keys sorted.

    Args:
        root: The new dataset's folder.
        stats: Feature to statistic to array or nested list, as
            :meth:`~leconvert.tables.aggregation.StatsAggregator.result` returns it.
    """
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
