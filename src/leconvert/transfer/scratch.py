"""The scratch folder of a host, which its workers share, with a limit of its bytes.

Each worker holds a slot: a folder with a lock that lasts as long as the process. Before it fetches
anything it reserves room, and it fetches no more than it reserved. One lock over all slots makes
looking and reserving one step. So at any moment the reservations of living workers are within the
limit, and the files in their folders are within their reservations.

A killed worker leaves a slot that nobody holds, with files in it. The next holder of that slot uses
these files if they belong to what it fetches. Until then they count, and they are removed if their
room is needed. No worker waits while it holds a reservation, so when the others end, one of the
waiting workers always continues.

The folder must be local, since exclusion uses ``flock``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
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
from leconvert.workdir.incoming import part_in

if TYPE_CHECKING:
    from leconvert.transfer.store import RemoteFile

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
        allows; they are completed and checked later. All other files are removed.

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
        bytes.

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
            with suppress(OSError), _locked(self._root / "lock"):
                self._note(_bytes_in(self.files_dir))

    def _try(self, at_least: int, at_most: int, prepare: Callable[[int], None]) -> int | None:
        limit = self.limit_bytes
        with storage_errors(self._root), _locked(self._root / "lock"):
            granted = at_most if limit is None else self._share(limit, at_least, at_most)
            if granted is not None:
                prepare(granted)
                self._note(granted)
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
                reserved += _read_number(slot / "reserved")
            else:
                left_over.append((slot, _bytes_in(slot / "files")))
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
def hold_slot(options: ScratchOptions, run_id: str) -> Iterator[ScratchSlot]:
    """Hold the first free slot.

    The slot is emptied at the end. If an error ends the block, parts of files stay for the next
    holder. The last worker to leave removes the folder of the run, if nothing is left in it.

    Raises:
        StorageError: The folder cannot be used.
    """
    root = options.place(run_id)
    try:
        with storage_errors(root), _locked(root / "lock"):
            folder, descriptor = _take(root)
    except OSError as error:
        raise StorageError(
            f"{root} cannot be used for scratch files: {error.strerror or error}.",
            path=str(root),
            next_step="Give a local folder with --scratch-dir.",
        ) from error
    try:
        yield ScratchSlot(root, folder, options.limit_bytes)
        shutil.rmtree(folder / "files", ignore_errors=True)
    finally:
        _remove_if_last(root, folder)
        os.close(descriptor)


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
    """Hold the scratch folder of a name with room for ``size_bytes``; wait for the room.

    The folder is removed at the end. If an error ends the block, its files stay for the next holder
    of that name on this host, and are removed if their room is needed.

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
    root = options.place(owner)
    with storage_errors(root), _locked(root / "lock"):
        descriptor = _hold(folder := root / _slot_name(name))
        if descriptor is None:
            raise BusyError(
                f"Another process of this host works on {name} in {folder}.",
                path=str(folder),
                next_step="Wait for that process or stop it. Then run the same command again.",
            )
    slot = ScratchSlot(root, folder, limit)

    def give_way(seconds: float) -> None:
        # A waiting process must hold no bytes: the files of an earlier holder are removed, or two
        # processes could wait for each other for ever.
        shutil.rmtree(slot.files_dir, ignore_errors=True)
        pause(seconds)

    try:
        with slot.room(size_bytes, size_bytes, should_stop=should_stop, pause=give_way):
            slot.files_dir.mkdir(exist_ok=True)
            yield slot.files_dir
        with storage_errors(root), _locked(root / "lock"):
            shutil.rmtree(folder)
    finally:
        _remove_if_last(root, folder)
        os.close(descriptor)


def folder_of(options: ScratchOptions, owner: str, name: str) -> Path:
    """Return the folder that `hold_folder` holds; it need not exist."""
    return options.place(owner) / _slot_name(name) / "files"


def usual_limit(options: ScratchOptions, owner: str) -> int:
    """Return four fifths of a host's free space, counting the bytes that are already in scratch."""
    root = options.place(owner)
    there = next(folder for folder in (root, *root.parents) if folder.is_dir())
    with storage_errors(there):
        return (shutil.disk_usage(there).free + _bytes_in(root)) * 4 // 5


def _slot_name(name: str) -> str:
    return f"slot-{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}"


def _take(root: Path) -> tuple[Path, int]:
    number = 0
    while (descriptor := _hold(folder := root / f"slot-{number}")) is None:
        number += 1
    return folder, descriptor


def _hold(folder: Path) -> int | None:
    """Hold a slot, making it if needed; return None if another process holds it."""
    (folder / "files").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "reserved").write_text("0")
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_last(root: Path, mine: Path) -> None:
    """Remove the folder of the run if it has no other holder and no files."""
    with suppress(OSError), _locked(root / "lock"):
        slots = _slots(root)
        if not any(
            _bytes_in(slot / "files") or (slot != mine and _is_held(slot)) for slot in slots
        ):
            shutil.rmtree(root)  # with the lock: a waiting process notices, and makes another


def _slots(root: Path) -> list[Path]:
    return sorted(root.glob("slot-*"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; a file that was removed meanwhile excludes nobody and is made again."""
    while (descriptor := _lock(path)) is None:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return the descriptor of a held lock file; None if the file was removed while waiting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return None


def _is_held(slot: Path) -> bool:
    try:
        descriptor = os.open(slot / "held", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read_number(path: Path) -> int:
    with suppress(FileNotFoundError, ValueError):
        return int(path.read_text())
    return 0


def _bytes_in(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            seen = path.lstat()
            if not stat.S_ISDIR(seen.st_mode):
                found += seen.st_blocks * _BLOCK_BYTES
    return found


# Files of a shard in order, fetched ahead of their reader, within a budget of bytes.
#
# **Room.** Under one lock every file is absent, in flight, present, or begun by a fetch that
# failed.
# All but the absent files together never exceed the budget, because a fetch begins only after its
# room was found there, and room is released only after a file is removed.
#
# **Progress.** The reader waits for one file at a time. If that file finds no room, the files in
# flight end, and every other file that is present or begun may be removed, those after the reader's
# position first. So a budget that holds the largest file is enough; files are then fetched one by
# one.


_THREADS = 8
_SECONDS_BETWEEN_STOPS = 0.2  # the reader's stop flag wakes nobody, so it is looked at


class Window:
    """Fetches files into a folder while they are needed; a context that removes them at its end.

    A file may be requested again, in another pass; it is fetched again if it had to go. There can
    be only one reader.

    Args:
        files: The files in the order in which they are read.
        folder: The folder. Files are stored below ``whole`` under their paths; existing ones are
            not trusted. For the paths of parts see `leconvert.workdir.incoming.part_in`.
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
        self._budget_bytes = budget_bytes
        self._should_stop = should_stop
        self._changed = threading.Condition()
        self._present: set[int] = set()
        self._in_flight: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self._begun: set[int] = set()
        self._used_bytes = 0
        self._reader_at = 0
        self._next = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._changed:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for place in self._present:
            self._path(place).unlink(missing_ok=True)

    def path(self, place: int) -> str:
        """Return the path of a file, once it is there; it stays until the next is requested.

        Raises:
            InterruptedRunError: ``should_stop`` returned true.
        """
        with self._changed:
            self._reader_at = self._next = place
            self._errors.clear()
            self._begin_more()
            while place not in self._present:
                if place in self._errors:
                    raise self._errors[place]
                if self._should_stop():
                    raise InterruptedRunError(
                        f"Stopped while fetching {self._files[place].path}.",
                        path=self._files[place].path,
                        next_step="Run the same command again to continue.",
                    )
                self._changed.wait(_SECONDS_BETWEEN_STOPS)
        return str(self._path(place))

    def _path(self, place: int) -> Path:
        return self._folder / "whole" / self._files[place].path

    def _begin_more(self) -> None:
        """Begin to fetch the next files, as far as there is room; the lock is held."""
        while not self._closed and self._next < len(self._files):
            place = self._next
            if place not in self._present and place not in self._in_flight:
                if len(self._in_flight) >= _THREADS or place in self._errors:
                    return
                if place not in self._begun:
                    if not self._make_room(place):
                        return
                    self._used_bytes += self._files[place].charge_bytes
                self._begun.discard(place)
                self._in_flight.add(place)
                self._pool.submit(self._bring, place).add_done_callback(partial(self._ended, place))
            self._next = place + 1

    def _make_room(self, place: int) -> bool:
        needed = self._used_bytes + self._files[place].charge_bytes - self._budget_bytes
        removable = sorted(other for other in self._present if other < self._reader_at)
        if place == self._reader_at:
            removable += sorted((other for other in self._present if other > place), reverse=True)
            removable += sorted(self._begun, reverse=True)
        for other in removable:
            if needed <= 0:
                break
            for path in (self._path(other), part_in(self._folder, self._files[other].path)):
                path.unlink(missing_ok=True)
            self._present.discard(other)
            self._begun.discard(other)
            self._used_bytes -= self._files[other].charge_bytes
            needed -= self._files[other].charge_bytes
        return needed <= 0

    def _bring(self, place: int) -> None:
        path = self._path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fetch(self._files[place], path)

    def _ended(self, place: int, future: Future[None]) -> None:
        with self._changed:
            self._in_flight.discard(place)
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled():
                self._present.add(place)
            else:
                # A part stays, and counts, for the next attempt; a whole file that was refused must
                # not.
                self._path(place).unlink(missing_ok=True)
                self._begun.add(place)
                if error is not None:
                    self._errors[place] = error
            self._begin_more()
            self._changed.notify_all()
