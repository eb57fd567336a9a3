"""A finished dataset into a store: nothing that could be taken for a dataset before it is whole.

Stores have no renames of folders. So ``meta/info.json``, without which no reader takes a folder
for a dataset, is sent last: before, a reader finds none, after, all of it. What tells an upload
that was interrupted from a stranger's files is a claim, sent first and removed last, whose name
says which tree it is of.

**Two uploads to one empty place.** Each sends its claim, then looks again; who finds anything else
takes its claim back and ends. Of two trees at most one goes on then, as long as the store lists
what was sent before it was asked. Two uploads of the same tree are one: both send the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert.dataset_files import UPLOAD_CLAIM, UPLOAD_MARKER, published_files
from leconvert.errors import InterruptedRunError, StorageError, TargetError, UsageError
from leconvert.mirrors.store import Store, StoredFile, open_store, store_errors
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.spread import Spread, do_all
from leconvert.text import count
from leconvert.verify.dataset import checked_result

__all__ = ["UploadReport", "upload_tree"]

_THREADS = 8
_SHOWN = 20
_INFO = "meta/info.json"


@dataclass(frozen=True, slots=True)
class UploadReport:
    """What an upload did.

    Attributes:
        url: Where the dataset is.
        files: Its files.
        sent: Those that were sent now; the others were there from an interrupted upload.
        sent_bytes: Their bytes.
        left_out: Why a file or folder of it was not sent, by its path.
    """

    url: str
    files: int
    sent: int
    sent_bytes: int
    left_out: Mapping[str, str]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def upload_tree(
    root: Path,
    url: str,
    *,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> UploadReport:
    """Send a v3.0 dataset to a folder of a store where nothing is.

    Interrupted, the same call goes on: files that are there with their size are not sent again, as
    long as the tree is the same, by names, sizes and times.

    Args:
        root: The dataset.
        url: The folder; it must not exist or be empty.
        stop: Set it from another thread to stop after the files under way.
        progress: Where to report.

    Returns:
        Where it went, and how many files and bytes were sent.

    Raises:
        UsageError: Nobody knows such URLs.
        SourceError: ``root`` is no v3.0 dataset, or parts of it are links that lead out of it.
        VerificationError: The dataset is not complete.
        TargetError: Something else is at the URL, or comes to it meanwhile.
        StorageError: The store fails, or keeps a file with another size.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    if url.startswith("hf://"):
        raise UsageError(
            f"{url} is on the Hub, where a dataset appears in one commit.",
            path=url,
            next_step="Use `leconvert push`.",
        )
    store = open_store(url)
    checked_result(root, progress=progress)
    published = published_files(root)
    for line in published.remarks():
        progress.say(line)
    sizes = published.sizes
    digest = _digest(root, sizes)
    there = _claim(store, digest)
    missing = [
        name
        for name in sizes
        if name != _INFO and (name not in there or there[name].size_bytes != sizes[name])
    ]
    size_bytes = sum(sizes[name] for name in [*missing, _INFO])
    with progress.stage("upload", size_bytes, "B") as stage:

        def send(name: str) -> None:
            if not stop.is_set():
                _send(store, root, name)
                stage.advance(sizes[name])

        for _ in do_all(send, [(name,) for name in missing], Spread(threads=_THREADS)):
            pass
        if stop.is_set():
            raise InterruptedRunError(
                f"{store.url} is not complete yet.",
                path=store.url,
                next_step="Run the same command again to go on.",
            )
        _check_arrived(store, {name: size for name, size in sizes.items() if name != _INFO})
        send(_INFO)
        _check_arrived(store, sizes)
    for claim in (_claim_of(digest), UPLOAD_MARKER):
        _remove(store, claim)
    sent = [*missing, _INFO]
    sent_bytes = sum(sizes[name] for name in sent)
    return UploadReport(store.url, len(sizes), len(sent), sent_bytes, published.left_out)


def _claim_of(digest: str) -> str:
    return f"{UPLOAD_CLAIM}{digest[:32]}.json"


def _claim(store: Store, digest: str) -> dict[str, StoredFile]:
    """Claim a place; return what an interrupted upload of the same tree left there.

    Raises:
        TargetError: Something else is there.
    """
    mine = _claim_of(digest)
    content = json.dumps({"format": "leconvert/upload", "version": 1, "tree": digest}).encode()
    there = store.list_files()
    if there.keys() & {mine, UPLOAD_MARKER}:
        found = {name for name in there if name.startswith(UPLOAD_CLAIM) and name != mine}
        if UPLOAD_MARKER in there:  # as earlier versions called the claim of any tree
            with store_errors(store.url):
                if store.fs.cat_file(store.path(UPLOAD_MARKER)) != content:
                    found.add(UPLOAD_MARKER)
        if found:
            raise _taken(store, there)
        return there
    if there:
        raise _taken(store, there)
    with store_errors(store.url):
        store.fs.makedirs(store.root, exist_ok=True)
        store.fs.pipe_file(store.path(mine), content)
    others = store.list_files()
    others.pop(mine, None)
    if others:
        _remove(store, mine)
        raise _taken(store, others)
    return {}


def _taken(store: Store, there: Mapping[str, StoredFile]) -> TargetError:
    claims = any(name.startswith((UPLOAD_CLAIM, UPLOAD_MARKER)) for name in there)
    return TargetError(
        f"{store.url} holds {'another, unfinished upload' if claims else 'something'} already: "
        f"{count(len(there), 'file')}.",
        path=store.url,
        next_step="Name an empty place, or remove what is there.",
    )


def _check_arrived(store: Store, sizes: Mapping[str, int]) -> None:
    """Look once more at what the store holds: all of it, and nothing else.

    Raises:
        StorageError: A file is not there, or has another size.
        TargetError: There are files that this upload did not send.
    """
    there = store.list_files()
    for name, size_bytes in sizes.items():
        if name not in there or there[name].size_bytes != size_bytes:
            raise _kept_wrong(store, name, there.get(name), size_bytes)
    others = sorted(
        name
        for name in there.keys() - sizes.keys() - {_INFO}
        if not name.startswith((UPLOAD_CLAIM, UPLOAD_MARKER))
    )
    if others:
        raise TargetError(
            f"Somebody else sends to {store.url} at the same time: {count(len(others), 'file')} "
            "there are not of this dataset.",
            path=store.url,
            details=others[:_SHOWN],
            next_step="Name an empty place, and run the same command again.",
        )


def _kept_wrong(store: Store, name: str, found: StoredFile | None, size_bytes: int) -> StorageError:
    kept = "nothing" if found is None else f"{found.size_bytes:,} bytes"
    return StorageError(
        f"{store.url} keeps {kept} of {name} instead of {size_bytes:,} bytes.",
        path=store.path(name),
        next_step="Run the same command again.",
    )


def _remove(store: Store, name: str) -> None:
    with store_errors(store.url), suppress(FileNotFoundError):
        store.fs.rm_file(store.path(name))


def _send(store: Store, root: Path, name: str) -> None:
    path = store.path(name)
    with store_errors(store.url):
        store.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        store.fs.put_file(str(root / name), path)


def _digest(root: Path, sizes: dict[str, int]) -> str:
    digest = hashlib.sha256()
    for name, size_bytes in sizes.items():
        digest.update(f"{name}\0{size_bytes}\0{(root / name).stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()
