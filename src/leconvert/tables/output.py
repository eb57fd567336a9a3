"""A file that is written from front to back, from memory and from other files."""

from __future__ import annotations

import errno
import os

from leconvert.errors import UnreadableSourceError
from leconvert.tables.opened import OpenedTable, unreadable

__all__ = ["SequentialOutput"]

_PENDING_BYTES = 1024**2
_PENDING_PIECES = 512  # writev takes 1024
_STEP_BYTES = 64 * 1024**2
_BUFFER_BYTES = 1024**2
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])


class SequentialOutput:
    """Gathers small pieces, and copies large ones in the kernel where it can.

    Nothing is on its way to the disk before :meth:`flush`, and nothing is synced.

    Args:
        descriptor: A file open for writing, at its beginning.

    Attributes:
        position: Bytes taken so far, those still in memory included.
    """

    def __init__(self, descriptor: int) -> None:
        self.position = 0
        self._descriptor = descriptor
        self._written = 0
        self._pending: list[bytes | memoryview] = []
        # Also where they moved nothing without an error: some file systems do.
        self._refused: set[str] = set()

    def append(self, content: bytes | memoryview) -> None:
        """Take bytes from memory, which must not change until the next flush.

        Raises:
            OSError: The file system failed.
        """
        self._pending.append(content)
        self.position += len(content)
        if self.position - self._written >= _PENDING_BYTES or len(self._pending) >= _PENDING_PIECES:
            self.flush()

    def copy(self, source: OpenedTable, start: int, size: int) -> None:
        """Take a range of another file.

        Raises:
            UnreadableSourceError: The source ends before the range does, or fails.
            OSError: The file system failed while writing.
        """
        if source.whole is not None:
            self.append(memoryview(source.whole)[start : start + size])
            return
        self.flush()
        done = 0
        while done < size:
            count = min(size - done, _STEP_BYTES)
            moved = self._in_kernel(source, start + done, count)
            if not moved:
                moved = self._through_memory(source, start + done, min(count, _BUFFER_BYTES))
            done += moved
            self._written += moved
            self.position += moved

    def flush(self) -> None:
        """Write what is in memory.

        Raises:
            OSError: The file system failed.
        """
        pieces, self._pending = self._pending, []
        missing = self.position - self._written
        while missing:
            count = os.pwritev(self._descriptor, pieces, self._written)
            self._written += count
            missing -= count
            if missing:
                # Rare: a write that was cut short.
                pieces = [b"".join(pieces)[count:]]

    def _in_kernel(self, source: OpenedTable, start: int, count: int) -> int:
        """Copy some of a range; 0 where the kernel will not, for whatever reason."""
        if "copy_file_range" not in self._refused:
            try:
                moved = os.copy_file_range(
                    source.descriptor, self._descriptor, count, start, self._written
                )
            except OSError as error:
                _raise_if_full(error)
                moved = 0
            if moved:
                return moved
            self._refused.add("copy_file_range")
        if "sendfile" not in self._refused:
            try:
                os.lseek(self._descriptor, self._written, os.SEEK_SET)
                moved = os.sendfile(self._descriptor, source.descriptor, start, count)
            except OSError as error:
                _raise_if_full(error)
                moved = 0
            if moved:
                return moved
            self._refused.add("sendfile")
        return 0

    def _through_memory(self, source: OpenedTable, start: int, count: int) -> int:
        try:
            content = os.pread(source.descriptor, count, start)
        except OSError as error:
            raise unreadable(source.path, error) from error
        if not content:
            raise UnreadableSourceError(
                f"The parquet file {source.path} is shorter than its footer says.",
                path=source.path,
                next_step="Fetch or record the file again, or leave its episode out.",
            )
        return os.pwrite(self._descriptor, content, self._written)


def _raise_if_full(error: OSError) -> None:
    """Let a full disk be one: any other way of writing would find the same."""
    if error.errno in _FULL:
        raise error
