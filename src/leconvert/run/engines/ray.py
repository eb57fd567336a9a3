"""Workers on the nodes of a Ray cluster.

The converting process has a `RayEngine` and never imports Ray. The engine runs a driver in a
separate process. Only the driver talks to Ray, and starts a task for each worker; a task runs one
worker as a process of its node. So if a cluster hangs, or ends its drivers as Ray does when it
loses its head, the converting process continues.

    python -m leconvert.run.engines.ray                        # a driver
    python -m leconvert.run.engines.ray PID work WORK_DIR ...  # a worker that ends with process PID

A driver's first line of input is an order, as JSON. At the end of its input, or at a line ``stop``,
it asks all workers to hand back, and ends. It answers in lines of JSON: ``begun`` when the first
workers are starting, ``refused`` if there will be none, ``state`` every second, and ``ended``. All
other output of the driver and of Ray goes to standard error.

It is a process and not a thread because of Ray: its calls never return while a link is cut, and it
ends the whole process when the cluster's head is gone.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from leconvert.run.engines import how_a_worker_failed, last_words, note_job
from leconvert.run.engines.options import RayOptions
from leconvert.support.errors import EngineError, LeconvertError
from leconvert.support.extras import command_for_extra
from leconvert.support.machine import end_with_parent
from leconvert.support.values import dataclass
from leconvert.workdir.records import RunPaths

# The Ray task on a node: one worker, in its own process.
# Ray sends the code of `work_on_this_node`, so nodes need no matching version of leconvert: the
# function imports everything it uses. The worker is a child of Ray's process, not that process
# itself. So its signals, its memory and its log are its own, and its death does not look like a
# crash of Ray. When a driver, a node or a link is lost, Ray ends its own processes, and none is
# left to ask their children to hand back. The kernel does this instead (`end_with_parent`).


def work_on_this_node(
    program: Sequence[str], arguments: Sequence[str], log: str, grace_seconds: float
) -> tuple[str, int | None, str]:
    """Run a worker to its end; when Ray cancels the task, ask it to hand back first.

    Args:
        program: Arguments of Python before the process id and the worker's arguments.
        arguments: The worker's arguments.
        log: Path of its log.
        grace_seconds: A cancelled worker is killed after this time.

    Returns:
        The host's name; the worker's exit code, None if none could be started; and then the reason.
    """
    import importlib.util
    import os
    import signal
    import socket
    import subprocess
    import sys
    import time

    host = socket.gethostname()
    if importlib.util.find_spec("leconvert") is None:
        return host, None, f"leconvert is not installed on {host} (--ray-ship-package sends it)"
    folder = os.path.dirname(log)  # noqa: PTH120 - imported here as everything is
    try:
        output = open(log, "ab")  # noqa: SIM115, PTH123 - closed below
    except OSError as error:
        return host, None, f"{host} cannot write to {folder}: {error.strerror}"
    with output:
        worker = subprocess.Popen(
            [sys.executable, *program, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    asked_at = None
    # Ray cancels a task like Ctrl-C. Python ignores this if Ray itself was started with SIGINT
    # ignored, as shells do for background processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ray interrupts the main thread between two lines of Python, so no call may take long. It does
    # so repeatedly if it is asked to.
    while True:
        try:
            code = worker.poll()
            if code is not None:
                return host, code, ""
            if asked_at is not None and time.monotonic() - asked_at > grace_seconds:
                worker.kill()
            time.sleep(0.1)
        except KeyboardInterrupt:
            asked_at = time.monotonic() if asked_at is None else asked_at
            worker.send_signal(signal.SIGTERM)


def _work_tied(parent: int, arguments: Sequence[str]) -> None:
    """Run ``leconvert`` so that it is asked to stop when its parent process ends."""
    end_with_parent(signal.SIGTERM, parent)
    sys.argv = ["leconvert", *arguments]
    runpy.run_module("leconvert", run_name="__main__", alter_sys=True)


# Everything that talks to Ray is in a driver, which its starter can kill, since every call may hang
# while a link is cut.


_WORKER_GRACE_SECONDS = 20.0
# Results are a few words that arrive together with the message that they exist.
_FETCH_SECONDS = 10.0
_TCP_SECONDS = 10.0
# The memory for objects of a Ray that is started here. There are no objects, so this is the
# minimum.
_OBJECT_STORE_BYTES = 75 * 2**20
_WHERE_TO_FIND_ONE = (
    "Give a cluster with --ray-address HOST:PORT, or start one on this machine with --ray-address "
    "local."
)
_WORKER = ("-P", "-m", "leconvert.run.engines.ray")


class Outcome(NamedTuple):
    """How a worker's task ended."""

    code: int | None  # None if it was lost, or never ran
    host: str = ""
    failure: str | None = None  # why it never ran, or ended without a code


class RayCluster:
    """A connection to a cluster, the driver of one Ray job."""

    def __init__(self, options: RayOptions) -> None:
        # Otherwise Ray asks once per host, and says so in every log.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Under `uv run`, Ray would pack the current folder and run uv on every node.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        self._address = options.address
        if self._address == "auto":
            self._address = os.environ.get("RAY_ADDRESS") or "auto"
        if self._address not in {"auto", "local"} and "://" not in self._address:
            _check_somebody_listens(self._address)
        try:
            import ray
        except ImportError as error:
            raise ray_is_missing() from error
        self._options = options
        # Nodes need not have this version of the function that they run.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._ray = ray
        self._connect()
        remote = ray.remote(
            num_cpus=options.cpus_per_task,
            memory=options.memory_bytes,
            resources=dict(options.resources) or None,
            # The driver decides what is started again.
            max_retries=0,
            # If a cancellation does not reach a worker, the end of its parent asks it to hand back.
            max_calls=1,
        )
        self._task = remote(work_on_this_node)

    @property
    def job_id(self) -> str:
        """Ray's id of this driver."""
        return str(self._ray.get_runtime_context().get_job_id())

    def largest_node(self) -> str:
        """Return the resources of the largest living node, in words."""
        offers = [one["Resources"] for one in self._ray.nodes() if one["Alive"]]
        if not offers:
            return "there is no node"
        best = max(offers, key=lambda offer: (offer.get("CPU", 0), offer.get("memory", 0)))
        return f"the largest offers {best.get('CPU', 0):g} CPUs and {_gib(best.get('memory', 0))}"

    def fitting_nodes(self) -> list[str]:
        """Return the ids of living nodes that are large enough for a worker."""
        asked = {"CPU": float(self._options.cpus_per_task), **self._options.resources}
        if self._options.memory_bytes is not None:
            asked["memory"] = float(self._options.memory_bytes)
        return [
            one["NodeID"]
            for one in self._ray.nodes()
            if one["Alive"]
            and all(one["Resources"].get(name, 0) >= need for name, need in asked.items())
        ]

    def start(self, arguments: Sequence[str], log: Path, node: str | None) -> Any:
        """Start a worker when there is room, on this node or on any for None; return a handle."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where: Any = "SPREAD"
        if node is not None:
            where = NodeAffinitySchedulingStrategy(node, soft=False)
        task = self._task.options(scheduling_strategy=where, name="leconvert work")
        return task.remote(_WORKER, ["work", *arguments], str(log), _WORKER_GRACE_SECONDS)

    def ended(self, handles: Iterable[Any], seconds: float) -> Mapping[Any, Outcome]:
        """Return the workers that have ended; if none has, wait at most ``seconds``."""
        asked = list(handles)
        ready, _ = self._ray.wait(asked, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0, fetch_local=False)
        return {handle: self._outcome(handle) for handle in ready}

    def cancel(self, handles: Iterable[Any]) -> None:
        """Ask workers to hand back and end."""
        for handle in handles:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(handle)

    def close(self) -> None:
        """Leave the cluster; a cluster that was started here ends."""
        self._ray.shutdown()

    def _outcome(self, handle: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            host, code, said = self._ray.get(handle, timeout=_FETCH_SECONDS)
        except errors.TaskCancelledError:
            return Outcome(130)
        except (
            errors.NodeDiedError,
            errors.TaskUnschedulableError,  # its node is gone
            errors.ObjectLostError,
            errors.GetTimeoutError,
        ):
            return Outcome(None)
        except errors.OutOfMemoryError:
            return Outcome(None, failure="Ray ended a worker as its node ran out of memory")
        except errors.WorkerCrashedError:
            return Outcome(None, failure="Ray's process of a worker was killed")
        except errors.RuntimeEnvSetupError as error:
            return Outcome(None, failure=f"the runtime environment failed: {_last_line(error)}")
        except errors.RayError as error:
            return Outcome(None, failure=f"Ray could not run a worker: {_last_line(error)}")
        return Outcome(code, host, failure=said or None)

    def _connect(self) -> None:
        address = self._address
        # For the whole job, because a folder cannot be sent with less.
        wanted: dict[str, Any] = {"runtime_env": _runtime_env(self._options) or None}
        if address == "local":
            wanted |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        try:
            self._ray.init(address=address, log_to_driver=False, **wanted)
        except ConnectionError as error:
            if address == "auto":
                raise EngineError(
                    "No Ray cluster runs on this machine, and $RAY_ADDRESS is not set.",
                    next_step=_WHERE_TO_FIND_ONE,
                ) from error
            raise _no_cluster(address, _first_line(error)) from error
        except (RuntimeError, TypeError, ValueError, self._ray.exceptions.RayError) as error:
            # Ray describes these errors well: different versions, a wrong token, an invalid runtime
            # environment.
            raise EngineError(
                f"The Ray cluster at {address} refused this process ({_first_line(error)}).",
                details=[line for line in str(error).splitlines()[1:] if line.strip()],
                next_step="Run the command on a node of the cluster, with the cluster's versions "
                "of Ray and Python. Check --ray-runtime-env if you use it.",
            ) from error


def ray_is_missing() -> EngineError:
    """Return the error that says how to install Ray."""
    return EngineError(
        "Ray is not installed on this machine.", next_step=f"Run `{command_for_extra('ray')}`."
    )


def _no_cluster(address: str, why: str) -> EngineError:
    """Return the error for a missing cluster."""
    return EngineError(
        f"No Ray cluster answers at {address} ({why}).",
        next_step=_WHERE_TO_FIND_ONE,
    )


def _check_somebody_listens(address: str) -> None:
    # Ray itself would try for minutes.
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise EngineError(
            f"--ray-address {address} is not an address.",
            next_step="Write auto, local, or HOST:PORT, such as 10.0.0.1:6379.",
        )
    try:
        socket.create_connection((host, int(port)), timeout=_TCP_SECONDS).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


def _runtime_env(options: RayOptions) -> dict[str, Any]:
    environment = dict(options.runtime_env)
    if options.ship_package:
        package = str(Path(__file__).resolve().parents[2])
        environment["py_modules"] = [*environment.get("py_modules", ()), package]
    return environment


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


# The process that talks to Ray, so no other process has to.


_SECONDS_A_ROUND = 0.5
_DRIVER_GRACE_SECONDS = 25.0
_MOST_FAILURES = 3
# A failure after this time does not mean that the node cannot run workers.
_SECONDS_OF_GOOD_WORK = 600.0
_SECONDS_A_FAILURE = 5.0
# Ray may report that a task is lost before it reports that its node is lost.
_SECONDS_AFTER_A_LOSS = 1.0
_FAILURES_SHOWN = 10
# Exit codes of `leconvert work` if it was asked to hand back, also while it was starting.
_HANDED_BACK = frozenset((130, -15, -2))


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a driver."""

    options: RayOptions
    count: int
    arguments: Sequence[str]  # the arguments of `leconvert work`
    logs_dir: Path
    name: str  # first part of the names of logs, unique in the folder

    def as_line(self) -> str:
        """Return the order as a line of input."""
        return json.dumps(asdict(self), default=str) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Order:
        """Return the order of a line of input."""
        record = json.loads(line)
        options, logs_dir = RayOptions(**record.pop("options")), Path(record.pop("logs_dir"))
        return cls(options=options, logs_dir=logs_dir, **record)


class Slot(NamedTuple):
    """A place for one worker."""

    node: str | None  # the id of its node; None if Ray chooses the node
    number: int


class _Task(NamedTuple):
    handle: Any
    log: Path
    started_at: float


class Driver:
    """Starts a worker in every free slot, and looks again at intervals.

    Nodes that join bring slots, and lost nodes remove theirs: the next look finds slots on other
    nodes. If a worker ends because nothing is left, no more are started. A worker that was asked to
    hand back is not replaced. A worker that failed is started again twice, with growing pauses.

    Not guaranteed: that two workers never use one slot. A node with a cut link counts as lost, and
    its worker may continue behind the cut; leases make this harmless.
    """

    def __init__(
        self,
        order: Order,
        cluster: RayCluster,
        tell: Callable[[Mapping[str, Any]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = order
        self._cluster = cluster
        self._tell = tell
        self._clock = clock
        self._tasks: dict[Slot, _Task] = {}
        self._started = 0
        # Hand-backs count for ever: whoever stops workers wants fewer of them.
        self._handed_back: set[Slot] = set()
        self._failed_in_a_row: Counter[Slot] = Counter()
        self._paused_until: dict[Slot, float] = {}
        self._pausing = 0
        self._nothing_left = False
        self._no_nodes_since: float | None = None
        self._failures: deque[str] = deque(maxlen=_FAILURES_SHOWN)
        self._failed = 0

    def run(self, stop: threading.Event) -> None:
        """Keep workers running until none is needed, or ``stop`` is set."""
        while not stop.is_set() and self.running():
            self.look(stop, _SECONDS_A_ROUND)
            running, failures = self.running(), self.failures()
            since, wait_seconds = self._no_nodes_since, self._order.options.node_wait_seconds
            if since is not None and self._clock() - since > wait_seconds:
                failures.append(
                    f"no node of the cluster had room for a worker for {wait_seconds:g} s"
                )
                running = 0
            self._tell({"event": "state", "running": running, "failures": failures})
            if not running:
                return

    def running(self) -> int:
        """Return how many workers run, wait to be started, or may still get a node."""
        running = len(self._tasks) + self._pausing
        if running or self._no_nodes_since is None or self._nothing_left:
            return running
        return int(len(self._handed_back) < self._order.count)

    def failures(self) -> list[str]:
        """Return one line per failed worker: the last of them."""
        left = self._failed - len(self._failures)
        return [*([f"{left} more failed before"] if left else []), *self._failures]

    def look(self, stop: threading.Event, seconds: float) -> None:
        """Wait at most ``seconds`` for ended workers, and start missing ones."""
        if self._tasks:
            slots = {task.handle: slot for slot, task in self._tasks.items()}
            for handle, outcome in self._cluster.ended(slots, seconds).items():
                self._note_end(slots[handle], self._tasks.pop(slots[handle]), outcome)
        else:
            stop.wait(seconds)
        self.start_missing()

    def start_missing(self) -> None:
        """Start a worker in every free slot."""
        nodes, now = self._cluster.fitting_nodes(), self._clock()
        self._no_nodes_since = None if nodes else self._no_nodes_since or now
        gone = [slot for slot in self._tasks if slot.node is not None and slot.node not in nodes]
        self._cluster.cancel([self._tasks.pop(slot).handle for slot in gone])
        self._pausing = 0
        if self._nothing_left:
            return
        room = self._order.count - len(self._tasks) - len(self._handed_back)
        for slot in self._slots(nodes):
            if room <= 0:
                return
            if slot in self._tasks or slot in self._handed_back:
                continue
            # The worker of an abandoned slot goes to another slot.
            if self._failed_in_a_row[slot] >= _MOST_FAILURES:
                continue
            room -= 1
            if now < self._paused_until.get(slot, 0.0):
                self._pausing += 1
                continue
            self._started += 1
            log = self._order.logs_dir / f"{self._order.name}-{self._started}.log"
            handle = self._cluster.start(self._order.arguments, log, slot.node)
            self._tasks[slot] = _Task(handle, log, now)

    def end(self) -> None:
        """Ask all workers to hand back, and wait for it, but not for long."""
        left = [task.handle for task in self._tasks.values()]
        self._tasks.clear()
        self._cluster.cancel(left)
        deadline = self._clock() + _DRIVER_GRACE_SECONDS
        while left and (seconds := deadline - self._clock()) > 0:
            ended = self._cluster.ended(left, min(seconds, _SECONDS_A_ROUND))
            left = [handle for handle in left if handle not in ended]

    def _slots(self, nodes: Iterable[str]) -> Iterable[Slot]:
        """Return all slots in the order in which they are filled: evenly over the nodes."""
        per_node = self._order.options.most_on_a_node
        if per_node is None:
            return (Slot(None, number) for number in range(self._order.count))
        return (Slot(node, number) for number in range(per_node) for node in nodes)

    def _note_end(self, slot: Slot, task: _Task, outcome: Outcome) -> None:
        host, code, failure = outcome.host, outcome.code, outcome.failure
        if failure is not None:
            self._note_failure(slot, task, failure)
        elif code is None:  # it was lost with its node
            self._paused_until[slot] = self._clock() + _SECONDS_AFTER_A_LOSS
        elif code == 0:
            self._nothing_left = True
        elif code in _HANDED_BACK:
            self._handed_back.add(slot)
        else:
            self._note_failure(slot, task, how_a_worker_failed(f"on {host}", code, task.log))

    def _note_failure(self, slot: Slot, task: _Task, failure: str) -> None:
        now = self._clock()
        if now - task.started_at > _SECONDS_OF_GOOD_WORK:
            self._failed_in_a_row[slot] = 0
        self._failed_in_a_row[slot] += 1
        in_a_row = self._failed_in_a_row[slot]
        self._paused_until[slot] = now + _SECONDS_A_FAILURE * in_a_row
        if in_a_row == _MOST_FAILURES:
            failure += f" (not started again after {_MOST_FAILURES} failures)"
        self._failures.append(failure)
        self._failed += 1


def _drive() -> int:
    """Run the driver for the order on standard input."""
    # Ray prints to standard output, so events get a copy of it of their own.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(event: Mapping[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    order = Order.from_line(sys.stdin.readline())
    if not order.options.runtime_env:  # which may name folders relative to this one
        # Ray lets workers import from its driver's folder, which may contain a user's inspect.py.
        os.chdir(order.logs_dir)
    try:
        cluster = RayCluster(order.options)
        check_room(cluster)
    except LeconvertError as error:
        tell({"event": "refused", **error.as_record()})
        return error.exit_code
    driver = Driver(order, cluster, tell)
    stop = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, stop), daemon=True).start()
    driver.start_missing()
    tell({"event": "begun", "job_id": cluster.job_id, "workers": driver.running()})
    driver.run(stop)
    driver.end()
    cluster.close()
    tell({"event": "ended"})
    return 0


def check_room(cluster: RayCluster) -> None:
    """Check that a node is large enough for a worker; Ray would wait silently for one.

    Raises:
        EngineError: There is no such node.
    """
    if not cluster.fitting_nodes():
        raise EngineError(
            f"No node of the Ray cluster can hold a worker: {cluster.largest_node()}.",
            next_step="Ask for less with --cpus-per-task, --mem and --ray-resource, or add nodes.",
        )


def _listen(orders: TextIO, stop: threading.Event) -> None:
    """Wait for the order to stop, or for the end of the process that gives orders."""
    for line in orders:
        if line.strip() == "stop":
            break
    stop.set()


# A driver as seen by the process that started it: it may hang, die, or lose its cluster.


_PROGRAM = (sys.executable, "-P", "-m", "leconvert.run.engines.ray")
# In addition to the cluster's answer: Ray is imported, and perhaps started.
_SECONDS_TO_START = 60.0
_GRACE_SECONDS = 30.0
# A driver reports every second; Ray may delay it while it starts a thousand tasks.
_MOST_SILENT_SECONDS = 120.0
_MOST_DRIVERS = 4
_SECONDS_BETWEEN_DRIVERS = 15.0


class DriverProcess:
    """Runs a driver, and another one when it dies.

    A separate thread reads the driver's reports; all questions are answered from memory. A driver
    that is silent for two minutes is killed, and Ray then ends its workers, which hand back. After
    four drivers it gives up, reports this as a failure, and counts no worker as running.
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
        self._settled = threading.Event()  # set when it has begun, or will never begin
        self._stopping = threading.Event()
        # Ray's id of the driver, and its number of workers
        self._begun: tuple[str, int] | None = None
        self._refusal: EngineError | None = None
        self._running = 0
        self._worker_failures: list[str] = []
        self._driver_failures: list[str] = []
        self._heard_at = clock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep_driving, name="ray-driver", daemon=True)

    def begin(self) -> tuple[str, int]:
        """Start the driver and wait until workers are starting; return its id and their number.

        Raises:
            EngineError: The cluster does not answer, or refuses.
        """
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
                next_step="Check the address. This machine must be a node of the cluster.",
            )
        if self._begun is None:
            raise self._refusal or EngineError(
                f"The Ray driver ended: {last_words(self._log)}",
                path=str(self._log),
                next_step=f"The log of the driver is {self._log}.",
            )
        return self._begun

    def running(self) -> int:
        """Return the number of workers in the driver's last report."""
        with self._lock:
            if self._running and self._clock() - self._heard_at > _MOST_SILENT_SECONDS:
                self._heard_at = self._clock()  # the next driver gets time too
                self._kill()
            return self._running

    def failures(self) -> list[str]:
        """Return one line per failed worker, and one per failed driver."""
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
                why = self._refusal.message if self._refusal is not None else last_words(self._log)
                with self._lock:
                    self._driver_failures.append(
                        f"Ray driver {number} of {_MOST_DRIVERS} ended: {why}"
                    )
                if number < _MOST_DRIVERS and self._stopping.wait(self._pause_seconds):
                    return
        finally:
            with self._lock:
                self._running = 0
            self._settled.set()

    def _drive(self) -> bool:
        """Run one driver to its end; return whether no other driver is needed."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C reaches only the parent, which asks the workers to stop.
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
        """Process a driver's report; return whether it was the last one."""
        with self._lock:
            self._heard_at = self._clock()
            match event["event"]:
                case "begun":
                    self._begun = event["job_id"], event["workers"]
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


# Starts workers on the nodes of a Ray cluster, through drivers that it does not depend on.


class RayEngine:
    """Starts workers as Ray tasks; meanwhile the caller watches the work dir.

    Nodes that join get workers too, and the workers of a dead node are started elsewhere, up to the
    numbers in the options. A worker that fails is started again twice, with a pause.

    Not guaranteed: that it knows the state of the cluster. While a link is cut, it answers from the
    last report, and it still stops in bounded time. Workers that cannot be reached end when nothing
    is left, or when their node notices that it was cut off; their leases expire.

    Args:
        options: The cluster, and the resources that workers request.

    Attributes:
        workers: Most workers, according to the options.

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
        """Start up to ``count`` workers; see `leconvert.run.engines.Engine`."""
        paths.logs_dir.mkdir(parents=True, exist_ok=True)
        name = f"ray-{time.time_ns():x}"
        order = Order(self._options, count, arguments, paths.logs_dir, name)
        driver = DriverProcess(order)
        # A driver whose workers have ended belongs to an earlier run with this engine.
        self._drivers = [*(one for one in self._drivers if one.running()), driver]
        job_id, workers = driver.begin()
        note_job(paths, "ray", job_id, "workers", workers)

    def running(self) -> int:
        """Return how many workers run or wait for a node, from the drivers' last reports."""
        return sum(driver.running() for driver in self._drivers)

    def failures(self) -> list[str]:
        """Return one line per failed worker, and one per failed driver."""
        return [line for driver in self._drivers for line in driver.failures()]

    def stop(self) -> None:
        """Ask all workers to hand back; after half a minute, leave them to their leases."""
        for driver in self._drivers:
            driver.stop()


def main() -> int:
    """Run as a process; see the module's docstring."""
    if len(sys.argv) > 1:
        _work_tied(int(sys.argv[1]), sys.argv[2:])
        return 0
    return _drive()


if __name__ == "__main__":
    sys.exit(main())
