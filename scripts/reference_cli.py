"""The command line as a page: every command and option, as the argument parser has them."""

from __future__ import annotations

import argparse
import re

from leconvert.cli.main import build_parser
from leconvert.cli.parser import Parser

__all__ = ["cli_page"]

_HEAD = """\
# Command line reference

<!-- Written by scripts/make_reference.py from the argument parser; changes here are lost. -->

Every command and option, as `leconvert COMMAND --help` has them. [The command line](../cli.md) says
how they are used, [exit codes](exit-codes.md) what a command ends with. Underscores may stand for
hyphens.
"""


def cli_page() -> str:
    """Return the page."""
    _, *commands = build_parser().declared()
    levels = (len(command.prog.split()) for command in commands)
    sections = (
        _section(command, "#" * level) for command, level in zip(commands, levels, strict=True)
    )
    return "\n".join([_HEAD, *sections])


def _section(parser: Parser, level: str) -> str:
    lines = [f"{level} `{parser.prog}`", "", _escaped(parser.description or ""), ""]
    for group in parser._action_groups:  # noqa: SLF001
        rows = [_row(parser, action) for action in group._group_actions if _is_shown(action)]  # noqa: SLF001
        if not rows:
            continue
        if group.title not in ("positional arguments", "options"):
            about = f": {group.description}" if group.description else ""
            lines += [f"**{_escaped(group.title or '')}**{_escaped(about)}", ""]
        elif group.title == "options" and len(lines) > 4:
            lines += ["**options**", ""]
        lines += ["| | |", "|---|---|", *rows, ""]
    if parser.epilog:
        lines += ["```text", parser.epilog.strip("\n"), "```", ""]
    return "\n".join(lines)


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
