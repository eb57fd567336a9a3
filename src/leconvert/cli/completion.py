"""``leconvert completion``."""

from __future__ import annotations

import argparse
import os

from leconvert.cli.main import build_parser
from leconvert.support.extras import missing_package

_SHELLS = ("bash", "zsh", "fish")
# The metavar of an argument tells the kind of its value.
_FOLDERS = frozenset({
    "DATASET", "DIR", "DIR|URL", "DIR|last", "FOLDER", "RESULT", "SOURCE", "WORK_DIR",
    "WORK_DIR|DATASET",
})  # fmt: skip
_FILES = frozenset({"FILE", "LIST_FILE"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "shell", choices=_SHELLS, metavar="SHELL", help=("the shell: bash, zsh or fish")
    )


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(completion_script(options.shell))
    return 0


def completion_script(shell: str) -> str:
    """Return a script that completes commands, options, their choices, files and folders.

    The script needs no Python when it completes.
    """
    try:
        import shtab
    except ImportError:
        raise missing_package("This needs shtab", "completion") from None
    # A script is still used in terminals of another width.
    os.environ["COLUMNS"] = "100"
    parser = build_parser()
    for command in parser.declared():
        for argument in command.arguments():
            if argument.metavar in _FOLDERS:
                argument.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif argument.metavar in _FILES:
                argument.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
