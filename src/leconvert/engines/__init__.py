"""How workers are started. An engine knows nothing of batches: it starts, watches and stops.

    from leconvert import WorkerOptions, convert
    from leconvert.engines import SlurmEngine, SlurmOptions

    workers = WorkerOptions(engine=SlurmEngine(SlurmOptions(nodes=8)))
    convert("my_dataset", output="my_dataset_v30", workers=workers)

Engines are imported when they are first used. Other packages add theirs by an entry point, see
`leconvert.engines.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from leconvert.workdir.records import RunPaths

if TYPE_CHECKING:
    from leconvert.engines.local import LocalEngine
    from leconvert.engines.ray import RayEngine, RayOptions
    from leconvert.engines.slurm import Site, SlurmEngine, SlurmOptions

__all__ = [
    "Engine",
    "JobRequest",
    "LocalEngine",
    "RayEngine",
    "RayOptions",
    "Site",
    "SlurmEngine",
    "SlurmOptions",
    "Submitter",
]

_HOME = {
    "LocalEngine": "leconvert.engines.local",
    "RayEngine": "leconvert.engines.ray",
    "RayOptions": "leconvert.engines.ray",
    "Site": "leconvert.engines.slurm",
    "SlurmEngine": "leconvert.engines.slurm",
    "SlurmOptions": "leconvert.engines.slurm",
}


class Engine(Protocol):
    """Something that starts workers on a work dir and notices that they ended.

    What workers do, and how far they are, is in the work dir alone: an engine that lies, hangs or
    is killed can delay a run and never change its result.
    """

    @property
    def workers(self) -> int | None:
        """How many it starts unless it is told otherwise; None for as many as fit here."""

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Start ``count`` workers.

        Args:
            count: How many.
            arguments: What follows ``leconvert work``: the work dir and options.
            paths: The run's own folders: ``logs_dir`` for what workers say, ``jobs_dir`` for what
                was submitted.

        Raises:
            EngineError: They cannot be started.
        """

    def running(self) -> int:
        """Return how many workers run or wait to be started.

        It is asked many times a second and must answer at once: an engine that has to ask somebody
        else does so now and then, and answers from memory meanwhile.
        """

    def failures(self) -> list[str]:
        """Return one line a worker that ended badly."""

    def stop(self) -> None:
        """Ask all workers to hand back what they hold, and wait until they ended."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What there is to be started of a run that is left behind.

    Attributes:
        workers: How many workers; 0 where every batch is done.
        work_arguments: What follows ``leconvert work``: the work dir and options.
        pack_arguments: What follows ``leconvert pack``, likewise. The packer begins when every
            worker has ended, however that was; with ``--no-wait`` it says what is missing.
    """

    workers: int
    work_arguments: Sequence[str]
    pack_arguments: Sequence[str]


class Submitter(Protocol):
    """An engine that can also leave a run behind: workers, a packer, and nobody who waits."""

    @property
    def workers(self) -> int:
        """How many it starts, if there are so many batches."""

    def submit(self, handover: JobRequest, paths: RunPaths) -> tuple[str | None, str]:
        """Submit workers and packer; return the id of the workers, None without any, and its own.

        Raises:
            EngineError: They cannot be submitted.
        """

    def script(self, handover: JobRequest, paths: RunPaths) -> str:
        """Return a shell script that submits the same; nothing is done."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'leconvert.engines' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
