"""Trains a small policy from a stream, and goes on exactly where it stopped.

What a training loop needs from `EpisodeStream` is here in one place: a loader a rank, epochs, and
checkpoints that keep the place in the stream. A run that resumes sees the samples, in the order and
in the batches, that it would have seen; on a CPU its losses are equal to the last bit.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import (
    all_gather_object,
    barrier,
    destroy_process_group,
    init_process_group,
    is_initialized,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from leconvert.errors import InterruptedRunError, ProbeError, StorageError, UsageError
from leconvert.loading import (
    DatasetMeta,
    EpisodeStream,
    StreamLoader,
    dataset_files,
    find_rank,
    load_meta,
)
from leconvert.probe.environment import cores
from leconvert.probe.options import Deltas, RunOptions, mode_deltas, read_deltas
from leconvert.progress import NO_PROGRESS, Progress, Stage
from leconvert.workdir.fs import sync_dir, sync_tree, write_durably
from leconvert.workdir.storage_errors import storage_errors

__all__ = [
    "ACTION",
    "STATE",
    "Camera",
    "Checkpoint",
    "PolicyShape",
    "SmallPolicy",
    "StepFacts",
    "TrainOptions",
    "TrainReport",
    "TrainingLog",
    "checkpoint_dir",
    "find_checkpoint",
    "give_up_later",
    "newest_checkpoint",
    "open_processes",
    "open_stream_loader",
    "policy_shape",
    "read_checkpoint",
    "train",
    "write_checkpoint",
]


# ------------------------------------------------------------------------------------------------
# A policy that is small enough to train anywhere and real enough to need every part of a sample.
#
# A few convolutions a camera and the state go through an MLP that predicts the action. It is
# there to consume data as training does, not to steer a robot.


ACTION = "action"
STATE = "observation.state"

_CHANNELS = (16, 32)
_HIDDEN = 128
_COLOURS = 3
_MM_PER_METRE = 1000.0


class Camera(NamedTuple):
    """One image feature."""

    key: str
    channels: int
    is_depth: bool


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """The sizes that follow from a dataset's features and windows.

    Attributes:
        cameras: Every image feature, in the order of the features.
        state_size: Numbers of ``observation.state`` in a sample, its steps included; 0 without one.
        action_size: Numbers of ``action`` in a sample, its steps included.
    """

    cameras: tuple[Camera, ...]
    state_size: int
    action_size: int


def policy_shape(
    meta: DatasetMeta, windows: Mapping[str, Sequence[float]] | None = None
) -> PolicyShape:
    """Return the policy's sizes."""

    def size(key: str) -> int:
        if key not in meta.features:
            return 0
        steps = len((windows or {}).get(key, (0.0,)))
        return steps * prod(int(length) for length in meta.features[key]["shape"])

    shape = PolicyShape(
        tuple(
            Camera(key, 1, True) if meta.is_depth(key) else Camera(key, _COLOURS, False)
            for key in meta.camera_keys
        ),
        size(STATE),
        size(ACTION),
    )
    for is_missing, what in (
        (not shape.action_size, f"no feature {ACTION} to learn"),
        (not shape.cameras and not shape.state_size, f"neither cameras nor {STATE} to learn from"),
    ):
        if is_missing:
            raise ProbeError(
                f"{meta.root} has {what}.", path=meta.root, next_step="Use --dummy: it only loads."
            )
    return shape


class SmallPolicy(nn.Module):
    """Predicts the action of a sample.

    Args:
        shape: The sizes.
    """

    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.shape = shape
        self.eyes = nn.ModuleList(_eye(camera.channels) for camera in shape.cameras)
        inputs = _CHANNELS[-1] * len(shape.cameras) + shape.state_size
        self.head = nn.Sequential(
            nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, shape.action_size)
        )

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a batch: the mean squared error of the actions that are no padding."""
        seen = [
            _look(eye, batch[camera.key], is_depth=camera.is_depth)
            for eye, camera in zip(self.eyes, self.shape.cameras, strict=True)
        ]
        if self.shape.state_size:
            seen.append(batch[STATE].flatten(1).float())
        action = batch[ACTION].flatten(1).float()
        error = functional.mse_loss(self.head(torch.cat(seen, dim=1)), action, reduction="none")
        padded = batch.get(f"{ACTION}_is_pad")
        if padded is None:
            return error.mean()
        kept = ~padded.unsqueeze(-1).expand(*padded.shape, error.shape[1] // padded.shape[1])
        kept = kept.flatten(1)
        return (error * kept).sum() / kept.sum().clamp(min=1)


def _eye(channels: int) -> nn.Module:
    first, second = _CHANNELS
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5, stride=4, padding=2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
    )


def _look(eye: nn.Module, images: Tensor, *, is_depth: bool) -> Tensor:
    """Return a row of features a sample; the steps of a window are averaged."""
    pictures = images.flatten(0, -4) if images.dim() > 4 else images
    if is_depth:
        pictures = pictures / _MM_PER_METRE
    elif pictures.dtype == torch.uint8:
        pictures = pictures.float() / 255
    features: Tensor = eye(pictures).mean(dim=(-2, -1))
    return features.reshape(images.shape[0], -1, features.shape[-1]).mean(dim=1)


# ------------------------------------------------------------------------------------------------
# Checkpoints of training: model, optimizer, step, and the place in the stream of every rank.
#
#     OUT_DIR/checkpoints/
#       step-00000120/          complete: it got this name last
#         model.pt              weights
#         optimizer.pt          the optimizer's state
#         training_state.pt     step, generator states
#         dataset_state.pt      the stream's state, one a rank
#         given-up              only where a run went on from further back; empty
#       .step-00000240.1f….tmp/ being written, or left by a crash; never read
#
# A folder is written under another name, forced to the disk, and renamed; so what
# `newest_checkpoint` finds is whole, and its four files belong together.
#
# Who resumes from further back gives up what came after: those checkpoints stay, and are marked,
# so that ``last`` means one that led to where the training is. A new one of the same name has no
# mark.


_FORMAT = "leconvert-probe-dataset-state"
_VERSION = 1
_NAME = re.compile(r"step-(\d{8,})")
_FILES = ("model.pt", "optimizer.pt", "training_state.pt", "dataset_state.pt")
_NEWEST = "last"
_GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that training needs to go on as if it had never stopped.

    Attributes:
        step: Optimizer steps done.
        model: The model's ``state_dict``.
        optimizer: The optimizer's ``state_dict``.
        generator: State of torch's CPU generator.
        streams: The loader's ``state_dict`` of every rank, in order of rank.
    """

    step: int
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    generator: torch.Tensor
    streams: Sequence[Mapping[str, Any]]


def checkpoint_dir(out_dir: Path, step: int) -> Path:
    """Return where the checkpoint after ``step`` steps belongs."""
    return out_dir / "checkpoints" / f"step-{step:08d}"


def newest_checkpoint(out_dir: Path, *, even_given_up: bool = False) -> Path | None:
    """Return the complete checkpoint with the most steps, or None."""
    for _, path in reversed(_checkpoints(out_dir)):
        if even_given_up or not (path / _GIVEN_UP).exists():
            return path
    return None


def give_up_later(out_dir: Path, resumed: Path, step: int) -> None:
    """Mark the checkpoints of a run that lie after the one that it goes on from.

    A crash in the middle leaves the newest one unmarked, as if nobody had resumed.
    """
    with storage_errors(out_dir):
        for number, path in _checkpoints(out_dir):
            if number > step:
                (path / _GIVEN_UP).touch()
                sync_dir(path)
            elif path.samefile(resumed):
                (path / _GIVEN_UP).unlink(missing_ok=True)
                sync_dir(path)


def _checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Return steps and folders of all complete checkpoints, by steps."""
    folder = out_dir / "checkpoints"
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(
        (int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))
    )


def find_checkpoint(wanted: str, out_dir: Path) -> Path | None:
    """Return the checkpoint that ``--resume-from`` means.

    Returns:
        The folder; None where ``last`` finds no checkpoint yet and training begins.
    """
    if wanted == _NEWEST:
        return newest_checkpoint(out_dir)
    path = Path(wanted)
    missing = [name for name in _FILES if not (path / name).is_file()]
    if missing:
        raise ProbeError(
            f"{path} is no checkpoint: it lacks {', '.join(missing)}.",
            path=str(path),
            next_step=f"Name a folder checkpoints/step-…, or `{_NEWEST}` for the newest one.",
        )
    return path


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a reader finds all of it or nothing."""
    contents: tuple[object, ...] = (
        checkpoint.model,
        checkpoint.optimizer,
        {"step": checkpoint.step, "generator": checkpoint.generator},
        {"format": _FORMAT, "version": _VERSION, "ranks": list(checkpoint.streams)},
    )
    token = os.urandom(6).hex()
    unfinished = path.with_name(f".{path.name}.{token}.tmp")
    replaced = path.with_name(f".{path.name}.{token}.old")
    try:
        unfinished.mkdir(parents=True)
        for name, content in zip(_FILES, contents, strict=True):
            buffer = io.BytesIO()
            torch.save(content, buffer)
            (unfinished / name).write_bytes(buffer.getbuffer())
        sync_tree(unfinished)
        if path.exists():  # of a run that was resumed from further back
            path.rename(replaced)
        unfinished.rename(path)
        sync_dir(path.parent)
    except OSError as error:
        if not path.exists():
            with suppress(OSError):  # there is none, most of the time
                replaced.rename(path)
        raise StorageError(
            f"The checkpoint {path} cannot be written: {error.strerror}.",
            path=str(path),
            next_step="Make room, then go on with --resume-from last.",
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint."""
    try:
        model, optimizer, training, dataset = (
            torch.load(path / name, map_location="cpu", weights_only=True) for name in _FILES
        )
        if (dataset["format"], dataset["version"]) != (_FORMAT, _VERSION):
            raise ProbeError(
                f"{path / _FILES[-1]} is of version {dataset['version']}, not {_VERSION}.",
                path=str(path),
                next_step="Go on with the leconvert that wrote it.",
            )
        return Checkpoint(
            training["step"], model, optimizer, training["generator"], dataset["ranks"]
        )
    except ProbeError:
        raise
    except Exception as error:  # torch names no common class for what a damaged file raises
        raise ProbeError(
            f"The checkpoint {path} cannot be read: {error}.",
            path=str(path),
            next_step="Resume from an older one, by its folder.",
        ) from error


# ------------------------------------------------------------------------------------------------
# How the processes of one training run work together: by accelerate where it is installed.
#
# Only model and optimizer are handed over. The loader is not: `EpisodeStream` already gives every
# rank its own episodes, and accelerate would deal them out a second time.


_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")


class Processes(Protocol):
    """The processes of a run, as one of them sees them."""

    rank: int
    world_size: int
    device: torch.device
    engine: str

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer so wrapped that all ranks take the same steps."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, averaged over all ranks."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank; all ranks must ask."""
        ...

    def close(self) -> None:
        """Wait for all ranks to come this far; the last that is asked of them."""
        ...


def open_processes(
    *, rank: int, world_size: int, device: str, use_accelerate: bool | None = None
) -> Processes:
    """Join the other processes of the run."""
    if device != "cpu" and not torch.cuda.is_available():
        raise ProbeError(
            "There is no CUDA device, or this torch was built without CUDA.",
            next_step="Use --device cpu, or install a CUDA build of torch.",
        )
    missing = [name for name in _RENDEZVOUS if not os.environ.get(name)]
    if world_size > 1 and missing:
        raise ProbeError(
            f"{world_size} ranks cannot meet without {' and '.join(missing)} in the environment.",
            next_step="Start them with torchrun, accelerate launch or probe train --submit.",
        )
    if use_accelerate is None:
        use_accelerate = find_spec("accelerate") is not None
    chosen = AccelerateProcesses if use_accelerate else TorchProcesses
    return chosen(rank=rank, world_size=world_size, device=device)


class TorchProcesses:
    """Plain torch: DistributedDataParallel where there are several ranks."""

    engine = "torch"

    def __init__(self, *, rank: int, world_size: int, device: str) -> None:
        self.rank, self.world_size = rank, world_size
        self.device = (
            torch.device("cuda", _local_rank()) if device == "cuda" else torch.device(device)
        )
        if world_size > 1 and not is_initialized():
            backend = "gloo" if device == "cpu" else "nccl"
            init_process_group(backend, rank=rank, world_size=world_size)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return the model as a replica of all ranks'; parameters stay the same objects."""
        if self.world_size == 1:
            return model, optimizer
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices), optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Wait for all ranks to come this far."""
        if self.world_size > 1:
            barrier()
            _leave_group(self.device)


class AccelerateProcesses:
    """Hugging Face accelerate."""

    engine = "accelerate"

    def __init__(self, *, rank: int, world_size: int, device: str) -> None:
        from accelerate import Accelerator

        if world_size > 1:
            # accelerate knows torchrun's names, not those of SLURM nor of --rank.
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": str(_local_rank()),
            }
        self._accelerator = Accelerator(cpu=device == "cpu")
        self.rank, self.world_size = rank, world_size
        self.device: torch.device = self._accelerator.device

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer as accelerate wraps them."""
        prepared: tuple[nn.Module, Optimizer] = self._accelerator.prepare(model, optimizer)
        return prepared

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        self._accelerator.backward(loss)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        from accelerate.utils import gather_object

        gathered: list[Any] = gather_object([value])
        return gathered

    def close(self) -> None:
        """Wait for all ranks to come this far."""
        self._accelerator.wait_for_everyone()
        if self.world_size > 1:
            _leave_group(self.device)


def _leave_group(device: torch.device) -> None:
    """Take the group of ranks apart, or leave it to the end of the process.

    A group on CPUs (gloo) has a thread that needs Python's lock to drop its last work, and torch
    2.11 waits for that thread with the lock held: taken apart at once, one process in a few hangs.
    """
    if device.type == "cuda":
        destroy_process_group()


def _local_rank() -> int:
    """Return this process's number on its node, as torchrun or SLURM say it."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


# ------------------------------------------------------------------------------------------------
# Model and optimizer of one rank: a step, and what a checkpoint keeps of them.


Batch = Mapping[str, Any]


class Learner:
    """A small policy and its optimizer, equal on all ranks after every step.

    Args:
        shape: The sizes of a sample.
        processes: The ranks.
        seed: Of the weights.
        learning_rate: Of Adam.
    """

    def __init__(
        self,
        shape: PolicyShape,
        processes: Processes,
        *,
        seed: int,
        learning_rate: float,
    ) -> None:
        self.processes = processes
        torch.manual_seed(seed)
        self._bare = SmallPolicy(shape).to(processes.device)
        self._model, self._optimizer = processes.prepare(
            self._bare, torch.optim.Adam(self._bare.parameters(), lr=learning_rate)
        )

    def learn(self, batch: Batch) -> float:
        """Take one step and return this rank's loss before it."""
        device = self.processes.device
        tensors = {
            key: value.to(device, non_blocking=True)
            for key, value in batch.items()
            if isinstance(value, torch.Tensor)
        }
        self._optimizer.zero_grad()
        loss = self._model(tensors)
        self.processes.backward(loss)
        self._optimizer.step()
        return float(loss.detach())

    def checkpoint(self, step: int, streams: Sequence[Mapping[str, Any]]) -> Checkpoint:
        """Return everything that a later process needs."""
        return Checkpoint(
            step=step,
            model=self._bare.state_dict(),
            optimizer=self._optimizer.state_dict(),
            generator=torch.get_rng_state(),
            streams=streams,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what the checkpoint holds; the wrappers of all ranks share these parameters."""
        self._bare.load_state_dict(checkpoint.model)
        self._optimizer.load_state_dict(dict(checkpoint.optimizer))
        torch.set_rng_state(checkpoint.generator)


# ------------------------------------------------------------------------------------------------
# What a training is told, and what it tells: plain values.


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


# ------------------------------------------------------------------------------------------------
# The log of a training: a JSON object a line, written by rank 0.


_LOG_NAME = "train.jsonl"


class TrainingLog:
    """The file ``train.jsonl`` in a run's folder.

    Args:
        out_dir: The folder; made with the first line.
    """

    def __init__(self, out_dir: Path) -> None:
        self.path = out_dir / _LOG_NAME

    def append(self, **facts: float | None) -> None:
        """Write one line."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as log:
                print(json.dumps(facts), file=log)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}.", path=str(self.path)) from error

    def rows(self) -> list[dict[str, float | None]]:
        """Return all whole lines; a crash may have left half of one at the end."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def forget_after(self, step: int) -> None:
        """Take out what came after a checkpoint's step, since it will come again."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if (row["step"] or 0) <= step]
        write_durably(self.path, "".join(f"{json.dumps(row)}\n" for row in kept).encode())


# ------------------------------------------------------------------------------------------------
# The loop of a training: batches in, steps, the log, checkpoints.


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass(slots=True)
class _Pace:
    """What came since a line of the log."""

    began: float
    samples: int = 0
    waited: float = 0.0


class TrainingRun:
    """One rank's part of a training, from the first batch to the last step.

    Args:
        loader: This rank's batches.
        options: How to train.
        learner: Model and optimizer; None only loads.
    """

    def __init__(
        self,
        loader: StreamLoader,
        options: TrainOptions,
        learner: Learner | None,
    ) -> None:
        self._loader, self._stream = loader, loader.stream
        self._options, self._learner = options, learner
        self._log = TrainingLog(options.out_dir)
        self._first_step = self._step = 0
        self._samples = 0
        self._waited = self._first_batch = 0.0
        self._loss: float | None = None
        self._checkpoint: Path | None = None

    def resume(self, path: Path) -> None:
        """Take step, weights and the place in the stream from a checkpoint.

        What the run's folder holds of later steps is given up: it will come again.
        """
        assert self._learner is not None
        checkpoint = read_checkpoint(path)
        ranks = len(checkpoint.streams)
        if ranks != self._stream.world_size:
            raise ProbeError(
                f"The checkpoint {path} is of {ranks} ranks, not {self._stream.world_size}.",
                path=str(path),
                next_step=f"Go on with {ranks} ranks.",
            )
        self._loader.load_state_dict(checkpoint.streams[self._stream.rank])
        self._learner.restore(checkpoint)
        self._first_step = self._step = checkpoint.step
        self._checkpoint = path
        if self._stream.rank == 0:
            give_up_later(self._options.out_dir, path, checkpoint.step)
            self._log.forget_after(checkpoint.step)

    def go(
        self, watch: Callable[[StepFacts], None], stop: Callable[[], bool], progress: Progress
    ) -> TrainReport:
        """Take the steps that are left."""
        left = self._options.steps - self._step
        began = time.perf_counter()
        if left > 0:
            try:
                with progress.stage("train", left, "steps") as stage:
                    self._take_steps(watch, stop, stage)
            except RuntimeError as error:
                # A signal to a whole job may have ended another rank in the middle of a step.
                if not stop():
                    raise
                raise self._stopped() from error
        seconds = time.perf_counter() - began
        learner = self._learner
        return TrainReport(
            engine=None if learner is None else learner.processes.engine,
            world_size=self._stream.world_size,
            device=None if learner is None else str(learner.processes.device),
            first_step=self._first_step,
            steps=self._step,
            samples=self._samples,
            seconds=seconds,
            samples_per_s=self._samples / seconds if self._samples else 0.0,
            wait_pct=100 * self._waited / seconds if self._samples else 0.0,
            first_batch_s=self._first_batch,
            loss=self._loss,
            checkpoint=None if self._checkpoint is None else str(self._checkpoint),
        )

    def _take_steps(
        self, watch: Callable[[StepFacts], None], stop: Callable[[], bool], stage: Stage
    ) -> None:
        options = self._options
        batches = _endless(self._loader)
        asked = time.perf_counter()
        pace = _Pace(asked)
        while self._step < options.steps:
            batch = next(batches)
            wait = time.perf_counter() - asked
            self._loss = None if self._learner is None else self._learner.learn(batch)
            now = time.perf_counter()
            self._first_batch = self._first_batch or wait
            self._waited += wait
            samples = len(batch["index"])
            self._samples += samples
            pace.samples += samples
            pace.waited += wait
            self._step += 1
            stage.advance(1)
            watch(StepFacts(self._step, self._loss, batch, wait, now - asked))
            asked = now
            if self._step % options.log_every == 0 or self._step == options.steps:
                self._write_log(pace, now)
                pace = _Pace(now)
            if self._learner is not None:
                self._save_where_due(self._learner, wants_stop=stop())
                asked = time.perf_counter()  # saving is no waiting for data
            elif stop():
                raise self._stopped()

    def _write_log(self, pace: _Pace, now: float) -> None:
        if self._stream.rank != 0:
            return
        seconds = now - pace.began
        self._log.append(
            step=self._step,
            epoch=self._loader.epoch,
            loss=self._loss,
            samples_per_s=round(pace.samples / seconds, 2),
            wait_pct=round(100 * pace.waited / seconds, 2),
        )

    def _save_where_due(self, learner: Learner, *, wants_stop: bool) -> None:
        last = self._step == self._options.steps
        alone = self._stream.world_size == 1
        if not (last or self._step % self._options.save_every == 0 or (wants_stop and alone)):
            return
        # The ranks agree here whether they stop: one that left earlier would hold up the others.
        facts = learner.processes.gather((self._loader.state_dict(), wants_stop))
        path = checkpoint_dir(self._options.out_dir, self._step)
        if self._stream.rank == 0:
            write_checkpoint(path, learner.checkpoint(self._step, [state for state, _ in facts]))
        self._checkpoint = path
        if not last and any(stopping for _, stopping in facts):
            learner.processes.close()
            raise self._stopped()

    def _stopped(self) -> InterruptedRunError:
        newest = self._checkpoint
        kept = (
            "there is no checkpoint yet" if newest is None else f"the newest checkpoint is {newest}"
        )
        return InterruptedRunError(
            f"Stopped after step {self._step}; {kept}.",
            path=None if newest is None else str(newest),
            next_step=None if newest is None else "Go on with --resume-from last.",
        )


def _endless(loader: StreamLoader) -> Iterator[Batch]:
    """Yield batches, epoch after epoch, from wherever the loader stands."""
    empty = 0
    while empty < 2:  # one may be: a checkpoint can stand at the very end of an epoch
        empty += 1
        batches = iter(loader)
        with _signals_held():
            batch = next(batches, None)
        while batch is not None:
            empty = 0
            yield batch
            batch = next(batches, None)
    stream = loader.stream
    raise ProbeError(
        f"Rank {stream.rank} of {stream.world_size} has no samples to load.",
        path=stream.meta.root,
        next_step="Use fewer ranks, or more episodes.",
    )


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let no signal that asks this process to stop reach processes that are started meanwhile.

    A scheduler sends such signals to all processes of a job. Workers of the loader would end at
    once, and torch then raises an error in the middle of a step; they end with this process anyway.
    """
    # Python starts this helper with the first spawned worker, and lets the signals through then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ------------------------------------------------------------------------------------------------
# Trains a small policy from a stream, and goes on exactly where it stopped.


def train(
    loader: StreamLoader,
    options: TrainOptions,
    *,
    watch: Callable[[StepFacts], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = NO_PROGRESS,
) -> TrainReport:
    """Train, or only load.

    Args:
        watch: Called after every step.
        stop: Asked after every step; where it says so there is a checkpoint and an error. With
            several ranks it counts at the next checkpoint, which all of them make together.
    """
    if options.dummy:
        return TrainingRun(loader, options, None).go(watch, stop, progress)
    stream = loader.stream
    processes = open_processes(
        rank=stream.rank,
        world_size=stream.world_size,
        device=options.device,
        use_accelerate=options.use_accelerate,
    )
    resumed = _agreed_checkpoint(options, processes)
    learner = Learner(
        policy_shape(stream.meta, options.windows),
        processes,
        seed=options.seed,
        learning_rate=options.learning_rate,
    )
    run = TrainingRun(loader, options, learner)
    if resumed is not None:
        run.resume(resumed)
    report = run.go(watch, stop, progress)
    # After an error nobody waits for ranks that may not have met it.
    processes.close()
    return report


def _agreed_checkpoint(options: TrainOptions, processes: Processes) -> Path | None:
    """Return what all ranks resume from; the newest one as rank 0 sees it.

    On a network file system another rank may not see the newest one yet when it lists the folder;
    it finds it by its name.
    """
    if options.resume_from is not None:
        found = find_checkpoint(options.resume_from, options.out_dir)
    else:
        found = newest_checkpoint(options.out_dir, even_given_up=True)
    agreed: Path | None = processes.gather(found)[0]
    if agreed is not None and options.resume_from is None:
        raise UsageError(
            f"{options.out_dir} holds checkpoints of an earlier run, the newest {agreed.name}.",
            path=str(options.out_dir),
            next_step="Go on with --resume-from last, or choose another --out-dir.",
        )
    return agreed


# ------------------------------------------------------------------------------------------------
# The loader that a training is given, made of the options of a run.


# Options of a stream that are its own to choose where nobody says.
_LEFT_TO_THE_STREAM = ("episode_pool_size", "video_decoder_cache_size", "video_fetch_workers")


def open_stream_loader(options: RunOptions) -> tuple[StreamLoader, Deltas]:
    """Return the batches of this rank, and the windows of their samples."""
    rank, world_size = find_rank(options.rank, options.world_size)
    options = options.placed().resolved(cores=cores(), cameras=1, rank=rank, world_size=world_size)
    windows = _windows(options)
    chosen: dict[str, Any] = {
        name: getattr(options, name)
        for name in _LEFT_TO_THE_STREAM
        if getattr(options, name) is not None
    }
    stream = EpisodeStream(
        str(options.root),
        data_files_root=options.data_files_root,
        revision=options.revision,
        delta_timestamps=windows or None,
        seed=options.seed,
        decode_device=options.decode_device,
        rank=rank,
        world_size=world_size,
        num_partitions=options.num_partitions,
        partition_index=options.partition_index,
        max_episodes=options.max_episodes,
        **chosen,
    )
    workers = options.num_workers or 0
    loader = StreamLoader(
        stream,
        batch_size=options.batch_size,
        num_workers=workers,
        prefetch_factor=options.prefetch_factor if workers else None,
        pin_memory=options.device != "cpu",
        persistent_workers=workers > 0,
    )
    return loader, windows


def _windows(options: RunOptions) -> Deltas:
    if options.mode == "single" and options.deltas is None:
        return {}
    meta = load_meta(dataset_files(str(options.root), revision=options.revision))
    features = tuple(meta.features)
    if options.deltas is not None:
        return read_deltas(Path(options.deltas), features)
    return mode_deltas(options.mode, meta.camera_keys, features, float(meta.fps))
