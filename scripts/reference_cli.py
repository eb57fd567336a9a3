"""The command line as a page: every command and option, as the argument parser has them."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from leconvert.cli.main import build_parser
from leconvert.cli.parser import Parser, Settings

__all__ = ["cli_page"]

_HEAD = """\
# Command line reference

<!-- Written by scripts/make_reference.py from the argument parser; changes here are lost. -->

Every command and option, as `leconvert COMMAND --help-all` has them, or `--help` where there is no
`--help-all`. Options that several commands share are described [once](#shared-options); each
command names those that it takes. [The command line](../cli.md) says how they are used, [exit
codes](exit-codes.md) what a command ends with. Underscores may stand for hyphens.

`--slurm`, `--ray` and `--method` stand for several options, one a key. Each key is also an option
of its own, which is not listed: `--slurm nodes=8` and `--nodes 8` mean the same.
"""
_SHARED_HEAD = """\
## Shared options

Each command that takes an option of this section names it.
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
    return "\n".join([_HEAD, *sections, "\n".join([_SHARED_HEAD, *_tables(shared)])])


class _Listed(NamedTuple):
    """What a command lists: the heading that it stands below, its row, its name and its keys."""

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
