"""Leases on batches: who works on what, for how long, and what happens when a worker dies.

Leases only keep workers from doing the same work. Whose result counts is decided by the exclusive
publish of ``done`` alone (`leconvert.workdir.durable.publish_exclusively`).
"""

from leconvert.leasing.board import BatchStatus, Board, Counts
from leconvert.leasing.heartbeat import HeartbeatKeeper
from leconvert.leasing.lease import Lease, LeaseLostError
from leconvert.leasing.log import list_batches, read_done, read_failed, release_failed, void_done
from leconvert.leasing.registry import WorkerRecord, WorkerReporter, read_workers
from leconvert.leasing.state import BatchState, Limits
from leconvert.leasing.store import LeaseStore
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
    "WorkerRecord",
    "WorkerReporter",
    "list_batches",
    "read_done",
    "read_failed",
    "read_workers",
    "release_failed",
    "void_done",
]
