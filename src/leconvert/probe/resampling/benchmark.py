"""Ways timed side by side on the same trajectories in the same order.

For every batch each way runs once, and who begins changes from batch to batch: whatever else the
machine does, and whatever the one before left in the caches, falls on all of them alike. A repeat
is ``num_epochs`` passes over the set in full batches; figures are medians over repeats, ratios
medians of the ratios within a repeat. Beside the clock on the wall the processor's time of this
process is taken: work of others on the same cores lengthens the one far more than the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.probe.resampling.baseline import collate, grid, resample_one
from leconvert.probe.resampling.gpu import GpuUse, gpu_reader
from leconvert.probe.resampling.methods import Methods
from leconvert.probe.resampling.sources import TrajectorySource
from leconvert.probe.resampling.ways import Values, Way
from leconvert.progress import Stage

__all__ = ["STAGES", "batches_of", "measure_batch_size", "ratios"]

STAGES = ("load", "pack", "copy_in", "kernel", "copy_out", "resample", "collate")
"""Every stage that a way can have, in order."""

_COPIES = ("copy_in", "copy_out")
# The processor's clock may stand still for what is shorter.
_TICK_S = 1e-9


def batches_of(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Yield the full batches of a pass, shuffled; a function of its arguments alone."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count - batch_size + 1, batch_size):
        yield [int(place) for place in order[start : start + batch_size]]


def measure_batch_size(
    ways: Sequence[Way],
    source: TrajectorySource,
    methods: Methods,
    *,
    hz: float,
    batch_size: int,
    repeats: int,
    num_epochs: int,
    warmup_batches: int,
    seed: int,
    stage: Stage,
) -> list[dict[str, Any]]:
    """Time ways with one batch size.

    Args:
        ways: What is timed.
        source: The set, of at least one batch.
        methods: Method of every column.
        hz: Targets a second.
        batch_size: Trajectories of a batch.
        repeats: How often.
        num_epochs: Passes of a repeat.
        warmup_batches: Batches before; their results are compared with the exact ones.
        seed: Of the order.
        stage: Is advanced by 1 a repeat.

    Returns:
        A row a way, as ``results`` of ``docs/formats/probe-result.schema.json`` has them. Key
        ``raw`` holds what each repeat took.
    """
    errors = {way.key: 0.0 for way in ways}
    for number, places in enumerate(batches_of(len(source), batch_size, seed, 0)):
        if number == warmup_batches:
            break
        exact = _exact(source, places, methods, hz)
        for way in ways:
            errors[way.key] = max(errors[way.key], _error(way.run(places)[1], exact))
    repeat_stages: dict[tuple[str, str, str], list[dict[str, float]]] = {w.key: [] for w in ways}
    batch_seconds: dict[tuple[str, str, str], list[float]] = {way.key: [] for way in ways}
    cpu_seconds: dict[tuple[str, str, str], list[float]] = {way.key: [] for way in ways}
    batches = 0
    readers = {way.device: gpu_reader(way.device) for way in ways}
    with GpuUse(next((reader for reader in readers.values() if reader), None)) as gpu:
        for repeat in range(repeats):
            sums: dict[tuple[str, str, str], dict[str, float]] = {way.key: {} for way in ways}
            cpu = {way.key: 0.0 for way in ways}
            batches = 0
            for epoch in range(num_epochs):
                epoch_number = repeat * num_epochs + epoch
                for places in batches_of(len(source), batch_size, seed, epoch_number):
                    turn = batches % len(ways)
                    batches += 1
                    for way in [*ways[turn:], *ways[:turn]]:
                        cpu_began = time.process_time()
                        seconds, _ = way.run(places)
                        cpu[way.key] += time.process_time() - cpu_began
                        batch_seconds[way.key].append(sum(seconds.values()))
                        of_way = sums[way.key]
                        for name, taken in seconds.items():
                            of_way[name] = of_way.get(name, 0.0) + taken
            for way in ways:
                repeat_stages[way.key].append(sums[way.key])
                cpu_seconds[way.key].append(cpu[way.key])
            stage.advance(1)
    return [
        _row(
            way,
            repeat_stages[way.key],
            batch_seconds[way.key],
            cpu_seconds[way.key],
            batch_size=batch_size,
            batches=batches,
            error=errors[way.key],
            gpu_use_pct=gpu.mean_pct if way.device != "cpu" else None,
        )
        for way in ways
    ]


def _row(
    way: Way,
    repeats: Sequence[Mapping[str, float]],
    batch_seconds: Sequence[float],
    cpu_seconds: Sequence[float],
    *,
    batch_size: int,
    batches: int,
    error: float,
    gpu_use_pct: float | None,
) -> dict[str, Any]:
    trajectories = batches * batch_size
    totals = [sum(stages.values()) for stages in repeats]
    kernels = [stages[way.kernel_stage] for stages in repeats]
    inside = [
        total - sum(stages.get(name, 0.0) for name in _COPIES)
        for total, stages in zip(totals, repeats, strict=True)
    ]
    return {
        "way": way.name,
        "dtype": way.dtype,
        "device": way.device,
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
    """Return how many times as fast as the baseline each other way is, by batch size.

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


def _exact(
    source: TrajectorySource, places: Sequence[int], methods: Methods, hz: float
) -> Mapping[str, npt.NDArray[Any]]:
    """Return a batch by `numpy.interp` in float64."""
    trajectories = [source.load(place) for place in places]
    return collate(
        [resample_one(one, grid(one.duration_s, hz), methods, "columns") for one in trajectories]
    ).columns


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
