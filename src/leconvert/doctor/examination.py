"""Looks at everything that leconvert needs or can use, one thing at a time."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert._version import __version__
from leconvert.doctor.asking import library_loads, probe_diagnosis
from leconvert.doctor.packages import Package, declared_requirements, packages_of
from leconvert.engines.registry import BUILT_IN, EngineNames
from leconvert.fscheck import CheckReport, Fitness, mount_of, probe_folder
from leconvert.machine import Machine
from leconvert.probe.environment import host_record, package_version

__all__ = ["Examination", "examine"]

# The driver's own library for decoding, which torchcodec and FFmpeg load.
_NVDEC = "libnvcuvid.so.1"


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found.

    Attributes:
        packages: What leconvert wants; empty where it runs without being installed.
        video: ``ffmpeg`` and ``decodes`` of PyAV, or ``trouble``.
        loading: What torch and torchcodec can do here: ``torch``, ``torchcodec`` and ``ffmpeg``
            (versions, or None), ``gpus``, ``nvdec`` and ``missing``; or ``trouble``.
        machine: ``cpu``, its ``memory_bytes``, and what this process may use of it: ``cores`` and
            ``free_memory_bytes``.
        hub: ``endpoint``, ``token`` (where one is), ``is_offline``; or ``trouble``.
        engines: What can start workers, by name; None, or why it cannot.
        file_system: Of the folder; None if none was given.
    """

    packages: tuple[Package, ...]
    video: dict[str, Any]
    loading: dict[str, Any]
    machine: dict[str, Any]
    hub: dict[str, Any]
    engines: dict[str, str | None]
    file_system: CheckReport | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """What a conversion needs and does not find here, a sentence each."""
        lacking = [
            f"{package.name}{package.wants} is needed, {package.version or 'none'} is here: run "
            f"`{package.remedy}`."
            for package in self.packages
            if package.is_needed and not package.fits
        ]
        if "trouble" in self.video:
            lacking.append(f"PyAV does not load: {self.video['trouble']}.")
        if not self.can_use_folder and self.file_system is not None:
            lacking.append(f"leconvert cannot work in {self.file_system.folder}.")
        return tuple(lacking)

    @property
    def can_use_folder(self) -> bool:
        """Whether a work dir may lie in the folder; true where none was given."""
        return self.file_system is None or self.file_system.fitness is not Fitness.NONE

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "ok": not self.lacks,
            "lacks": list(self.lacks),
            "leconvert": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": [package.as_record() for package in self.packages],
            "video": self.video,
            "loading": self.loading,
            "machine": self.machine,
            "hub": self.hub,
            "engines": self.engines,
            "file_system": None if self.file_system is None else self.file_system.as_record(),
        }


def examine(
    folder: Path | None = None,
    *,
    diagnose: Callable[[], tuple[dict[str, Any] | None, str | None]] = probe_diagnosis,
    loads: Callable[[str], bool] = library_loads,
    version_of: Callable[[str], str | None] = package_version,
) -> Examination:
    """Look at this machine, and at a folder's file system.

    Args:
        folder: An existing folder, absolute; None to leave that out.
        diagnose: Returns what torch and torchcodec can do, or None and why that is not known.
        loads: Tells whether a shared library loads.
        version_of: Returns a package's installed version, None if it is missing.

    Raises:
        StorageError: Nothing can be made in the folder.
    """
    file_system = None
    if folder is not None:
        file_system = CheckReport(str(folder), mount_of(folder), tuple(probe_folder(folder)))
    return Examination(
        packages_of(*declared_requirements(), version_of),
        _video(),
        _loading(diagnose, loads, version_of),
        _machine(),
        _hub(),
        _engines(version_of),
        file_system,
    )


def _video() -> dict[str, Any]:
    from leconvert.media.carried import carried_ffmpeg

    try:
        found = carried_ffmpeg()
    except ImportError as error:
        return {"trouble": str(error)}
    return {"ffmpeg": found.version, "decodes": list(found.decodes)}


def _loading(
    diagnose: Callable[[], tuple[dict[str, Any] | None, str | None]],
    loads: Callable[[str], bool],
    version_of: Callable[[str], str | None],
) -> dict[str, Any]:
    if version_of("torch") is None:
        # Nothing to start a process for, and no GPU can be used.
        return {"torch": None, "torchcodec": version_of("torchcodec"), "gpus": [], "missing": []}
    found, trouble = diagnose()
    if found is None:
        return {"trouble": trouble}
    ffmpeg = found["decoder"]["ffmpeg"]
    return {
        "torch": found["versions"]["torch"],
        "torchcodec": found["versions"]["torchcodec"],
        "torchcodec_loads": found["decoder"]["torchcodec_loads"],
        "ffmpeg": None if ffmpeg is None else f"{ffmpeg['major']} ({ffmpeg['origin']})",
        "gpus": found["gpus"],
        "nvdec": bool(found["gpus"]) and loads(_NVDEC),
        "missing": found["missing"],
    }


def _machine() -> dict[str, Any]:
    host, usable = host_record(), Machine()
    return {
        "cpu": host["cpu"],
        "cores": usable.cores(),
        "memory_bytes": host["memory_bytes"],
        "free_memory_bytes": usable.free_memory(),
    }


def _hub() -> dict[str, Any]:
    try:
        from leconvert.hub.access import hub_access

        return asdict(hub_access())
    except ImportError as error:
        return {"trouble": str(error)}


def _engines(version_of: Callable[[str], str | None]) -> dict[str, str | None]:
    troubles = {}
    if shutil.which("sbatch") is None:
        troubles["slurm"] = "there is no sbatch on the PATH"
    if version_of("ray") is None:
        troubles["ray"] = "Ray is not installed: pip install 'leconvert[ray]'"
    return {name: troubles.get(name) for name in EngineNames(BUILT_IN)}
