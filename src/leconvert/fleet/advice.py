"""The message about a dataset that was set aside: its first finding, and what helps.

A user of a fleet writes options after the dataset's line in the list, or has a policy give them.
``LIST`` stands for the list's file, as in the help.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leconvert.dataset.findings import DROP, TRIM, all_remedies, lossless_remedy, named
from leconvert.fleet.lists import as_word
from leconvert.model.values import camera_of
from leconvert.support.errors import (
    REPORT_IT,
    FindingsError,
    LeconvertError,
    TargetError,
    VerificationError,
)

_THIS_LINE, _THESE_LINES = "after the dataset in LIST_FILE", "after these datasets in LIST_FILE"
_OF_EPISODES = (DROP, TRIM)
# The part of an error's next step that calls for an option of the dataset.
_AGAIN = re.compile(r"\b[Rr]un the command again with (--assume-.*?)\.?$")


def errors_of(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the errors among a dataset's findings."""
    return [finding for finding in findings if finding["severity"] == "error"]


def first_error(errors: Sequence[Mapping[str, Any]], source: object) -> str:
    """Return the first of a dataset's errors with its file and episode, and their number."""
    first = errors[0]
    episode, camera = first["episode"], camera_of(first["stream"] or "")
    where = [] if episode is None else [f"episode {episode}"]
    where += [] if camera is None else [f"camera {camera.removeprefix('observation.images.')}"]
    if first["code"] == "missing-file" and episode is not None:
        what = "table" if camera is None else "video"
        of_what = ", ".join([f"the {what} of {where[0]}", *where[1:]])
        said = f"{of_what}{',' * (len(where) > 1)} is missing: {first['path']}."
    elif episode is not None:
        said = f"{', '.join(where)}: {first['message']}"
    else:
        said = str(first["message"])
    said = f"{said.removesuffix('.').replace(f'{source}/', '')}."
    if len(errors) == 1:
        return said
    numbers = Counter(str(error["code"]) for error in errors)
    if len(numbers) == 1:
        return f"{said} There are {len(errors):,} such errors."
    listed = ", ".join(f"{code} {number:,}" for code, number in numbers.items())
    return f"{said} {len(errors):,} errors in all: {listed}."


def flags_for(errors: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the flags that help with a dataset's errors, each once."""
    # An episode that is left out needs no other repair.
    lost = {one["episode"] for one in errors if one["remedy"] in _OF_EPISODES} - {None}
    needed = [one for one in errors if one["remedy"] in _OF_EPISODES or one["episode"] not in lost]
    return tuple(dict.fromkeys(one["remedy"] for one in needed if one["remedy"]))


def helps_with(errors: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what helps with each code of a dataset's errors: sentences, and flags of a policy."""
    found: dict[str, dict[str, None]] = {}
    for error in errors:
        helps = found.setdefault(error["code"], {})
        if remedy := error.get("remedy"):
            helps[as_word(remedy, error)] = None
    none = "no option helps; correct the source"
    return {
        code: all_remedies(code, " ".join(helps) or None) or none for code, helps in found.items()
    }


def reasons(datasets: Iterable[Mapping[str, str]]) -> list[tuple[str, int, str]]:
    """Return codes, the number of datasets with each, and what helps them; the most frequent first.

    For each dataset it is given what helps with each code. Datasets with the same code that need
    different help are counted separately.
    """
    numbers = Counter((code, helps) for told in datasets for code, helps in told.items())
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return [(code, number, helps) for (code, helps), number in ordered]


def message_of(error: Mapping[str, Any], source: object) -> str:
    """Return why a dataset is set aside, given the record of its error."""
    errors = errors_of(error.get("findings") or ())
    if errors and error.get("error") == FindingsError.__name__:
        return first_error(errors, source)
    message = str(error.get("message") or "")
    if error.get("error") in (TargetError.__name__, VerificationError.__name__):
        message = " ".join([message, *error.get("details", ())[:1]])  # the first difference
    return message.replace(f"{source}/", "")


def next_step_of(error: Mapping[str, Any], source: object) -> str:
    """Return what to do about a dataset's error, in terms of the fleet."""
    errors = errors_of(error.get("findings") or ())
    if not errors or error.get("error") != FindingsError.__name__:
        told = error.get("next_step")
        if not error:
            return (
                "Find out what ends the workers, such as too little memory. Then run the "
                "fleet again."
            )
        if told is None and error.get("exit_code", 1) in (1, LeconvertError.exit_code):
            return f"This is a bug. {REPORT_IT}."
        if told is None:
            return f"`leconvert explain {shlex.quote(str(error['exit_code']))}` says what to do."
        return _AGAIN.sub(rf"Write \1 {_THIS_LINE}.", str(told))
    sentences = dict.fromkeys(filter(None, (lossless_remedy(one["code"]) for one in errors)))
    flags = flags_for(errors)
    parts = [*sentences]
    parts += dict.fromkeys(
        f"No option repairs {one['code']}: correct {one['path'] or 'the source'}."
        for one in errors
        if not one["remedy"] and not lossless_remedy(one["code"])
    )
    if flags and not all(one["remedy"] for one in errors):
        parts.append(f"For the other errors write `{' '.join(flags)}` {_THIS_LINE}.")
    elif flags:
        write = "Or write" if parts else "Write"
        parts.append(f"{write} `{' '.join(flags)}` {_THIS_LINE}.")
    return named(" ".join(parts), source)


def for_these_lines(next_step: str) -> str:
    """Return the step in the plural, for several datasets."""
    return next_step.replace(_THIS_LINE, _THESE_LINES)
