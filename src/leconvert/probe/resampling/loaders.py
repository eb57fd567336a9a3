"""A loader with workers that resamples, on either path.

The set, the order, the workers and the way back to this process are the same; only what a worker
does with the trajectories of a batch differs: one after the other with NumPy and then collated, or
packed and resampled at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from leconvert.probe.resampling.baseline import Baseline, collate, grid, resample_one
from leconvert.probe.resampling.benchmark import batches_of
from leconvert.probe.resampling.kernel import resample_packed
from leconvert.probe.resampling.methods import Methods
from leconvert.probe.resampling.packing import PackMemory, pack
from leconvert.probe.resampling.sources import TrajectorySource
from leconvert.probe.resampling.values import Trajectory
from leconvert.progress import Stage

__all__ = ["LENGTHS", "PATHS", "compare_loaders", "open_loader", "set_epoch"]

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
    methods: Methods
    hz: float
    baseline: Baseline

    def __call__(self, trajectories: Sequence[Trajectory]) -> Batch:
        batch = collate(
            [
                resample_one(one, grid(one.duration_s, self.hz), self.methods, self.baseline)
                for one in trajectories
            ]
        )
        found = {key: torch.from_numpy(values) for key, values in batch.columns.items()}
        return found | {LENGTHS: torch.from_numpy(batch.lengths)}


class _AtOnce:
    def __init__(self, methods: Methods, hz: float) -> None:
        self._methods, self._hz = methods, hz
        self._memory = PackMemory()

    def __call__(self, trajectories: Sequence[Trajectory]) -> Batch:
        packed = pack(trajectories, self._memory)
        resampled = resample_packed(packed, self._methods, hz=self._hz)
        return resampled.values | {LENGTHS: resampled.lengths}


def open_loader(
    path: str,
    source: TrajectorySource,
    methods: Methods,
    *,
    hz: float,
    baseline: Baseline,
    batch_size: int,
    num_workers: int,
    seed: int,
) -> DataLoader[Any]:
    """Return a loader of resampled, padded batches: features and `LENGTHS`.

    Args:
        path: One of `PATHS`.
        source: The set.
        methods: Method of every column.
        hz: Targets a second.
        baseline: What the baseline's linear part is.
        batch_size: Trajectories of a batch.
        num_workers: Worker processes; they live on from epoch to epoch.
        seed: Of the order.
    """
    work = _OneByOne(methods, hz, baseline) if path == "baseline" else _AtOnce(methods, hz)
    return DataLoader(
        _Set(source),
        batch_sampler=_Order(len(source), batch_size, seed),
        collate_fn=work,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Choose the order of the next pass."""
    order: Any = loader.batch_sampler
    order.epoch = epoch


def compare_loaders(
    source: TrajectorySource,
    methods: Methods,
    *,
    hz: float,
    baseline: Baseline,
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
                path, source, methods, hz=hz, baseline=baseline, batch_size=batch_size,
                num_workers=workers, seed=seed,
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
        batches = len(source) // batch_size
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
