"""``probe resample``: the set, the result document, and loaders and a training on the set.

============  ==================================================================================
``baseline``  workers resample a batch one trajectory after another with NumPy, and collate it
``batched``   workers pack the trajectories of a batch and resample them at once
``table``     no workers: the set is packed on the device, and a batch is resampled there
============  ==================================================================================

Set and order are the same on all paths. The first two paths also have the same workers and the same
way back to this process.

The data time of a training is the time for which it waits: from the request for a batch until the
batch is there. Work that workers do meanwhile does not count, unless the training has to wait for
it. The model time is the step, from the batch to the new weights, until the device has finished;
moving the batch to the device belongs to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from leconvert.bench.environment import (
    GpuUse,
    find_device,
    host_record,
    package_version,
    versions_record,
)
from leconvert.bench.options import DTYPES, GPU_BATCH_SIZES, ResampleOptions
from leconvert.bench.pipelines import (
    BASELINE,
    Pipeline,
    batches_of,
    measure_batch_size,
    ratios,
    wait_for,
)
from leconvert.bench.results import begin_document
from leconvert.loading import (
    LENGTHS,
    DatasetSet,
    Hdf5Set,
    Methods,
    ResampledBatches,
    Trajectory,
    TrajectorySource,
    methods_for,
    preload,
)
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.machine import keep_freed_memory
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.values import dataclass


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


def paths_of(mode: str, task: ResampledBatches, num_workers: int) -> list[str]:
    """Return the paths that are measured; see the module."""
    paths = [] if mode == "batched" else ["baseline"]
    if mode != "baseline":
        paths += ["batched", "table"] if task.source.in_memory and not num_workers else ["batched"]
    return paths


def open_loader(
    path: str, options: ResampleOptions, task: ResampledBatches, batch_size: int, num_workers: int
) -> DataLoader[Any]:
    """Return a loader of resampled, padded batches: features and `LENGTHS`."""
    device = options.devices[-1] if path == "table" else "cpu"
    return DataLoader(
        Pipeline(path, task, device=device, to_host=False),
        batch_sampler=_Order(len(task), batch_size, options.seed),
        collate_fn=ResampledBatches.collate,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        generator=torch.Generator(),  # the loader must draw nothing from the policy's generator
    )


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Choose the order of the next pass."""
    order: Any = loader.batch_sampler
    order.epoch = epoch


def _ways(options: ResampleOptions, task: ResampledBatches) -> dict[int, list[str]]:
    """Return the paths that are measured with each number of workers."""
    numbers = sorted({0, options.num_workers})
    return {workers: paths_of(options.mode, task, workers) for workers in numbers}


def compare_loaders(
    options: ResampleOptions, task: ResampledBatches, batch_size: int, progress: Progress
) -> list[dict[str, Any]]:
    """Time the loaders, pass by pass in turn, after a pass that starts the workers."""
    rows = []
    device, ways = options.devices[-1], _ways(options, task)
    trajectories = len(task) // batch_size * batch_size
    with progress.stage("loaders", len(ways) * (_LOADER_EPOCHS + 1), "passes") as stage:
        for workers, paths in ways.items():
            loaders = {
                path: open_loader(path, options, task, batch_size, workers) for path in paths
            }
            seconds: dict[str, list[float]] = {path: [] for path in loaders}
            first: dict[str, float] = {}
            for epoch in range(_LOADER_EPOCHS + 1):
                for path in loaders if epoch % 2 else reversed(loaders):
                    set_epoch(loaders[path], epoch)
                    began = time.perf_counter()
                    for _ in loaders[path]:
                        if path not in first:
                            wait_for(device)
                            first[path] = time.perf_counter() - began
                    wait_for(device)
                    if epoch:
                        seconds[path].append(time.perf_counter() - began)
                stage.advance(1)
            rows += [
                {
                    "path": path,
                    "device": device if path == "table" else "cpu",
                    "num_workers": workers,
                    "batch_size": batch_size,
                    "trajectories": trajectories,
                    "trajectories_per_s": trajectories / median(times),
                    "first_batch_s": first[path],
                    "epoch_s": times,
                }
                for path, times in seconds.items()
            ]
    return rows


# A diffusion policy that is small enough to train anywhere.
#
# The recipe is C. Chi et al., *Diffusion Policy* (RSS 2023), without pictures. A chunk of actions
# is predicted from the present state by removing noise; the network learns to predict the noise
# that was added. Noise follows the squared-cosine schedule of A. Nichol and P. Dhariwal (ICML
# 2021). The network sees state, noisy chunk and step as one row of numbers.


ACTION = "action"
_OBSERVATION = "observation"
STATE = f"{_OBSERVATION}.state"

CHUNK = 16
"""Actions that are predicted at once."""

_HIDDEN = 128
_NOISE_STEPS = 50
_STEP_FEATURES = 16
_OFFSET = 0.008
_MOST_NOISE = 0.999
_LEARNING_RATE = 1e-3


class SmallDiffusionPolicy(nn.Module):
    """Learns the noise in a chunk of actions, given the state at its beginning.

    Equal seeds give equal weights, and the same random states of the same batches on any device.
    """

    kept: Tensor  # share of the clean variance that is left after each step

    def __init__(
        self, states: Sequence[str], widths: Mapping[str, int], device: str, seed: int
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self._states, self._device = states, find_device(device)
        self._generator = torch.Generator().manual_seed(seed)
        chunk = CHUNK * widths[ACTION]
        seen = sum(widths[key] for key in states) + chunk + _STEP_FEATURES
        self.denoiser = nn.Sequential(
            nn.Linear(seen, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, chunk)
        )
        share = (torch.arange(_NOISE_STEPS + 1) / _NOISE_STEPS + _OFFSET) / (1 + _OFFSET)
        level = (share * math.pi / 2).cos() ** 2
        noise = (1 - level[1:] / level[:-1]).clamp(max=_MOST_NOISE)
        self.register_buffer("kept", (1 - noise).cumprod(0))
        self.to(self._device)
        self._optimizer = torch.optim.Adam(self.parameters(), lr=_LEARNING_RATE)

    def forward(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the loss: the mean squared error of the predicted noise."""
        clean = actions.flatten(1)
        steps = torch.randint(_NOISE_STEPS, (len(clean),), device=clean.device)
        noise = torch.randn_like(clean)
        kept = self.kept[steps].unsqueeze(1)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        # The step as sines and cosines at several frequencies.
        half = torch.arange(_STEP_FEATURES // 2, device=clean.device)
        angles = steps.unsqueeze(1) * torch.exp(-math.log(1e4) * half / len(half))
        seen = torch.cat((state, noisy, angles.sin(), angles.cos()), dim=1)
        return functional.mse_loss(self.denoiser(seen), noise)

    def learn(self, batch: Mapping[str, Tensor]) -> float:
        """Take one step and return the loss before it; the device has finished by then."""
        state, actions = self._windows(batch)
        self._optimizer.zero_grad()
        loss = self(state.to(self._device), actions.to(self._device))
        loss.backward()
        self._optimizer.step()
        wait_for(str(self._device))
        return float(loss.detach())

    def _windows(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return a random state of each trajectory, and the chunk of actions that begins with it.

        If a trajectory ends before the chunk does, its last action is repeated.
        """
        lengths = batch[LENGTHS]
        where = lengths.device
        share = torch.rand(len(lengths), generator=self._generator).to(where)
        start = (share * (lengths - CHUNK + 1).clamp(min=1)).long()
        chunk = start.unsqueeze(1) + torch.arange(CHUNK, device=where)
        samples = torch.minimum(chunk, lengths.unsqueeze(1) - 1)
        row = torch.arange(len(lengths), device=where)
        states = [batch[key][row, start].reshape(len(row), -1) for key in self._states]
        actions = batch[ACTION][row.unsqueeze(1), samples]
        return torch.cat(states, dim=1).float(), actions.float()


def train_on_paths(
    options: ResampleOptions, task: ResampledBatches, batch_size: int, progress: Progress
) -> list[dict[str, Any]]:
    """Train the same policy on the same batches in the same order; return a row a path.

    Raises:
        UsageError: The set lacks the features for a training.
    """
    first = task.source.load(0)
    states = [STATE]
    if STATE not in first.columns:  # other observations form the state
        states = [key for key in first.columns if key.startswith(f"{_OBSERVATION}.")]
    if ACTION not in first.columns or not states:
        missing = STATE if ACTION in first.columns else ACTION
        raise UsageError(
            f"The training needs the feature {missing}, which the trajectories do not have.",
            next_step="Use a dataset with this feature, or leave --end-to-end out.",
        )
    rows: list[dict[str, Any]] = []
    device, ways = options.devices[-1], _ways(options, task)
    passes = sum(map(len, ways.values())) * options.train_epochs
    with progress.stage("train", passes, "passes") as stage:
        for workers, paths in ways.items():
            of_workers: list[dict[str, Any]] = []
            for path in paths:
                policy = SmallDiffusionPolicy(states, first.widths(), device, options.seed)
                loader = open_loader(path, options, task, batch_size, workers)
                with GpuUse(device) as gpu:
                    row = {
                        "path": path,
                        "device": device,
                        "batch_size": batch_size,
                        "num_workers": workers,
                        **_trained(policy, loader, device, options.train_epochs, stage),
                    }
                is_compared = of_workers and row["steps"] > 1
                row["speedup"] = of_workers[0]["total_s"] / row["total_s"] if is_compared else None
                row["gpu_use_pct"] = gpu.mean_pct
                of_workers.append(row)
            rows += of_workers
    return rows


def _trained(
    policy: SmallDiffusionPolicy, loader: DataLoader[Any], device: str, epochs: int, stage: Stage
) -> dict[str, Any]:
    """Train for some epochs; return times and losses."""
    data_s = model_s = first_wait = 0.0
    losses: list[float] = []
    for epoch in range(epochs):
        set_epoch(loader, epoch)
        asked = time.perf_counter()
        for batch in loader:
            wait_for(device)
            ready = time.perf_counter()
            losses.append(policy.learn(batch))
            done = time.perf_counter()
            # The first step is in neither time: workers start, and memory is allocated only once.
            if losses[1:]:
                data_s += ready - asked
                model_s += done - ready
            else:
                first_wait = ready - asked
            asked = done
        stage.advance(1)
    steps, steps_of_epoch, total_s = len(losses), len(loader), data_s + model_s
    is_timed = steps > 1
    return {
        "epochs": epochs,
        "steps": steps,
        "first_batch_s": first_wait,
        "data_s": data_s,
        "model_s": model_s,
        "total_s": total_s,
        "data_pct": 100 * data_s / total_s if is_timed else None,
        "steps_per_s": (steps - 1) / total_s if is_timed else None,
        "first_epoch_loss": sum(losses[:steps_of_epoch]) / steps_of_epoch,
        "last_epoch_loss": sum(losses[-steps_of_epoch:]) / steps_of_epoch,
    }


# The set, and the document.


_WAVES = 3
_FREQUENCIES_HZ = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class SyntheticSet(TrajectorySource):
    """Smooth motions with a rate and a duration that are drawn for each trajectory.

    The rate is used as drawn: samples are exactly 1/rate apart, and the duration may cut off a
    fraction of a sample. Equal numbers and seeds give equal trajectories, in any order and process.
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
        """Return the description of the set for results."""
        return {"source": "synthetic", "place": None, "synthetic": asdict(self)}


def set_record(source: TrajectorySource, methods: Methods) -> dict[str, Any]:
    """Return the description of a set: lengths, rates, columns and their methods."""
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
    """Return the set that options name; trajectories are read one by one.

    Raises:
        SourceError: The set has no trajectories.
    """
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
            next_step="Give a dataset or file with trajectories.",
        )
    return source


def everything(options: ResampleOptions) -> ResampleOptions:
    """Return options that measure everything: both types, a GPU if there is one, both extras."""
    devices = ["cpu"]
    batch_sizes = options.batch_sizes
    if torch.cuda.is_available():
        devices.append("cuda")
        # A GPU needs larger batches; the synthetic set grows with the batches.
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


def run_resample(options: ResampleOptions, *, progress: Progress = NO_PROGRESS) -> dict[str, Any]:
    """Measure resampling.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.
    """
    document = begin_document("resample")
    for device in options.devices:
        find_device(device)
    # Otherwise the C library returns the memory of every batch to the system; both sides gain
    # alike.
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
        extra = options, task, usual, progress
        document |= {
            "set": set_record(loaded, methods),
            "baseline": BASELINE,
            "results": results,
            "speedups": ratios(results),
            "loaders": compare_loaders(*extra) if options.loaders else None,
            "end_to_end": train_on_paths(*extra) if options.end_to_end else None,
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
    paths = paths_of(options.mode, task, num_workers=0)
    pipelines = [Pipeline("baseline", task)] if "baseline" in paths else []
    pipelines += [
        Pipeline(path, task, dtype, device)
        for device, dtype, path in product(options.devices, options.dtypes, paths)
        if path != "baseline"
    ]
    rows: list[dict[str, Any]] = []
    with progress.stage("timing", options.repeats * len(sizes), "repeats") as stage:
        for batch_size in sizes:
            rows += measure_batch_size(pipelines, task, options, batch_size, stage)
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
