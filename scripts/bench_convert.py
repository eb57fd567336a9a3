"""Time conversions: LeRobot's converter, ours in several ways, and a plain copy, alternately.

    python scripts/bench_convert.py small mid --repeats 5
    python scripts/bench_convert.py big --grid --scratch /mnt/disk

Every command is a process of its own, as a user would start it, so importing is part of its time.
Untimed, before each: the scratch folder of the previous run is removed, dirty pages are written
back, and the reference gets a fresh copy of the source, as it works in place. The source is read
once beforehand, so that everyone finds it in the page cache.

CPU time and memory come from ``wait4``: the CPU time of the whole process tree, and the largest
resident set that any one process of it had. This script imports next to nothing before it starts
children, as a child's record begins with the memory of its parent.

Raw rows go to ``bench_logs/<date>-<profile>-<file system>.jsonl``: a header line, then one line a
run. In commands ``$SCRATCH`` stands for the scratch folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PROFILE_NAMES = ("small", "mid", "big", "many", "images")
PACKAGES = ("lerobot", "datasets", "pyarrow", "av", "numpy", "pandas")

REFERENCE = "reference"
COPY = "cp -r"


@dataclass(frozen=True)
class Runner:
    """One way to convert; ``flags`` are those of ``leconvert convert``."""

    name: str
    flags: tuple[str, ...] = ()


RUNNERS = (
    Runner(REFERENCE),
    Runner("default"),
    Runner("inline", ("--max-workers", "1")),
    Runner("threads-2", ("--max-workers", "2")),
    Runner("workers-1", ("--orchestrate", "--num-workers", "1")),
    Runner("workers-2", ("--orchestrate", "--num-workers", "2")),
    Runner("workers-4", ("--orchestrate", "--num-workers", "4")),
    Runner(COPY),
)
GRID_EPISODES = ("25", "50", "75", "100", "auto")
GRID_WORKERS = ("1", "2", "4", "6")


def grid_runners() -> tuple[Runner, ...]:
    """Return every combination of batch size and workers, and the plain copy beside them."""
    runners = []
    for episodes in GRID_EPISODES:
        batch = () if episodes == "auto" else ("--episodes-per-batch", episodes)
        for workers in GRID_WORKERS:
            flags = ("--orchestrate", "--num-workers", workers, *batch)
            runners.append(Runner(f"batch-{episodes} workers-{workers}", flags))
    return (*runners, Runner(COPY))


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


# --- one run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """One source and the folder in which everything about it happens."""

    scratch: Path
    source: Path
    sync: bool

    @property
    def run_dir(self) -> Path:
        """Removed before every run."""
        return self.scratch / "run"

    @property
    def output(self) -> Path:
        """Where ours and the copy go; the reference replaces a copy that is there."""
        return self.run_dir / "dataset"

    def command(self, runner: Runner) -> list[str]:
        """Return the command line of one runner."""
        if runner.name == COPY:
            return ["cp", "-r", "--reflink=never", str(self.source), str(self.output)]
        if runner.name == REFERENCE:
            module = "lerobot.scripts.convert_dataset_v21_to_v30"
            place = ["--repo-id", "bench/dataset", "--root", str(self.output)]
            return [sys.executable, "-m", module, *place, "--push-to-hub=false"]
        place = ["--root", str(self.source), "--output", str(self.output)]
        work_dir = ["--no-push", "--work-dir", str(self.run_dir / "work")]
        convert = [sys.executable, "-m", "leconvert", "convert", "--json"]
        return [*convert, *place, *work_dir, *runner.flags]

    def shown(self, command: Sequence[str]) -> str:
        """Return a command line without this machine's paths."""
        text = " ".join(command).replace(str(self.scratch), "$SCRATCH")
        return text.replace(sys.executable, "python")

    def prepare(self, runner: Runner) -> None:
        """Do what is not timed."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        (self.run_dir / "tmp").mkdir(parents=True)
        if runner.name == REFERENCE:
            subprocess.run(
                ["cp", "-r", "--reflink=never", str(self.source), str(self.output)], check=True
            )
        os.sync()

    def run(self, runner: Runner) -> dict[str, Any]:
        """Run once and return the measured row.

        Raises:
            SystemExit: The command failed; its output is shown.
        """
        self.prepare(runner)
        command = self.command(runner)
        environment = os.environ | {
            "TMPDIR": str(self.run_dir / "tmp"),
            # A cache that survived would save the reference work that a user's first run has.
            "HF_HOME": str(self.run_dir / "huggingface"),
            "HF_HUB_OFFLINE": "1",
        }
        log, said = self.scratch / "last-run.log", self.scratch / "last-run.out"
        with log.open("wb") as errors, said.open("wb") as output:
            started = time.perf_counter()
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=errors, stdin=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(process.pid, 0)
            if self.sync:
                subprocess.run(["sync", "-f", str(self.scratch)], check=True)
            wall_seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.stderr.write(log.read_text("utf-8", errors="replace")[-4000:])
            raise SystemExit(f"{self.shown(command)} ended with {process.returncode}")
        self.check(runner)
        ours = runner.name not in {REFERENCE, COPY}
        return {
            "runner": runner.name,
            "command": self.shown(command),
            "wall_seconds": round(wall_seconds, 4),
            "user_seconds": round(usage.ru_utime, 4),
            "system_seconds": round(usage.ru_stime, 4),
            "peak_rss_bytes": usage.ru_maxrss * 1024,
            "output_bytes": size_of(self.output),
            **({"stage_seconds": json.loads(said.read_bytes())["stage_seconds"]} if ours else {}),
        }

    def check(self, runner: Runner) -> None:
        """Refuse to count a run that did not do its work."""
        info = json.loads((self.output / "meta/info.json").read_text("utf-8"))
        expected = "v2.1" if runner.name == COPY else "v3.0"
        if info["codebase_version"] != expected:
            raise SystemExit(f"{runner.name} left a dataset of version {info['codebase_version']}")


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


def header(bench: Bench, profile: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the first line of a log."""
    from leconvert._version import __version__

    with Path("/proc/meminfo").open("rb") as file:
        memory_bytes = int(file.readline().split()[1]) * 1024
    return {
        "format": "leconvert-bench",
        "version": 1,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python scripts/bench_convert.py", *map(without_path, arguments)]),
        "leconvert": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {package: version_of(package) for package in PACKAGES},
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "file_system": file_system_of(bench.scratch),
        "synced": bench.sync,
        "dataset": dataset_shape(bench.source, profile),
    }


def new_log(folder: Path, stem: str) -> Path:
    """Return the path of a log that does not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.jsonl"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}.jsonl"
        number += 1
    return path


def table(rows: Sequence[dict[str, Any]], source_bytes: int) -> str:
    """Return medians, spread, memory and ratios as an aligned text table.

    Ratios are of medians: how many times as fast as the reference, and how many times the plain
    copy's time.
    """
    by_runner: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_runner.setdefault(row["runner"], []).append(row)
    medians = {
        name: statistics.median(row["wall_seconds"] for row in group)
        for name, group in by_runner.items()
    }
    lines = [
        f"{'':24}{'median':>9}{'min':>9}{'max':>9}{'CPU':>9}{'peak MB':>9}{'MB/s':>9}"
        f"{'ref/x':>8}{'x/cp':>8}"
    ]
    for name, group in by_runner.items():
        walls = [row["wall_seconds"] for row in group]
        cpu = statistics.median(row["user_seconds"] + row["system_seconds"] for row in group)
        peak = max(row["peak_rss_bytes"] for row in group) / 1e6
        faster = f"{medians[REFERENCE] / medians[name]:.1f}" if REFERENCE in medians else "-"
        slower = f"{medians[name] / medians[COPY]:.2f}" if COPY in medians else "-"
        lines.append(
            f"{name:24}{medians[name]:9.2f}{min(walls):9.2f}{max(walls):9.2f}{cpu:9.2f}{peak:9.0f}"
            f"{source_bytes / 1e6 / medians[name]:9.0f}{faster:>8}{slower:>8}"
        )
    return "\n".join(lines)


# --- the whole --------------------------------------------------------------------------------


def bench_profile(profile: str, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Generate one profile, run everything on it, write the log and print the table."""
    scratch = Path(options.scratch) / f"leconvert-bench-{os.getpid()}"
    bench = Bench(scratch, scratch / "source", options.sync)
    scratch.mkdir(parents=True)
    try:
        print(f"{profile}: generating ...", flush=True)
        make = [sys.executable, __file__, "--make", str(bench.source), profile]
        if options.episodes is not None:
            make += ["--episodes", str(options.episodes)]
        subprocess.run(make, check=True)
        read_through(bench.source)
        first = header(bench, profile, arguments)
        source_bytes = first["dataset"]["bytes"]
        print(f"{profile}: {source_bytes / 1e6:.0f} MB on {first['file_system']}", flush=True)
        runners = grid_runners() if options.grid else RUNNERS
        if options.runners:
            runners = tuple(runner for runner in runners if runner.name in options.runners)
        needed = source_bytes * (3 if any(r.name == REFERENCE for r in runners) else 2)
        if shutil.disk_usage(scratch).free < needed:
            raise SystemExit(f"{options.scratch} has less than {needed / 1e9:.1f} GB left")
        kind = "-grid" if options.grid else ""
        stem = f"{first['started'][:10]}-{profile}-{first['file_system']}{kind}"
        log = new_log(Path(options.log_dir), stem)
        rows = []
        with log.open("w", encoding="utf-8") as file:
            file.write(json.dumps(first) + "\n")
            for repeat in range(options.repeats):
                # Nobody always follows the same neighbour.
                turn = repeat % len(runners)
                for runner in runners[turn:] + runners[:turn]:
                    row = {"repeat": repeat, **bench.run(runner)}
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(f"  {repeat} {runner.name:24} {row['wall_seconds']:8.2f} s", flush=True)
        rows.sort(key=lambda row: [runner.name for runner in runners].index(row["runner"]))
        print(f"\n{profile}, {log.name}\n{table(rows, source_bytes)}\n", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    shared_memory = Path("/dev/shm")
    scratch = shared_memory if shared_memory.is_dir() else Path.cwd()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profiles", nargs="+", choices=PROFILE_NAMES)
    parser.add_argument("--scratch", default=scratch, help=f"where it happens ({scratch})")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--grid", action="store_true", help="batch sizes against workers instead")
    parser.add_argument("--runners", nargs="+", metavar="NAME", help="only these, by name")
    parser.add_argument("--sync", action="store_true", help="time `sync -f` with each command")
    parser.add_argument("--episodes", type=int, help="fewer episodes than the profile's, to try")
    parser.add_argument("--log-dir", default=REPOSITORY / "bench_logs")
    parser.add_argument("--make", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.make is not None:
        make_profile(options.profiles[0], Path(options.make), options.episodes)
        return 0
    for profile in options.profiles:
        bench_profile(profile, options, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
