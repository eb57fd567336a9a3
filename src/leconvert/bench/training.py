"""Trains a small policy from a stream, and resumes exactly where it stopped.

This file is made to be read, copied and adapted: it shows what a training loop needs from
`leconvert.loading`, and uses only options, errors and a lock of the rest. Several processes train
together, each with its own share of the episodes. A checkpoint holds the position of each process
in the stream. A resumed run sees the same samples, in the same order and batches, as an
uninterrupted one; on a CPU its losses are equal to the last bit. ``leconvert probe train`` runs it.

    loader = StreamLoader(EpisodeStream("my_dataset"), batch_size=16, num_workers=4)
    train(loader, TrainOptions(Path("my_run"), steps=1000))
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from math import prod
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import Timeout
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.optim import Optimizer

from leconvert.bench.options import TrainOptions
from leconvert.loading import FeatureMeta, StreamLoader, local_rank
from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    ProbeError,
    StorageError,
    UsageError,
)
from leconvert.support.extras import missing_package
from leconvert.support.values import dataclass
from leconvert.workdir.locks import acquire_lock

Batch = Mapping[str, Any]


class StepFacts(NamedTuple):
    """One step: its number from 1, this rank's loss before it (None with ``dummy``), its batch."""

    step: int
    loss: float | None
    batch: Batch


@dataclass(slots=True)
class TrainReport:
    """The progress of a run, as its rank 0 sees it; updated while it trains."""

    world_size: int = 1
    device: str | None = None  # None with dummy
    first_step: int = 0  # number of steps before the resume
    steps: int = 0  # number of steps done now
    samples: int = 0  # of this rank in this process; so for all below
    seconds: float = 0.0  # from the request for the first batch to the last step
    samples_per_s: float = 0.0
    wait_pct: float = 0.0  # share of that time in which the model waited for data
    first_batch_s: float = 0.0
    loss: float | None = None  # before the last step
    checkpoint: str | None = None  # path of the newest


# The policy: small enough to train anywhere, and using every part of a sample. Replace it by your
# own: a module that takes a batch and returns the loss.

_ACTION, _STATE = "action", "observation.state"
_CHANNELS, _HIDDEN = (16, 32), 128
_MM_PER_METRE = 1000.0


class SmallPolicy(nn.Module):
    """A few convolutions for each camera, whose output and the state go through an MLP.

    Args:
        meta: The features of the dataset.
        windows: The windows of a sample; each step of state and action is a row of numbers.

    Raises:
        ProbeError: The dataset has no action, or nothing to learn from.
    """

    def __init__(
        self, meta: FeatureMeta, windows: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        super().__init__()

        def size(key: str) -> int:
            if key not in meta.features:
                return 0
            steps = len((windows or {}).get(key, (0.0,)))
            return steps * prod(map(int, meta.features[key]["shape"]))

        self.state_size, self.action_size = size(_STATE), size(_ACTION)
        # Colour cameras first.
        self.cameras = {
            key: meta.is_depth(key) for key in sorted(meta.camera_keys, key=meta.is_depth)
        }
        lacks = None
        if not self.action_size:
            lacks = f"no feature {_ACTION} to learn"
        elif not self.cameras and not self.state_size:
            lacks = f"neither cameras nor {_STATE} to learn from"
        if lacks:
            raise ProbeError(
                f"{meta.root} has {lacks}.",
                path=meta.root,
                next_step="Use --dummy, which only loads data.",
            )
        self.encoders = nn.ModuleList(
            _encoder(1 if is_depth else 3) for is_depth in self.cameras.values()
        )
        inputs = _CHANNELS[-1] * len(self.cameras) + self.state_size
        self.head = nn.Sequential(
            nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, self.action_size)
        )

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a batch: the mean squared error of the actions without padding."""
        seen = [
            self._encoded(encoder, batch[key], is_depth=is_depth)
            for encoder, (key, is_depth) in zip(self.encoders, self.cameras.items(), strict=True)
        ]
        if self.state_size:
            seen.append(batch[_STATE].flatten(1).float())
        action = batch[_ACTION].flatten(1).float()
        error = functional.mse_loss(self.head(torch.cat(seen, dim=1)), action, reduction="none")
        padded = batch.get(f"{_ACTION}_is_pad")
        if padded is None:
            return error.mean()
        kept = (~padded).repeat_interleave(error.shape[1] // padded.shape[1], dim=1)
        return (error * kept).sum() / kept.sum().clamp(min=1)

    @staticmethod
    def _encoded(encoder: nn.Module, images: Tensor, *, is_depth: bool) -> Tensor:
        """Return a row of features for each sample; the steps of a window are averaged."""
        pictures = images.flatten(0, -4) if images.dim() > 4 else images
        if is_depth:
            pictures = pictures / _MM_PER_METRE
        elif pictures.dtype == torch.uint8:
            pictures = pictures.float() / 255
        features: Tensor = encoder(pictures).mean(dim=(-2, -1))
        return features.reshape(images.shape[0], -1, features.shape[-1]).mean(dim=1)


def _encoder(channels: int) -> nn.Module:
    first, second = _CHANNELS
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5, stride=4, padding=2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
    )


# The processes that train together. Model and optimizer are handed to accelerate. The loader is
# not: `EpisodeStream` already gives every rank its own samples.


class Ranks:
    """The processes of a run, as one of them sees them.

    Raises:
        ProbeError: There is no CUDA device, or the environment lacks the address of rank 0.
    """

    def __init__(self, rank: int, world_size: int, device: str) -> None:
        wanted = torch.device(device)
        if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
            raise ProbeError(
                f"This machine has no CUDA device for {device}, or torch was built without CUDA.",
                next_step="Use --device cpu, or install a CUDA build of torch.",
            )
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if world_size > 1 and missing:
            raise ProbeError(
                f"{world_size} ranks cannot connect: the environment has no "
                f"{' and '.join(missing)}.",
                next_step="Start them with --gpus, torchrun, accelerate launch or --submit.",
            )
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise missing_package(
                "A training needs accelerate", "train", ", or give --dummy, which only loads"
            ) from error
        self.rank, self.world_size = rank, world_size
        if world_size > 1:  # accelerate knows torchrun's names, not SLURM's and not --rank
            names = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank()}
            os.environ |= {name: str(number) for name, number in names.items()}
        elif wanted.index is not None:
            os.environ["ACCELERATE_TORCH_DEVICE"] = device  # accelerate would take the first GPU
        self._accelerator = Accelerator(cpu=device == "cpu")
        self.device: torch.device = self._accelerator.device

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer wrapped so that all ranks take the same steps."""
        prepared: tuple[nn.Module, Optimizer] = self._accelerator.prepare(model, optimizer)
        return prepared

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, averaged over all ranks."""
        self._accelerator.backward(loss)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank; all ranks must call it."""
        values = [value] * self.world_size
        if self.world_size > 1:
            distributed.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Wait until all ranks have come this far; call it last."""
        if self.world_size > 1:
            distributed.barrier()
            # The end of the process closes a group on CPUs (gloo). The group has a thread that
            # needs Python's lock to drop its last work, and torch 2.11 waits for that thread with
            # the lock held. If it is closed at once, one process in a few hangs.
            if self.device.type == "cuda":
                distributed.destroy_process_group()


# Checkpoints: model, optimizer, step, and the position in the stream.
#
#     OUT_DIR/checkpoints/
#       step-00000120/          complete: it got this name last
#         model.pt              weights
#         optimizer.pt          the optimizer's state
#         training_state.pt     step, generator states
#         dataset_state.pt      the stream's state, the same on all ranks
#       unfinished/             being written, or left by a kill: the next one is written over it
#       unfinished.lock         held by who writes there

_FORMAT, _VERSION = "leconvert-probe-dataset-state", 2
_NAME = re.compile(r"step-(\d{8,})")
_FILES = ("model.pt", "optimizer.pt", "training_state.pt", "dataset_state.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that training needs to resume as if it had never stopped."""

    step: int
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    generator: Tensor  # state of torch's CPU generator
    stream: Mapping[str, Any]  # the loader's state_dict, of any rank


def checkpoint_dir(out_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint after ``step`` steps."""
    return out_dir / "checkpoints" / f"step-{step:08d}"


def newest_checkpoint(out_dir: Path) -> Path | None:
    """Return the complete checkpoint with the most steps, or None."""
    found = (out_dir / "checkpoints").glob("step-*")
    complete = [(int(name[1]), path) for path in found if (name := _NAME.fullmatch(path.name))]
    return max(complete)[1] if complete else None


def find_checkpoint(wanted: str, out_dir: Path) -> Path | None:
    """Return the checkpoint that ``--resume-from`` names; None if ``last`` finds none yet.

    Raises:
        ProbeError: The folder is no complete checkpoint.
    """
    if wanted == "last":
        return newest_checkpoint(out_dir)
    path = Path(wanted)
    missing = [name for name in _FILES if not (path / name).is_file()]
    if missing:
        raise ProbeError(
            f"{path} is not a complete checkpoint. Missing files: {', '.join(missing)}.",
            path=str(path),
            next_step="Give a folder checkpoints/step-…, or `last` for the newest checkpoint.",
        )
    return path


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a reader finds all of it or nothing.

    Raises:
        StorageError: It cannot be written.
    """
    contents: tuple[object, ...] = (
        checkpoint.model,
        checkpoint.optimizer,
        {"step": checkpoint.step, "generator": checkpoint.generator},
        {"format": _FORMAT, "version": _VERSION, "stream": dict(checkpoint.stream)},
    )
    folder = path.with_name("unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder.with_suffix(".lock"))
        # Only the holder of the lock writes there: nobody writes the files that are there any more.
        try:
            folder.mkdir(exist_ok=True)
            for name, content in zip(_FILES, contents, strict=True):
                buffer = io.BytesIO()  # torch says less of a full disk than the system does
                torch.save(content, buffer)
                (folder / name).write_bytes(buffer.getbuffer())
                _sync(folder / name)
            _sync(folder)
            folder.rename(path)
            _sync(path.parent)
        finally:
            if folder.exists():  # it failed: give the space back
                with suppress(OSError):
                    for name in _FILES:
                        (folder / name).unlink(missing_ok=True)
                    folder.rmdir()
            lock.release()
    except Timeout as error:
        raise BusyError(
            f"Another training writes a checkpoint into {path.parent}.",
            path=str(path.parent),
            next_step="Wait for that training, or choose another --out-dir.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"The checkpoint {path} cannot be written: {error.strerror}.",
            path=str(path),
            next_step="Free disk space, then continue with --resume-from last.",
        ) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ProbeError: It is damaged, or of another version.
    """
    try:
        model, optimizer, training, dataset = (
            torch.load(path / name, map_location="cpu", weights_only=True) for name in _FILES
        )
        kind, version = dataset["format"], dataset["version"]
        stream = dataset["stream"] if version == _VERSION else {}
        checkpoint = Checkpoint(training["step"], model, optimizer, training["generator"], stream)
    except Exception as error:  # torch has no common class for errors from damaged files
        raise ProbeError(
            f"The checkpoint {path} cannot be read: {error}.",
            path=str(path),
            next_step="Resume from an older checkpoint by giving its folder.",
        ) from error
    if (kind, version) != (_FORMAT, _VERSION):
        raise ProbeError(
            f"{path / _FILES[-1]} is of version {version}, not {_VERSION}.",
            path=str(path),
            next_step="Continue with the version of leconvert that wrote it.",
        )
    return checkpoint


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class TrainingLog:
    """The file ``train.jsonl`` in a run's folder: a JSON object a line, written by rank 0."""

    def __init__(self, out_dir: Path) -> None:
        self.path = out_dir / "train.jsonl"

    def append(self, **facts: float | None) -> None:
        """Write one line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as log:
            print(json.dumps(facts), file=log)

    def rows(self) -> list[dict[str, float | None]]:
        """Return all complete lines; a crash may have left half a line at the end."""
        lines = self.path.read_text("utf-8").splitlines(True) if self.path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def forget_after(self, step: int) -> None:
        """Remove the lines after a checkpoint's step, since they will come again."""
        if self.path.exists():
            kept = [json.dumps(row) + "\n" for row in self.rows() if (row["step"] or 0) <= step]
            shorter = self.path.with_name(f".{self.path.name}.tmp")
            shorter.write_text("".join(kept), "utf-8")
            _sync(shorter)
            shorter.replace(self.path)


# The loop: batches in, steps, the log, checkpoints.

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def train(
    loader: StreamLoader,
    options: TrainOptions,
    *,
    watch: Callable[[StepFacts], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainReport:
    """Train, or only load.

    After an error or a stop, ``--resume-from last`` continues from the newest checkpoint.

    Args:
        loader: The batches.
        options: The options.
        watch: Called after every step.
        stop: Called after every step. If it returns true, a checkpoint is written and
            `InterruptedRunError` is raised. With several ranks this happens at the next checkpoint,
            which all ranks write together.

    Returns:
        The final progress.

    Raises:
        InterruptedRunError: ``stop`` returned true.
        StorageError: A file cannot be read or written.
    """
    run = _Training(loader, options)
    try:
        run.take_steps(watch, stop)
    except RuntimeError as error:
        # A signal to a whole job may have ended another rank in the middle of a step.
        if not stop():
            raise
        raise run.stopped() from error
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}.", path=error.filename) from error
    if run.ranks is not None:  # after an error nobody waits for ranks that may not have met it
        run.ranks.close()
    return run.report


class _Training:
    """One rank's part of a training."""

    def __init__(self, loader: StreamLoader, options: TrainOptions) -> None:
        self.loader, self.stream, self.options = loader, loader.stream, options
        self.log = TrainingLog(options.out_dir)
        self.report = TrainReport(world_size=self.stream.world_size)
        self.ranks: Ranks | None = None
        if options.dummy:
            return
        self.ranks = Ranks(self.stream.rank, self.stream.world_size, options.device)
        self.report.device = str(self.ranks.device)
        resumed = self._agreed_checkpoint(self.ranks)
        torch.manual_seed(options.seed)
        # The wrappers of all ranks share the parameters of this model.
        self.bare_model = SmallPolicy(self.stream.meta, options.windows).to(self.ranks.device)
        adam = torch.optim.Adam(self.bare_model.parameters(), lr=options.learning_rate)
        self.model, self.optimizer = self.ranks.prepare(self.bare_model, adam)
        if resumed is not None:
            self._resume(resumed)

    def _agreed_checkpoint(self, ranks: Ranks) -> Path | None:
        """Return the checkpoint that all ranks resume from: the one that rank 0 sees.

        On a network file system another rank may see the newest one a little later.
        """
        wanted, out_dir = self.options.resume_from, self.options.out_dir
        newest = newest_checkpoint(out_dir)
        seen = newest, None if wanted is None else find_checkpoint(wanted, out_dir)
        agreed: tuple[Path | None, Path | None] = ranks.gather(seen)[0]
        newest, found = agreed
        if newest is not None and (found is None or not newest.samefile(found)):
            raise UsageError(
                f"{out_dir} contains checkpoints of an earlier run; the newest is {newest.name}.",
                path=str(out_dir),
                next_step="Continue with --resume-from last, or choose another --out-dir.",
            )
        return found

    def _resume(self, path: Path) -> None:
        """Take step, weights and the position in the stream from a checkpoint."""
        checkpoint = read_checkpoint(path)
        self.loader.load_state_dict(checkpoint.stream)
        self.bare_model.load_state_dict(checkpoint.model)
        self.optimizer.load_state_dict(dict(checkpoint.optimizer))
        torch.set_rng_state(checkpoint.generator)
        self.report.first_step = self.report.steps = checkpoint.step
        self.report.checkpoint = str(path)
        if self.stream.rank == 0:
            self.log.forget_after(checkpoint.step)

    def take_steps(self, watch: Callable[[StepFacts], None], stop: Callable[[], bool]) -> None:
        """Take the remaining steps."""
        options, done = self.options, self.report
        batches = _endless(self.loader)
        began = asked = logged = time.perf_counter()
        waited = 0.0
        samples_logged, waited_logged = done.samples, waited
        while done.steps < options.steps:
            batch = next(batches)
            wait = time.perf_counter() - asked
            done.loss = None if self.ranks is None else self._learn(batch, self.ranks)
            asked = time.perf_counter()
            done.steps += 1
            done.samples += len(batch["index"])
            done.seconds = asked - began
            done.first_batch_s = done.first_batch_s or wait
            waited += wait
            done.samples_per_s = done.samples / done.seconds
            done.wait_pct = 100 * waited / done.seconds
            watch(StepFacts(done.steps, done.loss, batch))
            if done.steps % options.log_every == 0 or done.steps == options.steps:
                if self.stream.rank == 0:
                    seconds = asked - logged
                    self.log.append(
                        step=done.steps,
                        epoch=self.loader.epoch,
                        loss=done.loss,
                        samples_per_s=round((done.samples - samples_logged) / seconds, 2),
                        wait_pct=round(100 * (waited - waited_logged) / seconds, 2),
                    )
                logged, samples_logged, waited_logged = asked, done.samples, waited
            if self.ranks is not None:
                self._save_where_due(self.ranks, wants_stop=stop())
                asked = time.perf_counter()  # saving is not waiting for data
            elif stop():
                raise self.stopped()

    def _learn(self, batch: Batch, ranks: Ranks) -> float:
        """Take one step and return this rank's loss before it."""
        tensors = {
            key: value.to(ranks.device, non_blocking=True)
            for key, value in batch.items()
            if isinstance(value, Tensor)
        }
        self.optimizer.zero_grad()
        loss = self.model(tensors)
        ranks.backward(loss)
        self.optimizer.step()
        return float(loss.detach())

    def _save_where_due(self, ranks: Ranks, *, wants_stop: bool) -> None:
        step = self.report.steps
        last = step == self.options.steps
        stops_alone = wants_stop and ranks.world_size == 1
        if not (last or step % self.options.save_every == 0 or stops_alone):
            return
        # The ranks agree here whether to stop: one that left earlier would block the others.
        told = ranks.gather(wants_stop)
        path = checkpoint_dir(self.options.out_dir, step)
        if ranks.rank == 0:
            states = self.bare_model.state_dict(), self.optimizer.state_dict()
            stream = self.loader.state_dict()
            write_checkpoint(path, Checkpoint(step, *states, torch.get_rng_state(), stream))
        self.report.checkpoint = str(path)
        if not last and any(told):
            ranks.close()
            raise self.stopped()

    def stopped(self) -> InterruptedRunError:
        """Return the error for a run that a signal ended."""
        newest = self.report.checkpoint
        kept = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint yet"
        return InterruptedRunError(
            f"Stopped after step {self.report.steps}; {kept}.",
            path=newest,
            next_step="Continue with --resume-from last." if newest else None,
        )


def _endless(loader: StreamLoader) -> Iterator[Batch]:
    """Yield batches, epoch after epoch, from the loader's position on, with all ranks in step."""
    empty = 0
    while empty < 2:  # one epoch may be empty: a checkpoint can be at the very end of an epoch
        epoch = loader.epoch
        left = None if loader.stream.repeat else loader.batches_on_every_rank()
        empty += 1
        batches = islice(loader, left)
        with _signals_held():
            batch = next(batches, None)
        while batch is not None:
            empty = 0
            yield batch
            batch = next(batches, None)
        loader.set_epoch(epoch + 1)
    stream = loader.stream
    raise ProbeError(
        f"Rank {stream.rank} of {stream.world_size} has no samples to load.",
        path=stream.meta.root,
        next_step="Use fewer ranks, or more episodes.",
    )


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals that ask this process to stop, so that new processes do not get them.

    A scheduler sends such signals to all processes of a job. Workers of the loader would end at
    once, and torch would raise an error in the middle of a step. They end with this process anyway.
    """
    # Python starts this helper with the first spawned worker, and unblocks the signals then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
