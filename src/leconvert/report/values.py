"""What a report tells, as plain values: no I/O, no HTML.

Points in time are seconds since 1970 in UTC, on the clock that `Story.clocks` speaks of; durations
are seconds of the host that measured them. None is always "not known".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from leconvert.model import Finding
from leconvert.repairs import Repairs
from leconvert.workdir.invocation import Invocation

__all__ = [
    "Attempt",
    "AttemptEnd",
    "BatchCounts",
    "Packer",
    "Story",
    "StoryState",
    "StreamFigures",
    "Verification",
]


class StoryState(StrEnum):
    """How far a run is, as far as its records say."""

    FINISHED = "finished"
    DIFFERS = "result differs from its source"
    FAILED = "failed"
    TO_PACK = "waiting to be packed"
    UNFINISHED = "not finished"
    RESULT_ONLY = "result only"


class AttemptEnd(StrEnum):
    """How one worker's try at one batch ended."""

    DONE = "done"
    ERROR = "error"
    LOST = "lost"
    HANDED_BACK = "handed back"
    LATE = "late"
    VOID = "void"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One worker's try at one batch.

    Attributes:
        batch_id: The batch.
        generation: The claim's number, from 1.
        token: The worker.
        host: Its host.
        pid: Its process there.
        end: How it ended.
        began: When it began.
        ended: When it ended; for what is held or was lost the last sign of life.
        seconds: How long it took, on a monotonic clock.
        source_bytes: Source bytes of the batch.
        frames: Frames and rows of the batch.
        message: What was said about its end.
    """

    batch_id: int
    generation: int
    token: str
    host: str
    pid: int
    end: AttemptEnd
    began: float | None = None
    ended: float | None = None
    seconds: float | None = None
    source_bytes: int = 0
    frames: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Batches by state."""

    total: int
    done: int
    failed: int
    held: int

    @property
    def pending(self) -> int:
        """Batches that nobody holds and that have no result."""
        return self.total - self.done - self.failed - self.held


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One stream before and after.

    Attributes:
        stream: ``data`` or ``videos/<camera key>``.
        source_files: Files of the source.
        source_bytes: Their size.
        result_files: Files of the result that are there, or whose shards are written.
        planned_files: Files that the result shall have.
        result_bytes: Size of those that are there.
    """

    stream: str
    source_files: int | None
    source_bytes: int | None
    result_files: int
    planned_files: int
    result_bytes: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What was proven before the result took its place.

    Attributes:
        depth: ``structure``, ``bytes`` or ``none``.
        ok: Whether nothing differed.
        counts: Files, episodes, rows and camera frames that were compared; empty where unknown.
        seconds: How long it took.
        differences: How many there were.
        shown: The first of them.
    """

    depth: str
    ok: bool | None
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None
    differences: int = 0
    shown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Packer:
    """One packer: its number, where it ran, how far it came, and when it reached each step."""

    generation: int
    host: str
    pid: int
    step: str
    times: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that a report tells.

    Attributes:
        name: The dataset's name.
        state: How far the run is.
        generated: When this was gathered.
        target: Where the result stands or will stand.
        source: The v2.x dataset; None where only the result is known.
        kept_source: Where a replaced dataset is kept.
        work_dir: The run's shared folder; None where only the result is known.
        run_id: The run.
        episodes: Episodes of the result.
        frames: Frames of the result.
        fps: Frame rate, as the decimal that the dataset gives.
        streams: Each stream before and after.
        other_files: Files of the result beside the streams: tables under ``meta/`` and the like.
        other_bytes: Their size.
        options: The plan's options.
        findings: What the scan found; None where it is not known.
        repairs: What the conversion changed.
        verification: What was proven; None where it is not known.
        batches: Batches by state; None where only the result is known.
        set_aside: Batches that used up their tries and have no result.
        attempts: Every try at every batch, by batch and claim.
        packers: Every packer.
        invocations: How every process was called.
        planned_versions: Versions of the libraries of the planner.
        clocks: For each host how far the work dir's clock was ahead of its own, in seconds.
        cloned_bytes: Coded video bytes that are shared with the source.
        copied_bytes: Coded video bytes that were copied.
        worker_peak_bytes: The most that one worker's process had resident; None if not known.
        packer_peak_bytes: The most that the packer's had, before the swap; None if not known.
        probe: The probe's document, or what it said when it could not measure.
        remarks: What could not be read.
    """

    name: str
    state: StoryState
    generated: datetime
    target: str
    source: str | None = None
    kept_source: str | None = None
    work_dir: str | None = None
    run_id: str | None = None
    episodes: int = 0
    frames: int = 0
    fps: str = ""
    streams: Sequence[StreamFigures] = ()
    other_files: int = 0
    other_bytes: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    findings: Sequence[Finding] | None = None
    repairs: Repairs = field(default_factory=Repairs)
    verification: Verification | None = None
    batches: BatchCounts | None = None
    set_aside: Collection[int] = ()
    attempts: Sequence[Attempt] = ()
    packers: Sequence[Packer] = ()
    invocations: Sequence[Invocation] = ()
    planned_versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    cloned_bytes: int = 0
    copied_bytes: int = 0
    worker_peak_bytes: int | None = None
    packer_peak_bytes: int | None = None
    probe: Mapping[str, Any] | None = None
    remarks: Sequence[str] = ()

    @property
    def source_bytes(self) -> int | None:
        """Size of the source's data and video files, or None where it is not known."""
        sizes = [stream.source_bytes for stream in self.streams if stream.source_bytes is not None]
        return sum(sizes) if sizes else None

    @property
    def source_files(self) -> int | None:
        """Number of the source's data and video files, or None where it is not known."""
        files = [stream.source_files for stream in self.streams if stream.source_files is not None]
        return sum(files) if files else None

    @property
    def result_bytes(self) -> int:
        """Size of the result's data and video files that are there."""
        return sum(stream.result_bytes for stream in self.streams)

    @property
    def result_files(self) -> int:
        """Number of the result's data and video files that are there."""
        return sum(stream.result_files for stream in self.streams)
