"""Pipelines timed side by side on the same trajectories in the same order.

For every batch each pipeline runs once, and the first changes from batch to batch: whatever else
the machine does, and whatever the one before left in the caches, falls on all of them alike. A
repeat is ``num_epochs`` passes over the set in full batches; figures are medians over repeats,
ratios medians of the ratios within a repeat. Beside the clock on the wall the processor's time of
this process is taken: work of others on the same cores lengthens the one far more than the other.

"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from leconvert.progress import Stage
from leconvert.resampling.kernel import PackMemory, pack, resample_packed
from leconvert.resampling.methods import Trajectory
from leconvert.resampling.pipelines import Pipeline, Task, Values, collate
from leconvert.resampling.sources import TrajectorySource

__all__ = [
    "LENGTHS",
    "PATHS",
    "STAGES",
    "GpuUse",
    "batches_of",
    "compare_loaders",
    "gpu_reader",
    "measure_batch_size",
    "open_loader",
    "ratios",
    "set_epoch",
]


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


# ------------------------------------------------------------------------------------------------
# Pipelines side by side.


STAGES = ("load", "pack", "copy_in", "kernel", "copy_out", "resample", "collate")
"""Every stage that a pipeline can have, in order."""

_COPIES = ("copy_in", "copy_out")
# The processor's clock may stand still for what is shorter.
_TICK_S = 1e-9


def batches_of(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Yield the full batches of a pass, shuffled; a function of its arguments alone."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count - batch_size + 1, batch_size):
        yield [int(place) for place in order[start : start + batch_size]]


def measure_batch_size(
    pipelines: Sequence[Pipeline],
    task: Task,
    *,
    batch_size: int,
    repeats: int,
    num_epochs: int,
    warmup_batches: int,
    seed: int,
    stage: Stage,
) -> list[dict[str, Any]]:
    """Time pipelines with one batch size.

    Returns:
        A row a pipeline, as ``results`` of ``docs/formats/probe-result.schema.json`` has them. Key
        ``raw`` holds what each repeat took.
    """
    errors = {pipeline.key: 0.0 for pipeline in pipelines}
    for number, places in enumerate(batches_of(len(task.source), batch_size, seed, 0)):
        if number == warmup_batches:
            break
        exact = _exact(task, places)
        for pipeline in pipelines:
            errors[pipeline.key] = max(errors[pipeline.key], _error(pipeline.run(places)[1], exact))
    timed = {pipeline.key: _Timed() for pipeline in pipelines}
    batches = 0
    readers = {pipeline.device: gpu_reader(pipeline.device) for pipeline in pipelines}
    with GpuUse(next((reader for reader in readers.values() if reader), None)) as gpu:
        for repeat in range(repeats):
            for times in timed.values():
                times.stages.append({})
                times.cpu_seconds.append(0.0)
            batches = 0
            for epoch in range(num_epochs):
                epoch_number = repeat * num_epochs + epoch
                for places in batches_of(len(task.source), batch_size, seed, epoch_number):
                    turn = batches % len(pipelines)
                    batches += 1
                    for pipeline in [*pipelines[turn:], *pipelines[:turn]]:
                        times = timed[pipeline.key]
                        cpu_began = time.process_time()
                        seconds, _ = pipeline.run(places)
                        times.cpu_seconds[-1] += time.process_time() - cpu_began
                        times.batch_seconds.append(sum(seconds.values()))
                        for name, taken in seconds.items():
                            times.stages[-1][name] = times.stages[-1].get(name, 0.0) + taken
            stage.advance(1)
    return [
        _row(
            pipeline,
            timed[pipeline.key],
            batch_size=batch_size,
            batches=batches,
            error=errors[pipeline.key],
            gpu_use_pct=gpu.mean_pct if pipeline.device != "cpu" else None,
        )
        for pipeline in pipelines
    ]


@dataclass(slots=True)
class _Timed:
    """What one pipeline took: stages and processor's time of each repeat, seconds of each batch."""

    stages: list[dict[str, float]] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    batch_seconds: list[float] = field(default_factory=list)


def _row(
    pipeline: Pipeline,
    timed: _Timed,
    *,
    batch_size: int,
    batches: int,
    error: float,
    gpu_use_pct: float | None,
) -> dict[str, Any]:
    trajectories = batches * batch_size
    repeats, cpu_seconds, batch_seconds = timed.stages, timed.cpu_seconds, timed.batch_seconds
    totals = [sum(stages.values()) for stages in repeats]
    kernels = [stages[pipeline.kernel_stage] for stages in repeats]
    inside = [
        total - sum(stages.get(name, 0.0) for name in _COPIES)
        for total, stages in zip(totals, repeats, strict=True)
    ]
    return {
        "way": pipeline.name,
        "dtype": pipeline.dtype,
        "device": pipeline.device,
        "batch_size": batch_size,
        "batches": batches,
        "trajectories": trajectories,
        "trajectories_per_s": trajectories / statistics.median(totals),
        "kernel_trajectories_per_s": trajectories / statistics.median(kernels),
        "without_copies_trajectories_per_s": trajectories / statistics.median(inside),
        "ms_per_batch": 1e3 * statistics.median(totals) / batches,
        "cpu_ms_per_batch": 1e3 * statistics.median(cpu_seconds) / batches,
        "p50_batch_ms": 1e3 * float(np.percentile(batch_seconds, 50)),
        "p95_batch_ms": 1e3 * float(np.percentile(batch_seconds, 95)),
        "stages_ms": {
            name: 1e3 * statistics.median(stages[name] for stages in repeats) / batches
            if name in repeats[0]
            else None
            for name in STAGES
        },
        "max_abs_error": error,
        "gpu_use_pct": gpu_use_pct,
        "raw": [
            {
                "seconds": total,
                "cpu_s": cpu,
                **{f"{name}_s": taken for name, taken in stages.items()},
            }
            for total, cpu, stages in zip(totals, cpu_seconds, repeats, strict=True)
        ],
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how many times as fast as the baseline each other pipeline is, by batch size.

    ``with_packing`` compares everything, the baseline's collation included; ``kernel`` the
    resampling alone on both sides; ``without_copies`` leaves the ways to and from a GPU out, and
    ``cpu_time`` compares the processor's time for everything.
    """
    found = []
    baselines = {row["batch_size"]: row for row in rows if row["way"] == "baseline"}
    for row in rows:
        base = baselines.get(row["batch_size"])
        if base is None or row["way"] == "baseline":
            continue
        pairs = list(zip(base["raw"], row["raw"], strict=True))
        found.append(
            {
                **{key: row[key] for key in ("way", "dtype", "device", "batch_size")},
                "with_packing": _median_ratio(
                    [(one["seconds"], other["seconds"]) for one, other in pairs]
                ),
                "without_copies": _median_ratio(
                    [
                        (
                            one["seconds"],
                            other["seconds"] - sum(other.get(f"{n}_s", 0.0) for n in _COPIES),
                        )
                        for one, other in pairs
                    ]
                ),
                "cpu_time": _median_ratio([(one["cpu_s"], other["cpu_s"]) for one, other in pairs]),
                "kernel": _median_ratio(
                    [(one["resample_s"], other["kernel_s"]) for one, other in pairs]
                ),
            }
        )
    return found


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(one / max(other, _TICK_S) for one, other in pairs)


def _exact(task: Task, places: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
    """Return a batch by `numpy.interp` in float64."""
    by_columns = replace(task, baseline="columns")
    return collate(by_columns.one_by_one([task.source.load(place) for place in places])).columns


def _error(values: Values, exact: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return the largest difference."""
    return max(
        (
            float(np.abs(tensor.double().numpy() - exact[key].astype(np.float64)).max())
            for key, tensor in values.items()
            if tensor.numel()
        ),
        default=0.0,
    )


# ------------------------------------------------------------------------------------------------
# A loader with workers that resamples, on either path.
#
# The set, the order, the workers and the way back to this process are the same; only what a
# worker does with the trajectories of a batch differs: one after the other with NumPy and then
# collated, or packed and resampled at once.


PATHS = ("baseline", "batched")
"""Per-trajectory loop in the workers, or batches resampled at once."""

LENGTHS = "_lengths"
"""Under this key a batch says how many targets each trajectory has."""

Batch = dict[str, Tensor]


class _Set(Dataset[Trajectory]):
    def __init__(self, source: TrajectorySource) -> None:
        self._source = source

    def __getitem__(self, place: int) -> Trajectory:
        return self._source.load(place)


@dataclass(slots=True)
class _Order:
    """The batches of the current epoch."""

    count: int
    batch_size: int
    seed: int
    epoch: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        return batches_of(self.count, self.batch_size, self.seed, self.epoch)

    def __len__(self) -> int:
        return self.count // self.batch_size


@dataclass(frozen=True, slots=True)
class _OneByOne:
    task: Task

    def __call__(self, trajectories: Sequence[Trajectory]) -> Batch:
        batch = collate(self.task.one_by_one(trajectories))
        found = {key: torch.from_numpy(values) for key, values in batch.columns.items()}
        return found | {LENGTHS: torch.from_numpy(batch.lengths)}


class _AtOnce:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._memory = PackMemory()

    def __call__(self, trajectories: Sequence[Trajectory]) -> Batch:
        packed = pack(trajectories, self._memory)
        resampled = resample_packed(packed, self._task.methods, hz=self._task.hz)
        return resampled.values | {LENGTHS: resampled.lengths}


def open_loader(
    path: str, task: Task, *, batch_size: int, num_workers: int, seed: int
) -> DataLoader[Any]:
    """Return a loader of resampled, padded batches: features and `LENGTHS`."""
    return DataLoader(
        _Set(task.source),
        batch_sampler=_Order(len(task.source), batch_size, seed),
        collate_fn=_OneByOne(task) if path == "baseline" else _AtOnce(task),
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Choose the order of the next pass."""
    order: Any = loader.batch_sampler
    order.epoch = epoch


def compare_loaders(
    task: Task,
    *,
    batch_size: int,
    num_workers: Sequence[int],
    epochs: int,
    seed: int,
    stage: Stage,
) -> list[dict[str, Any]]:
    """Time both loaders, pass by pass in turn, after a pass that starts the workers.

    Returns:
        A row a path and number of workers, as ``loaders`` of
        ``docs/formats/probe-result.schema.json`` has them.
    """
    rows = []
    for workers in num_workers:
        loaders = {
            path: open_loader(
                path, task, batch_size=batch_size, num_workers=workers, seed=seed
            )
            for path in PATHS
        }  # fmt: skip
        seconds: dict[str, list[float]] = {path: [] for path in PATHS}
        first: dict[str, float] = {}
        for epoch in range(epochs + 1):
            for path in PATHS if epoch % 2 else PATHS[::-1]:
                set_epoch(loaders[path], epoch)
                began = time.perf_counter()
                for number, _ in enumerate(loaders[path]):
                    if number == 0 and epoch == 0:
                        first[path] = time.perf_counter() - began
                if epoch:
                    seconds[path].append(time.perf_counter() - began)
            stage.advance(1)
        batches = len(task.source) // batch_size
        rows += [
            {
                "path": path,
                "num_workers": workers,
                "batch_size": batch_size,
                "trajectories": batches * batch_size,
                "trajectories_per_s": batches * batch_size / sorted(times)[len(times) // 2],
                "first_batch_s": first[path],
                "epoch_s": times,
            }
            for path, times in seconds.items()
        ]
    return rows
