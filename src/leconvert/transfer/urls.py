"""Folders in stores that `fsspec` knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from leconvert.support.errors import (
    InstallationError,
    LeconvertError,
    SourceError,
    StorageError,
    UsageError,
)
from leconvert.support.extras import command_for_extra
from leconvert.workdir.secrets import without_credentials

_EXTRAS = {"s3": "s3", "s3a": "s3"}
# What stores say of a file that changes when its content does.
_MARKS = (
    *("ETag", "etag", "md5Hash", "md5", "generation", "VersionId", "blob_id", "xet_hash"),
    *("LastModified", "last_modified", "mtime", "created"),
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a store.

    Attributes:
        size_bytes: Its size.
        mark: What else the store says that changes when the content does; may be empty.
    """

    size_bytes: int
    mark: str


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of a store.

    Attributes:
        url: As the user wrote it, without a slash at the end and without credentials; for people.
        fs: The file system.
        root: The folder in it.
    """

    url: str
    fs: Any
    root: str

    def path(self, relative: str) -> str:
        """Return the store's path of a file."""
        return f"{self.root}/{relative}"

    def list_files(self) -> dict[str, StoredFile]:
        """Return every file below the folder by its relative path; empty where there is none."""
        with store_errors(self.url):
            self.fs.invalidate_cache()  # what was listed before may have changed
            try:
                found: Mapping[str, Mapping[str, Any]] = self.fs.find(self.root, detail=True)
            except FileNotFoundError:
                return {}
        files = {}
        prefix = f"{self.root}/"
        for path, seen in sorted(found.items()):
            if path.endswith("/"):
                continue  # an empty object by which a web console keeps a folder that it made
            relative = path.removeprefix(prefix)
            if ".." in PurePosixPath(relative).parts or PurePosixPath(relative).is_absolute():
                raise SourceError(f"{self.url} has a file with the name {path!r}.", path=self.url)
            files[relative] = StoredFile(int(seen["size"]), content_mark(seen))
        return files


def open_store(url: str) -> Store:
    """Return the folder that a URL names; asks nothing yet.

    Raises:
        UsageError: Nobody knows such URLs.
        InstallationError: What is needed for them is not installed.
        StorageError: A server that is asked at once does not answer.
    """
    from fsspec.core import url_to_fs

    protocol = url.partition("://")[0]
    shown = without_credentials(url)
    try:
        fs, root = url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        helps = f"Run `{command_for_extra(extra)}`" if extra else str(error)
        raise InstallationError(
            f"{shown} cannot be reached: {protocol}:// needs a library that is not installed.",
            path=shown,
            next_step=f"{helps.rstrip('.')}.",
        ) from error
    except OSError as error:  # some ask their server at once
        raise _failure(shown, error) from error
    except ValueError as error:
        raise UsageError(
            f"{shown} is no URL that can be read: {without_credentials(str(error))}.", path=shown
        ) from error
    return Store(shown.rstrip("/"), fs, str(root).rstrip("/"))


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn whatever a store's library raises within the block into a `StorageError`.

    ``FileNotFoundError`` passes through.
    """
    try:
        yield
    except (LeconvertError, FileNotFoundError):
        raise
    except Exception as error:  # each library has errors of its own, without a common base
        raise _failure(url, error) from error


def _failure(url: str, error: Exception) -> StorageError:
    said = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return StorageError(
        f"{url} fails: {without_credentials(said[0]).rstrip('.')}.",
        path=url,
        next_step="Check the address and the credentials, then run the same command again; it "
        "goes on where it stopped.",
    )


def content_mark(found: Mapping[str, Any]) -> str:
    """Return what a store says of a file that changes when its content does; may be empty."""
    return ";".join(f"{key}={found[key]}" for key in _MARKS if found.get(key) is not None)
