"""Where a v2.x dataset keeps an episode's files, from the templates in ``info.json``."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from leconvert.errors import SourceError
from leconvert.model import DATA_STREAM, camera_of, stream_of_camera
from leconvert.source.info import INFO_PATH, DatasetInfo
from leconvert.source.seen import shown

__all__ = ["LEGACY_META_FILES", "PathTemplateError", "SourcePaths"]

LEGACY_META_FILES = (
    INFO_PATH,
    "meta/episodes.jsonl",
    "meta/episodes_stats.jsonl",
    "meta/stats.json",
    "meta/tasks.jsonl",
)
_CHUNK, _INDEX, _CAMERA = "episode_chunk", "episode_index", "video_key"
# A width in a template could otherwise ask for a name of gigabytes.
_NUMBER_FORMAT = re.compile(r"(0?[0-9]{1,2})?d?")
# What other writers call the same numbers and names.
_ALIASES = {
    "chunk_index": _CHUNK,
    "chunk": _CHUNK,
    "chunk_id": _CHUNK,
    "episode": _INDEX,
    "episode_id": _INDEX,
    "episode_idx": _INDEX,
    "camera": _CAMERA,
    "camera_key": _CAMERA,
    "image_key": _CAMERA,
}
_ALIASED = re.compile(r"(?<!\{)(?P<open>(?:\{\{)*\{)(?P<name>" + "|".join(_ALIASES) + r")(?=[:!}])")
_PATTERNS = {_CHUNK: r"[0-9]+", _INDEX: r"[0-9]+", _CAMERA: r".+"}


class PathTemplateError(SourceError):
    """A template says nothing that could be a file's name."""


class SourcePaths:
    """Relative and absolute paths of episodes' files.

    A template is filled by name only (no attribute look-ups), and a path that would leave the
    dataset is refused. Symbolic links on the way are the user's own and are followed.

    Args:
        root: The dataset folder.
        info: Its ``info.json``.

    Attributes:
        root: The dataset folder.
        other_names: Placeholders of the templates that LeRobot calls otherwise, sorted.

    Raises:
        PathTemplateError: A template has a placeholder that LeRobot does not define, is malformed,
            or names one file for all episodes.
        SourceError: A template leads outside.
    """

    def __init__(self, root: Path, info: DatasetInfo) -> None:
        self.root = root
        self._chunks_size = info.chunks_size
        self._data = _canonical(_plain(info.data_path))
        self._video = _canonical(_plain(info.video_path or ""))
        self._located = info.located
        self._owner = {path: owner for owner, path in info.located.items()}
        templates = (info.data_path, info.video_path or "")
        self.other_names = tuple(
            sorted({found["name"] for text in templates for found in _ALIASED.finditer(text)})
        )
        path = root / INFO_PATH
        self._data_pattern = _pattern(path, "data_path", self._data, {_CHUNK, _INDEX})
        self._video_pattern: re.Pattern[str] | None = None
        self._only_camera = next(iter(info.camera_keys), "")
        self._cameras = info.camera_keys
        if info.camera_keys:
            self._video_pattern = _pattern(
                path, "video_path", self._video, {_CHUNK, _INDEX, _CAMERA}
            )
            if len(info.camera_keys) > 1 and _CAMERA not in self._video_pattern.groupindex:
                raise PathTemplateError(
                    f"{path} has a video_path without {{{_CAMERA}}}: all cameras would share one "
                    "file.",
                    path=str(path),
                )
        self._data_name = _pattern_of_name(path, self._data, {_CHUNK, _INDEX})
        self._video_name: re.Pattern[str] | None = None
        if info.camera_keys:
            self._video_name = _pattern_of_name(path, self._video, {_CHUNK, _INDEX, _CAMERA})
        for stream in (DATA_STREAM, *map(stream_of_camera, info.camera_keys)):
            _check_inside(path, self.relative(stream, 0))
        for located in self._owner:
            _check_inside(path, located)

    def relative(self, stream: str, episode_index: int) -> str:
        """Return the path of one slice's file, relative to the dataset."""
        if self._located and (stream, episode_index) in self._located:
            return self._located[stream, episode_index]
        return self.template_path(stream, episode_index)

    def template_path(self, stream: str, episode_index: int) -> str:
        """Return the path that a slice's file has by its template, wherever it lies."""
        chunk = episode_index // self._chunks_size
        camera = camera_of(stream)
        if camera is None:
            return self._data.format(episode_chunk=chunk, episode_index=episode_index)
        return self._video.format(
            episode_chunk=chunk, episode_index=episode_index, video_key=camera
        )

    def absolute(self, stream: str, episode_indices: Iterable[int]) -> Iterator[str]:
        """Yield the path of each slice's file."""
        camera = camera_of(stream)
        folder = f"{self.root}/"
        fill = (self._data if camera is None else self._video).format
        chunks_size = self._chunks_size
        for index in episode_indices:
            if self._located and (stream, index) in self._located:
                yield folder + self._located[stream, index]
                continue
            yield folder + fill(
                episode_chunk=index // chunks_size, episode_index=index, video_key=camera
            )

    @property
    def are_usual(self) -> bool:
        """Whether all files of episodes are below ``data`` and ``videos``."""
        return self._data.startswith("data/") and (
            self._video_pattern is None or self._video.startswith("videos/")
        )

    def slice_of(self, relative: str) -> tuple[str, int] | None:
        """Return the stream and the episode that a file's name stands for; None for other names.

        The camera may be one that is not declared, the episode one that does not exist.

        Args:
            relative: A path relative to the dataset.
        """
        if relative in self._owner:
            return self._owner[relative]
        found = self._data_pattern.fullmatch(relative)
        if found is not None:
            index = int(found[_INDEX])
            if self.relative(DATA_STREAM, index) == relative:
                return DATA_STREAM, index
        found = self._video_pattern.fullmatch(relative) if self._video_pattern else None
        if found is None:
            return None
        camera = found.groupdict().get(_CAMERA, self._only_camera)
        stream, index = stream_of_camera(camera), int(found[_INDEX])
        return (stream, index) if self.relative(stream, index) == relative else None

    def misplaced(self, relative: str) -> tuple[str, int] | None:
        """Return the slice that a file may be of that lies elsewhere than the template says.

        Its name must be the template's but for the digits' width, wherever its folder is; a clip's
        folders must also tell the camera, if there are several.
        """
        folder, _, name = relative.rpartition("/")
        found = self._data_name and self._data_name.fullmatch(name)
        if found:
            return DATA_STREAM, int(found[_INDEX])
        found = self._video_name and self._video_name.fullmatch(name)
        if not found:
            return None
        named = found.groupdict().get(_CAMERA)
        cameras = [key for key in self._cameras if key == named or f"/{key}/" in f"/{folder}/"]
        if not cameras and named is None and len(self._cameras) == 1:
            cameras = [self._only_camera]
        return (stream_of_camera(cameras[0]), int(found[_INDEX])) if len(cameras) == 1 else None


def _plain(template: str) -> str:
    """Return a template without ``.`` and empty folders, as a walk finds the names it makes."""
    return re.sub(r"(?<![^/])(?:\./+)+", "", re.sub(r"/{2,}", "/", template))


def _pattern_of_name(path: Path, template: str, allowed: set[str]) -> re.Pattern[str] | None:
    """Return what matches the names of a template's files; None where folders tell the episode."""
    name = template.rpartition("/")[2]
    return _pattern(path, "template", name, allowed) if f"{{{_INDEX}" in name else None


def _canonical(template: str) -> str:
    """Return a template with LeRobot's names of the placeholders."""
    return _ALIASED.sub(lambda found: found["open"] + _ALIASES[found["name"]], template)


def _pattern(path: Path, name: str, template: str, allowed: set[str]) -> re.Pattern[str]:
    """Check a template and return what matches the names that it makes.

    Args:
        path: ``info.json``, for errors.
        name: The template's key.
        template: It.
        allowed: Placeholders that may stand in it.
    """
    pattern = ""
    fields: set[str] = set()
    try:
        for literal, field, form, conversion in string.Formatter().parse(template):
            pattern += re.escape(literal)
            if field is None:
                continue
            if field not in allowed:
                raise PathTemplateError(
                    f"{path} has a {name} with the unknown placeholder {shown(f'{{{field}}}')}.",
                    path=str(path),
                    next_step=f"Known placeholders are {', '.join(sorted(allowed))}.",
                )
            is_plain = field == _CAMERA and not form
            is_number = field != _CAMERA and _NUMBER_FORMAT.fullmatch(form or "")
            if conversion is not None or not (is_plain or is_number):
                raise ValueError(f"{{{field}}} has a format that is not known")
            # A name that stands there twice is checked by filling the template again.
            group = f"(?P<{field}>" if field not in fields else "(?:"
            pattern += f"{group}{_PATTERNS[field]})"
            fields.add(field)
    except ValueError as error:
        raise PathTemplateError(
            f"{path} has a malformed {name}: {shown(str(error))}.", path=str(path)
        ) from error
    if _INDEX not in fields:
        raise PathTemplateError(
            f"{path} has a {name} without {{{_INDEX}}}: all episodes would share one file.",
            path=str(path),
        )
    return re.compile(pattern, re.DOTALL)


def _check_inside(path: Path, relative: str) -> None:
    """Refuse a name that no file of the dataset can have."""
    parts = PurePosixPath(relative).parts
    try:
        is_name = "\0" not in relative and bool(relative.encode())
    except UnicodeEncodeError:
        is_name = False
    if PurePosixPath(relative).is_absolute() or ".." in parts or not is_name:
        raise SourceError(
            f"{path} leads outside the dataset: {shown(relative)}.",
            path=str(path),
            next_step="Mend the templates; they name files relative to the dataset's folder.",
        )
