"""The program of a lab: which scenarios, in which folder, and what is said of them."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from every_lab.errors import LabError, ScenarioFailedError
from every_lab.report import Row, Transcript, as_table

__all__ = ["lab_parser", "run_lab", "told"]


def lab_parser(
    description: str, scenarios: Collection[str], *, folder: Path | None = None
) -> argparse.ArgumentParser:
    """Return a parser of scenarios, a folder and a transcript.

    Args:
        description: What the lab is for.
        scenarios: Those that there are.
        folder: Where the lab is built by default; None for a new temporary folder.
    """
    top = argparse.ArgumentParser(
        description=description, epilog=f"scenarios: {', '.join(scenarios)}"
    )
    top.add_argument("names", nargs="*", metavar="SCENARIO", help="which (default: all)")
    default = "a new temporary one, kept on failure" if folder is None else str(folder)
    top.add_argument(
        "--folder", type=Path, default=folder, help=f"the lab's own folder (default: {default})"
    )
    top.add_argument("--transcript", type=Path, help="also write what is said to this file")
    return top


def run_lab(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    scenarios: Collection[str],
    visit: Callable[[Sequence[str], argparse.Namespace, Transcript], Iterable[Row]],
) -> int:
    """Run the scenarios that were asked for; return an exit code.

    Args:
        parser: As `lab_parser` makes it.
        arguments: Of the command line; None for this process's own.
        scenarios: Those that there are.
        visit: Builds the lab in ``folder``, runs the scenarios of these names, and yields what
            comes of them.
    """
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(scenarios)):
        print(f"There is no scenario {unknown[0]}; there are {', '.join(scenarios)}.")
        return 2
    names = options.names or list(scenarios)
    is_temporary = options.folder is None
    if is_temporary:
        # A short path: that of a socket has at most 107 bytes.
        options.folder = Path(tempfile.mkdtemp(prefix="lelab-", dir="/tmp"))
    with Transcript(options.transcript) as say:
        try:
            rows = list(visit(names, options, say))
        except (LabError, ScenarioFailedError) as error:
            say(f"FAILED: {error}")
            if options.folder.exists():
                say(f"Everything is in {options.folder}.")
            return 1
        say(f"\n{as_table(rows)}\n\n{len(names)} of {len(names)} scenarios hold.")
    if is_temporary:
        shutil.rmtree(options.folder, ignore_errors=True)
    return 0


def told(rows: Iterable[Row], say: Callable[[str], None]) -> Iterator[Row]:
    """Say each row of a scenario with the time that it came at, and yield it."""
    began = time.monotonic()
    for row in rows:
        say(f"[{time.monotonic() - began:5.1f} s] {row.scenario}: {row.case}: {row.outcome}")
        yield row
