"""The files of a remote dataset as a table: written once by the planner, looked up by workers.

Sorted by path, in row groups whose footers say their first and last path, so that a worker reads
only the groups that hold its files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leconvert.hub.remote_file import RemoteFile

__all__ = ["Listing", "files_of", "read_all", "write_listing"]

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
    """Write a sorted table.

    Args:
        path: Where; synced by the caller.
        table: From `read_all`.
        whole: Paths of the files that the outline holds whole.
    """
    held = pc.is_in(table.column("path"), pa.array(list(whole), pa.string()))
    table = table.set_column(table.schema.get_field_index("whole"), "whole", held)
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP, compression="zstd")


class Listing:
    """A written listing.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        metadata = pq.read_metadata(path)
        place = metadata.schema.names.index("path")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self._firsts = [group.column(place).statistics.min for group in groups]

    def find(self, paths: Sequence[str]) -> list[tuple[RemoteFile, bool]]:
        """Return files by path, each with whether the outline holds it whole.

        Raises:
            KeyError: There is no such file.
        """
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
