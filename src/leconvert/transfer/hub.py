"""Reading from a dataset on the Hub at one commit: its listing, whole files, ranges of bytes.

Every address holds the commit's hash, so a moving branch changes nothing. Downloads are repeated if
the Hub fails, resumed where they broke off, and checked: a file gets its final name only when the
bytes on the disk have the listed hash. Before that it has another name, and the next download, in
this process or another, continues after the existing bytes.

The client's own download and its file system are not enough: they check a size but no hash, put
parts into a folder that no scratch limit counts, and cannot be stopped within a file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import field
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from leconvert._version import __version__
from leconvert.support.errors import (
    HubError,
    HubUnavailableError,
    SourceError,
)
from leconvert.support.values import dataclass
from leconvert.transfer import client
from leconvert.transfer.client import TRIES, Patience, ask_hub, hub_errors, make_api
from leconvert.transfer.names import folder_of, in_folder, repository_of
from leconvert.transfer.store import (
    RemoteFile,
    is_content,
    other_content,
    stopped_while_fetching,
)

if TYPE_CHECKING:
    from huggingface_hub.errors import Response
    from huggingface_hub.hf_api import RepoFile, RepoFolder


_CHUNK_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")
# The Hub's ETag of a file: the id of its Git blob, or in large-file storage its SHA-256.
_CONTENT_ID = re.compile(r'"?([0-9a-f]{40}|[0-9a-f]{64})"?')
_READS_OF_A_SMALL_FILE = 3
_SECONDS_BETWEEN_LOOKS = 0.5  # the caller's stop flag wakes nobody, so it is looked at
# Seconds to connect, to read, to write, and to get a connection.
_TIMEOUT = (20.0, 60.0, 60.0, 60.0)


@dataclass(frozen=True, slots=True)
class Body:
    """An answer that is being read."""

    start: int  # offset of its first byte in the file; it may be before the requested one
    chunks: Iterator[bytes]  # the bytes
    digest: str = ""  # digest of the whole file, as in `RemoteFile`; empty if the answer has none


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class HubStore:
    """The files of a dataset on the Hub at one commit. Threads may share it.

    It holds no connection, so it can be sent to another process. Paths of its files are relative to
    its folder in the repository.
    """

    repo_id: str  # ``ORG/NAME`` or ``ORG/NAME/path/to/dataset``
    commit: str  # the commit's hash
    endpoint: str | None = None  # the Hub's address; None for the configured one

    kind: str = "dataset"
    # The token in the client's form; None for the user's own.
    token: str | bool | None = field(default=None, repr=False, compare=False)
    # Called while waiting, and with each chunk that arrives.
    should_stop: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    # Consecutive failures without a single new byte after which to give up.
    tries: int = field(default=TRIES, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Its name in messages, which is also its URL."""
        return f"hf://{self.kind}s/{self.repo_id}@{self.commit}"

    @property
    def repository(self) -> str:
        """The repository, as the client names it."""
        return repository_of(self.repo_id)

    def full_path(self, path: str) -> str:
        """Return the path of a file in the repository."""
        return in_folder(folder_of(self.repo_id), path)

    @contextmanager
    def open(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Body]:
        """Request a file, whole or a range.

        Args:
            path: The file.
            start: First byte of the range.
            stop: Byte after the last; None for the end of the file.

        Yields:
            The answer.

        Raises:
            HubError: The file cannot be read; see `leconvert.transfer.client.hub_errors`.
        """
        from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(
            self.repository,
            self.full_path(path),
            repo_type=self.kind,
            revision=self.commit,
            endpoint=self.endpoint,
        )
        headers = build_hf_headers(
            token=self.token, library_name="leconvert", library_version=__version__
        )
        # Hash and size are those of the stored bytes, so no compression.
        headers["Accept-Encoding"] = "identity"
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        with (
            hub_errors(self.repo_id, self.commit),
            get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT) as answer,
        ):
            hf_raise_for_status(answer)
            yield Body(_first_byte(answer), answer.iter_raw(_CHUNK_BYTES), _content_id(answer))

    def list_files(self, folder: str = "", *, recursive: bool = True) -> Iterator[RemoteFile]:
        """Yield the files below a folder; nothing if the folder does not exist.

        A failed request is repeated, and the files that were yielded already are skipped: the
        files of a commit are always the same.

        Args:
            folder: The folder.
            recursive: Whether to list subfolders, too.
        """
        from huggingface_hub.errors import EntryNotFoundError

        api = make_api(endpoint=self.endpoint, token=self.token)

        def ask(told: int) -> Iterator[RemoteFile]:
            with hub_errors(self.repo_id, self.commit):
                entries = api.list_repo_tree(
                    self.repository,
                    self.full_path(folder) or None,
                    recursive=recursive,
                    revision=self.commit,
                    repo_type=self.kind,
                )
                yield from islice(self._files_among(entries), told, None)

        try:
            yield from self._again(folder or self.name, ask, lambda _: 1)
        except HubError as error:
            if not isinstance(error.__cause__, EntryNotFoundError):
                raise

    def _files_among(self, entries: Iterable[RepoFile | RepoFolder]) -> Iterator[RemoteFile]:
        from huggingface_hub.hf_api import RepoFile

        top = folder_of(self.repo_id)
        for entry in entries:
            if not isinstance(entry, RepoFile):
                continue
            if PurePosixPath(entry.path).is_absolute() or ".." in entry.path.split("/"):
                raise SourceError(f"{self.name} has a file with the unsafe name {entry.path!r}.")
            digest = entry.blob_id if entry.lfs is None else entry.lfs.sha256
            path = entry.path.removeprefix(f"{top}/") if top else entry.path
            yield RemoteFile(path, entry.size, digest)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file's bytes."""
        stop = min(stop, file.size_bytes)
        return b"".join(self._chunks(file, start, stop))[: stop - start] if start < stop else b""

    def read_whole(self, path: str, digest: str = "") -> bytes | None:
        """Return a small file of unknown size, with one request; None if it does not exist.

        Args:
            path: The file.
            digest: Digest of its content, as in `RemoteFile`; by default that of the answer.

        Raises:
            UnreadableSourceError: It arrives with other content.
        """
        from huggingface_hub.errors import EntryNotFoundError

        def ask() -> tuple[bytes, str]:
            with self.open(path) as body:
                return b"".join(body.chunks), digest or body.digest

        for _ in range(_READS_OF_A_SMALL_FILE):
            try:
                found, told = self._patience(path).run(ask)
            except HubError as error:
                if isinstance(error.__cause__, EntryNotFoundError):
                    return None
                raise
            if is_content(found, told):
                return found
        raise other_content(path, self.name)

    def fetch(
        self, file: RemoteFile, out: BinaryIO, *, on_bytes: Callable[[int], None], anew: bool
    ) -> None:
        """Append the missing bytes of a file; the client's cache may already have it."""
        cached = None if anew else self._cached(file)
        if cached is not None:
            out.truncate(0)
            with cached.open("rb") as copy:
                shutil.copyfileobj(copy, out, _CHUNK_BYTES)
            on_bytes(out.tell())
            return
        if out.tell():
            on_bytes(out.tell())
        if out.tell() < file.size_bytes:
            with closing(self._chunks(file, out.tell())) as chunks:
                for chunk in chunks:
                    out.write(chunk)
                    on_bytes(len(chunk))

    def _cached(self, file: RemoteFile) -> Path | None:
        from huggingface_hub import constants, try_to_load_from_cache

        found = try_to_load_from_cache(
            self.repository,
            self.full_path(file.path),
            cache_dir=constants.HF_HUB_CACHE,
            revision=self.commit,
            repo_type=self.kind,
        )
        return Path(found) if isinstance(found, str) else None

    def _chunks(
        self, file: RemoteFile, start: int, stop: int | None = None
    ) -> Generator[bytes, None, None]:
        """Yield a range of a file; it ends with the first byte too many, if there is one."""
        end = file.size_bytes if stop is None else stop

        def ask(arrived: int) -> Iterator[bytes]:
            at = start + arrived
            with self.open(file.path, at, stop) as body:
                skip = at - body.start  # the answer may begin before the range
                for chunk in body.chunks if skip >= 0 else ():
                    self._check_stop(file.path)
                    yield chunk[skip:]
                    at += len(chunk[skip:])
                    skip -= min(skip, len(chunk))
                    if at > end:
                        return  # it is another file; the hash will show that
                if at < end:
                    raise HubUnavailableError(
                        f"The download of {file.path} of {self.name} breaks off again and again.",
                        path=file.path,
                        next_step="Check the network, then run the same command again. It "
                        "continues where it stopped.",
                    )

        yield from self._again(file.path, ask, len)

    def _again[T](
        self, what: str, ask: Callable[[int], Iterator[T]], size_of: Callable[[T], int]
    ) -> Generator[T, None, None]:
        """Yield the parts of an answer; after a failure, ask for the parts that are missing.

        Args:
            what: The file or folder, for messages.
            ask: Makes the request, given the sum of the sizes of the parts that arrived.
            size_of: Returns the size of a part.
        """
        patience, arrived = self._patience(what), 0
        while True:
            before = arrived
            try:
                for part in ask(arrived):
                    arrived += size_of(part)
                    yield part
                return
            except HubUnavailableError as error:
                patience.wait(error, arrived=arrived > before)

    def _patience(self, what: str) -> Patience:
        return Patience(self.tries, partial(self._wait, what))

    def _wait(self, path: str, seconds: float) -> None:
        while seconds > 0:
            self._check_stop(path)
            client.pause(min(seconds, _SECONDS_BETWEEN_LOOKS))
            seconds -= _SECONDS_BETWEEN_LOOKS

    def _check_stop(self, path: str) -> None:
        if self.should_stop():
            raise stopped_while_fetching(path)


def store_at(url: str) -> HubStore | None:
    """Return the files of a URL at the present commit of its revision; None for a bucket."""
    from huggingface_hub import HfFileSystem

    place: Any = ask_hub(url, None, lambda: HfFileSystem().resolve_path(url))
    if not hasattr(place, "repo_id"):
        return None
    where = {"repo_type": place.repo_type, "revision": place.revision}
    found = ask_hub(
        place.repo_id, place.revision, lambda: make_api().repo_info(place.repo_id, **where)
    )
    assert found.sha is not None
    name = in_folder(place.repo_id, place.path_in_repo)
    return HubStore(name, found.sha, kind=place.repo_type)


def _first_byte(answer: Response) -> int:
    """Return the offset where a body begins: a server or a proxy may ignore the requested range."""
    if answer.status_code != 206:
        return 0
    found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if found is None:
        raise ConnectionError(
            "the server sent a part of the file but did not say which bytes they are"
        )
    return int(found[1])


def _content_id(answer: Response) -> str:
    """Return the content id of a file from the first answer, before a redirect to storage."""
    first = answer.history[0] if answer.history else answer
    told = first.headers.get("X-Linked-Etag") or first.headers.get("ETag") or ""
    found = _CONTENT_ID.fullmatch(told)
    return "" if found is None else found[1]
