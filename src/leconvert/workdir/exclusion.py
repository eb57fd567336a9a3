"""Gives each name of a run to one record only, on file systems that have no hard links.

Where they have them, `link(2)` decides, for any number of hosts (`FileSystem.give_name`). Where
they have none (FAT, exFAT, most mounts of object stores) the processes of one host still can tell
who was first, since one kernel serves them all. Which of two ways it is was probed when the run
was planned, and is the same for all of its processes (`leconvert.workdir.one_host`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from leconvert.errors import StorageError
from leconvert.workdir.durable import storage_errors
from leconvert.workdir.filesystem import CANNOT_FLAG, CANNOT_LINK, LOCAL, FileSystem

__all__ = ["Exclusion", "OneHostFileSystem", "probe_exclusion"]

_WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.005
_NO_LINKS = CANNOT_LINK - {errno.EMLINK} | {errno.EXDEV}


class Exclusion(StrEnum):
    """What makes a name exclusive among the processes of one host."""

    RENAME = "rename"
    """``renameat2(RENAME_NOREPLACE)``: the kernel looks and renames in one step."""
    LINK = "link"
    """``link(2)``, where there are hard links and the run is one host's by the user's wish."""
    LOCK = "lock"
    """A look and a plain rename under ``flock``, which the kernel takes from a dead process."""


class OneHostFileSystem(FileSystem):
    """Names records without hard links; everything else as the operating system offers it.

    Guaranteed, among the processes of one kernel that use the same exclusion and the same mount:

    - *A torn record is never read.* The content is written whole under a name of its own, which
      nobody reads, and only then gets the name that counts, by one rename. A process that dies
      before the rename leaves a name with a dot; one that dies after it has published. The
      content is on the disk before the name, so a power loss tears nothing either
      where the file system keeps renames in order.
    - *Two never win.* By ``rename``, the kernel refuses a name that exists while it holds the
      folder, so the second of two renames finds the first one's. By ``lock``, the look and the
      rename of one process lie between those of no other, since all names come into being here,
      under one lock. What else happens to such a name is that it is moved away (a void), which
      can only make it free.
    - *A dead process blocks nobody*: the kernel drops its lock.

    Not guaranteed: anything between hosts. By ``lock`` a process that is stopped (``SIGSTOP``)
    between its look and its rename makes the others wait; they give up after ``wait_seconds`` with
    an error that says so, and when it goes on it is still the only one.

    Args:
        exclusion: How names are made exclusive, without links.
        lock: The lock file of the run, on its own file system; used by ``lock`` alone.
        wait_seconds: How long to wait for it.
        randomness: Returns so many random bytes.
    """

    def __init__(
        self,
        exclusion: Exclusion,
        lock: Path,
        *,
        wait_seconds: float = _WAIT_SECONDS,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__()
        self.exclusion = exclusion
        self._lock = lock
        self._wait_seconds = wait_seconds
        self._randomness = randomness

    def give_name(self, source: Path, target: Path, *, sync: bool) -> None:  # noqa: ARG002
        """Give a copy of a record the name ``target``; ``source`` stays as it is.

        Raises:
            FileExistsError: Something has the name.
            StorageError: The lock was not to be had in time.
            OSError: It failed; whether it happened is told by what is there.
        """
        fresh = target.with_name(f".{target.name}.{self._randomness(6).hex()}.new")
        try:
            # Also where the name itself need not survive: a claim that a power failure left empty
            # names no holder, and would keep its batch for a whole lease.
            self.write_new(fresh, self.read_bytes(source), sync=True)
            if self.exclusion is Exclusion.RENAME:
                self.rename_no_replace(fresh, target)
                return
            with self._locked():
                if self._is_taken(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
                self.replace(fresh, target)
        except BaseException:
            with suppress(OSError):
                self.remove_file(fresh)
            raise

    def _is_taken(self, target: Path) -> bool:
        try:
            self.identity(target)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        # A lock object of its own each time: its descriptor excludes threads of this process too.
        lock = FileLock(
            self._lock, timeout=self._wait_seconds, poll_interval=_POLL_SECONDS,
            fallback_to_soft=False, is_singleton=False,
        )  # fmt: skip
        try:
            lock.acquire()
        except Timeout:
            raise StorageError(
                f"{self._lock} has been held for {self._wait_seconds:.0f} s by a process that does "
                "not go on.",
                path=str(self._lock),
                next_step="Continue or end the stopped process of this run (`ps` shows it with T), "
                "then run the same command again.",
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):  # it goes with the descriptor
                lock.release()


def probe_exclusion(
    folder: Path,
    other: Path,
    lock: Path,
    *,
    fs: FileSystem = LOCAL,
    randomness: Callable[[int], bytes] = os.urandom,
) -> tuple[Exclusion | None, str]:
    """Try how names can be given once.

    What is made is removed again; after a crash a name that begins with ``.probe-`` is left.

    Args:
        folder: A folder of the run in which records wait to be published.
        other: The folder in which they are published: some file systems link within one alone.
        lock: The lock file for `Exclusion.LOCK`.
        fs: File operations.
        randomness: Returns so many random bytes.

    Returns:
        None and an empty string where hard links decide; else what does, and what the attempt to
        make a hard link ended in, such as ``EPERM``.

    Raises:
        StorageError: Nothing makes a name exclusive here; or the disk is full, read-only, or fails.
    """
    token = randomness(6).hex()
    first, second = (folder / f".probe-{token}-{number}" for number in (1, 2))
    given = other / f".probe-{token}"
    with storage_errors(folder):
        try:
            for source in (first, second):
                fs.write_new(source, source.name.encode(), sync=False)
            why = _missing_links(first, second, given, fs)
            if not why:
                return None, ""
            if _renames_once(first, second, fs):
                return Exclusion.RENAME, why
        finally:
            for path in (first, second, given):
                with suppress(OSError):
                    fs.remove_file(path)
        if _locks_once(lock):
            return Exclusion.LOCK, why
    raise StorageError(
        f"Cannot use {folder}: its file system has neither hard links ({why}) nor exclusive renames"
        " nor locks, so nothing tells which of two workers was first.",
        path=str(folder),
        next_step="Put the work dir on another file system, such as a local disk.",
    )


def _missing_links(first: Path, second: Path, given: Path, fs: FileSystem) -> str:
    """Say why hard links cannot decide who is first; empty where they can.

    Args:
        first: A file.
        second: Another one.
        given: A free name, which ``first`` has afterwards where there are links.
        fs: File operations.

    Raises:
        OSError: The disk is full, read-only, or fails.
    """
    try:
        fs.link(first, given)
    except FileExistsError:
        pass  # a random name is nobody else's: over NFS this is our own repeated request
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return errno.errorcode[error.errno]
    try:
        fs.link(second, given)
    except FileExistsError:
        return ""
    return "a name was given twice"


def _renames_once(first: Path, second: Path, fs: FileSystem) -> bool:
    # The free name comes first: where the server knows no flags (FUSE), Linux itself still refuses
    # a name that it sees taken, and only a free one shows that there is nothing behind it.
    free = first.with_name(f"{first.name}-free")
    try:
        fs.rename_no_replace(first, free)
    except OSError as error:
        if error.errno not in CANNOT_FLAG:
            raise
        return False
    try:
        fs.rename_no_replace(free, second)
    except FileExistsError:
        return True
    finally:
        with suppress(OSError):
            fs.remove_file(free)
    return False


def _locks_once(path: Path) -> bool:
    from filelock import FileLock, Timeout

    one, other = (
        FileLock(path, timeout=0, fallback_to_soft=False, is_singleton=False) for _ in range(2)
    )
    try:
        with one:
            try:
                other.acquire()
            except Timeout:
                return True
            other.release()
    except (NotImplementedError, OSError):
        return False
    return False
