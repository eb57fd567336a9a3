"""Talks to Ray: the only module that imports it.

Every call here may hang while a link is cut. So all of this runs in a driver's process, see
`leconvert.engines.ray.driver`, that whoever started it can kill.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from leconvert.engines.ray import node
from leconvert.engines.ray.options import RayOptions
from leconvert.errors import EngineError

__all__ = ["Cluster", "Outcome", "RayCluster", "WorkerOrder", "ray_is_missing"]

_GRACE_SECONDS = 20.0
# Results are a few words that come with the news that they are there.
_FETCH_SECONDS = 10.0
_TCP_SECONDS = 10.0
# What a Ray that is started here keeps for objects, of which there are none; its least.
_OBJECT_STORE_BYTES = 75 * 2**20
_WHERE_TO_FIND_ONE = (
    "Name one with --ray-address HOST:PORT, or start one on this machine with --ray-address local."
)
_WORKER = ("-P", "-m", "leconvert.engines.ray.tied")


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What one worker is told.

    Attributes:
        arguments: What follows ``leconvert``.
        log: Where its output goes.
        node: The id of the node it must run on; None for any.
    """

    arguments: Sequence[str]
    log: Path
    node: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a worker's task ended.

    Attributes:
        code: The worker's exit code; None if it was lost, or never ran.
        host: Where it ran, empty where unknown.
        failure: Why it never ran, or ended without a code; None if it did not fail.
    """

    code: int | None
    host: str = ""
    failure: str | None = None


class Cluster(Protocol):
    """What a driver needs of Ray."""

    def fitting_nodes(self) -> Mapping[str, str]:
        """Return the living nodes that are large enough for a worker, host names by id."""

    def start(self, order: WorkerOrder) -> Any:
        """Start a worker as soon as there is room, and return a handle."""

    def ended(self, handles: Iterable[Any], seconds: float) -> Mapping[Any, Outcome]:
        """Return what has ended; wait no longer than so many seconds if nothing has."""

    def cancel(self, handles: Iterable[Any]) -> None:
        """Ask workers to hand back and end."""


class RayCluster:
    """A connection to a cluster, the driver of one Ray job.

    Args:
        options: Which cluster, and what workers ask for.

    Raises:
        EngineError: Ray is missing, there is no cluster at the address, or it runs other versions.
    """

    def __init__(self, options: RayOptions) -> None:
        # It asks once a host otherwise, and says so in every log.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Under `uv run` it would pack up the current folder and run uv on every node.
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
        # Nodes need not have this very version of the function that they run.
        ray.cloudpickle.register_pickle_by_value(node)
        self._ray = ray
        self._connect()
        remote = ray.remote(
            num_cpus=options.cpus_per_task,
            memory=options.memory_bytes,
            resources=dict(options.resources) or None,
            # Whoever watches decides what is started again.
            max_retries=0,
            # A worker that a cancellation missed is asked to hand back by the end of its parent.
            max_calls=1,
        )
        self._task = remote(node.work_on_this_node)

    @property
    def job_id(self) -> str:
        """Ray's name for this driver."""
        return str(self._ray.get_runtime_context().get_job_id())

    def largest_node(self) -> str:
        """Say what the largest living node offers."""
        offers = [one["Resources"] for one in self._ray.nodes() if one["Alive"]]
        if not offers:
            return "there is no node"
        best = max(offers, key=lambda offer: (offer.get("CPU", 0), offer.get("memory", 0)))
        return f"the largest offers {best.get('CPU', 0):g} CPUs and {_gib(best.get('memory', 0))}"

    def fitting_nodes(self) -> Mapping[str, str]:
        """Return the living nodes that are large enough for a worker, host names by id."""
        asked = {"CPU": float(self._options.cpus_per_task), **self._options.resources}
        if self._options.memory_bytes is not None:
            asked["memory"] = float(self._options.memory_bytes)
        return {
            one["NodeID"]: one["NodeManagerHostname"]
            for one in self._ray.nodes()
            if one["Alive"]
            and all(one["Resources"].get(name, 0) >= need for name, need in asked.items())
        }

    def start(self, order: WorkerOrder) -> Any:
        """Start a worker as soon as there is room, and return a handle."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where: Any = "SPREAD"
        if order.node is not None:
            where = NodeAffinitySchedulingStrategy(order.node, soft=False)
        task = self._task.options(scheduling_strategy=where, name="leconvert work")
        return task.remote(_WORKER, list(order.arguments), str(order.log), _GRACE_SECONDS)

    def ended(self, handles: Iterable[Any], seconds: float) -> Mapping[Any, Outcome]:
        """Return what has ended; wait no longer than so many seconds if nothing has."""
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
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()

    def _outcome(self, handle: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            host, code, said = self._ray.get(handle, timeout=_FETCH_SECONDS)
        except errors.TaskCancelledError:
            return Outcome(130)
        except (
            errors.NodeDiedError,
            errors.TaskUnschedulableError,  # the node it belongs to is gone
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
        # For all of the job: a folder is sent with nothing less.
        wanted: dict[str, Any] = {"runtime_env": _runtime_env(self._options) or None}
        if address == "local":
            wanted |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        try:
            self._ray.init(address=address, log_to_driver=False, **wanted)
        except ConnectionError as error:
            if address == "auto":
                raise EngineError(
                    "No Ray runs on this machine, and $RAY_ADDRESS names none.",
                    next_step=_WHERE_TO_FIND_ONE,
                ) from error
            raise _no_cluster(address, _first_line(error)) from error
        except (RuntimeError, TypeError, ValueError, self._ray.exceptions.RayError) as error:
            # Versions that differ, a wrong token, a runtime environment that is none: Ray says it
            # well.
            raise EngineError(
                f"The Ray cluster at {address} did not take this process ({_first_line(error)}).",
                details=[line for line in str(error).splitlines()[1:] if line.strip()],
                next_step="Use the cluster's own versions of Ray and Python on one of its nodes, "
                "and check --ray-runtime-env if there is one.",
            ) from error


def ray_is_missing() -> EngineError:
    """Return the error that says how Ray is installed."""
    return EngineError(
        "Ray is not installed here.", next_step='Install it: pip install "leconvert[ray]".'
    )


def _no_cluster(address: str, why: str) -> EngineError:
    """Return the error that says that there is no cluster."""
    return EngineError(
        f"There is no Ray cluster at {address} ({why}).",
        next_step=_WHERE_TO_FIND_ONE,
    )


def _check_somebody_listens(address: str) -> None:
    # Ray itself would try for minutes.
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise EngineError(
            f"--ray-address {address} makes no sense.",
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
