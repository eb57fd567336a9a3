"""Move byte ranges between files with as little work as the file systems allow.

The bytes that arrive are always the same. The ways, from best to last: share the extents, copy in
the kernel (`leconvert.support.file_calls`), read and write. A way that two file systems refuse once
is not tried again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from leconvert.support.errors import InterruptedRunError, StorageError, UnreadableSourceError
from leconvert.support.file_calls import KERNEL_COPIES, clone_range
from leconvert.support.storage_errors import CHECK_DISK
from leconvert.support.text import GET_AGAIN_OR_DROP

_STEP_BYTES = 64 * 1024**2
_BUFFER_BYTES = 1024**2

_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])


class RangeMover:
    """Moves byte ranges into one open destination, and remembers which ways work.

    Guaranteed: after :meth:`move` the destination holds the bytes of the source range, and a source
    that ends early is an error. It does not sync, and after an error a part of the range may be
    there.

    Args:
        destination: Descriptor of a file open for reading and writing.
        path: Its name, for errors.
        block_align: Share whole blocks of this size if both offsets are equal modulo it; 0 for
            never.
        on_bytes: Called with the number of bytes after each step.
        should_stop: Called before each step.

    Attributes:
        copied_bytes: Bytes that were copied.
        cloned_bytes: Bytes that are shared with their source.
    """

    def __init__(
        self,
        destination: int,
        path: str,
        *,
        block_align: int = 0,
        on_bytes: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.copied_bytes = 0
        self.cloned_bytes = 0
        self._destination = destination
        self._path = path
        self._block_align = block_align
        self._on_bytes = on_bytes
        self._should_stop = should_stop
        self._refused: set[tuple[int, str]] = set()
        self._buffer = memoryview(b"")

    def move(
        self, source: int, source_path: str, start: int, length: int, target_start: int
    ) -> None:
        """Move one range.

        Raises:
            UnreadableSourceError: The source cannot be read, or ends early.
            StorageError: The destination cannot be written.
            InterruptedRunError: ``should_stop`` returned true.
        """
        align = self._block_align
        if align and (start - target_start) % align == 0 and not self._refuses(source, "clone"):
            inner_start = -(-start // align) * align
            inner_stop = (start + length) // align * align
            if inner_start < inner_stop:
                head = inner_start - start
                self._copy(source, source_path, start, head, target_start)
                done = head + self._clone(source, inner_start, inner_stop, target_start + head)
                start, length, target_start = start + done, length - done, target_start + done
        self._copy(source, source_path, start, length, target_start)

    def _refuses(self, source: int, way: str) -> bool:
        """Return whether a way was refused before for files on the same device."""
        return bool(self._refused) and (os.fstat(source).st_dev, way) in self._refused

    def _note_refusal(self, source: int, way: str) -> None:
        self._refused.add((os.fstat(source).st_dev, way))

    def _clone(self, source: int, start: int, stop: int, target_start: int) -> int:
        """Share whole blocks; return how many of their bytes are shared now."""
        done = 0
        while start + done < stop:
            self._check_stop()
            count = min(stop - start - done, _STEP_BYTES)
            try:
                clone_range(source, self._destination, start + done, count, target_start + done)
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                # For any other error, copying will either succeed or give a more exact error.
                self._note_refusal(source, "clone")
                break
            done += count
            self.cloned_bytes += count
            self._report(count)
        return done

    def _copy(self, source: int, path: str, start: int, length: int, target_start: int) -> None:
        while length:
            self._check_stop()
            count = min(length, _STEP_BYTES)
            moved = self._copy_in_kernel(source, start, count, target_start)
            if not moved:
                moved = self._copy_through_memory(source, path, start, count, target_start)
            start, length, target_start = start + moved, length - moved, target_start + moved
            self.copied_bytes += moved
            self._report(moved)

    def _copy_in_kernel(self, source: int, start: int, count: int, target_start: int) -> int:
        """Copy some of a range; return 0 if the kernel refuses, for any reason."""
        for name, way in KERNEL_COPIES.items():
            if self._refuses(source, name):
                continue
            try:
                moved = way(source, self._destination, start, count, target_start)
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                moved = 0
            if moved:
                return moved
            # Some file systems move nothing without an error.
            self._note_refusal(source, name)
        return 0

    def _copy_through_memory(
        self, source: int, path: str, start: int, count: int, target_start: int
    ) -> int:
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        try:
            moved = os.preadv(source, [self._buffer[: min(count, _BUFFER_BYTES)]], start)
        except OSError as error:
            raise UnreadableSourceError(
                f"{path} cannot be read: {error.strerror or error}.",
                path=path,
                next_step=CHECK_DISK,
            ) from error
        if not moved:
            raise UnreadableSourceError(
                f"{path} is shorter than its index says: the file is cut off.",
                path=path,
                next_step=GET_AGAIN_OR_DROP,
            )
        self.write([self._buffer[:moved]], target_start)
        return moved

    def write(self, pieces: Sequence[bytes | memoryview], target_start: int) -> None:
        """Write bytes from memory, one piece after another; at most 1,024 pieces."""
        missing = sum(map(len, pieces))
        try:
            while missing:
                count = os.pwritev(self._destination, pieces, target_start)
                missing -= count
                target_start += count
                if missing:
                    # Rare: a write that was cut short.
                    pieces = [b"".join(pieces)[count:]]
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self._path} cannot be written: {error.strerror or error}.",
            path=self._path,
            next_step="Free disk space or check the disk, then run the same command again.",
        )

    def _report(self, count: int) -> None:
        if self._on_bytes is not None:
            self._on_bytes(count)

    def _check_stop(self) -> None:
        if self._should_stop is not None and self._should_stop():
            raise InterruptedRunError(
                f"Stopped while writing {self._path}.",
                path=self._path,
                next_step="Run the same command again to resume.",
            )
