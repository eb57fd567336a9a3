"""What the guests' kernel needs on processors younger than it: see ``wide_registers.c``."""

from __future__ import annotations

from pathlib import Path

from lab_kit import run_tool

__all__ = ["has_wide_registers", "preload", "prepare"]

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
