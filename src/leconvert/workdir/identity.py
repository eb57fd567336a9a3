"""Who a worker or packer is: a name that no two of them share, and whether it can still be alive.

A process id alone names nobody: hosts may share names, containers all have a process 1, and ids are
used again. So a token ends in random digits. To notice at once that a holder *on this host* died,
a record also carries the boot, the process id namespace and the process's start time; only where
all of them and the host's name match is the absence of the process a fact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leconvert.workdir.host import boot_id

__all__ = ["WorkerIdentity", "new_token", "process_is_gone", "process_is_running"]

_HIDDEN = 0
"""The start time of a process that is there and whose start time cannot be read."""


def new_token(host: str, pid: int, randomness: Callable[[int], bytes]) -> str:
    """Return ``host-pid-<8 random hex digits>``, safe as a file name.

    Args:
        host: The host's name; unusual characters become ``_``.
        pid: The process id.
        randomness: Returns so many random bytes; ``os.urandom``.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", host)[:64].lstrip("-") or "host"
    return f"{safe}-{pid}-{randomness(4).hex()}"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """One thread of work. Threads of one process that lease separately need one each.

    Attributes:
        token: Unique name, safe as a file name.
        host: Host name, to tell a user where to look.
        pid: Process id there.
        boot: Boot id and process id namespace, or an empty string where unknown.
        started: Start time of the process in clock ticks after boot, or 0 where unknown.
    """

    token: str
    host: str
    pid: int
    boot: str = ""
    started: int = 0

    @classmethod
    def of_this_process(cls, randomness: Callable[[int], bytes] = os.urandom) -> WorkerIdentity:
        """Return a fresh identity of the calling process."""
        host = os.uname().nodename
        pid = os.getpid()
        return cls(
            token=new_token(host, pid, randomness),
            host=host,
            pid=pid,
            boot=_boot(),
            started=_start_time(pid) or 0,
        )

    def as_fields(self) -> dict[str, Any]:
        """Return the fields that records carry."""
        return {
            "token": self.token,
            "host": self.host,
            "pid": self.pid,
            "boot": self.boot,
            "started": self.started,
        }


def process_is_gone(fields: Mapping[str, Any]) -> bool:
    """Say whether the process that wrote these fields has certainly ended.

    True only if it ran on this host and boot, in this process id namespace, and no process with its
    id and start time exists. Whatever is unknown gives False: then only its heartbeat tells.
    """
    if not _ran_here(fields):
        return False
    return _start_time(fields["pid"]) not in {_HIDDEN, fields["started"]}


def process_is_running(fields: Mapping[str, Any]) -> bool:
    """Say whether the process that wrote these fields certainly runs, stopped or not.

    True only on the very boot and in the process id namespace that it ran in. Of two questions
    about a process elsewhere, this one and `process_is_gone`, both are answered False.
    """
    return _ran_here(fields) and bool(_start_time(fields["pid"]) == fields["started"])


def _ran_here(fields: Mapping[str, Any]) -> bool:
    boot, pid, started = fields.get("boot"), fields.get("pid"), fields.get("started")
    # Machines that were copied while they ran go on with one boot id, but not under one name.
    if not boot or fields.get("host") != os.uname().nodename:
        return False
    known = isinstance(pid, int) and isinstance(started, int) and started != _HIDDEN
    return known and bool(boot == _boot())


def _boot() -> str:
    boot = boot_id()
    try:
        return boot and f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Return when a process began, None where it has ended, `_HIDDEN` where that is not shown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        # A system may keep users from seeing each other's processes (`hidepid` of /proc), not from
        # asking whether they exist.
        return _HIDDEN if _exists(pid) else None
    # The command name is in brackets and may hold spaces and brackets itself.
    fields = status.rpartition(b")")[2].split()
    # A zombie's work has ended although its id is still taken.
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # another user's, or no process id at all
    return True
