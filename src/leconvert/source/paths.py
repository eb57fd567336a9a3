"""Where a v2.x dataset keeps an episode's files, from the templates in ``info.json``."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from leconvert.errors import SourceError
from leconvert.model import DATA_STREAM, camera_of
from leconvert.source.info import INFO_PATH, DatasetInfo

__all__ = ["LEGACY_META_FILES", "SourcePaths"]

LEGACY_META_FILES = (
    INFO_PATH,
    "meta/episodes.jsonl",
    "meta/episodes_stats.jsonl",
    "meta/stats.json",
    "meta/tasks.jsonl",
)
_DATA_FIELDS = {"episode_chunk", "episode_index"}
_VIDEO_FIELDS = {*_DATA_FIELDS, "video_key"}


class SourcePaths:
    """Relative and absolute paths of episodes' files.

    A template is filled by name only (no attribute look-ups), and a path that would leave the
    dataset is refused.

    Args:
        root: The dataset folder.
        info: Its ``info.json``.

    Raises:
        SourceError: A template has a placeholder that LeRobot does not define, or leads outside.
    """

    def __init__(self, root: Path, info: DatasetInfo) -> None:
        self.root = root
        self._chunks_size = info.chunks_size
        self._data = info.data_path
        self._video = info.video_path or ""
        _check_template(root, "data_path", self._data, _DATA_FIELDS)
        if info.camera_keys:
            _check_template(root, "video_path", self._video, _VIDEO_FIELDS)
        for stream_path in (
            self.relative(DATA_STREAM, 0),
            *(self.relative(f"videos/{key}", 0) for key in info.camera_keys),
        ):
            if PurePosixPath(stream_path).is_absolute() or ".." in PurePosixPath(stream_path).parts:
                raise SourceError(
                    f"{root / INFO_PATH} leads outside the dataset: {stream_path!r}.",
                    path=str(root / INFO_PATH),
                )

    def relative(self, stream: str, episode_index: int) -> str:
        """Return the path of one slice's file, relative to the dataset."""
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
            yield folder + fill(
                episode_chunk=index // chunks_size, episode_index=index, video_key=camera
            )


def _check_template(root: Path, name: str, template: str, allowed: set[str]) -> None:
    path = root / INFO_PATH
    try:
        fields = {
            field for _, field, _, _ in string.Formatter().parse(template) if field is not None
        }
    except ValueError as error:
        raise SourceError(f"{path} has a malformed {name}: {error}.", path=str(path)) from error
    unknown = sorted(fields - allowed)
    if unknown:
        raise SourceError(
            f"{path} has a {name} with the unknown placeholder {{{unknown[0]}}}.",
            path=str(path),
            next_step=f"Known placeholders are {', '.join(sorted(allowed))}.",
        )
    if "episode_index" not in fields:
        raise SourceError(
            f"{path} has a {name} without {{episode_index}}: all episodes would share one file.",
            path=str(path),
        )
    try:
        template.format(episode_chunk=0, episode_index=0, video_key="key")
    except (ValueError, TypeError) as error:
        raise SourceError(f"{path} has a malformed {name}: {error}.", path=str(path)) from error
