"""Is the source still the one that was planned? Asked before and after every read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.errors import SourceChangedError
from leconvert.latency import THREADS_THAT_WAIT, Latency
from leconvert.model import IntArray, StreamScan
from leconvert.source.info import EPISODES_PATH, STATS_PATH, TASKS_PATH, load_info
from leconvert.source.paths import SourcePaths
from leconvert.source.survey import extra_files
from leconvert.text import count
from leconvert.workdir.durable import storage_errors
from leconvert.workdir.filesystem import forget_old_names, status_now

if TYPE_CHECKING:
    from leconvert.workdir.opened import OpenedRun

__all__ = [
    "FileFacts",
    "changed_files",
    "check_source_unchanged",
    "check_tables_unchanged",
    "meta_digest",
    "signed_inode",
    "source_changed",
]

_CHANGES_SHOWN = 20
_FILES_AT_A_TIME = 256
# Nothing, something below a file, a folder, or a link that leads to itself is no table.
_NO_TABLE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_CONVERTED_META_FILES = ("meta/info.json", EPISODES_PATH, STATS_PATH, TASKS_PATH)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells a file from its replacement: size, modification time, inode.

    An inode of 0 tells nothing: the file system gives the file another one at times.
    """

    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(
        cls, path: str | os.PathLike[str], fleeting_inodes: frozenset[int] = frozenset()
    ) -> FileFacts:
        """Return the facts of a regular file as they are now; symbolic links are followed.

        Args:
            path: The file.
            fleeting_inodes: Devices whose files have no lasting inode numbers.

        Raises:
            FileNotFoundError: Nothing is there.
            OSError: The file system refuses, or something else than a file is there.
        """
        seen = status_now(path)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(f"{path} is not a regular file")
        inode = 0 if seen.st_dev in fleeting_inodes else seen.st_ino
        return cls(seen.st_size, seen.st_mtime_ns, inode)


def signed_inode(inode: int) -> int:
    """Return an inode number as 64 signed bits, the way the scan table stores it."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def meta_digest(root: Path) -> str:
    """Return a SHA-256 over names and contents of the ``meta/`` tables that are converted.

    A table that is not there counts as such: v2.0 has no statistics of episodes.
    """
    digest = hashlib.sha256()
    forget_old_names(str(root / name) for name in _CONVERTED_META_FILES)
    for name in _CONVERTED_META_FILES:
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
    paths: SourcePaths,
    stream: StreamScan,
    episode_index: IntArray,
) -> list[str]:
    """Say which source files differ from the scan.

    Args:
        paths: The dataset's file names.
        stream: The scan of one stream, or of a range of positions in it.
        episode_index: Indices of the same positions.

    Returns:
        One line a file that is gone, replaced, or of another size or time.

    Raises:
        StorageError: The disk or the server fails, so that nobody can tell.
    """
    changes: list[str] = []
    with ExitStack() as open_pool:
        pool: ThreadPoolExecutor | None = None
        for first in range(0, len(episode_index), _FILES_AT_A_TIME):
            block = slice(first, first + _FILES_AT_A_TIME)
            indices = episode_index[block].tolist()
            files = list(
                zip(
                    paths.absolute(stream.stream, indices),
                    stream.size_bytes[block].tolist(),
                    stream.mtime_ns[block].tolist(),
                    stream.inode[block].tolist(),
                    strict=True,
                )
            )
            forget_old_names(file[0] for file in files)
            if pool is None:
                with Latency() as latency:
                    found = [_change(file) for file in files]
                if latency.dominates and len(episode_index) > block.stop:
                    pool = open_pool.enter_context(ThreadPoolExecutor(THREADS_THAT_WAIT))
            else:
                found = list(pool.map(_change, files))
            changes += [
                f"{paths.relative(stream.stream, index)}: {change}"
                for index, change in zip(indices, found, strict=True)
                if change is not None
            ]
    return changes


def _change(file: tuple[str, int, int, int]) -> str | None:
    """Say how a file differs from its path, size, modification time and inode when planned."""
    path, size_bytes, mtime_ns, inode = file
    try:
        with storage_errors(path):
            now = status_now(path)
    except OSError as error:
        return error.strerror or str(error)
    if now.st_size != size_bytes:
        return f"{size_bytes} bytes when planned, {now.st_size} now"
    if now.st_mtime_ns != mtime_ns or inode not in {0, signed_inode(now.st_ino)}:
        return "replaced or touched since it was planned"
    return None


def check_source_unchanged(run: OpenedRun, root: Path | None = None) -> None:
    """Compare every source file with the plan: size, modification time, inode; tables by content.

    The inode counts where the file system keeps it. Of other files only the names count: what is in
    them is compared with the result.

    Args:
        run: The run.
        root: Where the source lies now; None for where it was when it was planned.

    Raises:
        SourceChangedError: ``details`` says what differs.
    """
    manifest = run.manifest
    root = root or Path(manifest.source)
    changes = _changed_tables(run, root)
    if not changes:
        paths = SourcePaths(root, load_info(root, manifest.repairs))
        for layout in manifest.streams:
            scan, episode_index = run.scan.stream(layout.stream)
            changes += changed_files(paths, scan, episode_index)
    if changes:
        raise source_changed(root, changes)


def check_tables_unchanged(run: OpenedRun, root: Path | None = None) -> None:
    """Compare the source's tables under ``meta/`` with the plan, by content; other files by name.

    Args:
        run: The run.
        root: Where the source lies now, as for `check_source_unchanged`.

    Raises:
        SourceChangedError: They differ.
    """
    root = root or Path(run.manifest.source)
    changes = _changed_tables(run, root)
    if changes:
        raise source_changed(root, changes)


def _changed_tables(run: OpenedRun, root: Path) -> list[str]:
    try:
        with storage_errors(root):
            if meta_digest(root) != run.manifest.meta_digest:
                return ["meta/: the tables differ from those that were planned"]
    except OSError as error:
        return [f"{error.filename}: {error.strerror}"]
    planned = set(run.manifest.extra_files)
    paths = SourcePaths(root, load_info(root, run.manifest.repairs))
    now = set(extra_files(root, paths.slice_of))
    return [
        f"{path}: {'no longer there' if path in planned else 'not there when planned'}"
        for path in sorted(planned ^ now)
    ]


def source_changed(root: Path, changes: list[str]) -> SourceChangedError:
    """Return the error that lists what changed in a source after it was planned."""
    shown = changes[:_CHANGES_SHOWN]
    if len(changes) > len(shown):
        shown.append(f"... and {len(changes) - len(shown)} more")
    return SourceChangedError(
        f"{root} changed after it was planned, in {count(len(changes), 'place')}.",
        path=str(root),
        details=shown,
        next_step="If the new state is the right one, convert it anew with --restart.",
    )
