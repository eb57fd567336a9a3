"""Which machine this is: stable over a reboot, different from every other one."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["HostIdentity", "boot_id"]

_MACHINE_IDS = ("etc/machine-id", "var/lib/dbus/machine-id")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}\Z")
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
        """Return this machine's identity.

        Args:
            root: Where the system's files are.
        """
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


def boot_id(root: Path = Path("/")) -> str:
    """Return the kernel's random id of this boot, or an empty string where it has none."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _machine(root: Path) -> str:
    for name in _MACHINE_IDS:
        try:
            found = (root / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _MACHINE_ID.match(found):  # "uninitialized" in images that never started
            return _digest(found)
    # Addresses that software made up (containers, virtual cards) may be the same elsewhere.
    card = uuid.getnode()
    return "" if card & (_LOCALLY_MADE | _MULTICAST) else _digest(f"{card:012x}")


def _digest(found: str) -> str:
    # machine-id(5) asks programs not to publish the id itself, and records are read by many.
    return hmac.new(_PURPOSE, found.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]
