"""The loop of a training: batches in, steps, the log, checkpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

from leconvert.errors import InterruptedRunError, ProbeError
from leconvert.probe.checkpoints import (
    checkpoint_dir,
    give_up_later,
    read_checkpoint,
    write_checkpoint,
)
from leconvert.probe.learner import Batch, Learner
from leconvert.probe.loader import StreamLoader
from leconvert.probe.training import StepFacts, TrainOptions, TrainReport
from leconvert.probe.training_log import TrainingLog
from leconvert.progress import Progress, Stage

__all__ = ["TrainingRun"]

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
