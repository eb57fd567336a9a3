"""``probe resample``: pipelines side by side on the same trajectories, and what they did.

For every batch each pipeline runs once, and the first changes from batch to batch: whatever else
the machine does, and whatever the one before left in the caches, falls on all of them alike. A
repeat is ``num_epochs`` passes over the set in full batches; figures are medians over repeats,
ratios medians of the ratios within a repeat. Beside the clock on the wall the processor's time of
this process is taken: work of others on the same cores lengthens the one far more than the other.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from leconvert.bench.probe import begin_document, host_record, package_version, versions_record
from leconvert.bench.resampling.loaders import batches_of, compare_loaders, paths_of, train_on_paths
from leconvert.bench.resampling.pipelines import (
    BaselinePipeline,
    BatchedPipeline,
    GpuUse,
    Pipeline,
    Task,
    Values,
    collate,
    faster_baseline,
    find_device,
    gpu_reader,
)
from leconvert.bench.resampling.trajectories import (
    DatasetSet,
    Hdf5Set,
    Method,
    SyntheticSet,
    TrajectorySource,
    methods_for,
    preload,
    set_record,
)
from leconvert.loading import keep_freed_memory
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.progress import NO_PROGRESS, Progress, Stage

__all__ = [
    "STAGES",
    "ResampleOptions",
    "everything",
    "measure_batch_size",
    "open_source",
    "ratios",
    "run_resample",
    "stem_of",
]


# ------------------------------------------------------------------------------------------------
# What a run of ``probe resample`` was asked for, checked.


Mode = Literal["baseline", "batched", "compare"]
Dtype = Literal["fp32", "bf16"]

MODES: tuple[Mode, ...] = ("baseline", "batched", "compare")
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")

USUAL_BATCH_SIZES = (16, 32, 64, 128)
GPU_BATCH_SIZES = (16, 64, 256, 1024, 4096)

_DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)
_AT_LEAST = {
    "num_epochs": 1,
    "repeats": 1,
    "warmup_batches": 1,
    "num_workers": 0,
    "train_epochs": 1,
    "seed": 0,
    "max_trajectories": 1,
    "threads": 1,
}


@dataclass(frozen=True, slots=True)
class ResampleOptions:
    """The options of one run; see ``docs/resampling.md``."""

    dataset: str | None = None
    hdf5: str | None = None
    source_hz: float | None = None
    revision: str | None = None
    columns: tuple[str, ...] | None = None
    max_trajectories: int | None = None
    hz: float = 50.0
    mode: Mode = "compare"
    batch_sizes: tuple[int, ...] | None = None
    dtypes: tuple[Dtype, ...] = ("fp32",)
    devices: tuple[str, ...] = ("cpu",)
    methods: Mapping[str, Method] = field(default_factory=dict)
    num_epochs: int = 1
    repeats: int = 7
    warmup_batches: int = 3
    preload: bool = True
    seed: int = 0
    threads: int | None = None
    loaders: bool = False
    end_to_end: bool = False
    num_workers: int = 2
    train_epochs: int = 3

    def __post_init__(self) -> None:
        if self.dataset is not None and self.hdf5 is not None:
            raise UsageError("--dataset and --hdf5 are two sources; give one.")
        if self.columns is not None and self.dataset is None and self.hdf5 is None:
            raise UsageError(
                "--columns chooses among the features of --dataset or --hdf5; the synthetic set is "
                "used whole."
            )
        if self.source_hz is not None and self.hdf5 is None:
            raise UsageError(
                "--source-hz says what an --hdf5 file of robomimic does not; give both."
            )
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be at least {least}, not {value}."
                )
        for name, rate in (("--hz", self.hz), ("--source-hz", self.source_hz)):
            if rate is not None and not 0 < rate < math.inf:
                raise UsageError(f"{name} must be a number above 0, not {rate}.")
        if not self.preload and self.dataset is None and self.hdf5 is None:
            raise UsageError(
                "--no-preload is for --dataset and --hdf5: the synthetic set is in memory."
            )
        if self.batch_sizes is not None and min(self.batch_sizes, default=0) < 1:
            raise UsageError("--batch-sizes are whole numbers from 1 on.")
        for name, given, known in (
            ("mode", (self.mode,), MODES),
            ("dtype", self.dtypes, DTYPES),
        ):
            for value in given:
                if value not in known:
                    raise UsageError(
                        f"There is no {name} {value}.",
                        next_step=f"Choose among {', '.join(known)}.",
                    )
        if not all(map(_DEVICE.fullmatch, self.devices)):
            raise UsageError("--device is cpu, cuda or cuda:N.")

    def sized(self, trajectories: int) -> ResampleOptions:
        """Return these options with batch sizes for a set of so many trajectories."""
        if self.batch_sizes is None:
            fitting = tuple(size for size in USUAL_BATCH_SIZES if size <= trajectories)
            return replace(self, batch_sizes=fitting or (trajectories,))
        if max(self.batch_sizes) > trajectories:
            raise UsageError(
                f"A batch of {max(self.batch_sizes)} is more than the {trajectories} trajectories "
                "of the set.",
                next_step="Choose smaller --batch-sizes, or raise --max-trajectories.",
            )
        return self

    def as_record(self) -> dict[str, Any]:
        """Return every option as a JSON-serialisable mapping."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


# ------------------------------------------------------------------------------------------------
# Pipelines side by side.


STAGES = ("load", "pack", "copy_in", "kernel", "copy_out", "resample", "collate")
"""Every stage that a pipeline can have, in order."""

_COPIES = ("copy_in", "copy_out")
# The processor's clock may stand still for what is shorter.
_TICK_S = 1e-9


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
    """Return a row a pipeline; their key ``raw`` holds what each repeat took."""
    errors = {pipeline.key: 0.0 for pipeline in pipelines}
    for number, indices in enumerate(batches_of(len(task.source), batch_size, seed, 0)):
        if number == warmup_batches:
            break
        exact = _exact(task, indices)
        for pipeline in pipelines:
            errors[pipeline.key] = max(
                errors[pipeline.key], _error(pipeline.run(indices)[1], exact)
            )
    timed = {pipeline.key: _Timed() for pipeline in pipelines}
    readers = {pipeline.device: gpu_reader(pipeline.device) for pipeline in pipelines}
    with GpuUse(next((reader for reader in readers.values() if reader), None)) as gpu:
        for repeat in range(repeats):
            for times in timed.values():
                times.stages.append({})
                times.cpu_seconds.append(0.0)
            batches = 0
            for epoch in range(num_epochs):
                epoch_number = repeat * num_epochs + epoch
                for indices in batches_of(len(task.source), batch_size, seed, epoch_number):
                    turn = batches % len(pipelines)
                    batches += 1
                    for pipeline in [*pipelines[turn:], *pipelines[:turn]]:
                        times = timed[pipeline.key]
                        cpu_began = time.process_time()
                        seconds, _ = pipeline.run(indices)
                        times.cpu_seconds[-1] += time.process_time() - cpu_began
                        times.batch_seconds.append(sum(seconds.values()))
                        for name, taken in seconds.items():
                            times.stages[-1][name] = times.stages[-1].get(name, 0.0) + taken
            stage.advance(1)
    return [
        {
            "way": pipeline.name,
            "dtype": pipeline.dtype,
            "device": pipeline.device,
            "batch_size": batch_size,
            **timed[pipeline.key].as_record(batches, batch_size, pipeline.kernel_stage),
            "max_abs_error": errors[pipeline.key],
            "gpu_use_pct": gpu.mean_pct if pipeline.device != "cpu" else None,
        }
        for pipeline in pipelines
    ]


@dataclass(slots=True)
class _Timed:
    """What one pipeline took: stages and processor's time of each repeat, seconds of each batch."""

    stages: list[dict[str, float]] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    batch_seconds: list[float] = field(default_factory=list)

    def as_record(self, batches: int, batch_size: int, kernel_stage: str) -> dict[str, Any]:
        """Return medians over the repeats, each of so many batches, and the repeats themselves."""
        totals = [sum(stages.values()) for stages in self.stages]
        kernels = [stages[kernel_stage] for stages in self.stages]
        copies = [sum(stages.get(name, 0.0) for name in _COPIES) for stages in self.stages]
        inside = [total - copied for total, copied in zip(totals, copies, strict=True)]
        count = batches * batch_size
        return {
            "batches": batches,
            "trajectories": count,
            "trajectories_per_s": count / median(totals),
            "kernel_trajectories_per_s": count / median(kernels),
            "without_copies_trajectories_per_s": count / median(inside),
            "ms_per_batch": 1e3 * median(totals) / batches,
            "cpu_ms_per_batch": 1e3 * median(self.cpu_seconds) / batches,
            "p50_batch_ms": 1e3 * float(np.percentile(self.batch_seconds, 50)),
            "p95_batch_ms": 1e3 * float(np.percentile(self.batch_seconds, 95)),
            "stages_ms": {
                name: 1e3 * median(stages[name] for stages in self.stages) / batches
                if name in self.stages[0]
                else None
                for name in STAGES
            },
            "raw": [
                {
                    "seconds": total,
                    "cpu_s": cpu,
                    **{f"{name}_s": taken for name, taken in stages.items()},
                }
                for total, cpu, stages in zip(totals, self.cpu_seconds, self.stages, strict=True)
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
        compared = [
            {
                "with_packing": _ratio(one["seconds"], other["seconds"]),
                "without_copies": _ratio(
                    one["seconds"],
                    other["seconds"] - sum(other.get(f"{name}_s", 0.0) for name in _COPIES),
                ),
                "cpu_time": _ratio(one["cpu_s"], other["cpu_s"]),
                "kernel": _ratio(one["resample_s"], other["kernel_s"]),
            }
            for one, other in zip(base["raw"], row["raw"], strict=True)
        ]
        found.append(
            {key: row[key] for key in ("way", "dtype", "device", "batch_size")}
            | {name: median(repeat[name] for repeat in compared) for name in compared[0]}
        )
    return found


def _ratio(seconds: float, other_seconds: float) -> float:
    return seconds / max(other_seconds, _TICK_S)


def _exact(task: Task, indices: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
    """Return a batch by `numpy.interp` in float64."""
    by_columns = replace(task, baseline="columns")
    return collate(by_columns.one_by_one(task.load(indices))).columns


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
# The run and its document.


_SYNTHETIC_COUNT = 512
_LOADER_EPOCHS = 3
_USUAL_OF_LOADERS = 64  # trajectories in a batch
_OTHERS = ("h5py", "scipy", "matplotlib")


def open_source(options: ResampleOptions) -> TrajectorySource:
    """Return the set that options name, as it is read one by one."""
    most = options.max_trajectories
    source: TrajectorySource
    if options.dataset is not None:
        source = DatasetSet(
            options.dataset, revision=options.revision, columns=options.columns, most=most
        )
    elif options.hdf5 is not None:
        source = Hdf5Set(
            Path(options.hdf5), columns=options.columns, most=most, source_hz=options.source_hz
        )
    else:
        count = most or max(_SYNTHETIC_COUNT, 2 * max(options.batch_sizes or (0,)))
        source = SyntheticSet(count, options.seed)
    if not len(source):
        raise SourceError(
            f"{options.dataset or options.hdf5} has no trajectories.",
            path=options.dataset or options.hdf5,
            next_step="Give another set.",
        )
    return source


def everything(options: ResampleOptions) -> ResampleOptions:
    """Return options that measure all there is: both types, a GPU if there is one, both extras."""
    devices = ["cpu"]
    batch_sizes = options.batch_sizes
    if torch.cuda.is_available():
        devices.append("cuda")
        # A GPU is busy with more at once; the synthetic set grows with the batches.
        if batch_sizes is None and options.dataset is None and options.hdf5 is None:
            batch_sizes = GPU_BATCH_SIZES
    return replace(
        options,
        batch_sizes=batch_sizes,
        mode="compare",
        dtypes=DTYPES,
        devices=tuple(dict.fromkeys((*devices, *options.devices))),
        loaders=True,
        end_to_end=True,
    )


def stem_of(options: Mapping[str, Any], source: str) -> str:
    """Return the stem of a run's files, from its options."""
    devices = "-".join(options["devices"]).replace(":", "")
    loaded = "" if options["preload"] else "-no-preload"
    types = "-".join(options["dtypes"])
    return f"resample-{source}-{options['mode']}-{options['hz']:g}hz-{types}-{devices}{loaded}"


def run_resample(options: ResampleOptions, *, progress: Progress = NO_PROGRESS) -> dict[str, Any]:
    """Return what was measured, as ``docs/formats/probe-result.schema.json`` describes it."""
    document = begin_document("resample")
    for device in options.devices:
        find_device(device)
    # The C library would return the memory of every batch to the system; both sides gain alike.
    keep_freed_memory()
    source = open_source(options)
    with _torch_threads(options.threads):
        loaded = preload(source)
        options = options.sized(len(loaded))
        methods = methods_for(loaded, options.methods)
        task = Task(loaded, methods, options.hz)
        task = replace(task, baseline=faster_baseline(task))
        if not options.preload:
            task = replace(task, source=source, preloaded=False)
        sizes = options.batch_sizes or ()
        results = _results(options, task, sizes, progress)
        usual = min(sizes, key=lambda size: (abs(size - _USUAL_OF_LOADERS), size))
        document |= {
            "set": set_record(loaded, methods),
            "baseline": task.baseline,
            "results": results,
            "speedups": ratios(results),
            "loaders": _loaders(options, task, usual, progress),
            "end_to_end": _end_to_end(options, task, usual, progress),
            "torch_threads": torch.get_num_threads(),
            "gpu": _gpu_record(options.devices),
            "options": options.as_record(),
            "host": host_record(),
            "versions": versions_record() | {name: package_version(name) for name in _OTHERS},
        }
    return document


def _results(
    options: ResampleOptions, task: Task, sizes: Sequence[int], progress: Progress
) -> list[dict[str, Any]]:
    pipelines: list[Pipeline] = []
    if options.mode != "batched":
        pipelines.append(BaselinePipeline(task))
    if options.mode != "baseline":
        for device, dtype in product(options.devices, options.dtypes):
            pipelines.append(BatchedPipeline(task, dtype, device))
            if options.preload:
                pipelines.append(BatchedPipeline(task, dtype, device, is_table=True))
    rows: list[dict[str, Any]] = []
    with progress.stage("timing", options.repeats * len(sizes), "repeats") as stage:
        for batch_size in sizes:
            rows += measure_batch_size(
                pipelines,
                task,
                batch_size=batch_size,
                repeats=options.repeats,
                num_epochs=options.num_epochs,
                warmup_batches=options.warmup_batches,
                seed=options.seed,
                stage=stage,
            )
    return rows


def _loaders(
    options: ResampleOptions, task: Task, batch_size: int, progress: Progress
) -> list[dict[str, Any]] | None:
    if not options.loaders:
        return None
    workers = sorted({0, options.num_workers})
    with progress.stage("loaders", len(workers) * (_LOADER_EPOCHS + 1), "passes") as stage:
        return compare_loaders(
            task,
            mode=options.mode,
            device=options.devices[-1],
            batch_size=batch_size,
            num_workers=workers,
            epochs=_LOADER_EPOCHS,
            seed=options.seed,
            stage=stage,
        )


def _end_to_end(
    options: ResampleOptions, task: Task, batch_size: int, progress: Progress
) -> list[dict[str, Any]] | None:
    if not options.end_to_end:
        return None
    rows: list[dict[str, Any]] = []
    workers = sorted({0, options.num_workers})
    paths = sum(len(paths_of(options.mode, task, number)) for number in workers)
    passes = paths * options.train_epochs
    with progress.stage("train", passes, "passes") as stage:
        for number in workers:
            rows += train_on_paths(
                task,
                mode=options.mode,
                batch_size=batch_size,
                num_workers=number,
                epochs=options.train_epochs,
                device=options.devices[-1],
                seed=options.seed,
                stage=stage,
            )
    return rows


@contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _gpu_record(devices: Sequence[str]) -> dict[str, Any] | None:
    for name in devices:
        device = find_device(name)
        if device.type == "cuda":
            facts = torch.cuda.get_device_properties(device)
            return {
                "name": facts.name,
                "memory_bytes": int(facts.total_memory),
                "cuda": torch.version.cuda,
            }
    return None
