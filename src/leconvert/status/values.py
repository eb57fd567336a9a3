"""What one look at a run shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from leconvert.leasing import BatchStatus

__all__ = [
    "Failure",
    "JobStatus",
    "Liveness",
    "PackerStatus",
    "RunStatus",
    "VideoBytes",
    "WorkerStatus",
]


class Liveness(StrEnum):
    """What an observer knows about a process."""

    RUNNING = "running"
    """It runs on this host, or it gave a sign of life while the observer watched."""
    SILENT = "silent"
    """It gave none for so long that it is probably gone; only a whole lease makes that count."""
    ENDED = "ended"
    """It ran on this host and has ended."""
    UNKNOWN = "unknown"
    """It runs elsewhere, and the observer has not watched for long enough."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that holds a batch, or is not known to have ended.

    Attributes:
        token: The worker.
        host: Its host.
        pid: Its process there.
        liveness: What is known about the process.
        batch_id: The batch that it holds by the lease log, or None.
        silent_seconds: How long this observer has seen the same heartbeat, or, without a batch,
            the same report; 0 at the first look.
        batches: Batches that it finished, by its own account, as the fields below.
        written_bytes: Bytes of their shards.
        bytes_per_second: Source bytes gone through a second, the batch in hand included: as
            observed where there was time to, else its own mean.
        frames_per_second: Frames and rows of finished batches a second, likewise.
    """

    token: str
    host: str
    pid: int
    liveness: Liveness
    batch_id: int | None
    silent_seconds: float
    batches: int = 0
    written_bytes: int = 0
    bytes_per_second: float = 0.0
    frames_per_second: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that was set aside.

    Attributes:
        batch_id: The batch.
        errors: Attempts that ended in an error.
        losses: Attempts that were silently lost.
        host: Who set it aside.
        error: The class of the last error, or None.
        message: What it said.
        next_step: What helps, or None.
    """

    batch_id: int
    errors: int
    losses: int
    host: str
    error: str | None
    message: str
    next_step: str | None


@dataclass(frozen=True, slots=True)
class PackerStatus:
    """The packer, as its journal and its lock file tell.

    Attributes:
        number: How many packers began; 0 if none did.
        step: ``none``, or the newest one's step: ``packing`` (which includes waiting for workers),
            ``swapping``, ``swapped``, ``finished``.
        host: The host of the one that held the lock last, or None.
        pid: Its process there.
        liveness: What is known about that process.
        peak_memory_bytes: The most that the one that proved the result had resident; 0 where none
            came so far.
    """

    number: int = 0
    step: str = "none"
    host: str | None = None
    pid: int | None = None
    liveness: Liveness = Liveness.UNKNOWN
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One submission to a scheduler.

    Attributes:
        engine: Who was asked: ``slurm`` or ``ray``.
        job_id: The scheduler's id.
        role: ``workers`` or ``packer``.
        tasks: How many processes it asked for.
        states: How many of them are in which state, in the scheduler's words; empty where it has
            forgotten them, None where it does not answer, or is Ray, which is not asked.
        reason: Why one waits, in the scheduler's words, or None.
    """

    engine: str
    job_id: str
    role: str
    tasks: int
    states: Mapping[str, int] | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class VideoBytes:
    """Coded video bytes of finished batches.

    Attributes:
        cloned: Shared with the source.
        copied: Copied.
        batches_read: Finished batches whose records were read; the sums are about these.
    """

    cloned: int = 0
    copied: int = 0
    batches_read: int = 0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run at one moment.

    Attributes:
        run_id: The run.
        source: Its source.
        target: Where the result goes.
        batches: Batches of the plan.
        pending: Batches that nobody holds.
        leased: Batches that a worker holds.
        done: Batches with a result.
        failed: Batches that were set aside.
        total_bytes: Source bytes of all batches.
        done_bytes: Source bytes of the done ones.
        total_frames: Rows and camera frames of all batches.
        done_frames: Rows and camera frames of the done ones.
        packed: Whether the result is in place.
        packer: How far the packer is.
        video: Bytes cloned and copied so far.
        bytes_per_second: Of all workers together.
        frames_per_second: Likewise.
        seconds_left: Until the last batch is done, at this rate; None where nothing moves.
        observed_seconds: How long this observer has watched; 0 at the first look, when rates are
            the workers' own means.
        workers: Workers that hold a batch or are not known to have ended, by host and process.
        ended_workers: Workers that said good-bye, or are known to have ended.
        unsettled: Every batch that is not done and was ever claimed.
        failures: Why batches were set aside.
        one_host: The only host that may work on the run; None for any number of hosts.
        jobs: What was submitted to a scheduler, oldest first.
        peak_memory_bytes: The most that one worker's process has had resident, of all that took
            part, on any host; 0 where none has said.
    """

    run_id: str
    source: str
    target: str
    batches: int
    pending: int
    leased: int
    done: int
    failed: int
    total_bytes: int
    done_bytes: int
    total_frames: int
    done_frames: int
    packed: bool
    packer: PackerStatus
    video: VideoBytes
    bytes_per_second: float
    frames_per_second: float
    seconds_left: float | None
    observed_seconds: float
    workers: Sequence[WorkerStatus]
    ended_workers: int
    unsettled: Sequence[BatchStatus]
    failures: Sequence[Failure]
    one_host: str | None = None
    jobs: Sequence[JobStatus] = ()
    peak_memory_bytes: int = 0

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)
