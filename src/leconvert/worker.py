"""The worker: lease a batch, write its shards, publish, again until nothing is left.

A worker knows nothing of other workers. Two of them may write the same batch at the same time
(one was suspended, say); each writes into an attempt folder of its own, and only the exclusive
publish of the ``done`` record decides whose shards count.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leconvert import media, tables
from leconvert.errors import (
    InterruptedRunError,
    LeconvertError,
    SourceChangedError,
    StorageError,
    UnreadableSourceError,
)
from leconvert.leasing import Board, HeartbeatKeeper, Lease, LeaseLostError, LeaseStore
from leconvert.leasing.registry import WorkerReporter
from leconvert.model import DATA_STREAM, Batch, Shard
from leconvert.source import SourcePaths, changed_files, load_info, source_changed
from leconvert.workdir.durable import storage_errors, sync_dir, sync_file
from leconvert.workdir.opened import OpenedRun

__all__ = ["Bell", "Worker", "WorkerSummary"]

# An idle worker notices a request to stop within this time.
_LONGEST_NAP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What one worker did.

    Attributes:
        batches_done: Batches whose results it published.
        batches_lost: Batches that another worker published first.
        batches_failed: Tries that ended in an error.
        written_bytes: Bytes of the shards it published.
        frames: Frames and rows in them.
        seconds: From start to end, waiting included.
    """

    batches_done: int
    batches_lost: int
    batches_failed: int
    written_bytes: int
    frames: int
    seconds: float


class Bell:
    """Wakes the idle workers of one process when another of them ends a batch.

    It only saves waiting: a worker that misses a ring looks again by itself.
    """

    def __init__(self) -> None:
        self._rung = threading.Condition()

    def ring(self) -> None:
        """Wake all who wait."""
        with self._rung:
            self._rung.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for a ring, at most so long; say whether it came."""
        with self._rung:
            return self._rung.wait(seconds)


class Worker:
    """One worker on one run.

    It guarantees that a shard is on disk before it is named by a ``done`` record, and that the
    source files of a batch were the planned ones before and after they were read. It does not
    guarantee to be alone on a batch.

    Args:
        run: The run to work on.
        store: The leases, under this worker's identity.
        board: Its view of the batches.
        stop: Set from outside to make it hand back its batch and return.
        on_bytes: Called with the number of bytes as they are written.
        reporter: Writes what it is doing for ``status``, or None.
        bell: Shared by the workers of a process, or None.
    """

    def __init__(
        self,
        run: OpenedRun,
        store: LeaseStore,
        board: Board,
        *,
        stop: threading.Event,
        on_bytes: Callable[[int], None] | None = None,
        reporter: WorkerReporter | None = None,
        bell: Bell | None = None,
    ) -> None:
        self._run = run
        self._bell = bell or Bell()
        self._store = store
        self._board = board
        self._stop = stop
        self._on_bytes = on_bytes
        self._reporter = reporter
        root = Path(run.manifest.source)
        self._root = root
        self._paths = SourcePaths(root, load_info(root))
        self._schema = tables.deserialize_schema(run.manifest.data_schema)

    def run(
        self, *, max_batches: int | None = None, max_idle_seconds: float | None = None
    ) -> WorkerSummary:
        """Work until every batch is done or set aside.

        While others hold the rest, the worker watches, and takes over what expires.

        Args:
            max_batches: Stop after so many tries.
            max_idle_seconds: Stop after waiting so long for something to do.

        Raises:
            SourceChangedError: A source file is not the planned one.
            StorageError: The work dir cannot be written.
            InterruptedRunError: ``stop`` was set; the batch in hand was handed back.
        """
        try:
            return self._run_batches(max_batches, max_idle_seconds)
        finally:
            if self._reporter is not None:
                self._reporter.end()

    def _run_batches(
        self, max_batches: int | None, max_idle_seconds: float | None
    ) -> WorkerSummary:
        started = time.monotonic()
        done = lost = failed = written = frames = 0
        idle_since: float | None = None
        while max_batches is None or done + lost + failed < max_batches:
            if self._stop.is_set():
                raise _stopped()
            lease = self._board.next_lease()
            if lease is None:
                if self._board.all_settled():
                    break
                now = time.monotonic()
                idle_since = idle_since if idle_since is not None else now
                if max_idle_seconds is not None and now - idle_since >= max_idle_seconds:
                    break
                # Nothing tells of a file that another host will make: look again and again.
                if self._bell.wait(min(self._board.wait_hint(), _LONGEST_NAP_SECONDS)):
                    self._board.refresh()
                continue
            idle_since = None
            batch = self._run.batches.read(lease.batch_id)
            self._report(batch)
            outcome, size_bytes = self._try_batch(lease, batch)
            if outcome == "won":
                done += 1
                written += size_bytes
                frames += batch.frames
            elif outcome == "failed":
                failed += 1
            else:
                lost += 1
            self._bell.ring()
            self._report(None, size_bytes, batch.frames if outcome == "won" else 0)
        return WorkerSummary(done, lost, failed, written, frames, time.monotonic() - started)

    def _report(self, batch: Batch | None, size_bytes: int = 0, frames: int = 0) -> None:
        if self._reporter is not None:
            self._reporter.update(
                batch_id=None if batch is None else batch.batch_id,
                add_bytes=size_bytes,
                add_frames=frames,
            )

    def _try_batch(self, lease: Lease, batch: Batch) -> tuple[str, int]:
        """Try one batch and settle its lease whatever happens."""
        try:
            with HeartbeatKeeper(lease) as keeper:
                shards = self._write_shards(lease, batch, keeper.lost)
            outcome = lease.publish_done({"shards": shards})
        except LeaseLostError:
            lease.abandon()
            return "lost", 0
        except (InterruptedRunError, SourceChangedError, StorageError) as error:
            # None of these is the batch's fault: it goes back without a mark against it.
            lease.hand_back(error.message)
            raise
        except LeconvertError as error:
            lease.fail(error, "")
            return "failed", 0
        except Exception as error:  # noqa: BLE001 - a bug must set its batch aside, not hang the run
            lease.fail(LeconvertError(f"{type(error).__name__}: {error}"), traceback.format_exc())
            return "failed", 0
        except BaseException:
            lease.hand_back("the worker was interrupted")
            raise
        return outcome, sum(shard["size_bytes"] for shard in shards)

    def _write_shards(
        self, lease: Lease, batch: Batch, lease_lost: threading.Event
    ) -> list[dict[str, Any]]:
        def should_stop() -> bool:
            return lease_lost.is_set() or self._stop.is_set()

        written: list[dict[str, Any]] = []
        folders: set[Path] = set()
        for shard in batch.shards:
            path = lease.attempt_dir / shard.name
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    record = self._write_shard(shard, path, should_stop)
                except InterruptedRunError:
                    record = {}  # it was `should_stop` that ended it; why is asked below
                if lease_lost.is_set():
                    raise LeaseLostError(f"batch {batch.batch_id} was taken over")
                if self._stop.is_set():
                    raise _stopped()
                sync_file(path)
            written.append(record)
            folders.update(p for p in path.parents if p.is_relative_to(lease.attempt_dir))
        for folder in sorted(folders, reverse=True):
            sync_dir(folder)
        return written

    def _write_shard(
        self, shard: Shard, path: Path, should_stop: Callable[[], bool]
    ) -> dict[str, Any]:
        """Write one shard, between two looks at its source files."""
        scan, episode_index = self._run.scan.stream(shard.stream, shard.first, shard.stop)
        sources = [self._paths.absolute(shard.stream, index) for index in episode_index.tolist()]
        frames = scan.frames.tolist()

        def check_unchanged() -> None:
            changes = changed_files(self._paths, scan, episode_index)
            if changes:
                raise source_changed(self._root, changes)

        check_unchanged()
        told = 0

        def tell(size_bytes: int) -> None:
            nonlocal told
            told += size_bytes
            if self._on_bytes:
                self._on_bytes(size_bytes)

        record: dict[str, Any] = {"path": shard.name}
        try:
            if shard.stream == DATA_STREAM:
                table = tables.join_tables(
                    [
                        tables.RowRange(source, rows)
                        for source, rows in zip(sources, frames, strict=True)
                    ],
                    path,
                    schema=self._schema,
                    should_stop=should_stop,
                )
                record |= {"size_bytes": table.size_bytes, "header_sha256": table.footer_sha256}
            else:
                joined = media.join_clips(
                    [media.ClipRange(source) for source in sources],
                    path,
                    fps=self._run.manifest.fps,
                    block_align=self._run.manifest.block_align,
                    scratch_dir=path.parent,
                    on_bytes=tell,
                    should_stop=should_stop,
                )
                if joined.samples != sum(frames):
                    raise UnreadableSourceError(
                        f"{path.name} got {joined.samples} frames, the scan counted {sum(frames)}.",
                        path=str(path),
                    )
                record |= {
                    "size_bytes": joined.size_bytes,
                    "header_sha256": joined.header_sha256,
                    "copied_bytes": joined.copied_bytes,
                    "cloned_bytes": joined.cloned_bytes,
                    "remuxed": [list(entry) for entry in joined.remuxed],
                    "clip_digests": list(joined.clip_digests),
                }
        except UnreadableSourceError:
            check_unchanged()  # a file replaced under us is not a broken file
            raise
        check_unchanged()
        tell(
            int(scan.size_bytes.sum()) - told
        )  # source bytes that are not samples: indices, tables
        return record


def _stopped() -> InterruptedRunError:
    return InterruptedRunError(
        "The run was stopped; what was being written was handed back.",
        next_step="Run the same command again to go on; finished batches stay finished.",
    )
