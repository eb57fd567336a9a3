"""The files of a result on disk, and whether the Hub has the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from leconvert.hub.plan_push import CARD_PATH, RemoteFile
from leconvert.progress import Progress
from leconvert.workdir.trouble import storage_errors

__all__ = ["git_hash", "git_hash_of", "hash_files", "same_as_remote"]

_THREADS = 4


def _sha256_of(path: Path) -> str:
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


def hash_files(
    root: Path, sizes: Mapping[str, int], digests: dict[str, str], progress: Progress
) -> None:
    """Read files that were not read before.

    Args:
        root: The folder.
        sizes: Bytes by path.
        digests: SHA-256 by path, of files that were read before; those read now are added.
        progress: Where to report.

    Raises:
        StorageError: A file cannot be read.
    """
    unread = [path for path in sizes if path not in digests]
    if not unread:
        return
    with (
        progress.stage("hash", sum(sizes[path] for path in unread), "B") as stage,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="hash") as pool,
    ):
        places = [root / path for path in unread]
        for path, digest in zip(unread, pool.map(_sha256_of, places), strict=True):
            digests[path] = digest
            stage.advance(sizes[path])


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
    alike = {
        path: remote[path]
        for path, size in local.items()
        if path != CARD_PATH and path in remote and remote[path].size == size
    }
    large = {path: local[path] for path, there in alike.items() if there.sha256 is not None}
    hash_files(root, large, digests, progress)
    return {
        path
        for path, there in alike.items()
        if (
            digests[path] == there.sha256
            if path in large
            else git_hash_of(root / path) == there.blob
        )
    }
