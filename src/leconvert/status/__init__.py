"""How far a run is, read from its work dir; writes nothing.

`RunObserver` looks again and again and reads only what is new; `run_status` is one look. What a
single look can know is less: a heartbeat's age is how long *this observer* has seen it unchanged,
since no two hosts' clocks are ever compared.
"""

from leconvert.status.observer import RunObserver, run_status, watch_run
from leconvert.status.values import (
    Failure,
    JobStatus,
    Liveness,
    PackerStatus,
    RunStatus,
    VideoBytes,
    WorkerStatus,
)

__all__ = [
    "Failure",
    "JobStatus",
    "Liveness",
    "PackerStatus",
    "RunObserver",
    "RunStatus",
    "VideoBytes",
    "WorkerStatus",
    "run_status",
    "watch_run",
]
