"""Which machine this is, and who a worker or packer is: whether either is the one that it was.

`HostIdentity` is stable over a reboot, and different from every other machine's. `WorkerIdentity`
is a name that no two workers share, and tells whether its process can still be alive.

A process id alone names nobody: hosts may share names, containers all have a process 1, and ids are
used again. So a token ends in random digits. To notice at once that a holder *on this host* died,
a record also carries the boot, the process id namespace and the process's start time; only where
all of them and the host's name match is the absence of the process a fact.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from leconvert.support.machine import boot_id, machine_id

_PURPOSE = b"leconvert one host"
_LOCALLY_MADE = 1 << 41
_MULTICAST = 1 << 40
_HEX_DIGITS = 32


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """A machine, as far as its own files tell.

    Guaranteed: two processes with equal, known boots share a kernel, whatever containers they are
    in. Not guaranteed: that equal machines are one. Images are copied with their machine id in
    them; so a machine counts as the same after a reboot only if its name is the same too.

    Attributes:
        name: Host name.
        machine: A digest of the machine id, or of a network card's own address where there is none;
            empty where neither is known, and then a reboot cannot be told from another machine.
        boot: The kernel's boot id; empty where the system has none.
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
        """Return the identity that a record carries; see ``as_fields``."""
        return cls(*(str(fields.get(name) or "") for name in ("host", "machine", "boot")))

    def as_fields(self) -> dict[str, str]:
        """Return the fields that records carry."""
        return {"host": self.name, "machine": self.machine, "boot": self.boot}

    def is_same_host(self, other: HostIdentity) -> bool:
        """Say whether both are one machine: in one boot, or before and after a reboot."""
        if self.boot and self.boot == other.boot:
            return True
        return bool(self.machine) and (self.machine, self.name) == (other.machine, other.name)


def _machine(root: Path) -> str:
    if found := machine_id(root):
        return _digest(found)
    # Addresses that software made up (containers, virtual cards) may be the same elsewhere.
    card = uuid.getnode()
    return "" if card & (_LOCALLY_MADE | _MULTICAST) else _digest(f"{card:012x}")


def _digest(found: str) -> str:
    # machine-id(5) asks programs not to publish the id itself, and records are read by many.
    return hmac.new(_PURPOSE, found.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]


_HIDDEN = 0
"""The start time of a process that is there and whose start time cannot be read."""


def new_token(host: str, pid: int, randomness: Callable[[int], bytes]) -> str:
    """Return ``host-pid-<8 random hex digits>``, safe as a file name."""
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
