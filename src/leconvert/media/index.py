"""Read the index of an MP4 clip: where its coded samples lie, and when each is shown.

Only ``moov`` is read. Whatever the numbers in it say is checked against the file's size before
anything is allocated or computed from it, so that a broken or hostile file costs an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from leconvert.errors import UnreadableSourceError
from leconvert.media.boxes import MOOV_LIMIT_BYTES, Span, read_moov
from leconvert.media.clip import ClipIndex
from leconvert.media.parse import parse_moov
from leconvert.media.plain import read_plainly

__all__ = ["read_clip_index", "read_clip_indexes"]

# Reading some and then parsing these costs a quarter less than turn by turn: caches stay warm.
_CLIPS_AT_ONCE = 32
# What of them is held meanwhile; a larger index is read when its turn comes.
_HELD_INDEX_BYTES = 128 * 1024
_THREADS = 8
# A file of the page cache or of memory takes about 12 microseconds; a disk or network more.
_SLOW_SECONDS = 60e-6
_SMALL_CLIP_BYTES = 1024**2
_READ_AHEAD_BYTES = 256 * 1024**2


class _Fetched(NamedTuple):
    buffer: bytes
    moov: Span
    size_bytes: int


def read_clip_index(path: str | os.PathLike[str]) -> ClipIndex:
    """Read the index of a clip.

    Args:
        path: An MP4 (or QuickTime) file.

    Raises:
        UnreadableSourceError: The file is missing, truncated, damaged, encrypted, has no video
            track, or keeps its media elsewhere.
        UnsupportedClipError: The file may be sound, but its samples cannot be joined as they lie.
    """
    name = os.fspath(path)
    fetched = _fetch(name, MOOV_LIMIT_BYTES)
    assert fetched is not None
    return _parse(fetched, name)


def read_clip_indexes(
    paths: Sequence[str],
    *,
    read_ahead: bool = False,
    waited_seconds: Callable[[], float] = lambda: time.perf_counter() - time.thread_time(),
) -> Iterator[ClipIndex | UnreadableSourceError]:
    """Read the indices of many clips, a little cheaper than one by one.

    Where files are slow to answer, several are asked at the same time. A few indices are held.

    Args:
        paths: The files.
        read_ahead: The media of small clips will be read soon; tell the file system.
        waited_seconds: What grows while this thread waits, and not while it works.

    Yields:
        For each path, in order, its index or the error that `read_clip_index` would raise.
    """
    slow = False
    left_bytes = _READ_AHEAD_BYTES if read_ahead else 0
    with ExitStack() as cleanup:
        pool: ThreadPoolExecutor | None = None
        for first in range(0, len(paths), _CLIPS_AT_ONCE):
            block = paths[first : first + _CLIPS_AT_ONCE]
            advise_bytes = min(_SMALL_CLIP_BYTES, left_bytes // len(block))
            before = waited_seconds()
            if slow:
                if pool is None:
                    pool = cleanup.enter_context(ThreadPoolExecutor(_THREADS, "read-index"))
                advised = [advise_bytes] * len(block)
                fetched = list(pool.map(_fetch_or_error, block, advised))
            else:
                fetched = [_fetch_or_error(path, advise_bytes) for path in block]
                slow = waited_seconds() - before > len(block) * _SLOW_SECONDS
            for path, found in zip(block, fetched, strict=True):
                if isinstance(found, UnreadableSourceError):
                    yield found
                    continue
                try:
                    yield read_clip_index(path) if found is None else _parse(found, path)
                except UnreadableSourceError as error:
                    yield error
                if found is not None and found.size_bytes <= advise_bytes:
                    left_bytes -= found.size_bytes


def _fetch_or_error(path: str, advise_bytes: int) -> _Fetched | UnreadableSourceError | None:
    try:
        return _fetch(path, _HELD_INDEX_BYTES, advise_bytes)
    except UnreadableSourceError as error:
        return error


def _fetch(path: str, most_bytes: int, advise_bytes: int = 0) -> _Fetched | None:
    """Read the index of a file unless it is larger than that.

    Args:
        path: The file.
        most_bytes: See above.
        advise_bytes: Of a file that is no larger all is going to be read soon.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes <= advise_bytes:
                os.posix_fadvise(descriptor, 0, size_bytes, os.POSIX_FADV_WILLNEED)
            found = read_moov(descriptor, size_bytes, path, most_bytes=most_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableSourceError(
            f"{path} cannot be read: {error.strerror or error}.",
            path=path,
            next_step="Restore the file from its origin, or drop its episode "
            "(--on-bad-episode drop).",
        ) from error
    return None if found is None else _Fetched(*found, size_bytes)


def _parse(fetched: _Fetched, path: str) -> ClipIndex:
    index = read_plainly(fetched.buffer, fetched.moov, path, fetched.size_bytes)
    return index or parse_moov(fetched.buffer, fetched.moov, path, fetched.size_bytes)
