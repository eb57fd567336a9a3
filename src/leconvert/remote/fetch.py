"""Bringing files over: tried again, resumed where they broke off, and checked.

A file has its final name only when what lies on the disk is what the listing says, by hash; before,
it has another, and whoever fetches it next, in this process or another, goes on behind what is
there. Bytes that turn out wrong are thrown away and fetched anew.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leconvert._version import __version__
from leconvert.remote.client import asked_to_wait, hub_errors, make_api
from leconvert.remote.provenance import NOTES, Origin, known_origin, write_origin
from leconvert.support.errors import (
    HubError,
    InterruptedRunError,
    SourceError,
    StorageError,
    TargetError,
    UnreadableSourceError,
)
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import is_there
from leconvert.workdir.incoming import Incoming, incoming

if TYPE_CHECKING:
    from huggingface_hub.errors import Response
    from huggingface_hub.hf_api import RepoFile


# ------------------------------------------------------------------------------------------------
# A file of a store that is not mounted: where it is, how large, and which bytes it must have.


_SHA256_DIGITS = 64
_BLOCK_BYTES = 4096
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a dataset at one commit."""

    path: str  # its path in the dataset
    size_bytes: int  # its size
    # SHA-256 of its content where it is kept in large-file storage (64 hexadecimal digits), the id
    # of its Git blob where it is not (40), empty where the store has none.
    digest: str = ""

    @property
    def is_large(self) -> bool:
        """Whether it is in large-file storage, where its digest names its content."""
        return len(self.digest) == _SHA256_DIGITS

    @property
    def charge_bytes(self) -> int:
        """What it takes on a disk of blocks of 4 KiB."""
        return -(-self.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES

    def is_content_of(self, path: Path) -> bool:
        """Tell whether a local file has the size and the content that were listed.

        Git names a blob by the SHA-1 of ``blob <size>``, a zero byte and the content.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != self.size_bytes:
                return False
            if not self.digest:
                return True
            if self.is_large:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.digest
            digest = hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
            return digest.hexdigest() == self.digest


# ------------------------------------------------------------------------------------------------
# Reading from a dataset on the Hub at one commit: its listing, whole files, ranges of bytes.
#
# Every address holds the commit's hash, so a branch that moves changes nothing here.


_CHUNK_BYTES = 1 << 20
_OF_THE_MOMENT = frozenset({408, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")
# Seconds to connect, to read, to write, and to get a connection.
_TIMEOUT = (20.0, 60.0, 60.0, 60.0)


class TransientError(Exception):
    """The store failed in a way that may be over in a moment."""

    def __init__(self, cause: Exception, wait_seconds: float = 0.0) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.wait_seconds = wait_seconds


@dataclass(frozen=True, slots=True)
class Body:
    """An answer that is being read."""

    start: int  # the first byte of the file that it holds: a store may answer with more than asked
    chunks: Iterator[bytes]  # the bytes


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A dataset on the Hub, pinned to a commit; picklable, and holds no connection."""

    repo_id: str  # ``ORG/NAME``
    commit: str  # the commit's hash
    endpoint: str | None = None  # the Hub's address; None for the one that is configured.

    @property
    def name(self) -> str:
        """How it is called in messages, and as a URL."""
        return f"hf://datasets/{self.repo_id}@{self.commit}"

    def list_files(self) -> Iterator[RemoteFile]:
        """Yield every file, in the order of the listing's pages."""
        from huggingface_hub.hf_api import RepoFile

        with hub_errors(self.repo_id, self.commit):
            entries = make_api(endpoint=self.endpoint).list_repo_tree(
                self.repo_id, recursive=True, revision=self.commit, repo_type="dataset"
            )
            for entry in entries:
                if isinstance(entry, RepoFile):
                    yield self._file(entry)

    def find_file(self, path: str) -> RemoteFile | None:
        """Return one file of the listing, or None."""
        from huggingface_hub.hf_api import RepoFile

        with hub_errors(self.repo_id, self.commit):
            entries = make_api(endpoint=self.endpoint).get_paths_info(
                self.repo_id, [path], revision=self.commit, repo_type="dataset"
            )
            files = [entry for entry in entries if isinstance(entry, RepoFile)]
            return self._file(files[0]) if files else None

    def _file(self, entry: RepoFile) -> RemoteFile:
        if PurePosixPath(entry.path).is_absolute() or ".." in entry.path.split("/"):
            raise SourceError(f"{self.name} has a file with the name {entry.path!r}.")
        digest = entry.blob_id if entry.lfs is None else entry.lfs.sha256
        return RemoteFile(entry.path, entry.size, digest)

    @contextmanager
    def open(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Body]:
        """Ask for a file or a range of it."""
        from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
        from huggingface_hub.errors import HfHubHTTPError, HTTPError
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(
            self.repo_id, path, repo_type="dataset", revision=self.commit, endpoint=self.endpoint
        )
        headers = build_hf_headers(library_name="leconvert", library_version=__version__)
        # What is hashed and measured are the stored bytes.
        headers["Accept-Encoding"] = "identity"
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        with hub_errors(self.repo_id, self.commit):
            try:
                with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT) as answer:
                    hf_raise_for_status(answer)
                    yield Body(_first_byte(answer), answer.iter_raw(_CHUNK_BYTES))
            except HfHubHTTPError as error:
                status = error.response.status_code
                if status in _OF_THE_MOMENT:
                    asked = asked_to_wait(status, error.response.headers)
                    raise TransientError(error, asked) from error
                raise
            except HTTPError as error:
                raise TransientError(error) from error


def _first_byte(answer: Response) -> int:
    """Return where a body begins: a server or a proxy may ignore what range was asked for."""
    if answer.status_code != 206:
        return 0
    found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if found is None:
        raise TransientError(ConnectionError("a part of a file without its place in it"))
    return int(found[1])


# ------------------------------------------------------------------------------------------------
# Bringing files over: tried again, resumed where they broke off, and checked.
#
# The client's own download and its file system do not do: they check a size and no hash, put parts
# where a scratch limit does not count them, and cannot be stopped within a file.


_TRIES = 7
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 600.0
_WRONG_CONTENTS = 2
_SECONDS_BETWEEN_LOOKS = 0.5
_NEVER = threading.Event()


class _BrokenOffError(Exception):
    """The answer ended before the file did."""


class Fetcher:
    """Fetches files of one repo at one commit. Threads may share it."""

    def __init__(
        self,
        repo: HubRepo,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        pause: Callable[[float], object] = _NEVER.wait,
        tries: int = _TRIES,
    ) -> None:
        self._repo = repo
        self._should_stop = should_stop
        self._pause = pause
        self._tries = tries

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file's bytes."""
        stop = min(stop, file.size_bytes)
        found = bytearray()

        def take(chunks: Iterator[bytes]) -> None:
            for chunk in chunks:
                found.extend(chunk)
                if len(found) >= stop - start:
                    return
            raise _BrokenOffError

        if start < stop:
            self._try(file, lambda: (start + len(found), stop), take)
        return bytes(found[: max(stop - start, 0)])

    def download(
        self,
        file: RemoteFile,
        target: Path,
        part: Path,
        *,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Bring a whole file to a path that does not exist; its folder does.

        Args:
            on_bytes: Called with the number of bytes as they arrive, those found there included.
        """
        for _ in range(_WRONG_CONTENTS):
            self._complete(file, part, on_bytes)
            if file.is_content_of(part):
                part.replace(target)
                return
            on_bytes(-part.stat().st_size)
            part.unlink()
        raise UnreadableSourceError(
            f"{file.path} of {self._repo.name} arrives with other content than the listing says.",
            path=file.path,
            next_step="Try again later; if it stays so, the stored file is damaged.",
        )

    def _complete(self, file: RemoteFile, part: Path, on_bytes: Callable[[int], None]) -> None:
        with storage_errors(part), part.open("ab") as out:
            if out.tell():
                on_bytes(out.tell())

            def take(chunks: Iterator[bytes]) -> None:
                for chunk in chunks:
                    with storage_errors(part):  # or a disk's time-out were taken for the Hub's
                        out.write(chunk)
                    on_bytes(len(chunk))
                    if out.tell() > file.size_bytes:
                        return  # it is not the file; the hash will say so
                if out.tell() < file.size_bytes:
                    raise _BrokenOffError

            if out.tell() < file.size_bytes:
                self._try(file, lambda: (out.tell(), None), take)

    def _try(
        self,
        file: RemoteFile,
        rest: Callable[[], tuple[int, int | None]],
        take: Callable[[Iterator[bytes]], None],
    ) -> None:
        """Ask for the rest of a file until it is all there."""
        failures = 0
        at = rest()[0]
        while True:
            start, stop = rest()
            if start > at:  # something arrived: the line works
                failures, at = 0, start
            try:
                with self._repo.open(file.path, start, stop) as body:
                    if body.start > start:
                        raise _BrokenOffError
                    take(self._chunks(file, body, start))
                return
            except (TransientError, _BrokenOffError) as error:
                if rest()[0] == start:
                    failures += 1
                if failures >= self._tries:
                    raise self._gave_up(file, error) from error
                asked = error.wait_seconds if isinstance(error, TransientError) else 0.0
                self._wait(file, failures, asked)

    def _chunks(self, file: RemoteFile, body: Body, start: int) -> Iterator[bytes]:
        """Yield an answer's bytes from a place in the file on: it may begin before that."""
        skip = start - body.start
        for chunk in body.chunks:
            self._check_stop(file)
            yield chunk[skip:]
            skip -= min(skip, len(chunk))

    def _wait(self, file: RemoteFile, failures: int, asked_seconds: float) -> None:
        # Spread out, so that workers that failed together do not come back together.
        longest = min(_FIRST_PAUSE_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS)
        left = longest * (0.5 + random.random() / 2)  # noqa: S311 - no secret
        left = max(left, min(asked_seconds, _LONGEST_ASKED_SECONDS))
        while left > 0:
            self._check_stop(file)
            self._pause(min(left, _SECONDS_BETWEEN_LOOKS))
            left -= _SECONDS_BETWEEN_LOOKS

    def _check_stop(self, file: RemoteFile) -> None:
        if self._should_stop():
            raise InterruptedRunError(
                f"Stopped while fetching {file.path}.",
                path=file.path,
                next_step="Run the same command again to go on.",
            )

    def _gave_up(self, file: RemoteFile, error: Exception) -> Exception:
        if isinstance(error, TransientError):
            try:
                with hub_errors(self._repo.repo_id, self._repo.commit):
                    raise error.cause
            except HubError as told:
                return told
        return HubError(
            f"{file.path} of {self._repo.name} breaks off again and again.",
            path=file.path,
            next_step="Check the network, then run the same command again; it goes on.",
        )


# ------------------------------------------------------------------------------------------------
# The files of a remote dataset as a table: written once by the planner, looked up by workers.
#
# Sorted by path, in row groups whose footers say their first and last path, so that a worker
# reads only the groups that hold its files.


_ROWS_PER_GROUP = 16_384
_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("digest", pa.string()), ("whole", "bool")]
)


def read_all(files: Iterable[RemoteFile]) -> pa.Table:
    """Return a listing as a table sorted by path, some 100 bytes a file."""
    batches = []
    for block in _blocks(files):
        columns = [
            [file.path for file in block],
            [file.size_bytes for file in block],
            [file.digest for file in block],
            [False] * len(block),
        ]
        batches.append(pa.table(columns, schema=_SCHEMA))
    return pa.concat_tables(batches or [_SCHEMA.empty_table()]).sort_by("path")


def files_of(table: pa.Table) -> Iterator[RemoteFile]:
    """Yield the files of a table, in its order."""
    for batch in table.to_batches(max_chunksize=_ROWS_PER_GROUP):
        columns = [batch.column(place).to_pylist() for place in range(3)]
        yield from map(RemoteFile, *columns)


def write_listing(path: Path, table: pa.Table, whole: Iterable[str]) -> None:
    """Write a sorted table."""
    held = pc.is_in(table.column("path"), pa.array(list(whole), pa.string()))
    table = table.set_column(table.schema.get_field_index("whole"), "whole", held)
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP, compression="zstd")


class Listing:
    """A written listing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        metadata = pq.read_metadata(path)
        place = metadata.schema.names.index("path")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self._firsts = [group.column(place).statistics.min for group in groups]

    def find(self, paths: Sequence[str]) -> list[tuple[RemoteFile, bool]]:
        """Return files by path, each with whether the outline holds it whole."""
        found: dict[str, tuple[RemoteFile, bool]] = {}
        groups = sorted({max(0, bisect_right(self._firsts, path) - 1) for path in paths})
        wanted = pa.array(paths, pa.string())
        with pq.ParquetFile(self._path) as file:
            for group in groups:
                table = file.read_row_group(group, use_threads=False)
                table = table.filter(pc.is_in(table.column("path"), wanted))
                for row in table.to_pylist():
                    remote = RemoteFile(row["path"], row["size_bytes"], row["digest"])
                    found[remote.path] = remote, row["whole"]
        return [found[path] for path in paths]


def _blocks(files: Iterable[RemoteFile]) -> Iterator[list[RemoteFile]]:
    block: list[RemoteFile] = []
    for file in files:
        block.append(file)
        if len(block) == _ROWS_PER_GROUP:
            yield block
            block = []
    if block:
        yield block


# ------------------------------------------------------------------------------------------------
# A whole dataset from the Hub into a folder that appears when it is complete.


_THREADS = 8
_GRACE_SECONDS = 2.0
_FILES_AT_A_TIME = 4096


def download_dataset(
    repo: HubRepo,
    revision: str,
    target: Path,
    *,
    listed: pa.Table | None = None,
    replaces: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Origin:
    """Bring every file of a commit into a folder; ``listed`` has them, where that is known.

    It arrives in a hidden folder beside the target and gets the target's name when all of it is
    there, checked by hash. Interrupted, the same call goes on; files that another commit shares
    with what had arrived are kept, the others go. Files in the client's cache are copied.
    """
    stop = stop or threading.Event()
    listed = read_all(repo.list_files()) if listed is None else listed
    size_bytes = sum(listed.column("size_bytes").to_pylist())
    origin = Origin(repo.repo_id, revision, repo.commit)
    with incoming(target) as arriving:
        if is_there(target):
            if not replaces:
                raise TargetError(
                    f"{target} exists already and is not overwritten.", path=str(target)
                )
            if known_origin(target) == origin and all(
                _is_right(file, target / file.path) for file in files_of(listed)
            ):
                return origin
            arriving.take_back()
        arriving.keep({file.path for file in files_of(listed)})
        _check_space(arriving, repo, size_bytes)
        failed = threading.Event()

        def should_stop() -> bool:
            return stop.is_set() or failed.is_set()

        fetcher = Fetcher(repo, should_stop=should_stop)
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")
        with progress.stage("fetch", size_bytes, "B") as stage:
            files = files_of(listed)
            running: list[Future[None]] = []
            try:
                while block := list(islice(files, _FILES_AT_A_TIME)):
                    running = [
                        pool.submit(_bring, repo, fetcher, file, arriving, stage) for file in block
                    ]
                    for each in running:
                        each.result()
            except BaseException:
                failed.set()
                pool.shutdown(wait=False, cancel_futures=True)
                # A thread that waits for an answer may wait for minutes. What it then gets it does
                # not write: it looks first whether it shall stop.
                wait(running, timeout=_GRACE_SECONDS)
                raise
            pool.shutdown()
        if stop.is_set():
            raise InterruptedRunError(
                f"{target} is not complete yet.", next_step="Run the same command again to go on."
            )
        (arriving.tree / NOTES).mkdir(parents=True, exist_ok=True)
        write_origin(arriving.tree / NOTES, origin, run_id="-")
        arriving.finish()
    return origin


def _bring(
    repo: HubRepo, fetcher: Fetcher, file: RemoteFile, arriving: Incoming, stage: Stage
) -> None:
    target, part = arriving.tree / file.path, arriving.part(file.path)
    if _is_right(file, target):
        stage.advance(file.size_bytes)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    cached = cached_file(repo, file.path)
    if cached is not None:
        shutil.copyfile(cached, part)
        if file.is_content_of(part):
            part.replace(target)
            stage.advance(file.size_bytes)
            return
        part.unlink()
    fetcher.download(file, target, part, on_bytes=stage.advance)


def cached_file(repo: HubRepo, path: str) -> Path | None:
    """Return a file of the client's cache; None where it has none."""
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(
        repo.repo_id,
        path,
        cache_dir=constants.HF_HUB_CACHE,
        revision=repo.commit,
        repo_type="dataset",
    )
    return Path(found) if isinstance(found, str) else None


def _is_right(file: RemoteFile, path: Path) -> bool:
    return path.is_file() and file.is_content_of(path)


def _check_space(arriving: Incoming, repo: HubRepo, size_bytes: int) -> None:
    free, there = shutil.disk_usage(arriving.folder).free, arriving.size_bytes()
    if free + there < size_bytes:
        place = arriving.folder.parent
        raise StorageError(
            f"{place} has {free:,} bytes free, {repo.repo_id} needs {size_bytes:,}.",
            path=str(place),
            next_step="Free some space, choose another place with --root, or use --orchestrate, "
            "which holds no more than --scratch-limit of the source.",
        )
