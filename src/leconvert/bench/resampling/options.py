"""What a run of ``probe resample`` was asked for, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from leconvert.support.errors import UsageError
from leconvert.support.flags import flag

if TYPE_CHECKING:
    from leconvert.loading import Method

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

    dataset: str | None = flag(
        None, "the numeric columns of a v3.0 dataset", "DIR|URL", names=("--dataset", "--root")
    )
    hdf5: str | None = flag(None, "a file of robomimic", "FILE")
    source_hz: float | None = flag(
        None, "samples a second in an --hdf5 file that does not say it", "X", float
    )
    revision: str | None = flag(None, "branch, tag or commit of a --dataset on the Hub", "REV")
    columns: tuple[str, ...] | None = None
    max_trajectories: int | None = flag(
        None,
        "use the first N, or make N synthetic ones (default: 512, or twice the largest batch)",
        "N",
        int,
    )
    hz: float = flag(50.0, "rate to bring everything to (default: 50)", "X", float)
    mode: Mode = flag("compare", "baseline, batched or compare (default)", "NAME")
    batch_sizes: tuple[int, ...] | None = None
    dtypes: tuple[Dtype, ...] = ("fp32",)
    devices: tuple[str, ...] = ("cpu",)
    methods: Mapping[str, Method] = field(default_factory=dict)
    num_epochs: int = flag(1, "passes over the set in each repeat (default: 1)", "N", int)
    repeats: int = flag(7, "number of measurements (default: 7)", "N", int)
    warmup_batches: int = flag(3, "untimed batches before the timing (default: 3)", "N", int)
    preload: bool = flag(True, "read trajectories while timing", names=("--no-preload",))
    seed: int = flag(0, "random seed (default: 0)", "N", int)
    threads: int | None = flag(None, "threads of torch (default: its own choice)", "N", int)
    loaders: bool = flag(False, "compare loaders with workers, too")
    end_to_end: bool = flag(False, "train a small diffusion policy on both paths")
    num_workers: int = flag(2, "workers of --loaders and of --end-to-end (default: 2)", "N", int)
    train_epochs: int = flag(3, "passes of the training (default: 3)", "N", int)

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
