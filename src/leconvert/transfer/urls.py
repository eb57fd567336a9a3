"""Folders in stores that `fsspec` knows; their libraries repeat failed requests themselves.

**The check of a file that arrives.** Its size is compared, and its MD5 if the store states one.
Google's stores do. In S3 an ETag is the MD5, or a digest of the MD5s of the parts, but not with
every encryption and not in every store that speaks S3. So a file with another MD5 is read again. If
the bytes are the same the second time, and no ETag of this store was right before, the ETag is
assumed to be something else. If a store states no MD5, a byte that changes on its way is not
noticed.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from leconvert.support.errors import (
    InstallationError,
    LeconvertError,
    SourceChangedError,
    SourceError,
    StorageError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.extras import command_for_extra
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count, first_few, without_credentials
from leconvert.support.values import dataclass
from leconvert.transfer.store import RemoteFile, other_content

_CHANGES_SHOWN = 20
_EXTRAS = {"s3": "s3", "s3a": "s3"}
# Stores of buckets, or containers, in which files have names with slashes and need no folders.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"})
# Metadata of a file that changes when its content does.
_MARKS = (
    *("ETag", "etag", "md5Hash", "md5", "generation", "VersionId", "blob_id", "xet_hash"),
    *("LastModified", "last_modified", "mtime", "created"),
)


# The MD5 in a mark: in hexadecimal digits, with the number of parts if it is of parts, or in base
# 64.
_ETAG = re.compile(r'(?:^|;)etag="?([0-9a-f]{32})(?:-([0-9]+))?"?(?:;|$)', re.IGNORECASE)
_MD5 = re.compile(r"(?:^|;)md5Hash=([0-9A-Za-z+/]{22}==)(?:;|$)")
_READS = 3


@dataclass(slots=True, eq=False)
class UrlStore:
    """A folder of a store. Threads may share it."""

    url: str  # the user's URL, without a slash at the end and without credentials
    _fs: Any  # the file system, as opened by the thread that makes this object
    root: str  # the folder in it
    # Whether an MD5 from the store was right: then all are, except those of encrypted files. None
    # before the first.
    _is_md5_right: bool | None = None
    _of_threads: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_threads[threading.get_ident()] = self._fs

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.url

    @property
    def fs(self) -> Any:
        """The file system for this thread; one that is not asynchronous serves a single thread.

        Over a shared connection, such as FTP's, a thread could get the bytes of another file.
        """
        made = self._fs
        if made.async_impl:
            return made
        thread = threading.get_ident()
        if thread not in self._of_threads:
            own = type(made)(*made.storage_args, **made.storage_options)
            self._of_threads[thread] = own
        return self._of_threads[thread]

    def path(self, relative: str) -> str:
        """Return the store's path of a file."""
        return f"{self.root}/{relative}"

    @property
    def bucket(self) -> str | None:
        """The bucket or container; None if the store has folders instead."""
        return self.root.partition("/")[0] if _protocol(self.url) in _OBJECT_STORES else None

    def make_folder(self, path: str) -> None:
        """Make a folder, given by a path of the store, if files need one; never a bucket."""
        if self.bucket is None:
            with store_errors(self.url):
                self.fs.makedirs(path, exist_ok=True)

    def make_bucket(self) -> None:
        """Make the bucket, if it does not exist."""
        if self.bucket is not None:
            with store_errors(self.url):
                self.fs.makedirs(self.bucket, exist_ok=True)

    def list_files(self, folder: str = "") -> Iterator[RemoteFile]:
        """Yield the files below a folder, sorted; nothing if the folder does not exist."""
        found: Mapping[str, Mapping[str, Any]] = {}
        with suppress(FileNotFoundError), store_errors(self.url):
            self.fs.invalidate_cache()  # an earlier listing may be out of date
            found = self.fs.find(self.path(folder).rstrip("/"), detail=True)
        prefix = f"{self.root}/"
        for path, seen in sorted(found.items()):
            if path.endswith("/"):
                continue  # an empty object that a web console made to keep a folder
            relative = path.removeprefix(prefix)
            if ".." in PurePosixPath(relative).parts or PurePosixPath(relative).is_absolute():
                raise SourceError(
                    f"{self.url} has a file with the unsafe name {path!r}.", path=self.url
                )
            yield RemoteFile(relative, int(seen["size"]), mark=_content_mark(seen))

    def find_file(self, path: str) -> RemoteFile | None:
        """Return one file; None if it does not exist."""
        with suppress(FileNotFoundError), store_errors(self.url):
            self.fs.invalidate_cache(self.path(path))  # an earlier listing may be out of date
            found = self.fs.info(self.path(path))
            return RemoteFile(path, int(found["size"]), mark=_content_mark(found))
        return None

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file's bytes, cut at the file's end.

        Raises:
            UnreadableSourceError: The store returns fewer bytes.
        """
        stop = min(stop, file.size_bytes)
        if start >= stop:
            return b""
        with store_errors(self.url):
            data: bytes = self.fs.cat_file(self.path(file.path), start=start, end=stop)
        if len(data) != stop - start:
            name = f"{self.url}/{file.path}"
            raise UnreadableSourceError(
                f"{name} returned only {len(data)} of {stop - start} bytes from byte {start} on.",
                path=name,
                next_step="Check that the whole file was uploaded.",
            )
        return data

    def fetch(
        self, file: RemoteFile, out: BinaryIO, *, on_bytes: Callable[[int], None], anew: bool
    ) -> None:
        """Write a whole file. Existing bytes are fetched again, since the listing has no hashes.

        Raises:
            SourceChangedError: The file is gone or changed.
            UnreadableSourceError: It arrives with another size or, as far as the store states its
                MD5, with other content.
        """
        del anew
        seen: set[str] = set()
        for _ in range(_READS):
            self._get(file, out)
            if self._is_as_told(file, out, seen):
                on_bytes(file.size_bytes)
                return
        self.fs.invalidate_cache()
        now = self.find_file(file.path)
        if now is None or _md5_told(now) != _md5_told(file):
            raise changed_meanwhile(self.url, [f"{file.path}: it changed or no longer exists"])
        raise other_content(file.path, self.url)

    def _get(self, file: RemoteFile, out: BinaryIO) -> None:
        try:
            with store_errors(self.url):
                # The library opens a file by name. This name creates none: the file may have lost
                # its own name meanwhile, see `NameGate`. Not every platform empties a file by it.
                out.truncate(0)
                self.fs.get_file(self.path(file.path), f"/dev/fd/{out.fileno()}")
        except FileNotFoundError as error:
            raise changed_meanwhile(self.url, [f"{file.path}: it no longer exists"]) from error
        size_bytes = os.fstat(out.fileno()).st_size
        if size_bytes != file.size_bytes:
            raise UnreadableSourceError(
                f"The download of {file.path} of {self.url} has {size_bytes:,} bytes, but "
                f"{file.size_bytes:,} are listed.",
                path=self.path(file.path),
                next_step="Run the same command again.",
            )
        os.fsync(out.fileno())  # the next call trusts a file that has its name and its size

    def _is_as_told(self, file: RemoteFile, out: BinaryIO, seen: set[str]) -> bool:
        """Return whether a file has the store's MD5, or the store states none that can be checked.

        Args:
            file: The listed file.
            out: The file that arrived.
            seen: MD5s of the earlier copies.
        """
        told, parts = _md5_told(file)
        part_bytes = None
        if parts:
            part_bytes = self._head(file, PartNumber=1).get("ContentLength")
        if told is None or (parts and not part_bytes):
            return True
        with storage_errors(out.name):
            found = _md5_of(out, part_bytes)
        if found == told:
            self._is_md5_right = True
            return True
        if self._is_md5_right is False:
            return True
        # Parts may differ in size, and ETags of encrypted files are not MD5s.
        is_md5 = self._is_md5_right and not parts and not self._is_encrypted(file)
        if is_md5 or found not in seen:
            seen.add(found)
            return False
        if not parts and self._is_md5_right is None:
            self._is_md5_right = False
        return True

    def _is_encrypted(self, file: RemoteFile) -> bool:
        """Return whether a file's ETag is no MD5 because of S3's encryption."""
        found = self._head(file)
        return "kms" in found.get("ServerSideEncryption", "") or "SSECustomerAlgorithm" in found

    def _head(self, file: RemoteFile, **asked: object) -> Mapping[str, Any]:
        """Return S3's metadata of a file, or of one of its parts; empty if it cannot be read."""
        ask = getattr(self.fs, "call_s3", None)
        bucket, _, key = self.path(file.path).partition("/")
        with suppress(Exception):  # the answer is only an aid
            if ask is not None:
                return dict(ask("head_object", Bucket=bucket, Key=key, **asked))
        return {}


def open_store(url: str) -> UrlStore:
    """Return the folder that a URL names; usually no request is made yet.

    Raises:
        UsageError: The URL cannot be read.
        InstallationError: A library for such URLs is missing.
        StorageError: A server that is asked at once does not answer.
    """
    from fsspec.core import url_to_fs

    protocol = _protocol(url)
    shown = without_credentials(url)
    try:
        fs, root = url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        helps = f"Run `{command_for_extra(extra)}`" if extra else str(error)
        raise InstallationError(
            f"{shown} cannot be read: the library for {protocol}:// is not installed.",
            path=shown,
            next_step=f"{helps.rstrip('.')}.",
        ) from error
    except OSError as error:  # some libraries ask their server at once
        raise _failure(shown, error) from error
    except ValueError as error:
        raise UsageError(
            f"The URL {shown} cannot be read: {without_credentials(str(error))}.", path=shown
        ) from error
    return UrlStore(shown.rstrip("/"), fs, str(root).rstrip("/"))


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower()


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn any error of a store's library within the block into a `StorageError`.

    ``FileNotFoundError`` passes through if the store answered. fsspec also raises it, with the
    reason as the cause, where a web server cannot be reached or fails.
    """
    try:
        yield
    except LeconvertError:
        raise
    except FileNotFoundError as error:
        why = error.__cause__
        is_gone = isinstance(why, OSError) and not isinstance(why, FileNotFoundError)
        fails = getattr(why, "status", 0) >= HTTPStatus.INTERNAL_SERVER_ERROR
        if why is not None and (is_gone or fails):
            raise _failure(url, why) from why
        raise
    except Exception as error:  # each library has errors of its own, without a common base
        raise _failure(url, error) from error


def _failure(url: str, error: BaseException) -> StorageError:
    said = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return StorageError(
        f"A request to {url} failed: {without_credentials(said[0]).rstrip('.')}.",
        path=url,
        next_step="Check the address and the credentials, then run the same command again. It "
        "continues where it stopped.",
    )


def _md5_told(file: RemoteFile) -> tuple[str | None, int]:
    """Return the MD5 that a store states for a file, and its number of parts; 0 if it has none."""
    if found := _ETAG.search(file.mark):
        return found[1].lower(), int(found[2] or 0)
    found = _MD5.search(file.mark)
    return (a2b_base64(found[1]).hex() if found else None), 0


_CHUNK_BYTES = 1024**2


def _md5_of(file: BinaryIO, part_bytes: int | None) -> str:
    """Return the MD5 of an open file, or the MD5 over the MD5s of its parts."""
    file.seek(0)
    whole = _md5()
    while part := file.read(part_bytes or _CHUNK_BYTES):
        whole.update(_md5(part).digest() if part_bytes else part)
    return str(whole.hexdigest())


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)


def _content_mark(found: Mapping[str, Any]) -> str:
    """Return the metadata of a file that changes when its content does; may be empty."""
    return ";".join(f"{key}={found[key]}" for key in _MARKS if found.get(key) is not None)


def changed_meanwhile(url: str, changes: list[str]) -> SourceChangedError:
    """Return the error for files that changed while they were fetched."""
    return SourceChangedError(
        f"{url} changed during the download, in {count(len(changes), 'place')}.",
        path=url,
        details=first_few(changes, _CHANGES_SHOWN),
        next_step="Run the same command again when no other program writes there. It downloads "
        "the changed files.",
    )
