"""Parts that the labs share: demands, waiting, system programs, rows, and a lab's own program."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tree_digest import tree_digest

from leconvert import __version__
from leconvert.api import convert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

_EPISODES = 24


class LabError(Exception):
    """The lab cannot be built or used; the message is one sentence with the next step."""


class ScenarioFailedError(Exception):
    """leconvert did not do what the scenario demands."""


def demand(holds: bool, otherwise: str) -> None:
    """Stop the scenario unless what it demands holds.

    Raises:
        ScenarioFailedError: It does not.
    """
    if not holds:
        raise ScenarioFailedError(otherwise)


def wait_until(
    ready: Callable[[], bool],
    seconds: float,
    what: str,
    *,
    alive: Callable[[], bool] | None = None,
    look_seconds: float = 0.1,
) -> None:
    """Look again and again until something is so.

    Args:
        ready: Tells whether it is.
        seconds: How long to wait.
        what: The awaited event, as the beginning of a sentence.
        alive: Tells whether the host that should bring it about is on; None for none.
        look_seconds: How long to pause between looks; shorter where the time is measured.

    Raises:
        LabError: It does not come about in time, or its host is off.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if alive is not None and not alive():
            if ready():
                return
            raise LabError(f"{what} did not happen: the host is off.")
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not happen within {seconds:.0f} s.")
        time.sleep(look_seconds)


SEARCHED = os.pathsep.join(
    (os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin")
)
"""Folders that are searched for programs that only root runs."""


def install(packages: Sequence[str]) -> None:
    """Install packages; asks for nothing and starts none of their services.

    Raises:
        LabError: There is no apt-get here, or it fails.
    """
    if shutil.which("apt-get") is None:
        raise LabError(f"Install {' '.join(packages)} first: this machine has no apt-get.")
    # RUNLEVEL keeps the packages' own services from being started on this machine.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise LabError(f"apt-get could not install {' '.join(packages)}: {last[0]}")


def find_program(name: str) -> str | None:
    """Return the path of a program, also of one that only root runs; None if there is none."""
    return shutil.which(name, path=SEARCHED)


def missing_packages(
    packages: Mapping[str, str], *, find: Callable[[str], str | None] = find_program
) -> list[str]:
    """Return the Debian packages whose programs are not on this machine, sorted.

    Args:
        packages: The packages by the program that tells whether they are there.
        find: Returns a program's path, or None.
    """
    missing = [words for program, words in packages.items() if find(program) is None]
    return sorted({package for words in missing for package in words.split()})


def require(why: str, packages: Mapping[str, str]) -> None:
    """Install what is missing, or say in one sentence why there can be no lab here.

    Args:
        why: Why the lab takes root.
        packages: As for `missing_packages`.

    Raises:
        LabError: Not root, or a package cannot be installed.
    """
    if os.geteuid() != 0:
        raise LabError(f"{why}: run the lab as root.")
    if missing := missing_packages(packages):
        install(missing)
    if still := missing_packages(packages):
        raise LabError(f"These packages are missing: {' '.join(still)}; install them by hand.")


def run_tool(
    command: Sequence[str],
    *,
    otherwise: str = "",
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Run a program of the system and return what it wrote.

    Args:
        command: The program and its arguments.
        otherwise: Begins the error; empty to begin with the command.
        environment: Its variables, but for ``PATH``.

    Raises:
        LabError: It failed.
    """
    done = subprocess.run(
        command, env={**environment, "PATH": SEARCHED}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise LabError(f"{otherwise or f'`{" ".join(command)}` failed'}: {said}")
    return done.stdout


def leconvert(*arguments: str, environment: Mapping[str, str], folder: Path | None = None) -> str:
    """Run a command of leconvert to its end, and return what it wrote.

    Raises:
        ScenarioFailedError: It failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "leconvert", *arguments],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    demand(done.returncode == 0, f"leconvert {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


_HEADS = ("scenario", "what happens", "what came of it")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        scenario: Its name.
        case: The disturbance of the hosts.
        outcome: The assertions that held, with figures.
    """

    scenario: str
    case: str
    outcome: str


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [_HEADS, ("---",) * len(_HEADS)]
    lines += [(row.scenario, row.case, row.outcome) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def lab_parser(
    description: str, scenarios: Iterable[str], *, folder: Path | None = None
) -> argparse.ArgumentParser:
    """Return a parser of scenarios and a folder.

    Args:
        description: The purpose of the lab.
        scenarios: The names of all scenarios.
        folder: The default folder of the lab; None for a new temporary folder.
    """
    top = argparse.ArgumentParser(
        description=description, epilog=f"scenarios: {', '.join(scenarios)}"
    )
    top.add_argument("names", nargs="*", metavar="SCENARIO", help="which (default: all)")
    default = "a new temporary one, kept on failure" if folder is None else str(folder)
    top.add_argument(
        "--folder", type=Path, default=folder, help=f"the lab's own folder (default: {default})"
    )
    return top


def run_lab(
    options: argparse.Namespace,
    scenarios: Mapping[str, Callable[..., Iterator[Row]]],
    build: Callable[[Any], AbstractContextManager[tuple[str, Any]]],
) -> int:
    """Run the scenarios that were asked for; return an exit code.

    The other scenarios run even if one fails.

    Args:
        options: As parsed by the parser of `lab_parser`.
        scenarios: All scenarios by name.
        build: Builds the lab as the options say, and provides what it is and what each scenario is
            called with.
    """
    if unknown := sorted(set(options.names) - set(scenarios)):
        print(f"There is no scenario {unknown[0]}; there are {', '.join(scenarios)}.")
        return 2
    names = options.names or list(scenarios)
    is_temporary = options.folder is None
    if is_temporary:
        # A short path: that of a socket has at most 107 bytes.
        options.folder = Path(tempfile.mkdtemp(prefix="lelab-", dir="/tmp"))
    rows: list[Row] = []
    failed = 0
    try:
        began = time.monotonic()
        with build(options) as (what, ground):
            seconds = time.monotonic() - began
            say(f"leconvert {__version__}, {what}; {os.cpu_count()} cores, up in {seconds:.1f} s\n")
            for name in names:
                began = time.monotonic()
                try:
                    for row in scenarios[name](ground):
                        rows.append(row)
                        said = f"{row.scenario}: {row.case}: {row.outcome}"
                        say(f"[{time.monotonic() - began:5.1f} s] {said}")
                except (LabError, ScenarioFailedError) as error:
                    failed += 1
                    rows.append(Row(name, "FAILED", str(error).replace("\n", " ")))
                    say(f"[{time.monotonic() - began:5.1f} s] {name}: FAILED: {error}")
    except LabError as error:
        failed = len(names)
        say(f"FAILED: {error}")
    say(f"\n{as_table(rows)}\n\n{len(names) - failed} of {len(names)} scenarios hold.")
    if failed and options.folder.exists():
        say(f"Everything is in {options.folder}.")
    elif is_temporary:
        shutil.rmtree(options.folder, ignore_errors=True)
    return 1 if failed else 0


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def short_episodes(folder: Path) -> tuple[Path, str]:
    """Return a v2.1 dataset, and the digest of its conversion by one process.

    Args:
        folder: Both are made in it, unless they are there.
    """
    source, inline = folder / "many", folder / "inline"
    if not source.exists():
        spec = DatasetSpec(
            episodes=_EPISODES,
            frames=[5 + number % 7 for number in range(_EPISODES)],
            cameras=(CameraSpec(key="observation.images.top", width=64, height=48),),
        )
        make_dataset(source, spec)
        convert(source, output=inline)
    return source, tree_digest(inline)
