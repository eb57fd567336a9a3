"""The platform's services for processes: cores, memory, control groups, identity, forks.

Only this module and `leconvert.support.file_calls` name services that only Linux or macOS has.
Their functions also work on platforms and in containers without these services. Then they use
psutil or the standard library, or answer "unknown".

Containers and batch systems limit cores and memory by control groups. Neither ``os.cpu_count`` nor
``/proc/meminfo`` knows these limits. Every group from the process's own up to the root counts, in
both versions of the interface [1]. A group that cannot be read limits nothing.

[1] The kernel's ``Documentation/admin-guide/cgroup-v2.rst`` (``cpu.max``, ``memory.max``,
``memory.current``, ``memory.stat``) and ``cgroup-v1/memory.rst``.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from leconvert.support.errors import InstallationError, UsageError

if TYPE_CHECKING:
    import mmap

_UNLIMITED = 2**60  # version 1 states "no limit" as a number near 2**63
_MACHINE_IDS = ("etc/machine-id", "var/lib/dbus/machine-id")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}\Z")
_CAP_FOWNER = 1 << 3
_PR_SET_PDEATHSIG = 1  # prctl(2)
_SECONDS_BETWEEN_LOOKS = 1.0
# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_PIECE_BYTES = 32 * 1024**2
_KEPT_BYTES = 64 * 1024**2


def check_platform() -> None:
    """Refuse Windows: publishing, locks and the swap rely on guarantees of POSIX.

    Raises:
        InstallationError: The system is Windows.
    """
    if sys.platform == "win32":
        raise InstallationError(
            "leconvert does not run on Windows itself.",
            next_step="Run it in WSL 2, the Linux that Windows brings, or in a Linux container.",
        )


def is_linux() -> bool:
    """Return whether this is Linux, the only system whose hosts may share a work dir."""
    return sys.platform == "linux"


def names_an_open_file(path: Path) -> bool:
    """Return whether a path is one of this process's open files, such as ``/dev/stdin``."""
    return str(path.parent) in {"/dev", "/dev/fd", "/proc/self/fd"}


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
        allowed = float(allowed_cores())
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
                names = ("inactive_file", "total_inactive_file")
                idle = next(filter(None, (_value(group / "memory.stat", n, " ") for n in names)), 0)
                free = min(free, max(0, limit - used + int(idle)))
        return free

    def peak_memory(self) -> int:
        """Return this process's peak resident memory in bytes since its program began.

        It is the kernel's ``VmHWM``; ``getrusage`` would include the memory of the process that
        started this one. 0 if the kernel does not report it.
        """
        if peak_kib := _value(self.proc / "self/status", "VmHWM"):
            return int(peak_kib.split()[0]) * 1024
        if self.proc.exists():
            return 0
        import resource

        # macOS counts bytes, other systems kibibytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def _available(self) -> int:
        # Importing psutil for this one number would take a tenth of a small conversion.
        if available_kib := _value(self.proc / "meminfo", "MemAvailable"):
            return int(available_kib.split()[0]) * 1024
        import psutil

        return int(psutil.virtual_memory().available)

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


def allowed_cores() -> int:
    """Return the number of cores this process may run on, whatever its control groups allow."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def queued_seconds() -> float:
    """Return how long this thread was ready to run without a processor; 0 if it is not known."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:  # noqa: PTH123 - often
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def has_one_thread() -> bool:
    """Return whether no other thread runs, including those of libraries; False if unknown.

    A fork is safe only then: in the child, the locks of other threads would stay locked for ever.
    On macOS it is always unknown, since system libraries end a forked process that uses them.
    """
    try:
        return hasattr(os, "fork") and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
    except OSError:
        return False


def open_descriptors() -> list[int]:
    """Return the open descriptors of a forked process, including the one used to list them."""
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208


def may_act_for_owners() -> bool:
    """Return whether this process may rename files of other users, as root may."""
    if capabilities := _value(Path("/proc/self/status"), "CapEff"):
        return bool(int(capabilities, 16) & _CAP_FOWNER)
    return os.geteuid() == 0


def boot_id(root: Path = Path("/")) -> str:
    """Return the kernel's random id of this boot, or an empty string if it has none."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _boot_of_macos()


def machine_id(root: Path = Path("/")) -> str:
    """Return the id that the system got when it was installed, or an empty string."""
    for name in _MACHINE_IDS:
        try:
            found = (root / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _MACHINE_ID.match(found):  # "uninitialized" in an image that never booted
            return found
    return _host_uuid_of_macos()


def _boot_of_macos() -> str:
    import ctypes

    found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    if call := getattr(ctypes.CDLL(None), "sysctlbyname", None):
        call(b"kern.bootsessionuuid", found, ctypes.byref(size), None, ctypes.c_size_t(0))
    return found.value.decode("ascii", "replace")


def _host_uuid_of_macos() -> str:
    import ctypes

    found, patience = (ctypes.c_ubyte * 16)(), (ctypes.c_long * 2)(5, 0)
    call = getattr(ctypes.CDLL(None), "gethostuuid", None)
    return "" if call is None or call(found, patience) != 0 else bytes(found).hex()


def cpu_name() -> str:
    """Return the processor's name."""
    if name := _value(Path("/proc/cpuinfo"), "model name"):
        return name
    import platform

    return platform.processor() or platform.machine()


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on, parents first.

    Linux lists the children of each thread, so the cost grows with this tree and not with all
    processes of the machine. Callers ask twice a second. psutil reads the state of every process,
    so it is used only on systems without such lists.
    """
    import threading

    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        import psutil

        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            # A thread or process that has ended meanwhile no longer has a list.
            with suppress(OSError):
                found.extend(int(child) for child in children.read_text("ascii").split())
    return found[1:]


@contextmanager
def own_scheduling() -> Iterator[None]:
    """Restore this thread's scheduling after the block.

    For root, SVT-AV1 makes the thread that opens it a real-time thread (SCHED_FIFO, priority 99)
    and leaves it so. Threads and processes that it starts later inherit this. They starve
    everything on their cores, including threads of the kernel.
    """
    if sys.platform == "linux" and hasattr(os, "sched_getscheduler"):
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        try:
            yield
        finally:
            if os.sched_getscheduler(0) != policy:
                os.sched_setscheduler(0, policy, parameters)
    else:
        yield


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, up to a limit, for the next frames.

    By default, glibc returns large blocks to the kernel, which then clears and maps every page of
    the next decoded frames again. Other C libraries keep their settings.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_PIECE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def use_large_pages(memory: mmap.mmap) -> None:
    """Ask the kernel for large pages; without them, it uses small ones and is slower."""
    import mmap

    with suppress(OSError):
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)


def end_with_parent(number: int, parent: int) -> None:
    """Let this process get a signal when its parent process ends, or now if it already has.

    Args:
        number: The signal.
        parent: The parent's process id, as the parent itself passed it.
    """
    import ctypes

    library = ctypes.CDLL(None)
    is_told = hasattr(library, "prctl")
    if is_told:
        library.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
    elif not is_told:
        _watch_parent(number, parent)


def _watch_parent(number: int, parent: int) -> None:
    import threading

    def watch() -> None:
        # Without prctl, only the id of another parent shows that the parent has ended.
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, name="parent", daemon=True).start()


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


def _value(path: Path, name: str, separator: str = ":") -> str:
    """Return the first value of a name in a file of the kernel; empty if it is not there."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return ""
    parts = (line.partition(separator) for line in lines)
    return next((value.strip() for key, _, value in parts if key.strip() == name), "")


def home_folder() -> Path:
    """Return the user's home folder."""
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            "This user has no home folder: HOME is not set, and the system does not know the user "
            "id.",
            next_step="Set the environment variable HOME to a folder that this user may write to.",
        ) from None


def lerobot_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return LeRobot's folder of datasets: ``HF_LEROBOT_HOME``, else ``lerobot`` in ``HF_HOME``."""
    given = environment.get("HF_LEROBOT_HOME")
    if given is not None:
        return Path(os.path.expanduser(given))  # noqa: PTH111 - never fails, as Path's does
    hub_home = environment.get("HF_HOME")
    cache = home_folder() / ".cache" / "huggingface" if hub_home is None else Path(hub_home)
    return Path(os.path.expanduser(cache / "lerobot"))  # noqa: PTH111
