"""What the workers left: which batches are done, and where their shards are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import (
    BatchesFailedError,
    IncompleteError,
)
from leconvert.leasing import Board, read_done, read_failed, void_done
from leconvert.model import DATA_STREAM, Shard
from leconvert.workdir.opened import OpenedRun

__all__ = ["Collected", "check_all_done", "collect"]

_FAILURES_SHOWN = 20
_DIGEST_TYPE = "S16"  # what `leconvert.media.order_digest` returns


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
class Collected:
    """What the workers left: shards by stream and file number, clip digests by stream.

    Bytes are coded video bytes: shared with the source, or copied.
    """

    shards: dict[tuple[str, int], list[tuple[Shard, Path]]]
    clip_digests: dict[str, npt.NDArray[np.bytes_]]
    cloned_bytes: int
    copied_bytes: int


def collect(run: OpenedRun) -> Collected:
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
    return Collected(shards, digests, cloned, copied)


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
