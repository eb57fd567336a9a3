"""Writes the pages of docs/reference that the code says.

The pages are commands, Python, exit codes, findings, damages and modules. docs/conf.py calls it
whenever the site is built.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from leconvert.cli.main import build_parser
from leconvert.cli.parser import Parser, Settings
from leconvert.dataset.findings import SOURCE_CATALOGUE, V3_CATALOGUE, Kind
from leconvert.support import errors
from leconvert.support.errors import EXIT_CODES, LeconvertError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/reference"

# Modules and what of them is meant for others; None for all that ``__all__`` names.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "leconvert": None,
    "leconvert.model.repairs": ("RepairOptions",),
    "leconvert.run.conversion": ("Control", "LeaseOptions"),
    "leconvert.model.values": ("Finding",),
    "leconvert.run.engines": None,
    "leconvert.api": ("Submission", "submit_run"),
    "leconvert.remote.source": ("FetchedSource", "already_converted", "download", "fetch_sparse"),
    "leconvert.transfer.options": ("ScratchOptions",),
    "leconvert.remote.stores": None,
    "leconvert.loading": (
        *("EpisodeStream", "MixedStream", "SampleStream", "StreamFacts", "StreamLoader"),
        "UnreadableFrame",
        *("group_episodes_by_files", "partition_episodes"),
        *("Resampled", "ResampledDataset", "resample"),
    ),
    "leconvert.bench": ("Comparison", "compare_with_map"),
    "leconvert.media": ("JoinedFile", "LastIndex", "join_clips"),
    "leconvert.model.float32_tolerance": None,
    "leconvert.testing": None,
}

_COMMANDS = """\
# Command line reference

This page lists every command and option, as `leconvert COMMAND --help-all` does. Each command names
the [shared options](#shared-options) that it takes; their table is at the end. [The command
line](../cli.md) explains what needs more words, [exit codes](exit-codes.md) the end of a command.
Underscores may replace hyphens.

`--slurm`, `--ray` and `--method` take several options, one a key. Each key is also an unlisted
option of its own: `--slurm nodes=8` and `--nodes 8` mean the same.
"""
_SHARED = """\
## Shared options

Each command names the options of this section that it takes.
"""
# An option is described once where so many commands have it, word for word.
_SHARED_BY = 3


def cli_page() -> str:
    """Return the page."""
    _, *commands = build_parser().declared()
    times: Counter[str] = Counter()
    first: dict[str, _Listed] = {}
    for listed in (each for command in commands for each in _listed(command)):
        times[listed.row] += 1
        first.setdefault(listed.row, listed)
    shared = [first[row] for row, number in times.items() if number >= _SHARED_BY]
    levels = (len(command.prog.split()) for command in commands)
    sections = (
        _section(command, "#" * level, shared)
        for command, level in zip(commands, levels, strict=True)
    )
    return "\n".join([_COMMANDS, *sections, "\n".join([_SHARED, *_tables(shared)])])


class _Listed(NamedTuple):
    """One option of a command: the heading that it stands below, its row, name and keys."""

    title: str
    row: str
    name: str
    action: argparse.Action


def _listed(parser: Parser) -> Iterator[_Listed]:
    for group in parser._action_groups:  # noqa: SLF001
        for action in group._group_actions:  # noqa: SLF001
            if _is_shown(action):
                name = (action.option_strings or [action.dest])[-1]
                yield _Listed(_title(group), _row(parser, action), name, action)


def _section(parser: Parser, level: str, shared: Sequence[_Listed]) -> str:
    lines = [f"{level} `{parser.prog}`", "", _escaped(parser.description or ""), ""]
    rows = {each.row for each in shared}
    listed = list(_listed(parser))
    lines += _tables([each for each in listed if each.row not in rows])
    taken = list(_shared_names(shared, {each.row for each in listed}))
    if taken:
        lines += [f"[Shared options](#shared-options): {', '.join(taken)}", ""]
    if parser.epilog:
        lines += ["```text", parser.epilog.strip("\n"), "```", ""]
    return "\n".join(lines)


def _shared_names(shared: Sequence[_Listed], taken: Collection[str]) -> Iterator[str]:
    """Yield the names of shared options; of a heading whose options are all taken, that alone."""
    for title, each in groupby(sorted(shared, key=lambda one: one.title), lambda one: one.title):
        of_title = list(each)
        names = [f"`{one.name}`" for one in of_title if one.row in taken]
        if title and len(names) == len(of_title) > 1:
            yield f"all of *{title.split('**')[1]}*"
        else:
            yield from names


def _tables(listed: Sequence[_Listed]) -> Iterator[str]:
    """Yield a table for each heading, and one for each option that has keys."""
    for title in dict.fromkeys(each.title for each in listed):
        yield from _table(title, [each.row for each in listed if each.title == title])
    for each in listed:
        if isinstance(each.action, Settings):
            yield from _table(f"**keys of** `{each.name}`", list(_key_rows(each.action)))


def _key_rows(action: Settings) -> Iterator[str]:
    for key, said in action.helps.items():
        yield f"| `{_in_a_cell(action.spelled(key))}` | {_in_a_cell(_escaped(said))} |"


def _title(group: argparse._ArgumentGroup) -> str:
    if group.title in ("positional arguments", "options"):
        return ""
    about = f": {group.description}" if group.description else ""
    return f"**{_escaped(group.title or '')}**{_escaped(about)}"


def _table(title: str, rows: Collection[str]) -> list[str]:
    return [*([title, ""] if title else []), "| | |", "|---|---|", *rows, ""]


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(
        action,
        argparse._HelpAction | argparse._SubParsersAction,  # noqa: SLF001
    )


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    if action.choices is not None:
        values["choices"] = ", ".join(str(choice) for choice in action.choices)
    said = (action.help or "") % values
    last = action.option_strings[-1] + _value(action) if action.option_strings else _metavar(action)
    shown = ", ".join([*action.option_strings[:-1], last])
    return f"| `{_in_a_cell(shown)}` | {_in_a_cell(_escaped(said))} |"


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is not None:
        return action.metavar
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return action.dest.upper() if action.option_strings else action.dest


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    value = _metavar(action)
    if action.nargs == "?":
        return f" [{value}]"
    return f" {value} ..." if action.nargs in ("+", "*") else f" {value}"


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """Return plain text that Markdown shows as it is, but for code between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<>*])", r"\\\1", part) for part in parts
    )


_PYTHON = """\
# Python reference

This page describes the public modules. `leconvert` itself has the functions that most programs
need. The other modules start workers, load a result, or make datasets. [Exit codes](exit-codes.md)
lists the errors.
"""
_MODULE = """
## `{name}`

```{{eval-rst}}
.. automodule:: {name}
   :members: {chosen}
   :imported-members:
```
"""


def api_page() -> str:
    """Return the page, which Sphinx fills with docstrings."""
    return _PYTHON + "".join(
        _MODULE.format(name=name, chosen=", ".join(chosen or ())) for name, chosen in PUBLIC.items()
    )


_EXIT_CODES = """\
# Exit codes

This page lists the codes that a command ends with; `leconvert explain CODE` prints the same text.

| code | meaning | what to do |
|---|---|---|
"""

_ERRORS_IN_PYTHON = """\

## Errors in Python

Every error that leconvert raises is a `LeconvertError` with `message`, `path`, `next_step`,
`details` and the exit code of a command.

| code | error | meaning |
|---|---|---|
"""

_AFTER_ERRORS = """\

An indented error is a special case of the error above it, so `except` for the upper one catches
both. A wrong command line also ends with 2. With `--json` the error is a JSON document on stdout.
"""


def errors_page() -> str:
    """Return the page."""
    named = [getattr(errors, name) for name in errors.__all__]
    kinds: list[type[LeconvertError]] = [
        kind for kind in named if isinstance(kind, type) and issubclass(kind, LeconvertError)
    ]
    rows = [_error(error) for error in sorted(kinds, key=_lineage)]
    codes = [
        f"| {code} | {about.meaning} | {about.remedy} |\n" for code, about in EXIT_CODES.items()
    ]
    return _EXIT_CODES + "".join(codes) + _ERRORS_IN_PYTHON + "".join(rows) + _AFTER_ERRORS


def _lineage(error: type[LeconvertError]) -> list[tuple[int, str]]:
    """Return code and name of each error above a special case, and its own."""
    above = [kind for kind in error.__mro__ if issubclass(kind, LeconvertError)]
    own = above[-2::-1] or above  # the error above all is no special case
    return [(kind.exit_code, kind.__name__) for kind in own]


def _error(error: type[LeconvertError]) -> str:
    first = (inspect.getdoc(error) or "").split("\n\n", 1)[0].replace("\n", " ").replace("``", "`")
    if error is LeconvertError:
        first = f"{EXIT_CODES[70].meaning} {EXIT_CODES[70].remedy}"
    depth = "&nbsp;&nbsp;" * (len(_lineage(error)) - 1)
    return f"| {error.exit_code} | {depth}`{error.__name__}` | {first} |\n"


_FINDINGS = """\
# Codes of findings

This page lists the codes. [Findings](../findings.md) explains severities and repairs for the source
of a conversion, [check](../check.md) for a v3.0 dataset by itself.

## In a source

`plan` and `convert` report these findings before any work, and `check` in a v2.x dataset. The last
column begins with a remedy that loses nothing; then follow options of `convert`, the one that loses
least first.

| code | severity | what was seen | what helps |
|---|---|---|---|
"""

_V30 = """
## In a v3.0 dataset

`leconvert check` reports these findings in a v3.0 dataset.

| code | severity | what was seen |
|---|---|---|
"""


def findings_page() -> str:
    """Return the page."""
    v2 = "".join(_finding(kind) for kind in SOURCE_CATALOGUE.values())
    v3 = "".join(
        f"| `{code}` | {kind.severity} | {kind.meaning} |\n" for code, kind in V3_CATALOGUE.items()
    )
    return _FINDINGS + v2 + _V30 + v3


def _finding(kind: Kind) -> str:
    flags = [*kind.repairs, *([f"--accept {kind.code}"] if kind.acceptable else [])]
    helps = ", ".join(f"`{flag}`" for flag in flags)
    helps = " Or ".join(filter(None, (kind.remedy, helps)))
    return f"| `{kind.code}` | {kind.severity} | {kind.meaning} | {helps} |\n"


_DAMAGES = """\
# Damages that verify finds

The tests do each of these {number} damages to a good result. [`leconvert verify`](../verify.md)
finds those marked "structure", and with `--bytes` all of them. The tests also check that the
message names the file, the episode, and the expected and found values.
"""


def damages_page() -> str:
    """Return the page: the damages are those of the tests."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit/run/proof")]
    from mutations import MUTATIONS  # type: ignore[import-not-found]

    page = _DAMAGES.format(number=sum(map(len, MUTATIONS.values())))
    for heading, mutations in MUTATIONS.items():
        rows = "".join(f"| {each.title} | {each.depth} |\n" for each in mutations)
        page += f"\n## {heading}\n\n| damage | found by |\n|---|---|\n{rows}"
    return page


_MODULES = """\
# Modules

This page lists the modules of leconvert, with the first lines of their docstrings. A module imports
only modules below it in its table; an import linter in CI checks this rule. [How it
works](../architecture.md) explains the words.
"""


def modules_page() -> str:
    """Return the page: the order is that of the import linter's contracts."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    page = _MODULES
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract.get("exhaustive"):
            (package,) = contract["containers"]
            names = [name for layer in contract["layers"] for name in re.split(" [|:] ", layer)]
            rows = "".join(f"| `{name}` | {_first_lines(package, name)} |\n" for name in names)
            page += f"\n## In `{package}`\n\n| module | holds |\n|---|---|\n{rows}"
    return page


def _first_lines(package: str, name: str) -> str:
    path = ROOT / "src" / package.replace(".", "/") / name
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return _in_a_cell(_escaped(text.split("\n\n", 1)[0].replace("\n", " ").replace("``", "`")))


def write_pages() -> None:
    """Write the pages, each only where it says something new."""
    for name, text in (
        ("cli.md", cli_page()),
        ("api.md", api_page()),
        ("exit-codes.md", errors_page()),
        ("findings.md", findings_page()),
        ("damages.md", damages_page()),
        ("modules.md", modules_page()),
    ):
        page = FOLDER / name
        if not page.is_file() or page.read_text("utf-8") != text:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, "utf-8")
