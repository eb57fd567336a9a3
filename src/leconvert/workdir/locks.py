"""One planner and one packer at a time, held by `filelock`.

Not promised: that a holder which was frozen stays the only one. Over NFS the server gives the lock
away when a host is silent, and that host's renames still go through. The lock spares work and
confusion; what makes a second packer harmless are packer generations (`leconvert.workdir.swap`).

**Where the work dir's file system has no flock**, a file in this host's folder for temporary files
is locked instead: that excludes the processes of this host that see the same folder, and no others.
It is enough. Two packers meet in the journal, where the generation decides, as after a lost lock;
two planners write runs of their own, of which ``current`` names one, and the planner whose run it
does not name finds out when it opens it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.errors import BusyError, StorageError, WorkDirError
from leconvert.workdir.durable import replace_record, storage_errors
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.paths import RunPaths, WorkDir
from leconvert.workdir.records import encode_record, read_record

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["hold_lock", "packer_lock", "planner_lock", "read_packer"]

_HOLDER_VERSION = 1
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


@contextmanager
def planner_lock(
    work_dir: WorkDir, *, worker: WorkerIdentity | None = None, fs: FileSystem = LOCAL
) -> Iterator[None]:
    """Hold the planner's lock of a work dir, which is made if need be.

    Raises:
        BusyError: Another process plans in this work dir.
        StorageError: The work dir cannot be written.
    """
    with storage_errors(work_dir.root):
        work_dir.root.mkdir(parents=True, exist_ok=True)
    with hold_lock(work_dir.planner_lock, "planner", run_id="-", worker=worker, fs=fs):
        yield


@contextmanager
def packer_lock(
    run: RunPaths, run_id: str, *, worker: WorkerIdentity | None = None, fs: FileSystem = LOCAL
) -> Iterator[None]:
    """Hold the packer's lock of a run.

    Raises:
        BusyError: Another process packs this run.
        StorageError: The work dir cannot be written.
    """
    with hold_lock(run.packer_lock, "packer", run_id=run_id, worker=worker, fs=fs):
        yield


def read_packer(run: RunPaths, *, fs: FileSystem = LOCAL) -> Mapping[str, Any]:
    """Return who held the packer's lock last (see `WorkerIdentity`), or an empty mapping.

    It says nothing about whether the lock is still held.
    """
    try:
        return read_record(_holder(run.packer_lock), "lock-holder", version=_HOLDER_VERSION, fs=fs)
    except (OSError, StorageError, WorkDirError):
        return {}


@contextmanager
def hold_lock(
    path: Path,
    role: str,
    *,
    run_id: str,
    worker: WorkerIdentity | None = None,
    fs: FileSystem = LOCAL,
) -> Iterator[None]:
    """Hold a lock file without waiting, and say beside it who holds it.

    Without flock a lock of this host takes its place; see the module's docstring.

    Args:
        path: The lock file; it stays after release.
        role: ``planner`` or ``packer``, for messages.
        run_id: The run, for the holder's record.
        worker: Who holds it; by default this process.
        fs: File operations for the holder's record.

    Raises:
        BusyError: Somebody else holds it; the message names the host and process.
        StorageError: The lock cannot be written.
    """
    from filelock import Timeout

    holder_path = _holder(path)
    with storage_errors(path):
        try:
            lock = _acquire(path)
        except Timeout:
            raise _busy(path, holder_path, role, fs) from None
    try:
        worker = worker or WorkerIdentity.of_this_process()
        record = encode_record("lock-holder", _HOLDER_VERSION, run_id, worker.as_fields())
        replace_record(holder_path, record, fs=fs)
        yield
    finally:
        # What was done under it counts whatever becomes of the lock: it goes with the process.
        with suppress(OSError):
            lock.release()


def _acquire(path: Path) -> BaseFileLock:
    from filelock import FileLock

    # Never a soft lock instead: after a crash it would stay for ever.
    lock = FileLock(path, timeout=0, fallback_to_soft=False, thread_local=False)
    try:
        lock.acquire()
    except NotImplementedError:
        pass  # how some versions of filelock say ENOSYS
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    else:
        return lock
    lock = FileLock(_lock_of_this_host(path), timeout=0, fallback_to_soft=False, thread_local=False)
    lock.acquire()
    return lock


def _lock_of_this_host(path: Path) -> Path:
    digest = hashlib.sha256(os.path.realpath(path).encode(errors="surrogateescape")).hexdigest()
    return Path(tempfile.gettempdir(), f"leconvert-{digest[:24]}.lock")


def _holder(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")


def _busy(path: Path, holder_path: Path, role: str, fs: FileSystem) -> BusyError:
    holder = "another process"
    try:
        record = read_record(holder_path, "lock-holder", version=_HOLDER_VERSION, fs=fs)
        holder = f"process {record['pid']} on {record['host']}"
    except (OSError, WorkDirError, KeyError):
        pass  # the holder has not written who it is yet, or died doing so; the lock is still held
    return BusyError(
        f"{path} is held by {holder}, which is this work dir's {role}.",
        path=str(path),
        next_step=f"Wait for it, or stop it; the {role} continues where it was.",
    )
