"""Machines and processes: whether either is still the same one, and how a process shows its life.

`HostIdentity` is stable over a reboot, and different from every other machine's. `WorkerIdentity`
is a name that no two workers share, and tells whether its process can still be alive.

A process id alone identifies nothing: hosts may share names, all containers have a process 1, and
ids are reused. So a token ends in random digits. To notice at once that a holder *on this host*
died, each process holds a lock in the host's folder for temporary files until it ends, and its
records name the lock. A process has ended if nobody holds its lock. If the lock is missing (another
container, another TMPDIR), nothing is known. To other hosts, heartbeats show that a process lives:
`PeriodicTask` calls what writes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Self

from leconvert.support.machine import boot_id, is_linux, machine_id
from leconvert.support.values import dataclass

_PURPOSE = b"leconvert one host"
_LOCALLY_MADE = 1 << 41
_MULTICAST = 1 << 40
_HEX_DIGITS = 32


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """A machine, as identified by its own files.

    Guaranteed: two processes with equal, known boots share a kernel, whatever containers they are
    in. Not guaranteed: that equal machines are one. Images are copied with their machine id in
    them, so after a reboot a machine counts as the same only if its name is the same too.

    Attributes:
        name: Host name.
        machine: A digest of the machine id, or of a network card's own address if there is no id;
            empty if neither is known, and then a reboot cannot be distinguished from another
            machine.
        boot: The kernel's boot id; empty if the system has none.
    """

    name: str
    machine: str
    boot: str

    @classmethod
    def of_this_host(cls, root: Path = Path("/")) -> Self:
        """Return this machine's identity."""
        return cls(os.uname().nodename, _machine(root), boot_id(root))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the identity in a record; see ``as_fields``."""
        return cls(*(str(fields.get(name) or "") for name in ("host", "machine", "boot")))

    def as_fields(self) -> dict[str, str]:
        """Return the fields for records."""
        return {"host": self.name, "machine": self.machine, "boot": self.boot}

    def is_same_host(self, other: HostIdentity) -> bool:
        """Return whether both are one machine: in one boot, or before and after a reboot."""
        if self.boot and self.boot == other.boot:
            return True
        return bool(self.machine) and (self.machine, self.name) == (other.machine, other.name)


def _machine(root: Path) -> str:
    if found := machine_id(root):
        return _digest(found)
    # Addresses that software made up (containers, virtual cards) may be the same elsewhere.
    card = uuid.getnode()
    if not card & (_LOCALLY_MADE | _MULTICAST):
        return _digest(f"{card:012x}")
    # On systems other than Linux, no other host works on a run, so its name is enough.
    return "" if is_linux() else _digest(os.uname().nodename)


def _digest(found: str) -> str:
    # machine-id(5) asks programs not to publish the id itself, and records have many readers.
    return hmac.new(_PURPOSE, found.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]


# Longer than any wait for the heartbeat of a process.
_KEPT_SECONDS = 7 * 24 * 3600.0
_LOCK_NAME = re.compile(r"leconvert-[0-9]+\.alive/[0-9]+-[0-9a-f]+\Z")


def new_token(host: str, pid: int) -> str:
    """Return ``host-pid-<8 random hex digits>``, safe as a file name."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", host)[:64].lstrip("-") or "host"
    return f"{safe}-{pid}-{os.urandom(4).hex()}"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity of one worker. Threads of one process that lease separately need one each.

    Attributes:
        token: Unique name, safe as a file name.
        host: Host name, to tell a user where to look.
        pid: Process id there.
        lock: Name, in the folder for temporary files, of the lock that the process holds; may be
            empty.
    """

    token: str
    host: str
    pid: int
    lock: str = ""

    @classmethod
    def of_this_process(cls) -> WorkerIdentity:
        """Return a new identity for the calling process."""
        host, pid = os.uname().nodename, os.getpid()
        return cls(new_token(host, pid), host, pid, _lock_of(pid))

    def as_fields(self) -> dict[str, Any]:
        """Return the fields for records."""
        return asdict(self)


def process_is_gone(fields: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote these fields has certainly ended.

    This is so if it ran on this host and its lock is free. If anything is unknown, the answer is
    False, and only the process's heartbeat can show more.
    """
    return _is_held(fields) is False


def process_is_running(fields: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote these fields certainly runs, stopped or not.

    True only on the host of the process. For a process on another host, this function and
    `process_is_gone` both return False.
    """
    return _is_held(fields) is True


@cache
def _lock_of(pid: int) -> str:
    """Hold a lock until this process ends; return its name, or an empty string without one."""
    name = f"leconvert-{os.getuid()}.alive/{pid}-{os.urandom(8).hex()}"
    path = Path(tempfile.gettempdir(), name)
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        if not _is_our_own(path.parent):
            return ""
        _remove_old_locks(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return ""
    _held.append(descriptor)
    return name


_held: list[int] = []


def _let_go() -> None:
    """Close the descriptors of a parent's lock: a forked process would hold it for its parent."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def _is_our_own(folder: Path) -> bool:
    """Return whether only this user can have made what is in a folder of temporary files.

    Anybody may have made the folder's name first, such as a link to a folder of this user.
    """
    facts = folder.lstat()
    others_write = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not others_write


def _remove_old_locks(folder: Path) -> None:
    """Remove the locks of processes that ended long ago, whose heartbeats no longer matter."""
    oldest = time.time() - _KEPT_SECONDS
    with suppress(OSError), os.scandir(folder) as entries:  # a week may leave ten thousand
        for entry in entries:
            is_old = entry.stat(follow_symlinks=False).st_mtime < oldest
            if is_old and _LOCK_NAME.match(f"{folder.name}/{entry.name}"):
                path = Path(entry.path)
                if _is_locked(path) is False:
                    path.unlink()


def _is_held(fields: Mapping[str, Any]) -> bool | None:
    """Return whether the process that wrote these fields holds its lock; None if unknown."""
    name = fields.get("lock")
    # A machine that was copied while it ran has the file, but neither the process nor the name.
    if fields.get("host") != os.uname().nodename or not isinstance(name, str):
        return None
    return _is_locked(Path(tempfile.gettempdir(), name)) if _LOCK_NAME.match(name) else None


def _is_locked(path: Path) -> bool | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(descriptor)


class PeriodicTask:
    """Calls a function at intervals until the ``with`` block ends or the function returns False.

    The first call comes after one interval. Leaving the block waits for a running call. Not
    guaranteed: that calls are on time. A frozen process makes none.
    """

    def __init__(
        self,
        call: Callable[[], bool],
        interval_seconds: float,
        *,
        name: str,
        waiter: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._call = call
        self._interval_seconds = interval_seconds
        self._waiter = waiter
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._waiter(self._stop, self._interval_seconds):
            if not self._call():
                return
