"""The progress of a run: batches, workers with their speed, and a scheduler's jobs.

One look reads the records of the work dir and writes nothing. Later looks read only new records.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from leconvert.run.engines.slurm import ElementState, job_states
from leconvert.run.leasing import BatchState, BatchStatus, Board, LeaseStore, read_done, read_failed
from leconvert.support.errors import LeconvertError, WorkDirError
from leconvert.support.values import dataclass
from leconvert.workdir.activity import JobRecord, WorkerRecord, read_jobs, read_workers
from leconvert.workdir.former import count_former
from leconvert.workdir.identity import WorkerIdentity, process_is_gone, process_is_running
from leconvert.workdir.locks import read_packer
from leconvert.workdir.records import Journal, PackStep, RunPaths, WorkDir
from leconvert.workdir.run import OpenedRun, open_run
from leconvert.workdir.swap import is_converted

# The records of settled batches, read for display: torn or edited records are skipped.


UNREADABLE = (OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError)
"""Errors from reading a record that is gone, torn, or edited by hand or by an unknown program."""


class SettledBatches[Value]:
    """The records of settled batches; each is read once, however often `look` is called.

    Args:
        read: Reads the record of one batch.

    Attributes:
        values: The records by batch; unusable ones are missing.
        errors: Why a record is unusable, by batch, as of the last look.
    """

    def __init__(self, read: Callable[[int], Value]) -> None:
        self._read = read
        self.values: dict[int, Value] = {}
        self.errors: dict[int, Exception] = {}

    def look(self, settled: Collection[int], most: int | None = None) -> Mapping[int, Value]:
        """Return the records of settled batches; at most ``most`` new ones are read."""
        wanted = set(settled)
        for batch_id in self.values.keys() - wanted:  # voided or released since the last look
            del self.values[batch_id]
        self.errors = {}
        for batch_id in sorted(wanted - self.values.keys())[:most]:
            try:
                self.values[batch_id] = self._read(batch_id)
            except UNREADABLE as error:
                self.errors[batch_id] = error
        return self.values


class DoneBatch(NamedTuple):
    """The record of a batch that is done."""

    record: Mapping[str, Any]  # without its shards
    shard_bytes: Mapping[str, int]  # size of every shard
    cloned_bytes: int  # coded video bytes that are shared with the source
    copied_bytes: int  # coded video bytes that were copied


def read_done_batch(run: RunPaths, batch_id: int) -> DoneBatch:
    """Read the record of a finished batch.

    Raises:
        OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError: It cannot be used.
    """
    record = read_done(run, batch_id)
    shards = record.pop("shards")
    return DoneBatch(
        record,
        {str(shard["path"]): int(shard["size_bytes"]) for shard in shards},
        sum(int(shard.get("cloned_bytes", 0)) for shard in shards),
        sum(int(shard.get("copied_bytes", 0)) for shard in shards),
    )


class FormerCount:
    """Counts the former states of results, for display.

    Their folders are listed again only if a name was added or removed there since.
    """

    def __init__(self, targets: Iterable[Path]) -> None:
        self._targets = list(targets)
        self._folders = {Path(os.path.realpath(target)).parent for target in self._targets}
        self._changed_at: dict[Path, int] | None = None
        self._found = 0, 0

    def look(self) -> tuple[int, int]:
        """Return the number of former states, and their bytes; see `count_former`."""
        changed_at = {folder: _changed_at(folder) for folder in self._folders}
        if changed_at != self._changed_at:
            self._changed_at, self._found = changed_at, count_former(self._targets)
        return self._found


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def moment(text: object) -> float | None:
    """Return an ISO 8601 time as seconds since 1970; None if it is not one, or has no time zone."""
    try:
        parsed = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None


def seconds_of(value: object) -> float | None:
    """Return a number of seconds from a record; None if it is not one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return None


# The progress of a run.


# By default a holder's heart beats every 15 s, and a waiting worker reports every 10 s.
_SILENT_AFTER_SECONDS = 45.0


class Liveness(StrEnum):
    """State of a process, as far as an observer knows."""

    RUNNING = "running"
    """It runs on this host, or gave a sign of life while the observer watched."""
    SILENT = "silent"
    """No sign of life for so long that it is probably gone. Only an expired lease decides that it
    is.
    """
    ENDED = "ended"
    """It ran on this host and has ended."""
    UNKNOWN = "unknown"
    """It runs on another host, and the observer has not watched long enough."""

    @classmethod
    def of(
        cls, process: Mapping[str, Any], *, silent_seconds: float = 0.0, gave_sign: bool = False
    ) -> Liveness:
        """Return what is known about the process that wrote a record.

        Args:
            process: The record.
            silent_seconds: How long the observer has seen no sign of life.
            gave_sign: Whether the observer saw any sign of life.
        """
        if process_is_gone(process):
            return cls.ENDED
        if silent_seconds >= _SILENT_AFTER_SECONDS:
            return cls.SILENT
        return cls.RUNNING if gave_sign or process_is_running(process) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that holds a batch, or may still run."""

    token: str  # the worker
    host: str  # its host
    pid: int  # its process there
    liveness: Liveness  # what is known about the process
    batch_id: int | None  # the batch that it holds according to the lease log, or None
    # How long this observer has seen the same heartbeat or, without a batch, the same report; 0 at
    # the first look.
    silent_seconds: float
    batches: int = 0  # batches that it finished, as it reports; so for the fields below
    written_bytes: int = 0  # bytes of their shards
    # Source bytes processed a second, including the current batch: observed if possible, else the
    # worker's own mean.
    bytes_per_second: float = 0.0
    frames_per_second: float = 0.0  # frames and rows of finished batches a second, by the same rule
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that was set aside after failures."""

    batch_id: int  # the batch
    errors: int  # attempts that ended in an error
    losses: int  # attempts lost without a word
    host: str  # the host that set it aside
    error: str | None  # the class of the last error, or None
    message: str  # its message
    next_step: str | None  # what helps, or None


@dataclass(frozen=True, slots=True)
class PackerStatus:
    """The packer, according to its journal and its lock file."""

    number: int = 0  # number of packers that began; 0 if none did
    # ``none``, or the newest packer's step: ``packing`` (which includes waiting for workers),
    # ``swapping``, ``swapped``, ``finished``.
    step: str = "none"
    host: str | None = None  # the host of the last holder of the lock, or None
    pid: int | None = None  # its process there
    liveness: Liveness = Liveness.UNKNOWN  # what is known about that process
    # Peak resident memory of the packer that proved the result; 0 if none has yet.
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One submission to a scheduler."""

    engine: str  # the scheduler: ``slurm`` or ``ray``
    job_id: str  # the scheduler's id
    role: str  # ``workers`` or ``packer``
    tasks: int  # number of processes requested
    # Number of processes in each state, in the scheduler's words. Empty if the scheduler has
    # forgotten them; None if it does not answer, or is Ray, which is not asked.
    states: Mapping[str, int] | None
    reason: str | None  # why one waits, in the scheduler's words, or None


@dataclass(frozen=True, slots=True)
class VideoBytes:
    """Coded video bytes of finished batches."""

    cloned: int = 0  # shared with the source
    copied: int = 0  # copied
    batches_read: int = 0  # finished batches whose records were read; the sums count these only


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run at one moment."""

    run_id: str  # the run
    source: str  # its source
    target: str  # path of the result
    batches: int  # batches of the plan
    pending: int  # batches that nobody holds
    leased: int  # batches that workers hold
    done: int  # batches with a result
    failed: int  # batches that were set aside
    total_bytes: int  # source bytes of all batches
    done_bytes: int  # source bytes of the finished batches
    total_frames: int  # rows and camera frames of all batches
    done_frames: int  # rows and camera frames of the finished batches
    packed: bool  # whether the result is in place
    packer: PackerStatus  # how far the packer is
    video: VideoBytes  # bytes cloned and copied so far
    bytes_per_second: float  # of all workers together
    frames_per_second: float  # source bytes of all workers together
    # Estimate until the last batch is done; None if nothing moves.
    seconds_left: float | None
    # How long this observer has watched. 0 at the first look, whose rates are the workers' own
    # means.
    observed_seconds: float
    # Workers that hold a batch or may still run, by host and process.
    workers: Sequence[WorkerStatus]
    ended_workers: int  # workers that signed off, or are known to have ended
    unsettled: Sequence[BatchStatus]  # every batch that is not done and was ever claimed
    failures: Sequence[Failure]  # why batches were set aside
    # The only host that may work on the run; None if any may.
    one_host: str | None = None
    jobs: Sequence[JobStatus] = ()  # what was submitted to a scheduler, oldest first
    # Peak resident memory of any single worker process, on any host; 0 if none has reported it.
    peak_memory_bytes: int = 0
    former_states: int = 0  # number of earlier results that runs put aside at the target
    former_bytes: int = 0  # bytes of their files, which they may share with the result

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


_SECONDS_BETWEEN_QUESTIONS = 10.0  # to a scheduler
_WINDOW_SECONDS = 60.0
_SHORTEST_SECONDS = 1.0


class Progressed(NamedTuple):
    """How far a worker has come, as it reports."""

    size_bytes: int  # source bytes that it processed
    cost: float  # the same, with decoded bytes weighted; see `batch_costs`
    frames: int  # frames and rows of batches that it finished
    seconds: float  # how long it has been running


class Rates(NamedTuple):
    """Source bytes, their cost, and frames a second."""

    size_bytes: float = 0.0
    cost: float = 0.0
    frames: float = 0.0


class RateWindow:
    """Rates over the last observed minute, on the observer's own clock.

    For a worker seen for less than a second, the rate is the worker's own mean since it began:
    better than nothing at the first look.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, Progressed]]] = deque()

    def add(self, now: float, seen: Mapping[str, Progressed]) -> None:
        """Add a look."""
        self._looks.append((now, dict(seen)))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _WINDOW_SECONDS:
            self._looks.popleft()

    def rates(self, token: str) -> Rates:
        """Return a worker's rates as of the last look."""
        now, latest = self._looks[-1]
        if token not in latest:
            return Rates()
        last, first, seconds = latest[token], Progressed(0, 0.0, 0, 0.0), latest[token].seconds
        for then, seen in self._looks:
            if token in seen and now - then >= _SHORTEST_SECONDS:
                first, seconds = seen[token], now - then
                break
        moved = [max(0.0, after - before) for after, before in zip(last, first, strict=True)]
        return Rates(*(amount / seconds for amount in moved[:3])) if seconds > 0 else Rates()


def seconds_left(left: float, per_second: float) -> float | None:
    """Return the seconds that the rest takes at this rate; None if nothing moves."""
    if left <= 0:
        return 0.0
    return left / per_second if per_second > 0 else None


class _Seen(NamedTuple):
    """A worker's record, the time since when it is unchanged, and the cost of its bytes."""

    record: WorkerRecord
    since: float
    cost: float


class WorkerObserver:
    """One observer of one run's workers, for repeated looks.

    A worker is known by its record and by the batch that it holds. On its own host the process
    itself shows whether it lives; on other hosts, changes between two looks do.

    Args:
        store: Reads claims. It must be the store that looked at the leases.
        cost_of_a_byte: Cost of a source byte of each batch.

    Attributes:
        ended: Tokens of workers that ended, as far as observed.
        cost_per_second: Sum of the workers' costs a second, as of the last look.
    """

    def __init__(self, store: LeaseStore, cost_of_a_byte: Sequence[float]) -> None:
        self._store = store
        self._cost_of_a_byte = cost_of_a_byte
        self._claims_seen: set[tuple[int, int]] = set()
        self._gave_sign: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self._window = RateWindow()
        self.ended: set[str] = set()
        self.cost_per_second = 0.0

    @property
    def peak_memory_bytes(self) -> int:
        """Peak resident memory of any single worker process, as far as observed."""
        return max((seen.record.peak_memory_bytes for seen in self._seen.values()), default=0)

    def look(self, leased: Sequence[BatchStatus]) -> list[WorkerStatus]:
        """Return the workers that have not ended, by host, process and token."""
        store, now = self._store, self._store.clock()
        holders = {row.token: row for row in leased if row.token is not None}
        skip = self.ended - holders.keys()
        for record in read_workers(store.run, skip=skip):
            self._add(record, now)
        progress = {
            token: Progressed(record.processed_bytes, cost, record.frames, record.seconds)
            for token, (record, _, cost) in self._seen.items()
            if token not in self.ended
        }
        self._window.add(now, progress)
        self.cost_per_second = 0.0
        rows = [self._holder(row, token) for token, row in holders.items()]
        for token in progress.keys() - holders.keys():
            record, since, _ = self._seen[token]
            if record.has_ended:
                self.ended.add(token)
            else:
                who = token, record.host, record.pid, None
                rows.append(self._status(*who, asdict(record), silent=now - since))
        return sorted(rows, key=lambda row: (row.host, row.pid, row.token))

    def _add(self, record: WorkerRecord, now: float) -> None:
        if record.state == "ended":
            self.ended.add(record.token)
        seen = self._seen.get(record.token)
        if seen is not None and seen.record == record:
            return
        if seen is not None:
            self._gave_sign.add(record.token)
        # Bytes since the last record count as bytes of the current batch.
        before = WorkerRecord("", "", 0) if seen is None else seen.record
        batch_id = before.batch_id if record.batch_id is None else record.batch_id
        known = batch_id is not None and batch_id < len(self._cost_of_a_byte)
        weight = self._cost_of_a_byte[batch_id] if known and batch_id is not None else 1.0
        cost = (record.processed_bytes - before.processed_bytes) * weight
        self._seen[record.token] = _Seen(record, now, cost + (0.0 if seen is None else seen.cost))

    def _holder(self, row: BatchStatus, token: str) -> WorkerStatus:
        silent = row.heartbeat_age_seconds or 0.0
        claim = (row.batch_id, row.generation)
        if silent == 0.0 and claim in self._claims_seen:  # it beat since the last look
            self._gave_sign.add(token)
        self._claims_seen.add(claim)
        seen = self._seen.get(token)
        process = self._store.log.holder(*claim) if seen is None else asdict(seen.record)
        return self._status(token, row.host or "?", row.pid or 0, row.batch_id, process, silent)

    def _status(
        self,
        token: str,
        host: str,
        pid: int,
        batch_id: int | None,
        process: Mapping[str, Any],
        silent: float,
    ) -> WorkerStatus:
        seen = self._seen.get(token)
        said = WorkerRecord(token, host, pid) if seen is None else seen.record
        gave_sign = token in self._gave_sign
        liveness = Liveness.of(process, silent_seconds=silent, gave_sign=gave_sign)
        alive = liveness in {Liveness.RUNNING, Liveness.UNKNOWN}
        rates = self._window.rates(token) if alive else Rates()
        self.cost_per_second += rates.cost
        return WorkerStatus(
            token=token,
            host=host,
            pid=pid,
            liveness=liveness,
            batch_id=batch_id,
            silent_seconds=round(silent, 1),
            batches=said.batches,
            written_bytes=said.written_bytes,
            bytes_per_second=round(rates.size_bytes, 1),
            frames_per_second=round(rates.frames, 1),
            peak_memory_bytes=said.peak_memory_bytes,
        )


_RECORDS_A_LOOK = 2_000


def run_status(work_dir: Path) -> RunStatus:
    """Look at a work dir's current run once; the record of every finished batch is read."""
    return RunObserver(open_run(work_dir, allow_mixed_versions=True, only_look=True)).look()


def watch_run(work_dir: Path, pause: Callable[[], bool]) -> Iterator[RunStatus]:
    """Yield a status again and again until the result is in place; a ``--restart`` is followed.

    Args:
        work_dir: The work dir.
        pause: Called between looks; the generator ends if it returns true.

    Raises:
        FileNotFoundError, WorkDirError: There is no run, and none was seen before.
    """
    observer: RunObserver | None = None
    while True:
        try:
            if observer is None or WorkDir(work_dir).current_run_id() != observer.run_id:
                observer = RunObserver(
                    open_run(work_dir, allow_mixed_versions=True, only_look=True),
                    records_a_look=_RECORDS_A_LOOK,
                )
            status = observer.look()
        except (FileNotFoundError, WorkDirError):
            # A conversion without a permanent work dir removes it at the end.
            if observer is None or (last := observer.after_removal()) is None:
                raise
            status = last
        yield status
        if status.packed or pause():
            return


class RunObserver:
    """One observer of one run.

    A look lists five folders, and that of the target if it changed. It reads the lease log of
    batches that somebody holds or tried, the records of workers that have not ended, and new
    ``done`` records. If jobs were submitted, it asks their scheduler now and then. It writes
    nothing and takes no lock.

    Args:
        records_a_look: At most this many ``done`` records are read at one look, the rest later;
            None reads all.
    """

    def __init__(
        self,
        run: OpenedRun,
        *,
        clock: Callable[[], float] = time.monotonic,
        records_a_look: int | None = None,
    ) -> None:
        self.run_id = run.paths.run_id
        self._run = run
        self._clock = clock
        self._records_a_look = records_a_look
        # The store only looks: an observer claims nothing, so its identity is never written.
        identity = WorkerIdentity.of_this_process()
        store = LeaseStore(run.paths, identity, clock=clock)
        self._board = Board(store, run.manifest.num_batches)
        self._done = SettledBatches(self._read_video)
        self._failed = SettledBatches(self._read_failure)
        sizes = [(batch.source_bytes, batch.frames) for batch in run.batches]
        self._source_bytes = [size for size, _ in sizes]
        self._frames = [frames for _, frames in sizes]
        self._costs = self._source_bytes
        if run.manifest.computed_stats:
            # imports everything that a worker needs
            from leconvert.run.worker_pool import batch_costs

            self._costs = batch_costs(run)
        rates = [cost / max(1, size) for cost, (size, _) in zip(self._costs, sizes, strict=True)]
        self._workers = WorkerObserver(store, rates)
        self._began: float | None = None
        self._former = FormerCount([Path(run.manifest.target)])
        self._asked_at: float | None = None
        self._job_states: list[ElementState] | None = []
        self._last: RunStatus | None = None

    def look(self) -> RunStatus:
        """Return the run as it is now."""
        batches = self._board.status()
        done = [row.batch_id for row in batches if row.state is BatchState.DONE]
        unsettled = [r for r in batches if r.state is not BatchState.DONE and r.generation]
        leased = [row for row in unsettled if row.state is BatchState.LEASED]
        failed = [row for row in unsettled if row.state is BatchState.FAILED]
        workers = self._workers.look(leased)
        rate = sum(worker.bytes_per_second for worker in workers)
        packer, packed = self._look_at_packer()
        total_bytes = sum(self._source_bytes)
        done_bytes = sum(self._source_bytes[batch_id] for batch_id in done)
        manifest = self._run.manifest
        former_states, former_bytes = self._former.look()
        now = self._clock()
        observed = 0.0 if self._began is None else now - self._began
        self._began = now if self._began is None else self._began
        self._last = RunStatus(
            run_id=self.run_id,
            source=manifest.source_name,
            target=manifest.target,
            batches=len(batches),
            pending=len(batches) - len(done) - len(leased) - len(failed),
            leased=len(leased),
            done=len(done),
            failed=len(failed),
            total_bytes=total_bytes,
            done_bytes=done_bytes,
            total_frames=sum(self._frames),
            done_frames=sum(self._frames[batch_id] for batch_id in done),
            packed=packed,
            packer=packer,
            one_host=None if self._run.one_host is None else self._run.one_host.host.name,
            video=self._look_at_done(done),
            bytes_per_second=round(rate, 1),
            frames_per_second=round(sum(worker.frames_per_second for worker in workers), 1),
            seconds_left=seconds_left(
                sum(self._costs) - sum(self._costs[batch_id] for batch_id in done),
                self._workers.cost_per_second,
            ),
            observed_seconds=round(observed, 3),
            workers=workers,
            ended_workers=len(self._workers.ended),
            unsettled=unsettled,
            failures=self._look_at_failures(failed),
            jobs=self._look_at_jobs(),
            peak_memory_bytes=self._workers.peak_memory_bytes,
            former_states=former_states,
            former_bytes=former_bytes,
        )
        return self._last

    def after_removal(self) -> RunStatus | None:
        """Return a final status after the work dir vanished; None if the result is missing."""
        manifest = self._run.manifest
        if self._last is None or not is_converted(Path(manifest.target), manifest.to):
            return None
        return replace(
            self._last,
            pending=0,
            leased=0,
            done=self._last.batches,
            failed=0,
            done_bytes=self._last.total_bytes,
            done_frames=self._last.total_frames,
            packed=True,
            packer=replace(self._last.packer, step=PackStep.FINISHED.value),
            bytes_per_second=0.0,
            frames_per_second=0.0,
            seconds_left=0.0,
            workers=(),
            unsettled=(),
            failures=(),
        )

    def _read_video(self, batch_id: int) -> tuple[int, int]:
        done = read_done_batch(self._run.paths, batch_id)
        return done.cloned_bytes, done.copied_bytes

    def _look_at_done(self, done: Sequence[int]) -> VideoBytes:
        read = self._done.look(done, self._records_a_look).values()
        cloned, copied = (sum(sizes) for sizes in zip(*read, strict=True)) if read else (0, 0)
        return VideoBytes(cloned, copied, batches_read=len(read))

    def _read_failure(self, batch_id: int) -> Failure:
        return _failure(batch_id, read_failed(self._run.paths, batch_id))

    def _look_at_failures(self, failed: Sequence[BatchStatus]) -> list[Failure]:
        read = self._failed.look([row.batch_id for row in failed])
        return [read.get(row.batch_id) or _failure(row.batch_id, {}) for row in failed]

    def _look_at_jobs(self) -> list[JobStatus]:
        """Return all submissions, oldest first; a scheduler is asked at most every ten seconds."""
        records = read_jobs(self._run.paths)
        asked = [record.job_id for record in records if record.engine == "slurm"]
        now = self._clock()
        if asked and (self._asked_at is None or now - self._asked_at >= _SECONDS_BETWEEN_QUESTIONS):
            self._asked_at, self._job_states = now, job_states(asked)
        return [_job(record, self._job_states) for record in records]

    def _look_at_packer(self) -> tuple[PackerStatus, bool]:
        state = Journal(self._run.paths).read()
        if not state.generation:
            return PackerStatus(), False
        holder = read_packer(self._run.paths)
        packer = PackerStatus(
            state.generation,
            state.step.value,
            holder.get("host"),
            holder.get("pid"),
            Liveness.of(holder),
            state.notes.get("peak_memory_bytes", 0),
        )
        return packer, state.is_packed


def _job(record: JobRecord, states: Sequence[ElementState] | None) -> JobStatus:
    job = (record.engine, record.job_id, record.role, record.tasks)
    if states is None or record.engine != "slurm":
        return JobStatus(*job, states=None, reason=None)
    own = [s for s in states if s.job_id.partition("_")[0] == record.job_id]
    return JobStatus(
        *job,
        states=dict(sorted(Counter(element.state for element in own).items())),
        reason=next((element.reason for element in own if element.state == "PENDING"), None),
    )


def _failure(batch_id: int, record: Mapping[str, Any]) -> Failure:
    error = record.get("error") or {}
    losses = int(record.get("losses", 0))
    lost = f"{losses} workers ended or froze while they worked on it"
    return Failure(
        batch_id=batch_id,
        errors=int(record.get("errors", 0)),
        losses=losses,
        host=str(record.get("host", "?")),
        error=error.get("error"),
        message=str(error.get("message") or (lost if losses else "no message")),
        next_step=error.get("next_step"),
    )
