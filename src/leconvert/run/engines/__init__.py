"""Engines start, watch and stop workers; they know nothing about batches.

For example::

    from leconvert import WorkerOptions, convert
    from leconvert.run.engines import SlurmEngine, SlurmOptions

    workers = WorkerOptions(engine=SlurmEngine(SlurmOptions(nodes=8)))
    convert("my_dataset", output="my_dataset_v30", workers=workers)

Engines are imported when they are first used. Other packages add engines by an entry point:

    [project.entry-points."leconvert.engines"]
    NAME = "package.module:factory"

There, ``factory(**options)`` returns an `Engine`; it may be a class. Its options are the texts of
``--engine-option KEY=VALUE``. Names are found in the metadata of packages: no package is imported
before its engine is used.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leconvert.support.errors import EngineError, LeconvertError, StorageError, UsageError
from leconvert.support.extras import lazy_names
from leconvert.support.values import dataclass
from leconvert.workdir.records import RunPaths

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from leconvert.run.engines.local import LocalEngine
    from leconvert.run.engines.options import RayOptions, Site, SlurmOptions
    from leconvert.run.engines.ray import RayEngine
    from leconvert.run.engines.slurm import SlurmEngine

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

__getattr__ = lazy_names(
    __name__,
    {
        "local": ("LocalEngine",),
        "options": ("RayOptions", "Site", "SlurmOptions"),
        "ray": ("RayEngine",),
        "slurm": ("SlurmEngine",),
    },
)


class Engine(Protocol):
    """Starts workers on a work dir and notices when they end.

    Only the work dir shows the workers' work and progress. So an engine that lies, hangs or is
    killed can delay a run, but cannot change its result.
    """

    @property
    def workers(self) -> int | None:
        """The number of workers that it starts by default; None for as many as fit here."""

    def start(self, count: int, arguments: Sequence[str], paths: RunPaths) -> None:
        """Start ``count`` workers, and forget those of an earlier run that have ended.

        Args:
            count: Number of workers.
            arguments: The arguments after ``leconvert work``: the work dir and options.
            paths: The run's own folders: ``logs_dir`` for logs of workers, ``jobs_dir`` for records
                of submitted jobs.

        Raises:
            EngineError: The workers cannot be started.
        """

    def running(self) -> int:
        """Return how many workers run or wait to be started.

        It is called many times a second and must answer at once. An engine that asks another
        service does so from time to time, and answers from memory in between.
        """

    def failures(self) -> list[str]:
        """Return one line per worker that failed."""

    def stop(self) -> None:
        """Ask all workers to hand back their batches, and wait until they have ended."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The jobs to start for a run whose command does not stay.

    Attributes:
        workers: The number of workers; 0 if every batch is done.
        work_arguments: The arguments of ``leconvert work``: the work dir and options.
        pack_arguments: The arguments of ``leconvert pack``: the work dir and options. The packer
            begins when every worker has ended, in any way; with ``--no-wait`` it reports missing
            batches. None for no packer, because the workers of a fleet pack.
    """

    workers: int
    work_arguments: Sequence[str]
    pack_arguments: Sequence[str] | None


class Submitter(Protocol):
    """An engine that can also submit workers and a packer without waiting for them."""

    @property
    def workers(self) -> int:
        """The number of workers that it starts, if there are enough batches."""

    def submit(self, handover: JobRequest, paths: RunPaths) -> tuple[str | None, str | None]:
        """Submit workers and packer; return their two ids, None if there are none.

        Raises:
            EngineError: They cannot be submitted.
        """

    def script(self, handover: JobRequest, paths: RunPaths) -> str:
        """Return a shell script that submits the same jobs; nothing is submitted."""


# Messages and records that the engines of this package share.


_LAST_LINES = 3
_LAST_BYTES = 4096


def last_words(log: Path) -> str:
    """Return the last lines of a log as one line; ``no output`` if there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            said = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return " / ".join(said[-_LAST_LINES:]) or "no output"


def how_a_worker_failed(name: object, code: int, log: Path) -> str:
    """Return one line: the worker, how its process ended, and the end of its log."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"worker {name} {how}: {last_words(log)}"


def note_job(paths: RunPaths, engine: str, job_id: str, role: str, tasks: int) -> None:
    """Record a submitted job for `status`; a failing disk must not lose the job."""
    # Its imports take time, which most commands need not spend.
    from leconvert.workdir.activity import JobRecord, write_job
    from leconvert.workdir.identity import new_token

    token = new_token(f"{engine}-{job_id}", os.getpid())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(StorageError):
        write_job(paths, JobRecord(token, engine, job_id, role, tasks, now))


# Engines of other packages.


BUILT_IN = ("inline", "local", "ray", "slurm")
"""Names that no other package can take."""

_METHODS = ("start", "running", "failures", "stop")


class EngineNames:
    """The names that ``--engine`` takes: some of leconvert's own, and all that packages add.

    Packages are searched only for a name that is not among ``own``, or to list all names. So a
    command with a known engine does not search them.
    """

    def __init__(self, own: Collection[str]) -> None:
        self._own = tuple(own)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in _added()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from _added()


def make_engine(name: str, options: Mapping[str, str] | None = None) -> Engine:
    """Return the engine that a package adds under a name.

    Raises:
        EngineError: The package cannot be imported, or its engine cannot be made.
        UsageError: No package, or several, add this name, or the options are wrong.
    """
    engine, called = _made(name, options or {})
    check_engine(engine, called=called)
    found: Engine = engine
    return found


def make_submitter(name: str, options: Mapping[str, str] | None = None) -> Submitter:
    """Return the engine that a package adds under a name, for submitting jobs.

    Raises:
        EngineError: The package cannot be imported, or its engine cannot be made.
        UsageError: As for `make_engine`; or the engine cannot submit jobs.
    """
    engine, called = _made(name, options or {})
    if _lacks(engine, ("submit", "script")):
        raise UsageError(
            f"{called} cannot run jobs after this command has ended.",
            next_step=f"Use `leconvert convert --engine {shlex.quote(name)}`, which runs until all "
            "is done.",
        )
    _check_workers(engine, called, or_none=False)
    found: Submitter = engine
    return found


def check_engine(engine: object, *, called: str = "What is given as engine") -> None:
    """Check that an object has the methods of an engine.

    Raises:
        EngineError: A method or the number of workers is missing.
    """
    if lacks := _lacks(engine, _METHODS):
        raise EngineError(
            f"{called} is not an engine: {type(engine).__name__} has no {', '.join(lacks)}.",
            next_step="leconvert.run.engines.Engine describes what an engine needs.",
        )
    _check_workers(engine, called, or_none=True)


def parse_engine_options(given: Collection[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` words as a mapping."""
    options: dict[str, str] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UsageError(
                f"--engine-option {word} is not of the form KEY=VALUE.",
                next_step="Write for example --engine-option queue=long, once for each option.",
            )
        if key in options:
            raise UsageError(f"--engine-option {key} is given twice.")
        options[key] = value
    return options


def _entries() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group="leconvert.engines")


def _added() -> list[str]:
    """Return the names that packages add, sorted; none of them is imported."""
    return sorted(_entries().names - set(BUILT_IN))


def _made(name: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the object that a package's factory makes, and its name in messages."""
    entry = _entry(name)
    called = f"Engine {name} of {entry.value}"
    if entry.dist is not None:
        called = f"Engine {name} of {entry.dist.name} {entry.dist.version}"
    try:
        factory = entry.load()
    except Exception as error:
        raise EngineError(
            f"{called} cannot be imported: {_said(error)}.",
            next_step="Install that package again with its requirements, or choose another engine.",
            details=[f"Its entry point names {entry.value}."],
        ) from error
    if not callable(factory):
        raise EngineError(
            f"{called} has the entry point {entry.value}, which is not a class or a function.",
            next_step="The entry point must be a class or a function that returns an engine.",
        )
    given = {key.replace("-", "_"): value for key, value in options.items()}
    _check_options(factory, given, called)
    try:
        return factory(**given), called
    except LeconvertError:
        raise
    except Exception as error:
        raise EngineError(
            f"{called} could not be created: {_said(error)}.",
            next_step="Check --engine-option with the documentation of that package.",
        ) from error


def _entry(name: str) -> EntryPoint:
    found = {
        entry.dist.name if entry.dist else entry.value: entry
        for entry in (() if name in BUILT_IN else _entries().select(name=name))
    }
    if len(found) > 1:
        raise UsageError(
            f"Several packages provide an engine {name}: {', '.join(sorted(found))}.",
            next_step="Uninstall all but one of them.",
        )
    if not found:
        raise UsageError(
            f"No installed package provides an engine {name}. Engines of installed packages: "
            f"{', '.join(_added()) or 'none'}.",
            next_step=f"Install the package that provides {name}, or choose another engine.",
        )
    return found.popitem()[1]


def _check_options(factory: Any, given: Mapping[str, str], called: str) -> None:
    import inspect  # only engines of other packages need it

    try:
        signature = inspect.signature(factory)
        signature.bind(**given)
    except ValueError:  # written in C: it checks its arguments itself
        return
    except TypeError as error:
        known = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        raise UsageError(
            f"{called} does not take these options: {error}.",
            next_step=f"Its options are: {', '.join(known)}." if known else "It has no options.",
        ) from error


def _lacks(engine: object, names: Collection[str]) -> list[str]:
    return [name for name in names if not callable(getattr(engine, name, None))]


def _check_workers(engine: object, called: str, *, or_none: bool) -> None:
    workers = getattr(engine, "workers", 0)
    if workers is None and or_none:
        return
    if not (isinstance(workers, int) and workers >= 1):
        raise EngineError(
            f"{called} does not give a valid number of workers.",
            next_step="Its `workers` must be a number from 1"
            f"{', or None for as many as fit here' * or_none}.",
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
