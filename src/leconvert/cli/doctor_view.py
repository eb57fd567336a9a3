"""Draws what ``leconvert doctor`` found: a name on the left, what was seen wrapped beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from leconvert.cli.doctor_rows import doctor_rows

__all__ = ["doctor_lines"]

_NAME_WIDTH = 12
_NARROWEST = 40
_WIDE = 80


def doctor_lines(record: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines.

    Args:
        record: As `leconvert.doctor.Examination.as_record` returns it.
        width: Columns of the terminal; text is wrapped at 40 or more.
    """
    lines: list[str] = []
    for name, said in doctor_rows(record):
        lines += textwrap.wrap(
            f"{name:<{_NAME_WIDTH}}{said}",
            max(width, _NARROWEST),
            subsequent_indent=" " * _NAME_WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )
    if record["packages"]:
        lines += ["", *_packages(record["packages"], width)]
    lines.append("")
    for sentence in record["lacks"] or ["Everything that a conversion needs is here."]:
        lines += textwrap.wrap(sentence, max(width, _NARROWEST), break_on_hyphens=False)
    return lines


def _packages(packages: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return a table; what installs a package stands below it where the terminal is narrow."""
    rows = [("package", "wants", "here")]
    rows += [(p["name"], p["wants"] or "any", p["version"] or "missing") for p in packages]
    columns = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = []
    for row, remedy in zip(rows, ("", *(p["remedy"] or "" for p in packages)), strict=True):
        cells = "".join(f"{cell:<{column}}" for cell, column in zip(row, columns, strict=True))
        if width >= _WIDE:
            lines.append(f"{cells}{remedy}".rstrip())
        else:
            lines += [cells.rstrip(), *([f"  {remedy}"] if remedy else [])]
    return lines
