"""Gathers a report's values from the records of a run, or from a result alone; writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leconvert.errors import LeconvertError, UsageError
from leconvert.leasing import read_workers
from leconvert.report.attempts import AttemptsFound, moment, read_attempts, seconds_of
from leconvert.report.trees import TreeFigures, measure_tree, story_of_result
from leconvert.report.values import (
    BatchCounts,
    Packer,
    Story,
    StoryState,
    StreamFigures,
    Verification,
)
from leconvert.workdir.invocation import Invocation, read_invocations
from leconvert.workdir.journal import JOURNAL_VERSION, Journal, JournalState, PackStep
from leconvert.workdir.manifest import Manifest
from leconvert.workdir.opened import OpenedRun, open_run
from leconvert.workdir.paths import WorkDir, default_work_dir
from leconvert.workdir.probe_record import read_probe
from leconvert.workdir.records import read_record
from leconvert.workdir.secrets import without_secrets_in
from leconvert.workdir.target import codebase_version, is_converted
from leconvert.workdir.trouble import any_storage_errors

__all__ = ["gather", "gather_run"]

# What writing a record takes; a smaller difference is no disagreement between two clocks.
_CLOCKS_AGREE_SECONDS = 2.0
_PACKED = {PackStep.SWAPPED, PackStep.FINISHED}


def gather(place: Path) -> Story:
    """Gather what is known about a run or a result.

    Args:
        place: A work dir; a v3.0 dataset, whose default work dir is used where it still exists; or
            the dataset that is being converted there.

    Raises:
        UsageError: It is none of these.
        WorkDirError: The run's records cannot be used.
        StorageError: They cannot be read.
        UnreadableSourceError: The result's own tables cannot be used.
    """
    if WorkDir(place).current_run_id() is not None:
        return gather_run(open_run(place, allow_mixed_versions=True, only_look=True))
    beside = default_work_dir(place)
    if WorkDir(beside).current_run_id() is not None:
        run = open_run(beside, allow_mixed_versions=True, only_look=True)
        if Path(run.manifest.target) == place:
            return gather_run(run)
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
def gather_run(run: OpenedRun) -> Story:
    """Gather what the records of a run say.

    Raises:
        WorkDirError: They cannot be used.
        StorageError: They cannot be read, or were removed meanwhile.
    """
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
    tree = measure_tree(target) if packed and is_converted(target) else None
    remarks = list(found.remarks)
    if packed and tree is None:
        remarks.append(f"No v3.0 dataset stands at {target} any more; sizes are the workers' own.")
    return Story(
        name=target.name,
        state=_state(counts, verification, packed=packed),
        generated=datetime.now(UTC),
        target=manifest.target,
        source=manifest.source,
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
        repairs=manifest.repairs,
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
                source_files=len(scan.size_bytes),
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
