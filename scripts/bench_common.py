"""What the benchmarks share: datasets, one measured command, and the head and name of a log.

It imports next to nothing of weight: a child's memory record begins with that of its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PROFILE_NAMES = ("small", "mid", "big", "many", "images")
PACKAGES = ("lerobot", "datasets", "pyarrow", "av", "numpy", "pandas")


# --- datasets ---------------------------------------------------------------------------------


def make_profile(name: str, root: Path, episodes: int | None) -> None:
    """Generate a profile's dataset, in a process of its own (see the module's docstring)."""
    from dataclasses import replace

    from leconvert.testing import PROFILES, make_dataset

    spec = PROFILES[name]
    make_dataset(root, spec if episodes is None else replace(spec, episodes=episodes))


def files_below(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file below a folder."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(Path(entry.path))
            else:
                yield entry


def size_of(root: Path) -> int:
    """Return the bytes of all files below a folder; 0 if it does not exist."""
    return sum(entry.stat().st_size for entry in files_below(root)) if root.exists() else 0


def read_through(root: Path) -> None:
    """Bring every file below a folder into the page cache."""
    for entry in files_below(root):
        Path(entry.path).read_bytes()


def dataset_shape(root: Path, profile: str) -> dict[str, Any]:
    """Return what the header says about a dataset."""
    info = json.loads((root / "meta/info.json").read_text("utf-8"))
    kinds = [feature["dtype"] for feature in info["features"].values()]
    return {
        "profile": profile,
        "episodes": info["total_episodes"],
        "frames": info["total_frames"],
        "cameras": kinds.count("video"),
        "images": kinds.count("image"),
        "files": sum(1 for _ in files_below(root)),
        "bytes": size_of(root),
        "video_bytes": size_of(root / "videos"),
    }


# --- the command line -------------------------------------------------------------------------


def bench_parser(about: str | None, *, repeats: int | None) -> argparse.ArgumentParser:
    """Return a parser of where a benchmark happens, where its log goes, and how often it measures.

    Args:
        about: The script's docstring.
        repeats: How often by default; None where it measures once.
    """
    scratch = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path.cwd()
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scratch", type=Path, default=scratch, help=f"where it happens ({scratch})"
    )
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--log-dir", type=Path, default=REPOSITORY / "bench_logs")
    return parser


# --- one command ------------------------------------------------------------------------------


def measured(
    command: Sequence[str],
    environment: Mapping[str, str],
    scratch: Path,
    *,
    sync: bool = False,
    codes: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Run a command and return what it took; its output is in ``last-run.out``.

    CPU time is that of the whole process tree, and memory that of its largest process.

    Args:
        command: The command line.
        environment: Its environment.
        scratch: Where its output goes.
        sync: Add a ``sync -f`` of that place to its time.
        codes: Exit codes that are no failure.

    Raises:
        SystemExit: The command failed; its output is shown.
    """
    log, said = scratch / "last-run.log", scratch / "last-run.out"
    with log.open("wb") as errors, said.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=errors, stdin=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        if sync:
            subprocess.run(["sync", "-f", str(scratch)], check=True)
        wall_seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in codes:
        sys.stderr.write(log.read_text("utf-8", errors="replace")[-4000:])
        raise SystemExit(f"{shown(command, scratch)} ended with {process.returncode}")
    return {
        "command": shown(command, scratch),
        "wall_seconds": round(wall_seconds, 4),
        "user_seconds": round(usage.ru_utime, 4),
        "system_seconds": round(usage.ru_stime, 4),
        "peak_rss_bytes": usage.ru_maxrss * 1024,
    }


def shown(command: Sequence[str], scratch: Path) -> str:
    """Return a command line without this machine's paths."""
    text = " ".join(command).replace(str(scratch), "$SCRATCH")
    text = text.replace(sys.executable, "python")
    return text.replace(f"{REPOSITORY}/", "")


@dataclass(frozen=True)
class Cost:
    """What the repeats of one runner took.

    Attributes:
        median: Wall clock in seconds.
        least: That of the fastest.
        most: That of the slowest.
        cpu: Median CPU time in seconds.
        peak_mb: The largest memory of a process in MB.
    """

    median: float
    least: float
    most: float
    cpu: float
    peak_mb: float


def costs(rows: Sequence[Mapping[str, Any]]) -> dict[str, Cost]:
    """Return what each runner took, in order of first appearance."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["runner"], []).append(row)
    return {
        name: Cost(
            median=statistics.median(row["wall_seconds"] for row in group),
            least=min(row["wall_seconds"] for row in group),
            most=max(row["wall_seconds"] for row in group),
            cpu=statistics.median(row["user_seconds"] + row["system_seconds"] for row in group),
            peak_mb=max(row["peak_rss_bytes"] for row in group) / 1e6,
        )
        for name, group in groups.items()
    }


COST_HEAD = f"{'':24}{'median':>9}{'min':>9}{'max':>9}{'CPU':>9}{'peak MB':>9}{'MB/s':>9}"
"""Begins the head of a text table whose lines begin with `cost_line`."""


def cost_line(name: str, cost: Cost, size_bytes: int) -> str:
    """Return how a line of a text table begins.

    Args:
        name: The runner.
        cost: What it took.
        size_bytes: What it worked through.
    """
    return (
        f"{name:24}{cost.median:9.2f}{cost.least:9.2f}{cost.most:9.2f}{cost.cpu:9.2f}"
        f"{cost.peak_mb:9.0f}{size_bytes / 1e6 / cost.median:9.0f}"
    )


# --- the log ----------------------------------------------------------------------------------


def file_system_of(folder: Path) -> str:
    """Return the type of a folder's file system, such as ``tmpfs`` or ``ext4``."""
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return name.replace("ext2/ext3", "ext4").replace("/", "-")


def cpu_name() -> str:
    """Return the processor's name as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def commit() -> str:
    """Return the commit of this checkout, with ``-dirty`` where it was changed since."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=40"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def version_of(package: str) -> str | None:
    """Return an installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def without_path(argument: str) -> str:
    """Return an argument, or a word for it where it names a place on this machine."""
    return "DIR" if argument.startswith(("/", "~")) else argument


def header(
    script: str,
    arguments: Sequence[str],
    scratch: Path,
    dataset: Mapping[str, Any],
    *,
    synced: bool = False,
    packages: Sequence[str] = PACKAGES,
) -> dict[str, Any]:
    """Return the first line of a log.

    Args:
        script: The script's name, without its folder.
        arguments: What it was called with.
        scratch: Where it works.
        dataset: What `dataset_shape` says.
        synced: Whether times include a sync.
        packages: Whose versions are noted.
    """
    from leconvert._version import __version__

    with Path("/proc/meminfo").open("rb") as file:
        memory_bytes = int(file.readline().split()[1]) * 1024
    return {
        "format": "leconvert-bench",
        "version": 1,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join([f"python scripts/{script}", *map(without_path, arguments)]),
        "leconvert": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {package: version_of(package) for package in packages},
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "file_system": file_system_of(scratch),
        "synced": synced,
        "dataset": dataset,
    }


def in_turns[Runner](runners: Sequence[Runner], repeats: int) -> Iterator[tuple[int, Runner]]:
    """Yield every runner in each repeat; nobody always follows the same neighbour."""
    for repeat in range(repeats):
        turn = repeat % len(runners)
        for runner in (*runners[turn:], *runners[:turn]):
            yield repeat, runner


@contextmanager
def rows_kept(log: Path, first: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a log with its head, and provide what appends a row; each is on disk before the next."""
    with log.open("w", encoding="utf-8") as file:

        def keep(row: Mapping[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        keep(first)
        yield keep


def new_log(folder: Path, stem: str) -> Path:
    """Return the path of a log that does not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.jsonl"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}.jsonl"
        number += 1
    return path
