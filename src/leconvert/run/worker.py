"""The worker: lease a batch, write its shards, publish, and repeat until nothing is left.

A worker knows nothing about other workers. Two of them may write the same batch at the same time,
for example after one was suspended. Each writes into its own attempt folder, and only the exclusive
publishing of the ``done`` record decides whose shards count.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from leconvert import media, tables
from leconvert.dataset.formats import Sources, SourceView, open_sources
from leconvert.dataset.scan import changed_files, check_tables_unchanged, source_changed
from leconvert.model.values import (
    DATA_STREAM,
    Batch,
    BoolArray,
    IntArray,
    Shard,
    Slice,
    StreamScan,
    camera_of,
)
from leconvert.run.leasing import Board, HeartbeatKeeper, Lease, LeaseLostError
from leconvert.support.errors import (
    HubAccessError,
    HubError,
    InterruptedRunError,
    LeconvertError,
    SourceChangedError,
    SourceError,
    StorageError,
    UnreadableSourceError,
)
from leconvert.support.storage_errors import lacks_permission, machine_limits, storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.activity import WorkerReporter
from leconvert.workdir.fs import link_into_tree, status_now, sync_file
from leconvert.workdir.locks import Backoff
from leconvert.workdir.run import OpenedRun, check_current
from leconvert.workdir.swap import info_path, is_converted

_STATS_SUFFIX = ".stats.jsonl"
# The digest of a clip that was copied whole: the comparison reads both files.
_NOT_READ = ""

Files = Callable[[int], str]
"""Returns the path of the source file of a shard's slice, valid until the next call."""


class Inputs(Protocol):
    """Provides source files that are elsewhere; see `leconvert.remote.sparse_snapshot`."""

    def files(
        self, sources: Sequence[str], should_stop: Callable[[], bool]
    ) -> AbstractContextManager[Files]:
        """Provide files for paths in the plan's source, for the time of a block.

        A path that occurs several times is one file.
        """


class ShardWriter:
    """Writes shards of one run into folders that the caller owns.

    Guaranteed: its shards are on disk when it returns, and the source files were the planned ones
    before they were read. The packer checks before the swap that they still are.
    """

    def __init__(self, run: OpenedRun, inputs: Inputs | None = None) -> None:
        self._run = run
        self._inputs = inputs
        self._sources = open_sources(run.manifest.sources)
        self._is_migration = run.manifest.is_migration
        self._schema = tables.deserialize_schema(run.manifest.data_schema)
        cameras = {camera_of(layout.stream) for layout in run.manifest.streams}
        self._computed_stats = run.manifest.computed_stats
        # In order, because statistics are written as they are computed.
        self._column_stats = tuple(sorted(self._computed_stats - cameras))
        # Several shards may be cut from one file, which is then opened and parsed once.
        self._last_table = tables.LastTable()
        self._last_index = media.LastIndex()
        self._read: dict[str, _ReadSlices] = {}

    def close(self) -> None:
        """Close the files from which the last shards were cut."""
        self._last_table.close()
        self._last_index.forget()

    @contextmanager
    def batch(self, shards: Sequence[Shard]) -> Iterator[None]:
        """Check the source files of a batch's shards; then write the shards in the block.

        The files are not checked again after the block, since the packer checks them after all
        reading. If a file is the planned one by size, times and inode in both checks, it was so in
        between, unless it was moved away and back.

        The file that was read last stays open for the next batch. That batch checks that the file
        at its path is the planned one, so the open file is the right one. It is closed after an
        error, since the handle may be the cause, and if files are fetched and removed again.
        """
        try:
            spans: dict[str, tuple[int, int]] = {}
            for shard in shards:
                first, stop = spans.get(shard.stream, (shard.first, shard.stop))
                spans[shard.stream] = min(first, shard.first), max(stop, shard.stop)
            for stream, (first, stop) in spans.items():
                slices, index = self._run.scan.stream(stream, first, stop)
                paths = list(self._sources.absolute(stream, slices.files))
                self._read[stream] = _ReadSlices(slices, slices.is_whole, index, paths, first)
            self._check_unchanged()
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, SourceError) and not isinstance(error, SourceChangedError):
                # A source's tables are read when they are first needed, and may have changed by
                # then.
                check_tables_unchanged(self._run)
            raise
        finally:
            self._read.clear()
        if self._inputs is not None:
            self.close()

    def _check_unchanged(self) -> None:
        for stream, read in self._read.items():
            paths = iter(read.paths)
            for number, files in read.slices.files.by_source():
                own = list(islice(paths, len(files)))
                changes = changed_files(self._sources[number].dataset, stream, files, own)
                if changes:
                    raise source_changed(self._sources[number].root, changes)

    def write(
        self,
        shard: Shard,
        folder: Path,
        *,
        on_bytes: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> dict[str, Any]:
        """Write one shard of the current batch; return its entry for the ``done`` record."""
        name, computes = shard.name, self._computes(shard.stream)
        path = f"{folder}/{name}"
        job = _ShardJob(shard, path, self._read[shard.stream], self._sources, on_bytes, should_stop)
        # A migration keeps files unread, unless their statistics are computed.
        stays = shard.keep and self._is_migration and not computes
        try:
            if self._inputs is None or stays:
                written = self._write(job, job.paths.__getitem__, computes)
            else:
                with self._inputs.files(job.paths, should_stop) as files:
                    written = self._write(job, files, computes)
        except UnreadableSourceError:
            self._check_unchanged()  # a file that was replaced meanwhile is not a broken file
            raise
        job.finish()
        return {"path": name, **written}

    def _write(self, job: _ShardJob, files: Files, computes: bool) -> dict[str, Any]:
        """Write a shard, and the statistics of its episodes if they are computed.

        Decoding takes a hundred times as long as copying. So if a shard is decoded, an episode's
        bytes are reported when its statistics are computed.
        """
        is_table = job.shard.stream == DATA_STREAM
        on_bytes = None if computes else job.tell
        with ExitStack() as opened:
            stats = opened.enter_context(_StatsFile(job.path)) if computes else None
            observe = self._table_observer(job, stats) if stats and is_table else None
            if job.shard.keep:
                written = self._keep(job, files, on_bytes)
                if observe is not None:
                    observe(tables.read_rows(files(0), self._schema))
            elif is_table:
                written = self._join_tables(job, files, observe)
            else:
                written = self._join_clips(job, files, on_bytes)
            if stats and not is_table:
                for place, (found, levels) in enumerate(self._clip_stats(job, files)):
                    stats.add(job.shard.first + place, found, levels)
                    job.tell_episode(place)
            return {**written, **({"stats": stats.record()} if stats else {})}

    def _computes(self, stream: str) -> bool:
        """Return whether statistics of a stream's files are computed."""
        if stream == DATA_STREAM:
            return bool(self._column_stats)
        return camera_of(stream) in self._computed_stats

    def _keep(
        self, job: _ShardJob, files: Files, on_bytes: Callable[[int], None] | None
    ) -> dict[str, Any]:
        """Copy a file; in a migration, link it, because no process writes to stand-ins."""
        if self._is_migration:
            link_into_tree(job.paths[0], job.path)
            sync_file(job.path)
            size_bytes = Path(job.path).stat().st_size
            copied = media.CopiedFile(size_bytes, copied_bytes=0, cloned_bytes=0)
        else:
            copied = media.copy_file(
                files(0), job.path, on_bytes=on_bytes, should_stop=job.should_stop, sync=True
            )
        if job.shard.stream == DATA_STREAM:
            return {"size_bytes": copied.size_bytes}
        return _clip_entry(copied, [_NOT_READ])

    def _join_tables(
        self, job: _ShardJob, files: Files, observe: Callable[[pa.Table], None] | None
    ) -> dict[str, Any]:
        changes_rows = any(view.repairs.change_rows for view in self._sources)
        table = tables.join_tables(
            job.parts(),
            job.path,
            schema=self._schema,
            stored=files,
            repair=partial(self._repair, job) if changes_rows else None,
            # A fetched file is removed when its shard is written.
            last_table=self._last_table if self._inputs is None else None,
            on_table=observe,
            should_stop=job.should_stop,
            sync=True,
        )
        return {"size_bytes": table.size_bytes}

    def _join_clips(
        self, job: _ShardJob, files: Files, on_bytes: Callable[[int], None] | None
    ) -> dict[str, Any]:
        joined = media.join_clips(
            list(job.parts()),
            job.path,
            fps=self._run.manifest.fps,
            block_align=self._run.manifest.block_align,
            coded=files,
            last_index=self._last_index,
            on_bytes=on_bytes,
            should_stop=job.should_stop,
            sync=True,
        )
        return _clip_entry(joined, joined.clip_digests)

    def _repair(self, job: _ShardJob, place: int) -> tables.RowRepair | None:
        """Return the changes of an episode's rows, by its place in the shard."""
        view, number, position = *job.episode(place), job.shard.first + place
        if not view.repairs.change_rows:
            return None
        return tables.RowRepair(
            view.repairs,
            self._run.manifest.fps,
            position,
            int(self._first_indices[position]),
            # The result's task for all rows; None if each row has its own.
            None if view.repairs.tasks_from is None else view.listed_tasks.get(number),
            is_trimmed=number in view.repairs.trimmed_episodes,
        )

    def _table_observer(self, job: _ShardJob, stats: _StatsFile) -> Callable[[pa.Table], None]:
        # Only runs that compute statistics need these imports.
        from leconvert.dataset.statistics import table_stats

        places = iter(range(len(job.paths)))

        def observe(table: pa.Table) -> None:
            place = next(places)
            view, number = job.episode(place)
            repairs = view.repairs
            levels: dict[str, Any] | None = {} if repairs.quantiles else None
            found = table_stats(
                table,
                self._sources.features,
                names=[n for n in self._column_stats if repairs.computes_stats(n, number)],
                quantiles=repairs.quantiles,
                path=job.paths[place],
                levels=levels,
            )
            stats.add(job.shard.first + place, found, levels)
            job.tell_episode(place)

        return observe

    def _clip_stats(
        self, job: _ShardJob, files: Files
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Yield a camera's statistics and levels for each episode of a shard, if wanted."""
        from leconvert.dataset.statistics import clip_stats

        camera, shard = str(camera_of(job.shard.stream)), job.shard
        feature = self._sources.features[camera]
        file, first = job.paths, job.first_frames()
        episodes = [job.episode(place) for place in range(len(file))]
        computed = [view.repairs.computes_stats(camera, number) for view, number in episodes]
        frames = self._run.scan.lengths(shard.first, shard.stop)[1].tolist()
        place = 0
        while place < len(file):
            if not computed[place]:
                yield {}, None
                place += 1
                continue
            # Consecutive slices of a file are decoded in one pass.
            stop = place + 1
            while (
                stop < len(file)
                and file[stop] == file[place]
                and first[stop] >= first[stop - 1] + frames[stop - 1]
                and computed[stop]
            ):
                stop += 1
            source = files(place)
            spans = list(zip(first[place:stop], frames[place:stop], strict=True))
            quantiles = episodes[place][0].repairs.quantiles
            levels: list[Any] | None = [] if quantiles else None
            found = clip_stats(source, spans, feature, quantiles=quantiles, levels=levels)
            for _ in spans:
                if job.should_stop():
                    raise InterruptedRunError(f"Stopped while reading {source}.", path=source)
                stats = {camera: next(found)}
                yield stats, {camera: levels.pop()} if levels else None
            place = stop

    @cached_property
    def _first_indices(self) -> IntArray:
        """Position of each episode's first frame in the result, shape (E,); 8 bytes per episode."""
        _, length = self._run.scan.lengths()
        return np.concatenate(([0], np.cumsum(length)[:-1]))


def _clip_entry(moved: media.CopiedFile, clip_digests: Sequence[str]) -> dict[str, Any]:
    """Return a video file's entry for the ``done`` record."""
    return {
        "size_bytes": moved.size_bytes,
        "copied_bytes": moved.copied_bytes,
        "cloned_bytes": moved.cloned_bytes,
        "clip_digests": list(clip_digests),
    }


class _ReadSlices(NamedTuple):
    """The slices of one stream that a batch reads.

    Attributes:
        slices: The slices of neighbouring episodes.
        is_whole: Whether each slice is its whole file.
        episode_index: Index of each of the episodes in its source.
        paths: The slices' files, in the order of ``slices.files``.
        position: Position of the first of the episodes.
    """

    slices: StreamScan
    is_whole: BoolArray
    episode_index: IntArray
    paths: Sequence[str]
    position: int


class _ShardJob:
    """One shard to write.

    Attributes:
        shard: The stream and its episodes.
        path: The path of the shard.
        paths: The path of each slice's file; slices of one file have the same object.
        should_stop: Asked from time to time; True ends the work.
    """

    def __init__(
        self,
        shard: Shard,
        path: str,
        read: _ReadSlices,
        sources: Sources,
        on_bytes: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._read = read
        self._rows = slice(shard.first - read.position, shard.stop - read.position)
        self.shard = shard
        self.path = path
        self.paths = [read.paths[number] for number in read.slices.file[self._rows].tolist()]
        self.should_stop = should_stop
        self._sources = sources
        self._on_bytes = on_bytes
        self._told_bytes = 0

    def parts(self) -> Iterator[Slice]:
        """Yield the slices one at a time: a file of short episodes has tens of thousands."""
        slices, rows = self._read.slices, self._rows
        # Lists, because taking one value of an array costs ten times as much.
        first, frames = slices.first[rows].tolist(), slices.frames[rows].tolist()
        is_whole = self._read.is_whole[rows].tolist()
        for path, begin, number, whole in zip(self.paths, first, frames, is_whole, strict=True):
            yield Slice(path, None if whole else begin, number)

    def episode(self, place: int) -> tuple[SourceView, int]:
        """Return the source of an episode of the shard, and the episode's index there."""
        slices, at = self._read.slices, self._rows.start + place
        source = slices.files.source[slices.file[at]]
        return self._sources[int(source)], int(self._read.episode_index[at])

    def first_frames(self) -> list[int]:
        """Return the position of each episode's first frame in its file."""
        slices, rows = self._read.slices, self._rows
        first: list[int] = (slices.first[rows] + slices.lead[rows]).tolist()
        return first

    def tell(self, size_bytes: int) -> None:
        """Report source bytes that are done."""
        self._told_bytes += size_bytes
        self._on_bytes(size_bytes)

    def tell_episode(self, place: int) -> None:
        """Report all source bytes of an episode, by its place in the shard."""
        self.tell(int(self._read.slices.size_bytes[self._rows.start + place]))

    def finish(self) -> None:
        """Report source bytes that are not samples, such as indices and tables."""
        rest = int(self._read.slices.size_bytes[self._rows].sum()) - self._told_bytes
        if rest:
            self.tell(rest)


class _StatsFile:
    """Statistics of a shard's episodes, one JSON line each, in the order of the shard."""

    def __init__(self, shard_path: str) -> None:
        self._path = shard_path + _STATS_SUFFIX
        self._digest = hashlib.sha256()
        self._file = open(self._path, "xb")  # noqa: PTH123, SIM115 - for every shard; see __exit__

    def __enter__(self) -> Self:
        """Return the file, which is on disk at the end of the block."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is None:
            sync_file(self._path)

    def add(
        self, position: int, stats: dict[str, Any], levels: dict[str, Any] | None = None
    ) -> None:
        """Append one episode's line.

        Args:
            position: The episode's position in the result.
            stats: Its statistics by feature.
            levels: `ImageStats.levels` by feature, from which the packer computes quantiles.
        """
        record = {"episode_index": position, "stats": stats}
        record |= {"levels": levels} if levels else {}
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self._digest.update(line)
        self._file.write(line)

    def record(self) -> dict[str, Any]:
        """Return the entry about the file for the shard's record."""
        return {
            "path": Path(self._path).name,
            "size_bytes": self._file.tell(),
            "sha256": self._digest.hexdigest(),
        }


# An idle worker notices a request to stop within this time.
_LONGEST_NAP_SECONDS = 0.5
_SECONDS_BETWEEN_CHECKS = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """The work of one worker.

    Attributes:
        batches_done: Batches whose results it published.
        batches_lost: Batches that another worker published first.
        batches_failed: Tries that ended in an error.
        written_bytes: Bytes of the shards it published.
        frames: Frames and rows in these shards.
        seconds: From start to end, including waiting.
    """

    batches_done: int
    batches_lost: int
    batches_failed: int
    written_bytes: int
    frames: int
    seconds: float


class Worker:
    """One worker on one run.

    Guaranteed: a shard is on disk before a ``done`` record names it, and the source files of a
    batch were the planned ones before they were read. Not guaranteed: that no other worker works on
    the batch.

    Args:
        run: The run to work on.
        board: Its view of the batches, under its identity.
        stop: Set from outside to make it hand back its batch and return.
        on_bytes: Called with the number of source bytes that are done, times the weight of their
            stream.
        weights: How many times a byte of a stream counts; 1 for other streams.
        reporter: Writes its activity for ``status``, or None.
        batch_ended: Shared by the workers of a process: the end of a batch wakes idle workers. None
            for the only worker of a process, whose naps end when ``stop`` is set.
        patience: How long a failing disk or Hub is tried again; by default not at all.
        inputs: Provides the files of a source that is not on this machine.
        waiter: Waits for the event or for some seconds; returns whether the event is set.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        run: OpenedRun,
        board: Board,
        *,
        stop: threading.Event,
        on_bytes: Callable[[int], None] | None = None,
        weights: Mapping[str, int] | None = None,
        reporter: WorkerReporter | None = None,
        batch_ended: threading.Condition | None = None,
        patience: Backoff | None = None,
        inputs: Inputs | None = None,
        waiter: Callable[[threading.Event, float], bool] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._patience = patience or Backoff(0)
        self._waiter = waiter
        self._clock = clock
        self._next_check = clock()
        self._late: list[tuple[Lease, str]] = []
        self._result_before = _result_at(run)
        self._batch_ended = batch_ended
        self._board = board
        self._stop = stop
        self._on_bytes = on_bytes
        self._weights = weights or {}
        self._reporter = reporter
        self._shards = ShardWriter(run, inputs)

    def run(
        self, *, max_batches: int | None = None, max_idle_seconds: float | None = None
    ) -> WorkerSummary:
        """Work until every batch is done or set aside.

        While others hold the remaining batches, the worker waits, and takes over expired ones.

        Args:
            max_batches: End after this many batches; None for no limit.
            max_idle_seconds: End after waiting this long for work; None for no limit.
        """
        try:
            return self._run_batches(max_batches, max_idle_seconds)
        finally:
            self._shards.close()
            with suppress(StorageError, OSError):
                self._hand_back_late()
            if self._reporter is not None:
                self._reporter.end()

    def _run_batches(
        self, max_batches: int | None, max_idle_seconds: float | None
    ) -> WorkerSummary:
        started = self._clock()
        # A batch that another worker published first counts there, and a failed one nowhere.
        tried: Counter[str] = Counter()
        written = frames = 0
        idle_since: float | None = None
        while max_batches is None or tried.total() < max_batches:
            if self._stop.is_set():
                raise _stopped()
            try:
                if self._is_over():
                    break
                self._hand_back_late()
                lease = self._board.next_lease()
                if lease is None and self._board.all_settled():
                    break
                if lease is not None:
                    idle_since = None
                    batch = self._read_batch(lease)
                    self._report(batch)
                    outcome, size_bytes = self._try_batch(lease, batch)
                else:
                    now = self._clock()
                    idle_since = idle_since if idle_since is not None else now
                    if max_idle_seconds is not None and now - idle_since >= max_idle_seconds:
                        break
                    self._idle()
                    continue
            except (StorageError, HubError, OSError) as error:
                self._bear(error)
                continue
            self._patience.reset()
            tried[outcome] += 1
            won = (size_bytes, batch.frames) if outcome == "won" else (0, 0)
            written, frames = written + won[0], frames + won[1]
            self._report(None, *won)
            if self._batch_ended is not None:
                with self._batch_ended:
                    self._batch_ended.notify_all()
        ended = (tried["won"], tried["lost"], tried["failed"])
        return WorkerSummary(*ended, written, frames, self._clock() - started)

    def _idle(self) -> None:
        self._shards.close()
        if self._reporter is not None:
            self._reporter.wait()
        # Nothing notifies of a file that another host makes, so look repeatedly.
        nap = min(self._board.wait_hint(), _LONGEST_NAP_SECONDS)
        if self._batch_ended is None:
            self._waiter(self._stop, nap)
            return
        with self._batch_ended:
            is_told = self._batch_ended.wait(nap)
        if is_told:
            self._board.refresh()

    def _is_over(self) -> bool:
        """Return whether the run has ended; looks at most once a second."""
        now = self._clock()
        if now < self._next_check:
            return False
        self._next_check = now + _SECONDS_BETWEEN_CHECKS
        try:
            check_current(self._run.work_dir, self._run.paths, self._run.one_host)
        except StorageError:
            # A finished conversion removes its work dir; an unmounted file system has no result. A
            # dataset that was there before, to be replaced (--force-conversion), is no result.
            result = _result_at(self._run)
            if result is None or result == self._result_before:
                raise
            return True
        return False

    def _bear(self, error: StorageError | HubError | OSError) -> None:
        """Wait before the next try, or raise the error if no further try is made.

        If this user has no permission, waiting is useless: only people can change that.
        """
        try:
            self._next_check = self._clock()
            if self._is_over():
                self._next_check = self._clock()  # so the next look ends it
                return
        except StorageError as clearer:
            error = clearer
        pause = None if lacks_permission(error) else self._patience.next_pause()
        if pause is None:
            if isinstance(error, LeconvertError) and self._patience.spent_seconds:
                borne = f"The worker kept trying for {self._patience.spent_seconds:.0f} s."
                error.details = (*error.details, borne)
            raise error
        if self._waiter(self._stop, pause):
            raise _stopped()

    def _hand_back(self, lease: Lease, reason: str) -> None:
        """Hand back now or, if the disk fails, later, so that the original error is raised.

        If the disk's error were raised instead of a Ctrl-C, the worker would wait and continue.
        """
        try:
            lease.hand_back(reason)
        except (StorageError, OSError):
            self._late.append((lease, reason))

    def _hand_back_late(self) -> None:
        """Hand back leases whose hand-back failed before."""
        while self._late:
            lease, reason = self._late[-1]
            lease.hand_back(reason)
            self._late.pop()

    def _read_batch(self, lease: Lease) -> Batch:
        try:
            return self._run.batches.read(lease.batch_id)
        except BaseException:
            # Nothing was tried, so another worker that can read the plan need not wait for this
            # lease.
            self._hand_back(lease, "the plan could not be read")
            raise

    def _report(self, batch: Batch | None, size_bytes: int = 0, frames: int = 0) -> None:
        if self._reporter is not None:
            self._reporter.update(
                batch_id=None if batch is None else batch.batch_id,
                add_bytes=size_bytes,
                add_frames=frames,
            )

    def _try_batch(self, lease: Lease, batch: Batch) -> tuple[str, int]:
        """Try one batch; settle its lease in any case."""
        try:
            with machine_limits(), HeartbeatKeeper(lease) as keeper:
                shards = self._write_shards(lease, batch, keeper.lost)
            outcome = lease.publish_done({"shards": shards})
        except LeaseLostError:
            lease.abandon()
            return "lost", 0
        except (InterruptedRunError, StorageError, HubError, HubAccessError) as error:
            # None of these is the batch's fault, so it is handed back and does not count as failed.
            self._hand_back(lease, error.message)
            raise
        except Exception as error:  # a bug must set its batch aside, not hang the run
            # A worker that stood still while others ended the run may find the result, or nothing,
            # where the source was.
            if not lease.is_needed():
                lease.abandon()
                return "lost", 0
            if isinstance(error, SourceChangedError):  # nor is this the batch's fault
                self._hand_back(lease, error.message)
                raise
            if isinstance(error, LeconvertError):
                lease.fail(error, "")
            else:
                bug = LeconvertError(f"{type(error).__name__}: {error}")
                lease.fail(bug, traceback.format_exc())
            return "failed", 0
        except BaseException:
            self._hand_back(lease, "the worker was interrupted")
            raise
        return outcome, sum(shard["size_bytes"] for shard in shards)

    def _write_shards(
        self, lease: Lease, batch: Batch, lease_lost: threading.Event
    ) -> list[dict[str, Any]]:
        def should_stop() -> bool:
            return lease_lost.is_set() or self._stop.is_set()

        written: list[dict[str, Any]] = []
        with storage_errors(lease.attempt_dir), self._shards.batch(batch.shards):
            for shard in batch.shards:
                record: dict[str, Any] = {}
                with storage_errors(f"{lease.attempt_dir}/{shard.name}"):
                    # `should_stop` ends it early; the reason is checked below.
                    with suppress(InterruptedRunError):
                        record = self._shards.write(
                            shard,
                            lease.attempt_dir,
                            on_bytes=partial(self._tell, self._weights.get(shard.stream, 1)),
                            should_stop=should_stop,
                        )
                    if lease_lost.is_set():
                        raise LeaseLostError(f"batch {batch.batch_id} was taken over")
                    if self._stop.is_set():
                        raise _stopped()
                written.append(record)
        return written

    def _tell(self, weight: int, size_bytes: int) -> None:
        if self._reporter is not None:
            self._reporter.advance(size_bytes)
        if self._on_bytes:
            self._on_bytes(size_bytes * weight)


def _result_at(run: OpenedRun) -> tuple[int, ...] | None:
    """Return facts that identify the result at the target; None if there is none."""
    target = Path(run.manifest.target)
    if not is_converted(target, run.manifest.to):
        return None
    try:
        seen = status_now(info_path(target))
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _stopped() -> InterruptedRunError:
    return InterruptedRunError(
        "The run was stopped. The unfinished batches are free for other workers.",
        next_step="Run the same command again to continue. Finished batches stay finished.",
    )
