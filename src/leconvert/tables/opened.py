"""A parquet file as bytes: its footer, and windows onto the rest."""

from __future__ import annotations

import os
from typing import Self

from leconvert.errors import UnreadableSourceError
from leconvert.tables.thrift import ThriftError

__all__ = ["OpenedTable", "missing", "unreadable"]

MAGIC = b"PAR1"
TRAILER_BYTES = 8  # little-endian length of the footer, then the magic

_WHOLE_FILE_BYTES = 128 * 1024
_TAIL_BYTES = 64 * 1024


class OpenedTable:
    """An open parquet file; small ones are read at once.

    Args:
        path: The file.

    Raises:
        UnreadableSourceError: It is missing, or the file system fails.

    Attributes:
        path: The file.
        descriptor: It, open for reading.
        size_bytes: Its size when it was opened.
        whole: All its bytes if they are few, else None.
    """

    __slots__ = ("_tail", "descriptor", "path", "size_bytes", "whole")

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise missing(path) from error
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self.size_bytes = os.fstat(self.descriptor).st_size
            is_small = self.size_bytes <= _WHOLE_FILE_BYTES
            tail_bytes = self.size_bytes if is_small else _TAIL_BYTES
            self._tail = self._read(self.size_bytes - tail_bytes, tail_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.whole = self._tail if is_small else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def footer(self) -> bytes:
        """Return the footer, without the length and the magic behind it.

        Raises:
            ThriftError: The file does not begin or end like a parquet file, or is encrypted.
            UnreadableSourceError: The file system fails.
        """
        tail = self._tail
        footer_bytes = int.from_bytes(tail[-TRAILER_BYTES:-4], "little")
        start = self.size_bytes - TRAILER_BYTES - footer_bytes
        if tail[-4:] != MAGIC or start < len(MAGIC):
            raise ThriftError("it does not end like a parquet file")
        first = self.size_bytes - len(tail)
        if start < first:
            return self._read(start, footer_bytes)
        return tail[start - first : -TRAILER_BYTES]

    def window(self, position: int, size: int) -> tuple[bytes, int]:
        """Return a buffer that holds ``size`` bytes from ``position`` on, and where they begin.

        Raises:
            UnreadableSourceError: The file system fails.
        """
        if self.whole is not None:
            return self.whole, position
        return self._read(position, size), 0

    def _read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self.descriptor, size, position)
        except OSError as error:
            raise unreadable(self.path, error) from error


def missing(path: str | os.PathLike[str]) -> UnreadableSourceError:
    """Return the error for a parquet file that is not there."""
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} does not exist.",
        path=os.fspath(path),
        next_step="Restore the file, or leave its episode out.",
    )


def unreadable(path: str | os.PathLike[str], error: Exception) -> UnreadableSourceError:
    """Return the error for a parquet file that cannot be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UnreadableSourceError(
        f"The parquet file {os.fspath(path)} cannot be read: {reason}",
        path=os.fspath(path),
        next_step="Fetch or record the file again, or leave its episode out.",
    )
