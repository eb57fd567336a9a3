"""Whether this machine is suitable, and how many cores and how much memory a process may use.

Containers and batch systems limit both by control groups, which neither ``os.cpu_count`` nor
``/proc/meminfo`` knows. Every group from the process's own up to the root counts, in either version
of the interface [1]. A group that cannot be read limits nothing.

[1] The kernel's ``Documentation/admin-guide/cgroup-v2.rst`` (``cpu.max``, ``memory.max``,
``memory.current``, ``memory.stat``) and ``cgroup-v1/memory.rst``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from leconvert.support.errors import InstallationError, UsageError

_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
_UNLIMITED = 2**60  # version 1 states "no limit" as a number near 2**63


def check_linux() -> None:
    """Refuse other systems: publishing, locks and copies rely on guarantees of Linux.

    Raises:
        InstallationError: The system is not Linux.
    """
    if sys.platform != "linux":
        raise InstallationError(
            f"leconvert needs Linux, and this is {_SYSTEMS.get(sys.platform, sys.platform)}.",
            next_step="Run it on a Linux machine or in a Linux container; on Windows, in WSL 2.",
        )


class Machine(NamedTuple):  # a data class would import `inspect`, which `--help` avoids
    """Reads the resources that this process may use.

    Attributes:
        proc: Folder in which the kernel shows processes.
        groups: Folder in which control groups are mounted.
    """

    proc: Path = Path("/proc")
    groups: Path = Path("/sys/fs/cgroup")

    def cores(self) -> int:
        """Return the number of cores that this process may use, at least 1."""
        allowed = float(len(os.sched_getaffinity(0)))
        for group in self._groups_of("cpu"):
            quota, period = _two_numbers(group / "cpu.max")
            if quota is None:
                quota, period = (
                    _number(group / "cpu.cfs_quota_us"),
                    _number(group / "cpu.cfs_period_us"),
                )
            if quota is not None and period and quota > 0:
                allowed = min(allowed, quota / period)
        return max(1, math.ceil(allowed))

    def free_memory(self) -> int:
        """Return the number of bytes that can be allocated without evicting anything.

        Pages that were read from files and not used since count as free, as in the kernel's
        ``MemAvailable``.
        """
        free = self._available()
        for group in self._groups_of("memory"):
            limit = _number(group / "memory.max")
            used = _number(group / "memory.current")
            if limit is None:
                limit = _number(group / "memory.limit_in_bytes")
                used = _number(group / "memory.usage_in_bytes")
            if limit is not None and used is not None and limit < _UNLIMITED:
                free = min(free, max(0, limit - used + _idle_file_pages(group / "memory.stat")))
        return free

    def peak_memory(self) -> int:
        """Return this process's peak resident memory in bytes since its program began.

        It is the kernel's ``VmHWM``; ``getrusage`` would include the memory of the process that
        started this one. 0 if the kernel does not report it.
        """
        try:
            lines = (self.proc / "self/status").read_bytes().splitlines()
        except OSError:
            lines = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"VmHWM":
                return int(value.split()[0]) * 1024
        return 0

    def _available(self) -> int:
        # Importing psutil for this one number would take a tenth of a small conversion.
        try:
            lines = (self.proc / "meminfo").read_bytes().splitlines()
        except OSError:
            lines = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"MemAvailable":
                return int(value.split()[0]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def _groups_of(self, controller: str) -> Iterator[Path]:
        """Yield the folders of this process's groups that may set a limit."""
        try:
            lines = (self.proc / "self/cgroup").read_text("utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            root = self.groups / names if names else self.groups
            folder = root / path.lstrip("/")
            # In a container the path may be the host's, and only its root is visible.
            yield from (folder, *(p for p in folder.parents if p.is_relative_to(root)))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # missing, or "max"
        return None


def _two_numbers(path: Path) -> tuple[int | None, int | None]:
    try:
        first, second = path.read_text("ascii").split()
        return int(first), int(second)
    except (OSError, ValueError):  # missing, or "max 100000"
        return None, None


def _idle_file_pages(path: Path) -> int:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(" ")
        if name in {"inactive_file", "total_inactive_file"} and value.isdigit():
            return int(value)
    return 0


def home_folder() -> Path:
    """Return the user's home folder."""
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            "This user has no home folder: HOME is not set, and the user id has no name.",
            next_step="Set HOME to a folder that this user may write to.",
        ) from None


def lerobot_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return LeRobot's folder of datasets: ``HF_LEROBOT_HOME``, else ``lerobot`` in ``HF_HOME``."""
    given = environment.get("HF_LEROBOT_HOME")
    if given is not None:
        return Path(os.path.expanduser(given))  # noqa: PTH111 - never fails, as Path's does
    hub_home = environment.get("HF_HOME")
    cache = home_folder() / ".cache" / "huggingface" if hub_home is None else Path(hub_home)
    return Path(os.path.expanduser(cache / "lerobot"))  # noqa: PTH111
