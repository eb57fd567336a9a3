"""Which files of a repo belong to the LeRobot dataset in it, and which are somebody's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.source.paths import LEGACY_META_FILES
from leconvert.tables.paths import (
    DATA_PATH_TEMPLATE,
    EPISODES_DIR,
    INFO_PATH,
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    VIDEO_PATH_TEMPLATE,
)

__all__ = ["Owned", "cameras_of", "differs", "version_of"]

_META_FILES = frozenset({*LEGACY_META_FILES, INFO_PATH, REPAIRS_PATH, STATS_PATH, TASKS_PATH})
_EPISODES = re.compile(re.escape(EPISODES_DIR) + r"/chunk-[0-9]+/file-[0-9]+\.parquet")


def version_of(info: Mapping[str, Any]) -> str:
    """Return the ``codebase_version`` of an info.json, as far as it is a text."""
    version = info.get("codebase_version")
    return version if isinstance(version, str) else "of no version"


def _features(info: Mapping[str, Any]) -> dict[str, str]:
    features = info.get("features")
    if not isinstance(features, Mapping):
        return {}
    return {
        str(key): str(feature.get("dtype"))
        for key, feature in features.items()
        if isinstance(feature, Mapping)
    }


def cameras_of(info: Mapping[str, Any]) -> list[str]:
    """Return the video features of an info.json, sorted."""
    return sorted(key for key, dtype in _features(info).items() if dtype == "video")


def differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Say why a result cannot be a conversion of what a repo holds; None if it can.

    A conversion may leave features and episodes out. It never changes the frame rate, and never
    adds a feature but those that every v3.0 dataset has.

    Args:
        old: The repo's info.json.
        new: The result's.
    """
    if old.get("fps") != new.get("fps"):
        return f"it has {old.get('fps')} frames a second, the result {new.get('fps')}"
    unknown = _features(new).keys() - _features(old).keys() - DEFAULT_COLUMNS.keys()
    if unknown:
        return f"it has no feature {sorted(unknown)[0]!r}"
    return None


class Owned:
    """Tells the files of the dataset that an info.json describes, by their names.

    Those are the files of ``meta/`` that LeRobot and leconvert write, files of episodes by the
    templates of a v2.x dataset, and files by the templates of v3.0 for any of its cameras: v3.0's
    readers take every such file for a part of the dataset. Whatever else lies in the repo is not
    the dataset's, whatever folder it is in.

    Args:
        info: The repo's info.json.
    """

    def __init__(self, info: Mapping[str, Any]) -> None:
        cameras = cameras_of(info)
        named = [info.get("data_path"), info.get("video_path")]
        templates = [DATA_PATH_TEMPLATE, VIDEO_PATH_TEMPLATE]
        templates += [template for template in named if isinstance(template, str)]
        found = (_pattern(template, cameras) for template in templates)
        self._patterns = [pattern for pattern in found if pattern is not None]
        self._patterns.append(_EPISODES)

    def __contains__(self, path: str) -> bool:
        return path in _META_FILES or any(pattern.fullmatch(path) for pattern in self._patterns)


def _pattern(template: str, cameras: list[str]) -> re.Pattern[str] | None:
    """Return what matches the names that a template makes; None if it makes none, or only one."""
    pattern, numbers = "", 0
    try:
        for literal, field, _, _ in Formatter().parse(template):
            pattern += re.escape(literal)
            if field == "video_key":
                pattern += f"(?:{'|'.join(map(re.escape, cameras))})"
                if not cameras:
                    return None
            elif field is not None:
                pattern += "[0-9]+"
                numbers += 1
    except ValueError:
        return None
    return re.compile(pattern) if numbers else None
