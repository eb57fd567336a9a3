"""The packer: collect shards, assemble the new tree, prove it, swap it into place.

It costs O(files), not O(bytes): a shard that is a whole output file is linked into the tree. Only
parts of files (batches of episode ranges) are joined here.

A packer may be killed at any moment; the next one goes on. The tree is built beside the target
under a name that carries the packer's generation, and a packer that takes over first renames it to
its own generation's name, so that a predecessor that still lives finds its tree gone and can swap
nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert import media, tables
from leconvert.errors import (
    BatchesFailedError,
    IncompleteError,
    InterruptedRunError,
    TargetError,
    UsageError,
    VerificationError,
    WorkDirError,
)
from leconvert.leasing import Board, LeaseStore, read_done, read_failed, void_done
from leconvert.model import DATA_STREAM, OutputFile, Shard, camera_of
from leconvert.progress import NO_PROGRESS, Progress
from leconvert.source import (
    EpisodeLines,
    check_source_unchanged,
    check_tables_unchanged,
    load_info,
    load_tasks,
)
from leconvert.source.info import INFO_PATH
from leconvert.source.legacy import EPISODES_PATH, STATS_PATH
from leconvert.verify import verify_pair
from leconvert.workdir.durable import (
    link_into_tree,
    make_folders_below,
    remove_tree,
    storage_errors,
    sync_file,
)
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.journal import Journal, PackStep
from leconvert.workdir.locks import packer_lock
from leconvert.workdir.opened import OpenedRun
from leconvert.workdir.swap import (
    SwapOutcome,
    SwapPlan,
    adopt_staging,
    recover_swap,
    swap_into_place,
)
from leconvert.workdir.target import check_target, old_dir

__all__ = [
    "PackOptions",
    "PackReport",
    "check_all_done",
    "is_packed",
    "pack_run",
    "swap_has_begun",
]

_WAIT_SECONDS = 1.0
_DIFFERENCES_SHOWN = 20
_PARTIAL = ".partial"
_DEPTHS = ("structure", "bytes", "none")
_FAILURES_SHOWN = 20
_DIGEST_TYPE = "S16"  # what `leconvert.media.order_digest` returns


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a run is packed.

    Attributes:
        verify: ``structure``, ``bytes`` or ``none``: what is proven before the swap.
        force_conversion: Replace a v3.0 dataset at the target; it is kept as ``<target>_old``.
    """

    verify: str = "structure"
    force_conversion: bool = False

    def check_target(self, source: Path, target: Path) -> None:
        """Refuse a target that something stands in, before any work is done.

        Raises:
            UsageError: ``verify`` is no known depth.
            TargetError: Something is in the way; the message says what helps.
        """
        if self.verify not in _DEPTHS:
            raise UsageError(f"--verify takes {', '.join(_DEPTHS)}, not {self.verify!r}.")
        check_target(target, self.old_place(source, target))

    def old_place(self, source: Path, target: Path) -> Path | None:
        """Return where the tree at the target goes, None where the target must be free.

        Raises:
            TargetError: Something is at the target that may not be replaced.
        """
        if source == target:
            return old_dir(target)
        if not os.path.lexists(target):
            return None
        version = _codebase_version(target)
        if version is None or not version.startswith("v3"):
            raise TargetError(
                f"{target} exists and is no v3.0 dataset.",
                path=str(target),
                next_step="Choose another --output, or move it away.",
            )
        if not self.force_conversion:
            raise TargetError(
                f"{target} already holds a {version} dataset.",
                path=str(target),
                next_step="Nothing needs to be done if it is this one; --force-conversion replaces "
                f"it and keeps it as {old_dir(target)}.",
            )
        return old_dir(target)


@dataclass(frozen=True, slots=True)
class PackReport:
    """What the packer did.

    Attributes:
        target: The v3.0 dataset.
        kept: Where the replaced dataset is, or None.
        linked: Files that were linked into the tree.
        copied: Shards that had to be copied, because the work dir is on another file system.
        joined: Files that were joined from parts.
        cloned_bytes: Coded video bytes that the workers shared with the source.
        copied_bytes: Coded video bytes that they copied.
        verified: The depth of the check.
    """

    target: Path
    kept: Path | None
    linked: int
    copied: int
    joined: int
    cloned_bytes: int
    copied_bytes: int
    verified: str

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        record["target"] = str(self.target)
        record["kept"] = None if self.kept is None else str(self.kept)
        return record


class _Assembly:
    """The new tree, file by file. Whatever has its final name there is complete."""

    def __init__(self, run: OpenedRun, tree: Path) -> None:
        self._run = run
        self._tree = tree
        self.linked = self.copied = self.joined = 0

    def add_file(self, file: OutputFile, shards: list[tuple[Shard, Path]]) -> None:
        """Bring one output file into the tree."""
        target = self._tree / file.path
        if len(shards) == 1 and shards[0][0].whole:
            outcome = link_into_tree(shards[0][1], target, tree=self._tree)
            if outcome == "linked":
                self.linked += 1
            else:
                self.copied += 1
            return
        self.joined += 1
        if target.exists():
            return  # joined by a packer that was killed later
        shards.sort(key=lambda entry: entry[0].first)
        self._check_parts(file, shards)
        self._put(target, lambda partial: self._join(file, shards, partial))

    def add_copy(self, source: Path, relative: str) -> None:
        """Copy one file that comes along unchanged."""
        target = self._tree / relative
        self._put(target, lambda partial: shutil.copyfile(source, partial))

    def add_meta(self) -> None:
        """Write every table under ``meta/`` anew."""
        with storage_errors(self._tree):
            make_folders_below(self._tree, self._tree / "meta")
            shutil.rmtree(self._tree / "meta" / "episodes", ignore_errors=True)
            written = _write_meta(self._run, self._tree)
            for path in written:
                sync_file(self._tree / path)

    def _put(self, target: Path, write: Callable[[Path], object]) -> None:
        partial = target.with_name(target.name + _PARTIAL)
        with storage_errors(target):
            # Never the tree itself: a packer that was superseded must not make it again.
            make_folders_below(self._tree, target.parent)
            partial.unlink(missing_ok=True)
            write(partial)
            sync_file(partial)
            partial.replace(target)

    def _check_parts(self, file: OutputFile, shards: list[tuple[Shard, Path]]) -> None:
        edges = [file.first, *(stop for shard, _ in shards for stop in (shard.stop,))]
        begins = [shard.first for shard, _ in shards]
        if begins != edges[:-1] or edges[-1] != file.stop:
            raise WorkDirError(
                f"{self._run.paths.batches} does not cover {file.path} without gaps.",
                path=str(self._run.paths.batches),
                next_step="Start a new run with --restart.",
            )

    def _join(self, file: OutputFile, shards: list[tuple[Shard, Path]], target: Path) -> None:
        scan, _ = self._run.scan.stream(file.stream, file.first, file.stop)
        frames = scan.frames.tolist()
        if file.stream == DATA_STREAM:
            rows = [
                tables.RowRange(str(path), frames[position - file.first], group)
                for shard, path in shards
                for group, position in enumerate(range(shard.first, shard.stop))
            ]
            schema = tables.deserialize_schema(self._run.manifest.data_schema)
            tables.join_tables(rows, target, schema=schema)
            return
        clips = []
        for shard, path in shards:
            part = frames[shard.first - file.first : shard.stop - file.first]
            ends = list(itertools.accumulate(part))
            clips += [
                media.ClipRange(str(path), end - count, count)
                for end, count in zip(ends, part, strict=True)
            ]
        media.join_clips(
            clips,
            target,
            fps=self._run.manifest.fps,
            block_align=self._run.manifest.block_align,
            scratch_dir=target.parent,
        )


def pack_run(
    run: OpenedRun,
    options: PackOptions | None = None,
    *,
    wait: bool = True,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> PackReport:
    """Assemble a run's result and swap it into place.

    Args:
        run: The run.
        options: What to prove, and whether a v3.0 target may be replaced.
        wait: Wait for workers until every batch is done; otherwise say what is missing.
        stop: Set it from another thread to stop between two steps.
        progress: Where to report.

    Raises:
        BusyError: Another process packs this run.
        IncompleteError: Batches are missing and ``wait`` is false, or their shards were lost.
        BatchesFailedError: Batches were set aside.
        SourceChangedError: The source changed since it was planned.
        VerificationError: The new tree does not match the source; it stays for inspection.
        TargetError: Something stands at the target.
    """
    options = options or PackOptions()
    stop = stop or threading.Event()
    manifest = run.manifest
    source, target = Path(manifest.source), Path(manifest.target)
    with packer_lock(run.paths, manifest.run_id):
        journal = Journal(run.paths, manifest.run_id)
        before = journal.begin()
        if before.step is PackStep.FINISHED or recover_swap(journal) is SwapOutcome.COMPLETED:
            return _finish(run, journal)
        options.check_target(source, target)
        _wait_until_done(run, wait=wait, stop=stop)
        check_tables_unchanged(run)
        collected = _collect(run)
        tree = adopt_staging(target, journal)
        if tree is None:
            raise AssertionError("a staging tree is made where there is none")
        assembly = _assemble(run, tree, collected.shards, stop, progress)
        if options.verify != "none":
            _verify(tree, source, options.verify, collected.clip_digests, progress)
        _check_stop(stop)
        old = options.old_place(source, target)
        notes = {
            "linked": assembly.linked,
            "copied": assembly.copied,
            "joined": assembly.joined,
            "cloned_bytes": collected.cloned_bytes,
            "copied_bytes": collected.copied_bytes,
            "verified": options.verify,
        }
        journal.write(PackStep.PACKING, notes=notes)
        swap_into_place(
            SwapPlan(target, tree, old),
            journal,
            before_exchange=lambda: check_source_unchanged(run),
        )
        return _finish(run, journal)


def _assemble(
    run: OpenedRun,
    tree: Path,
    shards: Mapping[tuple[str, int], list[tuple[Shard, Path]]],
    stop: threading.Event,
    progress: Progress,
) -> _Assembly:
    assembly = _Assembly(run, tree)
    source, extra_files = Path(run.manifest.source), run.manifest.extra_files
    files = [layout.file(n) for layout in run.manifest.streams for n in range(layout.num_files)]
    with progress.stage("pack", len(files) + len(extra_files) + 1, "files") as stage:
        for file in files:
            _check_stop(stop)
            assembly.add_file(file, shards[file.stream, file.number])
            stage.advance(1)
        assembly.add_meta()
        stage.advance(1)
        for relative in extra_files:
            _check_stop(stop)
            assembly.add_copy(source / relative, relative)
            stage.advance(1)
    return assembly


def _finish(run: OpenedRun, journal: Journal) -> PackReport:
    """Remove what only the swap needed, and say what was done; harmless to repeat."""
    state = journal.read()
    if run.paths.attempts_dir.exists():
        remove_tree(run.paths.attempts_dir, inside=run.paths.root)
    journal.write(PackStep.FINISHED)
    old = (state.swap or {}).get("old")
    return PackReport(
        target=Path(run.manifest.target),
        kept=None if old is None else Path(old),
        linked=state.notes.get("linked", 0),
        copied=state.notes.get("copied", 0),
        joined=state.notes.get("joined", 0),
        cloned_bytes=state.notes.get("cloned_bytes", 0),
        copied_bytes=state.notes.get("copied_bytes", 0),
        verified=state.notes.get("verified", "none"),
    )


def is_packed(run: OpenedRun) -> bool:
    """Tell whether the run's result is in place."""
    return Journal(run.paths, run.manifest.run_id).read().step in {
        PackStep.SWAPPED,
        PackStep.FINISHED,
    }


def swap_has_begun(run: OpenedRun) -> bool:
    """Tell whether the run's swap began, so that the source may no longer be at its place."""
    state = Journal(run.paths, run.manifest.run_id).read()
    return state.swap is not None or state.step is not PackStep.PACKING


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedRunError(
            "Packing was interrupted.", next_step="Run the same command again to go on."
        )


def _wait_until_done(run: OpenedRun, *, wait: bool, stop: threading.Event) -> None:
    store = LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity.of_this_process())
    board = Board(store, run.manifest.num_batches)
    board.refresh()
    while wait and not board.all_settled():
        # Other hosts publish files; nothing notifies of them over a network file system.
        if stop.wait(_WAIT_SECONDS):
            _check_stop(stop)
        board.refresh()
    check_all_done(run, board)


def check_all_done(run: OpenedRun, board: Board, remarks: Sequence[str] = ()) -> None:
    """Raise unless every batch was done when the board was last refreshed.

    Args:
        run: The run.
        board: A view of its batches.
        remarks: Lines that say why nobody works any more.

    Raises:
        BatchesFailedError: Batches were set aside; ``details`` says why each.
        IncompleteError: Batches are not done.
    """
    counts = board.counts()
    total, place = run.manifest.num_batches, str(run.work_dir.root)
    if counts.failed:
        details = []
        for batch_id in board.failed()[:_FAILURES_SHOWN]:
            error = read_failed(run.paths, run.manifest.run_id, batch_id).get("error") or {}
            details.append(f"batch {batch_id}: {error.get('message', 'no message')}")
        raise BatchesFailedError(
            f"{counts.failed} of {total} batches were set aside; {counts.done} are done.",
            path=place,
            details=details,
            next_step=f"Mend what the messages name and begin anew with --restart; `leconvert "
            f"status {place}` shows more.",
        )
    if counts.done < total:
        raise IncompleteError(
            f"{counts.done} of {total} batches are done.",
            path=place,
            details=[
                f"{counts.leased} are leased, {counts.pending} wait for a worker",
                *remarks,
            ],
            next_step=f"Start workers with `leconvert work {place}`, or run the same convert "
            "command again; it goes on where it ended.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Collected:
    """What the workers left: shards by stream and file number, clip digests by stream.

    Bytes are coded video bytes: shared with the source, or copied.
    """

    shards: dict[tuple[str, int], list[tuple[Shard, Path]]]
    clip_digests: dict[str, npt.NDArray[np.bytes_]]
    cloned_bytes: int
    copied_bytes: int


def _collect(run: OpenedRun) -> _Collected:
    """Find the winning attempts' shards; a batch whose shards are gone opens again."""
    shards: dict[tuple[str, int], list[tuple[Shard, Path]]] = {}
    digests: dict[str, npt.NDArray[np.bytes_]] = {
        layout.stream: np.zeros(run.manifest.num_episodes, dtype=_DIGEST_TYPE)
        for layout in run.manifest.streams
        if layout.stream != DATA_STREAM
    }
    voided: list[str] = []
    cloned = copied = 0
    for batch in run.batches:
        record = read_done(run.paths, run.manifest.run_id, batch.batch_id)
        attempt = run.paths.root / record["attempt"]
        entries = {entry["path"]: entry for entry in record["shards"]}
        problem = _damage(attempt, batch.shards, entries)
        if problem is not None:
            void_done(run.paths, run.manifest.run_id, batch.batch_id, problem)
            voided.append(f"batch {batch.batch_id}: {problem}")
            continue
        for shard in batch.shards:
            key = (shard.stream, shard.number)
            shards.setdefault(key, []).append((shard, attempt / shard.name))
            if shard.stream != DATA_STREAM:
                entry = entries[shard.name]
                digests[shard.stream][shard.first : shard.stop] = entry["clip_digests"]
                cloned += entry["cloned_bytes"]
                copied += entry["copied_bytes"]
    if voided:
        raise IncompleteError(
            f"{len(voided)} batches lost what their workers wrote and are open again.",
            path=str(run.work_dir.root),
            details=voided,
            next_step="Run the same command again; workers will do these batches anew.",
        )
    return _Collected(shards, digests, cloned, copied)


def _damage(
    attempt: Path, shards: Iterable[Shard], entries: Mapping[str, Mapping[str, Any]]
) -> str | None:
    for shard in shards:
        path = attempt / shard.name
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            return f"{path} is gone"
        entry = entries.get(shard.name)
        if entry is None or found != entry["size_bytes"]:
            return f"{path} has {found} bytes instead of {entry and entry['size_bytes']}"
        if shard.stream != DATA_STREAM and len(entry["clip_digests"]) != shard.stop - shard.first:
            return f"{path} is described for another number of episodes"
    return None


def _write_meta(run: OpenedRun, tree: Path) -> list[str]:
    """Write tasks, episodes, statistics and info; return their paths in the tree."""
    manifest = run.manifest
    source = Path(manifest.source)
    info = load_info(source)
    tasks = load_tasks(source)
    aggregate = tables.StatsAggregator()
    aggregated = 0

    def records() -> Iterator[tables.EpisodeRecord]:
        nonlocal aggregated
        for position, record in enumerate(_episode_records(run, source)):
            if position == aggregated:  # once, even if the rows are asked for again
                if record.stats is not None:
                    aggregate.update(record.stats, episode_index=record.episode_index)
                aggregated += 1
            yield record

    placed_fps = Fraction(*media.frame_ticks(manifest.fps))
    written = tables.write_episodes(tree, records, fps=placed_fps)
    tables.write_tasks(tree, tasks)
    tables.write_stats(tree, aggregate.result())
    tables.write_info(
        tree,
        tables.converted_info(
            info.raw,
            fps=manifest.fps,
            data_file_size_in_mb=manifest.options["data_file_size_in_mb"],
            video_file_size_in_mb=manifest.options["video_file_size_in_mb"],
            has_videos=bool(info.camera_keys),
            total_episodes=manifest.num_episodes,
            total_frames=manifest.num_frames,
            total_tasks=len(tasks),
        ),
    )
    return [*written, "meta/tasks.parquet", "meta/stats.json", "meta/info.json"]


def _episode_records(run: OpenedRun, source: Path) -> Iterator[tables.EpisodeRecord]:
    """Yield one row of ``meta/episodes`` an episode, in order."""
    manifest = run.manifest
    _, length = run.scan.lengths()
    ends = np.concatenate(([0], np.cumsum(length)))
    positions = np.arange(len(length))
    numbers = {layout.stream: layout.file_numbers(positions) for layout in manifest.streams}
    begins = {
        layout.stream: ends[:-1] - ends[layout.starts[numbers[layout.stream]]]
        for layout in manifest.streams
    }
    cameras = sorted(
        (camera, layout.stream)
        for layout in manifest.streams
        if (camera := camera_of(layout.stream)) is not None
    )
    legacy = EpisodeLines(source / EPISODES_PATH, validated=True)
    stats = EpisodeLines(source / STATS_PATH, validated=True)
    for position, (line, stats_line) in enumerate(zip(legacy, stats, strict=True)):
        frames = int(length[position])
        videos = tuple(
            tables.VideoSpan(
                camera,
                int(numbers[stream][position]),
                int(begins[stream][position]),
                int(begins[stream][position]) + frames,
            )
            for camera, stream in cameras
        )
        yield tables.EpisodeRecord(
            episode_index=line["episode_index"],
            data_file=int(numbers[DATA_STREAM][position]),
            dataset_from_index=int(ends[position]),
            length=frames,
            videos=videos,
            legacy=line,
            stats=stats_line.get("stats"),
        )


def _verify(
    tree: Path,
    source: Path,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]],
    progress: Progress,
) -> None:
    report = verify_pair(tree, source, depth=depth, progress=progress, clip_digests=clip_digests)
    if not report.ok:
        shown = [str(difference) for difference in report.differences[:_DIFFERENCES_SHOWN]]
        if len(report.differences) > len(shown):
            shown.append(f"... and {len(report.differences) - len(shown)} more")
        raise VerificationError(
            f"The new dataset does not match {source}; nothing was replaced.",
            path=str(tree),
            details=shown,
            next_step=f"The new tree stays in {tree} for inspection; please report this.",
        )


def _codebase_version(root: Path) -> str | None:
    try:
        version = json.loads((root / INFO_PATH).read_bytes()).get("codebase_version")
    except (OSError, ValueError, AttributeError):
        return None
    return version if isinstance(version, str) else None
