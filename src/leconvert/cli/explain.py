"""``leconvert explain``."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from leconvert.cli.output import columns, show
from leconvert.cli.parser import add_output, nearest
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.support import errors
from leconvert.support.errors import EXIT_CODES, UsageError
from leconvert.support.flags import flags_of

if TYPE_CHECKING:
    from leconvert.dataset.findings import Kind

_INDENT = "  "
_DEFAULT = re.compile(r" \(default: [^)]*\)$|; may be given several times$")
_CODE_COLUMN = 31  # two columns fit into 80 characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "code", metavar="CODE",
        help=(
            "an exit code such as 8, the code of a finding such as frame-count, or an error of "
            "the Python API such as BusyError"
        ),
    )  # fmt: skip
    add_output(parser)
    parser.epilog = _exit_codes()


def _exit_codes() -> str:
    """Return every exit code, in two columns."""
    rows = [f"{code:>4} {about.short}" for code, about in EXIT_CODES.items()]
    half = -(-len(rows) // 2)
    pairs = zip_longest(rows[:half], rows[half:], fillvalue="")
    lines = [f"{left:<{_CODE_COLUMN}}{right}".rstrip() for left, right in pairs]
    return "\n".join(["", "exit codes:", *lines, ""])


def run(options: argparse.Namespace) -> int:
    """Print the meaning and the remedy of one code."""
    record = explained(options.code)
    filled = (
        textwrap.fill(
            line,
            columns(),
            subsequent_indent=line[: len(line) - len(line.lstrip())],
            break_on_hyphens=False,
        )
        for line in _lines(record)
    )
    return show(options, record, filled)


def explained(code: str) -> dict[str, Any]:
    """Return the facts about an exit code, an error's name or a finding's code."""
    names = _errors_by_code()
    wanted = {name: str(number) for number, found in names.items() for name in found}.get(
        code, code
    )
    if wanted.isdecimal() and int(wanted) in EXIT_CODES:
        about = EXIT_CODES[int(wanted)]
        return {
            "kind": "exit code",
            "code": int(wanted),
            "errors": names.get(int(wanted), []),
            "meaning": about.meaning,
            "remedy": about.remedy,
        }
    findings = _findings()
    if wanted not in findings:
        near = nearest(code, [*findings, *(name for found in names.values() for name in found)])
        raise UsageError(
            f"There is no code {code!r}{near or '.'}",
            next_step="`leconvert explain --help` lists the exit codes. `leconvert check DATASET` "
            "lists findings with their codes.",
        )
    return {"kind": "finding", "code": code, "findings": findings[code]}


def _errors_by_code() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.LeconvertError):
            found.setdefault(kind.exit_code, []).append(name)
    return found


def _findings() -> dict[str, list[dict[str, Any]]]:
    """Return the entries of a code in both catalogues."""
    from leconvert.dataset.findings import SOURCE_CATALOGUE, V3_CATALOGUE

    does = {told.name: told.help for told in (*flags_of(LayoutOptions), *flags_of(RepairOptions))}
    found: dict[str, list[dict[str, Any]]] = {}
    for dataset, catalogue in (("source", SOURCE_CATALOGUE), ("v3.0", V3_CATALOGUE)):
        for code, kind in catalogue.items():
            found.setdefault(code, []).append(
                {
                    "dataset": dataset,
                    "severity": kind.severity,
                    "meaning": kind.meaning,
                    "remedies": list(_remedies(kind, does)),
                }
            )
    return found


def _remedies(kind: Kind, does: Mapping[str, str]) -> Iterator[dict[str, str | None]]:
    if kind.remedy:
        yield {"flag": None, "does": kind.remedy}
    accept = (f"--accept {kind.code}",) if kind.acceptable else ()
    for flag in (*kind.repairs, *accept):
        name, _, value = flag.partition(" ")
        yield {"flag": flag, "does": _for_value(does.get(name), value)}


def _for_value(does: str | None, value: str) -> str | None:
    """Return the part of an option's help about one value, without the default."""
    parts = _DEFAULT.sub("", does or "").split("; ")
    about = [part.removeprefix(f"{value}: ") for part in parts if part.startswith(f"{value}: ")]
    return does and "; ".join(about or parts)


def _lines(record: Mapping[str, Any]) -> Iterable[str]:
    if record["kind"] == "exit code":
        names = f" ({', '.join(record['errors'])})" if record["errors"] else ""
        yield f"exit code {record['code']}{names}"
        yield f"{_INDENT}{record['meaning']}"
        if record["remedy"]:
            yield f"{_INDENT}→ {record['remedy']}"
        return
    for finding in record["findings"]:
        where = "source" if finding["dataset"] == "source" else f"{finding['dataset']} dataset"
        yield f"{record['code']} ({finding['severity']}) in a {where}"
        yield f"{_INDENT}{finding['meaning']}"
        for remedy in finding["remedies"]:
            said = [text for text in (remedy["flag"], remedy["does"]) if text]
            yield f"{_INDENT}→ {': '.join(said)}"
        if not finding["remedies"] and finding["severity"] == "error":
            yield f"{_INDENT}→ No option repairs this. Correct the dataset itself."
