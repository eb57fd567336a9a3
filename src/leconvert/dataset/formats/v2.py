"""LeRobot v2.x as stored on disk: ``info.json``, tables, file paths, and the whole dataset.

Git LFS pointers in place of files are recognised. Unreadable files raise an error. All other faults
are findings of the scan.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
import string
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from leconvert.dataset.files import files_below, is_download
from leconvert.dataset.formats.dataset import (
    MOST_LEVELS,
    Episodes,
    Slices,
    Totals,
    fps_number,
    frame_rate,
    is_deeper,
    renamed_stream,
    with_other_keys,
    written_features,
    written_splits,
)
from leconvert.dataset.formats.dataset import Dataset as AnyDataset
from leconvert.dataset.formats.stats import BLOCK_EPISODES, StatsBlock, blocks_of_nothing
from leconvert.dataset.formats.stats import STATS_PATH as TOTAL_STATS_PATH
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import (
    SOURCE_VERSIONS,
    V3_VERSION,
    other_storage,
    unreadable,
)
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.storage_errors import denied, undecodable_path
from leconvert.support.text import GET_AGAIN, count, shown
from leconvert.support.values import dataclass
from leconvert.workdir.swap import info_path, old_dir

# Git LFS pointers: small texts in place of the files, after a clone without Git LFS.


_BEGIN = b"version https://git-lfs.github.com/spec/"
# By the specification, anything longer is not a pointer.
_LARGEST_BYTES = 1024
_FIRST_FILES = 3


def is_pointer(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a pointer; False if it cannot be read."""
    with suppress(OSError):
        seen = os.stat(path)  # noqa: PTH116 - asked of many files
        # To open a named pipe would wait for a writer.
        if stat.S_ISREG(seen.st_mode) and seen.st_size <= _LARGEST_BYTES:
            with Path(path).open("rb") as file:
                return file.read(len(_BEGIN)) == _BEGIN
    return False


def refuse_pointers(root: Path, *, met_one: bool = False) -> None:
    """Raise if there are LFS pointers in ``meta`` or the first files of each folder."""
    folders = (files_below(root, f"{name}/") for name in ("data", "videos", "images"))
    first = chain(files_below(root, "meta/"), *(islice(files, _FIRST_FILES) for files in folders))
    if not met_one and not any(is_pointer(root / path) for path, _ in first):
        return
    files = [path for path, is_file in files_below(root) if is_file]
    pointers = sum(is_pointer(root / path) for path in files)
    place = shlex.quote(str(root))
    if is_download(root):
        helps = (
            "The folder is a download, so the files of the repo itself are pointers, and another "
            "download brings the same. Ask the owner of the repo to upload the files. Then move "
            f"{place} away and run the same command again."
        )
    elif any((folder / ".git").exists() for folder in (root, *root.absolute().parents)):
        helps = (
            f"Run `git lfs pull` in {place}, which needs Git LFS. Then run the same command again."
        )
    else:
        helps = (
            "Install Git LFS and clone the repository of the dataset into another folder: this "
            "folder is not a clone, so `git lfs pull` does not work here."
        )
    raise UnreadableSourceError(
        f"{pointers:,} of {count(len(files), 'file')} in {root} are only Git LFS pointers. "
        "The files themselves are missing.",
        path=str(root),
        next_step=helps,
        code="lfs-pointers",
    )


# ``meta/info.json`` of a v2.x dataset, checked before anything relies on it.


INFO_PATH = "meta/info.json"
EPISODES_PATH = "meta/episodes.jsonl"
STATS_PATH = "meta/episodes_stats.jsonl"
TASKS_PATH = "meta/tasks.jsonl"
_DEFAULT_CHUNK_SIZE = 1000
_GIVE_THE_FOLDER = "Give the folder of a dataset. It contains the folders meta/, data/ and videos/."
_MEND_IT = f"{GET_AGAIN}. Or correct the file by hand."
_RESERVED_IN_KEYS = {"", ".", ".."}


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """The part of ``info.json`` that the converter needs; ``raw`` has the rest.

    Attributes:
        raw: The file as parsed.
        codebase_version: ``v2.1``, or ``v2.0``, which has no statistics of episodes.
        fps: Frame rate, the exact fraction of the decimal in the file.
        features: Declared features by key.
        camera_keys: Features of dtype ``video``, sorted.
        data_path: Template of parquet paths.
        video_path: Template of video paths; None without cameras.
        chunks_size: Number of episodes in a chunk folder of the source.
        located: Paths of files that are elsewhere than their template says, by stream and episode.
    """

    raw: Mapping[str, Any]
    codebase_version: str
    fps: Fraction
    features: Mapping[str, Mapping[str, Any]]
    camera_keys: tuple[str, ...]
    data_path: str
    video_path: str | None
    chunks_size: int
    located: Mapping[tuple[str, int], str]


def load_info(root: Path, repairs: Repairs = NO_REPAIRS) -> DatasetInfo:
    """Read and check ``meta/info.json``. The files tell a version that it does not."""
    path = root / INFO_PATH
    raw = read_info(root)
    version = legacy_version(root, raw, repairs.assumed_version)
    features = raw.get("features")
    if not isinstance(features, dict) or not features:
        raise _bad(path, "has no features")
    for key, feature in features.items():
        if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
            raise _bad(path, f"declares the feature {key!r} without a dtype")
        if set(key.split("/")) & _RESERVED_IN_KEYS or "\0" in key:
            raise _bad(
                path, f"declares the feature {key!r}, whose name cannot be the name of a folder"
            )
    features = {**features, **repairs.declared_features}
    cameras = tuple(sorted(key for key, ft in features.items() if ft["dtype"] == "video"))
    data_path = raw.get("data_path")
    if not isinstance(data_path, str):
        raise _bad(path, "has no data_path template")
    video_path = raw.get("video_path")
    if cameras and not isinstance(video_path, str):
        raise _bad(path, f"declares {len(cameras)} cameras but has no video_path template")
    chunks_size = raw.get("chunks_size", _DEFAULT_CHUNK_SIZE)
    if type(chunks_size) is not int or chunks_size < 1:
        raise _bad(path, f"has chunks_size {chunks_size!r}, which is not a positive integer")
    return DatasetInfo(
        raw=raw,
        codebase_version=version,
        fps=Fraction(repairs.assumed_fps) if repairs.assumed_fps else _fps(path, raw.get("fps")),
        features=features,
        camera_keys=cameras,
        data_path=data_path,
        video_path=video_path if isinstance(video_path, str) else None,
        chunks_size=chunks_size,
        located={(file.stream, file.episode): file.path for file in repairs.located_files},
    )


def legacy_version(root: Path, raw: Mapping[str, Any], assumed: str | None = None) -> str:
    """Return the v2.x version of a dataset; its tables tell one that ``info.json`` does not."""
    version = assumed or raw.get("codebase_version")
    if version in SOURCE_VERSIONS:
        return str(version)
    if not (root / EPISODES_PATH).is_file() or (root / "meta/episodes").is_dir():
        raise _wrong_version(root / INFO_PATH, raw)
    return "v2.1" if (root / STATS_PATH).is_file() else "v2.0"


def read_info(root: Path) -> dict[str, Any]:
    """Read ``meta/info.json`` of a dataset of any version, with files in parquet and MP4."""
    path = root / INFO_PATH
    try:
        str(root).encode()
    except UnicodeEncodeError as error:
        raise undecodable_path(error) from error
    if not root.is_dir():
        old = old_dir(root)
        if not os.path.lexists(root) and info_path(old).is_file():
            raise UnreadableSourceError(
                f"{root} does not exist, but {old} does: a conversion in place was "
                "interrupted between two renames, or somebody moved the dataset.",
                path=str(root),
                next_step="Run the same command, without --restart, to finish that conversion. "
                f"Or put the dataset back with `mv {shlex.quote(str(old))} "
                f"{shlex.quote(str(root))}`.",
            )
        raise UnreadableSourceError(
            f"{root} is not a folder.",
            path=str(root),
            next_step=_GIVE_THE_FOLDER,
        )
    if path.exists() and not path.is_file():
        raise UnreadableSourceError(f"{path} is not a file.", path=str(path))
    if is_pointer(path):
        refuse_pointers(root, met_one=True)
    wrong = ""
    try:
        content = path.read_bytes()
        raw = json.loads(content) if content.strip() else None
        # Half a surrogate pair is valid JSON, but not a text that the result's own table could
        # hold.
        json.dumps(raw, ensure_ascii=False).encode()
        if not isinstance(raw, dict):
            wrong = "does not contain a JSON object" if content.strip() else "is empty"
        elif is_deeper(raw, MOST_LEVELS):
            wrong = "is nested too deeply"
    except (FileNotFoundError, NotADirectoryError):
        raise _no_dataset(root) from None
    except UnicodeEncodeError:
        wrong = "contains invalid text (half a surrogate pair)"
    except (OSError, ValueError, RecursionError) as error:
        raise _unread(path, error, f"{GET_AGAIN}.") from error
    if wrong or not isinstance(raw, dict):
        raise UnreadableSourceError(f"{path} {wrong}.", path=str(path), next_step=f"{GET_AGAIN}.")
    if other := other_storage(raw, str(root)):
        raise other
    return raw


def _no_dataset(root: Path) -> UnreadableSourceError:
    """Return the error for a folder without ``meta/info.json``, which may contain datasets."""
    said, helps = f"{root} is not a LeRobot dataset: it has no {INFO_PATH}.", _GIVE_THE_FOLDER
    below = _datasets_below(root)
    if below:
        said = f"{root} is not a dataset, but a folder with {count(below, 'dataset')} below it."
        find = shlex.join(["leconvert", "fleet", "find", str(root)])
        helps = (
            f"Give one of these datasets. `{find}` lists them; `leconvert fleet` converts "
            "all of them."
        )
    return UnreadableSourceError(
        said, path=str(root / INFO_PATH), next_step=helps, code="missing-file"
    )


def _datasets_below(root: Path) -> int:
    """Return the number of datasets in subfolders, and in their subfolders (ORG/NAME)."""
    found = 0
    for pattern in ("*/meta/info.json", "*/*/meta/info.json"):
        with suppress(OSError):
            paths = (path.relative_to(root).parts for path in root.glob(pattern))
            found += sum(not any(part.startswith(".") for part in parts) for parts in paths)
    return found


def _unread(path: Path, error: Exception, helps: str) -> UnreadableSourceError:
    """Return the error for a failed read: a missing permission, or a damaged file."""
    said = (error.strerror if isinstance(error, OSError) else None) or error
    message = f"{path} cannot be read: {said}."
    if isinstance(error, PermissionError):
        message, helps = denied(path)
    return UnreadableSourceError(message, path=str(path), next_step=helps)


def _fps(path: Path, value: object) -> Fraction:
    rate = frame_rate(value)
    if rate is None:
        raise SourceError(
            f"{path} has fps {value!r}, which is not a frame rate.",
            path=str(path),
            next_step="Run the command again with --assume-fps and the frames per second.",
        )
    return rate


def _bad(path: Path, what: str) -> SourceError:
    return SourceError(f"{path} {what}.", path=str(path), next_step=_MEND_IT)


def _wrong_version(path: Path, raw: Mapping[str, Any]) -> SourceError:
    root = str(path.parent.parent)
    return unreadable(raw, root, str(path)) or SourceError(
        f"{root} is already {V3_VERSION}.",
        path=str(path),
        next_step="There is nothing to convert, not even with --force-conversion. If you meant "
        "another folder, give the v2.x dataset. --output DIR writes this dataset again, for "
        "example with other file sizes.",
    )


# Paths of an episode's files in a v2.x dataset, from the templates in ``info.json``.


LEGACY_META_FILES = (
    INFO_PATH,
    "meta/episodes.jsonl",
    "meta/episodes_stats.jsonl",
    TOTAL_STATS_PATH,
    "meta/tasks.jsonl",
)


def left_over_tables(root: Path) -> list[str]:
    """Return the tables of v2.x in the folder of a v3.0 dataset, where nothing reads them."""
    return [name for name in (EPISODES_PATH, STATS_PATH, TASKS_PATH) if (root / name).is_file()]


_CHUNK, _INDEX, _CAMERA = "episode_chunk", "episode_index", "video_key"
# A width in a template could otherwise ask for a name of gigabytes.
_NUMBER_FORMAT = re.compile(r"(0?[0-9]{1,2})?d?")
# Names of other writers for the same numbers and names.
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
    """A template that cannot be the name of a file."""


class SourcePaths:
    """Relative and absolute paths of episodes' files.

    A template is filled only by names, without attribute look-ups. A path that would leave the
    dataset is refused. Symbolic links belong to the user and are followed.

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
        self._cameras = info.camera_keys
        self._located = info.located
        self._owner = {path: owner for owner, path in info.located.items()}
        texts = (info.data_path, info.video_path or "")
        self.other_names = tuple(
            sorted({found["name"] for text in texts for found in _ALIASED.finditer(text)})
        )
        path = root / INFO_PATH
        self._data = _Template(path, "data_path", info.data_path, {_CHUNK, _INDEX})
        self._video = self._data
        if self._cameras:
            names = {_CHUNK, _INDEX, _CAMERA}
            self._video = _Template(path, "video_path", info.video_path or "", names)
            if len(self._cameras) > 1 and _CAMERA not in self._video.pattern.groupindex:
                raise PathTemplateError(
                    f"{path} has a video_path without {{{_CAMERA}}}: all cameras would share one "
                    "file.",
                    path=str(path),
                )
        for stream in (DATA_STREAM, *map(stream_of_camera, self._cameras)):
            _check_inside(path, self.relative(stream, 0))
        for located in self._owner:
            _check_inside(path, located)

    def relative(self, stream: str, episode_index: int) -> str:
        """Return the path of one slice's file, relative to the dataset."""
        if self._located and (stream, episode_index) in self._located:
            return self._located[stream, episode_index]
        return self.template_path(stream, episode_index)

    def template_path(self, stream: str, episode_index: int) -> str:
        """Return the path of a slice's file by its template, wherever the file is."""
        camera = camera_of(stream)
        template = self._data if camera is None else self._video
        chunk = episode_index // self._chunks_size
        return template.text.format(
            episode_chunk=chunk, episode_index=episode_index, video_key=camera
        )

    def absolute(self, stream: str, episode_indices: Iterable[int]) -> Iterator[str]:
        """Yield the path of each slice's file."""
        for index in episode_indices:
            yield f"{self.root}/{self.relative(stream, index)}"

    @property
    def v3_templates(self) -> tuple[str, str | None]:
        """The templates of data and video files with the placeholders of v3.0."""
        data, video = (in_v3_words(each.text) for each in (self._data, self._video))
        return data, video if self._cameras else None

    @property
    def are_usual(self) -> bool:
        """Whether all files of episodes are below ``data`` and ``videos``."""
        return self._data.text.startswith("data/") and (
            not self._cameras or self._video.text.startswith("videos/")
        )

    def slice_of(self, relative: str) -> tuple[str, int] | None:
        """Return the stream and the episode of a file by its name; None for other names.

        The camera may be undeclared, and the episode need not exist.
        """
        if relative in self._owner:
            return self._owner[relative]
        for template in (self._data, self._video) if self._cameras else (self._data,):
            if (found := template.pattern.fullmatch(relative)) is not None:
                stream, index = DATA_STREAM, int(found[_INDEX])
                if template is not self._data:
                    only = next(iter(self._cameras))
                    stream = stream_of_camera(found.groupdict().get(_CAMERA, only))
                if self.relative(stream, index) == relative:
                    return stream, index
        return None

    def misplaced(self, relative: str) -> tuple[str, int] | None:
        """Return the slice that a file may belong to if it is elsewhere than the template says.

        The name must be the template's, apart from the number of digits. The folder may be any. If
        there are several cameras, the folders of a clip must also contain the camera.
        """
        folder, _, name = relative.rpartition("/")
        found = self._data.name.fullmatch(name) if self._data.name else None
        if found:
            return DATA_STREAM, int(found[_INDEX])
        found = self._video.name.fullmatch(name) if self._cameras and self._video.name else None
        if not found:
            return None
        named = found.groupdict().get(_CAMERA)
        cameras = [key for key in self._cameras if key == named or f"/{key}/" in f"/{folder}/"]
        if not cameras and named is None and len(self._cameras) == 1:
            cameras = [*self._cameras]
        return (stream_of_camera(cameras[0]), int(found[_INDEX])) if len(cameras) == 1 else None


class _Template:
    """A template of the paths of a stream's files.

    Attributes:
        text: The template in plain form, with LeRobot's names of the placeholders.
        pattern: A pattern for its paths.
        name: A pattern for the names of its files; None if folders tell the episode.
    """

    def __init__(self, path: Path, key: str, text: str, allowed: set[str]) -> None:
        # Without ``.`` and empty folders, as a walk finds its names.
        plain = re.sub(r"(?<![^/])(?:\./+)+", "", re.sub(r"/{2,}", "/", text))
        self.text = _ALIASED.sub(lambda found: found["open"] + _ALIASES[found["name"]], plain)
        self.pattern = _pattern(path, key, self.text, allowed)
        name = self.text.rpartition("/")[2]
        self.name = _pattern(path, key, name, allowed) if f"{{{_INDEX}" in name else None


def in_v3_words(template: str) -> str:
    """Return a template of paths with the placeholders of v3.0."""
    words = {_CHUNK: "chunk_index", _INDEX: "file_index"}
    return re.sub(
        rf"(?<!\{{)((?:\{{\{{)*\{{)({_CHUNK}|{_INDEX})(?=[:!}}])",
        lambda found: found[1] + words[found[2]],
        template,
    )


def _pattern(path: Path, name: str, template: str, allowed: set[str]) -> re.Pattern[str]:
    """Check a template and return a pattern for the names that it makes."""
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
                raise ValueError(f"{{{field}}} has an unknown format")
            # A name that occurs twice is checked by filling the template again.
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
            next_step="Correct the path templates. They give paths relative to the folder of the "
            "dataset.",
        )


# The JSON-lines tables of v2.x: ``tasks``, ``episodes`` and ``episodes_stats``.


# Larger numbers of episodes or tasks are impossible, and would not fit in the tables.
_LARGEST_INDEX = 10**15
_BEGINS_WITH_INDEX = re.compile(rb'\{"episode_index": ?([0-9]{1,15}),')


def load_tasks(root: Path, repairs: Repairs = NO_REPAIRS) -> list[tuple[int, str]]:
    """Return (task_index, task) pairs as listed, in ascending order of the index.

    Repeated indices and gaps are findings of the scan.
    """
    if repairs.tasks_from is None:
        return _listed_tasks(root / TASKS_PATH)
    path = root / TASKS_PATH
    tasks = _listed_tasks(path) if path.exists() else []
    texts = dict.fromkeys(tasks_of_episodes(root).values())
    for _, text in tasks:
        texts.pop(text, None)
    first = tasks[-1][0] + 1 if tasks else 0
    return [*tasks, *((first + place, text) for place, text in enumerate(texts))]


def tasks_of_episodes(root: Path) -> dict[int, str]:
    """Return the task of each episode for which ``episodes.jsonl`` lists exactly one."""
    found = {}
    for record in EpisodeLines(root / EPISODES_PATH, validated=True):
        texts = record.get("tasks")
        if isinstance(texts, list) and len(texts) == 1:
            found[int(record["episode_index"])] = str(texts[0])
    return found


def _listed_tasks(path: Path) -> list[tuple[int, str]]:
    tasks: list[tuple[int, str]] = []
    with _open(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            record = parse_line(path, line, number)
            index, task = record.get("task_index"), record.get("task")
            if type(index) is not int or abs(index) > _LARGEST_INDEX or not isinstance(task, str):
                raise _malformed(path, number, "needs an integer task_index and a text task")
            tasks.append((index, task))
    tasks.sort(key=lambda entry: entry[0])
    return tasks


class EpisodeLines:
    """One JSON-lines table with a line for each episode, read on demand by episode.

    It keeps the byte offset of every line (8 bytes for each episode), not the lines: a table of
    gigabytes costs megabytes. Lines may be in any order, and blank lines are skipped.

    Args:
        path: ``episodes.jsonl`` or ``episodes_stats.jsonl``.
        validated: Whether the scan read every line and the table did not change since. Then a line
            that begins with its ``episode_index`` is parsed only when it is used.

    Attributes:
        episode_index: Indices in ascending order, shape (E,).

    Raises:
        UnreadableSourceError: The file is missing, or a line is not a JSON object with an
            ``episode_index``.
        SourceError: An episode is listed twice.
    """

    def __init__(self, path: Path, *, validated: bool = False) -> None:
        self.path = path
        indices, offsets = array("q"), array("q")
        offset = 0
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    begin = _BEGINS_WITH_INDEX.match(line) if validated else None
                    indices.append(int(begin[1]) if begin else _episode_index(path, number, line))
                    offsets.append(offset)
                offset += len(line)
        index = np.array(indices, np.int64)
        order = np.argsort(index, kind="stable")
        self.episode_index: IntArray = index[order]
        self._offsets: IntArray = np.array(offsets, np.int64)[order]
        repeated = self.episode_index[1:][np.diff(self.episode_index) == 0]
        if len(repeated):
            raise SourceError(
                f"{path} lists episode {int(repeated[0])} twice.",
                path=str(path),
                next_step="Correct the wrong line, or restore the table from another copy of "
                "the dataset.",
            )

    def __len__(self) -> int:
        return len(self.episode_index)

    def offsets_of(self, episode_index: IntArray) -> IntArray:
        """Return the byte at which the lines of some episodes begin; -1 for a missing line."""
        if not len(self):
            return np.full(len(episode_index), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.episode_index, episode_index), len(self) - 1)
        found = self.episode_index[places] == episode_index
        return np.where(found, self._offsets[places], -1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the lines in ascending order of the episode index."""
        with _open(self.path) as file:
            for line in _lines_at(file, self._offsets.tolist()):
                assert line is not None
                yield parse_line(self.path, line)


def read_lines(path: Path, offsets: Sequence[int]) -> list[bytes | None]:
    """Return the lines at some positions of a JSON-lines table; None for a position of -1."""
    with _open(path) as file:
        return list(_lines_at(file, offsets))


def _lines_at(file: BinaryIO, offsets: Sequence[int]) -> Iterator[bytes | None]:
    position = -1
    for offset in offsets:
        if offset < 0:
            yield None
            continue
        if offset != position:
            file.seek(offset)
        line = file.readline()
        position = offset + len(line)
        yield line


def _episode_index(path: Path, number: int, line: bytes) -> int:
    index = parse_line(path, line, number).get("episode_index")
    if type(index) is not int or not 0 <= index <= _LARGEST_INDEX:
        raise _malformed(path, number, "needs an integer episode_index of 0 or more")
    return index


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a table. A failed read raises the same error at any time."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is not a file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _unread(path, error, "Restore the table from another copy of the dataset.") from error


def parse_line(path: Path, line: bytes, number: int | None = None) -> dict[str, Any]:
    """Return the record of a line, whose number is found for an error."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        # Python's parser accepts values that strict JSON lacks, above all NaN in statistics.
        try:
            record = json.loads(line)
            # It also accepts half a surrogate pair, which no result could hold.
            json.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise _malformed(path, number or _number_of(path, line), _reason(error)) from error
    if not isinstance(record, dict):
        raise _malformed(path, number or _number_of(path, line), "is not a JSON object")
    return record


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "contains invalid text (half a surrogate pair)"
    if isinstance(error, json.JSONDecodeError):
        # Its own words would call every line the first.
        return f"is not JSON: {error.msg} (column {error.colno})"
    return f"is not JSON: {error}"


def _number_of(path: Path, line: bytes) -> int | None:
    """Return the number of the first line of a table with this content; None if it is gone."""
    with _open(path) as lines:
        return next((number for number, other in enumerate(lines, 1) if other == line), None)


def _malformed(path: Path, number: int | None, what: str) -> UnreadableSourceError:
    place = f" line {number}" if number is not None else ""
    return UnreadableSourceError(
        f"{path}{place} {what}.",
        path=str(path),
        next_step="Correct the line, or restore the table from another copy of the dataset.",
    )


_LONGEST_EPISODE = 2**31 - 1


def episode_length(path: Path, record: Mapping[str, Any], *, may_be_empty: bool = False) -> int:
    """Return an episode's number of frames."""
    frames = record.get("length")
    if type(frames) is not int or not 1 - may_be_empty <= frames <= _LONGEST_EPISODE:
        raise SourceError(
            f"{path} gives episode {record['episode_index']} the impossible length "
            f"{shown(frames)}.",
            path=str(path),
            next_step="Correct the line: length is the number of frames of the episode.",
        )
    return frames


# A v2.x dataset on disk.


class _EpisodePaths(Sequence[str]):
    """The paths of one stream's files, made when they are used: there are many."""

    def __init__(self, paths: SourcePaths, stream: str, index: IntArray) -> None:
        self._paths = paths
        self._stream = stream
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        return self._paths.relative(self._stream, int(self._index[at]))


class Dataset(AnyDataset):
    """A v2.x dataset, see `leconvert.dataset.formats.Dataset`."""

    @cached_property
    def declared(self) -> DatasetInfo:
        """The checked content of ``info.json``."""
        return load_info(self.root, self.reading)

    @property
    def version(self) -> str:
        """``v2.1``, or ``v2.0``, which has no statistics of episodes."""
        return self.declared.codebase_version

    @property
    def stored_info(self) -> Mapping[str, Any]:
        """``meta/info.json`` as stored."""
        return self.declared.raw

    @property
    def fps(self) -> Fraction:
        """Frames a second, the exact fraction of the decimal."""
        return self.declared.fps

    @property
    def stored_features(self) -> Mapping[str, Mapping[str, Any]]:
        """Declared features by key."""
        return self.declared.features

    @property
    def stored_streams(self) -> tuple[str, ...]:
        """``data``, and the stream of each camera, sorted."""
        return (DATA_STREAM, *map(stream_of_camera, self.declared.camera_keys))

    @cached_property
    def paths(self) -> SourcePaths:
        """The paths of its files."""
        return SourcePaths(self.root, self.declared)

    def tables(self) -> frozenset[str]:
        """Return the format's own files below ``meta/``, existing or not."""
        return frozenset(LEGACY_META_FILES)

    def slice_of(self, path: str) -> tuple[str, int] | None:
        """Return the stream and the episode of a file by its name; None for other names."""
        found = self.paths.slice_of(path)
        return found and (renamed_stream(found[0], self._new_names), found[1])

    def relative(self, stream: str, key: int) -> str:
        """Return the path of an episode's file; its key is the episode's index."""
        return self.paths.relative(self._stored_stream(stream), key)

    @cached_property
    def task_table(self) -> list[tuple[int, str]]:
        """Index and text of each task, in ascending order of the index."""
        return load_tasks(self.root, self.reading)

    @cached_property
    def table(self) -> EpisodeLines:
        """The lines of ``episodes.jsonl``, which are parsed when they are used."""
        return EpisodeLines(self.root / EPISODES_PATH, validated=True)

    @cached_property
    def episodes(self) -> Episodes:
        """Numbers and lengths. An episode that the repairs leave out may have no frame."""
        kept = self.reading.keeps(self.table.episode_index).tolist()
        each = (
            episode_length(self.table.path, line, may_be_empty=not is_kept)
            for line, is_kept in zip(self.table, kept, strict=True)
        )
        lengths = np.fromiter(each, np.int64, count=len(self.table))
        return Episodes(self.table.episode_index, lengths)

    @property
    def has_quantiles(self) -> bool:
        """Whether statistics of episodes have quantiles, by the first line."""
        path = self.root / STATS_PATH
        stats: object = None
        if self.has_episode_stats:
            # The code that reads the whole table reports its faults.
            with suppress(OSError, SourceError), path.open("rb") as file:
                stats = parse_line(path, file.readline()).get("stats")
        if not isinstance(stats, Mapping) or not stats:
            return False
        return all(isinstance(found, Mapping) and "q01" in found for found in stats.values())

    def slices(self, stream: str) -> Slices:
        """Return the file of each episode, which contains nothing else."""
        paths, index = self.paths, self.table.episode_index
        of_episodes = _EpisodePaths(paths, self._stored_stream(stream), index)
        number = np.arange(len(index), dtype=np.int64)
        return Slices(of_episodes, number, np.zeros(len(index), np.int64), whole=True)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of ``episodes.jsonl``, in ascending order of the episodes."""
        return iter(self.table)

    def stats_blocks(self) -> Iterator[StatsBlock]:
        """Yield the statistics of the episodes; None for values of another type."""
        path, index = self.root / STATS_PATH, self.table.episode_index
        if not self.has_episode_stats or not path.exists():
            yield from blocks_of_nothing(len(index))
            return
        offsets = EpisodeLines(path, validated=True).offsets_of(index).tolist()
        with _open(path) as file:
            lines = _lines_at(file, offsets)
            while block := list(islice(lines, BLOCK_EPISODES)):
                yield StatsBlock([_stats_in(path, line) for line in block]).renamed(self._new_names)


def _stats_in(path: Path, line: bytes | None) -> dict[str, Any] | None:
    stats = None if line is None else parse_line(path, line).get("stats")
    if stats is None:
        return {}
    return stats if isinstance(stats, dict) else None


# The output of a conversion to v2.1, as LeRobot 0.3.3 writes it.


WRITTEN_VERSION = "v2.1"
DATA_PATH_TEMPLATE = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH_TEMPLATE = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
# Keys of v3.0: in v2.1 no file holds several episodes.
_DROPPED_KEYS = frozenset({"data_files_size_in_mb", "video_files_size_in_mb"})
# Between these, Python writes fractions without an exponent.
_LEAST_PLAIN, _EXPONENT_FROM = 1e-4, 1e16
_json = json.JSONEncoder(ensure_ascii=False).encode


def converted_info(info: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """Return the v2.1 ``info.json`` for that of another dataset.

    The known keys come first, in LeRobot's order; unknown keys follow unchanged. ``info`` is not
    modified.
    """
    features = written_features(info["features"])
    for feature in features.values():
        feature.pop("fps", None)  # a key of v3.0
    cameras = sum(feature.get("dtype") == "video" for feature in features.values())
    known = {
        "codebase_version": WRITTEN_VERSION,
        "robot_type": info.get("robot_type"),
        "total_episodes": totals.episodes,
        "total_frames": totals.frames,
        "total_tasks": totals.tasks,
        "total_videos": totals.episodes * cameras,
        "total_chunks": -(-totals.episodes // FILES_PER_CHUNK),
        "chunks_size": FILES_PER_CHUNK,
        "fps": fps_number(totals.fps),
        "splits": written_splits(info, totals),
        "data_path": DATA_PATH_TEMPLATE,
        "video_path": VIDEO_PATH_TEMPLATE if cameras else None,
        "features": features,
    }
    return with_other_keys(known, info, _DROPPED_KEYS)


def episode_line(line: Mapping[str, Any], episode_index: int, length: int) -> dict[str, Any]:
    """Return an episode's line of ``episodes.jsonl`` from its record in another table."""
    own = {key: value for key, value in line.items() if key != "episode_index"}
    return {"episode_index": episode_index, **own, "length": length}


def write_tasks(root: str | os.PathLike[str], tasks: Iterable[tuple[int, str]]) -> None:
    """Write ``tasks.jsonl`` below ``root``."""
    lines = ({"task_index": int(index), "task": text} for index, text in sorted(tasks))
    with _new_table(Path(root) / TASKS_PATH) as add:
        add(_json(line) + "\n" for line in lines)


def write_episodes(
    root: str | os.PathLike[str],
    episodes: Iterable[tuple[IntArray, IntArray, Sequence[Mapping[str, Any]], StatsBlock]],
) -> list[str]:
    """Write ``episodes.jsonl`` and ``episodes_stats.jsonl`` below ``root``, a block at a time.

    Args:
        episodes: Indices and lengths, lines of another table, and statistics of some episodes.

    Returns:
        The files written, relative to ``root``.
    """
    with (
        _new_table(Path(root) / EPISODES_PATH) as add_episodes,
        _new_table(Path(root) / STATS_PATH) as add_stats,
    ):
        for index, length, lines, stats in episodes:
            rows = zip(lines, index.tolist(), length.tolist(), strict=True)
            add_episodes(_json(episode_line(*row)) + "\n" for row in rows)
            add_stats(_stats_lines(index, stats))
    return [EPISODES_PATH, STATS_PATH]


def _stats_lines(index: IntArray, stats: StatsBlock) -> Iterator[str]:
    """Yield the lines of statistics of some episodes, from the texts of whole columns."""
    columns = stats.columns
    if columns is None:
        for number, row in zip(index.tolist(), stats.rows, strict=True):
            yield _json({"episode_index": number, "stats": row or {}}) + "\n"
        return
    features = ", ".join(
        f"{_json(feature)}: {{{', '.join(f'{_json(name)}: \0' for name in own)}}}"
        for feature, own in columns.items()
    )
    line = f'{{"episode_index": \0, "stats": {{{features}}}}}\n'.replace("%", "%%")
    values = chain.from_iterable(own.values() for own in columns.values())
    texts = zip(*map(_row_texts, chain([index], values)), strict=True)
    yield from map(line.replace("\0", "%s").__mod__, texts)


def _row_texts(numbers: npt.NDArray[Any]) -> list[str]:
    """Return the JSON of each row of an array, as Python writes it.

    The fast writer of arrays and Python give integers and fractions of usual size the same digits:
    the fewest that are read as the same number. It writes other numbers with other exponents.
    """
    depth = numbers.ndim
    whole = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    opening, closing = "[" * (depth - 1), "]" * (depth - 1)
    inner = whole.replace(",", ", ")[depth:-depth]
    texts = [f"{opening}{text}{closing}" for text in inner.split(f"{closing}, {opening}")]
    if numbers.dtype.kind == "f":
        size = np.abs(numbers.reshape(len(numbers), -1))
        usual = ((size >= _LEAST_PLAIN) & (size < _EXPONENT_FROM)) | (size == 0)
        for row in np.flatnonzero(~usual.all(axis=1)).tolist():
            texts[row] = _json(numbers[row].tolist())
    return texts


@contextmanager
def _new_table(path: Path) -> Iterator[Callable[[Iterable[str]], object]]:
    with path.open("w", encoding="utf-8") as file:
        yield file.writelines
