"""How busy a GPU was, if something here can tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from statistics import fmean
from typing import Self

__all__ = ["GpuUse", "gpu_reader"]

_EVERY_S = 0.1
_ASK = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")

Reader = Callable[[], float]


def gpu_reader(device: str) -> Reader | None:
    """Return what reads the use of a device in percent; None where nothing can.

    NVML is asked through pynvml where that is installed, else through ``nvidia-smi``.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    name = _name_outside(int(number or 0))
    return _nvml_reader(name) or _smi_reader(name)


def _name_outside(number: int) -> str:
    """Return the number or UUID of a device for NVML, which sees those hidden from CUDA as well."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return shown[number].strip() or str(number) if number < len(shown) else str(number)


def _nvml_reader(name: str) -> Reader | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        if name.isdecimal():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        return lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the use is then unknown
        return None


def _smi_reader(name: str) -> Reader | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None

    def read() -> float:
        said = subprocess.run(
            [program, f"--id={name}", *_ASK], capture_output=True, text=True, check=True,
            timeout=10,
        )  # fmt: skip
        return float(said.stdout.strip())

    try:
        read()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return read


class GpuUse:
    """Samples the use of a GPU while it is entered, from a thread of its own.

    The thread only reads and appends; the mean is taken after it has ended.

    Args:
        reader: What tells it; None for nothing.
    """

    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader
        self._seen: list[float] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def mean_pct(self) -> float | None:
        """Mean use in percent; None where it is unknown."""
        return fmean(self._seen) if self._seen else None

    def __enter__(self) -> Self:
        if self._reader is not None:
            self._thread = threading.Thread(target=self._watch, args=(self._reader,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, reader: Reader) -> None:
        while True:
            try:
                self._seen.append(reader())
            except Exception:  # noqa: BLE001 - NVML's own errors among them; what was seen counts
                return
            if self._stop.wait(_EVERY_S):
                return
