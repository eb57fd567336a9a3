"""The errors and exit codes as a page, from `leconvert.errors`."""

from __future__ import annotations

import inspect

from leconvert import errors
from leconvert.errors import LeconvertError

__all__ = ["errors_page"]

_HEAD = """\
# Exit codes

<!-- Written by scripts/make_reference.py from leconvert.errors; changes here are lost. -->

What a command ends with, and what `leconvert` raises in Python: every error is a `LeconvertError`
with `message`, `path`, `next_step` and `details`, and has one code. What to do about each stands in
[the command line](../cli.md#when-it-stops).

| code | error | meaning |
|---|---|---|
| 0 | | success |
"""

_TAIL = """\
| 141 | | whoever read the output went away |

An indented error is a special case of the one above it: `except` of that catches both. A wrong
command line ends with 2 as well. With `--json` the error is a JSON document on stdout.
"""


def errors_page() -> str:
    """Return the page."""
    classes: list[type[LeconvertError]] = [getattr(errors, name) for name in errors.__all__]
    top = [error for error in classes if error.__base__ is LeconvertError]
    rows: list[str] = []
    for error in sorted([*top, LeconvertError], key=_by_code):
        rows.append(_row(error, 0))
        if error is not LeconvertError:
            rows += _below(error, classes, 1)
    return _HEAD + "".join(rows) + _TAIL


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
