"""The errors and exit codes as a page, from `leconvert.support.errors`."""

from __future__ import annotations

import inspect

from leconvert.support import errors
from leconvert.support.errors import EXIT_CODES, LeconvertError

__all__ = ["errors_page"]

_HEAD = """\
# Exit codes

<!-- Written by scripts/make_reference.py from leconvert.support.errors; changes here are lost. -->

What a command ends with; `leconvert explain CODE` says the same.

| code | meaning | what to do |
|---|---|---|
"""

_ERRORS = """\

## Errors in Python

Every error that `leconvert` raises is a `LeconvertError` with `message`, `path`, `next_step` and
`details`, and has the code that a command ends with.

| code | error | meaning |
|---|---|---|
"""

_TAIL = """\

An indented error is a special case of the one above it: `except` of that catches both. A wrong
command line ends with 2 as well. With `--json` the error is a JSON document on stdout.
"""


def errors_page() -> str:
    """Return the page."""
    named = [getattr(errors, name) for name in errors.__all__]
    classes: list[type[LeconvertError]] = [
        kind for kind in named if isinstance(kind, type) and issubclass(kind, LeconvertError)
    ]
    top = [error for error in classes if error.__base__ is LeconvertError]
    rows: list[str] = []
    for error in sorted([*top, LeconvertError], key=_by_code):
        rows.append(_row(error, 0))
        if error is not LeconvertError:
            rows += _below(error, classes, 1)
    codes = [
        f"| {code} | {about.meaning} | {about.remedy} |\n" for code, about in EXIT_CODES.items()
    ]
    return _HEAD + "".join(codes) + _ERRORS + "".join(rows) + _TAIL


def _below(
    parent: type[LeconvertError], classes: list[type[LeconvertError]], depth: int
) -> list[str]:
    rows = []
    for error in classes:
        if error.__base__ is parent:
            rows += [_row(error, depth), *_below(error, classes, depth + 1)]
    return rows


def _row(error: type[LeconvertError], depth: int) -> str:
    first = (inspect.getdoc(error) or "").split("\n\n", 1)[0].replace("\n", " ").replace("``", "`")
    if error is LeconvertError:
        first = "Something that should not happen: a bug; please report it."
    return f"| {error.exit_code} | {'&nbsp;&nbsp;' * depth}`{error.__name__}` | {first} |\n"


def _by_code(error: type[LeconvertError]) -> tuple[int, str]:
    return error.exit_code, error.__name__
