"""The entry point: finds the command, and turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from leconvert.cli.commands import COMMANDS, build_parser, command_module
from leconvert.cli.failures import fail, prepare_output, unspeakable
from leconvert.errors import InstallationError, LeconvertError, UsageError
from leconvert.workdir.trouble import storage_error

__all__ = ["COMMANDS", "build_parser", "main", "program", "with_hyphens"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; the default is the process's own.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = [with_hyphens(argument) for argument in given]
    as_json = "--json" in arguments
    try:
        options = _parsed(arguments)
        code = 0
        if options is not None:
            options.command_line = ["leconvert", *given]
            code = import_module(command_module(options.command)).run(options)
        sys.stdout.flush()
    except LeconvertError as error:
        return fail(error, as_json=as_json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read our output went away; a flush at exit would complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return fail(storage_error(error), as_json=as_json)
    except UnicodeEncodeError as error:
        return fail(unspeakable(error), as_json=as_json)
    except KeyboardInterrupt:
        print("leconvert: interrupted", file=sys.stderr)
        print("  → Run the same command again to go on.", file=sys.stderr)
        return 130
    except ImportError as error:
        return fail(
            InstallationError(
                f"A package does not load: {error}.",
                next_step="`leconvert doctor` lists what is installed and what is missing.",
            ),
            as_json=as_json,
        )
    except Exception:  # noqa: BLE001 - whatever is left is a bug, and its code says so
        traceback.print_exc()
        print("leconvert: this is a bug; please report it with the lines above", file=sys.stderr)
        return LeconvertError.exit_code
    return code


def program() -> NoReturn:
    """Run as a program: like `main`, then end at once.

    Taking NumPy's and Arrow's modules apart takes 30 ms, a tenth of a small conversion, and frees
    what the system frees anyway. Nothing of ours waits for the interpreter's end.
    """
    # Python's own helpers, such as those of torch's DataLoader, would look for modules in the
    # current folder, where anything may lie.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    prepare_output()
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120  # as Python ends where what it said cannot be written
    os._exit(code)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return the options, or None where help or the version was asked for, and printed."""
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit:
        return None
    _refuse_empty_paths(arguments, options)
    return options


def _refuse_empty_paths(arguments: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse ``--root "$DATASET"`` where DATASET is not set: as a path, nothing is this folder."""
    empty = "" in arguments or any(
        word.startswith("--") and word.endswith("=") for word in arguments
    )
    if empty and Path() in vars(options).values():
        raise UsageError(
            "An argument is empty where a path is needed.",
            next_step="Is a variable of the shell not set? The folder that you are in is written "
            "as a dot.",
        )


def with_hyphens(argument: str) -> str:
    """Return ``--data-file-size-in-mb`` for ``--data_file_size_in_mb``, others as they are."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
