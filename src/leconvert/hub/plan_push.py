"""What a push has to do, decided from two listings. Nothing here asks the Hub or a disk."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from leconvert.hub.ownership import Owned

__all__ = [
    "CARD_PATH",
    "COMMIT_OPERATIONS",
    "COMMIT_PAYLOAD_BYTES",
    "CommitShare",
    "PushPlan",
    "RemoteFile",
    "fingerprint",
    "plan_push",
]

CARD_PATH = "README.md"
# huggingface_hub says of create_commit: at most 25,000 large files, and 1 GB for all that is sent
# within the commit itself. The second is kept at a tenth, as its own upload of folders does.
COMMIT_OPERATIONS = 25_000
COMMIT_PAYLOAD_BYTES = 100 * 1024 * 1024
_LARGE_SUFFIXES = (".parquet", ".mp4", ".arrow")
# The Hub takes any file above 10 MiB for a large one.
_SURELY_LARGE_BYTES = 10 * 1024 * 1024
_BASE64 = 4 / 3


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a repo, as a listing shows it.

    Attributes:
        size: Bytes of the content.
        sha256: Of the content, if it is a large file.
        blob: Git's hash of the content, or of the pointer to it.
    """

    size: int
    sha256: str | None
    blob: str


@dataclass(frozen=True, slots=True)
class CommitShare:
    """One commit's share of a plan: files to add, then files and folders to delete."""

    add: tuple[str, ...]
    delete: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What one push changes in a repo.

    Attributes:
        add: Files that are new or differ, in the order of their names; the card is not among them.
        add_bytes: Their bytes.
        unchanged: Files that the repo has already.
        delete: Files of the old dataset, and folders (they end in a slash) that hold nothing else.
        deleted_files: The number of files that go by that.
        kept: Files of the repo that are not the dataset's and stay; the card is not among them.
    """

    add: tuple[str, ...]
    add_bytes: int
    unchanged: tuple[str, ...]
    delete: tuple[str, ...]
    deleted_files: int
    kept: tuple[str, ...]

    @property
    def changes_dataset(self) -> bool:
        """Whether any file of the dataset changes."""
        return bool(self.add or self.delete)

    def commits(
        self, sizes: Mapping[str, int], *, operations: int, payload_bytes: int
    ) -> list[CommitShare]:
        """Return the plan as commits that each stay below the Hub's limits; additions come first.

        Args:
            sizes: Bytes of each file to add.
            operations: Operations a commit takes; one is left for the card.
            payload_bytes: Bytes that a commit itself may carry: small files, encoded.
        """
        return list(_cut(self.add, self.delete, sizes, max(operations - 1, 1), payload_bytes))


def plan_push(
    local: Mapping[str, int],
    remote: Mapping[str, RemoteFile],
    same: Collection[str],
    owned: Owned | None,
) -> PushPlan:
    """Compare a result with what a repo holds.

    Args:
        local: Size of every file of the result.
        remote: Every file of the repo.
        same: Files of both whose content is the same.
        owned: Tells the dataset's files in the repo; None where it holds no dataset.
    """
    local = {path: size for path, size in local.items() if path != CARD_PATH}
    add = tuple(sorted(path for path in local if path not in same))
    unchanged = tuple(sorted(path for path in local if path in same))
    others = [path for path in remote if path not in local and path != CARD_PATH]
    gone = sorted(path for path in others if owned is not None and path in owned)
    return PushPlan(
        add=add,
        add_bytes=sum(local[path] for path in add),
        unchanged=unchanged,
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
