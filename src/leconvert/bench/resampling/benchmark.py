"""``probe resample``: what it is asked for, the set, and the document of what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leconvert.bench.environment import host_record, package_version, versions_record
from leconvert.bench.resampling.loaders import compare_loaders, paths_of, train_on_paths
from leconvert.bench.resampling.options import DTYPES, GPU_BATCH_SIZES, ResampleOptions
from leconvert.bench.resampling.pipelines import (
    BASELINE,
    BaselinePipeline,
    BatchedPipeline,
    Pipeline,
    find_device,
    measure_batch_size,
    ratios,
)
from leconvert.bench.results import begin_document
from leconvert.loading import (
    DatasetSet,
    Hdf5Set,
    Methods,
    ResampledBatches,
    Trajectory,
    TrajectorySource,
    keep_freed_memory,
    methods_for,
    preload,
)
from leconvert.support.errors import SourceError
from leconvert.support.progress import NO_PROGRESS, Progress

_WAVES = 3
_FREQUENCIES_HZ = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class SyntheticSet(TrajectorySource):
    """Smooth motions, sampled at rates and over times that are drawn for each trajectory.

    A rate is kept as it was drawn: samples are exactly 1/rate apart, whatever fraction of a sample
    the duration then cuts off. Equal numbers and seeds give equal trajectories, in whatever order
    and process they are made.
    """

    count: int = 512
    seed: int = 0
    rates_hz: tuple[float, float] = (30.0, 333.0)  # lowest and highest; drawn uniformly
    durations_s: tuple[float, float] = (1.0, 4.0)
    action_dim: int = 7  # columns, float32
    state_dim: int = 14

    def __len__(self) -> int:
        return self.count

    def load(self, index: int) -> Trajectory:
        """Make a trajectory."""
        random = np.random.default_rng([self.seed, index])
        rate = random.uniform(*self.rates_hz)
        duration = random.uniform(*self.durations_s)
        times = np.arange(int(duration * rate) + 1) / rate
        width = self.action_dim + self.state_dim
        motion = np.zeros((len(times), width))
        for _ in range(_WAVES):
            frequency = random.uniform(*_FREQUENCIES_HZ, width)
            phase = random.uniform(0, 2 * np.pi, width)
            motion += np.sin(2 * np.pi * frequency * times[:, None] + phase)
        action, state = np.split(motion.astype(np.float32), [self.action_dim], axis=1)
        columns = {
            "action": np.ascontiguousarray(action),
            "observation.state": np.ascontiguousarray(state),
        }
        return Trajectory(f"synthetic trajectory {index}", times, columns)

    def as_record(self) -> dict[str, Any]:
        """Return what results say of the set."""
        return {"source": "synthetic", "place": None, "synthetic": asdict(self)}


def set_record(source: TrajectorySource, methods: Methods) -> dict[str, Any]:
    """Return what a set is like: lengths, rates, columns and their methods."""
    trajectories = [source.load(index) for index in range(len(source))]
    lengths = [len(one) for one in trajectories]
    timed = [one for one in trajectories if one.duration_s > 0]
    return {
        **source.as_record(),
        "trajectories": len(source),
        "samples": sum(lengths),
        "length": _spread(lengths),
        "duration_s": _spread([one.duration_s for one in trajectories]),
        "rate_hz": _spread([(len(one) - 1) / one.duration_s for one in timed]),
        "columns": {
            key: {
                "dtype": str(values.dtype),
                "shape": list(values.shape[1:]),
                "methods": [list(segment) for segment in methods[key]],
            }
            for key, values in trajectories[0].columns.items()
        },
    }


def _spread(numbers: Sequence[float]) -> dict[str, float] | None:
    if not numbers:
        return None
    least, median, most = np.percentile(numbers, (0, 50, 100)).tolist()
    return {"min": least, "median": median, "max": most}


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
        task = ResampledBatches(loaded if options.preload else source, methods, options.hz)
        sizes = options.batch_sizes or ()
        results = _results(options, task, sizes, progress)
        usual = min(sizes, key=lambda size: (abs(size - _USUAL_OF_LOADERS), size))
        document |= {
            "set": set_record(loaded, methods),
            "baseline": BASELINE,
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
    options: ResampleOptions, task: ResampledBatches, sizes: Sequence[int], progress: Progress
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
    options: ResampleOptions, task: ResampledBatches, batch_size: int, progress: Progress
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
    options: ResampleOptions, task: ResampledBatches, batch_size: int, progress: Progress
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
