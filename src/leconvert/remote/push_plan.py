"""What a push has to do, decided from two listings. Nothing here asks the Hub or a disk."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from leconvert.dataset.formats.v2 import LEGACY_META_FILES
from leconvert.dataset.formats.v3 import (
    DATA_PATH_TEMPLATE,
    EPISODES_DIR,
    INFO_PATH,
    REPAIRS_PATH,
    STATS_PATH,
    TASKS_PATH,
    VIDEO_PATH_TEMPLATE,
)
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.support.progress import Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.transfer.store import RemoteFile

# Which files of a repo belong to the LeRobot dataset in it, and which are somebody's own.


_META_FILES = frozenset({*LEGACY_META_FILES, INFO_PATH, REPAIRS_PATH, STATS_PATH, TASKS_PATH})
_EPISODES = re.compile(re.escape(EPISODES_DIR) + r"/chunk-[0-9]+/file-[0-9]+\.parquet")


def version_of(info: Mapping[str, Any]) -> str:
    """Return the ``codebase_version`` of an info.json, as far as it is a text."""
    version = info.get("codebase_version")
    return version if isinstance(version, str) else "of no version"


def _features(info: Mapping[str, Any]) -> dict[str, str]:
    features = info.get("features")
    if not isinstance(features, Mapping):
        return {}
    return {
        str(key): str(feature.get("dtype"))
        for key, feature in features.items()
        if isinstance(feature, Mapping)
    }


def cameras_of(info: Mapping[str, Any]) -> list[str]:
    """Return the video features of an info.json, sorted."""
    return sorted(key for key, dtype in _features(info).items() if dtype == "video")


def differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Say why a result cannot be a conversion of what a repo holds; None if it can.

    A conversion may leave features and episodes out. It never changes the frame rate, and never
    adds a feature but those that every v3.0 dataset has.
    """
    if old.get("fps") != new.get("fps"):
        return f"it has {old.get('fps')} frames a second, the result {new.get('fps')}"
    unknown = _features(new).keys() - _features(old).keys() - DEFAULT_COLUMNS.keys()
    if unknown:
        return f"it has no feature {sorted(unknown)[0]!r}"
    return None


class Owned:
    """Tells the files of the dataset that an info.json describes, by their names.

    Those are the files of ``meta/`` that LeRobot and leconvert write, files of episodes by the
    templates of a v2.x dataset, and files by the templates of v3.0 for any of its cameras: v3.0's
    readers take every such file for a part of the dataset. Whatever else lies in the repo is not
    the dataset's, whatever folder it is in.
    """

    def __init__(self, info: Mapping[str, Any]) -> None:
        cameras = cameras_of(info)
        named = [info.get("data_path"), info.get("video_path")]
        templates = [DATA_PATH_TEMPLATE, VIDEO_PATH_TEMPLATE]
        templates += [template for template in named if isinstance(template, str)]
        found = (_pattern(template, cameras) for template in templates)
        self._patterns = [pattern for pattern in found if pattern is not None]
        self._patterns.append(_EPISODES)

    def __contains__(self, path: str) -> bool:
        return path in _META_FILES or any(pattern.fullmatch(path) for pattern in self._patterns)


def _pattern(template: str, cameras: list[str]) -> re.Pattern[str] | None:
    """Return what matches the names that a template makes; None if it makes none, or only one."""
    pattern, numbers = "", 0
    try:
        for literal, field, _, _ in Formatter().parse(template):
            pattern += re.escape(literal)
            if field == "video_key":
                pattern += f"(?:{'|'.join(map(re.escape, cameras))})"
                if not cameras:
                    return None
            elif field is not None:
                pattern += "[0-9]+"
                numbers += 1
    except ValueError:
        return None
    return re.compile(pattern) if numbers else None


# What a push has to do, decided from two listings. Nothing here asks the Hub or a disk.


CARD_PATH = "README.md"
_LARGE_SUFFIXES = (".parquet", ".mp4", ".arrow")
# The Hub takes any file above 10 MiB for a large one.
_SURELY_LARGE_BYTES = 10 * 1024 * 1024
_BASE64 = 4 / 3


@dataclass(frozen=True, slots=True)
class CommitShare:
    """One commit's share of a plan: files to add, then files and folders to delete."""

    add: tuple[str, ...]
    delete: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What one push changes in a repo."""

    # Files that are new or differ, in the order of their names; the card is not among them.
    add: tuple[str, ...]
    unchanged: tuple[str, ...]  # files that the repo has already
    # Of those in ``add`` whose content the repo has elsewhere: the path and the commit.
    copies: Mapping[str, tuple[str, str]]
    # Files of the old dataset, and folders (they end in a slash) that hold nothing else.
    delete: tuple[str, ...]
    deleted_files: int  # the number of files that go by that
    # Files of the repo that are not the dataset's and stay; the card is not among them.
    kept: tuple[str, ...]

    def uploads(self) -> tuple[str, ...]:
        """Return the files whose content is sent."""
        return tuple(path for path in self.add if path not in self.copies)

    @property
    def changes_dataset(self) -> bool:
        """Whether any file of the dataset changes."""
        return bool(self.add or self.delete)

    def commits(
        self, sizes: Mapping[str, int], *, operations: int, payload_bytes: int
    ) -> list[CommitShare]:
        """Return the plan as commits below the Hub's limits; additions come first."""
        return list(_cut(self.add, self.delete, sizes, max(operations - 1, 1), payload_bytes))


def plan_push(
    local: Mapping[str, int],
    remote: Mapping[str, RemoteFile],
    same: Collection[str],
    owned: Owned | None,
    digests: Mapping[str, str] = {},
    held: Mapping[str, Mapping[str, RemoteFile]] = {},
) -> PushPlan:
    """Compare a result with what a repo holds.

    Args:
        digests: Hashes of files of the result, as far as they are known.
        held: Files of the repo at some commits, from which it can copy.
    """
    local = {path: size for path, size in local.items() if path != CARD_PATH}
    add = tuple(sorted(path for path in local if path not in same))
    there = {
        file.digest: (path, commit)
        for commit in reversed([*held])  # the first one counts most
        for path, file in held[commit].items()
        if file.is_large
    }
    unchanged = tuple(sorted(path for path in local if path in same))
    others = [path for path in remote if path not in local and path != CARD_PATH]
    gone = sorted(path for path in others if owned is not None and path in owned)
    return PushPlan(
        add=add,
        unchanged=unchanged,
        copies={
            path: there[digests[path]] for path in add if path in digests and digests[path] in there
        },
        delete=tuple(_by_folders(gone, remote, local)),
        deleted_files=len(gone),
        kept=tuple(sorted(set(others) - set(gone))),
    )


def fingerprint(local: Mapping[str, int], base: str) -> str:
    """Return what names a push of these files onto a commit, 12 hexadecimal digits."""
    lines = [base, *(f"{path} {size}" for path, size in sorted(local.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    for depth in range(1, len(parts)):
        yield "/".join(parts[:depth]) + "/"


def _by_folders(
    gone: list[str], remote: Mapping[str, RemoteFile], local: Collection[str]
) -> Iterator[str]:
    """Yield files to delete, and instead of all files of a folder the folder.

    A folder counts only if nothing of it stays and nothing comes to it, whatever the order of
    operations within a commit.
    """
    leaving = Counter(folder for path in gone for folder in _folders(path))
    present = Counter(folder for path in remote for folder in _folders(path))
    coming = {folder for path in local for folder in _folders(path)}
    told: set[str] = set()
    for path in gone:
        whole = next(
            (f for f in _folders(path) if leaving[f] == present[f] and f not in coming), None
        )
        if whole is None:
            yield path
        elif whole not in told:
            told.add(whole)
            yield whole


def _cut(
    add: tuple[str, ...],
    delete: tuple[str, ...],
    sizes: Mapping[str, int],
    operations: int,
    payload_bytes: int,
) -> Iterator[CommitShare]:
    added: list[str] = []
    payload = 0.0
    for path in add:
        cost = 0.0 if _is_large(path, sizes[path]) else sizes[path] * _BASE64
        if added and (len(added) >= operations or payload + cost > payload_bytes):
            yield CommitShare(tuple(added), ())
            added, payload = [], 0.0
        added.append(path)
        payload += cost
    begun = tuple(added)
    room = operations - len(begun)
    yield CommitShare(begun, delete[:room])
    for start in range(room, len(delete), operations):
        yield CommitShare((), delete[start : start + operations])


def _is_large(path: str, size: int) -> bool:
    return path.endswith(_LARGE_SUFFIXES) or size > _SURELY_LARGE_BYTES


# The files of a result on disk, and whether the Hub has the same.


_THREADS = 4


def _sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(
    root: Path, sizes: Mapping[str, int], digests: dict[str, str], progress: Progress
) -> None:
    """Read files that were not read before."""
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
    """
    alike = {
        path: remote[path]
        for path, size in local.items()
        if path != CARD_PATH and path in remote and remote[path].size_bytes == size
    }
    large = {path: local[path] for path, there in alike.items() if there.is_large}
    hash_files(root, large, digests, progress)
    return {
        path
        for path, there in alike.items()
        if (digests[path] == there.digest if path in large else there.is_content_of(root / path))
    }
