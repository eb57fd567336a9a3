"""Identities of machines and of workers or packers: whether either is still the same one.

`HostIdentity` is stable over a reboot, and different from every other machine's. `WorkerIdentity`
is a name that no two workers share, and tells whether its process can still be alive.

A process id alone identifies nothing: hosts may share names, all containers have a process 1, and
ids are reused. So a token ends in random digits. To notice at once that a holder *on this host*
died, a record also carries the boot, the process id namespace and the process's start time. Only if
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
    return "" if card & (_LOCALLY_MADE | _MULTICAST) else _digest(f"{card:012x}")


def _digest(found: str) -> str:
    # machine-id(5) asks programs not to publish the id itself, and records have many readers.
    return hmac.new(_PURPOSE, found.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]


_HIDDEN = 0
"""The start time of a process that exists, but whose start time cannot be read."""


def new_token(host: str, pid: int, randomness: Callable[[int], bytes]) -> str:
    """Return ``host-pid-<8 random hex digits>``, safe as a file name."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", host)[:64].lstrip("-") or "host"
    return f"{safe}-{pid}-{randomness(4).hex()}"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity of one worker. Threads of one process that lease separately need one each.

    Attributes:
        token: Unique name, safe as a file name.
        host: Host name, to tell a user where to look.
        pid: Process id there.
        boot: Boot id and process id namespace, or an empty string if unknown.
        started: Start time of the process in clock ticks after boot, or 0 if unknown.
    """

    token: str
    host: str
    pid: int
    boot: str = ""
    started: int = 0

    @classmethod
    def of_this_process(cls, randomness: Callable[[int], bytes] = os.urandom) -> WorkerIdentity:
        """Return a new identity for the calling process."""
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
        """Return the fields for records."""
        return {
            "token": self.token,
            "host": self.host,
            "pid": self.pid,
            "boot": self.boot,
            "started": self.started,
        }


def process_is_gone(fields: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote these fields has certainly ended.

    True only if it ran on this host and boot, in this process id namespace, and no process with its
    id and start time exists. If anything is unknown the answer is False, and only the process's
    heartbeat tells.
    """
    if not _ran_here(fields):
        return False
    return _start_time(fields["pid"]) not in {_HIDDEN, fields["started"]}


def process_is_running(fields: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote these fields certainly runs, stopped or not.

    True only on the very boot and in the process id namespace that it ran in. For a process
    elsewhere, both this function and `process_is_gone` return False.
    """
    return _ran_here(fields) and bool(_start_time(fields["pid"]) == fields["started"])


def _ran_here(fields: Mapping[str, Any]) -> bool:
    boot, pid, started = fields.get("boot"), fields.get("pid"), fields.get("started")
    # Machines that were copied while running share a boot id, but not a name.
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
    """Return when a process began, None if it has ended, `_HIDDEN` if it is not shown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        # A system may hide other users' processes (`hidepid` of /proc), but not whether they exist.
        return _HIDDEN if _exists(pid) else None
    # The command name is in brackets and may itself contain spaces and brackets.
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
