"""Pipelines from trajectories to a resampled batch, each with a clock on every stage.

============  ==================================================================================
``baseline``  NumPy, one trajectory after another, then collated into a padded batch
``batched``   separate trajectories are packed (copied into one table), moved, resampled
``table``     the set was packed once when it was loaded; a batch selects its rows
============  ==================================================================================

All three end with padded tensors and lengths on the host, so on a GPU the copy of the result back
to the host is timed as well. Before a clock is read, the device has finished.

For every batch each pipeline runs once, and another one runs first each time. So other load on the
machine, and the state of the caches, affect all of them alike. A repeat is ``num_epochs`` passes
over the set in full batches. Figures are medians over repeats; ratios are medians of the ratios
within a repeat. Besides wall-clock time, the CPU time of this process is measured: other processes
on the same cores lengthen wall-clock time far more than CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field, replace
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from leconvert.bench.environment import GpuUse, find_device
from leconvert.bench.options import ResampleOptions
from leconvert.loading import (
    LENGTHS,
    Methods,
    Packed,
    PackMemory,
    ResampledBatches,
    Trajectory,
    pack,
)
from leconvert.model.values import FloatArray
from leconvert.support.progress import Stage
from leconvert.support.values import dataclass

Array = npt.NDArray[Any]

# The baseline searches a trajectory's times once, then takes and mixes whole rows in their own
# type. This takes less time than `numpy.interp` for each column.

BASELINE = "rows"

_NEARLY_PARALLEL = 1e-6


def resample_one(trajectory: Trajectory, targets: FloatArray, methods: Methods) -> dict[str, Array]:
    """Return an array of shape (M, ...) for each feature of a trajectory, of the feature's type."""
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
    # If times repeat at the very end, there is no gap, and the last sample counts.
    weight[targets >= times[-1]] = 1
    np.clip(weight, 0, 1, out=weight)
    results = {}
    for key, values in trajectory.columns.items():
        rows = values.reshape(len(values), -1)
        if any(method == "linear" for _, _, method in methods[key]):
            out = rows.take(low, 0)
            step = rows.take(high, 0)
            step -= out
            step *= weight.astype(rows.dtype)[:, None]
            out += step
        else:
            out = np.empty((len(targets), rows.shape[1]), rows.dtype)
        for start, stop, method in methods[key]:
            if method == "slerp":
                part = rows[:, start:stop]
                out[:, start:stop] = slerp_rows(part[low], part[high], weight)
            elif method != "linear":
                comes = weight >= 1 if method == "previous" else weight > 0.5
                out[:, start:stop] = rows[np.where(comes, high, low), start:stop]
        results[key] = out.reshape(len(targets), *values.shape[1:])
    return results


def slerp_rows(first: Array, second: Array, weight: FloatArray) -> FloatArray:
    """Return unit quaternions between two rows of quaternions, along the shorter arc.

    The formula is that of the batched kernel, in float64.
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


def collate(results: Sequence[Mapping[str, Array]]) -> dict[str, Tensor]:
    """Combine resampled trajectories into one batch, padded with zeros, with its `LENGTHS`."""
    lengths = [len(next(iter(result.values()))) for result in results]
    batch = {LENGTHS: torch.tensor(lengths)}
    for key, first in results[0].items():
        values = np.zeros((len(results), max(lengths), *first.shape[1:]), first.dtype)
        for row, result in enumerate(results):
            values[row, : lengths[row]] = result[key]
        batch[key] = torch.from_numpy(values)
    return batch


TORCH_TYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

Values = dict[str, Tensor]


class Pipeline(Dataset[Values]):
    """One pipeline; as a dataset, it gives its batches to torch's ``DataLoader``.

    Args:
        name: See the module.
        task: The set, and how it is resampled.
        dtype: ``fp32`` or ``bf16``.
        device: The device that resamples the batches.
        to_host: Whether batches are copied back to the host.
    """

    def __init__(
        self,
        name: str,
        task: ResampledBatches,
        dtype: str = "fp32",
        device: str = "cpu",
        *,
        to_host: bool = True,
    ) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self._task, self._to_host = task, to_host
        self._place, self._kind = find_device(device), TORCH_TYPES[dtype]
        self._memory = PackMemory(pinned=self._place.type == "cuda")
        self._table: Packed | None = None
        if name == "table":  # packed and moved here, outside all clocks
            self._table = pack(task.load(range(len(task)))).to(self._place, self._kind)

    def __getitems__(self, indices: Sequence[int]) -> Values:
        """Return a batch."""
        return self.run(indices)[1]

    def run(self, indices: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Return the seconds of every stage of a batch, and the batch."""
        seconds: dict[str, float] = {}

        @contextmanager
        def timed(name: str) -> Iterator[None]:
            began = time.perf_counter()
            yield
            wait_for(self.device)
            seconds[name] = time.perf_counter() - began

        task, is_cuda = self._task, self._place.type == "cuda"
        if self._table is not None:
            with timed("pack"):
                packed = self._table.select(indices)
        else:
            with nullcontext() if task.source.in_memory else timed("load"):
                trajectories = task.load(indices)
            if self.name == "baseline":
                with timed("resample"):
                    results = [
                        resample_one(one, one.targets(task.hz), task.methods)
                        for one in trajectories
                    ]
                with timed("collate"):
                    return seconds, collate(results)
            with timed("pack"):
                packed = pack(trajectories, self._memory)
            if is_cuda or self.dtype != "fp32":
                with timed("copy_in"):
                    packed = packed.to(self._place, self._kind)
        with timed("kernel"):
            values = task.as_batch(packed)
        if is_cuda and self._to_host:
            with timed("copy_out"):
                values = {key: tensor.cpu() for key, tensor in values.items()}
        return seconds, values


def wait_for(device: str) -> None:
    """Wait until a GPU has finished its work; do nothing for other devices."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def batches_of(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Yield the full batches of a pass, shuffled; they depend on the arguments alone."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count - batch_size + 1, batch_size):
        yield order[start : start + batch_size].tolist()


STAGES = ("load", "pack", "copy_in", "kernel", "copy_out", "resample", "collate")
"""Every stage that a pipeline can have, in order."""

_COPIES = ("copy_in_s", "copy_out_s")
# Shorter times may be 0 on the processor's clock.
_TICK_S = 1e-9


@dataclass(slots=True)
class _Measured:
    """The measurements of one pipeline."""

    pipeline: Pipeline
    max_abs_error: float = 0.0
    raw: list[dict[str, float]] = field(default_factory=list)  # seconds of each repeat, by stage
    waits_s: list[float] = field(default_factory=list)  # of each batch

    def time(self, indices: Sequence[int]) -> None:
        """Run a batch of the last repeat."""
        took, cpu_began = self.raw[-1], time.process_time()
        seconds, _ = self.pipeline.run(indices)
        took["cpu_s"] += time.process_time() - cpu_began
        self.waits_s.append(sum(seconds.values()))
        took["seconds"] += self.waits_s[-1]
        for name, taken in seconds.items():
            took[f"{name}_s"] = took.get(f"{name}_s", 0.0) + taken

    def row(self, batches: int, batch_size: int, gpu_use_pct: float | None) -> dict[str, Any]:
        """Return medians over the repeats, each with this many batches."""
        kernel = next(name for name in ("kernel_s", "resample_s") if name in self.raw[0])
        total = median(took["seconds"] for took in self.raw)
        count = batches * batch_size
        return {
            "way": self.pipeline.name,
            "dtype": self.pipeline.dtype,
            "device": self.pipeline.device,
            "batch_size": batch_size,
            "batches": batches,
            "trajectories": count,
            "trajectories_per_s": count / total,
            "kernel_trajectories_per_s": count / median(took[kernel] for took in self.raw),
            "without_copies_trajectories_per_s": count / median(map(_without_copies, self.raw)),
            "ms_per_batch": 1e3 * total / batches,
            "cpu_ms_per_batch": 1e3 * median(took["cpu_s"] for took in self.raw) / batches,
            "p50_batch_ms": 1e3 * float(np.percentile(self.waits_s, 50)),
            "p95_batch_ms": 1e3 * float(np.percentile(self.waits_s, 95)),
            "stages_ms": {
                name: 1e3 * median(took[f"{name}_s"] for took in self.raw) / batches
                if f"{name}_s" in self.raw[0]
                else None
                for name in STAGES
            },
            "raw": self.raw,
            "max_abs_error": self.max_abs_error,
            "gpu_use_pct": gpu_use_pct if self.pipeline.device != "cpu" else None,
        }


def measure_batch_size(
    pipelines: Sequence[Pipeline],
    task: ResampledBatches,
    options: ResampleOptions,
    batch_size: int,
    stage: Stage,
) -> list[dict[str, Any]]:
    """Return a row for each pipeline; its key ``raw`` holds the times of each repeat."""
    measured = [_Measured(pipeline) for pipeline in pipelines]
    warmup = batches_of(len(task), batch_size, options.seed, 0)
    for indices in islice(warmup, options.warmup_batches):
        exact = _exact(task, indices)
        for each in measured:
            error = _error(each.pipeline.run(indices)[1], exact)
            each.max_abs_error = max(each.max_abs_error, error)
    with GpuUse(next((each.device for each in pipelines if each.device != "cpu"), "cpu")) as gpu:
        for repeat in range(options.repeats):
            for each in measured:
                each.raw.append({"seconds": 0.0, "cpu_s": 0.0})
            batches = 0
            for epoch in range(options.num_epochs):
                epoch_number = repeat * options.num_epochs + epoch
                for indices in batches_of(len(task), batch_size, options.seed, epoch_number):
                    turn = batches % len(measured)
                    batches += 1
                    for each in [*measured[turn:], *measured[:turn]]:
                        each.time(indices)
            for each in measured:
                middle, late = np.percentile(each.waits_s[-batches:], (50, 95)).tolist()
                each.raw[-1] |= {"p50_batch_s": middle, "p95_batch_s": late}
            stage.advance(1)
    return [each.row(batches, batch_size, gpu.mean_pct) for each in measured]


def _without_copies(took: Mapping[str, float]) -> float:
    return took["seconds"] - sum(took.get(name, 0.0) for name in _COPIES)


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the speedup of each other pipeline over the baseline, by batch size.

    ``with_packing`` compares everything, the baseline's collation included. ``kernel`` compares
    only the resampling on both sides. ``without_copies`` leaves out the copies to and from a GPU.
    ``cpu_time`` compares the CPU time for everything.
    """
    found = []
    baselines = {row["batch_size"]: row for row in rows if row["way"] == "baseline"}
    for row in rows:
        base = baselines.get(row["batch_size"])
        if base is None or row["way"] == "baseline":
            continue
        compared = [
            {
                "with_packing": _ratio(one["seconds"], other["seconds"]),
                "without_copies": _ratio(one["seconds"], _without_copies(other)),
                "cpu_time": _ratio(one["cpu_s"], other["cpu_s"]),
                "kernel": _ratio(one["resample_s"], other["kernel_s"]),
            }
            for one, other in zip(base["raw"], row["raw"], strict=True)
        ]
        found.append(
            {key: row[key] for key in ("way", "dtype", "device", "batch_size")}
            | {name: median(repeat[name] for repeat in compared) for name in compared[0]}
            | {"raw": compared}
        )
    return found


def _ratio(seconds: float, other_seconds: float) -> float:
    return seconds / max(other_seconds, _TICK_S)


def _exact(task: ResampledBatches, indices: Sequence[int]) -> Values:
    """Return a batch in float64, its linear columns by `numpy.interp`."""
    results = []
    for one in task.load(indices):
        widened = {
            key: values.astype(np.float64) if values.dtype.kind == "f" else values
            for key, values in one.columns.items()
        }
        targets, times = one.targets(task.hz), one.times - one.times[0]
        exact = resample_one(replace(one, columns=widened), targets, task.methods)
        for key, values in widened.items():
            rows, out = values.reshape(len(values), -1), exact[key].reshape(len(targets), -1)
            for start, stop, method in task.methods[key]:
                for column in range(start, stop if method == "linear" else start):
                    out[:, column] = np.interp(targets, times, rows[:, column])
        results.append(exact)
    return collate(results)


def _error(values: Values, exact: Values) -> float:
    """Return the largest difference."""
    return max(
        (
            float((tensor.double() - exact[key].double()).abs().max())
            for key, tensor in values.items()
            if tensor.numel()
        ),
        default=0.0,
    )
