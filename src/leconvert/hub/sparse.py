"""A local file with the size of a remote one and those of its bytes that a scan reads.

The rest is a hole. What a scan reads of a clip is its index (``moov``), of a table its footer,
the columns that place a row, lists whose lengths their type does not say, and columns that are not
declared; all are found here by the code that the scan itself uses, only that
it reads ranges over the network, and every byte that was read is written to the same place in the
local file. So the scan finds in it what it would find in the whole file, or the file is fetched
whole (`leconvert.hub.outline` decides).
"""

from __future__ import annotations

import io
import os
from collections.abc import Buffer, Collection

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.hub.fetch import Fetcher
from leconvert.hub.remote_file import RemoteFile
from leconvert.media.boxes import read_moov
from leconvert.repairs import DEFAULT_COLUMNS
from leconvert.tables import list_sizes

__all__ = ["SparseCopy"]

# A request costs as much time as some tens of kilobytes.
_LEAST_BYTES = 64 * 1024
# The length of the footer and the magic.
_TRAILER_BYTES = 8


class SparseCopy:
    """The local file; not for several threads.

    Args:
        file: The remote file.
        fetcher: Reads ranges of it.
        descriptor: The local file, open for writing, empty.
    """

    def __init__(self, file: RemoteFile, fetcher: Fetcher, descriptor: int) -> None:
        self._file = file
        self._fetcher = fetcher
        self._descriptor = descriptor
        self._fetched: list[tuple[int, bytes]] = []
        os.truncate(descriptor, file.size_bytes)

    def take_clip_index(self) -> None:
        """Bring what `leconvert.media.read_clip_index` reads.

        Raises:
            LeconvertError: There is no such thing, or the network fails.
        """
        read_moov(
            self._descriptor,
            self._file.size_bytes,
            self._file.path,
            pread=lambda _, count, position: self.take(position, count),
        )

    def take_table_index(self, declared: Collection[str], *, with_images: bool) -> None:
        """Bring the footer of a parquet file, and its columns that a scan reads.

        Args:
            declared: Features of the dataset.
            with_images: Whether of columns that are not declared those are brought, too, that may
                be images: a scan looks at the first.

        Raises:
            ValueError: It is no parquet file; also as an ``ArrowException``.
            LeconvertError: The network fails.
        """
        end = self._file.size_bytes - _TRAILER_BYTES
        footer_bytes = int.from_bytes(self.take(max(0, end), 4), "little")
        if footer_bytes > end:
            raise ValueError("the footer is larger than the file")
        self.take(end - footer_bytes, footer_bytes + _TRAILER_BYTES)
        metadata = pq.read_metadata(pa.PythonFile(_Window(self), mode="r"))
        wanted, where_empty = set(DEFAULT_COLUMNS), set()
        for field in metadata.schema.to_arrow_schema():
            sizes = list_sizes(field.type)
            may_be_image = pa.types.is_struct(field.type) or "binary" in str(field.type)
            if None in sizes or (field.name not in declared and (with_images or not may_be_image)):
                wanted.add(field.name)
            elif sizes:
                where_empty.add(field.name)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for place in range(group.num_columns):
                chunk = group.column(place)
                may_be_empty = metadata.num_row_groups > 1 or _null_count(chunk) != 0
                if _is_of(chunk, wanted) or (may_be_empty and _is_of(chunk, where_empty)):
                    offsets = [chunk.data_page_offset]
                    if chunk.dictionary_page_offset is not None:
                        offsets.append(chunk.dictionary_page_offset)
                    self.take(min(offsets), chunk.total_compressed_size)

    @property
    def size_bytes(self) -> int:
        """The remote file's size."""
        return self._file.size_bytes

    def take(self, position: int, count: int) -> bytes:
        """Bring a range; returns it, shorter only at the end of the file."""
        count = max(0, min(count, self._file.size_bytes - position))
        for start, found in self._fetched:
            if start <= position and position + count <= start + len(found):
                data = found[position - start : position - start + count]
                break
        else:
            start = position
            if position + count == self._file.size_bytes:  # an end is asked for backwards
                start = max(0, min(position, self._file.size_bytes - _LEAST_BYTES))
            stop = max(position + count, position + _LEAST_BYTES)
            found = self._fetcher.read(self._file, start, stop)
            self._fetched.append((start, found))
            data = found[position - start : position - start + count]
        os.pwrite(self._descriptor, data, position)
        return data


def _is_of(chunk: pq.ColumnChunkMetaData, wanted: Collection[str]) -> bool:
    """Whether a leaf may be of one of some columns: their names, too, have dots."""
    path = chunk.path_in_schema
    return any(path == name or path.startswith(f"{name}.") for name in wanted)


def _null_count(chunk: pq.ColumnChunkMetaData) -> int | None:
    found = chunk.statistics
    return found.null_count if found is not None and found.has_null_count else None


class _Window(io.RawIOBase):
    """What Arrow reads of the remote file."""

    def __init__(self, copy: SparseCopy) -> None:
        self._copy = copy
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_CUR: self._position, os.SEEK_END: self._copy.size_bytes}.get(whence, 0)
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._copy.take(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
