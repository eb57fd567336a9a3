"""Trains a small policy from a stream, and goes on exactly where it stopped.

What a training loop needs from `EpisodeStream` is here in one place: a loader a rank, epochs, and
checkpoints that keep the place in the stream. A run that resumes sees the samples, in the order and
in the batches, that it would have seen; on a CPU its losses are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leconvert.errors import UsageError
from leconvert.probe.checkpoints import find_checkpoint, newest_checkpoint
from leconvert.probe.learner import Learner
from leconvert.probe.loader import StreamLoader
from leconvert.probe.policy import policy_shape
from leconvert.probe.processes import Processes, open_processes
from leconvert.probe.train_run import TrainingRun
from leconvert.probe.training import StepFacts, TrainOptions, TrainReport
from leconvert.progress import NO_PROGRESS, Progress

__all__ = ["StepFacts", "TrainOptions", "TrainReport", "train"]


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
        loader: This rank's batches; used as it is, since accelerate would deal them out once more.
        options: How.
        watch: Called after every step.
        stop: Asked after every step; where it says so there is a checkpoint and an error. With
            several ranks it counts at the next checkpoint, which all of them make together.
        progress: Told of every step.

    Raises:
        InterruptedRunError: ``stop`` said so.
        PlanMismatchError: A checkpoint was made with another loader; says what differs.
        ProbeError: No batch can be made, the dataset offers nothing to learn, or a checkpoint is
            damaged.
        StorageError: A checkpoint or the log cannot be written.
        UsageError: The run's folder holds checkpoints, and nothing says to go on from them.
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
