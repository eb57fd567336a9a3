"""How workers are started. An engine knows nothing of batches: it starts, watches and stops.

    from leconvert import WorkerOptions, convert
    from leconvert.run.engines import SlurmEngine, SlurmOptions

    workers = WorkerOptions(engine=SlurmEngine(SlurmOptions(nodes=8)))
    convert("my_dataset", output="my_dataset_v30", workers=workers)

Engines are imported when they are first used. Other packages add theirs by an entry point:

    [project.entry-points."leconvert.engines"]
    NAME = "package.module:factory"

where ``factory(**options)`` returns an `Engine`; a class will do. Its options are what
``--engine-option KEY=VALUE`` says, as text. Names are found in what packages say about themselves:
nothing of a package is imported before its engine is asked for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leconvert.support.errors import EngineError, LeconvertError, StorageError, UsageError
from leconvert.workdir.records import RunPaths

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from leconvert.run.engines.local import LocalEngine
    from leconvert.run.engines.options import Site, SlurmOptions
    from leconvert.run.engines.ray import RayEngine, RayOptions
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

_HOME = {
    "LocalEngine": "leconvert.run.engines.local",
    "RayEngine": "leconvert.run.engines.ray",
    "RayOptions": "leconvert.run.engines.ray",
    "Site": "leconvert.run.engines.options",
    "SlurmEngine": "leconvert.run.engines.slurm",
    "SlurmOptions": "leconvert.run.engines.options",
}


class Engine(Protocol):
    """Something that starts workers on a work dir and notices that they ended.

    The work dir alone tells the workers' work and progress: an engine that lies, hangs or is killed
    can delay a run and never change its result.
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
    """The jobs to start for a run whose command does not stay.

    Attributes:
        workers: The number of workers; 0 if every batch is done.
        work_arguments: The arguments of ``leconvert work``: the work dir and options.
        pack_arguments: The arguments of ``leconvert pack``, likewise. The packer begins when every
            worker has ended, in any way; with ``--no-wait`` it reports missing batches. None
            for no packer: the workers of a fleet pack.
    """

    workers: int
    work_arguments: Sequence[str]
    pack_arguments: Sequence[str] | None


class Submitter(Protocol):
    """An engine that can also leave a run behind: workers, a packer, and nobody who waits."""

    @property
    def workers(self) -> int:
        """How many it starts, if there are so many batches."""

    def submit(self, handover: JobRequest, paths: RunPaths) -> tuple[str | None, str | None]:
        """Submit workers and packer; return the id of the workers and its own, None without any.

        Raises:
            EngineError: They cannot be submitted.
        """

    def script(self, handover: JobRequest, paths: RunPaths) -> str:
        """Return a shell script that submits the same; nothing is done."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'leconvert.run.engines' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


# Messages and records that the engines of this package share.


_LAST_LINES = 3
_LAST_BYTES = 4096


def last_words(log: Path) -> str:
    """Return the last lines of a log in one line; ``no output`` where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            said = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return " / ".join(said[-_LAST_LINES:]) or "no output"


def how_a_worker_failed(name: object, code: int, log: Path) -> str:
    """Return one line: which worker, how its process ended, and the end of its log."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"worker {name} {how}: {last_words(log)}"


def note_job(paths: RunPaths, engine: str, job_id: str, role: str, tasks: int) -> None:
    """Write down what was submitted, for `status`; a disk that fails must not lose the job."""
    # Its imports take time, which most commands do not have.
    from leconvert.workdir.activity import JobRecord, write_job
    from leconvert.workdir.identity import new_token

    token = new_token(f"{engine}-{job_id}", os.getpid(), os.urandom)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(StorageError):
        write_job(paths, paths.root.name, JobRecord(token, engine, job_id, role, tasks, now))


# Engines of other packages.


BUILT_IN = ("inline", "local", "ray", "slurm")
"""Names that no other package can take."""

_METHODS = ("start", "running", "failures", "stop")


class EngineNames:
    """The names that ``--engine`` takes: some of leconvert's own, and all that packages add.

    Packages are looked through when a name is asked for that is not among ``own``, or all are
    listed; a command that names a known engine pays nothing for it.
    """

    def __init__(self, own: Collection[str]) -> None:
        self._own = tuple(own)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in _added()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from _added()


def make_engine(name: str, options: Mapping[str, str] | None = None) -> Engine:
    """Return the engine that a package adds under a name."""
    engine, called = _made(name, options or {})
    check_engine(engine, called=called)
    found: Engine = engine
    return found


def make_submitter(name: str, options: Mapping[str, str] | None = None) -> Submitter:
    """Return the engine that a package adds under a name, to leave a run behind."""
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
    """Check that something has what an engine needs."""
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
    """Return what a package's factory makes of options, and how messages call it."""
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
    import inspect  # only whoever uses such an engine pays for it

    try:
        signature = inspect.signature(factory)
        signature.bind(**given)
    except ValueError:  # written in C: it will say by itself what it does not like
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
            f"{called} gives no valid number of workers that it "
            f"{'wants' if or_none else 'submits'}.",
            next_step="Its `workers` must be a number from 1"
            f"{', or None for as many as fit here' * or_none}.",
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
