"""What the workers left: which batches are done, and where their shards are."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import (
    BatchesFailedError,
    IncompleteError,
)
from leconvert.leasing import BatchState, Board, read_done, read_failed, void_done
from leconvert.model import DATA_STREAM, OutputFile, Shard
from leconvert.workdir.filesystem import forget_old_names, status_now
from leconvert.workdir.opened import OpenedRun

__all__ = ["Collector", "check_all_done"]

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
            said = f"batch {batch_id}: {error.get('message', 'no message')}"
            # What helps one batch is another thing than what is done about the run.
            helps = error.get("next_step")
            details.append(f"{said} {helps}" if helps else said)
        raise BatchesFailedError(
            f"{counts.failed} of {total} batches were set aside; {counts.done} are done.",
            path=place,
            details=details,
            next_step="Mend what the messages name; then "
            f"`leconvert release {shlex.quote(place)} --failed` and the same command again, "
            "or --restart if the source was repaired or takes another flag.",
        )
    if counts.done < total:
        # Of those that were claimed once, only a batch's own log says who still holds it.
        states = Counter(row.state for row in board.status())
        leased, pending = states[BatchState.LEASED], states[BatchState.PENDING]
        details = [f"{leased} are leased, {pending} wait for a worker", *remarks]
        next_step = (
            f"Start workers with `leconvert work {shlex.quote(place)}`, or run the same convert "
            "command again; it goes on where it ended."
        )
        if remarks:
            next_step = (
                f"Their logs are in {run.paths.logs_dir}. Mend what ended the workers, then run "
                "the same command again; it goes on where it ended."
            )
        raise IncompleteError(
            f"{counts.done} of {total} batches are done.",
            path=place,
            details=details,
            next_step=next_step,
        )


class Collector:
    """Gathers what the workers left, batch by batch, as they leave it.

    Args:
        run: The run.

    Attributes:
        clip_digests: For each camera's stream what the workers found of its clips, shape (E,).
        cloned_bytes: Coded video bytes that are shared with the source.
        copied_bytes: Coded video bytes that were copied.
        stats_files: For each stream the files of computed statistics and the first position of
            each, in no order.
    """

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        self._parts: dict[tuple[str, int], list[tuple[Shard, Path]]] = {}
        self._missing: dict[tuple[str, int], int] = {}
        self._layouts = {layout.stream: layout for layout in run.manifest.streams}
        self.clip_digests: dict[str, npt.NDArray[np.bytes_]] = {
            layout.stream: np.zeros(run.manifest.num_episodes, dtype=_DIGEST_TYPE)
            for layout in run.manifest.streams
            if layout.stream != DATA_STREAM
        }
        self.cloned_bytes = self.copied_bytes = 0
        self.stats_files: dict[str, list[tuple[int, Path]]] = {}

    def take(
        self, batch_ids: Iterable[int]
    ) -> Iterator[tuple[OutputFile, list[tuple[Shard, Path]]]]:
        """Find the winning attempts' shards; yield each output file whose shards are all there.

        A batch whose shards are gone opens again.

        Args:
            batch_ids: Batches that are done and were not taken before.

        Raises:
            IncompleteError: Shards are gone or short; ``details`` says which.
        """
        voided: list[str] = []
        for batch_id in batch_ids:
            batch = self._run.batches.read(batch_id)
            record = read_done(self._run.paths, self._run.manifest.run_id, batch_id)
            attempt = self._run.paths.root / record["attempt"]
            entries = {entry["path"]: entry for entry in record["shards"]}
            problem = _damage(attempt, batch.shards, entries)
            if problem is not None:
                void_done(self._run.paths, self._run.manifest.run_id, batch_id, problem)
                voided.append(f"batch {batch_id}: {problem}")
                continue
            for shard in batch.shards:
                if shard.stream != DATA_STREAM:
                    entry = entries[shard.name]
                    self.clip_digests[shard.stream][shard.first : shard.stop] = entry[
                        "clip_digests"
                    ]
                    self.cloned_bytes += entry["cloned_bytes"]
                    self.copied_bytes += entry["copied_bytes"]
                if "stats" in entries[shard.name]:
                    path = attempt / entries[shard.name]["stats"]["path"]
                    self.stats_files.setdefault(shard.stream, []).append((shard.first, path))
                yield from self._completed(shard, attempt / shard.name)
        if voided:
            raise IncompleteError(
                f"{len(voided)} batches lost what their workers wrote and are open again.",
                path=str(self._run.work_dir.root),
                details=voided,
                next_step="Run the same command again; workers will do these batches anew.",
            )

    def _completed(
        self, shard: Shard, path: Path
    ) -> Iterator[tuple[OutputFile, list[tuple[Shard, Path]]]]:
        """Yield the shard's file if this was its last part."""
        key = (shard.stream, shard.number)
        file = self._layouts[shard.stream].file(shard.number)
        self._parts.setdefault(key, []).append((shard, path))
        missing = self._missing.get(key, file.stop - file.first) - (shard.stop - shard.first)
        self._missing[key] = missing
        if not missing:
            del self._missing[key]
            yield file, self._parts.pop(key)


def _damage(
    attempt: Path, shards: Iterable[Shard], entries: Mapping[str, Mapping[str, Any]]
) -> str | None:
    # Whoever asked for one of these names before the worker made it was told that there is none,
    # and this host's NFS client remembers that.
    forget_old_names([str(attempt.parent), str(attempt), str(attempt / "any")])
    for shard in shards:
        path = attempt / shard.name
        try:
            found = status_now(path).st_size
        except FileNotFoundError:
            return f"{path} is gone"
        entry = entries.get(shard.name)
        if entry is None or found != entry["size_bytes"]:
            return f"{path} has {found} bytes instead of {entry and entry['size_bytes']}"
        if shard.stream != DATA_STREAM and len(entry["clip_digests"]) != shard.stop - shard.first:
            return f"{path} is described for another number of episodes"
        if "stats" in entry:
            problem = _stats_damage(attempt / entry["stats"]["path"], entry["stats"])
            if problem is not None:
                return problem
    return None


def _stats_damage(path: Path, entry: Mapping[str, Any]) -> str | None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{path} is gone"
    return None if found == entry["sha256"] else f"{path} is not what its worker wrote"
