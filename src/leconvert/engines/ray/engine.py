"""Starts workers on the nodes of a Ray cluster, through drivers that it does not depend on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec

from leconvert.engines.ray.cluster import ray_is_missing
from leconvert.engines.ray.driver import Order
from leconvert.engines.ray.driver_process import DriverProcess
from leconvert.engines.ray.options import RayOptions
from leconvert.errors import StorageError
from leconvert.workdir.identity import new_token
from leconvert.workdir.jobs import JobRecord, write_job
from leconvert.workdir.paths import RunPaths

__all__ = ["RayEngine"]


class RayEngine:
    """Starts workers as Ray tasks; whoever starts it watches the work dir meanwhile.

    Nodes that join get workers too, and the workers of a node that dies are started elsewhere, up
    to the options' numbers. A worker that fails is started again twice, with a pause.

    It does not promise to know what happens on the cluster: while a link is cut it answers with
    what it heard last, and it stops in bounded time all the same. Workers that cannot be told end
    when they see that nothing is left, or when their node notices that it was cut off; their
    leases expire.

    Args:
        options: Which cluster, and what workers ask for.

    Attributes:
        workers: As many as the options say at most.

    Raises:
        EngineError: Ray is not installed.
    """

    def __init__(self, options: RayOptions | None = None) -> None:
        if find_spec("ray") is None:
            raise ray_is_missing()
        self._options = options or RayOptions()
        self.workers = self._options.most_workers
        self._drivers: list[DriverProcess] = []

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Start up to ``count`` workers; see `leconvert.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        name = f"ray-{time.time_ns():x}"
        order = Order(self._options, count, arguments, paths.logs_dir, name)
        driver = DriverProcess(order)
        self._drivers.append(driver)
        begun = driver.begin()
        token = new_token(f"ray-{begun.job_id}", os.getpid(), os.urandom)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = JobRecord(token, "ray", begun.job_id, "workers", begun.workers, now)
        with suppress(StorageError):  # it is for people to look at
            write_job(paths, paths.root.name, record)

    def running(self) -> int:
        """Return how many workers run or wait for a node, as a driver said last."""
        return sum(driver.running() for driver in self._drivers)

    def failures(self) -> list[str]:
        """Return one line a worker that failed, and one a driver."""
        return [line for driver in self._drivers for line in driver.failures()]

    def stop(self) -> None:
        """Ask all workers to hand back; after half a minute leave them to their leases."""
        for driver in self._drivers:
            driver.stop()
