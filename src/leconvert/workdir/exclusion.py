"""Lets one host alone work on a run, and gives each name of the run to one record there.

Where there are hard links, `link(2)` decides who was first, for any number of hosts
(`FileSystem.give_name`). Where there are none (FAT, exFAT, most mounts of object stores), no
operation decides between two hosts. The processes of one host can still take turns: each looks for
the name and renames its record under one lock (`OneHostFileSystem`), and `one_host.json` says which
host that is. The planner finds out which way it is, and no process of the run changes it.

``one_host.json`` is also written where the user asks for one host (``--one-host``): then hard links
decide among the processes of that host as they would among many. The host that planned the run may
work on it, after a reboot too; every other one is refused.

The record names the boot and the mount through which the run is used. Who comes back after a reboot
or a new mount replaces it; a process that goes on working looks at it once a second. So if two
machines pass for one (images copied with their machine id and name), or one host has mounted a file
system twice, the one that was there before notices and stops.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from leconvert.support.errors import OneHostOnlyError, StorageError, WorkDirError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import CANNOT_LINK, LOCAL, FileSystem, write_durably
from leconvert.workdir.identity import HostIdentity
from leconvert.workdir.locks import lock_excludes, new_lock
from leconvert.workdir.records import RunPaths, encode_record, find_record

ONE_HOST_VERSION = 1
ASKED_FOR = "asked for"
"""The reason in the record of a run with hard links, which was planned with ``--one-host``."""

_WITH_LINKS = "link"
# Of the second, earlier programs wrote "rename" where the kernel refuses a rename to a taken name.
_UNDER_A_LOCK = "lock"
_EXCLUSIONS = frozenset({_WITH_LINKS, _UNDER_A_LOCK, "rename"})
_WAIT_SECONDS = 20.0
_NO_LINKS = CANNOT_LINK - {errno.EMLINK} | {errno.EXDEV}


class OneHostFileSystem(FileSystem):
    """Names records without hard links; everything else as the operating system offers it.

    Guaranteed, among the processes and threads of one kernel that use the same mount:

    - *A torn record is never read.* The content is written whole under a name of its own, which
      nobody reads, and only then gets the name that counts, by one rename. A process that dies
      before the rename leaves a name with a dot; one that dies after it has published. The
      content is on the disk before the name, so a power loss tears nothing either
      where the file system keeps renames in order.
    - *Two never win.* The look and the rename of one process lie between those of no other, since
      all names come into being here, under one lock. What else happens to such a name is that it
      is moved away (a void), which can only make it free.
    - *A dead process blocks nobody*: the kernel drops its lock.

    Not guaranteed: anything between hosts. A process that is stopped (``SIGSTOP``) between its look
    and its rename makes the others wait; they give up after ``wait_seconds`` with an error that
    says so, and when it goes on it is still the only one.
    """

    def __init__(
        self,
        lock: Path,
        *,
        wait_seconds: float = _WAIT_SECONDS,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__()
        self._lock = lock
        self._wait_seconds = wait_seconds
        self._randomness = randomness

    def give_name(self, source: Path, target: Path) -> None:
        """Give a copy of a record the name ``target``; ``source`` stays as it is."""
        fresh = target.with_name(f".{target.name}.{self._randomness(6).hex()}.new")
        try:
            # Also where the name itself need not survive: a claim that a power failure left empty
            # names no holder, and would keep its batch for a whole lease.
            self.write_new(fresh, self.read_bytes(source), sync=True)
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
        from filelock import Timeout

        lock = new_lock(self._lock, wait_seconds=self._wait_seconds)
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


def why_no_links(
    folder: Path,
    other: Path,
    lock: Path,
    *,
    fs: FileSystem = LOCAL,
    randomness: Callable[[int], bytes] = os.urandom,
) -> str:
    """Try whether hard links decide who is first, and say why not, such as ``EPERM``.

    What is made is removed again; after a crash a name that begins with ``.probe-`` is left.

    Returns:
        An empty string where they do.

    Raises:
        StorageError: They do not, and a lock excludes nobody either.
    """
    token = randomness(6).hex()
    first, second = (folder / f".probe-{token}-{number}" for number in (1, 2))
    given = other / f".probe-{token}"
    with storage_errors(folder):
        try:
            for source in (first, second):
                fs.write_new(source, source.name.encode(), sync=False)
            why = _missing_links(first, second, given, fs)
        finally:
            for path in (first, second, given):
                with suppress(OSError):
                    fs.remove_file(path)
        if not why:
            return ""
        with suppress(NotImplementedError, OSError):
            if lock_excludes(lock):
                return why
    raise StorageError(
        f"Cannot use {folder}: its file system has neither hard links ({why}) nor locks, so nothing"
        " tells which of two workers was first.",
        path=str(folder),
        next_step="Put the work dir on another file system, such as a local disk.",
    )


def _missing_links(first: Path, second: Path, given: Path, fs: FileSystem) -> str:
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


@dataclass(frozen=True, slots=True)
class OneHost:
    """Which host alone may work on a run, and whether it has hard links there.

    Attributes:
        host: The host.
        device: Device number of the run's folder there: another one is another mount.
        has_links: Whether hard links decide all the same; else names are given under a lock.
        reason: What the attempt to make a hard link ended in, or `ASKED_FOR`.
    """

    host: HostIdentity
    device: int
    has_links: bool
    reason: str

    @property
    def remark(self) -> str:
        """One sentence that says what follows from it."""
        if self.has_links:
            return f"As --one-host asks, only this host, {self.host.name}, may work on the run."
        return (
            f"The work dir has no hard links ({self.reason}): only this host, {self.host.name}, "
            "may work on the run, and finished files are copied into place."
        )

    def file_system(self, run: RunPaths) -> FileSystem:
        """Return the file operations that every process of this run must publish with."""
        return LOCAL if self.has_links else OneHostFileSystem(run.naming_lock)


def plan_one_host(
    run: RunPaths, run_id: str, *, asked_for: bool = False, fs: FileSystem = LOCAL
) -> OneHost | None:
    """Probe a new run's folder, and record this host if it has no hard links or is to be alone.

    Call it when the run's folders are there and its manifest is not.
    """
    why = why_no_links(run.attempts_dir, run.done_dir, run.naming_lock, fs=fs)
    if not why and not asked_for:
        return None
    planned = OneHost(
        HostIdentity.of_this_host(), _device(run.root), has_links=not why, reason=why or ASKED_FOR
    )
    _write(run, run_id, planned, fs)
    return planned


def read_one_host(run: RunPaths, run_id: str, *, fs: FileSystem = LOCAL) -> OneHost | None:
    """Return the record of a run, or None where any number of hosts may work."""
    fields = find_record(run.one_host, "one-host", version=ONE_HOST_VERSION, run_id=run_id, fs=fs)
    if fields is None:
        return None
    try:
        exclusion = fields["exclusion"]
        if exclusion not in _EXCLUSIONS:
            raise ValueError(f"{exclusion!r} is no way to give a name once")
        return OneHost(
            HostIdentity.from_fields(fields),
            int(fields["device"]),
            has_links=exclusion == _WITH_LINKS,
            reason=str(fields["reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WorkDirError(
            f"{run.one_host} does not say who may work on the run: {error}.",
            path=str(run.one_host),
            next_step="Use the leconvert version that wrote it, or start a new run with --restart.",
        ) from error


def admit_host(run: RunPaths, run_id: str, planned: OneHost) -> OneHost:
    """Refuse every host but the one that planned the run; note its present boot and mount."""
    here = HostIdentity.of_this_host()
    if not here.is_same_host(planned.host):
        raise OneHostOnlyError(
            f"Only {planned.host.name} may work on run {run_id}, which it planned"
            f"{_because(run, planned)} This host is {here.name}"
            f"{', another one' * (here.name == planned.host.name)}.",
            path=str(run.root),
            next_step=f"Run the command on {planned.host.name}; or begin anew with --restart, here "
            + (
                "or without --one-host."
                if planned.has_links
                else "or with a --work-dir that has hard links (ext4, XFS, NFS)."
            ),
        )
    now = replace(planned, host=replace(planned.host, boot=here.boot), device=_device(run.root))
    if now != planned:
        _write(run, run_id, now, LOCAL)
    return now


def check_still_alone(run: RunPaths, run_id: str, mine: OneHost) -> None:
    """Check that nobody came in through another boot or mount since this process did."""
    now = read_one_host(run, run_id)
    if now is not None and now != mine:
        raise OneHostOnlyError(
            f"Run {run_id} is used through another host or mount now, by one that calls itself "
            f"{now.host.name} as well; only one may work there.",
            path=str(run.root),
            next_step="Let that one finish. Two machines with the same /etc/machine-id and name "
            "should get ids of their own.",
        )


def _because(run: RunPaths, planned: OneHost) -> str:
    if planned.has_links:
        return " with --one-host."
    return (
        f": {run.root} has no hard links ({planned.reason}), without which two hosts cannot tell "
        "who was first."
    )


def _write(run: RunPaths, run_id: str, record: OneHost, fs: FileSystem) -> None:
    fields = {
        **record.host.as_fields(),
        "device": record.device,
        "exclusion": _WITH_LINKS if record.has_links else _UNDER_A_LOCK,
        "reason": record.reason,
    }
    write_durably(run.one_host, encode_record("one-host", ONE_HOST_VERSION, run_id, fields), fs=fs)


def _device(folder: Path) -> int:
    with storage_errors(folder):
        return os.stat(folder).st_dev  # noqa: PTH116 - st_dev alone
