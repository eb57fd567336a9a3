"""The environment of a measurement, and its costs: versions, host, memory, use of a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import secrets
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leconvert._version import __version__
from leconvert.support.errors import ProbeError
from leconvert.support.extras import missing_package
from leconvert.support.machine import allowed_cores, cpu_name, descendants, home_folder, is_linux
from leconvert.support.values import dataclass

if TYPE_CHECKING:
    import torch

_PACKAGES = ("torch", "torchcodec", "lerobot", "datasets", "av", "numpy", "pyarrow", "psutil")


_EXTRAS = {
    "torch": ("torch", "probe"),
    "lerobot": ("LeRobot", "deep"),
    "datasets": ("LeRobot's datasets", "deep"),
}


def require_packages(*names: str) -> None:
    """Raise an error that names what to install if a package is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            title, extra = _EXTRAS[name]
            raise missing_package(f"This needs {title}", extra)


def package_version(package: str) -> str | None:
    """Return an installed package's version without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions_record() -> dict[str, Any]:
    """Return the versions of all packages in use, None for missing ones."""
    return {
        "leconvert": __version__,
        "python": platform.python_version(),
        **{package: package_version(package) for package in _PACKAGES},
    }


def usable_gpus() -> int:
    """Return the number of GPUs that torch can use."""
    import torch

    return torch.cuda.device_count()


def find_device(name: str) -> torch.device:
    """Return a device.

    Raises:
        ProbeError: torch cannot use it.
    """
    import torch

    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ProbeError(
            f"torch {torch.__version__} cannot use the device {name}.",
            next_step="Leave --device out, or install a torch build for CUDA.",
        )
    return device


def host_record() -> dict[str, Any]:
    """Return a description of this machine."""
    import psutil

    return {
        "name": platform.node(),
        "cpu": cpu_name(),
        "cores": allowed_cores(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "kernel": platform.release(),
    }


# Helps torchcodec find FFmpeg: the system's, or the one in PyAV's wheel.
#
# torchcodec loads FFmpeg's shared libraries by their plain names (``libavcodec.so.61``) when it is
# imported. The wheel has them under names of its own (``libavcodec-7ee0753d.so.61.19.101``). So a
# folder gets links with the plain names, and ``LD_LIBRARY_PATH`` gets this folder and the wheel's.
# The dynamic loader reads the variable when a process starts; a program that runs without it starts
# itself again, with the variable set.


# The seven libraries of FFmpeg itself; the wheel has dozens more, which need no plain name.
_LIBRARY = re.compile(
    r"(?P<name>lib(?:avcodec|avdevice|avfilter|avformat|avutil|swresample|swscale))"
    r"-[0-9a-f]+\.so\.(?P<major>\d+)[.\d]*"
)
# libavutil of each FFmpeg that some torchcodec is built for, in torchcodec's own order.
_LIBAVUTIL_OF_FFMPEG = {9: 61, 8: 60, 7: 59, 6: 58, 5: 57, 4: 56}
# torchcodec's own libraries, one for each FFmpeg: libtorchcodec_core8.so.
_BUILT_FOR = re.compile(r"libtorchcodec_[a-z_]*(\d+)\.")
_SEARCH_PATH = "LD_LIBRARY_PATH"
# Set in the process that was started again, so that this happens once.
_STARTED_AGAIN = "LECONVERT_FFMPEG_LINKS"


@dataclass(frozen=True, slots=True)
class FoundFfmpeg:
    """The FFmpeg that the dynamic loader would give torchcodec."""

    major: int  # FFmpeg's major version
    origin: str  # ``system`` or ``PyAV's wheel``


def versions_for_torchcodec() -> list[int]:
    """Return the FFmpeg versions that the installed torchcodec is built for, ascending.

    If torchcodec is not installed, return the versions that any torchcodec is built for.
    """
    spec = importlib.util.find_spec("torchcodec")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = {
        int(match[1])
        for folder in folders
        for path in Path(folder).iterdir()
        if (match := _BUILT_FOR.match(path.name))
    }
    return sorted(found or _LIBAVUTIL_OF_FFMPEG)


def find_ffmpeg(
    load: Callable[[str], object] = ctypes.CDLL,
    environment: Mapping[str, str] = os.environ,
    versions: Collection[int] | None = None,
) -> FoundFfmpeg | None:
    """Return the FFmpeg whose libraries this process can load by their plain names."""
    if versions is None:
        versions = versions_for_torchcodec()
    for major, libavutil in _LIBAVUTIL_OF_FFMPEG.items():
        if major not in versions:
            continue
        try:
            load(f"libavutil.so.{libavutil}")
        except OSError:
            continue
        # The links are first on the path, but the library may still come from the system.
        on_path = any(
            (Path(folder) / f"libavutil.so.{libavutil}").resolve().parent.name == "av.libs"
            for folder in environment.get(_SEARCH_PATH, "").split(os.pathsep)
            if folder
        )
        return FoundFfmpeg(major, "PyAV's wheel" if on_path else "system")
    return None


def link_ffmpeg(links: Path) -> str:
    """Link FFmpeg's libraries of the PyAV wheel to their plain names; existing links are renewed.

    Several processes may do this at once: each link is replaced in one step.

    Returns:
        The value for ``LD_LIBRARY_PATH``. It includes the wheel's own folder, where its libraries
        find their dependencies.

    Raises:
        FileNotFoundError: There is no PyAV, or it uses the system's FFmpeg.
    """
    spec = importlib.util.find_spec("av")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("PyAV (the package `av`) is not installed")
    libraries = Path(spec.origin).resolve().parent.parent / "av.libs"
    found = [match for path in libraries.glob("*") if (match := _LIBRARY.fullmatch(path.name))]
    if not found:
        raise FileNotFoundError(
            f"{libraries} contains no FFmpeg libraries: this PyAV uses the system's FFmpeg"
        )
    links.mkdir(parents=True, exist_ok=True, mode=0o700)
    for match in found:
        link = links / f"{match['name']}.so.{match['major']}"
        # Hosts may share the folder, and processes in containers have the same small numbers.
        fresh = links / f".{link.name}.{secrets.token_hex(4)}"
        fresh.symlink_to(libraries / match[0])
        fresh.replace(link)
    return f"{links.resolve()}{os.pathsep}{libraries}"


def restart_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """Link the wheel's libraries and return the environment for starting again.

    Returns:
        None if starting again would change nothing: it was done already, torchcodec is not
        installed, PyAV's wheel has no libraries, or the links cannot be written.
    """
    if environment.get(_STARTED_AGAIN) or importlib.util.find_spec("torchcodec") is None:
        return None
    # Anyone could put libraries into a folder that others can write to, so the links are in the
    # user's own cache. Each Python environment has a wheel of its own.
    home = environment.get("XDG_CACHE_HOME")
    cache = Path(home) if home else home_folder() / ".cache"
    digest = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:12]
    try:
        path = link_ffmpeg(cache / "leconvert" / f"ffmpeg-{digest}")
    except OSError:
        return None
    already = environment.get(_SEARCH_PATH)
    return {
        **environment,
        _SEARCH_PATH: f"{path}{os.pathsep}{already}" if already else path,
        _STARTED_AGAIN: "1",
    }


def start_again_with_ffmpeg(
    *,
    find: Callable[[], FoundFfmpeg | None] = find_ffmpeg,
    execute: Callable[[str, list[str], dict[str, str]], object] = os.execve,
) -> None:
    """Replace this process by itself with FFmpeg on the search path, if needed and possible.

    It returns if FFmpeg is already found, or cannot be; decoding then falls back to PyAV.
    """
    if not is_linux() or find() is not None:
        return
    environment = restart_environment()
    if environment is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    execute(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


# Measurements while something else runs: memory of a process tree, and the use of a GPU.
#
# RSS counts a page in every process that maps it, so shared pages of forked workers count many
# times. PSS divides a page among its processes, and is the memory that the machine really spends.
# Only Linux knows PSS.


class Sampler[Sample]:
    """Calls a function repeatedly in a thread, until the ``with`` block ends.

    A peak between two samples is missed. After an error the function is not called again.

    Attributes:
        seen: The returned values.
    """

    def __init__(self, read: Callable[[], Sample], *, every_seconds: float) -> None:
        self._read = read
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.seen: list[Sample] = []

    def sample(self) -> None:
        """Sample once; call it when a peak is expected, such as before workers end."""
        self.seen.append(self._read())

    def start(self) -> None:
        """Start the thread, if it has not started."""
        if self._thread.ident is None:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.sample()
            except Exception:  # noqa: BLE001 - NVML's own errors among them; earlier samples count
                return
            self._ended.wait(self._every_seconds)


class TreeMemory(Sampler[tuple[int, int | None]]):
    """Records the peaks of this process and its descendants, from `start` on.

    Call `start` after all processes have been forked, since forking is unsafe while threads run.
    Shared memory through which workers hand over tensors counts as soon as a process has touched
    it.
    """

    def __init__(self, *, every_seconds: float = 0.5) -> None:
        super().__init__(lambda: tree_memory(os.getpid()), every_seconds=every_seconds)

    @property
    def peak_rss_bytes(self) -> int:
        """The largest sum of resident sets."""
        return max((rss for rss, _ in self.seen), default=0)

    @property
    def peak_pss_bytes(self) -> int | None:
        """The largest sum of proportional sets; None if not known."""
        return max((pss for _, pss in self.seen if pss is not None), default=None)


class GpuUse(Sampler[float]):
    """Samples the use of a device in percent by NVML, from the beginning of ``with``."""

    def __init__(self, device: str) -> None:
        super().__init__(lambda: _utilization(device), every_seconds=0.1)

    @property
    def mean_pct(self) -> float | None:
        """Mean use in percent; None if it cannot be measured."""
        return sum(self.seen) / len(self.seen) if self.seen else None

    def __enter__(self) -> Self:
        self.start()
        return self


def _utilization(device: str) -> float:
    import torch

    return float(torch.cuda.utilization(device))


def tree_memory(pid: int) -> tuple[int, int | None]:
    """Return RSS and PSS of a process and its descendants, in bytes.

    A process that ends meanwhile is left out. PSS is None if the system does not report it.
    """
    import psutil

    if not psutil.pid_exists(pid):
        return 0, None
    rss = 0
    pss: int | None = 0
    for each in (pid, *descendants(pid)):
        try:
            # One call returns both; it walks the page tables, some milliseconds a gigabyte.
            memory = psutil.Process(each).memory_full_info()
        except psutil.Error:
            continue
        rss += memory.rss
        share = getattr(memory, "pss", None)
        pss = None if share is None or pss is None else pss + share
    return rss, pss
