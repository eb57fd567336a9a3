"""Is the source still the one that was planned? Asked before and after every read."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import SourceChangedError
from leconvert.model import IntArray, StreamScan
from leconvert.source.info import load_info
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH, TASKS_PATH
from leconvert.source.paths import SourcePaths
from leconvert.workdir.opened import OpenedRun

__all__ = ["FileFacts", "changed_files", "check_source_unchanged", "meta_digest", "signed_inode"]

_CHANGES_SHOWN = 20
_CONVERTED_META_FILES = ("meta/info.json", EPISODES_PATH, STATS_PATH, TASKS_PATH)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells a file from its replacement: size, modification time, inode."""

    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileFacts:
        """Return the facts of a regular file; symbolic links are followed.

        Raises:
            FileNotFoundError: Nothing is there.
            OSError: The file system refuses, or something else than a file is there.
        """
        seen = os.stat(path)  # noqa: PTH116 - called for every file of a dataset
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(f"{path} is not a regular file")
        return cls(seen.st_size, seen.st_mtime_ns, seen.st_ino)


def signed_inode(inode: int) -> int:
    """Return an inode number as 64 signed bits, the way the scan table stores it."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def meta_digest(root: Path) -> str:
    """Return a SHA-256 over names and contents of the ``meta/`` tables that are converted."""
    digest = hashlib.sha256()
    for name in _CONVERTED_META_FILES:
        digest.update(name.encode() + b"\0")
        with (root / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def changed_files(
    root: Path,
    paths: SourcePaths,
    stream: StreamScan,
    episode_index: IntArray,
    first: int = 0,
    stop: int | None = None,
) -> list[str]:
    """Say which source files differ from the scan.

    Args:
        root: The dataset folder.
        paths: Its file names.
        stream: The scan of one stream; arrays cover positions ``first`` to ``stop``.
        episode_index: Indices of the same positions.
        first: First position to look at, within the arrays.
        stop: Position after the last; the default is all.

    Returns:
        One line a file that is gone, replaced, or of another size or time.
    """
    changes: list[str] = []
    stop = len(episode_index) if stop is None else stop
    rows = zip(
        episode_index[first:stop].tolist(),
        stream.size_bytes[first:stop].tolist(),
        stream.mtime_ns[first:stop].tolist(),
        stream.inode[first:stop].tolist(),
        strict=True,
    )
    for index, size_bytes, mtime_ns, inode in rows:
        relative = paths.relative(stream.stream, index)
        try:
            now = FileFacts.of(root / relative)
        except OSError as error:
            changes.append(f"{relative}: {error.strerror or error}")
            continue
        if (now.size_bytes, now.mtime_ns, signed_inode(now.inode)) != (size_bytes, mtime_ns, inode):
            changes.append(
                f"{relative}: {size_bytes} bytes when planned, {now.size_bytes} now"
                if now.size_bytes != size_bytes
                else f"{relative}: replaced or touched since it was planned"
            )
    return changes


def check_source_unchanged(run: OpenedRun) -> None:
    """Compare every source file with the plan: size, modification time, inode; tables by content.

    Raises:
        SourceChangedError: ``details`` says what differs.
    """
    manifest = run.manifest
    root = Path(manifest.source)
    changes: list[str] = []
    try:
        if meta_digest(root) != manifest.meta_digest:
            changes.append("meta/: the tables differ from those that were planned")
    except OSError as error:
        changes.append(f"{error.filename}: {error.strerror}")
    else:
        paths = SourcePaths(root, load_info(root))
        for layout in manifest.streams:
            scan, episode_index = run.scan.stream(layout.stream)
            changes += changed_files(root, paths, scan, episode_index)
    if changes:
        shown = changes[:_CHANGES_SHOWN]
        if len(changes) > len(shown):
            shown.append(f"... and {len(changes) - len(shown)} more")
        raise SourceChangedError(
            f"{root} changed after it was planned, in {len(changes)} places.",
            path=str(root),
            details=shown,
            next_step="If the new state is the right one, convert it anew with --restart.",
        )
