"""Move byte ranges between files with as little work as the file systems allow.

Whatever way is taken, the bytes that arrive are the same. From best to last: share the extents
(``FICLONERANGE``), copy in the kernel (``copy_file_range``), copy between page caches
(``sendfile``), read and write. A way that two file systems refuse once is not tried again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from struct import Struct

from leconvert.support.errors import InterruptedRunError, StorageError, UnreadableSourceError
from leconvert.support.text import GET_AGAIN

_FICLONERANGE = 0x4020940D
_CLONE_RANGE = Struct("@qQQQ")
_STEP_BYTES = 64 * 1024**2
_BUFFER_BYTES = 1024**2

_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])


class _Source:
    """An open file, and the device that it is on: asked for only where something was refused."""

    __slots__ = ("_device", "descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self._device: int | None = None

    @property
    def device(self) -> int:
        if self._device is None:
            self._device = os.fstat(self.descriptor).st_dev
        return self._device


class RangeMover:
    """Moves byte ranges into one open destination, remembering what works.

    It guarantees that after :meth:`move` the destination holds the bytes of the source range, and
    that a source that ends early is an error. It does not sync, and after an error the range may
    be there in part.

    Args:
        destination: Descriptor of a file open for reading and writing.
        path: Its name, for errors.
        block_align: Clone whole blocks of this size where both sides agree modulo it; 0: never.
        on_bytes: Called with the number of bytes after each step.
        should_stop: Asked before each step.

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
        """Bring one range over."""
        origin = _Source(source, source_path)
        align = self._block_align
        if align and (start - target_start) % align == 0 and not self._refuses(origin, "clone"):
            inner_start = -(-start // align) * align
            inner_stop = (start + length) // align * align
            if inner_start < inner_stop:
                head = inner_start - start
                self._copy(origin, start, head, target_start)
                cloned = self._clone(origin, inner_start, inner_stop, target_start + head)
                done = head + cloned
                start, length, target_start = start + done, length - done, target_start + done
        self._copy(origin, start, length, target_start)

    def _refuses(self, source: _Source, way: str) -> bool:
        return bool(self._refused) and (source.device, way) in self._refused

    def _clone(self, source: _Source, start: int, stop: int, target_start: int) -> int:
        """Share whole blocks; return how many bytes of them are shared now."""
        done = 0
        while start + done < stop:
            self._check_stop()
            count = min(stop - start - done, _STEP_BYTES)
            request = _CLONE_RANGE.pack(source.descriptor, start + done, count, target_start + done)
            try:
                fcntl.ioctl(self._destination, _FICLONERANGE, request)
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                # Whatever else it is: copying will either do, or say more exactly what is wrong.
                self._refused.add((source.device, "clone"))
                break
            done += count
            self.cloned_bytes += count
            self._report(count)
        return done

    def _copy(self, source: _Source, start: int, length: int, target_start: int) -> None:
        done = 0
        while done < length:
            self._check_stop()
            count = min(length - done, _STEP_BYTES)
            moved = self._copy_in_kernel(source, start + done, count, target_start + done)
            if not moved:
                moved = self._copy_through_memory(source, start + done, count, target_start + done)
            done += moved
            self.copied_bytes += moved
            self._report(moved)

    def _copy_in_kernel(self, source: _Source, start: int, count: int, target_start: int) -> int:
        """Copy some of a range; 0 where the kernel will not, for whatever reason."""

        def copy_range() -> int:
            return os.copy_file_range(
                source.descriptor, self._destination, count, start, target_start
            )

        def send() -> int:
            os.lseek(self._destination, target_start, os.SEEK_SET)
            return os.sendfile(self._destination, source.descriptor, start, count)

        for name, move in (("copy_file_range", copy_range), ("sendfile", send)):
            if self._refuses(source, name):
                continue
            try:
                moved = move()
            except OSError as error:
                if error.errno in _FULL:
                    raise self._write_error(error) from error
                moved = 0
            if moved:
                return moved
            # Also where it moved nothing without an error: some file systems do.
            self._refused.add((source.device, name))
        return 0

    def _copy_through_memory(
        self, source: _Source, start: int, count: int, target_start: int
    ) -> int:
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        try:
            moved = os.preadv(source.descriptor, [self._buffer[: min(count, _BUFFER_BYTES)]], start)
        except OSError as error:
            raise UnreadableSourceError(
                f"{source.path} cannot be read: {error.strerror or error}.",
                path=source.path,
                next_step="Check the disk or the network and run the same command again.",
            ) from error
        if not moved:
            raise UnreadableSourceError(
                f"{source.path} is shorter than its index says.",
                path=source.path,
                next_step=f"{GET_AGAIN}. Otherwise leave its episode out (--on-bad-episode drop).",
            )
        self.write([self._buffer[:moved]], target_start)
        return moved

    def write(self, pieces: Sequence[bytes | memoryview], target_start: int) -> None:
        """Write bytes from memory, one piece behind the other; at most 1,024 of them."""
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
            next_step="Make room or check the disk, then run the same command again.",
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
