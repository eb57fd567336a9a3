"""``meta/info.json`` of a v3.0 dataset: what it declares, and what is wrong with that."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from string import Formatter
from typing import Any

from leconvert.model import DATA_STREAM, Finding, camera_of, stream_of_camera
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.source.dataset import INFO_PATH

__all__ = [
    "CATALOGUE",
    "Declared",
    "Feature",
    "declaration",
    "found",
    "shortened",
    "split_findings",
]


# ------------------------------------------------------------------------------------------------
# What `check` can say about a v3.0 dataset: one entry a code, and how findings are made of them.
#
# An *error* makes LeRobot's loader raise, or return the wrong thing without raising. A *warning*
# costs time, or room, or makes one of LeRobot's tools stumble. An *info* is neither.


_SHOWN_A_KIND_AND_STREAM = 20

_RECORD_AGAIN = "Restore the file from its origin, or convert or record the dataset again."
_CONVERT_AGAIN = "Convert the dataset again from its v2.1 source, or restore the file."
_REWRITE_DATA = "Rewrite the column, or convert the dataset again from its source."
_REJOIN_VIDEO = "Convert again from the v2.1 source: `leconvert convert` places frames exactly."


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What findings of one code have in common.

    Attributes:
        severity: ``error``, ``warning`` or ``info``; a single finding may be milder.
        meaning: What it means for whoever loads the dataset, in one sentence.
        remedy: What helps.
    """

    severity: str
    meaning: str
    remedy: str


CATALOGUE: Mapping[str, FindingKind] = {
    # --- files ---
    "missing-file": FindingKind(
        "error", "A file that the metadata names is not there.", _RECORD_AGAIN
    ),
    "unreadable-file": FindingKind(
        "error", "A file is truncated, damaged, or of another kind.", _RECORD_AGAIN
    ),
    "stray-data": FindingKind(
        "error",
        "A parquet file below data/ belongs to no episode; loaders read it all the same and every "
        "later row moves.",
        "Move the file out of data/.",
    ),
    "stray-file": FindingKind(
        "warning", "A file belongs to no episode; it only takes room.", "Delete it if it is unused."
    ),
    # --- meta/info.json ---
    "info-value": FindingKind(
        "error", "A value of info.json is missing or makes no sense.", "Correct meta/info.json."
    ),
    "totals": FindingKind(
        "error",
        "info.json counts other episodes, frames or tasks than there are; samplers go by it.",
        "Correct the total in meta/info.json.",
    ),
    "splits": FindingKind(
        "info",
        "A split is no range of episodes of this dataset; LeRobot 0.6.1 does not read splits.",
        "Correct the split in meta/info.json.",
    ),
    "path-template": FindingKind(
        "error",
        "A path template cannot be filled in, or leads where loaders do not look.",
        "Set LeRobot's own template in meta/info.json.",
    ),
    "feature": FindingKind(
        "error",
        "A feature is declared in a way that LeRobot cannot use.",
        "Correct the feature in meta/info.json.",
    ),
    "feature-names": FindingKind(
        "warning",
        "A visual feature has no names for its three axes; policies cannot tell where the channels "
        "are.",
        'Set names to ["height", "width", "channels"] in meta/info.json.',
    ),
    # --- meta/tasks.parquet ---
    "tasks-layout": FindingKind(
        "error",
        "The text of a task is not the index of the pandas table, where readers take it from.",
        "Write the table with pandas, with the text as index named task.",
    ),
    "tasks-order": FindingKind(
        "error",
        "A task's row is not its task_index; readers go by the row, so frames get the wrong task.",
        "Sort meta/tasks.parquet by task_index, from 0 without gaps.",
    ),
    "tasks-duplicate": FindingKind(
        "warning",
        "Two tasks have the same text; recording more episodes of it fails.",
        "Merge them with LeRobot's modify_tasks.",
    ),
    # --- meta/episodes ---
    "no-episodes": FindingKind(
        "error", "There is no episode to load.", "Record one, or convert a dataset that has some."
    ),
    "episodes-column": FindingKind(
        "error", "meta/episodes lacks a column, or holds it as another type.", _CONVERT_AGAIN
    ),
    "episodes-null": FindingKind(
        "error", "A column that leads to files has no value for an episode.", _CONVERT_AGAIN
    ),
    "episode-order": FindingKind(
        "error",
        "An episode's row is not its index; readers go by the row and take another episode's.",
        "Sort meta/episodes by episode_index, from 0 without gaps, over all files in text order.",
    ),
    "episode-range": FindingKind(
        "error",
        "dataset_from_index, dataset_to_index and length do not go together.",
        "Set them to the running sum of the lengths.",
    ),
    "file-order": FindingKind(
        "error",
        "Data files in the order of their names are not in the order of episodes, so that row "
        "numbers miss.",
        "Rename the data files, and chunk_index and file_index with them.",
    ),
    "episodes-location": FindingKind(
        "warning",
        "meta/episodes/chunk_index or file_index does not name the file that holds the row; tools "
        "that edit datasets go by it.",
        "Correct the two columns.",
    ),
    "episode-tasks": FindingKind(
        "warning",
        "The tasks that meta/episodes lists for an episode are not those of its rows.",
        "Set the tasks with LeRobot's modify_tasks.",
    ),
    # --- data files ---
    "data-columns": FindingKind(
        "error", "A data file has other columns than info.json declares.", _REWRITE_DATA
    ),
    "data-types": FindingKind(
        "error", "A column is stored as another type than info.json declares.", _REWRITE_DATA
    ),
    "data-schema": FindingKind(
        "warning",
        "Data files have different schemas; readers that do not go by info.json refuse them.",
        "Write all files with the schema of the first.",
    ),
    "image-metadata": FindingKind(
        "warning",
        "The file does not say that a column holds images; StreamingLeRobotDataset returns bytes.",
        "Write the file with `datasets`, or convert again from the source.",
    ),
    "row-groups": FindingKind(
        "warning",
        "Row groups are not one an episode; who wants one episode reads a whole group.",
        "Convert again from the v2.1 source: `leconvert convert` writes one row group an episode.",
    ),
    "rows": FindingKind(
        "error", "A data file has more or fewer rows than its episodes.", _REWRITE_DATA
    ),
    "index-column": FindingKind(
        "error", "index is not the row's place in the dataset.", _REWRITE_DATA
    ),
    "episode-column": FindingKind(
        "error", "episode_index is not the episode that the row belongs to.", _REWRITE_DATA
    ),
    "frame-column": FindingKind(
        "error", "frame_index does not count from 0 within the episode.", _REWRITE_DATA
    ),
    "timestamp-column": FindingKind(
        "error",
        "timestamp is not frame_index / fps; video frames are looked up by it.",
        "Correct fps in info.json if that is what is wrong; else convert again with --retime.",
    ),
    "task-column": FindingKind("error", "task_index names no task.", _REWRITE_DATA),
    # --- video files ---
    "video-frames": FindingKind(
        "error", "An episode ends beyond the last frame of its video file.", _RECORD_AGAIN
    ),
    "frame-times": FindingKind(
        "error",
        "Frames lie 0.1 ms or more from the time at which LeRobot asks for them; it refuses them.",
        _REJOIN_VIDEO,
    ),
    "float32-reach": FindingKind(
        "error",
        "Frames are at their exact time, but LeRobot compares times in single precision and "
        "refuses them.",
        "Convert again with --layout streaming: files then end before that happens.",
    ),
    "video-end": FindingKind(
        "warning",
        "to_timestamp is not where the episode ends; tools that cut episodes out go by it.",
        "Set it to from_timestamp + length / fps.",
    ),
    "video-neighbours": FindingKind(
        "warning",
        "Episodes of a video file share frames, or leave some unused or a pause between them.",
        _REJOIN_VIDEO,
    ),
    "video-keyframe": FindingKind(
        "warning",
        "An episode does not begin with a keyframe; it decodes only from the one before it.",
        "Encode the videos again, with a keyframe where an episode begins.",
    ),
    "video-shape": FindingKind(
        "warning",
        "Frames have another height or width than info.json declares.",
        "Correct the shape in meta/info.json.",
    ),
    "video-codec": FindingKind(
        "warning",
        "A file has another codec than info.json declares.",
        "Correct video.codec in meta/info.json.",
    ),
    "video-index": FindingKind(
        "info",
        "The MP4 is of a kind that is only read packet by packet, which is slow.",
        "Remux it into a plain MP4 (ffmpeg -i IN -c copy OUT.mp4).",
    ),
    "streaming-video": FindingKind(
        "info",
        "LeRobot 0.6.1's StreamingLeRobotDataset asks for frames by their time in the whole "
        "dataset, which only fits a camera with one video file.",
        "Stream with a later LeRobot, or load with LeRobotDataset.",
    ),
    # --- statistics ---
    "stats-missing": FindingKind(
        "warning",
        "A feature has no statistics; policies that normalise it fail.",
        "Compute them with LeRobot's recompute_stats.",
    ),
    "stats-shape": FindingKind(
        "error",
        "A statistic has a shape that does not fit its feature.",
        "Compute the statistics again with LeRobot's recompute_stats.",
    ),
    "stats-value": FindingKind(
        "warning",
        "A statistic is impossible: not finite, min above mean or max, std below 0, or an image "
        "beyond [0, 1].",
        "Look at the data, then compute the statistics again with LeRobot's recompute_stats.",
    ),
    "stats-aggregate": FindingKind(
        "warning",
        "stats.json is not the aggregate of the statistics that meta/episodes holds.",
        "Compute the statistics again with LeRobot's recompute_stats.",
    ),
    "episode-stats": FindingKind(
        "warning",
        "meta/episodes has no usable statistics of a feature for every episode; merging and "
        "editing fail.",
        "Convert again from the v2.1 source, or compute the statistics again.",
    ),
}  # fmt: skip


def found(
    code: str,
    message: str,
    *,
    episode: int | None = None,
    stream: str | None = None,
    path: str | None = None,
    severity: str | None = None,
    remedy: str | None = None,
) -> Finding:
    """Return a finding with what its kind says; arguments that are given take precedence."""
    kind = CATALOGUE[code]
    return Finding(
        code,
        severity or kind.severity,
        message,
        episode=episode,
        stream=stream,
        path=path,
        remedy=remedy or kind.remedy,
    )


def shortened(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the first findings of each code, severity and stream, and say how many more there are.

    A dataset of a hundred thousand broken files has one thing wrong with it, not a hundred
    thousand; memory is bounded by what is kept.
    """
    counts: Counter[tuple[str, str, str | None]] = Counter()
    kept: list[Finding] = []
    for finding in findings:
        key = (finding.code, finding.severity, finding.stream)
        counts[key] += 1
        if counts[key] <= _SHOWN_A_KIND_AND_STREAM:
            kept.append(finding)
    for (code, severity, stream), count in counts.items():
        if count > _SHOWN_A_KIND_AND_STREAM:
            more = f"{count - _SHOWN_A_KIND_AND_STREAM:,} more findings of this kind."
            kept.append(Finding(code, severity, more, stream=stream))
    return tuple(kept)


# ------------------------------------------------------------------------------------------------
# ``meta/info.json`` of a v3.0 dataset: what it declares, and what is wrong with that.


_NO_FOLDER_NAMES = {"", ".", ".."}
_MAX_DIMENSIONS = 5
_VISUAL = ("image", "video")
# Whatever else `datasets` has no type for; a typing error here fails only when the data is read.
_NUMBER = re.compile(r"(bool|u?int(8|16|32|64)|float(16|32|64))")
_OTHER_DTYPES = ("string", "language", *_VISUAL)
# What a template may ask of a number: nothing, or a few digits with zeros in front.
_NUMBER_FORMAT = re.compile(r"(0?\d)?d?")


@dataclass(frozen=True, slots=True)
class Feature:
    """A declared feature.

    Attributes:
        key: Its name.
        dtype: Such as ``float32``, ``video``, ``image``, ``string``.
        shape: As declared.
        raw: The declaration as it stands.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    raw: Mapping[str, Any]

    @property
    def is_number(self) -> bool:
        """Whether values are numbers, for which there are statistics."""
        return _NUMBER.fullmatch(self.dtype) is not None

    @property
    def is_depth(self) -> bool:
        """Whether it is a depth map, whose statistics are not between 0 and 1."""
        for name in ("info", "video_info"):
            info = self.raw.get(name)
            if isinstance(info, Mapping) and (
                info.get("is_depth_map") or info.get("video.is_depth_map")
            ):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Declared:
    """What info.json says, as far as it makes sense.

    Attributes:
        raw: The file as parsed.
        fps: Frames a second, the exact fraction of the decimal.
        features: Usable features by key.
        templates: Path template of each stream whose template can be used.
    """

    raw: Mapping[str, Any]
    fps: Fraction
    features: Mapping[str, Feature]
    templates: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """Every declared feature, usable or not, and the columns that all datasets have."""
        return frozenset({*self.raw["features"], *DEFAULT_COLUMNS})

    @property
    def cameras(self) -> tuple[str, ...]:
        """Video features, sorted."""
        return tuple(sorted(k for k, feature in self.features.items() if feature.dtype == "video"))

    def path(self, stream: str, chunk: int, file: int) -> str:
        """Return the path of a file of a stream, relative to the dataset."""
        return self.templates[stream].format(
            video_key=camera_of(stream), chunk_index=chunk, file_index=file
        )


def declaration(raw: Mapping[str, Any]) -> tuple[Declared | None, list[Finding]]:
    """Return what a v3.0 info.json declares and what is wrong with it.

    The declaration is None where nothing can be checked by it.
    """
    findings: list[Finding] = []

    def wrong(code: str, message: str, **place: Any) -> None:
        findings.append(found(code, message, path=INFO_PATH, **place))

    fps = raw.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1_000_000:
        wrong("info-value", f"fps is {_shown(fps)}, which is no frame rate.")
        return None, findings
    for key in ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb"):
        value = raw.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            wrong("info-value", f"{key} is {_shown(value)}, which is no positive number.")
    declared = raw.get("features")
    if not isinstance(declared, dict):
        wrong("info-value", "There is no table of features.")
        return None, findings

    features: dict[str, Feature] = {}
    for key, entry in declared.items():
        problem = _feature_problem(key, entry)
        if problem is not None:
            wrong("feature", f"The feature {_shown(key)} {problem}.")
            continue
        feature = Feature(key, entry["dtype"], tuple(entry["shape"]), entry)
        features[key] = feature
        if feature.dtype in _VISUAL and not _has_axis_names(entry):
            wrong("feature-names", f"The feature {key!r} has names {_shown(entry.get('names'))}.")
    for name in DEFAULT_COLUMNS:
        if name not in declared:
            wrong("feature", f"The feature {name!r}, which every dataset has, is not declared.")

    templates: dict[str, str] = {}
    streams = [DATA_STREAM]
    streams += [
        stream_of_camera(key) for key, ft in sorted(features.items()) if ft.dtype == "video"
    ]
    told: set[str] = set()
    for stream in streams:
        name = "data_path" if stream == DATA_STREAM else "video_path"
        problem = _template_problem(raw.get(name), stream)
        if problem is None:
            templates[stream] = str(raw[name])
        elif name not in told:
            told.add(name)
            wrong("path-template", f"{name} is {_shown(raw.get(name))}: {problem}.")
    return Declared(raw, Fraction(repr(fps)), features, templates), findings


def split_findings(raw: Mapping[str, Any], num_episodes: int) -> Iterator[Finding]:
    """Yield the splits that are no ranges of episodes."""
    splits = raw.get("splits") or {}
    if not isinstance(splits, Mapping):
        yield found("splits", f"splits is {_shown(splits)} and no table.", path=INFO_PATH)
        return
    for name, value in splits.items():
        ends = value.split(":") if isinstance(value, str) else []
        if (
            len(ends) != 2
            or not all(re.fullmatch(r"\d{1,18}", end) for end in ends)
            or not int(ends[0]) <= int(ends[1]) <= num_episodes
        ):
            message = f"The split {_shown(name)} is {_shown(value)} of {num_episodes:,} episodes."
            yield found("splits", message, path=INFO_PATH)


def _feature_problem(key: str, entry: object) -> str | None:
    if set(key.split("/")) & _NO_FOLDER_NAMES or "\0" in key:
        return "cannot name a folder"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("dtype"), str):
        return "has no dtype"
    dtype, shape = entry["dtype"], entry.get("shape")
    if dtype not in _OTHER_DTYPES and not _NUMBER.fullmatch(dtype):
        return f"has the dtype {_shown(dtype)}, which LeRobot does not know"
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        return f"has the shape {_shown(shape)}"
    if dtype in _VISUAL and len(shape) != 3:
        return f"is an image of shape {shape} and not of three axes"
    if dtype not in _OTHER_DTYPES and not 1 <= len(shape) <= _MAX_DIMENSIONS:
        return f"has {len(shape)} axes; LeRobot stores one to five"
    if math.prod(shape) >= 2**40:
        return f"has the impossible shape {shape}"
    return None


def _has_axis_names(entry: Mapping[str, Any]) -> bool:
    names = entry.get("names")
    return isinstance(names, list) and len(names) >= 3


def _template_problem(template: object, stream: str) -> str | None:
    """Say why LeRobot's loaders would not find a stream's files by a template."""
    if not isinstance(template, str):
        return "there is no template"
    wanted = {"chunk_index", "file_index"} | (set() if stream == DATA_STREAM else {"video_key"})
    try:
        fields = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        return str(error)
    if {name for name, _, _ in fields} != wanted:
        return f"it must name {', '.join(sorted(wanted))} and nothing else"
    for name, form, conversion in fields:
        allowed = not form if name == "video_key" else _NUMBER_FORMAT.fullmatch(form or "")
        if conversion or not allowed:
            return f"{{{name}}} has a format that is no number of digits"
    filled = template.format(video_key="camera", chunk_index=1, file_index=2)
    path = PurePosixPath(filled)
    if path.is_absolute() or ".." in path.parts:
        return "it leaves the dataset"
    if stream == DATA_STREAM and (
        len(path.parts) != 3 or path.parts[0] != "data" or path.suffix != ".parquet"
    ):
        return "loaders read data/*/*.parquet and nothing else"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
