"""One run of ``probe resample``: the set, the pipelines, and a document of what they did."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from leconvert.errors import SourceError, UsageError
from leconvert.loading import keep_freed_memory
from leconvert.probe import begin_document, host_record, package_version, versions_record
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.resampling.benchmark import PATHS, compare_loaders, measure_batch_size, ratios
from leconvert.resampling.methods import Method
from leconvert.resampling.pipelines import (
    BASELINES,
    Baseline,
    BaselinePipeline,
    BatchedPipeline,
    Pipeline,
    Task,
    faster_baseline,
    find_device,
)
from leconvert.resampling.sources import (
    DatasetSet,
    Hdf5Set,
    SyntheticSet,
    TrajectorySource,
    methods_for,
    preload,
    set_record,
    write_hdf5,
)
from leconvert.resampling.training import train_on_both_paths

__all__ = ["ResampleOptions", "everything", "open_source", "run_resample", "stem_of"]


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
    revision: str | None = None
    columns: tuple[str, ...] | None = None
    max_trajectories: int | None = None
    jitter: float = 0.0
    hz: float = 50.0
    mode: Mode = "compare"
    baseline: Baseline | Literal["auto"] = "auto"
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
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be at least {least}, not {value}."
                )
        if not (0 < self.hz < math.inf):
            raise UsageError(f"--hz must be a number above 0, not {self.hz}.")
        if not 0 <= self.jitter < 0.5:
            raise UsageError(
                f"--jitter is a share of a step, from 0 to below 0.5, not {self.jitter}."
            )
        if self.batch_sizes is not None and min(self.batch_sizes, default=0) < 1:
            raise UsageError("--batch-sizes are whole numbers from 1 on.")
        for name, given, known in (
            ("mode", (self.mode,), MODES),
            ("baseline", (self.baseline,), ("auto", *BASELINES)),
            ("dtype", self.dtypes, DTYPES),
        ):
            for value in given:
                if value not in known:
                    raise UsageError(
                        f"There is no {name} {value}.",
                        next_step=f"Choose among {', '.join(known)}.",
                    )
        for device in self.devices:
            if not _DEVICE.fullmatch(device):
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
        record = asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in record.items()
        }


# ------------------------------------------------------------------------------------------------
# The run and its document.


_SYNTHETIC_COUNT = 512
_LOADER_EPOCHS = 3
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
        source = Hdf5Set(Path(options.hdf5), columns=options.columns, most=most)
    else:
        count = most or max(_SYNTHETIC_COUNT, 2 * max(options.batch_sizes or (0,)))
        source = SyntheticSet(count, options.seed, jitter=options.jitter)
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
    """Measure resampling.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.
    """
    document = begin_document("resample")
    for device in options.devices:
        find_device(device)
    # The C library would return the memory of every batch to the system; both sides gain alike.
    keep_freed_memory()
    origin = open_source(options)
    with _torch_threads(options.threads), _on_disk(origin, options) as source:
        loaded = preload(source)
        options = options.sized(len(loaded))
        methods = methods_for(loaded, options.methods)
        task = Task(loaded, methods, options.hz)
        baseline = faster_baseline(task) if options.baseline == "auto" else options.baseline
        task = replace(task, source=loaded if options.preload else source, baseline=baseline)
        results = _results(options, task, progress)
        document |= {
            "set": set_record(loaded, methods) | origin.as_record(),
            "baseline": baseline,
            "results": results,
            "speedups": ratios(results),
            "loaders": _loaders(options, task, progress),
            "end_to_end": _end_to_end(options, task, progress),
            "torch_threads": torch.get_num_threads(),
            "gpu": _gpu_record(options.devices),
            "options": options.as_record(),
            "host": host_record(),
            "versions": versions_record() | {name: package_version(name) for name in _OTHERS},
        }
    return document


def _results(options: ResampleOptions, task: Task, progress: Progress) -> list[dict[str, Any]]:
    pipelines: list[Pipeline] = []
    if options.mode != "batched":
        pipelines.append(BaselinePipeline(task, preloaded=options.preload))
    if options.mode != "baseline":
        for device, dtype in product(options.devices, options.dtypes):
            pipelines.append(BatchedPipeline(task, dtype, device, preloaded=options.preload))
            if options.preload:
                pipelines.append(BatchedPipeline(task, dtype, device, is_table=True))
    rows: list[dict[str, Any]] = []
    sizes = _sizes(options)
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
    options: ResampleOptions, task: Task, progress: Progress
) -> list[dict[str, Any]] | None:
    if not options.loaders:
        return None
    workers = sorted({0, options.num_workers})
    with progress.stage("loaders", len(workers) * (_LOADER_EPOCHS + 1), "passes") as stage:
        return compare_loaders(
            task,
            batch_size=_of_loaders(_sizes(options)),
            num_workers=workers,
            epochs=_LOADER_EPOCHS,
            seed=options.seed,
            stage=stage,
        )


def _end_to_end(
    options: ResampleOptions, task: Task, progress: Progress
) -> list[dict[str, Any]] | None:
    if not options.end_to_end:
        return None
    rows: list[dict[str, Any]] = []
    workers = sorted({0, options.num_workers})
    passes = len(PATHS) * len(workers) * options.train_epochs
    with progress.stage("train", passes, "passes") as stage:
        for number in workers:
            rows += train_on_both_paths(
                task,
                batch_size=_of_loaders(_sizes(options)),
                num_workers=number,
                epochs=options.train_epochs,
                device=options.devices[-1],
                seed=options.seed,
                stage=stage,
            )
    return rows


def _sizes(options: ResampleOptions) -> tuple[int, ...]:
    assert options.batch_sizes is not None  # `sized` filled them in
    return options.batch_sizes


def _of_loaders(batch_sizes: Sequence[int]) -> int:
    """Return the batch size of loaders and training: a usual one, where it is among those asked."""
    return min(batch_sizes, key=lambda size: (abs(size - 64), size))


@contextmanager
def _on_disk(origin: TrajectorySource, options: ResampleOptions) -> Iterator[TrajectorySource]:
    """Yield the set; a synthetic one that is not preloaded is read from a file made for it."""
    if options.preload or not isinstance(origin, SyntheticSet):
        yield origin
        return
    with tempfile.TemporaryDirectory(prefix="leconvert-resample-") as folder:
        path = Path(folder) / "synthetic.h5"
        write_hdf5(origin, path)
        yield Hdf5Set(path)


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
