"""Reading from a dataset on the Hub at one commit: its listing, whole files, ranges of bytes.

Every address holds the commit's hash, so a branch that moves changes nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from leconvert._version import __version__
from leconvert.errors import SourceError
from leconvert.hub.client import make_api
from leconvert.hub.errors_of import asked_to_wait, hub_errors
from leconvert.hub.remote_file import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub.errors import Response
    from huggingface_hub.hf_api import RepoFile

__all__ = ["Body", "HubRepo", "TransientError"]

_CHUNK_BYTES = 1 << 20
_OF_THE_MOMENT = frozenset({408, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")
# Seconds to connect, to read, to write, and to get a connection.
_TIMEOUT = (20.0, 60.0, 60.0, 60.0)


class TransientError(Exception):
    """The store failed in a way that may be over in a moment.

    Args:
        cause: What the client raised.
        wait_seconds: How long the store asks to wait; 0 where it does not say.
    """

    def __init__(self, cause: Exception, wait_seconds: float = 0.0) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.wait_seconds = wait_seconds


@dataclass(frozen=True, slots=True)
class Body:
    """An answer that is being read.

    Attributes:
        start: The first byte of the file that it holds: a store may answer with more than asked.
        chunks: The bytes.
    """

    start: int
    chunks: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A dataset on the Hub, pinned to a commit; picklable, and holds no connection.

    Attributes:
        repo_id: ``ORG/NAME``.
        commit: The commit's hash.
        endpoint: The Hub's address; None for the one that is configured.
    """

    repo_id: str
    commit: str
    endpoint: str | None = None

    @property
    def name(self) -> str:
        """How it is called in messages, and as a URL."""
        return f"hf://datasets/{self.repo_id}@{self.commit}"

    def list_files(self) -> Iterator[RemoteFile]:
        """Yield every file, in the order of the listing's pages.

        Raises:
            HubError: There is no such repo or commit, or no answer.
            HubAccessError: The token does not allow it.
        """
        from huggingface_hub.hf_api import RepoFile

        with hub_errors(self.repo_id, self.commit):
            entries = make_api(endpoint=self.endpoint).list_repo_tree(
                self.repo_id, recursive=True, revision=self.commit, repo_type="dataset"
            )
            for entry in entries:
                if isinstance(entry, RepoFile):
                    yield self._file(entry)

    def find_file(self, path: str) -> RemoteFile | None:
        """Return one file of the listing, or None.

        Raises:
            HubError: There is no such repo or commit, or no answer.
            HubAccessError: The token does not allow it.
        """
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
        """Ask for a file or a range of it.

        Args:
            path: The file.
            start: Its first byte.
            stop: The byte after the last; None for the end.

        Raises:
            TransientError: It may work in a moment; also from within the block.
            HubError: It will not.
            HubAccessError: The token does not allow it.
        """
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
    """Return where a body begins: a server or a proxy may ignore what range was asked for.

    Raises:
        TransientError: It is a part, and nothing says which.
    """
    if answer.status_code != 206:
        return 0
    found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if found is None:
        raise TransientError(ConnectionError("a part of a file without its place in it"))
    return int(found[1])
