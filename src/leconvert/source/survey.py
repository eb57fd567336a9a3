"""What lies in a source's folder besides the files of its episodes."""

from __future__ import annotations

import errno
import os
from bisect import insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from leconvert import tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import camera_of
from leconvert.source.paths import LEGACY_META_FILES
from leconvert.source.seen import Remark, counted, shown

__all__ = ["Strays", "Survey", "extra_files", "files_below", "survey_folder"]

_IGNORED_FOLDERS = frozenset({".cache", ".git"})
_EPISODE_FOLDERS = ("data", "videos")
# These may themselves be links: a dataset's parts can lie on several disks.
_LINKED_FOLDERS = frozenset({"data", "meta", "videos"})
_EPISODE_PREFIXES = ("data/", "videos/")
_EXAMPLES = 3


@dataclass(slots=True)
class Strays:
    """Files that no episode has: how many, and the first few by name."""

    files: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        """Count one more."""
        self.files += 1
        # The first by name, whatever order a folder is listed in.
        if len(self.examples) < _EXAMPLES or path < self.examples[-1]:
            insort(self.examples, path)
            del self.examples[_EXAMPLES:]


@dataclass(slots=True)
class Survey:
    """What a walk through a source's folder found.

    Attributes:
        extra_files: Files that come along unchanged, relative paths, sorted.
        cameras: Cameras of which a file of an episode was met.
        tables: Parquet files among the strays.
        clips: A stray whose name has that of a declared camera in it, by camera.
        strays: Files left behind, by the folder at the top.
        undeclared: Files by camera that is not declared.
    """

    extra_files: tuple[str, ...] = ()
    cameras: set[str] = field(default_factory=set)
    tables: Strays = field(default_factory=Strays)
    clips: dict[str, str] = field(default_factory=dict)
    strays: dict[str, Strays] = field(default_factory=dict)
    undeclared: dict[str, Strays] = field(default_factory=dict)

    def remarks(self, hidden: Collection[str]) -> Iterator[Remark]:
        """Yield what is left behind.

        Args:
            hidden: Folders at the top whose strays another finding speaks of.
        """
        for folder, strays in sorted(self.strays.items()):
            if folder in hidden:
                continue
            where = f"below {folder}/ " if folder else ""
            said = f"{counted(strays.files, 'file')} {where}that no episode has: "
            said += f"{_listed(strays)}; left behind."
            yield Remark("stray-file", said, path=strays.examples[0])
        for camera, strays in sorted(self.undeclared.items()):
            said = f"{counted(strays.files, 'video')} of {shown(camera)}, which info.json does not "
            said += f"declare: {_listed(strays)}; left behind."
            yield Remark("undeclared-camera", said, path=strays.examples[0])

    def stray_near(self, stream: str) -> str | None:
        """Return a stray file that looks like one of a stream, None where there is none."""
        camera = camera_of(stream)
        if camera is None:
            # A template may also miss files that lie outside the usual folders.
            others = (path for path in self.extra_files if path.endswith(".parquet"))
            return next(iter(self.tables.examples), None) or next(others, None)
        return self.clips.get(camera)


def survey_folder(
    root: Path,
    slice_of: Callable[[str], tuple[str, int] | None],
    has_episode: Callable[[int], bool],
    cameras: Collection[str],
    *,
    num_known: int | None = None,
) -> Survey:
    """Walk through a source's folder; of links to folders only those in `_LINKED_FOLDERS` count.

    Args:
        root: The folder.
        slice_of: Says what a path stands for, as `SourcePaths.slice_of`.
        has_episode: Whether there is an episode of an index.
        cameras: Declared cameras.
        num_known: Files of episodes that are known to be there, if all of them are below ``data``
            and ``videos``. If there are no more files than these, nothing there is asked for its
            name.

    Raises:
        UnreadableSourceError: A folder cannot be listed.
    """
    survey = Survey()
    extra: list[str] = []
    ignored = _IGNORED_FOLDERS
    if num_known is not None:
        files = sum(1 for top in _EPISODE_FOLDERS for _ in _files(root, f"{top}/", ignored))
        if files == num_known:
            ignored = ignored | set(_EPISODE_FOLDERS)
    for path, is_file in _files(root, "", ignored):
        owner = slice_of(path) if is_file else None
        top = path.split("/", 1)[0] if "/" in path else ""
        if owner is not None:
            stream, index = owner
            camera = camera_of(stream)
            if camera is not None and camera not in cameras:
                survey.undeclared.setdefault(camera, Strays()).add(path)
                continue
            if has_episode(index):
                survey.cameras.add(camera or "")
                continue
        elif is_file and top not in _EPISODE_FOLDERS and path not in _EPISODE_FOLDERS:
            if not _is_replaced(path):
                extra.append(path)
            continue
        survey.strays.setdefault(top, Strays()).add(path)
        if path.endswith(".parquet"):
            survey.tables.add(path)
        for camera in cameras:
            if path.endswith(".mp4") and camera in path:
                survey.clips[camera] = min(path, survey.clips.get(camera, path))
    survey.extra_files = tuple(sorted(extra))
    return survey


def extra_files(root: Path, slice_of: Callable[[str], tuple[str, int] | None]) -> tuple[str, ...]:
    """Return what `Survey.extra_files` would be, without a look below ``data`` and ``videos``.

    Args:
        root: The source.
        slice_of: Says what a path stands for, as `SourcePaths.slice_of`.

    Raises:
        UnreadableSourceError: A folder cannot be listed.
    """
    return tuple(
        sorted(
            path
            for path, is_file in _files(root, "", _IGNORED_FOLDERS | set(_EPISODE_FOLDERS))
            if is_file
            and path not in _EPISODE_FOLDERS
            and slice_of(path) is None
            and not _is_replaced(path)
        )
    )


def files_below(root: Path) -> Iterator[tuple[str, bool]]:
    """Yield every name below a dataset's folder that is no folder, and whether it is a file.

    What tools keep beside a dataset (``.cache``, ``.git``) is passed over, and links to folders are
    not followed.

    Raises:
        UnreadableSourceError: A folder cannot be listed.
    """
    return _files(root, "", _IGNORED_FOLDERS)


def _files(root: Path, folder: str, ignored: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Yield every name below a folder that is no folder, in any order, and whether it is a file.

    Args:
        root: The source.
        folder: The folder, relative to it and with a slash at its end; empty for the source.
        ignored: Folders that are passed over.
    """
    folders = [folder]
    while folders:
        folder = folders.pop()
        place = f"{root}/{folder}"[:-1]
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    path = folder + entry.name
                    if entry.is_file(follow_symlinks=False):
                        yield path, True
                    elif entry.is_dir(follow_symlinks=False) or (
                        path in _LINKED_FOLDERS and _is_folder(entry)
                    ):
                        if path not in ignored:
                            folders.append(f"{path}/")
                    elif not (path.startswith(_EPISODE_PREFIXES) and _is_folder(entry)):
                        yield path, _is_file(entry)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                continue  # what is no folder, or no more, holds nothing
            raise UnreadableSourceError(
                f"{shown(place)} cannot be listed: {error.strerror}.",
                path=place,
                next_step="Check the disk or the network and run the same command again.",
            ) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one: files of episodes may lie elsewhere."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in circles
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_replaced(path: str) -> bool:
    return (
        path in LEGACY_META_FILES
        or path in {"meta/tasks.parquet", tables.REPAIRS_PATH}
        or path.startswith("meta/episodes/")
    )


def _listed(strays: Strays) -> str:
    more = ", ..." if strays.files > len(strays.examples) else ""
    return ", ".join(map(shown, strays.examples)) + more
