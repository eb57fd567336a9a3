"""A store: files elsewhere that are listed, read in ranges and fetched whole.

`leconvert.transfer.hub.HubStore` is a repo of the Hub at one commit, and
`leconvert.transfer.urls.UrlStore` a folder behind any URL that `fsspec` knows.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leconvert.support.storage_errors import storage_errors

_SHA256_DIGITS = 64
_BLOCK_BYTES = 4096
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a store, as a listing shows it."""

    path: str  # its path in the store
    size_bytes: int  # its size
    # SHA-256 of its content where it is kept in large-file storage (64 hexadecimal digits), the id
    # of its Git blob where it is not (40), empty where the store has none.
    digest: str = ""
    # What else a store says that changes when the content does, such as an ETag; may be empty.
    mark: str = ""

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
        with storage_errors(path), path.open("rb") as file:
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


class Store(Protocol):
    """Files elsewhere. Threads may share it."""

    def list_files(self, folder: str = "") -> Iterator[RemoteFile]:
        """Yield the files below a folder; none where there is no such folder."""

    def find_file(self, path: str) -> RemoteFile | None:
        """Return one file; None where there is none."""

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file's bytes, cut at its end."""

    def download(
        self,
        file: RemoteFile,
        target: Path,
        part: Path,
        *,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Bring a whole file to a path that does not exist, by way of a part beside it.

        Args:
            on_bytes: Called with the number of bytes as they arrive, those found there included.
        """


# A listing as a table: written once by the planner, looked up by workers. It is sorted by path, in
# row groups whose footers say their first and last path, so that a worker reads only the groups
# that hold its files.

_ROWS_PER_GROUP = 16_384
_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("digest", pa.string()), ("whole", "bool")]
)


def read_all(files: Iterable[RemoteFile]) -> pa.Table:
    """Return a listing as a table sorted by path, some 100 bytes a file."""
    batches = []
    for block in batched(files, _ROWS_PER_GROUP):
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
