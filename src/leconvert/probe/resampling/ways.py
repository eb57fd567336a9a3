"""The ways from trajectories to a resampled batch, each with a clock on every stage.

============  ==================================================================================
``baseline``  NumPy, one trajectory after the other, then collated into a padded batch
``batched``   trajectories that lie apart are packed (copied into one table), moved, resampled
``table``     the set was packed once when it was loaded; a batch is a choice of its rows
============  ==================================================================================

All three end with the same thing: padded tensors and lengths on the host, so on a GPU the result's
way back is timed as well. Before a clock is read the device has finished.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leconvert.errors import ProbeError
from leconvert.probe.resampling.baseline import Baseline, collate, grid, resample_one
from leconvert.probe.resampling.kernel import resample_packed
from leconvert.probe.resampling.methods import Methods
from leconvert.probe.resampling.packing import Packed, PackMemory, pack
from leconvert.probe.resampling.sources import TrajectorySource
from leconvert.probe.resampling.values import Trajectory

__all__ = [
    "TORCH_TYPES",
    "BaselineWay",
    "BatchedWay",
    "TableWay",
    "Way",
    "faster_baseline",
    "find_device",
]

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


class Way(ABC):
    """One way; `run` is called for one batch after the other.

    Attributes:
        name: See the module.
        dtype: ``fp32`` or ``bf16``.
        device: Where it resamples.
        kernel_stage: The stage that resamples; loading, packing and copies are the others.
    """

    name: str
    dtype: str = "fp32"
    device: str = "cpu"
    kernel_stage: str = "kernel"

    @abstractmethod
    def run(self, places: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Return the seconds of every stage of a batch, and the batch."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells ways apart."""
        return self.name, self.dtype, self.device


class BaselineWay(Way):
    """See the module.

    Args:
        source: The set.
        methods: Method of every column.
        hz: Targets a second.
        baseline: How the linear part is done.
        preloaded: Whether the set is in memory, so that loading is no stage.
    """

    name = "baseline"
    kernel_stage = "resample"

    def __init__(
        self,
        source: TrajectorySource,
        methods: Methods,
        hz: float,
        baseline: Baseline,
        *,
        preloaded: bool,
    ) -> None:
        self._source, self._methods, self._hz = source, methods, hz
        self._baseline: Baseline = baseline
        self._preloaded = preloaded

    def run(self, places: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Resample one by one, then collate."""
        stages = Stages()
        trajectories = _loaded(self._source, places, stages, preloaded=self._preloaded)
        with stages.timed("resample"):
            results = [
                resample_one(one, grid(one.duration_s, self._hz), self._methods, self._baseline)
                for one in trajectories
            ]
        with stages.timed("collate"):
            batch = collate(results)
            values = {key: torch.from_numpy(array) for key, array in batch.columns.items()}
        return stages.seconds, values


class _OnDevice(Way):
    def __init__(self, methods: Methods, hz: float, dtype: str, device: str) -> None:
        self._methods, self._hz = methods, hz
        self._place = find_device(device)
        self.dtype, self.device = dtype, device

    def _stages(self) -> Stages:
        if self._place.type == "cuda":
            return Stages(wait=lambda: torch.cuda.synchronize(self._place))
        return Stages()

    def _resampled(self, packed: Packed, stages: Stages) -> Values:
        with stages.timed("kernel"):
            values: Values = resample_packed(packed, self._methods, hz=self._hz).values
        if self._place.type != "cpu":
            with stages.timed("copy_out"):
                values = {key: tensor.cpu() for key, tensor in values.items()}
        return values


class BatchedWay(_OnDevice):
    """See the module; arguments as for `BaselineWay`."""

    name = "batched"

    def __init__(
        self,
        source: TrajectorySource,
        methods: Methods,
        hz: float,
        dtype: str,
        device: str,
        *,
        preloaded: bool,
    ) -> None:
        super().__init__(methods, hz, dtype, device)
        self._source, self._preloaded = source, preloaded
        self._memory = PackMemory(pinned=self._place.type == "cuda")

    def run(self, places: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Pack, move (or cast), resample, and fetch the result."""
        stages = self._stages()
        trajectories = _loaded(self._source, places, stages, preloaded=self._preloaded)
        with stages.timed("pack"):
            packed = pack(trajectories, self._memory)
        if self._place.type != "cpu" or self.dtype != "fp32":
            with stages.timed("copy_in"):
                packed = packed.to(self._place, TORCH_TYPES[self.dtype])
        return stages.seconds, self._resampled(packed, stages)


class TableWay(_OnDevice):
    """See the module. The table is packed and moved when this is made, outside of all clocks."""

    name = "table"

    def __init__(
        self, source: TrajectorySource, methods: Methods, hz: float, dtype: str, device: str
    ) -> None:
        super().__init__(methods, hz, dtype, device)
        whole = pack([source.load(place) for place in range(len(source))])
        self._table = whole.to(self._place, TORCH_TYPES[dtype])

    def run(self, places: Sequence[int]) -> tuple[dict[str, float], Values]:
        """Choose rows, resample, and fetch the result."""
        stages = self._stages()
        with stages.timed("pack"):
            packed = self._table.select(places)
        return stages.seconds, self._resampled(packed, stages)


def find_device(name: str) -> torch.device:
    """Return a device.

    Raises:
        ProbeError: It is not there.
    """
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ProbeError(
            f"There is no device {name} that torch {torch.__version__} can use.",
            next_step="Leave --device out, or install a torch build for CUDA.",
        )
    return device


def faster_baseline(source: TrajectorySource, methods: Methods, hz: float) -> Baseline:
    """Return the baseline that takes less time for the first trajectories of a set."""
    some = [source.load(place) for place in range(min(len(source), _CALIBRATION))]
    times: dict[Baseline, float] = {}
    for _ in range(_CALIBRATION_TURNS):
        for baseline in ("columns", "rows"):
            began = time.perf_counter()
            for one in some:
                resample_one(one, grid(one.duration_s, hz), methods, baseline)
            taken = time.perf_counter() - began
            times[baseline] = min(taken, times.get(baseline, np.inf))
    return min(times, key=lambda name: times[name])


def _loaded(
    source: TrajectorySource, places: Sequence[int], stages: Stages, *, preloaded: bool
) -> list[Trajectory]:
    if preloaded:
        return [source.load(place) for place in places]
    with stages.timed("load"):
        return [source.load(place) for place in places]
