"""Flags as fields of an options class: a field holds the flag's names, help and parser.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class LeaseOptions:
        lease_seconds: float = flag(60.0, "silence of a worker (default: 60)", "S", some_seconds)

`leconvert.cli.options` adds the flags of a class to a parser, and fills the class from a command
line. `as_arguments` writes the command line for a filled class. A flag has the name of its field,
unless ``names`` says otherwise. The default decides the kind of flag: a boolean flag takes no
value, and the flag of a tuple can be given several times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import field, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leconvert.support.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Flag(NamedTuple):
    """The command line's form of one field of an options class."""

    field: str
    default: Any
    help: str
    metavar: str | None
    read: Callable[[str], Any] | None
    names: tuple[str, ...]
    choices: Collection[str] | None
    may_be_negated: bool

    @property
    def name(self) -> str:
        """The name of the flag in messages."""
        return self.names[-1]

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.default is True or self.default is False


def flag(
    default: Any,
    help: str,  # noqa: A002 - as argparse calls it
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    *,
    names: tuple[str, ...] = (),
    choices: Collection[str] | None = None,
    may_be_negated: bool = False,
) -> Any:
    """Return a field that a flag fills.

    Args:
        default: The field's default.
        help: The flag's help, with its default.
        metavar: The placeholder for its value in the help.
        read: Parses a word of the command line; raises `argparse.ArgumentTypeError`.
        names: The flag's names, if they are not the field's.
        choices: The allowed values.
        may_be_negated: Whether ``--no-NAME`` gives False, and a missing flag gives None.
    """
    told = Flag("", default, help, metavar, read, names, choices, may_be_negated)
    return field(default=default, metadata={"flag": told})


def flags_of(kind: type[DataclassInstance]) -> tuple[Flag, ...]:
    """Return the flags of a class's fields, in their order."""
    return tuple(
        told._replace(field=each.name, names=told.names or (f"--{each.name.replace('_', '-')}",))
        for each in fields(kind)
        if (told := each.metadata.get("flag")) is not None
    )


def as_arguments(options: DataclassInstance, *, with_defaults: bool = False) -> list[str]:
    """Return the words of a command line for an options object.

    Args:
        options: The object.
        with_defaults: Whether to write values that are the default of the class, too, since the
            called command may have other defaults.
    """
    words: list[str] = []
    for told in flags_of(type(options)):
        value = getattr(options, told.field)
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        if told.is_switch:
            words += [] if value == told.default else [told.name]
        elif with_defaults or value != told.default:
            words += [f"{told.name}={each}" for each in values]
    return words


# Checks of values that a program gives.


def whole_number(name: str, given: Any, least: int = 0) -> int:
    """Return a number, which may be NumPy's, as Python's own.

    Raises:
        UsageError: It is below ``least``, or no whole number.
    """
    if not isinstance(given, Integral):
        raise UsageError(f"{name} must be a whole number, not {given!r}.")
    if given < least:
        raise UsageError(f"{name} must be at least {least}, not {given}.")
    return int(given)


def make_numbers_own(options: DataclassInstance) -> None:
    """Make NumPy's numbers in an options object Python's, which records can hold."""
    for each in fields(options):
        item = getattr(getattr(options, each.name), "item", None)
        if item is not None:
            object.__setattr__(options, each.name, item())


def several(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values of an option that takes several.

    Raises:
        UsageError: A text is given, whose letters would be taken for the values.
    """
    if isinstance(given, str):
        raise UsageError(f"{name} takes several values, such as ({given!r},), not a text.")
    return tuple(given)


# Parsers for words of a command line.

_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def whole(least: int) -> Callable[[str], int]:
    """Return a parser for a whole number of at least ``least``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise _refused(f"takes a whole number of at least {least}, not {text!r}")
        return value

    return read


def worker_count(text: str) -> int | str:
    """Parse a number of workers: a whole number of at least 1, or ``auto``."""
    if text == "auto":
        return text
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise _refused(f"takes auto or a whole number of at least 1, not {text!r}")


def seconds(text: str) -> float:
    """Parse a duration that may be 0."""
    value = _number(text)
    if not value >= 0:
        raise _refused(f"takes a number of seconds of at least 0, not {text!r}")
    return value


def some_seconds(text: str) -> float:
    """Parse a duration above 0."""
    value = _number(text)
    if not value > 0:
        raise _refused(f"takes a number of seconds above 0, not {text!r}")
    return value


def megabytes(text: str) -> float:
    """Parse a size limit in MB; a whole number stays an int, as info.json stores it."""
    value = _number(text)
    if not value > 0:
        raise _refused(f"takes a number of MB above 0, not {text!r}")
    return int(value) if value.is_integer() else value


def size_in_bytes(text: str) -> int:
    """Parse a number of bytes; K, M, G and T are powers of 1,024."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise _refused(f"takes a size such as 500M or 20G, not {text!r}")
    power = "KMGT".index(found[2].upper()) + 1 if found[2] else 0
    return int(found[1]) * int(1024**power)


def absolute_path(text: str) -> Path:
    """Parse a path, relative to the current folder of this process."""
    return Path(text).resolve()


def block_align(text: str) -> int | None:
    """Parse a block size in bytes, 0 for none; return None for ``auto``."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise _refused(f"takes auto, 0 or a number of bytes such as 4096, not {text!r}") from None


def is_number(word: str) -> bool:
    """Return whether a word is a finite number."""
    return not math.isnan(_number(word))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _refused(why: str) -> Exception:
    from argparse import ArgumentTypeError  # only a command line needs it

    return ArgumentTypeError(why)
