"""Parts that the labs share: demands, waiting, system programs, namespaces and a small dataset."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.trees import digest_of

from leconvert.api import convert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

__all__ = [
    "REPOSITORY", "SEARCHED", "LabError", "Network", "Rows", "demand", "digest_of",
    "missing_packages", "processes_that", "require", "run_tool", "short_episodes", "wait_until",
]  # fmt: skip

REPOSITORY = Path(__file__).resolve().parents[2]

type Rows = Iterator[str]
"""The outcome of each case of a scenario, with figures; its docstring says what happens."""

_EPISODES = 24
_KILL_SECONDS = 10.0

SEARCHED = os.pathsep.join(
    (os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin")
)
"""Folders that are searched for programs that only root runs."""


class LabError(Exception):
    """The lab cannot be built, or leconvert did not do what a scenario demands.

    Every function of the labs raises this if it cannot do what it says, and in time.
    """


def demand(holds: bool, otherwise: str) -> None:
    """Stop the scenario unless what it demands holds."""
    if not holds:
        raise LabError(otherwise)


def wait_until(
    ready: Callable[[], bool], seconds: float, what: str, *, look_seconds: float = 0.1
) -> None:
    """Look again and again until something is so.

    Args:
        ready: Tells whether it is; raises `LabError` if it cannot become so.
        seconds: How long to wait.
        what: The awaited event, as the beginning of a sentence.
        look_seconds: How long to pause between looks; shorter where the time is measured.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        demand(time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s.")
        time.sleep(look_seconds)


def missing_packages(packages: Mapping[str, str]) -> list[str]:
    """Return the Debian packages, of those by the program that tells of them, that are not here."""
    missing = [words for name, words in packages.items() if not shutil.which(name, path=SEARCHED)]
    return sorted({package for words in missing for package in words.split()})


def require(why: str, packages: Mapping[str, str]) -> None:
    """Install what is missing; ``why`` says why that takes root."""
    demand(os.geteuid() == 0, f"{why}: run the lab as root.")
    if missing := missing_packages(packages):
        # RUNLEVEL keeps the packages' own services from being started on this machine.
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        run_tool(["apt-get", "update", "-qq"], environment=quiet)
        words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        run_tool(words, environment=quiet)


def run_tool(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> str:
    """Run a program to its end, in a folder if one is given, and return what it wrote."""
    try:
        done = subprocess.run(
            command, env={**environment, "PATH": SEARCHED}, cwd=folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not on this machine.") from error
    said = done.stderr.strip() or f"exit code {done.returncode}"
    demand(done.returncode == 0, f"`{' '.join(command)}` failed: {said}")
    return done.stdout


def processes_that(are: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the processes of this machine that are so; one that ends meanwhile is not."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if are(process):
                found.append(process)
    return found


def short_episodes(folder: Path) -> tuple[Path, Path, str]:
    """Make a v2.1 dataset in a folder; return it, its conversion by one process, and the digest."""
    source, inline = folder / "many", folder / "inline"
    camera = CameraSpec(key="observation.images.top", width=64, height=48)
    lengths = [5 + number % 7 for number in range(_EPISODES)]
    make_dataset(source, DatasetSpec(episodes=_EPISODES, frames=lengths, cameras=(camera,)))
    convert(source, output=inline)
    return source, inline, digest_of(inline)


class Network:
    """A network namespace; it knows all that runs in it, whoever started that.

    Its name says which process made it, so that those of killed processes can be removed.
    """

    def __init__(self) -> None:
        self.name = f"lab-{os.getpid()}-{secrets.token_hex(3)}"

    def create(self, *devices: str) -> None:
        """Make it, bring the loopback device up, and add an empty bridge of each name."""
        for path in Path("/run/netns").glob("lab-*-*"):
            if not psutil.pid_exists(int(path.name.split("-")[1])):
                run_tool(["ip", "netns", "del", path.name])
        run_tool(["ip", "netns", "add", self.name])
        self.ip("link", "set", "lo", "up")
        for device in devices:
            self.ip("link", "add", device, "type", "bridge")
            self.ip("link", "set", device, "up")

    def ip(self, *arguments: str) -> str:
        """Run ``ip`` in it."""
        return run_tool(["ip", "-n", self.name, *arguments])

    def entered(self, *command: str) -> list[str]:
        """Return a command that runs in it, and ends if the process that starts it dies."""
        return [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "nsenter",
            f"--net=/run/netns/{self.name}",
            *command,
        ]

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return Path(f"/run/netns/{self.name}").exists()

    def processes(self) -> list[int]:
        """Return the ids of all processes in it."""
        return [int(pid) for pid in run_tool(["ip", "netns", "pids", self.name]).split()]

    def remove(self) -> None:
        """End every process in it by its id, then remove it; harmless if it is gone."""
        if not self.exists:
            return

        def is_empty() -> bool:
            left = self.processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until(is_empty, _KILL_SECONDS, f"The end of the processes of {self.name}")
        run_tool(["ip", "netns", "del", self.name])
