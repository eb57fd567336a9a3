"""The content of a report as plain values, gathered from a run's records.

Points in time are seconds since 1970 in UTC, on the clock of `RunReport.clocks`. Durations are
seconds as measured on the host itself. None always means "not known".
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from leconvert.dataset.files import Spelling
from leconvert.dataset.formats import Dataset, open_dataset, v3
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import TARGET_VERSIONS, Batch, Finding
from leconvert.report.status import (
    UNREADABLE,
    DoneBatch,
    SettledBatches,
    moment,
    read_done_batch,
    seconds_of,
)
from leconvert.run.leasing import list_batches
from leconvert.run.leasing.leases import DONE_VERSION, LeaseLogFiles
from leconvert.run.leasing.state import Generation, LeaseLog, Outcome
from leconvert.support.errors import LeconvertError, UnreadableSourceError, UsageError
from leconvert.support.storage_errors import any_storage_errors, storage_errors
from leconvert.support.text import without_secrets_in
from leconvert.support.values import dataclass
from leconvert.workdir.activity import (
    Invocation,
    WorkerRecord,
    read_invocations,
    read_probe,
    read_workers,
)
from leconvert.workdir.fs import is_there
from leconvert.workdir.records import (
    Journal,
    JournalState,
    WorkDir,
    decode_record,
    read_record,
)
from leconvert.workdir.run import OpenedRun, find_work_dir, open_run, work_dirs_of
from leconvert.workdir.swap import codebase_version, is_converted


class StoryState(StrEnum):
    """The state of a run, according to its records."""

    FINISHED = "finished"
    DIFFERS = "result differs from its source"
    FAILED = "failed"
    TO_PACK = "waiting to be packed"
    UNFINISHED = "not finished"
    RESULT_ONLY = "result only"


class AttemptEnd(StrEnum):
    """How one worker's attempt at one batch ended."""

    DONE = "done"
    ERROR = "error"
    LOST = "lost"
    HANDED_BACK = "handed back"
    LATE = "late"
    VOID = "void"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One worker's attempt at one batch."""

    batch_id: int  # the batch
    generation: int  # the claim's number, from 1
    token: str  # the worker
    host: str  # its host
    pid: int  # its process there
    end: AttemptEnd  # how it ended
    began: float | None = None  # when it began
    ended: float | None = None  # when it ended; for a held or lost attempt, the last sign of life
    seconds: float | None = None  # how long it took, on a monotonic clock
    source_bytes: int = 0  # source bytes of the batch
    frames: int = 0  # frames and rows of the batch
    message: str = ""  # the message about its end


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
    """One stream in the source and in the result."""

    stream: str  # ``data`` or ``videos/<camera key>``
    source_files: int | None  # number of source files
    source_bytes: int | None  # their size in bytes
    result_files: int  # number of result files that exist, or whose shards are written
    planned_files: int  # number of files that the result will have
    result_bytes: int  # size of the existing files in bytes


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of the result with its source before the swap."""

    depth: str  # ``structure``, ``bytes`` or ``none``
    ok: bool | None  # whether there was no difference
    # Numbers of files, episodes, rows and camera frames that were compared; empty if unknown.
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None  # how long it took
    differences: int = 0  # number of differences
    shown: Sequence[str] = ()  # the first differences


@dataclass(frozen=True, slots=True)
class Packer:
    """One packer: its number, host and process, its last step, and the time of each step."""

    generation: int
    host: str
    pid: int
    step: str
    times: Mapping[str, float]

    @property
    def span(self) -> tuple[float, float]:
        """First and last recorded time; call it only if there are times."""
        return min(self.times.values()), max(self.times.values())


@dataclass(frozen=True, slots=True)
class RunReport:
    """The content of a report."""

    name: str  # the dataset's name
    state: StoryState  # the state of the run
    generated: datetime  # when the report was gathered
    target: str  # path of the result
    sources: Sequence[str] = ()  # the source datasets; empty if only the result is known
    # Path of the replaced dataset, if it is still there: the source, or an earlier result.
    kept_source: str | None = None
    kept_result: str | None = None
    work_dir: str | None = None  # the run's shared folder; None if only the result is known
    run_id: str | None = None  # id of the run
    episodes: int = 0  # episodes of the result
    frames: int = 0  # frames of the result
    fps: str = ""  # frame rate, as the dataset's decimal
    streams: Sequence[StreamFigures] = ()  # figures of each stream
    # Number of the result's files beside the streams, such as tables under ``meta/``.
    other_files: int = 0
    other_bytes: int = 0  # their size in bytes
    options: Mapping[str, Any] = field(default_factory=dict)  # the plan's options
    findings: Sequence[Finding] | None = None  # findings of the scan; None if not known
    repairs: Repairs = field(default_factory=Repairs)  # changes that the conversion made
    verification: Verification | None = None  # the comparison with the source; None if not known
    batches: BatchCounts | None = None  # batches by state; None if only the result is known
    set_aside: Collection[int] = ()  # batches that used up their attempts without a result
    attempts: Sequence[Attempt] = ()  # every attempt at every batch, by batch and claim
    packers: Sequence[Packer] = ()  # every packer
    invocations: Sequence[Invocation] = ()  # the call of every process
    version: str = TARGET_VERSIONS[0]  # the version of the result
    # Library versions of the planner.
    planned_versions: Mapping[str, str] = field(default_factory=dict)
    # For each host, the seconds that the work dir's clock was ahead of the host's.
    clocks: Mapping[str, float] = field(default_factory=dict)
    cloned_bytes: int = 0  # coded video bytes that are shared with the source
    copied_bytes: int = 0  # coded video bytes that were copied
    # Peak resident memory of any single worker process; None if not known.
    worker_peak_bytes: int | None = None
    # Peak resident memory of the packer before the swap; None if not known.
    packer_peak_bytes: int | None = None
    # The probe's document, or its message if it could not measure.
    probe: Mapping[str, Any] | None = None
    remarks: Sequence[str] = ()  # problems with reading records
    # Whether the result's statistics have quantiles; None if not known.
    quantiles: bool | None = None

    @property
    def source_bytes(self) -> int | None:
        """Size of the source's data and video files in bytes; None if not known."""
        sizes = [stream.source_bytes for stream in self.streams if stream.source_bytes is not None]
        return sum(sizes) if sizes else None

    @property
    def source_files(self) -> int | None:
        """Number of the source's data and video files; None if not known."""
        files = [stream.source_files for stream in self.streams if stream.source_files is not None]
        return sum(files) if files else None

    @property
    def result_bytes(self) -> int:
        """Size of the result's existing data and video files in bytes."""
        return sum(stream.result_bytes for stream in self.streams)

    @property
    def result_files(self) -> int:
        """Number of the result's existing data and video files."""
        return sum(stream.result_files for stream in self.streams)


_CLOCKS_AGREE_SECONDS = 2.0  # writing a record takes time; clocks that differ by less agree
_VOID = re.compile(r"([0-9]{6,})\.void-([0-9]+)\Z")


def gather(place: Path) -> RunReport:
    """Gather what is known about a run or a result; nothing is written.

    Args:
        place: A work dir, a dataset whose run has one, or a result.

    Raises:
        UsageError: The path holds neither a run nor a v3.0 dataset.
    """
    if WorkDir(place).current_run_id() is not None or work_dirs_of(place):
        root = find_work_dir(place)
        return gather_run(open_run(root, allow_mixed_versions=True, only_look=True))
    if not is_converted(place):
        version = codebase_version(place)
        what = "is neither the work dir of a run nor a v3.0 dataset"
        raise UsageError(
            f"{place} {what}."
            if version is None
            else (
                f"{place} is a {version} dataset, but "
                "reports are only about runs and v3.0 datasets."
            ),
            path=str(place),
            next_step="Give the work dir that `leconvert plan` or `leconvert convert` printed, "
            "or a dataset that leconvert made.",
        )
    return story_of_result(place)


@any_storage_errors()
def gather_run(run: OpenedRun) -> RunReport:
    """Gather the records of a run; nothing is written.

    Raises:
        StorageError: The file system failed.
    """
    manifest, run_id = run.manifest, run.paths.run_id
    invocations = read_invocations(run.paths)
    clocks = _clocks(invocations)
    journal = Journal(run.paths)
    state = journal.read()
    workers = {worker.token: worker for worker in read_workers(run.paths)}
    results = SettledBatches(partial(read_done_batch, run.paths))
    done = list_batches(run.paths.done_dir)
    failed = list_batches(run.paths.failed_dir) - done
    read = results.look(done)
    attempts = _AttemptReader(run, workers, clocks, read, done, failed).attempts()
    held = {a.batch_id for a in attempts if a.end is AttemptEnd.HELD}
    counts = BatchCounts(manifest.num_batches, len(done), len(failed), len(held - failed))
    verification = _verification(state)
    packed = state.is_packed
    target = Path(manifest.target)
    old = (state.swap or {}).get("old")
    kept = None if old is None or not is_there(Path(old)) else old
    tree = quantiles = None
    if packed and is_converted(target, manifest.to):
        tree = measure_tree(open_dataset(target, version=manifest.to))
        quantiles = _has_quantiles(target) if manifest.to == TARGET_VERSIONS[0] else None
    remarks = [f"The result of batch {number}: {why}" for number, why in results.errors.items()]
    if packed and tree is None:
        remarks.append(
            f"{target} is not a {manifest.to} dataset any more. Sizes are those that the "
            "workers recorded."
        )
    return RunReport(
        name=target.name,
        state=_state(counts, verification, packed=packed),
        generated=datetime.now(UTC),
        target=manifest.target,
        sources=[manifest.outline] if manifest.outline else [s.root for s in manifest.sources],
        kept_source=kept if manifest.in_place else None,
        kept_result=None if manifest.in_place else kept,
        work_dir=str(run.work_dir.root),
        run_id=run_id,
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        fps=json.dumps(round(float(manifest.fps), 6)).removesuffix(".0"),
        streams=_streams(run, read, tree),
        other_files=0 if tree is None else tree[None][0],
        other_bytes=0 if tree is None else tree[None][1],
        options=manifest.options,
        findings=manifest.findings,
        repairs=manifest.sources[0].repairs if len(manifest.sources) == 1 else NO_REPAIRS,
        verification=verification,
        batches=counts,
        set_aside=failed,
        attempts=attempts,
        packers=[_packer(noted, clocks) for noted in journal.history()],
        invocations=invocations,
        planned_versions=manifest.versions,
        clocks=clocks,
        cloned_bytes=sum(batch.cloned_bytes for batch in read.values()),
        copied_bytes=sum(batch.copied_bytes for batch in read.values()),
        worker_peak_bytes=max((w.peak_memory_bytes for w in workers.values()), default=0) or None,
        packer_peak_bytes=_whole(state.notes.get("peak_memory_bytes")) or None,
        probe=read_probe(run.paths),
        remarks=remarks,
        quantiles=quantiles,
        version=manifest.to,
    )


def _clocks(invocations: Sequence[Invocation]) -> dict[str, float]:
    """Return how far the shared clock is ahead of each host's; 0 if they agree."""
    seen: dict[str, list[float]] = {}
    for entry in invocations:
        if entry.file_system_ahead_seconds is not None:
            seen.setdefault(entry.host, []).append(entry.file_system_ahead_seconds)
    # Writing takes time, which only ever adds to the difference: the smallest is the most exact.
    least = {host: min(values) for host, values in seen.items()}
    return {host: s if abs(s) >= _CLOCKS_AGREE_SECONDS else 0.0 for host, s in least.items()}


@dataclass(frozen=True, eq=False)
class _AttemptReader:
    """Reads who worked on which batch when.

    It costs a listing and one record for a batch that went well, and a few records for others.
    """

    run: OpenedRun
    workers: Mapping[str, WorkerRecord]
    clocks: Mapping[str, float]
    results: Mapping[int, DoneBatch]
    done: Collection[int]
    failed: Collection[int]

    def attempts(self) -> list[Attempt]:
        """Return every attempt, by batch and claim."""
        claimed = list_batches(self.run.paths.leases_dir).union(self.done)
        batches = [batch for batch in self.run.batches if batch.batch_id in claimed]
        return [attempt for batch in batches for attempt in self._attempts_at(batch)]

    def _attempts_at(self, batch: Batch) -> Iterator[Attempt]:
        log = self._log.read(batch.batch_id)
        result = self.results.get(batch.batch_id)
        winner = None if result is None else result.record.get("generation")
        numbers = {entry.number for entry in log.generations}
        for entry in log.generations:
            if result is not None and entry.number == winner:
                yield self._attempt(batch, winner, AttemptEnd.DONE, result.record, result.record)
            else:
                yield self._other(batch, log, entry, settled=result is not None)
        if result is not None and winner not in numbers:  # a power failure took its claim
            number = int(winner or 0)
            yield self._attempt(batch, number, AttemptEnd.DONE, result.record, result.record)

    def _other(self, batch: Batch, log: LeaseLog, entry: Generation, *, settled: bool) -> Attempt:
        """Return an attempt that did not finish the batch."""
        batch_id, number = batch.batch_id, entry.number
        holder = self._log.holder(batch_id, number)
        ended = self._log.end_record(batch_id, number) or {} if entry.outcome is not None else {}
        match entry.outcome:
            case Outcome.VOID:
                record = self._voided.get((batch_id, number), {})
                ended = {**record, "reason": ended.get("reason")}
                return self._attempt(batch, number, AttemptEnd.VOID, record or holder, ended)
            case Outcome.ERROR:
                return self._attempt(batch, number, AttemptEnd.ERROR, holder, ended)
            case None:
                end = AttemptEnd.LOST
                if entry is log.latest and settled:
                    end = AttemptEnd.LATE
                elif entry is log.latest and batch_id not in self.failed:
                    end = AttemptEnd.HELD
                last = self._last_sign(batch_id, number, holder)
                return self._attempt(batch, number, end, holder, last)
        return self._attempt(batch, number, AttemptEnd.HANDED_BACK, holder, ended)

    def _last_sign(self, batch_id: int, number: int, holder: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of an attempt whose end nobody recorded."""
        path = self.run.paths.heartbeat(batch_id, number)
        with suppress(LeconvertError):
            beat = decode_record(
                self._log.read_nonce(batch_id, number), "heartbeat", version=1, path=path
            )
            if "beat" in beat:
                return {"began": beat.get("began"), "ended": beat["beat"]}
        worker = self.workers.get(str(holder.get("token")))
        if worker is not None and worker.batch_id == batch_id and worker.batch_began:
            return {"began": worker.batch_began, "ended": worker.updated}
        return {}

    def _attempt(
        self,
        batch: Batch,
        number: int,
        end: AttemptEnd,
        holder: Mapping[str, Any],
        record: Mapping[str, Any],
    ) -> Attempt:
        host, pid = str(holder.get("host") or "?"), holder.get("pid")
        ahead = self.clocks.get(host, 0.0)
        began, ended = moment(record.get("began")), moment(record.get("ended"))
        seconds = seconds_of(record.get("seconds"))
        if began is not None and seconds is not None:
            ended = began + seconds  # a wall clock may jump in between
        return Attempt(
            batch_id=batch.batch_id,
            generation=number,
            token=str(holder.get("token") or "?"),
            host=host,
            pid=_whole(pid),
            end=end,
            began=None if began is None else began + ahead,
            ended=None if began is None or ended is None else max(began, ended) + ahead,
            seconds=seconds,
            source_bytes=batch.source_bytes,
            frames=batch.frames,
            message=_message(record),
        )

    @cached_property
    def _log(self) -> LeaseLogFiles:
        return LeaseLogFiles(self.run.paths)

    @cached_property
    def _voided(self) -> Mapping[tuple[int, int], Mapping[str, Any]]:
        """Return the records of voided results, by batch and claim."""
        voided: dict[tuple[int, int], Mapping[str, Any]] = {}
        paths, run_id = self.run.paths, self.run.paths.run_id
        for name in paths.fs.list_names(paths.done_dir):
            if (match := _VOID.match(name)) is None:
                continue
            batch_id = int(match[1])
            with suppress(*UNREADABLE):  # it may have been voided because it is torn
                path = paths.voided(batch_id, int(match[2]))
                record = read_record(path, "done", version=DONE_VERSION, run_id=run_id)
                voided[batch_id, int(record["generation"])] = record
        return voided


def _message(record: Mapping[str, Any]) -> str:
    error = record.get("error")
    if isinstance(error, Mapping):
        said = error.get("message") or error.get("error") or ""
    else:
        said = record.get("reason") or ""
    return without_secrets_in(str(said))


def _state(counts: BatchCounts, verification: Verification | None, *, packed: bool) -> StoryState:
    if packed:
        return StoryState.FINISHED
    if verification is not None and verification.ok is False:
        return StoryState.DIFFERS
    if counts.done == counts.total:
        return StoryState.TO_PACK
    if counts.failed and counts.done + counts.failed == counts.total:
        return StoryState.FAILED
    return StoryState.UNFINISHED


def _verification(state: JournalState) -> Verification | None:
    record = state.notes.get("verification")
    depth = state.notes.get("verified")
    if isinstance(record, Mapping):
        counts = {
            name: int(record[name])
            for name in ("files", "episodes", "rows", "video_frames")
            if isinstance(record.get(name), int)
        }
        return Verification(
            depth=str(record.get("depth")),
            ok=bool(record.get("ok")),
            counts=counts,
            seconds=seconds_of(record.get("seconds")),
            differences=_whole(record.get("differences")),
            shown=[without_secrets_in(str(line)) for line in record.get("shown") or ()],
        )
    # Only a proven result is swapped into place.
    proven = depth not in {None, "none"} and state.is_packed
    return None if depth is None else Verification(str(depth), True if proven else None)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _streams(
    run: OpenedRun, results: Mapping[int, DoneBatch], tree: _Tree | None
) -> list[StreamFigures]:
    there = tree if tree is not None else _written(run, results)
    rows = []
    for layout in run.manifest.streams:
        scan, _ = run.scan.stream(layout.stream)
        result_files, result_bytes = there.get(layout.stream, (0, 0))
        rows.append(
            StreamFigures(
                stream=layout.stream,
                source_files=len(scan.files),
                source_bytes=int(scan.size_bytes.sum()),
                result_files=result_files,
                planned_files=layout.num_files,
                result_bytes=result_bytes,
            )
        )
    return rows


def _written(run: OpenedRun, results: Mapping[int, DoneBatch]) -> _Tree:
    """Return the files and bytes that workers wrote, by stream; shards can share a file."""
    files: dict[str | None, set[int]] = {}
    sizes: Counter[str | None] = Counter()
    for batch in run.batches:
        result = results.get(batch.batch_id)
        written = {} if result is None else result.shard_bytes
        for shard in batch.shards:
            if shard.name in written:
                files.setdefault(shard.stream, set()).add(shard.number)
                sizes[shard.stream] += written[shard.name]
    return {stream: (len(numbers), sizes[stream]) for stream, numbers in files.items()}


def _packer(noted: JournalState, clocks: Mapping[str, float]) -> Packer:
    ahead = clocks.get(noted.host, 0.0)
    times = {str(step): moment(text) for step, text in noted.times.items()}
    return Packer(
        generation=noted.generation,
        host=noted.host,
        pid=noted.pid,
        step=noted.step.value,
        times={step: time + ahead for step, time in times.items() if time is not None},
    )


_Tree = Mapping[str | None, tuple[int, int]]
"""Number and size of the files of each stream; the key None is for all other files."""


def measure_tree(dataset: Dataset) -> _Tree:
    """Count the files in a dataset's folder and add up their sizes; no data is read."""
    figures: dict[str | None, tuple[int, int]] = {None: (0, 0)}
    root = dataset.root
    spelling = Spelling(root)
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, onerror=_raise):
            subfolders.sort()
            for name in names:
                path = Path(folder, name)
                owner = dataset.slice_of(spelling.of(path.relative_to(root).as_posix()))
                stream = None if owner is None else owner[0]
                files, size = figures.get(stream, (0, 0))
                figures[stream] = files + 1, size + path.stat().st_size
    return figures


def _raise(error: OSError) -> None:
    raise error


def story_of_result(root: Path) -> RunReport:
    """Return the report of a v3.0 dataset without any record of its run.

    Raises:
        UnreadableSourceError: ``info.json`` lacks its totals.
    """
    info = v3.Dataset(root).info
    try:
        episodes, frames = int(info["total_episodes"]), int(info["total_frames"])
    except (ValueError, KeyError, TypeError) as error:
        path = str(root / v3.INFO_PATH)
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.",
            path=path,
            next_step=f"`leconvert check {shlex.quote(str(root))}` lists what else is wrong.",
        ) from error
    tree = measure_tree(v3.Dataset(root))
    streams = {stream: figures for stream, figures in tree.items() if stream is not None}
    other_files, other_bytes = tree[None]
    return RunReport(
        name=root.name,
        state=StoryState.RESULT_ONLY,
        generated=datetime.now(UTC),
        target=str(root),
        episodes=episodes,
        frames=frames,
        fps=str(info.get("fps", "")),
        streams=[
            StreamFigures(stream, None, None, files, files, size)
            for stream, (files, size) in sorted(streams.items())
        ],
        other_files=other_files,
        other_bytes=other_bytes,
        repairs=v3.read_repairs(root),
        quantiles=_has_quantiles(root),
    )


def _has_quantiles(root: Path) -> bool | None:
    with suppress(LeconvertError):
        return v3.Dataset(root).has_quantiles
    return None
