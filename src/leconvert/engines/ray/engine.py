"""Starts workers on the nodes of a Ray cluster, through drivers that it does not depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

from leconvert.engines.local import last_words
from leconvert.engines.ray.driver import Order, RayOptions, ray_is_missing
from leconvert.errors import EngineError, StorageError
from leconvert.workdir.activity import JobRecord, write_job
from leconvert.workdir.identity import new_token
from leconvert.workdir.records import RunPaths

__all__ = ["DriverProcess", "RayEngine"]


# ------------------------------------------------------------------------------------------------
# A driver as seen by whoever started it: it may hang, die, or lose its cluster.


_PROGRAM = (sys.executable, "-P", "-m", "leconvert.engines.ray")
# Besides the cluster's own answer: a Ray is imported, and perhaps started.
_SECONDS_TO_START = 60.0
_GRACE_SECONDS = 30.0
# It speaks every second; a Ray that is busy starting a thousand tasks may hold it up for a while.
_MOST_SILENT_SECONDS = 120.0
_MOST_DRIVERS = 4
_SECONDS_BETWEEN_DRIVERS = 15.0


@dataclass(frozen=True, slots=True)
class Begun:
    """What a driver said when its workers were on their way.

    Attributes:
        job_id: Ray's name for the driver.
        workers: How many there were.
    """

    job_id: str
    workers: int


class DriverProcess:
    """Runs a driver, and another one when it dies.

    A thread of its own reads what the driver says; everybody else is answered from memory. A driver
    that is silent for two minutes is killed, and Ray then ends its workers, which hand back. After
    four drivers it gives up, says so among the failures, and nobody counts as running.

    Args:
        order: What the driver is told.
        program: Runs a driver.
        clock: A monotonic clock in seconds.
        pause_seconds: Between the end of a driver and the start of the next.
    """

    def __init__(
        self,
        order: Order,
        *,
        program: Sequence[str] = _PROGRAM,
        clock: Callable[[], float] = time.monotonic,
        pause_seconds: float = _SECONDS_BETWEEN_DRIVERS,
    ) -> None:
        self._order = order
        self._program = tuple(program)
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._log = order.logs_dir / f"{order.name}-driver.log"
        self._lock = threading.Lock()
        self._settled = threading.Event()  # it has begun, or never will
        self._stopping = threading.Event()
        self._begun: Begun | None = None
        self._refusal: EngineError | None = None
        self._running = 0
        self._worker_failures: list[str] = []
        self._driver_failures: list[str] = []
        self._heard_at = clock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep_driving, name="ray-driver", daemon=True)

    def begin(self) -> Begun:
        """Start the driver and wait until workers are on their way."""
        self._thread.start()
        seconds = self._order.options.connect_seconds
        if not self._settled.wait(seconds + _SECONDS_TO_START):
            self._stopping.set()
            self._kill()
            raise EngineError(
                f"The Ray cluster at {self._order.options.address} did not answer within "
                f"{seconds:g} s.",
                path=str(self._log),
                details=[last_words(self._log)],
                next_step="Check the address, and that this machine is a node of the cluster.",
            )
        if self._begun is None:
            raise self._refusal or EngineError(
                f"The Ray driver ended: {last_words(self._log)}",
                path=str(self._log),
                next_step=f"Its log is {self._log}.",
            )
        return self._begun

    def running(self) -> int:
        """Return how many workers there are, as the driver said last."""
        with self._lock:
            if self._running and self._clock() - self._heard_at > _MOST_SILENT_SECONDS:
                self._heard_at = self._clock()  # the next one is given time too
                self._kill()
            return self._running

    def failures(self) -> list[str]:
        """Return one line a worker that failed, and one a driver."""
        with self._lock:
            return [*self._worker_failures, *self._driver_failures]

    def stop(self) -> None:
        """Let workers hand back; a driver that does not end in time is killed."""
        self._stopping.set()
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError, ValueError):  # it has ended
                process.stdin.write("stop\n")
                process.stdin.flush()
            try:
                process.wait(_GRACE_SECONDS if self._begun is not None else 0)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread.is_alive():
            self._thread.join(_GRACE_SECONDS)
        with self._lock:
            self._running = 0

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _keep_driving(self) -> None:
        try:
            for number in range(1, _MOST_DRIVERS + 1):
                if self._drive() or self._begun is None or self._stopping.is_set():
                    return
                self._note_end(number)
                if number < _MOST_DRIVERS and self._stopping.wait(self._pause_seconds):
                    return
        finally:
            with self._lock:
                self._running = 0
            self._settled.set()

    def _drive(self) -> bool:
        """Run one driver to its end; say whether there is nothing to do for another one."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C reaches the parent, which asks the workers to stop.
                start_new_session=True,
            )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            with self._lock:
                self._process, self._refusal = process, None
                self._heard_at = self._clock()
            if self._stopping.is_set():
                process.kill()
            is_over = False
            try:
                process.stdin.write(self._order.as_line())
                process.stdin.flush()
                for line in process.stdout:
                    is_over = self._hear(json.loads(line))
            except (OSError, ValueError):  # it was killed between two words
                is_over = False
            with suppress(OSError):
                process.stdin.close()
            return is_over

    def _hear(self, event: dict[str, Any]) -> bool:
        """Take note of what a driver says; say whether it has nothing more to do."""
        with self._lock:
            self._heard_at = self._clock()
            match event["event"]:
                case "begun":
                    self._begun = Begun(event["job_id"], event["workers"])
                    self._running = max(1, event["workers"])
                    self._settled.set()
                case "refused":
                    self._refusal = EngineError(
                        event["message"],
                        path=event["path"],
                        details=event["details"],
                        next_step=event["next_step"],
                    )
                case "state":
                    self._running = event["running"]
                    self._worker_failures = event["failures"]
        return bool(event["event"] == "ended")

    def _note_end(self, number: int) -> None:
        why = self._refusal.message if self._refusal is not None else last_words(self._log)
        line = f"Ray driver {number} of {_MOST_DRIVERS} ended: {why}"
        with self._lock:
            self._driver_failures.append(line)


# ------------------------------------------------------------------------------------------------
# Starts workers on the nodes of a Ray cluster, through drivers that it does not depend on.


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
