"""The scratch folder of a host: its workers share it, and a limit of what may lie in it.

Each worker holds a slot, a folder with a lock that lasts as long as the process. Before it fetches
anything it reserves room, and it fetches no more than it reserved; one lock over all slots makes
looking and reserving one step. So at any moment the reservations of those that live are within
the limit, and what lies in their folders is within their reservations.

A worker that was killed leaves a slot that nobody holds, with files in it. Whoever takes that slot
finds and uses them, as far as they belong to what it fetches. Until then they count, and are
removed where their room is needed. Nobody waits while holding a reservation, so one of those that
wait always goes on when the others end.

The folder must be local: exclusion is by ``flock``.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import InterruptedRunError, StorageError, UsageError
from leconvert.hub.remote_file import RemoteFile
from leconvert.workdir.durable import storage_errors
from leconvert.workdir.incoming import part_in

__all__ = ["ScratchOptions", "ScratchSlot", "default_scratch_dir", "hold_slot"]

_SECONDS_BETWEEN_LOOKS = 0.1
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class ScratchOptions:
    """Where a host's workers keep files that they fetched.

    Attributes:
        folder: A local folder; None for one below the system's folder for temporary files.
        limit_bytes: What may lie there at a time, of all workers of this host together; None for
            no limit.
    """

    folder: Path | None = None
    limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.limit_bytes is not None and self.limit_bytes < 1:
            raise UsageError(f"A scratch limit of {self.limit_bytes} bytes holds nothing.")

    def arguments(self) -> list[str]:
        """Return them as a worker on the command line takes them."""
        return [
            *([f"--scratch-dir={self.folder}"] if self.folder else []),
            *([f"--scratch-limit={self.limit_bytes}"] if self.limit_bytes else []),
        ]

    def place(self, run_id: str) -> Path:
        """Return the folder of one run."""
        return (self.folder or default_scratch_dir()) / run_id


def default_scratch_dir() -> Path:
    """Return this user's folder for fetched files, ``leconvert-scratch-<user>`` in ``TMPDIR``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"leconvert-scratch-{user}"


class ScratchSlot:
    """One worker's part of the scratch folder; see `hold_slot`.

    Attributes:
        files_dir: Where its files go.
    """

    def __init__(self, root: Path, folder: Path, limit_bytes: int | None) -> None:
        self._root = root
        self._folder = folder
        self._limit_bytes = limit_bytes
        self.files_dir = folder / "files"

    @contextmanager
    def reserved(
        self,
        files: Sequence[RemoteFile],
        *,
        should_stop: Callable[[], bool],
        pause: Callable[[float], object],
    ) -> Iterator[int]:
        """Reserve room for the block; waits for it where others have it.

        Of what an earlier holder left the parts of the first of these files stay, to be gone on
        with and checked, as far as the room holds them; all else is removed.

        Args:
            files: What will be fetched, in this order.
            should_stop: Asked while it waits.
            pause: Called with seconds between two looks: other processes do not notify.

        Yields:
            The bytes that were granted: a fair share of the limit, or what the largest file takes.

        Raises:
            UsageError: The limit does not hold the largest file.
            InterruptedRunError: ``should_stop`` said so.
        """
        while (granted := self._try(files)) is None:
            if should_stop():
                raise InterruptedRunError(
                    "Stopped while waiting for room in the scratch folder.",
                    path=str(self._root),
                    next_step="Run the same command again to go on.",
                )
            pause(_SECONDS_BETWEEN_LOOKS)
        try:
            yield granted
        finally:
            # What an error left there goes on counting. Others read it under the lock only: a note
            # that is being written looks like nothing.
            with suppress(OSError), _locked(self._root / "lock"):
                self._note(_bytes_in(self.files_dir))

    def _try(self, files: Sequence[RemoteFile]) -> int | None:
        charges = [file.charge_bytes for file in files]
        at_least, at_most = max(charges), sum(charges)
        limit = self._limit_bytes
        if limit is not None and at_least > limit:
            raise limit_too_small(limit, at_least)
        with storage_errors(self._root), _locked(self._root / "lock"):
            granted = at_most if limit is None else self._share(limit, at_least, at_most)
            if granted is not None:
                self._keep_parts(files, granted)
                self._note(granted)
            return granted

    def _share(self, limit: int, at_least: int, at_most: int) -> int | None:
        """Return what may be reserved now; None where it is too little. The lock is held."""
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
        # A window begins with these, so whatever it has not begun yet is within its room, too.
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
    """Return the error for a limit that does not hold the largest file."""
    return UsageError(
        f"A scratch limit of {limit_bytes:,} bytes does not hold the source's largest file.",
        next_step=f"The smallest limit for this dataset is --scratch-limit {needed_bytes}.",
    )


@contextmanager
def hold_slot(options: ScratchOptions, run_id: str) -> Iterator[ScratchSlot]:
    """Hold the first slot that nobody holds.

    It is emptied at the end. Where an error ends the block, parts of files stay for whoever comes
    next. The last to leave removes the folder of the run, if nothing is left in it.

    Raises:
        StorageError: The folder cannot be made or locked.
    """
    root = options.place(run_id)
    try:
        with storage_errors(root), _locked(root / "lock"):
            folder, descriptor = _take(root)
    except OSError as error:
        raise StorageError(
            f"{root} cannot be used for scratch files: {error.strerror or error}.",
            path=str(root),
            next_step="Name a local folder with --scratch-dir.",
        ) from error
    try:
        yield ScratchSlot(root, folder, options.limit_bytes)
        shutil.rmtree(folder / "files", ignore_errors=True)
    finally:
        _remove_if_last(root, folder)
        os.close(descriptor)


def _take(root: Path) -> tuple[Path, int]:
    number = 0
    while True:
        folder = root / f"slot-{number}"
        (folder / "files").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / "reserved").write_text("0")
        except BlockingIOError:
            os.close(descriptor)
            number += 1
            continue
        except BaseException:
            os.close(descriptor)
            raise
        return folder, descriptor


def _remove_if_last(root: Path, mine: Path) -> None:
    """Remove the folder of the run if nobody else is in it and nothing is left."""
    with suppress(OSError), _locked(root / "lock"):
        slots = _slots(root)
        if not any(
            _bytes_in(slot / "files") or (slot != mine and _is_held(slot)) for slot in slots
        ):
            shutil.rmtree(root)  # with the lock: whoever waits for it notices, and makes another


def _slots(root: Path) -> list[Path]:
    return sorted(root.glob("slot-*"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; one that was removed meanwhile excludes nobody and is made again."""
    while (descriptor := _lock(path)) is None:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return a lock file that is held; None where it was removed while this one waited for it."""
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
