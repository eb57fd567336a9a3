"""What a run of ``probe resample`` was asked for, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from leconvert.errors import UsageError
from leconvert.probe.resampling.baseline import BASELINES
from leconvert.probe.resampling.methods import Method

__all__ = ["DTYPES", "GPU_BATCH_SIZES", "MODES", "USUAL_BATCH_SIZES", "ResampleOptions"]

Mode = Literal["baseline", "batched", "compare"]
Dtype = Literal["fp32", "bf16"]

MODES: tuple[Mode, ...] = ("baseline", "batched", "compare")
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")

USUAL_BATCH_SIZES = (16, 32, 64, 128)
GPU_BATCH_SIZES = (16, 64, 256, 1024, 4096)

_AUTO = "auto"
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
    """The options of one run.

    Attributes:
        dataset: Folder or URL of a v3.0 dataset; or
        hdf5: a file of trajectories; without both the synthetic set is used.
        revision: Of a dataset on the Hub.
        columns: Features to take; None for all.
        max_trajectories: Use so many; of the synthetic set this is how many there are.
        jitter: Of the synthetic set's clocks.
        hz: Rate to bring everything to.
        mode: What is timed.
        baseline: Which one; ``auto`` takes the faster.
        batch_sizes: Trajectories of a batch; each is measured. None takes the usual ones that the
            set is large enough for, see `sized`.
        dtypes: Types of the batched side; each is measured.
        devices: Where the batched side runs: ``cpu``, ``cuda`` or ``cuda:N``; each is measured.
        methods: By column, what is not to be resampled as its type says.
        num_epochs: Passes over the set that make one repeat.
        repeats: How often everything is measured; medians are reported.
        warmup_batches: Batches before the timing.
        preload: Whether the set is in memory before the timing; otherwise reading it is timed too.
        seed: Of the synthetic set, the order and the policy.
        threads: Threads of torch; None leaves what torch chose.
        loaders: Compare loaders with workers, too.
        end_to_end: Train a small diffusion policy on both data paths, too.
        num_workers: Workers of those loaders, and of that training.
        train_epochs: Passes of that training.
    """

    dataset: str | None = None
    hdf5: str | None = None
    revision: str | None = None
    columns: tuple[str, ...] | None = None
    max_trajectories: int | None = None
    jitter: float = 0.0
    hz: float = 50.0
    mode: Mode = "compare"
    baseline: str = _AUTO
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
            ("baseline", (self.baseline,), (_AUTO, *BASELINES)),
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
        """Return these options with batch sizes for a set of so many trajectories.

        Raises:
            UsageError: A size that was asked for is larger than the set.
        """
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
