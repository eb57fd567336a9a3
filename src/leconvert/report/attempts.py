"""Who tried which batch when, read from lease logs and the records that settle batches.

It costs a listing and a record for a batch that went well, and a few records for one that did not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from leconvert.errors import LeconvertError
from leconvert.leasing import WorkerRecord, list_batches, read_done
from leconvert.leasing.log import DONE_VERSION, LeaseLogFiles
from leconvert.leasing.state import Generation, LeaseLog, Outcome
from leconvert.model import Batch
from leconvert.report.values import Attempt, AttemptEnd
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.records import decode_record, read_record
from leconvert.workdir.secrets import without_secrets_in

__all__ = ["AttemptsFound", "moment", "read_attempts", "seconds_of"]

_VOID = re.compile(r"([0-9]{6,})\.void-([0-9]+)\Z")
_UNREADABLE = (OSError, LeconvertError, KeyError, TypeError, ValueError, AttributeError)


@dataclass(slots=True)
class AttemptsFound:
    """What the records of a run say.

    Attributes:
        attempts: Every try, by batch and claim.
        done: Batches with a result.
        failed: Batches that were set aside and have none.
        shard_bytes: Size of every written shard by batch and name.
        video_bytes: Coded bytes shared with the source, and copied.
        remarks: What could not be read.
    """

    attempts: list[Attempt] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    shard_bytes: dict[tuple[int, str], int] = field(default_factory=dict)
    video_bytes: tuple[int, int] = (0, 0)
    remarks: list[str] = field(default_factory=list)


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
    """Read who tried which batch when.

    Args:
        run: The run.
        workers: What each worker said of itself, by token.
        shift: Seconds to add to a host's times.

    Raises:
        FileNotFoundError: The run was removed.
        StorageError: A folder cannot be read.
    """
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
