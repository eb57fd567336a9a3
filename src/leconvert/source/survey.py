"""What lies in a source's folder besides the files of its episodes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from leconvert import tables
from leconvert.dataset_files import EPISODE_FOLDERS, Links, files_below
from leconvert.model import camera_of
from leconvert.source.paths import LEGACY_META_FILES
from leconvert.source.seen import Remark, counted, shown

__all__ = ["Strays", "Survey", "extra_files", "survey_folder"]

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
        links: Links left behind, as what they lead to is not in the folder.
        undeclared: Files by camera that is not declared.
        misplaced: Strays that may be an episode's file, by stream and episode.
    """

    extra_files: tuple[str, ...] = ()
    cameras: set[str] = field(default_factory=set)
    tables: Strays = field(default_factory=Strays)
    clips: dict[str, str] = field(default_factory=dict)
    strays: dict[str, Strays] = field(default_factory=dict)
    links: Strays = field(default_factory=Strays)
    undeclared: dict[str, Strays] = field(default_factory=dict)
    misplaced: dict[tuple[str, int], list[str]] = field(default_factory=dict)

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
        if self.links.files:
            said = f"{counted(self.links.files, 'link')} out of the dataset: {_listed(self.links)}"
            said += "; left behind."
            yield Remark("stray-file", said, path=self.links.examples[0])
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
    misplaced: Callable[[str], tuple[str, int] | None] = lambda _: None,
    num_known: int | None = None,
) -> Survey:
    """Walk through a source's folder, as `files_below` does.

    Args:
        root: The folder.
        slice_of: Says what a path stands for, as `SourcePaths.slice_of`.
        has_episode: Whether there is an episode of an index.
        cameras: Declared cameras.
        misplaced: Says what a stray may be, as `SourcePaths.misplaced`.
        num_known: Files of episodes that are known to be there, if all of them are below ``data``
            and ``videos``. If there are no more files than these, nothing there is asked for its
            name.

    Raises:
        UnreadableSourceError: A folder cannot be listed.
    """
    survey = Survey()
    extra: list[str] = []
    links = Links(root, with_parts=True)
    passed_over: tuple[str, ...] = ()
    if num_known is not None:
        files = sum(1 for top in EPISODE_FOLDERS for _ in files_below(root, f"{top}/"))
        if files == num_known:
            passed_over = EPISODE_FOLDERS
    for path, is_file in files_below(root, passed_over=passed_over):
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
        elif top not in EPISODE_FOLDERS and path not in EPISODE_FOLDERS:
            if is_file and _is_replaced(path):
                continue
            if links.target(path) is None:
                survey.links.add(path)
                continue
            if is_file:
                extra.append(path)
                continue
        survey.strays.setdefault(top, Strays()).add(path)
        if owner is None and is_file and (owner := misplaced(path)) and has_episode(owner[1]):
            survey.misplaced.setdefault(owner, []).append(path)
        if path.endswith(".parquet"):
            survey.tables.add(path)
        for camera in cameras:
            if path.endswith(".mp4") and camera in path:
                survey.clips[camera] = min(path, survey.clips.get(camera, path))
    survey.extra_files = tuple(sorted(extra))
    for found in survey.misplaced.values():
        found.sort()
    return survey


def extra_files(root: Path, slice_of: Callable[[str], tuple[str, int] | None]) -> tuple[str, ...]:
    """Return what `Survey.extra_files` would be, without a look below ``data`` and ``videos``.

    Args:
        root: The source.
        slice_of: Says what a path stands for, as `SourcePaths.slice_of`.

    Raises:
        UnreadableSourceError: A folder cannot be listed.
    """
    links = Links(root, with_parts=True)
    return tuple(
        sorted(
            path
            for path, is_file in files_below(root, passed_over=EPISODE_FOLDERS)
            if is_file
            and slice_of(path) is None
            and not _is_replaced(path)
            and links.target(path) is not None
        )
    )


def _is_replaced(path: str) -> bool:
    return (
        path in LEGACY_META_FILES
        or path in {"meta/tasks.parquet", tables.REPAIRS_PATH}
        or path.startswith("meta/episodes/")
    )


def _listed(strays: Strays) -> str:
    more = ", ..." if strays.files > len(strays.examples) else ""
    return ", ".join(map(shown, strays.examples)) + more
