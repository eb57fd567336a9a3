"""Keeps fetched bytes on this host, for every process that needs them next.

Loader workers open the same episodes, and so do jobs on one dataset. The first process that needs a
block of a file fetches it and writes it here; the others read it from here.

**Guaranteed.** `ByteCache.read` returns the block's bytes as they came from the store, or nothing.
It never returns a part of a block, bytes of another version of the file, or a block that was
damaged here: each block is stored with its CRC32.

- A block is written under a random name and renamed. If the process is killed before the rename,
  the file is never read, and `_evict` removes it. After the rename the block is complete.
- Nothing is synced, so a host that loses power may keep a name without its bytes. Therefore the
  kernel's id of this boot is part of the name: after a reboot no earlier block is found.
- The store's mark for the content of a file (such as an ETag) is part of the name. If a store has
  no marks, only the workers of one job share blocks.
- Eviction unlinks blocks, the longest unused first, without regard to readers. A process that has
  opened a block goes on reading it; later processes find nothing and fetch. The bytes that a
  decoder reads are a copy that the worker holds, so eviction does not change them.
- Each process warns once of any problem here (a full disk, a folder without write permission, a
  file system without locks). Problems cost repeated downloads, never samples.

**Not guaranteed.** A block may be fetched twice: if its fetcher takes longer than `_PATIENCE_S`, if
it was evicted, or on a file system without locks. The limit is for the bytes that stay, not for
every moment: each thread may be writing one run of blocks. If a writer is killed between rename and
count, its block is not counted until the next look at the folder.

**Why not fsspec's caches.** `blockcache` writes its list of blocks as one file, which each process
replaces with its own knowledge. `filecache` and `simplecache` keep whole files, without a limit.
None of them keeps two processes from fetching the same bytes at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import struct
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

from leconvert.support.file_calls import locks_ranges, mount_of, try_lock_range
from leconvert.support.machine import Machine, boot_id

# Small enough for the frames of one sample, large enough to keep the number of files low.
BLOCK_BYTES = 256 * 1024
# Default limits: this many bytes, and this share of the free space. If the folder is in memory,
# which loaders and training need, a cache for the next minutes is enough.
_MOST_BYTES = 32 * 10**9
_SHARE_OF_FREE = 0.25
_SHARE_OF_FREE_MEMORY = 0.05
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
# Eviction continues down to this share of the limit, so that not every block needs it.
_KEPT_SHARE = 0.9
# A fetcher that takes longer may hang in its network; waiting processes then fetch, too.
_PATIENCE_S = 20.0
_POLL_S = 0.002
# A temporary name of this age belongs to a process that was killed.
_ABANDONED_S = 600.0
# The time of a block's last use is renewed at most this often.
_USE_S = 30.0
_BEGUN = "begun-"
# Ranges of the file ``lock``: for the count, for eviction, and after them one byte a block.
_COUNT_LOCK, _EVICTION_LOCK, _BLOCK_LOCKS = 0, 1, 2**32
_LOCK_FILES = 64
_COUNT = struct.Struct("<q")
_CRC = struct.Struct("<I")


class ByteCache:
    """Blocks of files, in a folder that all processes of this user and host share.

    It can be sent to another process. Any thread may call it.

    Args:
        folder: The folder; None for one of the user's own in the temporary directory.
        limit_bytes: Maximum of bytes that stay there. None: a quarter of the free space, at most 32
            GB; if the folder is in memory (tmpfs), at most a twentieth of the free memory. The
            process that makes the folder then reports the limit.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int | None = None) -> None:
        self._is_own = folder is None
        self._folder = folder or _own_folder()
        self._limit_bytes = limit_bytes
        # the default limit's maximum; lower if the folder is in memory
        self._most_bytes = _MOST_BYTES
        self._boot = boot_id()
        self._job = secrets.token_hex(8)
        # Belongs to this process: opened when first needed, and again after a fork.
        self._opened: tuple[int, bool] | None = None
        self._opening = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None, "_opening": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._opening = threading.Lock()

    def key(self, name: str, size_bytes: int, mark: str) -> str:
        """Return the key of a file's blocks.

        Args:
            name: The file.
            size_bytes: Its size.
            mark: The store's mark for its content; if empty, the key holds for this job only.
        """
        words = (self._boot, name, str(size_bytes), mark or f"job {self._job}", str(BLOCK_BYTES))
        return hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()

    def read(self, key: str, block: int, size_bytes: int) -> bytes | None:
        """Return a block of a known size; None if it is not here."""
        if not self.is_usable():
            return None
        try:
            descriptor = os.open(self._path(key, block), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = os.pread(descriptor, size_bytes, 0)
            if os.pread(descriptor, _CRC.size + 1, size_bytes) != _crc_of(data):
                return None
            if time.time() - os.fstat(descriptor).st_mtime > _USE_S:
                os.utime(descriptor)
        except OSError as error:
            self._fail(error)
            return None
        finally:
            os.close(descriptor)
        return data

    @contextlib.contextmanager
    def fetching(self, key: str, first: int, stop: int) -> Iterator[None]:
        """Keep others from fetching the same blocks while the ``with`` block runs.

        A process that waited for the lock looks for the blocks again, since they may be here now.
        The lock of a process that ends is released.
        """
        start = _BLOCK_LOCKS + (int(key[:7], 16) << 32) + first
        with self._locked(start, stop - first, _PATIENCE_S):
            yield

    def write(self, key: str, block: int, data: bytes | memoryview) -> None:
        """Store a block."""
        if not self.is_usable():
            return
        path = self._path(key, block)
        begun = path.with_name(f"{_BEGUN}{secrets.token_hex(8)}")
        try:
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir()
            try:
                _write_file(begun, data)
                begun.rename(path)
            except OSError:
                with contextlib.suppress(OSError):
                    begun.unlink()
                raise
            self._count(len(data) + _CRC.size)
        except FileNotFoundError:
            pass  # an eviction, or a user, removed the folder meanwhile
        except OSError as error:
            self._fail(error)

    # --- the folder ---------------------------------------------------------------------------

    def _path(self, key: str, block: int) -> Path:
        return self._folder / key / str(block)

    def is_usable(self) -> bool:
        """Return whether blocks can be kept; if they cannot, a warning says why."""
        process = os.getpid()
        opened = self._opened
        is_new = False
        if opened is None or opened[0] != process:
            with self._opening:
                opened = self._opened
                if opened is None or opened[0] != process:
                    opened = self._opened = (process, True)
                    try:
                        is_new = self._make_folder()
                    except OSError as error:
                        self._fail(error)
        if is_new and self._limit_bytes is None:
            with contextlib.suppress(OSError):
                self._tell()
        return bool(self._opened and self._opened[1])

    def _make_folder(self) -> bool:
        """Make the folder, or check that it is ours; return whether it is new."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        # Others can write to the temporary directory, so they could make the folder first.
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if self._is_own and (not is_ours or found.st_mode & 0o022):
            raise PermissionError(1, "another user may write there")
        if mount_of(self._folder).kind in _IN_MEMORY:
            share = int(Machine().free_memory() * _SHARE_OF_FREE_MEMORY)
            self._most_bytes = min(_MOST_BYTES, share)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            os.close(os.open(self._folder / "lock", flags, 0o600))
        except FileExistsError:
            return False
        return True

    def _tell(self) -> None:
        """Report once a host the folder and the default limit."""
        kind = mount_of(self._folder).kind
        warnings.warn(
            f"Downloaded bytes are kept in {self._folder} ({kind}) for all processes of "
            f"this host, at most {self._limit_now() / 1e9:.1f} GB. cache_dir sets "
            "another folder, cache_size_in_gb another limit.",
            UserWarning,
            stacklevel=2,
        )

    def _fail(self, error: OSError) -> None:
        """Warn once that this process continues without a cache."""
        if self._opened is None or not self._opened[1]:
            return
        self._opened = (os.getpid(), False)
        warnings.warn(
            f"Downloaded bytes cannot be kept in {self._folder}: {error.strerror or error}. "
            "Each worker downloads its files itself. Set another folder with "
            "cache_dir, or no folder with cache_size_in_gb=0.",
            RuntimeWarning,
            stacklevel=2,
        )

    # --- how much is there --------------------------------------------------------------------

    def _limit_now(self) -> int:
        if self._limit_bytes is not None:
            return self._limit_bytes
        found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize
        return min(self._most_bytes, int((free + self._counted(0)) * _SHARE_OF_FREE))

    def _counted(self, more: int) -> int:
        """Add to the count of bytes, and return the new count."""
        with self._locked(_COUNT_LOCK, 1, _PATIENCE_S) as descriptor:
            if descriptor is None:
                return 0
            found = os.pread(descriptor, _COUNT.size, 0)
            total: int = (_COUNT.unpack(found)[0] if len(found) == _COUNT.size else 0) + more
            if more:
                os.pwrite(descriptor, _COUNT.pack(max(0, total)), 0)
            return total

    def _count(self, size_bytes: int) -> None:
        total = self._counted(size_bytes)
        if total > self._limit_now():
            with self._locked(_EVICTION_LOCK, 1, 0.0) as descriptor:
                if descriptor is not None:  # else another process is evicting
                    self._evict()

    def _evict(self) -> None:
        """Remove the blocks that were unused for longest, and leftovers of killed processes."""
        before = self._counted(0)
        now = time.time()
        blocks = []
        for folder in self._folder.iterdir():
            if folder.is_dir():
                blocks += [(entry.stat(), entry.path) for entry in _entries(folder)]
        total = sum(found.st_size for found, _ in blocks)
        limit = int(self._limit_now() * _KEPT_SHARE)
        blocks.sort(key=lambda block: block[0].st_mtime_ns)
        kept = total
        for found, path in blocks:
            is_begun = os.path.basename(path).startswith(_BEGUN)  # noqa: PTH119 (many names)
            if is_begun:
                if now - found.st_mtime > _ABANDONED_S:
                    kept -= _removed(path, found.st_size)
            elif kept > limit:
                kept -= _removed(path, found.st_size)
        for emptied in {os.path.dirname(path) for _, path in blocks}:  # noqa: PTH120 (many names)
            with contextlib.suppress(OSError):
                os.rmdir(emptied)  # noqa: PTH106 (not empty, or somebody writes there again)
        # Blocks that others wrote meanwhile remain counted; those seen here count twice until next
        # time.
        self._counted(kept - before)

    @contextlib.contextmanager
    def _locked(self, start: int, length: int, patience_s: float) -> Iterator[int | None]:
        """Lock bytes of the file ``lock``; yield its descriptor, or None without the lock.

        The lock belongs to this opening of the file. So it also separates threads, and ends with
        the process. (A child that was forked meanwhile holds it too; the timeout ends that.)
        """
        descriptor = None
        is_locked = False
        try:
            if self.is_usable():
                path = self._folder / _lock_name(start)
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    is_locked = _lock(descriptor, start, length, patience_s)
                except OSError as error:
                    self._fail(error)
            yield descriptor if is_locked else None
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _lock_name(start: int) -> str:
    """Return the name of a lock's file: one for all locks if ranges of bytes can be locked.

    Otherwise there are a few files, and blocks that share one by chance are fetched in turn.
    """
    if locks_ranges():
        return "lock"
    return f"lock-block-{start % _LOCK_FILES}" if start >= _BLOCK_LOCKS else f"lock-{start}"


def _own_folder() -> Path:
    return Path(tempfile.gettempdir(), f"leconvert-bytes-{os.getuid()}")


def _lock(descriptor: int, start: int, length: int, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while True:
        try:
            try_lock_range(descriptor, start, length)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)  # the kernel waits for a lock without a limit, or not at all
        else:
            return True


def _write_file(path: Path, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for content in (data, _crc_of(data)):
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def _crc_of(data: bytes | memoryview) -> bytes:
    return _CRC.pack(zlib.crc32(data))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                entry.stat()  # the entry keeps the result
                yield entry


def _removed(path: str, size_bytes: int) -> int:
    try:
        os.unlink(path)  # noqa: PTH108 (many names)
    except OSError:
        return 0
    return size_bytes
