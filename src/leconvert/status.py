"""How far a run is, read from its work dir; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert.leasing import BatchStatus, Board, LeaseStore
from leconvert.leasing.state import BatchState
from leconvert.packer import is_packed
from leconvert.workdir.identity import WorkerIdentity
from leconvert.workdir.opened import open_run

__all__ = ["RunStatus", "run_status"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run at one moment.

    Attributes:
        run_id: The run.
        source: Its source.
        target: Where the result goes.
        batches: Batches of the plan.
        pending: Batches that nobody holds.
        leased: Batches that a worker holds.
        done: Batches with a result.
        failed: Batches that were set aside.
        total_bytes: Source bytes of all batches.
        done_bytes: Source bytes of the done ones.
        packed: Whether the result is in place.
        unsettled: Every batch that is leased or failed, or was tried before.
    """

    run_id: str
    source: str
    target: str
    batches: int
    pending: int
    leased: int
    done: int
    failed: int
    total_bytes: int
    done_bytes: int
    packed: bool
    unsettled: Sequence[BatchStatus]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def run_status(work_dir: Path) -> RunStatus:
    """Read the state of a work dir's current run.

    Raises:
        WorkDirError: There is no run, or its records cannot be used.
    """
    run = open_run(work_dir, allow_mixed_versions=True)
    store = LeaseStore(run.paths, run.manifest.run_id, WorkerIdentity.of_this_process())
    rows = Board(store, run.manifest.num_batches).status()
    source_bytes = {batch.batch_id: batch.source_bytes for batch in run.batches}
    by_state = {state: [row for row in rows if row.state == state] for state in BatchState}
    return RunStatus(
        run_id=run.manifest.run_id,
        source=run.manifest.source,
        target=run.manifest.target,
        batches=len(rows),
        pending=len(by_state[BatchState.PENDING]),
        leased=len(by_state[BatchState.LEASED]),
        done=len(by_state[BatchState.DONE]),
        failed=len(by_state[BatchState.FAILED]),
        total_bytes=sum(source_bytes.values()),
        done_bytes=sum(source_bytes[row.batch_id] for row in by_state[BatchState.DONE]),
        packed=is_packed(run),
        unsettled=[row for row in rows if row.state != BatchState.DONE and row.generation],
    )
