"""Pipelines from trajectories to a resampled batch, each with a clock on every stage.

============  ==================================================================================
``baseline``  NumPy, one trajectory after the other, then collated into a padded batch
``batched``   trajectories that lie apart are packed (copied into one table), moved, resampled
``table``     the set was packed once when it was loaded; a batch is a choice of its rows
============  ==================================================================================

All three end with the same thing: padded tensors and lengths on the host, so on a GPU the result's
way back is timed as well. Before a clock is read the device has finished.

"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leconvert.bench.resampling.kernel import (
    Packed,
    PackMemory,
    Resampled,
    even_targets,
    pack,
    resample_packed,
)
from leconvert.bench.resampling.trajectories import (
    GRID_TOLERANCE,
    Array,
    FloatArray,
    Methods,
    Segment,
    Trajectory,
    TrajectorySource,
)
from leconvert.support.errors import ProbeError

__all__ = [
    "BASELINES",
    "Baseline",
    "BaselinePipeline",
    "BatchedPipeline",
    "GpuUse",
    "Pipeline",
    "Task",
    "collate",
    "faster_baseline",
    "find_device",
    "gpu_reader",
    "grid",
    "resample_one",
    "tensors",
    "wait_for",
]


# ------------------------------------------------------------------------------------------------
# The baseline: NumPy, one trajectory after the other.
#
# Two ways to do the linear part, both sensible; a benchmark holds itself against the faster one:
#
# ``columns`` `numpy.interp` for each column, in float64 ``rows`` one search a trajectory, then
# whole rows are taken and mixed, in the rows' own type


Baseline = Literal["columns", "rows"]

BASELINES: tuple[Baseline, ...] = ("columns", "rows")

_NEARLY_PARALLEL = 1e-6


class Collated(NamedTuple):
    """Resampled trajectories as a batch."""

    columns: Mapping[str, Array]  # of shape (B, M, ...); zeros beyond a trajectory's length
    lengths: npt.NDArray[np.int64]  # of shape (B,)
    mask: npt.NDArray[np.bool_]  # of shape (B, M); whether there is a sample


def grid(duration_s: float, hz: float) -> FloatArray:
    """Return the targets of a trajectory: every 1/hz from its first sample to its last."""
    count = int(duration_s * hz + GRID_TOLERANCE) + 1
    return np.arange(count) / hz


def resample_one(
    trajectory: Trajectory, targets: FloatArray, methods: Methods, baseline: Baseline
) -> dict[str, Array]:
    """Resample one trajectory.

    Returns:
        Of each feature an array of shape (M, ...), of the feature's type; with ``columns`` linear
        features are float64.
    """
    times = trajectory.times - trajectory.times[0]
    last = len(times) - 1
    low = np.searchsorted(times, targets, side="right")
    low -= 1
    np.clip(low, 0, max(last - 1, 0), out=low)
    high = np.minimum(low + 1, last)
    begins = times.take(low)
    gaps = times.take(high)
    gaps -= begins
    gaps[gaps == 0] = 1
    weight = targets - begins
    weight /= gaps
    # Where times repeat at the very end there is no gap, and the last sample counts.
    weight[targets >= times[-1]] = 1
    np.clip(weight, 0, 1, out=weight)
    results = {}
    for key, values in trajectory.columns.items():
        rows = values.reshape(len(values), -1)
        resampled = _resample(rows, times, targets, low, high, weight, methods[key], baseline)
        results[key] = resampled.reshape(len(targets), *values.shape[1:])
    return results


def _resample(
    rows: Array,
    times: FloatArray,
    targets: FloatArray,
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    weight: FloatArray,
    segments: Sequence[Segment],
    baseline: Baseline,
) -> Array:
    if any(method == "linear" for _, _, method in segments):
        if baseline == "rows":
            out = rows.take(low, 0)
            step = rows.take(high, 0)
            step -= out
            step *= weight.astype(rows.dtype)[:, None]
            out += step
        else:
            out = np.empty((len(targets), rows.shape[1]))
            for start, stop, method in segments:
                for column in range(start, stop if method == "linear" else start):
                    out[:, column] = np.interp(targets, times, rows[:, column])
    else:
        out = np.empty((len(targets), rows.shape[1]), rows.dtype)
    for start, stop, method in segments:
        if method == "slerp":
            part = rows[:, start:stop]
            out[:, start:stop] = slerp_rows(part[low], part[high], weight)
        elif method != "linear":
            comes = weight >= 1 if method == "previous" else weight > 0.5
            out[:, start:stop] = rows[np.where(comes, high, low), start:stop]
    return out


def slerp_rows(first: Array, second: Array, weight: FloatArray) -> FloatArray:
    """Return unit quaternions between two rows of quaternions, along the shorter arc.

    As `leconvert.bench.resampling.kernel.slerp`, in float64.
    """
    one = first.astype(np.float64)
    other = second.astype(np.float64)
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    other *= np.where((one * other).sum(1, keepdims=True) < 0, -1.0, 1.0)
    angle = 2 * np.arctan2(np.linalg.norm(one - other, axis=1), np.linalg.norm(one + other, axis=1))
    sine = np.sin(angle)
    is_small = sine < _NEARLY_PARALLEL
    sine[is_small] = 1
    before = np.where(is_small, 1 - weight, np.sin((1 - weight) * angle) / sine)
    after = np.where(is_small, weight, np.sin(weight * angle) / sine)
    mixed: FloatArray = before[:, None] * one + after[:, None] * other
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return mixed


def collate(results: Sequence[Mapping[str, Array]]) -> Collated:
    """Put resampled trajectories into one padded batch."""
    keys = list(results[0])
    lengths = np.array([len(result[keys[0]]) for result in results], np.int64)
    longest = int(lengths.max())
    columns = {}
    for key in keys:
        first = results[0][key]
        batch = np.zeros((len(results), longest, *first.shape[1:]), first.dtype)
        for row, result in enumerate(results):
            batch[row, : lengths[row]] = result[key]
        columns[key] = batch
    return Collated(columns, lengths, np.arange(longest) < lengths[:, None])


def tensors(batch: Collated) -> dict[str, Tensor]:
    """Return a batch's columns for torch."""
    return {key: torch.from_numpy(values) for key, values in batch.columns.items()}


# ------------------------------------------------------------------------------------------------
# How busy a GPU was, if something here can tell.


_EVERY_S = 0.1

Reader = Callable[[], float]


def gpu_reader(device: str) -> Reader | None:
    """Return what reads the use of a device in percent by NVML; None where nothing can."""

    def read() -> float:
        return float(torch.cuda.utilization(device))

    try:
        read()
    except Exception:  # noqa: BLE001 - no GPU, no pynvml, or NVML's own errors: it is unknown
        return None
    return read


class GpuUse:
    """Samples the use of a GPU while it is entered, from a thread of its own.

    The thread only reads and appends; the mean is taken after it has ended.
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


# ------------------------------------------------------------------------------------------------
# The three pipelines, with a clock on every stage.


TORCH_TYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

_CALIBRATION = 64
_CALIBRATION_TURNS = 5

Values = Mapping[str, Tensor]


@dataclass(slots=True)
class Stages:
    """Seconds of each stage of a batch, by name."""

    seconds: dict[str, float] = field(default_factory=dict)
    wait: Callable[[], None] = lambda: None

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a block until the device has finished with it."""
        began = time.perf_counter()
        yield
        self.wait()
        self.seconds[name] = time.perf_counter() - began


class Pipeline(ABC):
    """One pipeline; `run` is called for one batch after the other."""

    name: str  # see the module
    dtype: str = "fp32"  # or bf16
    device: str = "cpu"
    kernel_stage: str = "kernel"  # the one that resamples, beside loading, packing and copies

    @abstractmethod
    def run(self, indices: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Return the seconds of every stage of a batch, and the batch."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells pipelines apart."""
        return self.name, self.dtype, self.device


@dataclass(frozen=True, slots=True)
class Task:
    """What is resampled, and how."""

    source: TrajectorySource
    methods: Methods
    hz: float
    baseline: Baseline = "columns"
    preloaded: bool = True  # the set is in memory, so that loading is no stage

    def load(self, indices: Sequence[int]) -> list[Trajectory]:
        """Read trajectories of the set."""
        return [self.source.load(index) for index in indices]

    def one_by_one(self, trajectories: Sequence[Trajectory]) -> list[dict[str, Array]]:
        """Resample by NumPy, one trajectory after the other."""
        return [
            resample_one(one, grid(one.duration_s, self.hz), self.methods, self.baseline)
            for one in trajectories
        ]

    def at_once(self, packed: Packed) -> Resampled:
        """Resample a batch on its device."""
        return resample_packed(packed, self.methods, even_targets(packed, self.hz))


class BaselinePipeline(Pipeline):
    """NumPy, one trajectory after the other, then collated."""

    name = "baseline"
    kernel_stage = "resample"

    def __init__(self, task: Task) -> None:
        self._task = task

    def run(self, indices: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Resample one by one, then collate."""
        stages = Stages()
        trajectories = _load(self._task, indices, stages)
        with stages.timed("resample"):
            results = self._task.one_by_one(trajectories)
        with stages.timed("collate"):
            values = tensors(collate(results))
        return stages.seconds, values


class BatchedPipeline(Pipeline):
    """See the module. With ``is_table`` all is packed and moved here, outside of all clocks."""

    def __init__(self, task: Task, dtype: str, device: str, *, is_table: bool = False) -> None:
        self._task = task
        self._place, self._kind = find_device(device), TORCH_TYPES[dtype]
        self.name = "table" if is_table else "batched"
        self.dtype, self.device = dtype, device
        self._memory = PackMemory(pinned=self._place.type == "cuda")
        self._table: Packed | None = None
        if is_table:
            self._table = pack(task.load(range(len(task.source)))).to(self._place, self._kind)

    def run(self, indices: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Pack, move (or cast), or choose rows; resample, and fetch the result."""
        is_cuda = self._place.type == "cuda"
        stages = Stages(wait=lambda: wait_for(self.device))
        if self._table is not None:
            with stages.timed("pack"):
                packed = self._table.select(indices)
        else:
            trajectories = _load(self._task, indices, stages)
            with stages.timed("pack"):
                packed = pack(trajectories, self._memory)
            if is_cuda or self.dtype != "fp32":
                with stages.timed("copy_in"):
                    packed = packed.to(self._place, self._kind)
        with stages.timed("kernel"):
            values = self._task.at_once(packed).values
        if is_cuda:
            with stages.timed("copy_out"):
                values = {key: tensor.cpu() for key, tensor in values.items()}
        return stages.seconds, values


def find_device(name: str) -> torch.device:
    """Return a device."""
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ProbeError(
            f"There is no device {name} that torch {torch.__version__} can use.",
            next_step="Leave --device out, or install a torch build for CUDA.",
        )
    return device


def wait_for(device: str) -> None:
    """Wait until a GPU has done what it was given; nothing to wait for elsewhere."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def faster_baseline(task: Task) -> Baseline:
    """Return the baseline that takes less time for the first trajectories of a set."""
    some = task.load(range(min(len(task.source), _CALIBRATION)))
    times: dict[Baseline, float] = {}
    for _ in range(_CALIBRATION_TURNS):
        for baseline in BASELINES:
            began = time.perf_counter()
            replace(task, baseline=baseline).one_by_one(some)
            taken = time.perf_counter() - began
            times[baseline] = min(taken, times.get(baseline, np.inf))
    return min(times, key=lambda name: times[name])


def _load(task: Task, indices: Sequence[int], stages: Stages) -> list[Trajectory]:
    if task.preloaded:
        return task.load(indices)
    with stages.timed("load"):
        return task.load(indices)
