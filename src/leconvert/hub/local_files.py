"""The files of a result on disk, and whether the Hub has the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from leconvert.hub.plan_push import CARD_PATH, RemoteFile
from leconvert.progress import Progress
from leconvert.workdir.trouble import storage_errors

__all__ = ["git_hash", "git_hash_of", "list_local", "same_as_remote", "sha256_of"]

_THREADS = 4


def list_local(root: Path) -> dict[str, int]:
    """Return the size of every file of a result; names that begin with a dot are left out.

    Such names are what a download, git or a file manager leaves: never part of a dataset.

    Raises:
        StorageError: The folder cannot be read.
    """
    found = {}
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, followlinks=True):
            subfolders[:] = sorted(
                name
                for name in subfolders
                if not name.startswith(".") and not _leads_back(folder, name)
            )
            for name in sorted(names):
                path = Path(folder, name)
                if not name.startswith("."):
                    found[path.relative_to(root).as_posix()] = path.stat().st_size
    return found


def _leads_back(folder: str, name: str) -> bool:
    """Tell whether a link leads to a folder that it lies in: its files are listed already."""
    path = os.path.join(folder, name)  # noqa: PTH118 - as os.walk gives it
    if not os.path.islink(path):  # noqa: PTH114
        return False
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(path))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_hash(content: bytes) -> str:
    """Return the hash that git gives to a file's content."""
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def git_hash_of(path: Path) -> str:
    """Return the hash that git gives to a small file's content."""
    with storage_errors(path):
        return git_hash(path.read_bytes())


def same_as_remote(
    root: Path,
    local: Mapping[str, int],
    remote: Mapping[str, RemoteFile],
    digests: dict[str, str],
    progress: Progress,
) -> set[str]:
    """Return the files whose content the repo has under the same name.

    Only files of the same size are read.

    Args:
        root: The result.
        local: Its files.
        remote: The repo's.
        digests: SHA-256 by path, of files that were read before; those read now are added.
        progress: Where to report.

    Raises:
        StorageError: A file cannot be read.
    """
    alike = [
        path
        for path, size in local.items()
        if path != CARD_PATH and path in remote and remote[path].size == size
    ]

    def is_same(path: str) -> bool:
        large = remote[path].sha256
        if large is None:
            return git_hash_of(root / path) == remote[path].blob
        if path not in digests:
            digests[path] = sha256_of(root / path)
        return digests[path] == large

    if not alike:
        return set()
    with (
        progress.stage("hash", sum(local[path] for path in alike), "B") as stage,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="compare") as pool,
    ):
        same = set()
        for path, equal in zip(alike, pool.map(is_same, alike), strict=True):
            stage.advance(local[path])
            if equal:
                same.add(path)
        return same
