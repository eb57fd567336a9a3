"""What a training is told, and what it tells: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import UsageError
from leconvert.probe.learner import Batch

__all__ = ["StepFacts", "TrainOptions", "TrainReport"]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train.

    Attributes:
        out_dir: Where checkpoints and the log go.
        steps: Optimizer steps in all, those before a resume included.
        windows: ``delta_timestamps`` of the loader's stream, or None.
        learning_rate: Of Adam.
        seed: Of the weights. The order of samples has the stream's.
        log_every: Steps from one line of the log to the next.
        save_every: Steps from one checkpoint to the next; the last step always makes one.
        resume_from: A checkpoint's folder, ``last`` for the newest of ``out_dir``, or None.
        dummy: Only load.
        device: ``cpu`` or ``cuda``.
        use_accelerate: None for accelerate where it is installed.
    """

    out_dir: Path
    steps: int = 200
    windows: Mapping[str, Sequence[float]] | None = None
    learning_rate: float = 1e-3
    seed: int = 0
    log_every: int = 10
    save_every: int = 50
    resume_from: str | None = None
    dummy: bool = False
    device: str = "cpu"
    use_accelerate: bool | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "save_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1.")
        if self.dummy and self.resume_from:
            raise UsageError("--dummy makes no checkpoints, so --resume-from does not go with it.")


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step, for whoever watches.

    Attributes:
        step: Its number, from 1.
        loss: This rank's loss before the step; None with ``dummy``.
        batch: What it was computed from.
        wait_seconds: How long this rank waited for the batch.
        seconds: From the end of the step before to the end of this one.
    """

    step: int
    loss: float | None
    batch: Batch
    wait_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What a run did, as its rank 0 saw it.

    Attributes:
        engine: ``accelerate`` or ``torch``; None with ``dummy``.
        world_size: Ranks.
        device: Where it trained; None with ``dummy``.
        first_step: Steps that were done before, by the run that was resumed.
        steps: Steps that are done now.
        samples: Samples of this rank in this process.
        seconds: Wall clock from the first batch's request to the last step.
        samples_per_s: Samples of this rank a second.
        wait_pct: Share of that time in which the model waited for data.
        first_batch_s: How long the first batch took.
        loss: The last loss; None with ``dummy``.
        checkpoint: The newest checkpoint of this run; None where it made none.
    """

    engine: str | None
    world_size: int
    device: str | None
    first_step: int
    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    wait_pct: float
    first_batch_s: float
    loss: float | None
    checkpoint: str | None
