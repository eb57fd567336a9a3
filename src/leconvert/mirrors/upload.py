"""A finished dataset into a store: nothing that could be taken for a dataset before it is whole.

Stores have no renames of folders. So ``meta/info.json``, without which no reader takes a folder
for a dataset, is sent last: before, a reader finds none, after, all of it. What tells an upload
that was interrupted from a stranger's files is a marker, sent first and removed last, that names
the tree.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert.errors import InterruptedRunError, StorageError, TargetError, UsageError
from leconvert.mirrors.store import Store, StoredFile, open_store, store_errors
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.spread import Spread, do_all
from leconvert.workdir.target import codebase_version

__all__ = ["UploadReport", "upload_tree"]

_THREADS = 8
_INFO = "meta/info.json"
_MARKER = ".leconvert-upload.json"


@dataclass(frozen=True, slots=True)
class UploadReport:
    """What an upload did.

    Attributes:
        url: Where the dataset is.
        files: Its files.
        sent: Those that were sent now; the others were there from an interrupted upload.
        sent_bytes: Their bytes.
    """

    url: str
    files: int
    sent: int
    sent_bytes: int

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
        UsageError: ``root`` is no v3.0 dataset, or nobody knows such URLs.
        TargetError: Something else is at the URL.
        StorageError: The store fails, or keeps a file with another size.
        InterruptedRunError: ``stop`` was set.
    """
    stop = stop or threading.Event()
    if not (codebase_version(root) or "").startswith("v3."):
        raise UsageError(
            f"{root} is no v3.0 dataset.",
            path=str(root),
            next_step="Give a dataset's folder, which holds meta/info.json; `leconvert convert` "
            "makes one of a v2.x dataset.",
        )
    if url.startswith("hf://"):
        raise UsageError(
            f"{url} is on the Hub, where a dataset appears in one commit.",
            path=url,
            next_step="Use `leconvert push`.",
        )
    store = open_store(url)
    sizes = {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".cache" not in path.relative_to(root).parts
    }
    marker = json.dumps({"format": "leconvert/upload", "version": 1, "tree": _digest(root, sizes)})
    there = _check_free(store, marker)
    missing = [
        name
        for name in sizes
        if name != _INFO and (name not in there or there[name].size_bytes != sizes[name])
    ]
    with store_errors(store.url):
        store.fs.makedirs(store.root, exist_ok=True)
        store.fs.pipe_file(store.path(_MARKER), marker.encode())
    size_bytes = sum(sizes[name] for name in [*missing, _INFO])
    with progress.stage("upload", size_bytes, "B") as stage:

        def send(name: str) -> None:
            if not stop.is_set():
                _send(store, root, name, sizes[name])
                stage.advance(sizes[name])

        for _ in do_all(send, [(name,) for name in missing], Spread(threads=_THREADS)):
            pass
        if stop.is_set():
            raise InterruptedRunError(
                f"{url} is not complete yet.",
                path=url,
                next_step="Run the same command again to go on.",
            )
        send(_INFO)
    with store_errors(store.url):
        store.fs.rm_file(store.path(_MARKER))
    sent = [*missing, _INFO]
    return UploadReport(store.url, len(sizes), len(sent), sum(sizes[name] for name in sent))


def _check_free(store: Store, marker: str) -> dict[str, StoredFile]:
    """Return what an interrupted upload of the same tree left.

    Raises:
        TargetError: Something else is there.
    """
    there = store.list_files()
    if not there:
        return {}
    found = b""
    if _MARKER in there:
        with store_errors(store.url):
            found = store.fs.cat_file(store.path(_MARKER))
    if found == marker.encode():
        return there
    what = "another, unfinished upload" if found else "something"
    raise TargetError(
        f"{store.url} holds {what} already: {len(there):,} files.",
        path=store.url,
        next_step="Name an empty place, or remove what is there.",
    )


def _send(store: Store, root: Path, name: str, size_bytes: int) -> None:
    path = store.path(name)
    with store_errors(store.url):
        store.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        store.fs.put_file(str(root / name), path)
        kept = store.fs.info(path)["size"]
    if kept != size_bytes:
        raise StorageError(
            f"{store.url} keeps {kept:,} bytes of {name} instead of {size_bytes:,}.",
            path=path,
            next_step="Run the same command again.",
        )


def _digest(root: Path, sizes: dict[str, int]) -> str:
    digest = hashlib.sha256()
    for name, size_bytes in sizes.items():
        digest.update(f"{name}\0{size_bytes}\0{(root / name).stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()
