"""The requirements for building a lab: root, a tap device, a few programs.

On processors younger than the guests' kernel that kernel needs a library: see ``wide_registers.c``.
"""

from __future__ import annotations

from pathlib import Path

import lab_kit
from lab_kit import LabError, run_tool

MODULES = Path("/usr/lib/uml/modules")
"""Debian's folder for modules of its User-Mode-Linux kernel, a folder a version."""

_PACKAGES = {
    "linux.uml": "user-mode-linux",
    "mount.nfs4": "nfs-common",
    "rpc.nfsd": "nfs-kernel-server",
    "modprobe": "kmod",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
}
_COMPILER_PACKAGES = {"cc": "gcc libc6-dev"}
_FILE_SYSTEM_PACKAGES = {"xfs": {"mkfs.xfs": "xfsprogs"}, "ext4": {}}
_SOURCE = Path(__file__).resolve().with_name("wide_registers.c")
_LIBRARY = "wide_registers.so"


def has_wide_registers(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Say whether a process has more extended registers here than a 6.1 guest kernel knows."""
    return "amx_tile" in cpuinfo.read_text().split()


def prepare(folder: Path) -> None:
    """Build the library that `preload` names, in a lab's folder, where the processor asks for it.

    Raises:
        LabError: It cannot be compiled.
    """
    if not has_wide_registers():
        return
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(folder / _LIBRARY), str(_SOURCE), "-ldl"]
    missing = f"{_SOURCE.name}, which guests need on this processor, cannot be compiled"
    run_tool(command, otherwise=f"{missing}; install gcc and libc6-dev")


def preload(folder: Path) -> list[str]:
    """Return what comes before the command of a guest's kernel."""
    library = folder / _LIBRARY
    return ["env", f"LD_PRELOAD={library}"] if library.exists() else []


def packages_for(file_system: str, *, wide_registers: bool | None = None) -> dict[str, str]:
    """Return the Debian packages of a lab by the program that tells whether they are there.

    Args:
        file_system: The file system of the server's disk, ``ext4`` or ``xfs``.
        wide_registers: See `prepare`, whose library must then be compiled; None asks
            this machine.
    """
    wanted = _PACKAGES | _FILE_SYSTEM_PACKAGES[file_system]
    if has_wide_registers() if wide_registers is None else wide_registers:
        wanted |= _COMPILER_PACKAGES
    return wanted


def require(file_system: str) -> None:
    """Install what is missing, or say in one sentence why there can be no lab here.

    Raises:
        LabError: Not root, no tap device, or a package cannot be installed.
    """
    lab_kit.require("The lab makes network namespaces and kernels", packages_for(file_system))
    if not Path("/dev/net/tun").exists():
        raise LabError(
            "There is no /dev/net/tun: load the module `tun`, or give the container the device."
        )


def kernel_version() -> str:
    """Return the version of the guests' kernel.

    Raises:
        LabError: There are no modules for it.
    """
    versions = sorted(path.name for path in MODULES.glob("*") if (path / "modules.dep").exists())
    if not versions:
        raise LabError(f"{MODULES} holds no kernel's modules: reinstall user-mode-linux.")
    return versions[-1]
