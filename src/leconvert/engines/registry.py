"""Engines by name: those of leconvert, and those that other packages add by an entry point.

A package adds one with

    [project.entry-points."leconvert.engines"]
    NAME = "package.module:factory"

where ``factory(**options)`` returns an engine, see `leconvert.engines.Engine`; a class will do. Its
options are what ``--engine-option KEY=VALUE`` says, as text. Names are found in what packages say
about themselves: nothing of a package is imported before its engine is asked for.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leconvert.engines import Engine, Submitter
from leconvert.errors import EngineError, LeconvertError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "BUILT_IN",
    "GROUP",
    "EngineNames",
    "check_engine",
    "make_engine",
    "make_submitter",
    "parse_engine_options",
]

GROUP = "leconvert.engines"
BUILT_IN = ("inline", "local", "ray", "slurm")
"""Names that no other package can take."""

_METHODS = ("start", "running", "failures", "stop")
_TO_SUBMIT = ("submit", "script")


class EngineNames(Collection[str]):
    """Which names ``--engine`` takes: some of leconvert's own, and all that packages add.

    Packages are looked through when a name is asked for that is not among ``own``, or all are
    listed; a command that names a known engine pays nothing for it.

    Args:
        own: Names that need no package.
    """

    def __init__(self, own: Collection[str]) -> None:
        self._own = tuple(own)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in _added()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from _added()

    def __len__(self) -> int:
        return len(self._own) + len(_added())


def make_engine(name: str, options: Mapping[str, str] | None = None) -> Engine:
    """Return the engine that a package adds under a name."""
    entry = _entry(name)
    engine: Engine = _made(entry, options or {})
    check_engine(engine, called=_called(entry))
    return engine


def make_submitter(name: str, options: Mapping[str, str] | None = None) -> Submitter:
    """Return the engine that a package adds under a name, to leave a run behind."""
    entry = _entry(name)
    engine: Submitter = _made(entry, options or {})
    if _lacks(engine, _TO_SUBMIT):
        raise UsageError(
            f"{_called(entry)} cannot leave a run behind.",
            next_step=f"Use it with `leconvert convert --engine {shlex.quote(name)}`, which stays.",
        )
    if engine.workers is None:
        raise EngineError(
            f"{_called(entry)} does not say how many workers it submits.",
            next_step="Its `workers` must be a number from 1.",
        )
    _check_workers(engine, called=_called(entry))
    return engine


def check_engine(engine: object, *, called: str = "What is given as engine") -> None:
    """Check that something has what an engine needs."""
    lacks = _lacks(engine, _METHODS)
    if lacks:
        raise EngineError(
            f"{called} is no engine: {type(engine).__name__} lacks {', '.join(lacks)}.",
            next_step="leconvert.engines.Engine says what each of them does.",
        )
    _check_workers(engine, called=called)


def parse_engine_options(given: Collection[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` words as a mapping."""
    options: dict[str, str] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UsageError(
                f"--engine-option {word} is not of the form KEY=VALUE.",
                next_step="Write --engine-option queue=long, once an option.",
            )
        if key in options:
            raise UsageError(f"--engine-option {key} is given twice.")
        options[key] = value
    return options


def _added() -> list[str]:
    """Return the names that packages add, sorted; none of them is imported."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP).names - set(BUILT_IN))


def _entry(name: str) -> EntryPoint:
    found = {entry.dist.name if entry.dist else entry.value: entry for entry in _entries(name)}
    if len(found) > 1:
        raise UsageError(
            f"Several packages add an engine {name}: {', '.join(sorted(found))}.",
            next_step="Uninstall all but one of them.",
        )
    if not found:
        raise UsageError(
            f"No package here adds an engine {name}; added are: {', '.join(_added()) or 'none'}.",
            next_step=f"Install the package that adds {name}, or choose another engine.",
        )
    return next(iter(found.values()))


def _entries(name: str) -> Collection[EntryPoint]:
    from importlib.metadata import entry_points

    return () if name in BUILT_IN else tuple(entry_points(group=GROUP, name=name))


def _made(entry: EntryPoint, options: Mapping[str, str]) -> Any:
    factory = _load(entry)
    given = {key.replace("-", "_"): value for key, value in options.items()}
    _check_options(entry, factory, given)
    try:
        return factory(**given)
    except LeconvertError:
        raise
    except Exception as error:
        raise EngineError(
            f"{_called(entry)} could not be made: {_said(error)}.",
            next_step="Check --engine-option against what that package says of its options.",
        ) from error


def _load(entry: EntryPoint) -> Callable[..., Any]:
    try:
        factory = entry.load()
    except Exception as error:
        raise EngineError(
            f"{_called(entry)} cannot be imported: {_said(error)}.",
            next_step="Install that package anew with what it needs, or choose another engine.",
            details=[f"Its entry point names {entry.value}."],
        ) from error
    if not callable(factory):
        raise EngineError(
            f"{_called(entry)} names {entry.value}, which cannot be called.",
            next_step="Its entry point must name a class or a function that returns an engine.",
        )
    made: Callable[..., Any] = factory
    return made


def _check_options(
    entry: EntryPoint, factory: Callable[..., Any], given: Mapping[str, str]
) -> None:
    import inspect  # only whoever uses such an engine pays for it

    try:
        signature = inspect.signature(factory)
    except ValueError:  # written in C: it will say by itself what it does not like
        return
    try:
        signature.bind(**given)
    except TypeError as error:
        known = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        raise UsageError(
            f"{_called(entry)} does not take these options: {error}.",
            next_step=f"It knows --engine-option with {', '.join(known)}."
            if known
            else "It knows no --engine-option.",
        ) from error


def _lacks(engine: object, names: Collection[str]) -> list[str]:
    return [name for name in names if not callable(getattr(engine, name, None))]


def _check_workers(engine: object, *, called: str) -> None:
    workers = getattr(engine, "workers", 0)
    if workers is not None and not (isinstance(workers, int) and workers >= 1):
        raise EngineError(
            f"{called} does not say how many workers it wants.",
            next_step="Its `workers` must be a number from 1, or None for as many as fit here.",
        )


def _called(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    return f"Engine {entry.name} of {package}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
