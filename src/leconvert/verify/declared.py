"""``meta/info.json`` of a v3.0 dataset: what it declares, and what is wrong with that."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from string import Formatter
from typing import Any

from leconvert.model import DATA_STREAM, Finding, camera_of, stream_of_camera
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.source.info import INFO_PATH
from leconvert.verify.catalogue import found

__all__ = ["Declared", "Feature", "declaration", "split_findings"]

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
