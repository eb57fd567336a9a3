"""Numbers and sentences in readable form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

GET_AGAIN = "Get the file again from where it came: `git lfs pull`, the Hub, or another copy"
"""The first advice for a file that is missing or damaged; all other advice loses something."""
GET_AGAIN_OR_DROP = (
    f"{GET_AGAIN}. If there is no other copy, leave the episode out with --on-bad-episode drop."
)
"""The advice for a file of a single episode."""
_SHOWN_CHARACTERS = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def amount(size_bytes: float) -> str:
    """Return a number of bytes in readable form, such as ``2.1 GiB``."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Return a duration in readable form, such as ``1 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def guessed_duration(seconds: float) -> str:
    """Return an estimated duration; it is never "0 s"."""
    return "a second" if seconds < 1.5 else duration(seconds)


def shorten(text: str, width: int, *, keep: str = "head") -> str:
    """Return one line of at most ``width`` characters; an ellipsis stands for omitted text."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    return "…" + line[len(line) - width + 1 :] if keep == "tail" else line[: width - 1] + "…"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as ``1 batch`` or ``2,000 batches``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or noun + 's'}"


def numbered(noun: str, numbers: object) -> str:
    """Return a noun with its numbers, such as ``episode 2`` or ``episodes 0,3-4``."""
    return f"{noun if str(numbers).isdecimal() else noun + 's'} {numbers}"


def first_few(lines: Sequence[object], most: int) -> list[str]:
    """Return the first lines as text, and a line with the number of lines left out."""
    left = len(lines) - most
    return [*map(str, lines[:most]), *([f"... and {left:,} more"] if left > 0 else [])]


def shown(text: object) -> str:
    """Return a name or value of a source in a form that a message can hold.

    Names may hold line breaks, quotes, and bytes that are not text; values may be long.
    """
    said = text if isinstance(text, str) and text.strip() and text.isprintable() else ascii(text)
    if len(said) > _SHOWN_CHARACTERS:
        said = said[: _SHOWN_CHARACTERS - 3] + "..."
    return said


def json_record(value: Any) -> dict[str, Any]:
    """Return a dataclass as a mapping for JSON, with paths as texts."""

    def mapping(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: str(held) if isinstance(held, Path) else held for name, held in items}

    record: dict[str, Any] = asdict(value, dict_factory=mapping)
    return record


# Secrets, removed from command lines and messages before they are recorded or shown.
#
# Recognised are options with a name like ``--token``, texts that look like a Hub token, credentials
# in a URL, and the values of environment variables named like a secret (``HF_TOKEN``). A secret of
# another form that is passed in another way is not recognised.


HIDDEN = "***"

_NAME = re.compile(r"token|secret|passw|api[-_]?key|credential|authorization", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}")
# A password may contain an @ itself; a URL that was treated as a path has lost a slash.
_CREDENTIALS = re.compile(r"\b([a-z][a-z0-9+.-]*:/{1,2})[^/\s?#]+@", re.IGNORECASE)
_QUERY = re.compile(rf"([?&][^=&#\s]*(?:{_NAME.pattern}|key|sig)[^=&#\s]*=)[^&#\s]+", re.IGNORECASE)
_SHORTEST_VALUE = 6


def without_secrets(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return a command line with every secret replaced by ``***``."""
    known = _values(environment)
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = argument.startswith("-") and _NAME.search(name) is not None
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
            secret = False
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_masked(argument, known))
        hide_next = secret and not equals
    return shown


def without_secrets_in(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text, such as an error message, with every secret replaced by ``***``."""
    return _masked(text, _values(environment))


def without_credentials(text: str) -> str:
    """Return a text with secrets of known form replaced by ``***``; no environment is read.

    These are Hub tokens, a user's name and password in a URL, and secrets among its parameters.
    """
    text = _CREDENTIALS.sub(rf"\1{HIDDEN}@", _HUB_TOKEN.sub(HIDDEN, text))
    return _QUERY.sub(rf"\1{HIDDEN}", text)


def record_without_credentials(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record for JSON, with every text as by `without_credentials`."""

    def public(value: object) -> object:
        if isinstance(value, str):
            return without_credentials(value)
        if isinstance(value, Mapping):
            return record_without_credentials(value)
        return [*map(public, value)] if isinstance(value, list | tuple) else value

    return {key: public(value) for key, value in record.items()}


def _masked(text: str, known: Sequence[str]) -> str:
    for value in known:
        text = text.replace(value, HIDDEN)
    return without_credentials(text)


def _values(environment: Mapping[str, str] | None) -> list[str]:
    variables = os.environ if environment is None else environment
    values = {value for name, value in variables.items() if _NAME.search(name)}
    # Short values (`GIT_ASKPASS=1`) are no secrets. The longest first, as one may contain another.
    return sorted((v for v in values if len(v) >= _SHORTEST_VALUE), key=len, reverse=True)
