"""The files of a dataset, local or remote, as local paths that hold the requested bytes.

A local file is used directly. A remote one (any fsspec URL, the Hub's included) has a stand-in in
memory: a sparse file of the same size, into which ranges of bytes are fetched at their offsets.
FFmpeg and Arrow read both by path, natively. The memory of ranges that are no longer needed is
released. With a cache, ranges are fetched in the cache's blocks, each by the first process that
needs it.

If somebody writes while the files are read, samples of two datasets could mix. So the metadata of
each file on the disk or in the store is noted once (`Files.note`) and compared after every read.

Nothing is opened before the first `open`, so a `Files` can be sent to another process.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, override
from urllib.parse import quote

from leconvert.support.errors import (
    LeconvertError,
    SourceChangedError,
    StorageError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.file_calls import MemoryFile, devices_with_fleeting_inodes
from leconvert.support.parallel import THREADS_THAT_WAIT, Spread, parallel_map
from leconvert.support.text import without_credentials
from leconvert.transfer.byte_cache import BLOCK_BYTES, ByteCache
from leconvert.transfer.hub import HubStore, store_at
from leconvert.transfer.store import RemoteFile, Store, is_content, other_content
from leconvert.transfer.urls import UrlStore, open_store

_HUB = "hf://"
_HUB_DATASETS = f"{_HUB}datasets/"
# Pages of memory are released whole or not at all.
_PAGE_BYTES = mmap.PAGESIZE
# Size of one request: others may wait for it, and all of it is in memory for a moment.
_REQUEST_BYTES = 16 * BLOCK_BYTES


class OpenFile:
    """A local file with all its bytes.

    Attributes:
        path: The path to read from.
        name: Its name in messages.
        size_bytes: Its size.
    """

    def __init__(self, path: str, name: str, size_bytes: int) -> None:
        self.path = path
        self.name = name
        self.size_bytes = size_bytes

    def need(self, spans: Iterable[tuple[int, int]]) -> None:
        """Make ranges readable, each from a byte to the byte after the last.

        Several threads may call it.
        """

    def take_fetched_bytes(self) -> int:
        """Return how many bytes were fetched since the last call."""
        return 0

    def release(self, spans: Iterable[tuple[int, int]]) -> None:
        """Release the ranges of one call of `need`."""

    def close(self) -> None:
        """Release everything; the path of a remote file vanishes."""


class SparseFile(OpenFile):
    """The stand-in for a remote file; bytes that were not fetched read as zeros."""

    def __init__(
        self,
        store: Store,
        file: RemoteFile,
        name: str,
        cache: ByteCache | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        size_bytes = file.size_bytes
        self._check = check  # called after each read; raises if the file changed
        self._cache = cache
        self._key = ""
        if cache is not None:
            self._key = cache.key(name, size_bytes, file.digest or file.mark)
        self._store = store
        self._file = file
        self._memory = MemoryFile(size_bytes)
        self._lock = threading.Lock()
        self._present = Spans()
        self._users: dict[tuple[int, int], int] = {}
        self._fetched_bytes = 0
        super().__init__(self._memory.path, name, size_bytes)

    @override
    def need(self, spans: Iterable[tuple[int, int]]) -> None:
        for start, stop in self._rounded(spans):
            with self._lock:
                self._users[start, stop] = self._users.get((start, stop), 0) + 1
                missing = self._present.missing(start, stop)
            for gap_start, gap_stop in missing:
                for first in range(gap_start, gap_stop, _REQUEST_BYTES):
                    self._bring(first, min(first + _REQUEST_BYTES, gap_stop))

    @override
    def take_fetched_bytes(self) -> int:
        with self._lock:
            fetched, self._fetched_bytes = self._fetched_bytes, 0
        return fetched

    @override
    def release(self, spans: Iterable[tuple[int, int]]) -> None:
        with self._lock:
            for span in self._rounded(spans):
                users = self._users.get(span, 0) - 1
                if users > 0:
                    self._users[span] = users
                    continue
                self._users.pop(span, None)
                for start, stop in self._unused_pages(*span):
                    if self._memory.gives_parts_back:
                        self._memory.give_back(start, stop)
                        self._present.remove(start, stop)
            if not self._users and not self._memory.gives_parts_back:
                self._memory.clear()
                self._present = Spans()

    @override
    def close(self) -> None:
        self._memory.close()

    def _rounded(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges to fetch: whole blocks of the cache, neighbours joined."""
        unit = 1 if self._cache is None else BLOCK_BYTES
        wanted = Spans()
        for start, stop in spans:
            end = min(-(-stop // unit) * unit, self.size_bytes)
            if start < end:
                wanted.add(start // unit * unit, end)
        return list(wanted)

    def _bring(self, start: int, stop: int) -> None:
        """Bring a missing range from the cache or from the store."""
        if self._cache is None:
            # Two threads may fetch the same bytes; they write the same.
            self._place(start, self._fetch(start, stop))
            return
        for first, last in self._place_cached(start, stop):
            blocks = first // BLOCK_BYTES, -(-last // BLOCK_BYTES)
            with self._cache.fetching(self._key, *blocks):
                # The previous holder of the lock has left these blocks in the cache.
                for begin, end in self._place_cached(first, last):
                    data = memoryview(self._fetch(begin, end))
                    self._place(begin, data)
                    for offset in range(0, len(data), BLOCK_BYTES):
                        block = (begin + offset) // BLOCK_BYTES
                        self._cache.write(self._key, block, data[offset : offset + BLOCK_BYTES])

    def _place_cached(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Copy the cache's blocks to their offsets; return the ranges that the cache lacks."""
        assert self._cache is not None
        lacking = Spans()
        for first in range(start, stop, BLOCK_BYTES):
            last = min(first + BLOCK_BYTES, self.size_bytes)
            data = self._cache.read(self._key, first // BLOCK_BYTES, last - first)
            if data is None:
                lacking.add(first, last)
            else:
                self._place(first, data)
        return list(lacking)

    def _place(self, start: int, data: bytes | memoryview) -> None:
        os.pwrite(self._memory.descriptor, data, start)
        with self._lock:
            self._present.add(start, start + len(data))

    def _unused_pages(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the whole pages of a range that no caller needs."""
        needed = Spans()
        for held_start, held_stop in self._users:
            if held_start < stop and start < held_stop:
                needed.add(held_start, held_stop)
        for first, last in needed.missing(start, stop):
            page = -(-first // _PAGE_BYTES) * _PAGE_BYTES
            end = last // _PAGE_BYTES * _PAGE_BYTES
            if page < end:
                yield page, end

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            data = self._store.read(self._file, start, stop)
        except Exception as error:
            self._check()
            raise _unreachable(self.name, error) from error
        self._check()
        with self._lock:
            self._fetched_bytes += len(data)
        return data


class _LocalFile(NamedTuple):
    """The metadata of a file on a disk."""

    size_bytes: int
    mtime_ns: int
    inode: int  # 0 on file systems without lasting inode numbers


class Files:
    """A folder of files: a local one, or one behind a URL.

    All files of a repo on the Hub are read at one commit, whatever is pushed meanwhile: see `fix`.
    Elsewhere, noted files are refused once they have changed: see `note`.

    Attributes:
        root: The folder or URL that the user gave, without credentials.
        is_local: Whether files are read directly.
        commit: The commit that is read, once it is fixed; None outside the repos of the Hub.
    """

    def __init__(self, root: str, *, is_local: bool, cache: ByteCache | None = None) -> None:
        self.root = root if is_local else without_credentials(root)
        self.is_local = is_local
        self._url = root
        self.commit: str | None = None
        self._cache = cache
        self._is_fixed = is_local or not root.startswith(_HUB)
        self._repo: HubStore | None = None  # at the commit; it goes to other processes, too
        # Folders of the repo that were listed, when a file in them was first needed.
        self._listed: dict[str, dict[str, RemoteFile]] = {}
        self._noted: dict[str, RemoteFile | _LocalFile] = {}
        self._fleeting: frozenset[int] = frozenset()
        # Belongs to this process: a store's client is expensive to make.
        self._store: tuple[int, UrlStore] | None = None

    def name(self, relative: str) -> str:
        """Return a file's name in messages."""
        return f"{self.root}/{relative}"

    def fix(self) -> None:
        """Ask the Hub once for the commit of the revision.

        Opening the first file does it too, but separately in each process.

        Raises:
            UnreadableSourceError: The Hub does not answer, or has no such repo.
        """
        if self._is_fixed:
            return
        with _reading(self.root):
            self._repo = store_at(self._url)
        self.commit = None if self._repo is None else self._repo.commit
        self._is_fixed = True

    def note(self, paths: Iterable[str]) -> None:
        """Note the metadata of some files now, so that `check` can compare it later.

        In a store each folder is listed once; on a disk each file is queried. A commit on the Hub
        cannot change, so nothing is noted. Missing files are not noted; opening them raises the
        error.

        Raises:
            UnreadableSourceError: The store does not answer.
        """
        if self.is_local:
            self._fleeting = devices_with_fleeting_inodes()
            for path in paths:
                with contextlib.suppress(OSError):
                    self._noted[path] = self._local_file(path)
            return
        self.fix()
        if self._repo is not None:
            return
        wanted = frozenset(paths)
        folders = [(folder,) for folder in sorted({path.rpartition("/")[0] for path in wanted})]

        def listed(folder: str) -> list[RemoteFile]:
            return list(self._connect().list_files(folder))

        with _reading(self.root):
            found = parallel_map(listed, folders, Spread(threads=THREADS_THAT_WAIT))
            for files in found:
                self._noted |= {file.path: file for file in files if file.path in wanted}

    @property
    def noted_sizes(self) -> Mapping[str, int]:
        """Bytes of each noted file, by path."""
        return {path: file.size_bytes for path, file in self._noted.items()}

    @property
    def noted_marks(self) -> Mapping[str, str]:
        """The store's mark for the content of each noted file, by path."""
        files = self._noted.items()
        return {path: file.mark for path, file in files if isinstance(file, RemoteFile)}

    def check(self, relative: str) -> None:
        """Raise if a noted file has changed; a file that was not noted always passes.

        Call it after a read: then the bytes are those of the noted file.

        Raises:
            SourceChangedError: The file has changed or is gone.
        """
        noted = self._noted.get(relative)
        if noted is None:
            return
        found: RemoteFile | _LocalFile | None = None
        with _reading(self.name(relative)):
            if isinstance(noted, _LocalFile):
                with contextlib.suppress(FileNotFoundError):
                    found = self._local_file(relative)
            else:
                store = self._connect()
                assert isinstance(store, UrlStore)  # a commit on the Hub cannot change
                found = store.find_file(relative)
        if found == noted:
            return
        change = "it no longer exists" if found is None else _change(noted, found)
        if change:
            name = self.name(relative)
            raise SourceChangedError(
                f"{name} changed after the stream was made: {change}.",
                path=name,
                next_step="Make a new stream when no other program writes to the dataset.",
            )

    def _local_file(self, relative: str) -> _LocalFile:
        found = os.stat(self.name(relative))  # noqa: PTH116 (a name, not a Path)
        inode = 0 if found.st_dev in self._fleeting else found.st_ino
        return _LocalFile(found.st_size, found.st_mtime_ns, inode)

    def open(self, relative: str) -> OpenFile:
        """Open a file.

        Raises:
            SourceChangedError: The file was noted and has changed.
            UnreadableSourceError: The file is missing, or cannot be reached.
        """
        name = self.name(relative)
        if not self.is_local:
            noted = self._noted.get(relative)
            if not isinstance(noted, RemoteFile):
                return SparseFile(*self._find(relative), name, self._cache)
            self.check(relative)
            check = partial(self.check, relative)
            return SparseFile(self._connect(), noted, name, self._cache, check)
        with _reading(name):
            return OpenFile(name, name, os.stat(name).st_size)  # noqa: PTH116 (a name, not a Path)

    def connect(self, relative: str) -> None:
        """Look up one file, before threads look up many at once; a missing file raises nothing.

        The first request of a process makes the store's client. So would every other request that
        begins before the client exists; with s3fs each would cost a tenth of a second of CPU time.
        """
        with contextlib.suppress(UnreadableSourceError):
            self._find(relative)

    def read(self, relative: str) -> bytes:
        """Read a whole file.

        Raises:
            UnreadableSourceError: The file is missing, or cannot be reached.
        """
        name = self.name(relative)
        with _reading(name):
            if self.is_local:
                return Path(name).read_bytes()
            return _read_whole(*self._find(relative))

    def copy_folder(self, relative: str, target: Path) -> None:
        """Copy a remote folder of small files to a local one.

        Raises:
            UnreadableSourceError: The folder is missing, or cannot be reached.
        """

        def read(file: RemoteFile) -> bytes:
            return _read_whole(self._connect(), file)

        with _reading(self.name(relative)):
            found = list(self._connect().list_files(relative))
            if not found:
                raise FileNotFoundError(errno.ENOENT, "no such folder")
            pieces = [(file,) for file in found]
            contents = parallel_map(read, pieces, Spread(threads=THREADS_THAT_WAIT))
            # Threads only read, so a thread that outlives an interrupt writes to no folder that the
            # caller has removed.
            for file, content in zip(found, contents, strict=True):
                path = target / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_store": None, "_listed": {}}

    def _find(self, relative: str) -> tuple[HubStore | UrlStore, RemoteFile]:
        """Return a file, and the store to read it from."""
        with _reading(self.name(relative)):
            store = self._connect()
            if isinstance(store, UrlStore):
                file = store.find_file(relative)
            else:
                folder = relative.rpartition("/")[0]
                if folder not in self._listed:
                    files = store.list_files(folder, recursive=False)
                    self._listed[folder] = {each.path: each for each in files}
                file = self._listed[folder].get(relative)
            if file is None:
                raise FileNotFoundError(errno.ENOENT, "no such file")
            return store, file

    def _connect(self) -> HubStore | UrlStore:
        self.fix()
        if self._repo is not None:
            return self._repo
        process = os.getpid()
        if self._store is not None and self._store[0] == process:
            return self._store[1]
        self._store = process, open_store(self._url)
        return self._store[1]


def _read_whole(store: Store, file: RemoteFile) -> bytes:
    """Return all bytes of a file, as listed."""
    content = store.read(file, 0, file.size_bytes)
    if not is_content(content, file.digest):
        raise other_content(file.path, store.name)
    return content


def _change(noted: RemoteFile | _LocalFile, found: RemoteFile | _LocalFile) -> str:
    """Return the change of a file, as half a sentence; empty if it is the same."""
    if noted.size_bytes != found.size_bytes:
        return f"it had {noted.size_bytes:,} bytes and has {found.size_bytes:,} now"
    if isinstance(noted, RemoteFile) and isinstance(found, RemoteFile):
        # A listing and a single look may report different keys; the first common key decides, and
        # digests come before times.
        was, now = _marks(noted), _marks(found)
        said = next((key for key in was if key in now), None)
        if said is not None and not _is_alike(was[said], now[said]):
            return f"its {said} was {was[said]} and is {now[said]} now"
    elif isinstance(noted, _LocalFile) and isinstance(found, _LocalFile):
        if noted.mtime_ns != found.mtime_ns:
            was_at, is_at = (
                datetime.fromtimestamp(file.mtime_ns / 1e9, UTC).isoformat(" ", "milliseconds")
                for file in (noted, found)
            )
            return f"it was written at {was_at} and again at {is_at}"
        if noted.inode != found.inode:
            return "another file has its name"
    return ""


def _is_alike(one: str, other: str) -> bool:
    """Return whether two texts of a store mean the same; it may write one time in several ways."""
    was, now = _instant(one), _instant(other)
    return one == other or (was is not None and now is not None and abs(was - now) < 1)


def _instant(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    return None


def _marks(file: RemoteFile) -> dict[str, str]:
    pairs = (mark.partition("=") for mark in file.mark.split(";"))
    return {key: value for key, _, value in pairs if value}


class Spans:
    """A set of bytes as disjoint ascending ranges."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._spans)

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not in the set."""
        gaps = []
        for first, last in self._spans[max(0, bisect_right(self._spans, (start,)) - 1) :]:
            if first >= stop or start >= stop:
                break
            if first > start:
                gaps.append((start, first))
            start = max(start, last)
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def add(self, start: int, stop: int) -> None:
        """Add a range to the set."""
        touching = [span for span in self._spans if span[0] <= stop and start <= span[1]]
        merged = (min([start, *(a for a, _ in touching)]), max([stop, *(b for _, b in touching)]))
        self._spans = sorted([span for span in self._spans if span not in touching] + [merged])

    def remove(self, start: int, stop: int) -> None:
        """Remove a range from the set."""
        rest = []
        for first, last in self._spans:
            if first < min(start, last):
                rest.append((first, min(start, last)))
            if max(stop, first) < last:
                rest.append((max(stop, first), last))
        self._spans = rest


def files_at(
    root: str | os.PathLike[str], *, revision: str | None = None, cache: ByteCache | None = None
) -> Files:
    """Return the files of a dataset.

    Args:
        root: The dataset's folder or URL.
        revision: Branch, tag or commit of a dataset on the Hub.
        cache: Cache for the bytes of remote files.

    Raises:
        UsageError: A revision is given for a dataset that is not on the Hub.
    """
    text = os.fspath(root)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if revision is not None:
        owner, _, name = text.removeprefix(_HUB_DATASETS).partition("/")
        if not text.startswith(_HUB_DATASETS) or not name:
            raise UsageError(
                f"{text} has no revisions. Only datasets on the Hub have revisions.",
                next_step=f"Leave the revision out, or give {_HUB_DATASETS}OWNER/NAME.",
            )
        name, slash, rest = name.partition("/")
        text = f"{_HUB_DATASETS}{owner}/{name}@{quote(revision, safe='')}{slash}{rest}"
    is_local = "://" not in text
    if is_local:
        # Workers may have another current folder.
        text = os.path.abspath(text)  # noqa: PTH100 (resolve() would follow links)
    # Test the cache here, so that a warning appears once and not for each worker.
    if is_local or cache is None or not cache.is_usable():
        cache = None
    return Files(text.rstrip("/") or "/", is_local=is_local, cache=cache)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn any error within the block into an `UnreadableSourceError`."""
    try:
        yield
    except Exception as error:
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> UnreadableSourceError:
    if isinstance(error, UnreadableSourceError):
        return error
    if isinstance(error, FileNotFoundError):
        return UnreadableSourceError(
            f"{name} is missing.",
            path=name,
            next_step="Complete the dataset, or check its name, revision and --data-files-root.",
        )
    if isinstance(error, StorageError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, LeconvertError):
        reason = error.message.rstrip(".")
        return UnreadableSourceError(
            f"{name} cannot be read: {reason}.", path=name, next_step=error.next_step
        )
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or repr(error)
    return UnreadableSourceError(
        f"{name} cannot be read: {reason}.",
        path=name,
        next_step="Check the disk, the network and your access rights, then try again.",
    )
