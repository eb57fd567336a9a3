"""A source's folder: its files other than those of episodes, and whether it changed.

Workers ask before every read, and the packer after the last one, whether the source is still the
planned one.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.dataset.files import EPISODE_FOLDERS, Links, dataset_with_meta, files_below
from leconvert.dataset.findings import Observation
from leconvert.dataset.formats import PROVENANCE_PATH, Dataset, Sources, open_sources, v3
from leconvert.dataset.formats.v2 import EPISODES_PATH, LEGACY_META_FILES, STATS_PATH, TASKS_PATH
from leconvert.model.values import FileTable, Source, camera_of
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import SourceChangedError, UnreadableSourceError
from leconvert.support.parallel import THREADS_THAT_WAIT, Latency
from leconvert.support.storage_errors import denied, storage_errors
from leconvert.support.text import count, first_few, shown
from leconvert.support.values import dataclass
from leconvert.workdir.fs import folder_anew, forget_old_names, status_now
from leconvert.workdir.swap import META

if TYPE_CHECKING:
    from leconvert.workdir.run import OpenedRun

_EXAMPLES = 3

_CHANGES_SHOWN = 20
_FILES_AT_A_TIME = 256
# Files for each thread at a time. To hand one over costs more than to look at it.
_FILES_A_THREAD = _FILES_AT_A_TIME // THREADS_THAT_WAIT
# In these cases there is no table: nothing is there, a parent is a file, it is a folder, or it is a
# circular link.
_NO_TABLE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_CONVERTED_META_FILES = ("meta/info.json", EPISODES_PATH, STATS_PATH, TASKS_PATH)


@dataclass(slots=True)
class Strays:
    """Files that belong to no episode: their number, and the first few by name."""

    files: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        """Count a file."""
        self.files += 1
        # The first by name, whatever the order in the folder.
        if len(self.examples) < _EXAMPLES or path < self.examples[-1]:
            insort(self.examples, path)
            del self.examples[_EXAMPLES:]


@dataclass(slots=True)
class SourceFiles:
    """The files that a walk through a source's folder found.

    Attributes:
        extra_files: Files that are copied unchanged, relative paths, sorted.
        cameras: Cameras with a file of an episode.
        tables: Parquet files among the strays.
        clips: For each declared camera, a file of no episode with the camera's name in its name.
        strays: Files left behind, by the topmost folder.
        links: Links left behind, since they lead out of the folder.
        undeclared: Files by undeclared camera.
        misplaced: Files of no episode that may belong to one, by stream and episode.
    """

    extra_files: tuple[str, ...] = ()
    cameras: set[str] = field(default_factory=set)
    tables: Strays = field(default_factory=Strays)
    clips: dict[str, str] = field(default_factory=dict)
    strays: dict[str, Strays] = field(default_factory=dict)
    links: Strays = field(default_factory=Strays)
    undeclared: dict[str, Strays] = field(default_factory=dict)
    misplaced: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def remarks(self, hidden: Collection[str]) -> Iterator[Observation]:
        """Yield an observation about everything that is left behind."""
        for folder, strays in sorted(self.strays.items()):
            if folder in hidden:
                continue
            where = f"below {folder}/ " if folder else ""
            said = (
                f"Files {where}that belong to no episode are left behind "
                f"({strays.files:,}): {_listed(strays)}."
            )
            yield Observation("stray-file", said, path=strays.examples[0])
        if self.links.files:
            said = (
                f"Links out of the dataset are left behind ({self.links.files:,}): "
                f"{_listed(self.links)}."
            )
            yield Observation("stray-file", said, path=self.links.examples[0])
        for camera, strays in sorted(self.undeclared.items()):
            said = (
                f"Videos of {shown(camera)} are left behind ({strays.files:,}), since info.json "
                f"does not declare this camera: {_listed(strays)}."
            )
            yield Observation("undeclared-camera", said, path=strays.examples[0])

    def stray_near(self, stream: str) -> str | None:
        """Return a stray file that looks like one of a stream; None if there is none."""
        camera = camera_of(stream)
        if camera is None:
            # A template may also miss files outside the usual folders.
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
    passed_over: Collection[str] = (),
) -> SourceFiles:
    """Walk through a source's folder, as `files_below` does."""
    survey = SourceFiles()
    extra: list[str] = []
    links = Links(root, with_parts=True)
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
        is_beside = owner is None and top not in EPISODE_FOLDERS and path not in EPISODE_FOLDERS
        if is_beside:
            if is_file and _is_replaced(path):
                continue
            if links.target(path) is None:
                survey.links.add(path)
                continue
        if is_beside and is_file:
            extra.append(path)
        else:
            survey.strays.setdefault(top, Strays()).add(path)
        if owner is None and is_file and (owner := misplaced(path)) and has_episode(owner[1]):
            survey.misplaced.setdefault(owner, []).append(path)
        if path.endswith(".parquet") and not is_beside:
            survey.tables.add(path)
        for camera in cameras:
            if path.endswith(".mp4") and camera in path:
                survey.clips[camera] = min(path, survey.clips.get(camera, path))
    survey.extra_files = tuple(sorted(extra))
    for path in survey.extra_files:
        if not os.access(root / path, os.R_OK):
            message, helps = denied(root / path)
            raise UnreadableSourceError(message, path=str(root / path), next_step=helps)
    for found in survey.misplaced.values():
        found.sort()
    return survey


def files_along(sources: Sequence[Source]) -> dict[str, Source]:
    """Return the files that are copied, each with its source: the first one with that name."""
    along: dict[str, Source] = {}
    for source in sources:
        for path in source.extra_files:
            along.setdefault(path, source)
    return along


def extra_files(root: Path, slice_of: Callable[[str], tuple[str, int] | None]) -> tuple[str, ...]:
    """Return `SourceFiles.extra_files`, without a look below ``data`` and ``videos``."""
    survey = survey_folder(root, slice_of, lambda _: True, (), passed_over=EPISODE_FOLDERS)
    return survey.extra_files


def _is_replaced(path: str) -> bool:
    return (
        path in LEGACY_META_FILES
        or path in {"meta/tasks.parquet", v3.REPAIRS_PATH, PROVENANCE_PATH}
        or path.startswith("meta/episodes/")
    )


def _listed(strays: Strays) -> str:
    more = ", ..." if strays.files > len(strays.examples) else ""
    return ", ".join(map(shown, strays.examples)) + more


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts that tell a file from its replacement and from its own later state.

    Attributes:
        size_bytes: Its size.
        mtime_ns: Its modification time, which anybody may set (`cp -p`, `rsync -t`).
        inode: Its inode; 0 if the file system may give the file another one.
        ctime_ns: The time of its last change of any kind, which nobody can set. A new or a removed
            name changes it, too. So it is compared only within one process, and a plan does not
            have it.
    """

    size_bytes: int
    mtime_ns: int
    inode: int
    ctime_ns: int = 0

    @classmethod
    def of(
        cls, path: str | os.PathLike[str], fleeting_inodes: frozenset[int] = frozenset()
    ) -> FileFacts:
        """Return the present facts of a regular file. Symbolic links are followed."""
        seen = status_now(path)
        inode = _lasting_inode(path, seen, fleeting_inodes)
        return cls(seen.st_size, seen.st_mtime_ns, inode, seen.st_ctime_ns)


def facts_of_opened(
    path: str, seen: os.stat_result, fleeting_inodes: frozenset[int]
) -> tuple[int, int, int]:
    """Return the facts of a regular file from its status, as the scan table stores them."""
    inode = signed_inode(_lasting_inode(path, seen, fleeting_inodes))
    return seen.st_size, seen.st_mtime_ns, inode


def _lasting_inode(
    path: str | os.PathLike[str], seen: os.stat_result, fleeting_inodes: frozenset[int]
) -> int:
    """Return the inode of a regular file, or 0 if it may get another; raise for any other file."""
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(f"{path} is not a regular file")
    return 0 if seen.st_dev in fleeting_inodes else seen.st_ino


def signed_inode(inode: int) -> int:
    """Return an inode number as 64 signed bits, as the scan table stores it."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def meta_digest(root: Path, codebase_version: str) -> str:
    """Return a SHA-256 over names and contents of the ``meta/`` tables that are converted.

    A missing table counts as missing: v2.0 has no statistics of episodes.
    """
    digest = hashlib.sha256()
    names: tuple[str, ...] = _CONVERTED_META_FILES
    if codebase_version == V3_VERSION:
        names = (v3.INFO_PATH, v3.TASKS_PATH, *v3.EpisodesReader(root).paths)
        if not (root / v3.TASKS_PATH).exists():  # the tasks may be derived from those of v2.x
            names = (*names, TASKS_PATH)
    forget_old_names(str(root / name) for name in names)
    for name in names:
        digest.update(name.encode() + b"\0")
        try:
            with (root / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            if error.errno not in _NO_TABLE:
                raise
            digest.update(b"absent")
    return digest.hexdigest()


def changed_files(
    dataset: Dataset, stream: str, files: FileTable, paths: Sequence[str] | None = None
) -> list[str]:
    """Return which source files of a stream differ from the scan.

    Args:
        paths: Paths of the files, if they are known.

    Returns:
        A line for each file that is missing, replaced, or of another size or time.
    """
    changes: list[str] = []
    with ExitStack() as open_pool:
        pool: ThreadPoolExecutor | None = None
        for first in range(0, len(files), _FILES_AT_A_TIME):
            block = slice(first, first + _FILES_AT_A_TIME)
            keys = files.key[block].tolist()
            planned = list(
                zip(
                    dataset.absolute(stream, keys) if paths is None else paths[block],
                    files.size_bytes[block].tolist(),
                    files.mtime_ns[block].tolist(),
                    files.inode[block].tolist(),
                    strict=True,
                )
            )
            if len(files) <= _FILES_AT_A_TIME:
                found = _changes(planned)
            elif pool is None:
                with Latency() as latency:
                    found = _changes(planned)
                if latency.dominates:
                    pool = open_pool.enter_context(ThreadPoolExecutor(THREADS_THAT_WAIT))
            else:
                parts = itertools.batched(planned, _FILES_A_THREAD)
                found = [change for part in pool.map(_changes, parts) for change in part]
            changes += [
                f"{dataset.relative(stream, key)}: {change}"
                for key, change in zip(keys, found, strict=True)
                if change is not None
            ]
    return changes


def _changes(files: Iterable[tuple[str, int, int, int]]) -> list[str | None]:
    """Return how files differ from their planned paths, sizes, modification times and inodes."""
    found: list[str | None] = []
    for folder, among in itertools.groupby(files, lambda file: file[0].rpartition("/")[0]):
        begin = len(folder) + 1
        with folder_anew(folder) as descriptor:
            for file in among:
                path, size_bytes, mtime_ns, inode = file
                name = path if descriptor is None else path[begin:]
                try:
                    now = status_now(name, descriptor)
                except OSError:
                    found.append(_change(*file))
                    continue
                is_same = now.st_size == size_bytes and now.st_mtime_ns == mtime_ns
                if is_same and (now.st_ino == inode or not inode):
                    found.append(None)
                else:
                    found.append(_change(*file))
    return found


def _change(path: str, size_bytes: int, mtime_ns: int, inode: int) -> str | None:
    try:
        with storage_errors(path):
            now = status_now(path)
    except OSError as error:
        return error.strerror or str(error)
    if now.st_size != size_bytes:
        return f"{size_bytes} bytes in the plan, {now.st_size} now"
    if now.st_mtime_ns != mtime_ns or inode not in {0, signed_inode(now.st_ino)}:
        return "replaced or changed after the plan"
    return None


def check_source_unchanged(run: OpenedRun, root: Path | None = None) -> None:
    """Compare every source file with the plan: size, modification time, inode; tables by content.

    The inode counts only if the file system keeps it. The content of other files is
    compared with the result, so only their names are compared here.

    Args:
        root: The present folder of the only source, if not the planned one. For an overlay that
            exchanges only ``meta/``, it is the folder of this ``meta/``.
    """
    with _sources_at(run, root) as (planned, sources):
        _check_tables(planned, sources)
        changes: dict[int, list[str]] = {}
        for layout in run.manifest.streams:
            for number, files in run.scan.files(layout.stream).by_source():
                found = changed_files(sources[number].dataset, layout.stream, files)
                changes.setdefault(number, []).extend(found)
        for number, found in sorted(changes.items()):
            if found:
                raise source_changed(root or sources[number].root, found)


def check_tables_unchanged(run: OpenedRun, root: Path | None = None) -> None:
    """Compare the tables under ``meta/`` with the plan by content, other files by name."""
    with _sources_at(run, root) as (planned, sources):
        _check_tables(planned, sources)


@contextmanager
def _sources_at(run: OpenedRun, root: Path | None) -> Iterator[tuple[Sequence[Source], Sources]]:
    """Yield each planned source, and the same source as it can be read now."""
    planned = run.manifest.sources
    if root is None or not run.manifest.is_overlay_in_place:
        yield planned, open_sources(planned, root)
        return
    (source,) = planned
    in_meta = [path for path in source.extra_files if path.startswith(f"{META}/")]
    with dataset_with_meta(Path(source.root), root) as view:
        yield [replace(source, extra_files=in_meta)], open_sources(planned, view)


def _check_tables(planned: Sequence[Source], sources: Sources) -> None:
    for source, view in zip(planned, sources, strict=True):
        changes = _changed_tables(source, view.dataset)
        if changes:
            raise source_changed(view.root, changes)


def _changed_tables(source: Source, dataset: Dataset) -> list[str]:
    root = dataset.root
    try:
        with storage_errors(root):
            if meta_digest(root, source.codebase_version) != source.meta_digest:
                return ["meta/: the tables differ from the plan"]
    except OSError as error:
        return [f"{error.filename}: {error.strerror}"]
    planned = set(source.extra_files)
    now = set(extra_files(root, dataset.slice_of))
    return [
        f"{path}: {'missing now' if path in planned else 'new since the plan'}"
        for path in sorted(planned ^ now)
    ]


def source_changed(root: Path, changes: list[str]) -> SourceChangedError:
    """Return the error that lists the changes in a source since the plan."""
    return SourceChangedError(
        f"{root} changed after the conversion was planned, in {count(len(changes), 'place')}.",
        path=str(root),
        details=first_few(changes, _CHANGES_SHOWN),
        next_step="If the new state is right, run the command again with --restart.",
    )
