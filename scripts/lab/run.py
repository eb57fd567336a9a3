"""Run scenarios of a lab: `python scripts/lab/run.py LAB --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lab_kit import LabError

from leconvert import __version__

LABS = ("nfs", "slurm", "ray")


def main(arguments: Sequence[str]) -> int:
    """Run the lab that the first argument names."""
    if not arguments or arguments[0] not in LABS:
        print(f"{__doc__}\nLabs: {', '.join(LABS)}")
        return 2
    lab = import_module(f"{arguments[0]}_scenarios")
    parser = argparse.ArgumentParser(description=lab.__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO",
                        help=f"of {', '.join(lab.SCENARIOS)} (default: all)")  # fmt: skip
    parser.add_argument("--folder", type=Path, help="the lab's own (default: a new temporary one)")
    options = parser.parse_args(arguments[1:])
    if unknown := sorted(set(options.names) - set(lab.SCENARIOS)):
        parser.error(f"there is no scenario {unknown[0]}")
    options.names = options.names or list(lab.SCENARIOS)
    # Ending by a signal unwinds like any error, so that no namespace stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    if options.folder is not None:
        return run(lab, options)
    # In memory, and short: the path of a socket has at most 107 bytes.
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"
    options.folder = Path(tempfile.mkdtemp(prefix="lab-", dir=parent))
    failed = run(lab, options)
    if failed:
        say(f"Everything is in {options.folder}.")
    else:
        shutil.rmtree(options.folder, ignore_errors=True)
    return failed


def run(lab: ModuleType, options: argparse.Namespace) -> int:
    """Build a lab and run scenarios, the others even if one fails; return an exit code.

    The module has ``SCENARIOS`` by name, and ``build``, which provides what the lab is and what
    each scenario is called with.
    """
    rows = [("scenario", "what happens", "what came of it"), ("---", "---", "---")]
    failed = len(options.names)
    began = time.monotonic()
    try:
        with lab.build(options) as (what, ground):
            seconds = time.monotonic() - began
            say(f"leconvert {__version__}, {what}; {os.cpu_count()} cores, up in {seconds:.1f} s\n")
            for name in options.names:
                began = time.monotonic()
                scenario = lab.SCENARIOS[name]
                case = (scenario.__doc__ or "").partition("\n")[0]
                try:
                    for outcome in scenario(ground):
                        rows.append((name, case, outcome))
                        say(f"[{time.monotonic() - began:5.1f} s] {name}: {outcome}")
                    failed -= 1
                except LabError as error:
                    rows.append((name, "FAILED", str(error).replace("\n", " ")))
                    say(f"[{time.monotonic() - began:5.1f} s] {name}: FAILED: {error}")
    except LabError as error:
        failed = len(options.names)
        say(f"FAILED: {error}")
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    number = len(options.names)
    say(f"\n{table}\n\n{number - failed} of {number} scenarios hold.")
    return int(failed > 0)


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
