"""The scratch folder of a host, which its workers share, with a limit of its bytes.

Each worker holds a slot: a folder with a lock that lasts as long as the process. Before it fetches
anything it reserves room, and it fetches no more than it reserved. One lock over all slots makes
looking and reserving one step. So at any moment the reservations of living workers are within the
limit, and the files in their folders are within their reservations.

A killed worker leaves a slot that nobody holds, with files in it. The next holder of that slot uses
these files if they belong to what it fetches. Until then they count, and they are removed if their
room is needed, or if the next holder has to wait. No worker waits while it holds a reservation or
files, so when the others end, one of the waiting workers always continues.

The folder must be local, since exclusion uses ``flock``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    StorageError,
    UsageError,
)
from leconvert.support.storage_errors import storage_errors
from leconvert.transfer.options import ScratchOptions
from leconvert.transfer.store import RemoteFile, part_in, stopped_while_fetching
from leconvert.workdir.locks import new_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock


_SECONDS_BETWEEN_LOOKS = 0.1  # other processes release room, and they notify nobody
_BLOCK_BYTES = 512


class ScratchSlot:
    """One worker's part of the scratch folder; see `hold_slot`.

    Attributes:
        limit_bytes: Maximum of bytes in the scratch folder; None for no limit.
        files_dir: Folder of its files.
    """

    def __init__(self, root: Path, folder: Path, limit_bytes: int | None) -> None:
        self._root = root
        self._folder = folder
        self.limit_bytes = limit_bytes
        self.files_dir = folder / "files"

    def reserved(
        self,
        files: Sequence[RemoteFile],
        *,
        should_stop: Callable[[], bool],
        pause: Callable[[float], object],
    ) -> AbstractContextManager[int]:
        """Reserve room while the block runs; wait if others have it.

        Parts of the first of these files that an earlier holder left are kept, as far as the room
        allows; they are completed and checked later. All other files are removed. During a wait,
        all are.

        Args:
            files: The files to fetch, in order; the largest must be within the limit.
            should_stop: Called while waiting.
            pause: Called with seconds between two looks, since other processes do not notify.

        Returns:
            A context of the granted bytes: a fair share of the limit, at least the size of the
            largest file.

        Raises:
            InterruptedRunError: ``should_stop`` returned true.
        """
        charges = [file.charge_bytes for file in files]
        keep_parts = partial(self._keep_parts, files)
        return self.room(
            max(charges), sum(charges), prepare=keep_parts, should_stop=should_stop, pause=pause
        )

    @contextmanager
    def room(
        self,
        at_least: int,
        at_most: int,
        *,
        should_stop: Callable[[], bool],
        pause: Callable[[float], object],
        prepare: Callable[[int], None] = lambda _: None,
    ) -> Iterator[int]:
        """Reserve between ``at_least`` and ``at_most`` bytes while the block runs.

        ``at_least`` must be within the limit. ``prepare`` reduces the slot's files to the granted
        bytes. A wait removes them.

        Raises:
            InterruptedRunError: ``should_stop`` returned true.
        """
        while (granted := self._try(at_least, at_most, prepare)) is None:
            if should_stop():
                raise InterruptedRunError(
                    "Stopped during the wait for space in the scratch folder.",
                    path=str(self._root),
                    next_step="Run the same command again to continue.",
                )
            pause(_SECONDS_BETWEEN_LOOKS)
        try:
            yield granted
        finally:
            # Files that an error left there remain counted. Others read the note under the lock
            # only, since a half-written note looks empty.
            with suppress(OSError), _locked(self._root):
                self._note(bytes_in(self.files_dir))

    def _try(self, at_least: int, at_most: int, prepare: Callable[[int], None]) -> int | None:
        limit = self.limit_bytes
        with storage_errors(self._root), _locked(self._root):
            granted = at_most if limit is None else self._share(limit, at_least, at_most)
            if granted is not None:
                prepare(granted)
            else:  # two that wait, each for the room of the other's files, would wait for ever
                shutil.rmtree(self.files_dir)
                self.files_dir.mkdir()
            self._note(granted or 0)
            return granted

    def _share(self, limit: int, at_least: int, at_most: int) -> int | None:
        """Return the bytes that can be reserved now; None if they are too few. The lock is held."""
        held, reserved = 1, 0
        left_over: list[tuple[Path, int]] = []
        for slot in _slots(self._root):
            if slot == self._folder:
                continue
            if _is_held(slot):
                held += 1
                with suppress(FileNotFoundError, ValueError):  # a full disk left it empty
                    reserved += int((slot / "reserved").read_text())
            else:
                left_over.append((slot, bytes_in(slot / "files")))
        free = limit - reserved
        if free < at_least:
            return None
        granted = min(at_most, max(at_least, min(limit // held, free)))
        excess = reserved + granted + sum(size for _, size in left_over) - limit
        for slot, size in left_over:
            if excess > 0 and size:
                shutil.rmtree(slot / "files", ignore_errors=True)
                excess -= size
        return granted

    def _keep_parts(self, files: Sequence[RemoteFile], granted: int) -> None:
        # A window begins with these files, so parts of files that it has not begun yet are within
        # its room, too.
        wanted: set[Path] = set()
        room = granted
        for file in files:
            room -= file.charge_bytes
            if room < 0:
                break
            wanted.add(part_in(self.files_dir, file.path))
        for path in self.files_dir.rglob("*"):
            if path not in wanted and not path.is_dir():
                path.unlink()

    def _note(self, size_bytes: int) -> None:
        (self._folder / "reserved").write_text(str(size_bytes))


def limit_too_small(limit_bytes: int, needed_bytes: int) -> UsageError:
    """Return the error for a limit that is below the largest file's size."""
    return UsageError(
        f"The scratch limit of {limit_bytes:,} bytes is smaller than the largest file of "
        "the source.",
        next_step=f"The smallest limit for this dataset is --scratch-limit {needed_bytes}.",
    )


@contextmanager
def hold_slot(
    options: ScratchOptions, owner: str, name: str | None = None
) -> Iterator[ScratchSlot]:
    """Hold the slot of a name, or the first free slot.

    The slot is removed at the end. If an error ends the block, its files stay for the next holder.
    The last one to leave removes the folder of the owner, if nothing is left in it.

    Raises:
        StorageError: The folder cannot be used.
        BusyError: Another process holds the slot of this name.
    """
    root = options.place(owner)
    try:
        with storage_errors(root), _locked(root):
            folder, lock = _take(root, name)
    except OSError as error:
        raise StorageError(
            f"{root} cannot be used for scratch files: {error.strerror or error}.",
            path=str(root),
            next_step="Give a local folder with --scratch-dir.",
        ) from error
    is_done = False
    try:
        yield ScratchSlot(root, folder, options.limit_bytes)
        is_done = True
    finally:
        with suppress(OSError), _locked(root):
            _leave(root, folder, is_done=is_done)
        lock.release()


@contextmanager
def hold_folder(
    options: ScratchOptions,
    owner: str,
    name: str,
    size_bytes: int,
    *,
    should_stop: Callable[[], bool],
    pause: Callable[[float], object],
) -> Iterator[Path]:
    """Hold the files of a name's slot with room for ``size_bytes``; wait for the room.

    If an error ends the block, the files stay for the next holder of that name on this host, and
    are removed if their room is needed.

    Raises:
        UsageError: The limit is below ``size_bytes``.
        BusyError: Another process holds the name.
        InterruptedRunError: ``should_stop`` returned true.
    """
    limit = options.limit_bytes
    if limit is not None and size_bytes > limit:
        raise UsageError(
            f"{name} needs {size_bytes:,} bytes of scratch space, but the limit is {limit:,}.",
            next_step=f"Give --scratch-limit {size_bytes} or more, and a --scratch-dir with "
            "enough space.",
        )
    with (
        hold_slot(options, owner, name) as slot,
        slot.room(size_bytes, size_bytes, should_stop=should_stop, pause=pause),
    ):
        yield slot.files_dir


def folder_of(options: ScratchOptions, owner: str, name: str) -> Path:
    """Return the folder that `hold_folder` holds; it need not exist."""
    return options.place(owner) / _slot_name(name) / "files"


def usual_limit(options: ScratchOptions, owner: str) -> int:
    """Return four fifths of a host's free space, counting the bytes that are already in scratch."""
    root = options.place(owner)
    there = next(folder for folder in (root, *root.parents) if folder.is_dir())
    with storage_errors(there):
        return (shutil.disk_usage(there).free + bytes_in(root)) * 4 // 5


def _slot_name(name: str) -> str:
    return f"slot-{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}"


def _take(root: Path, name: str | None) -> tuple[Path, BaseFileLock]:
    """Return a slot and its lock, which is held; the lock over all slots is held, too."""
    numbers = count()
    while True:
        folder = root / (f"slot-{next(numbers)}" if name is None else _slot_name(name))
        (folder / "files").mkdir(parents=True, exist_ok=True)
        if (lock := _hold(folder)) is not None:
            try:
                # Files of an earlier holder count until this holder reserves or waits.
                (folder / "reserved").write_text(str(bytes_in(folder / "files")))
            except BaseException:
                lock.release()
                raise
            return folder, lock
        if name is not None:
            raise BusyError(
                f"Another process of this host works on {name} in {folder}.",
                path=str(folder),
                next_step="Wait for that process or stop it. Then run the same command again.",
            )


def _hold(slot: Path) -> BaseFileLock | None:
    """Return the lock of a slot, held; None if another process holds it."""
    from filelock import Timeout

    lock = new_lock(slot / "held")
    with suppress(Timeout):
        lock.acquire()
        return lock
    return None


def _leave(root: Path, mine: Path, *, is_done: bool) -> None:
    """Remove a slot that is done, and the owner's folder if it has no other holder and no files.

    The lock over all slots is held. Without it another process could take the removed slot's name
    in between, and would lose its files with the owner's folder.
    """
    if is_done:
        shutil.rmtree(mine)
    slots = _slots(root)
    if not any(bytes_in(slot / "files") or (slot != mine and _is_held(slot)) for slot in slots):
        shutil.rmtree(root)  # with the lock: a waiting process notices, and makes another


def _slots(root: Path) -> list[Path]:
    return sorted(root.glob("slot-*"))


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock over all slots; if it was removed meanwhile, it is made again."""
    lock = new_lock(root / "lock", wait_seconds=-1)
    while not lock.is_locked:
        root.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the last holder has just removed the folder
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_held(slot: Path) -> bool:
    if not (slot / "held").exists():  # a lock would make it
        return False
    lock = _hold(slot)
    if lock is not None:
        lock.release()
    return lock is None


def bytes_in(folder: Path) -> int:
    """Return the disk space of the files below a folder."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            seen = path.lstat()
            if not stat.S_ISDIR(seen.st_mode):
                found += seen.st_blocks * _BLOCK_BYTES
    return found


# Files of a shard in order, fetched ahead of their reader, within a budget of bytes.
#
# **Room.** A file takes room from before its fetch begins until it is removed, also while it waits
# for a thread, and if its fetch failed and left a part. All these files together never exceed the
# budget.
#
# **Progress.** The reader waits for one file at a time. If that file finds no room, every other
# file is removed once its fetch has ended, those after the reader's position last. So a budget that
# holds the largest file is enough; files are then fetched one by one.


_THREADS = 8
_SECONDS_BETWEEN_STOPS = 0.2  # the reader's stop flag wakes nobody, so it is looked at


class Window:
    """Fetches files into a folder while they are needed; a context that removes them at its end.

    A file may be requested again, in another pass; it is fetched again if it had to go. There can
    be only one reader, and only its thread begins and removes anything.

    Args:
        files: The files in the order in which they are read.
        folder: The folder. Files are stored below ``whole`` under their paths; existing ones are
            not trusted. For the paths of parts see `leconvert.transfer.store.part_in`.
        fetch: Fetches one file to a path, or raises; called by several threads.
        budget_bytes: Maximum of bytes there at a time; at least the largest file's charge.
        should_stop: Called while the reader waits.
    """

    def __init__(
        self,
        files: Sequence[RemoteFile],
        folder: Path,
        fetch: Callable[[RemoteFile, Path], None],
        *,
        budget_bytes: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self._files = files
        self._folder = folder
        self._fetch = fetch
        self._free_bytes = budget_bytes
        self._should_stop = should_stop
        self._fetches: dict[int, Future[None]] = {}  # of the files that take room
        self._next = 0  # the first file that was not begun when the reader moved last
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for place in self._fetches:
            self._path(place).unlink(missing_ok=True)

    def path(self, place: int) -> str:
        """Return the path of a file, once it is there; it stays until the next is requested.

        Raises:
            InterruptedRunError: ``should_stop`` returned true.
        """
        at = max(place, self._next) if self._comes(place) else place
        while at < len(self._files) and (self._comes(at) or self._begin(at, place)):
            at += 1
        self._next = at
        self._wait_for(place)
        self._fetches[place].result()
        return str(self._path(place))

    def _path(self, place: int) -> Path:
        return self._folder / "whole" / self._files[place].path

    def _comes(self, place: int) -> bool:
        """Return whether a file is there or is being fetched."""
        fetch = self._fetches.get(place)
        return fetch is not None and not (fetch.done() and fetch.exception())

    def _begin(self, place: int, reader: int) -> bool:
        """Begin to fetch a file; return whether it was begun, for which it needs room."""
        if place in self._fetches:  # a failed fetch is repeated only if the reader needs the file
            if place != reader:
                return False
        elif not self._make_room(place, reader):
            return False
        else:
            self._free_bytes -= self._files[place].charge_bytes
        self._fetches[place] = self._pool.submit(self._bring, place)
        return True

    def _make_room(self, place: int, reader: int) -> bool:
        needed = self._files[place].charge_bytes
        if self._free_bytes >= needed:
            return True
        others = sorted(other for other in self._fetches if other < reader)
        if place == reader:
            others += sorted((other for other in self._fetches if other > reader), reverse=True)
        for other in others:
            fetch = self._fetches[other]
            if not (fetch.cancel() or fetch.done()):
                if place != reader:
                    continue  # only the reader's own file is worth waiting for
                self._wait_for(other)
            for path in (self._path(other), part_in(self._folder, self._files[other].path)):
                path.unlink(missing_ok=True)
            del self._fetches[other]
            self._free_bytes += self._files[other].charge_bytes
            if self._free_bytes >= needed:
                return True
        return False

    def _wait_for(self, place: int) -> None:
        """Wait until a fetch has ended, in any way."""
        while not self._fetches[place].done():
            if self._should_stop():
                raise stopped_while_fetching(self._files[place].path)
            wait([self._fetches[place]], _SECONDS_BETWEEN_STOPS)

    def _bring(self, place: int) -> None:
        path = self._path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fetch(self._files[place], path)
        except BaseException:
            # A part stays, and counts, for the next attempt; a whole file that was refused must
            # not.
            path.unlink(missing_ok=True)
            raise
