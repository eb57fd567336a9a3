"""Locks: one planner, one packer and one swap of a target at a time, held by `filelock`.

Not guaranteed: that a holder which was frozen stays the only one. Over NFS, the server releases the
lock of a silent host, and that host's renames can still arrive. The lock saves work and avoids
confusion. Packer generations (`leconvert.workdir.swap`) make a second packer harmless.

**Without flock on the work dir's file system**, the lock is a file in this host's folder for
temporary files. It excludes only processes of this host that see the same folder. That is enough,
for three reasons. Two packers meet in the journal, where the generation decides, as after a lost
lock. Two planners write separate runs; ``current`` names one, and the planner of the other run
notices when it opens that run. If two runs swap at one target, the second notices that
it took out another tree than it saw there.

**A lock whose holder is silent.** A packer that died or froze on another host holds its lock until
the NFS server releases it, which takes a minute or two. Therefore a packer replaces a nonce in the
record beside its lock every few seconds (`BEAT_SECONDS`). A process that finds the lock held
watches that record with its own monotonic clock. If the record changes, the holder lives, and that
is an error at once. Otherwise the process tries the lock again, for as long as the caller wants. No
clocks of two hosts are compared, and no process takes a lock away: only the kernel and the server
release it.

This module also holds `Backoff`, for the pauses of a worker whose disk fails.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    OneHostOnlyError,
    StorageError,
    WorkDirError,
)
from leconvert.support.machine import is_linux
from leconvert.support.storage_errors import storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import (
    CANNOT_LINK,
    LOCAL,
    FileSystem,
    make_durably,
    replace_record,
    write_durably,
)
from leconvert.workdir.identity import HostIdentity, PeriodicTask, WorkerIdentity
from leconvert.workdir.records import (
    RunPaths,
    WorkDir,
    encode_record,
    find_record,
    read_record,
    run_removed,
    target_lock_path,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock


BEAT_SECONDS = 3.0
"""The interval of a living packer's signs of life."""

_HOLDER_VERSION = 1
# Interval for trying a lock on another host and reading its record: over NFS neither is notified.
_POLL_SECONDS = 0.5
# The kernel waits for a lock without a limit or not at all, so a wait with a limit tries again.
_SHORTEST_POLL_SECONDS = 0.005
_REMOVALS = 2  # a single error of the disk leaves no lock beside a dataset
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


class LockWait(NamedTuple):
    """How to wait for a lock whose holder gives no sign of life.

    Attributes:
        seconds: The longest wait.
        say: Tells the user about the holder.
        pause: Waits some seconds and returns whether to give up, like `threading.Event.wait`.
        clock: Returns monotonic seconds.
    """

    seconds: float
    say: Callable[[str], None]
    pause: Callable[[float], bool]
    clock: Callable[[], float] = time.monotonic


def new_lock(path: Path, *, wait_seconds: float = 0.0) -> BaseFileLock:
    """Return a lock that is not held yet; its descriptor excludes threads of this process too."""
    from filelock import FileLock

    # Never use a soft lock instead: after a crash it would stay for ever.
    return FileLock(
        path,
        timeout=wait_seconds,
        poll_interval=_SHORTEST_POLL_SECONDS,
        fallback_to_soft=False,
        thread_local=False,
    )


def lock_excludes(path: Path) -> bool:
    """Return whether a second descriptor is refused a lock while the first one holds it.

    Raises:
        NotImplementedError: There are no locks.
        OSError: The lock file cannot be made or locked.
    """
    from filelock import Timeout

    with new_lock(path):
        try:
            with new_lock(path):
                return False
        except Timeout:
            return True


@contextmanager
def planner_lock(work_dir: WorkDir) -> Iterator[None]:
    """Hold the planner's lock of a work dir, which is made if needed.

    Raises:
        BusyError: Another process holds it.
    """
    make_durably(work_dir.root)
    with hold_lock(work_dir.planner_lock, "planner", run_id="-"):
        yield


def remove_planner_lock(work_dir: WorkDir) -> None:
    """Remove the planner's lock and its holder's record; call it while holding the lock.

    A process that opened the file a moment before finds it locked, or without a name. Its user is
    told that the lock is held. If a version of `filelock` does not check the name, two planners may
    plan, as after a lost lock.
    """
    for path in (_holder(work_dir.planner_lock), work_dir.planner_lock):
        path.unlink(missing_ok=True)


@contextmanager
def packer_lock(
    run: RunPaths, *, wait: LockWait | None = None, beats: bool = False
) -> Iterator[None]:
    """Hold the packer's lock of a run; see `hold_lock`. A removed run is not made again.

    Raises:
        BusyError: Another process holds it.
        WorkDirError: The run was removed.
    """
    path = run.packer_lock
    if not run.root.is_dir():
        raise run_removed(run)
    with hold_lock(path, "packer", run_id=run.run_id, wait=wait, beats=beats):
        try:
            inside = set(run.root.iterdir())
        except FileNotFoundError:
            raise run_removed(run) from None
        # A lock makes its parent folders; if the run was removed, they hold only the lock.
        if inside <= {path, _holder(path)} and beats:
            with suppress(OSError):
                for made in (path, _holder(path)):
                    made.unlink(missing_ok=True)
                for folder in (run.root, run.root.parent, run.root.parent.parent):
                    folder.rmdir()
            raise run_removed(run)
        yield


@contextmanager
def target_lock(target: Path, run_id: str, *, wait: LockWait | None = None) -> Iterator[None]:
    """Hold the lock of a target while a result takes its place, and until the source is dealt with.

    Runs with different work dirs meet here. The lock is in a folder of its own beside the target,
    which is removed on release.

    Raises:
        BusyError: Another process holds it.
    """
    path = target_lock_path(target)
    make_durably(path.parent)
    held = False
    try:
        with hold_lock(path, "target", run_id=run_id, wait=wait, beats=True):
            held = True
            try:
                yield
            finally:
                # The lock, and half-written files of processes that died here. Once they are gone,
                # a lock is the next process's.
                for _ in range(_REMOVALS):
                    with suppress(OSError):
                        for left in set(path.parent.iterdir()) - {_holder(path)}:
                            left.unlink()
                        break
    finally:
        # From now on, no thread rewrites it to show that the holder lives.
        for _ in range(_REMOVALS):
            with suppress(OSError):
                if held:
                    _holder(path).unlink(missing_ok=True)
                path.parent.rmdir()  # fails if it is another process's by now
                break


def read_packer(run: RunPaths) -> Mapping[str, Any]:
    """Return the last holder of the packer's lock (see `WorkerIdentity`), or an empty mapping.

    The lock may have been released since.
    """
    return _read_holder(run.packer_lock, run.fs)


def _read_holder(lock: Path, fs: FileSystem = LOCAL) -> Mapping[str, Any]:
    try:
        return read_record(_holder(lock), "lock-holder", version=_HOLDER_VERSION, fs=fs)
    except (OSError, StorageError, WorkDirError):
        return {}


@contextmanager
def hold_lock(
    path: Path,
    role: str,
    *,
    run_id: str,
    wait: LockWait | None = None,
    beats: bool = False,
) -> Iterator[None]:
    """Hold a lock file, and record this process beside it.

    Without flock, a lock of this host replaces it; see the module's docstring.

    Args:
        path: The lock file.
        role: The holder's role, for messages.
        run_id: The run, for the record.
        wait: How to wait for a silent holder; None not to wait.
        beats: Whether to show signs of life.

    Raises:
        BusyError: Another process holds it.
        InterruptedRunError: The wait was interrupted.
    """
    from filelock import Timeout

    holder_path = _holder(path)
    with storage_errors(path):
        try:
            lock = acquire_lock(path)
        except Timeout:
            if wait is None or wait.seconds <= 0:
                raise _busy(path, role) from None
            lock = _wait_for(path, role, wait)
    try:
        fields = WorkerIdentity.of_this_process().as_fields()

        def show_life() -> bool:
            more = {"beat": os.urandom(8).hex()} if beats else {}
            record = encode_record("lock-holder", _HOLDER_VERSION, run_id, fields | more)
            replace_record(holder_path, record)
            return True

        def keep_showing() -> bool:
            with suppress(StorageError, OSError):  # the packer itself will report a failing disk
                show_life()
            return True

        show_life()
        with (
            PeriodicTask(keep_showing, BEAT_SECONDS, name=f"{role}-lock")
            if beats
            else nullcontext()
        ):
            yield
    finally:
        # Work that was done under the lock counts even if releasing fails: the lock ends with the
        # process.
        with suppress(OSError):
            lock.release()


def acquire_lock(path: Path) -> BaseFileLock:
    """Return a lock that is held; without flock one of this host takes its place.

    Raises:
        filelock.Timeout: Another process holds it.
    """
    lock = new_lock(path)
    try:
        # Another process may remove the folder of a target's lock just now; the second call makes
        # the folder again.
        with suppress(FileNotFoundError):
            lock.acquire()
        if not lock.is_locked:
            lock.acquire()
    except NotImplementedError:
        pass  # some versions of filelock report ENOSYS like this
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    else:
        return lock
    lock = new_lock(_lock_of_this_host(path))
    lock.acquire()
    return lock


def _lock_of_this_host(path: Path) -> Path:
    digest = hashlib.sha256(os.path.realpath(path).encode(errors="surrogateescape")).hexdigest()
    return Path(tempfile.gettempdir(), f"leconvert-{digest[:24]}.lock")


def _holder(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")


def _wait_for(path: Path, role: str, wait: LockWait) -> BaseFileLock:
    from filelock import Timeout

    seen, began, told = _read_holder(path), wait.clock(), False
    while True:
        with suppress(Timeout):
            return acquire_lock(path)
        now = _read_holder(path)
        if now and now != seen:
            raise _busy(path, role)
        silent_seconds = wait.clock() - began
        if silent_seconds >= wait.seconds:
            raise _busy(path, role, silent_seconds)
        if not told and silent_seconds >= 2 * BEAT_SECONDS:
            told = True
            wait.say(
                f"Waiting up to {wait.seconds:.0f} s for the lock of the {role}: "
                f"{_named(path)} holds the lock, but has given no sign of life for "
                f"{silent_seconds:.0f} s."
            )
        if wait.pause(min(_POLL_SECONDS, wait.seconds - silent_seconds)):
            raise InterruptedRunError(
                f"The wait for the lock of the {role} was interrupted.",
                next_step="Run the same command again to continue.",
            )


def _named(path: Path) -> str:
    # A holder that has not recorded itself yet, or died before, holds the lock all the same.
    record = _read_holder(path)
    return f"process {record['pid']} on {record['host']}" if record else "another process"


def _busy(path: Path, role: str, silent_seconds: float | None = None) -> BusyError:
    silent = ""
    if silent_seconds is not None:
        silent = f" and has given no sign of life for {silent_seconds:.0f} s"
    if role == "target":
        holder = _named(path)
        return BusyError(
            f"{holder[0].upper()}{holder[1:]} holds the lock {path}{silent}. That process puts the "
            "result of another run in the same place.",
            path=str(path),
            next_step="Wait for that process. Look at the dataset there before you run this "
            "command again.",
        )
    return BusyError(
        f"The lock {path} is held by {_named(path)}, the {role} of this work dir{silent}.",
        path=str(path),
        next_step=f"Wait for that process or stop it. A new {role} continues where it stopped.",
    )


_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class Backoff:
    """Pauses between attempts: each twice as long as the last, with limits for each and the sum.

    Only pauses count, not attempts and not the time between two failures. So an hour of useful
    waiting does not use the sum up.

    Args:
        seconds: Sum of all pauses; 0 for no pause.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._next = _FIRST_PAUSE_SECONDS

    @property
    def spent_seconds(self) -> float:
        """Sum of the pauses since the last success."""
        return self._spent

    def next_pause(self) -> float | None:
        """Return the seconds to wait before the next attempt; None once the sum is used up."""
        pause = min(self._next, self._seconds - self._spent)
        if pause <= 0:
            return None
        self._spent += pause
        self._next = min(2 * self._next, _LONGEST_PAUSE_SECONDS)
        return pause

    def reset(self) -> None:
        """Start again after a success."""
        self._spent = 0.0
        self._next = _FIRST_PAUSE_SECONDS


# One-host mode: which host may work on a run, and how only one record gets each name of the run.
#
# With hard links, `link(2)` decides which process was first, for any number of hosts
# (`FileSystem.give_name`). Without them (FAT, exFAT, most mounts of object stores), no operation
# decides between two hosts. The processes of one host can still take turns: each looks for the name
# and renames its record under one lock (`OneHostFileSystem`), and `one_host.json` names that host.
# The planner finds out which case it is, and no process of the run changes it.
#
# ``one_host.json`` is also written if the user asks for one host (``--one-host``). Then hard links
# decide among the processes of that host. Only the host that planned the run may work on it, also
# after a reboot.
#
# The record names the boot and the mount through which the run is used. A process that starts after
# a reboot or a new mount replaces the record. A running process reads it once a second. So if two
# machines look like one (images copied with machine id and name), or one host has mounted a file
# system twice, the earlier process notices and stops.


ONE_HOST_VERSION = 1
ASKED_FOR = "asked for"
"""The reason in the record of a run with hard links, which was planned with ``--one-host``."""
NOT_LINUX = "not on Linux"
"""The reason in the record of a run that was planned on another system than Linux."""

_WITH_LINKS = "link"
# Earlier programs wrote "rename" for the second if the kernel refuses a rename to a taken name.
_UNDER_A_LOCK = "lock"
_EXCLUSIONS = frozenset({_WITH_LINKS, _UNDER_A_LOCK, "rename"})
_WAIT_SECONDS = 20.0
_NO_LINKS = CANNOT_LINK - {errno.EMLINK} | {errno.EXDEV}


class OneHostFileSystem(FileSystem):
    """Names records without hard links; all other operations are the operating system's.

    Guaranteed, among the processes and threads of one kernel that use the same mount:

    - *A torn record is never read.* The content is first written completely under a name that
      nobody reads. One rename then gives it the name that counts. A process that dies before the
      rename leaves a name with a dot. After the rename, the record is published. The content is
      synced before the name, so a power loss tears nothing, if the file system keeps renames in
      order.
    - *Two never win.* All names are made here, under one lock, so no other process acts between one
      process's look and its rename. The only other change to such a name is that it is moved away
      (a void), which can only make it free.
    - *A dead process blocks nobody*: the kernel drops its lock.

    Not guaranteed: anything between hosts. A process that is stopped (``SIGSTOP``) between its look
    and its rename makes the others wait. They give up after ``wait_seconds`` with an error that
    says so. When the process goes on, it is still the only one.
    """

    def __init__(self, lock: Path, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        super().__init__()
        self._lock = lock
        self._wait_seconds = wait_seconds

    def give_name(self, source: Path, target: Path) -> None:
        """Give a copy of a record the name ``target``; ``source`` does not change."""
        fresh = target.with_name(f".{target.name}.{os.urandom(6).hex()}.new")
        try:
            # Sync even if the name itself need not survive: a claim that a power failure left empty
            # names no holder, and would block its batch for a whole lease.
            self.write_new(fresh, self.read_bytes(source), sync=True)
            with self._locked():
                if self.names_among(target.parent, [target.name]):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
                self.replace(fresh, target)
        except BaseException:
            with suppress(OSError):
                self.remove_file(fresh)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import Timeout

        try:
            with new_lock(self._lock, wait_seconds=self._wait_seconds):
                yield
        except Timeout:
            raise StorageError(
                f"A stopped process has held the lock {self._lock} for {self._wait_seconds:.0f} s.",
                path=str(self._lock),
                next_step="Continue or end the stopped process of this run (`ps` shows it with T), "
                "then run the same command again.",
            ) from None


class BrokenPromiseError(Exception):
    """An operation succeeded with the wrong effect; the message describes it."""


@contextmanager
def linked_probe(folder: Path, other: Path, fs: FileSystem) -> Iterator[tuple[Path, Path]]:
    """Link a file from one folder to another; only the first of two files may get the name.

    Yields the file and its further name. Files of the test are removed again; after a crash a name
    that begins with ``.probe-`` is left.

    Raises:
        OSError: They do not work at all.
        BrokenPromiseError: They work differently.
    """
    token = os.urandom(6).hex()
    first, second = (folder / f".probe-{token}-{number}" for number in (1, 2))
    given = other / f".probe-{token}"
    try:
        for source in (first, second):
            fs.write_new(source, source.name.encode(), sync=False)
        # Nobody else has this random name: over NFS an existing one is our own repeated request.
        with suppress(FileExistsError):
            fs.link(first, given)
        try:
            fs.link(second, given)
        except FileExistsError:
            pass
        else:
            raise BrokenPromiseError("linking one name succeeded twice")
        yield first, given
    finally:
        for path in (first, second, given):
            with suppress(OSError):
                fs.remove_file(path)


def why_no_links(folder: Path, other: Path, lock: Path, *, fs: FileSystem = LOCAL) -> str:
    """Return why hard links do not decide which process is first, such as ``EPERM``.

    Returns:
        An empty string if hard links work.

    Raises:
        StorageError: They do not work, and a lock excludes nobody either.
    """
    with storage_errors(folder):
        try:
            with linked_probe(folder, other, fs):
                return ""
        except BrokenPromiseError as broken:
            why = str(broken)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            why = errno.errorcode[error.errno]
        with suppress(NotImplementedError, OSError):
            if lock_excludes(lock):
                return why
    raise StorageError(
        f"Cannot use {folder}: its file system has neither hard links ({why}) nor locks, so "
        "workers cannot share work there.",
        path=str(folder),
        next_step="Put the work dir on another file system, such as a local disk.",
    )


@dataclass(frozen=True, slots=True)
class OneHost:
    """The only host that may work on a run, and whether it has hard links there.

    Attributes:
        host: The host.
        device: Device number of the run's folder there; a different number means another mount.
        has_links: Whether hard links give the names; otherwise names are given under a lock.
        reason: The error of a hard link, `ASKED_FOR` or `NOT_LINUX`.
    """

    host: HostIdentity
    device: int
    has_links: bool
    reason: str

    @property
    def remark(self) -> str:
        """The consequences, in one sentence."""
        if self.reason == NOT_LINUX:
            return (
                f"Only this host, {self.host.name}, may work on the run: several hosts can share "
                "a work dir only on Linux."
            )
        if self.has_links:
            return f"Only this host, {self.host.name}, may work on the run, because of --one-host."
        return (
            f"The file system of the work dir has no hard links ({self.reason}). Only this "
            f"host, {self.host.name}, may work on the run, and finished files are "
            "copied into place."
        )

    def paths(self, run: RunPaths) -> RunPaths:
        """Return a run's paths with the file operations of this host."""
        return run if self.has_links else run.using(OneHostFileSystem(run.naming_lock))


def plan_one_host(run: RunPaths, *, asked_for: bool = False) -> OneHost | None:
    """Test a new run's folder, and record this host if it has no hard links or must be alone.

    Only Linux hosts share a work dir.

    Call it when the run's folders exist and its manifest does not.
    """
    why = why_no_links(run.attempts_dir, run.done_dir, run.naming_lock, fs=run.fs)
    alone = why or (ASKED_FOR if asked_for else "" if is_linux() else NOT_LINUX)
    if not alone:
        return None
    planned = OneHost(
        HostIdentity.of_this_host(), _device(run.root), has_links=not why, reason=alone
    )
    _write(run, planned)
    return planned


def read_one_host(run: RunPaths) -> OneHost | None:
    """Return the record of a run, or None if any number of hosts may work.

    Raises:
        WorkDirError: The record is damaged.
    """
    fields = find_record(run.one_host, "one-host", version=ONE_HOST_VERSION, run_id=run.run_id)
    if fields is None:
        return None
    try:
        exclusion = fields["exclusion"]
        if exclusion not in _EXCLUSIONS:
            raise ValueError(f"{exclusion!r} is not a method that gives a name to only one process")
        return OneHost(
            HostIdentity.from_fields(fields),
            int(fields["device"]),
            has_links=exclusion == _WITH_LINKS,
            reason=str(fields["reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WorkDirError(
            f"The record {run.one_host} is damaged: {error}.",
            path=str(run.one_host),
            next_step="Use the version of leconvert that wrote it, or begin a new run with "
            "--restart.",
        ) from error


def admit_host(run: RunPaths, planned: OneHost) -> OneHost:
    """Refuse every host except the one that planned the run; record its current boot and mount.

    Raises:
        OneHostOnlyError: This is another host.
    """
    here = HostIdentity.of_this_host()
    if not here.is_same_host(planned.host):
        why = " with --one-host."
        if not planned.has_links:
            why = f": the file system of {run.root} has no hard links ({planned.reason}), which "
            why += "several hosts need."
        raise OneHostOnlyError(
            f"Only the host {planned.host.name}, which planned run {run.run_id}, may work on "
            f"it{why} This host is "
            f"{here.name}{', another one' * (here.name == planned.host.name)}.",
            path=str(run.root),
            next_step=(
                f"Run the command on {planned.host.name}. Or begin a new run with --restart, here "
            )
            + (
                "or without --one-host."
                if planned.has_links
                else "or with a --work-dir that has hard links (ext4, XFS, NFS)."
            ),
        )
    now = replace(planned, host=replace(planned.host, boot=here.boot), device=_device(run.root))
    if now != planned:
        _write(run, now)
    return now


def check_still_alone(run: RunPaths, mine: OneHost) -> None:
    """Check that nobody has started through another boot or mount since this process did.

    Raises:
        OneHostOnlyError: Another process uses the run through another boot or mount.
    """
    now = read_one_host(run)
    if now is not None and now != mine:
        raise OneHostOnlyError(
            f"Two hosts or mounts with the name {now.host.name} use run {run.run_id}. Only one "
            "of them may work on it.",
            path=str(run.root),
            next_step="Let that one finish. Machines that are copies of one image need names of "
            "their own.",
        )


def _write(run: RunPaths, record: OneHost) -> None:
    fields = {
        **record.host.as_fields(),
        "device": record.device,
        "exclusion": _WITH_LINKS if record.has_links else _UNDER_A_LOCK,
        "reason": record.reason,
    }
    write_durably(run.one_host, run.encode("one-host", ONE_HOST_VERSION, fields))


def _device(folder: Path) -> int:
    with storage_errors(folder):
        return os.stat(folder).st_dev  # noqa: PTH116 - st_dev alone
