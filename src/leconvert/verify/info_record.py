"""``meta/info.json`` of a result against that of its source, key by key."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from leconvert import media, tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import output_path, stream_of_camera
from leconvert.source import load_tasks
from leconvert.source.clip_checks import ClipFacts, declared_as_encoded
from leconvert.tables.paths import INFO_PATH
from leconvert.verify.difference import Difference
from leconvert.verify.json_files import read_json_object
from leconvert.verify.metadata import SourceEpisodes
from leconvert.verify.routes import Routes, file_runs
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = ["compare_cameras", "compare_info"]

# The conversion's own choice, which the source does not tell.
_SIZE_LIMITS = ("data_files_size_in_mb", "video_files_size_in_mb")


def compare_info(
    result: Path,
    source_info: Mapping[str, Any],
    fps: Fraction,
    episodes: SourceEpisodes,
    source: Path,
) -> Iterator[Difference]:
    """Compare ``info.json``: totals, rate, templates, every feature, and keys that were added.

    Args:
        result: The v3.0 dataset.
        source_info: ``info.json`` of the source, as parsed.
        fps: Frames a second.
        episodes: The episodes of the result.
        source: The v2.x dataset.

    Raises:
        UnreadableSourceError: The tasks of the source cannot be read.
    """
    try:
        info = read_json_object(result / INFO_PATH)
    except (OSError, ValueError) as error:
        raise_storage_trouble(error, result / INFO_PATH)
        yield Difference("readable metadata", INFO_PATH, "a JSON object", str(error))
        return
    repairs = episodes.repairs
    features = repairs.features(source_info["features"])
    splits = source_info.get("splits")
    expected = tables.converted_info(
        {**source_info, "features": features},
        fps=fps,
        data_file_size_in_mb=info.get(_SIZE_LIMITS[0], math.nan),
        video_file_size_in_mb=info.get(_SIZE_LIMITS[1], math.nan),
        has_videos=any(feature.get("dtype") == "video" for feature in features.values()),
        total_episodes=len(episodes),
        total_frames=episodes.num_frames,
        total_tasks=len(repairs.tasks(load_tasks(source, repairs))),
        splits=tables.kept_splits(splits, episodes.index) if repairs else None,
    )
    for key in [*expected, *(key for key in info if key not in expected)]:
        if key == "features":
            yield from _compare_features(expected[key], info.get(key))
        elif key in _SIZE_LIMITS:
            limit = info.get(key)
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
                yield Difference(key, INFO_PATH, "a positive number", _shown(info, key))
        elif not _same(expected.get(key), info.get(key)) or (key in expected) != (key in info):
            yield Difference(key, INFO_PATH, _shown(expected, key), _shown(info, key))


def compare_cameras(
    result: Path, features: Mapping[str, Any], routes: Routes, fps: Fraction
) -> Iterator[Difference]:
    """Compare what is declared of each camera with what the result's own files are.

    A file whose header cannot be read is passed over here.

    Args:
        result: The v3.0 dataset.
        features: The features that the result is to declare.
        routes: Where episodes are.
        fps: Frames a second.
    """
    for camera, feature in features.items():
        if feature.get("dtype") != "video":
            continue
        stream = stream_of_camera(camera)
        numbers = routes.file_number[stream]
        clips: Counter[ClipFacts] = Counter()
        for first, stop in file_runs(numbers) if len(numbers) else ():
            path = result / output_path(stream, int(numbers[first]))
            try:
                clips[ClipFacts.of(media.read_clip_index(path))] += stop - first
            except (UnreadableSourceError, OSError) as error:
                raise_storage_trouble(error, path)
        if not clips:
            continue
        usual = max(clips, key=clips.__getitem__)
        expected = declared_as_encoded(feature, usual, fps)
        for key in expected:
            if not _same(expected[key], feature.get(key)):
                what = f"{key} of camera {camera!r}, whose files differ"
                yield Difference(what, INFO_PATH, _shown(expected, key), _shown(feature, key))


def _compare_features(expected: Mapping[str, Any], found: object) -> Iterator[Difference]:
    if not isinstance(found, Mapping) or set(found) != set(expected):
        have = sorted(found) if isinstance(found, Mapping) else found
        yield Difference("features", INFO_PATH, str(sorted(expected)), str(have))
        return
    for name, feature in expected.items():
        have = found[name]
        if not isinstance(have, Mapping):
            yield Difference(f"feature {name!r}", INFO_PATH, str(feature), str(have))
            continue
        for key in {**feature, **have}:
            if not _same(feature.get(key), have.get(key)) or (key in feature) != (key in have):
                what = f"{key} of feature {name!r}"
                yield Difference(what, INFO_PATH, _shown(feature, key), _shown(have, key))


def _same(expected: object, found: object) -> bool:
    """Tell whether two JSON values are the same: 1 is neither 1.0 nor true."""
    return json.dumps(expected, sort_keys=True) == json.dumps(found, sort_keys=True)


def _shown(record: Mapping[str, Any], key: str) -> str:
    return str(record[key]) if key in record else "no such key"
