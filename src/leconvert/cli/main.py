"""The entry point: finds the command, and turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from leconvert._version import __version__
from leconvert.errors import FindingsError, LeconvertError, StorageError

__all__ = ["COMMANDS", "build_parser", "main", "program", "with_hyphens"]

# Name, module and one line of help; a module is imported only when its command runs.
COMMANDS = (
    ("convert", "convert a v2.1 dataset to v3.0: plan, work, pack, verify, swap, push"),
    ("plan", "scan a dataset and write the plan that workers share"),
    ("work", "run one worker on a work dir, on any host"),
    ("submit", "hand a plan to SLURM: workers, and a packer after them"),
    ("pack", "assemble what the workers wrote and swap it into place"),
    ("status", "say how far a run is"),
    ("release", "give failed or stuck batches of a run back"),
    ("clean", "remove what finished and given-up runs left"),
    ("check", "say what is wrong with one dataset, v2.x or v3.0"),
    ("check-fs", "probe what leasing and the swap need of a file system"),
    ("report", "tell the story of a run or a result on one page"),
    ("verify", "compare a result with its source"),
    ("push", "upload a v3.0 dataset to the Hub, in one commit"),
    ("mirror", "send a v3.0 dataset to a bucket or another store"),
    ("probe", "measure how fast, and how rightly, a v3.0 dataset loads"),
    ("demo", "make a small dataset, convert it, verify it"),
)
_EPILOG = """\
exit codes:
  0 success                       8 batches failed and were set aside
  2 wrong options                 9 not all batches are done
  3 unusable source              10 the result differs from its source
  4 source changed meanwhile     11 disk full, read-only or failing
  5 target in the way            12 another process plans, packs or holds a batch
  6 another plan is under way    13 only one host may work on this file system
  7 damaged work dir             14 the probe found wrong frames, or none
 15 the Hub does not answer     16 the Hub's token is missing or refused
 17 the repo changed meanwhile  18 the scheduler is missing or refused
 70 a bug: please report it     130 interrupted; the same command resumes
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; the default is the process's own.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = [with_hyphens(argument) for argument in given]
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    options = build_parser(wanted).parse_args(arguments)
    options.command_line = ["leconvert", *given]
    try:
        code: int = _module(options.command).run(options)
        sys.stdout.flush()
    except LeconvertError as error:
        return _fail(error, as_json=getattr(options, "json", False))
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
            as_json=getattr(options, "json", False),
        )
    except KeyboardInterrupt:
        print("leconvert: interrupted", file=sys.stderr)
        print("  → Run the same command again to go on.", file=sys.stderr)
        return 130
    except Exception:  # noqa: BLE001 - whatever is left is a bug, and its code says so
        traceback.print_exc()
        print("leconvert: this is a bug; please report it with the lines above", file=sys.stderr)
        return LeconvertError.exit_code
    return code


def build_parser(wanted: str | None) -> argparse.ArgumentParser:
    """Make the parser of all commands, with the options of one.

    Args:
        wanted: The command whose options are declared; only it pays for its imports. None or an
            unknown name declares the options of none.
    """
    parser = argparse.ArgumentParser(
        prog="leconvert",
        description="Convert LeRobot datasets from v2.x to v3.0.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"leconvert {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS:
        command = commands.add_parser(name, help=line, description=f"{line.capitalize()}.")
        if name == wanted:
            _module(name).add_arguments(command)
    return parser


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


def _module(command: str) -> ModuleType:
    return import_module(f"leconvert.cli.{command.replace('-', '_')}")


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
