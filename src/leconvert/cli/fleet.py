"""``leconvert fleet``: commands of its own below it; ``convert`` is meant where none is named."""

from __future__ import annotations

import argparse
from importlib import import_module

from leconvert.cli.parser import Parser

# Name and one line of help; `leconvert.cli.fleet_<name>` declares options and runs.
_COMMANDS = (
    ("convert", "convert all datasets of a list (the word can be left out)"),
    ("report", "write what became of each dataset, as an HTML page and a CSV"),
    ("find", "print a list of the datasets below a folder, and what is wrong with each"),
)


def add_arguments(parser: Parser) -> None:
    """Declare the commands."""
    parser.add_commands("fleet_command", {"": _COMMANDS}, _module_name, usual="convert")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    code: int = import_module(_module_name(options.fleet_command)).run(options)
    return code


def _module_name(command: str) -> str:
    return f"leconvert.cli.fleet_{command}"
