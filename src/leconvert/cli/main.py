"""The entry point: finds the command, and turns errors into sentences and exit codes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from leconvert.cli.commands import COMMANDS, build_parser, command_module
from leconvert.errors import FindingsError, InstallationError, LeconvertError, StorageError

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
        options = build_parser().parse_args(arguments)
        options.command_line = ["leconvert", *given]
        code: int = import_module(command_module(options.command)).run(options)
        sys.stdout.flush()
    except LeconvertError as error:
        return _fail(error, as_json=as_json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read our output went away; a flush at exit would complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        place = str(error.filename) if error.filename is not None else None
        said = f"{place}: {error.strerror}." if place else f"{error}."
        next_step = "Check the disk, and that nobody removed the files of the run."
        return _fail(
            StorageError(said, path=place, next_step=next_step),
            as_json=as_json,
        )
    except KeyboardInterrupt:
        print("leconvert: interrupted", file=sys.stderr)
        print("  → Run the same command again to go on.", file=sys.stderr)
        return 130
    except ImportError as error:
        return _fail(
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
    try:
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # as Python ends where what it said cannot be written
    os._exit(code)


def with_hyphens(argument: str) -> str:
    """Return ``--data-file-size-in-mb`` for ``--data_file_size_in_mb``, others as they are."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _fail(error: LeconvertError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(error.as_record(), indent=2))
    print(f"leconvert: {error.message}", file=sys.stderr)
    if isinstance(error, FindingsError):
        from leconvert.cli.findings import print_findings
        from leconvert.model import Finding

        print_findings([Finding(**finding) for finding in error.findings])
    for line in error.details:
        print(f"  {line}", file=sys.stderr)
    if error.next_step:
        print(f"  → {error.next_step}", file=sys.stderr)
    return error.exit_code
