"""Leases on batches: who works on which batch, for how long, and what follows a worker's death.

Leases only prevent workers from doing the same work. Only the exclusive publishing of ``done``
decides whose result counts (`leconvert.workdir.fs.publish_exclusively`).
"""

from leconvert.run.leasing.board import BatchStatus, Board, Counts
from leconvert.run.leasing.leases import (
    HeartbeatKeeper,
    Lease,
    LeaseLostError,
    LeaseStore,
    list_batches,
    read_done,
    read_failed,
    release_failed,
    void_done,
)
from leconvert.run.leasing.state import BatchState, Limits
from leconvert.workdir.identity import WorkerIdentity

__all__ = [
    "BatchState",
    "BatchStatus",
    "Board",
    "Counts",
    "HeartbeatKeeper",
    "Lease",
    "LeaseLostError",
    "LeaseStore",
    "Limits",
    "WorkerIdentity",
    "list_batches",
    "read_done",
    "read_failed",
    "release_failed",
    "void_done",
]
