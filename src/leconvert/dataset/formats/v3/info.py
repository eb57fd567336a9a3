"""``meta/info.json`` of a v3.0 dataset, and where everything else lies."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from string import Formatter
from typing import Any, NamedTuple

import numpy as np

from leconvert.dataset.findings import found
from leconvert.dataset.formats.dataset import Totals, fps_number, written_features
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    Finding,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import V3_VERSION
from leconvert.workdir.fs import make_folders_below

# Where the tables and records of a v3.0 dataset lie, relative to its root.


INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
REPAIRS_PATH = "meta/repairs.json"
REPAIRED_PATH = "meta/repaired.json"
"""What `leconvert repair` changed in a v3.0 dataset; `REPAIRS_PATH` tells of a conversion."""
EPISODES_DIR = "meta/episodes"

# The templates that info.json carries; readers fill them with str.format.
DATA_PATH_TEMPLATE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH_TEMPLATE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def episodes_path(number: int) -> str:
    """Return the path of the episodes table's file ``number``, counted from 0."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return f"{EPISODES_DIR}/chunk-{chunk:03d}/file-{file:03d}.parquet"


class FileNames(NamedTuple):
    """What the files of a dataset's streams are called, by their numbers from 0 on.

    Attributes:
        data_path: Template of data files, as ``info.json`` has it.
        video_path: Template of video files.
        files_per_chunk: Files of a stream in a chunk.
        counts_on: Whether ``file_index`` counts on from chunk to chunk, as the episodes of v2.x do.
    """

    data_path: str = DATA_PATH_TEMPLATE
    video_path: str = VIDEO_PATH_TEMPLATE
    files_per_chunk: int = FILES_PER_CHUNK
    counts_on: bool = False

    def indices[Number: (int, IntArray)](self, number: Number) -> tuple[Number, Number]:
        """Return ``chunk_index`` and ``file_index`` of a file, or of each of several."""
        chunk, file = divmod(number, self.files_per_chunk)
        return chunk, number if self.counts_on else file

    def path(self, stream: str, number: int) -> str:
        """Return the path of a file, relative to the dataset."""
        chunk, file = self.indices(number)
        template = self.data_path if stream == DATA_STREAM else self.video_path
        return template.format(video_key=camera_of(stream), chunk_index=chunk, file_index=file)

    def numbers(self, chunk: IntArray, file: IntArray) -> IntArray:
        """Return the numbers of files by their indices; -1 for what no file of these names has."""
        if not self.counts_on:
            return chunk * self.files_per_chunk + file
        return np.where(chunk == file // self.files_per_chunk, file, -1)


USUAL_NAMES = FileNames()
"""Those that leconvert and LeRobot give to files of a new dataset."""


def names_of(info: Mapping[str, Any]) -> FileNames:
    """Return how a result names its files: as leconvert does, or as its v2.x source did."""
    usual = USUAL_NAMES
    data, video, size = (info.get(key) for key in ("data_path", "video_path", "chunks_size"))
    if not isinstance(data, str) or data == usual.data_path or _template_problem(data, DATA_STREAM):
        return usual
    if video is not None and _template_problem(video, stream_of_camera("camera")):
        return usual
    if type(size) is not int or size < 1:
        return usual
    return FileNames(data, usual.video_path if video is None else video, size, counts_on=True)


def output_path(stream: str, number: int) -> str:
    """Return the path of a stream's file ``number``, counted from 0, as leconvert names it."""
    return USUAL_NAMES.path(stream, number)


def stream_of(path: str) -> str | None:
    """Return the stream that a file of a dataset is of, by its name; None for other files."""
    stream, _, _ = path.rpartition("/")[0].rpartition("/")
    if stream == DATA_STREAM:
        return stream if path.endswith(".parquet") else None
    return stream if camera_of(stream) and path.endswith(".mp4") else None


# JSON files, held to what LeRobot's readers take.


# Python shows and compares what is nested less deeply than this, whoever asks it to.
_MOST_LEVELS = 100


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    LeRobot opens these files as UTF-8 text, in which a byte order mark, or UTF-16, is no JSON.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if _is_deeper(content, _MOST_LEVELS):
        raise ValueError("it is nested too deeply")
    return content


def _is_deeper(value: object, levels: int) -> bool:
    level: list[Any] = [value]
    for _ in range(levels):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# ``meta/info.json`` of a v3.0 dataset: what it declares, and what is wrong with that.


_NO_FOLDER_NAMES = {"", ".", ".."}
_MAX_DIMENSIONS = 5
_VISUAL = ("image", "video")
# Whatever else `datasets` has no type for; a typing error here fails only when the data is read.
_NUMBER = re.compile(r"(bool|u?int(8|16|32|64)|float(16|32|64))")
_OTHER_DTYPES = ("string", "language", *_VISUAL)
# What a template may ask of a number: nothing, or a few digits with zeros in front.
_NUMBER_FORMAT = re.compile(r"(0?\d)?d?")


class Feature(NamedTuple):
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


# The ``meta/info.json`` that a conversion writes.


# v2.x counted these; in v3.0 files and chunks are found through meta/episodes.
_DROPPED_KEYS = frozenset({"total_chunks", "total_videos"})
_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


def converted_info(
    info: Mapping[str, Any],
    totals: Totals,
    *,
    data_file_size_in_mb: float,
    video_file_size_in_mb: float,
    has_videos: bool,
    names: FileNames = USUAL_NAMES,
) -> dict[str, Any]:
    """Return the v3.0 ``info.json`` of a v2.x one.

    The known keys come first, in LeRobot's order; keys that we do not know follow as they stand.
    ``info`` is left alone.
    """
    rate = fps_number(totals.fps)
    features = written_features(info["features"])
    for feature in features.values():
        # Video features carry the rate among the facts about their encoding.
        if feature.get("dtype") != "video":
            feature["fps"] = rate
    size = info.get("chunks_size")
    converted: dict[str, Any] = {
        "codebase_version": V3_VERSION,
        "fps": rate,
        "features": features,
        "total_episodes": totals.episodes,
        "total_frames": totals.frames,
        "total_tasks": totals.tasks,
        "chunks_size": size if type(size) is int and size > 0 else FILES_PER_CHUNK,
        "data_files_size_in_mb": data_file_size_in_mb,
        "video_files_size_in_mb": video_file_size_in_mb,
        "data_path": names.data_path,
        "video_path": names.video_path if has_videos else None,
        "robot_type": info.get("robot_type"),
        "splits": _table(info.get("splits") if totals.splits is None else totals.splits),
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
    path = Path(root) / INFO_PATH
    make_folders_below(Path(root), path.parent)
    path.write_text(json.dumps(info, indent=4, ensure_ascii=False), encoding="utf-8")
