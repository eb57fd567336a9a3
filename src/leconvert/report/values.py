"""What a report tells, as plain values: no I/O, no HTML.

Points in time are seconds since 1970 in UTC, on the clock of `RunReport.clocks`; durations
are seconds of the host that measured them. None is always "not known".
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from leconvert.dataset.formats import Dataset, open_dataset, v3
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import TARGET_VERSIONS, Batch, Finding
from leconvert.run.leasing import list_batches, read_done
from leconvert.run.leasing.leases import DONE_VERSION, LeaseLogFiles
from leconvert.run.leasing.state import Generation, LeaseLog, Outcome
from leconvert.support.errors import LeconvertError, UnreadableSourceError, UsageError
from leconvert.support.storage_errors import any_storage_errors, storage_errors
from leconvert.workdir.activity import (
    Invocation,
    WorkerRecord,
    read_invocations,
    read_probe,
    read_workers,
)
from leconvert.workdir.journal import JOURNAL_VERSION, Journal, JournalState, PackStep
from leconvert.workdir.records import WorkDir, decode_record, read_record
from leconvert.workdir.run import Manifest, OpenedRun, find_work_dir, open_run, work_dirs_of
from leconvert.workdir.secrets import without_secrets_in
from leconvert.workdir.swap import codebase_version, is_converted


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
    """One worker's try at one batch."""

    batch_id: int  # the batch
    generation: int  # the claim's number, from 1
    token: str  # the worker
    host: str  # its host
    pid: int  # its process there
    end: AttemptEnd  # how it ended
    began: float | None = None  # when it began
    ended: float | None = None  # when it ended; for what is held or was lost the last sign of life
    seconds: float | None = None  # how long it took, on a monotonic clock
    source_bytes: int = 0  # source bytes of the batch
    frames: int = 0  # frames and rows of the batch
    message: str = ""  # what was said about its end


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
    """One stream before and after."""

    stream: str  # ``data`` or ``videos/<camera key>``
    source_files: int | None  # files of the source
    source_bytes: int | None  # their size
    result_files: int  # files of the result that are there, or whose shards are written
    planned_files: int  # files that the result shall have
    result_bytes: int  # size of those that are there


@dataclass(frozen=True, slots=True)
class Verification:
    """What was proven before the result took its place."""

    depth: str  # ``structure``, ``bytes`` or ``none``
    ok: bool | None  # whether nothing differed
    # Files, episodes, rows and camera frames that were compared; empty where unknown.
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None  # how long it took
    differences: int = 0  # how many there were
    shown: Sequence[str] = ()  # the first of them


@dataclass(frozen=True, slots=True)
class Packer:
    """One packer: its number, where it ran, how far it came, and when it reached each step."""

    generation: int
    host: str
    pid: int
    step: str
    times: Mapping[str, float]

    @property
    def span(self) -> tuple[float, float]:
        """When it worked, as far as its record says; ask only where it holds times."""
        return min(self.times.values()), max(self.times.values())


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a report tells."""

    name: str  # the dataset's name
    state: StoryState  # how far the run is
    generated: datetime  # when this was gathered
    target: str  # where the result stands or will stand
    sources: Sequence[str] = ()  # the datasets that it is made of; none if only the result is known
    kept_source: str | None = None  # where a replaced dataset is kept
    work_dir: str | None = None  # the run's shared folder; None where only the result is known.
    run_id: str | None = None  # the run
    episodes: int = 0  # episodes of the result
    frames: int = 0  # frames of the result
    fps: str = ""  # frame rate, as the decimal that the dataset gives
    streams: Sequence[StreamFigures] = ()  # each stream before and after
    # Files of the result beside the streams: tables under ``meta/`` and the like.
    other_files: int = 0
    other_bytes: int = 0  # their size
    options: Mapping[str, Any] = field(default_factory=dict)  # the plan's options
    findings: Sequence[Finding] | None = None  # what the scan found; None where it is not known.
    repairs: Repairs = field(default_factory=Repairs)  # what the conversion changed
    verification: Verification | None = None  # what was proven; None where it is not known.
    batches: BatchCounts | None = None  # batches by state; None where only the result is known.
    set_aside: Collection[int] = ()  # batches that used up their tries and have no result
    attempts: Sequence[Attempt] = ()  # every try at every batch, by batch and claim
    packers: Sequence[Packer] = ()  # every packer
    invocations: Sequence[Invocation] = ()  # how every process was called
    version: str = TARGET_VERSIONS[0]  # the version of the result
    # Versions of the libraries of the planner.
    planned_versions: Mapping[str, str] = field(default_factory=dict)
    # For each host how far the work dir's clock was ahead of its own, in seconds.
    clocks: Mapping[str, float] = field(default_factory=dict)
    cloned_bytes: int = 0  # coded video bytes that are shared with the source
    copied_bytes: int = 0  # coded video bytes that were copied
    # The most that one worker's process had resident; None if not known.
    worker_peak_bytes: int | None = None
    # The most that the packer's had, before the swap; None if not known.
    packer_peak_bytes: int | None = None
    # The probe's document, or what it said when it could not measure.
    probe: Mapping[str, Any] | None = None
    remarks: Sequence[str] = ()  # what could not be read
    # Whether the result's statistics have them; None where that is not known.
    quantiles: bool | None = None

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


# ------------------------------------------------------------------------------------------------
# Who tried which batch when, read from lease logs and the records that settle batches.
#
# It costs a listing and a record for a batch that went well, and a few records for one that did
# not.


_VOID = re.compile(r"([0-9]{6,})\.void-([0-9]+)\Z")
_UNREADABLE = (OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError)


@dataclass(slots=True)
class AttemptsFound:
    """What the records of a run say."""

    attempts: list[Attempt] = field(default_factory=list)  # every try, by batch and claim
    done: set[int] = field(default_factory=set)  # batches with a result
    failed: set[int] = field(default_factory=set)  # batches that were set aside and have none
    # Size of every written shard by batch and name.
    shard_bytes: dict[tuple[int, str], int] = field(default_factory=dict)
    video_bytes: tuple[int, int] = (0, 0)  # coded bytes shared with the source, and copied
    remarks: list[str] = field(default_factory=list)  # what could not be read


def moment(text: object) -> float | None:
    """Return an ISO 8601 time as seconds since 1970, or None where it is none."""
    try:
        parsed = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None


def seconds_of(value: object) -> float | None:
    """Return a number of seconds from a record, or None where it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return None


def read_attempts(
    run: OpenedRun, workers: Mapping[str, WorkerRecord], shift: Callable[[str], float]
) -> AttemptsFound:
    """Read who tried which batch when."""
    found = AttemptsFound(
        done=list_batches(run.paths.done_dir), failed=list_batches(run.paths.failed_dir)
    )
    found.failed -= found.done
    reader = _Reader(run, workers, shift, found)
    claimed = list_batches(run.paths.leases_dir) | found.done
    for batch in run.batches:
        if batch.batch_id in claimed:
            reader.add(batch)
    return found


class _Reader:
    def __init__(
        self,
        run: OpenedRun,
        workers: Mapping[str, WorkerRecord],
        shift: Callable[[str], float],
        found: AttemptsFound,
    ) -> None:
        self._run, self._run_id = run, run.manifest.run_id
        self._workers = workers
        self._shift = shift
        self._found = found
        self._log = LeaseLogFiles(run.paths, self._run_id)
        self._voided = self._read_voided()

    def add(self, batch: Batch) -> None:
        """Add every try at one batch."""
        log = self._log.read(batch.batch_id)
        done = self._done(batch)
        winner = done.get("generation")
        entries = list(log.generations)
        if done and winner not in {entry.number for entry in entries}:
            entries.append(Generation(int(winner or 0)))  # its claim was lost by a power failure
        for entry in entries:
            if done and entry.number == winner:
                self._add(batch, entry.number, AttemptEnd.DONE, done, done)
            else:
                self._add_other(batch, log, entry, settled=bool(done))

    def _done(self, batch: Batch) -> Mapping[str, Any]:
        if batch.batch_id not in self._found.done:
            return {}
        try:
            record = read_done(self._run.paths, self._run_id, batch.batch_id)
            cloned, copied = self._found.video_bytes
            for shard in record["shards"]:
                size = int(shard["size_bytes"])
                self._found.shard_bytes[batch.batch_id, str(shard["path"])] = size
                cloned += int(shard.get("cloned_bytes", 0))
                copied += int(shard.get("copied_bytes", 0))
            self._found.video_bytes = cloned, copied
        except _UNREADABLE as error:
            self._found.remarks.append(f"The result of batch {batch.batch_id}: {error}")
            return {}
        return record

    def _add_other(self, batch: Batch, log: LeaseLog, entry: Generation, *, settled: bool) -> None:
        batch_id, number = batch.batch_id, entry.number
        holder = self._log.holder(batch_id, number)
        if entry.outcome is Outcome.VOID:
            record = self._voided.get(batch_id, {}).get(number, {})
            ended = self._log.end_record(batch_id, number) or {}
            said = {**record, "reason": ended.get("reason")}
            self._add(batch, number, AttemptEnd.VOID, record or holder, said)
        elif entry.outcome is not None:
            ended = self._log.end_record(batch_id, number) or {}
            is_error = entry.outcome is Outcome.ERROR
            end = AttemptEnd.ERROR if is_error else AttemptEnd.HANDED_BACK
            self._add(batch, number, end, holder, ended)
        else:
            last = entry is log.latest
            if last and not settled and batch_id not in self._found.failed:
                end = AttemptEnd.HELD
            else:
                end = AttemptEnd.LATE if last and settled else AttemptEnd.LOST
            self._add(batch, number, end, holder, self._last_sign(batch_id, number, holder))

    def _last_sign(self, batch_id: int, number: int, holder: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of an attempt whose end nobody wrote down."""
        times: dict[str, Any] = {}
        worker = self._workers.get(str(holder.get("token")))
        if worker is not None and worker.batch_id == batch_id and worker.batch_began:
            times = {"began": worker.batch_began, "ended": worker.updated}
        try:
            path = self._run.paths.heartbeat(batch_id, number)
            beat = decode_record(
                self._log.read_nonce(batch_id, number), "heartbeat", version=1, path=path
            )
        except LeconvertError:
            return times
        if "beat" in beat:
            times = {"began": beat.get("began"), "ended": beat["beat"]}
        return times

    def _add(
        self,
        batch: Batch,
        number: int,
        end: AttemptEnd,
        holder: Mapping[str, Any],
        record: Mapping[str, Any],
    ) -> None:
        host, pid = str(holder.get("host") or "?"), holder.get("pid")
        shift = self._shift(host)
        began, ended = moment(record.get("began")), moment(record.get("ended"))
        seconds = seconds_of(record.get("seconds"))
        if began is not None and seconds is not None:
            ended = began + seconds  # a wall clock may jump in between
        self._found.attempts.append(
            Attempt(
                batch_id=batch.batch_id,
                generation=number,
                token=str(holder.get("token") or "?"),
                host=host,
                pid=pid if isinstance(pid, int) else 0,
                end=end,
                began=None if began is None else began + shift,
                ended=None if began is None or ended is None else max(began, ended) + shift,
                seconds=seconds,
                source_bytes=batch.source_bytes,
                frames=batch.frames,
                message=_message(record),
            )
        )

    def _read_voided(self) -> dict[int, dict[int, Mapping[str, Any]]]:
        voided: dict[int, dict[int, Mapping[str, Any]]] = {}
        for name in self._run.fs.list_names(self._run.paths.done_dir):
            if (match := _VOID.match(name)) is None:
                continue
            path = self._run.paths.voided(int(match[1]), int(match[2]))
            try:
                record = read_record(path, "done", version=DONE_VERSION, run_id=self._run_id)
                voided.setdefault(int(match[1]), {})[int(record["generation"])] = record
            except _UNREADABLE:
                continue  # it may have been voided because it is torn
        return voided


def _message(record: Mapping[str, Any]) -> str:
    error = record.get("error")
    if isinstance(error, Mapping):
        said = error.get("message") or error.get("error") or ""
    else:
        said = record.get("reason") or ""
    return without_secrets_in(str(said))


# ------------------------------------------------------------------------------------------------
# What a result alone tells: sizes and numbers of its files, its tables, what was repaired.


@dataclass(slots=True)
class TreeFigures:
    """Files and bytes of a dataset."""

    # For each stream the number of its files and their size.
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    other_files: int = 0  # files beside them
    other_bytes: int = 0  # their size


def measure_tree(dataset: Dataset) -> TreeFigures:
    """Add up what lies in a dataset's folder; reads none of its data."""
    figures, root = TreeFigures(), dataset.root
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, onerror=_raise):
            subfolders.sort()
            relative = Path(folder).relative_to(root)
            for name in names:
                size = Path(folder, name).stat().st_size
                owner = dataset.slice_of((relative / name).as_posix())
                if owner is None:
                    figures.other_files += 1
                    figures.other_bytes += size
                else:
                    files, total = figures.streams.get(owner[0], (0, 0))
                    figures.streams[owner[0]] = files + 1, total + size
    return figures


def _raise(error: OSError) -> None:
    raise error


def story_of_result(root: Path) -> RunReport:
    """Tell what a v3.0 dataset says of itself, without any record of its run."""
    info = v3.Dataset(root).info
    try:
        episodes, frames = int(info["total_episodes"]), int(info["total_frames"])
    except (ValueError, KeyError, TypeError) as error:
        path = str(root / v3.INFO_PATH)
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.",
            path=path,
            next_step=f"`leconvert check {shlex.quote(str(root))}` says what else is wrong.",
        ) from error
    figures = measure_tree(v3.Dataset(root))
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
            for stream, (files, size) in sorted(figures.streams.items())
        ],
        other_files=figures.other_files,
        other_bytes=figures.other_bytes,
        repairs=v3.read_repairs(root),
        quantiles=_has_quantiles(root),
    )


def _has_quantiles(root: Path) -> bool | None:
    with suppress(LeconvertError):
        return v3.Dataset(root).has_quantiles
    return None


# ------------------------------------------------------------------------------------------------
# Gathers a report's values from the records of a run, or from a result alone; writes nothing.


# What writing a record takes; a smaller difference is no disagreement between two clocks.
_CLOCKS_AGREE_SECONDS = 2.0
_PACKED = {PackStep.SWAPPED, PackStep.FINISHED}


def gather(place: Path) -> RunReport:
    """Gather what is known about a run or a result."""
    if WorkDir(place).current_run_id() is not None or work_dirs_of(place):
        root = find_work_dir(place)
        return gather_run(open_run(root, allow_mixed_versions=True, only_look=True))
    if not is_converted(place):
        version = codebase_version(place)
        what = "holds neither a run nor a v3.0 dataset"
        raise UsageError(
            f"{place} {what}." if version is None else f"{place} is a {version} dataset.",
            path=str(place),
            next_step="Give the work dir that `leconvert plan` or `leconvert convert` printed, or a"
            " dataset that leconvert made.",
        )
    return story_of_result(place)


@any_storage_errors()
def gather_run(run: OpenedRun) -> RunReport:
    """Gather what the records of a run say."""
    manifest, run_id = run.manifest, run.manifest.run_id
    invocations = read_invocations(run.paths, run_id)
    clocks = _clocks(invocations)

    def shift(host: str) -> float:
        return clocks.get(host, 0.0)

    journal = Journal(run.paths, run_id)
    state = journal.read()
    workers = {worker.token: worker for worker in read_workers(run.paths, run_id)}
    found = read_attempts(run, workers, shift)
    claimed = {a.batch_id for a in found.attempts if a.end == "held"}
    counts = BatchCounts(
        manifest.num_batches, len(found.done), len(found.failed), len(claimed - found.failed)
    )
    verification = _verification(state)
    packed = state.step in _PACKED
    target = Path(manifest.target)
    tree = None
    quantiles = None
    if packed and is_converted(target, manifest.to):
        tree = measure_tree(open_dataset(target, version=manifest.to))
        quantiles = _has_quantiles(target) if manifest.to == TARGET_VERSIONS[0] else None
    remarks = list(found.remarks)
    if packed and tree is None:
        remarks.append(
            f"No {manifest.to} dataset stands at {target} any more; sizes are the workers' own."
        )
    return RunReport(
        name=target.name,
        state=_state(counts, verification, packed=packed),
        generated=datetime.now(UTC),
        target=manifest.target,
        sources=[manifest.outline] if manifest.outline else [s.root for s in manifest.sources],
        kept_source=(state.swap or {}).get("old"),
        work_dir=str(run.work_dir.root),
        run_id=run_id,
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        fps=_decimal(manifest),
        streams=_streams(run, found, tree),
        other_files=0 if tree is None else tree.other_files,
        other_bytes=0 if tree is None else tree.other_bytes,
        options=manifest.options,
        findings=manifest.findings,
        repairs=manifest.sources[0].repairs if len(manifest.sources) == 1 else NO_REPAIRS,
        verification=verification,
        batches=counts,
        set_aside=found.failed,
        attempts=found.attempts,
        packers=_packers(run, journal.generations(), clocks),
        invocations=invocations,
        planned_versions=manifest.versions,
        clocks=clocks,
        cloned_bytes=found.video_bytes[0],
        copied_bytes=found.video_bytes[1],
        worker_peak_bytes=max((w.peak_memory_bytes for w in workers.values()), default=0) or None,
        packer_peak_bytes=_number(state.notes.get("peak_memory_bytes")) or None,
        probe=read_probe(run.paths, run_id),
        remarks=remarks,
        quantiles=quantiles,
        version=manifest.to,
    )


def _clocks(invocations: Sequence[Invocation]) -> dict[str, float]:
    """Return for each host how far the shared clock is ahead; 0 where they agree."""
    seen: dict[str, list[float]] = {}
    for entry in invocations:
        if entry.file_system_ahead_seconds is not None:
            seen.setdefault(entry.host, []).append(entry.file_system_ahead_seconds)
    # Writing takes its time, which only ever adds: the smallest difference is the truest.
    least = {host: min(values) for host, values in seen.items()}
    return {host: s if abs(s) >= _CLOCKS_AGREE_SECONDS else 0.0 for host, s in least.items()}


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
            differences=_number(record.get("differences")),
            shown=[without_secrets_in(str(line)) for line in record.get("shown") or ()],
        )
    # Only a result that was proven takes its place.
    proven = depth not in {None, "none"} and state.step in _PACKED
    return None if depth is None else Verification(str(depth), True if proven else None)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _streams(run: OpenedRun, found: AttemptsFound, tree: TreeFigures | None) -> list[StreamFigures]:
    written: dict[str, list[int]] = {}
    files: dict[str, set[int]] = {}
    if tree is None:
        for batch in run.batches:
            for shard in batch.shards:
                size = found.shard_bytes.get((batch.batch_id, shard.name))
                if size is not None:
                    written.setdefault(shard.stream, []).append(size)
                    files.setdefault(shard.stream, set()).add(shard.number)
    rows = []
    for layout in run.manifest.streams:
        scan, _ = run.scan.stream(layout.stream)
        there, size = (
            tree.streams.get(layout.stream, (0, 0))
            if tree is not None
            else (len(files.get(layout.stream, ())), sum(written.get(layout.stream, ())))
        )
        rows.append(
            StreamFigures(
                stream=layout.stream,
                source_files=len(scan.files),
                source_bytes=int(scan.size_bytes.sum()),
                result_files=there,
                planned_files=layout.num_files,
                result_bytes=size,
            )
        )
    return rows


def _packers(
    run: OpenedRun, generations: Sequence[int], clocks: Mapping[str, float]
) -> list[Packer]:
    packers = []
    for generation in generations:
        path = run.paths.journal_record(generation)
        try:
            record: Mapping[str, Any] = read_record(
                path, "journal", version=JOURNAL_VERSION, run_id=run.manifest.run_id
            )
        except (OSError, LeconvertError):
            continue  # an older packer's word, which nobody goes by
        host, pid = str(record.get("host") or "?"), record.get("pid")
        times = record.get("times")
        seen = {} if not isinstance(times, Mapping) else {k: moment(v) for k, v in times.items()}
        packers.append(
            Packer(
                generation=generation,
                host=host,
                pid=pid if isinstance(pid, int) else 0,
                step=str(record.get("step")),
                times={str(k): v + clocks.get(host, 0.0) for k, v in seen.items() if v is not None},
            )
        )
    return packers


def _decimal(manifest: Manifest) -> str:
    return json.dumps(round(float(manifest.fps), 6)).removesuffix(".0")
