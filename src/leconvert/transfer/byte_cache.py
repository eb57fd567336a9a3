"""What was fetched from a store, kept on this host for every process that wants it next.

Loader workers open the same episodes, and so do jobs on one dataset. The first that needs a block
of a file fetches it and leaves it here; the others read it from here.

**What is promised.** `ByteCache.read` gives the block's bytes as they came from the store, or
nothing. It never gives a part of a block, bytes of another version of the file, or a block that was
damaged here: its CRC32 stands behind it.

- A block is written under a random name and renamed. A process that is killed before the rename
  leaves a file that nobody reads and that `_evict` removes; after it the block is whole.
- Nothing is synced, so a host that loses its power may keep a name without its bytes. Therefore the
  kernel's id of this boot is part of the name: after a reboot no block of before is found.
- What a store says of a file that changes with its content is part of the name. Where a store says
  nothing of the kind, blocks are shared by the workers of one job only.
- Eviction unlinks blocks, the longest unused first, and takes no regard of readers. Whoever has
  opened a block goes on reading it; who comes later finds nothing and fetches. The bytes that a
  decoder reads are a copy that the worker holds, so no eviction changes them.
- All that goes wrong here (a full disk, a folder without write permission, a file system without
  locks) is said once a process, and costs bytes, never samples.

**What is not promised.** A block may be fetched twice: where its fetcher takes longer than
`_PATIENCE_S`, where it was evicted, and where a file system has no locks. The size is a limit on
what stays, not on what is there at every moment: each thread may be writing one run of blocks, and
a block is not counted until the next look at the folder if its writer is killed between rename and
count.

**Why not fsspec's caches.** `blockcache` writes its list of blocks as one file that each process
replaces with what it knows itself; `filecache` and `simplecache` keep whole files, without a
limit. None of them keeps two processes from fetching the same bytes at the same time.
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

from leconvert.support.file_calls import mount_of, try_lock_range
from leconvert.support.machine import Machine, boot_id

# Small enough for the frames of one sample, large enough for few files.
BLOCK_BYTES = 256 * 1024
# By default no more than this, and no more than this share of what is free. Memory is what loaders
# and training need; there a cache that holds the next minutes is enough.
_MOST_BYTES = 32 * 10**9
_SHARE_OF_FREE = 0.25
_SHARE_OF_FREE_MEMORY = 0.05
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
# Eviction goes on to this share of the limit, so that it is not needed with every block.
_KEPT_SHARE = 0.9
# A fetcher that takes longer may hang in its network; then whoever waits fetches too.
_PATIENCE_S = 20.0
_POLL_S = 0.002
# A name that is still temporary after so long is that of a process that was killed.
_ABANDONED_S = 600.0
# The time of a block's last use is renewed no more often.
_USE_S = 30.0
_BEGUN = "begun-"
# Ranges of the file ``lock``: of the count, of eviction, and behind them one byte a block.
_COUNT_LOCK, _EVICTION_LOCK, _BLOCK_LOCKS = 0, 1, 2**32
_COUNT = struct.Struct("<q")
_CRC = struct.Struct("<I")


class ByteCache:
    """Blocks of files, in a folder that all processes of this user and host share.

    It can be sent to another process. Any thread may call it.

    Args:
        folder: Where; None for a folder of the user's own in the temporary directory.
        limit_bytes: What may stay there. None: a quarter of what is free there, 32 GB at most, and
            where the folder is memory (tmpfs) a twentieth of the free memory at most. Then the
            process that makes the folder says how much.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int | None = None) -> None:
        self._is_own = folder is None
        self._folder = folder or _own_folder()
        self._limit_bytes = limit_bytes
        self._most_bytes = _MOST_BYTES  # where no limit was given; lower if the folder is memory
        self._boot = boot_id()
        self._job = secrets.token_hex(8)
        # Of this process: opened when first needed, and once more after a fork.
        self._opened: tuple[int, bool] | None = None
        self._opening = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None, "_opening": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._opening = threading.Lock()

    def key(self, name: str, size_bytes: int, mark: str) -> str:
        """Return the key of a file's blocks."""
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
        """Keep others from fetching the same blocks within the block of code.

        Who waited looks for them once more: they may be here now. A process that ends, however,
        lets them go.
        """
        start = _BLOCK_LOCKS + (int(key[:7], 16) << 32) + first
        with self._locked(start, stop - first, _PATIENCE_S):
            yield

    def write(self, key: str, block: int, data: bytes | memoryview) -> None:
        """Leave a block here."""
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
        """Return whether blocks can be kept; where they cannot, a warning says why."""
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
        """Make the folder, or see that it is ours; tell whether it is new."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        # Others can write to the temporary directory, and so can make the folder first.
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if self._is_own and (not is_ours or found.st_mode & 0o022):
            raise PermissionError(1, "another user can write there")
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
        """Say once a host where fetched bytes stay, and how many, if nobody chose the number."""
        kind = mount_of(self._folder).kind
        warnings.warn(
            f"Bytes that are fetched stay in {self._folder} ({kind}) for all processes of this "
            f"host, at most {self._limit_now() / 1e9:.1f} GB. cache_dir names another folder, "
            "cache_size_in_gb another size.",
            UserWarning,
            stacklevel=2,
        )

    def _fail(self, error: OSError) -> None:
        """Say once that this process goes on without a cache."""
        if self._opened is None or not self._opened[1]:
            return
        self._opened = (os.getpid(), False)
        warnings.warn(
            f"Bytes that were fetched cannot be kept in {self._folder}: "
            f"{error.strerror or error}. Each worker fetches what it needs itself; choose another "
            "folder with cache_dir, or none with cache_size_in_gb=0.",
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
        """Add to the count of bytes, and return it."""
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
                if descriptor is not None:  # else another process is at it
                    self._evict()

    def _evict(self) -> None:
        """Remove what was not used for longest, and what killed processes left."""
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
        # What others wrote meanwhile counts on; what was seen of it already, twice until next time.
        self._counted(kept - before)

    @contextlib.contextmanager
    def _locked(self, start: int, length: int, patience_s: float) -> Iterator[int | None]:
        """Lock bytes of the file ``lock``; yield its descriptor, or None without the lock.

        The lock belongs to this opening of the file, so it also keeps threads apart, and goes when
        the process ends. (A child that was forked meanwhile holds it too; patience ends that.)
        """
        descriptor = None
        is_locked = False
        try:
            if self.is_usable():
                path = self._folder / "lock"
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    is_locked = _lock(descriptor, start, length, patience_s)
                except OSError as error:
                    self._fail(error)
            yield descriptor if is_locked else None
        finally:
            if descriptor is not None:
                os.close(descriptor)


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
                entry.stat()  # kept by the entry
                yield entry


def _removed(path: str, size_bytes: int) -> int:
    try:
        os.unlink(path)  # noqa: PTH108 (many names)
    except OSError:
        return 0
    return size_bytes
