"""The kit of the benchmarks: a case with its options and logs, datasets, and measured commands.

This module imports nothing of weight: a child's memory record begins with that of its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "scripts/bench.py"
LECONVERT = (sys.executable, "-m", "leconvert")
PROFILE_NAMES = ("small", "mid", "big", "many", "images")
PACKAGES = ("lerobot", "datasets", "pyarrow", "av", "numpy", "pandas")
SETTLE_LOOKS, SETTLE_SECONDS, LONGEST_SETTLE_SECONDS = 3, 0.2, 60.0

type Row = dict[str, Any]
type Keep = Callable[[Mapping[str, Any]], None]


class Case:
    """One benchmark: its options, its scratch folders and its logs.

    Attributes:
        parser: For the case's own options, until `parse`.
        options: All options, after `parse`.

    Args:
        script: The script's name, and the case, as in ``bench.py convert``.
        about: Its help.
        arguments: Its command line.
    """

    options: argparse.Namespace

    def __init__(self, script: str, about: str | None, arguments: Sequence[str]) -> None:
        self.script, self.arguments = script, arguments
        scratch = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path.cwd()
        self.parser = argparse.ArgumentParser(
            description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.parser.add_argument(
            "--scratch", type=Path, default=scratch, help=f"where it happens ({scratch})"
        )
        self.parser.add_argument("--log-dir", type=Path, default=REPOSITORY / "bench_logs")

    def parse(self, repeats: int | None = None) -> argparse.Namespace:
        """Return the options; a case that measures once has no ``--repeats``."""
        if repeats is not None:
            self.parser.add_argument("--repeats", type=int, default=repeats)
        self.options = self.parser.parse_args(self.arguments)
        return self.options

    @contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        """Have a folder for the length of a ``with`` block."""
        folder = Path(self.options.scratch, f"leconvert-bench-{os.getpid()}")
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def log(
        self, scratch: Path, *name: str, packages: Sequence[str] = PACKAGES, **facts: Any
    ) -> Iterator[Keep]:
        """Open a log, and provide what appends a row; each is on disk before the next.

        The first line has the machine, the packages' versions and these facts.
        """
        head = {
            "format": "leconvert-bench",
            "version": 1,
            **machine(self.script, self.arguments, scratch),
            "packages": {package: version_of(package) for package in packages},
            **facts,
        }
        path = new_log(self.options.log_dir, head["started"][:10], *name)
        with path.open("w", encoding="utf-8") as file:

            def keep(row: Mapping[str, Any]) -> None:
                file.write(json.dumps(row) + "\n")
                file.flush()

            keep(head)
            yield keep
        print(f"\n{path.name}", flush=True)

    def in_turns[Each](
        self, keep: Keep, runners: Sequence[Each], run: Callable[[Each], Row]
    ) -> list[Row]:
        """Measure all runners in turns, keep every row, and return them, a runner's together."""
        found: list[tuple[int, Row]] = []
        for repeat in range(getattr(self.options, "repeats", 1)):
            turn = repeat % len(runners)  # nobody always follows the same neighbour
            for runner in (*runners[turn:], *runners[:turn]):
                row = {"repeat": repeat, **run(runner)}
                keep(row)
                found.append((runners.index(runner), row))
                facts = {key: value for key, value in row.items() if isinstance(value, int | float)}
                print(f"  {row.get('runner', ''):24} {json.dumps(facts)}", flush=True)
        return [row for _, row in sorted(found, key=lambda pair: pair[0])]

    def add_trees(self) -> None:
        """Let the command line name other source trees, such as those before and after a change."""
        self.parser.add_argument(
            "--trees", nargs="+", type=Path, default=[], metavar="DIR",
            help="let leconvert of each of these trees take turns, such as ../before/src src",
        )  # fmt: skip

    def compare(
        self,
        name: Sequence[str],
        runners: Iterable[Runner],
        scratch: Path,
        dataset: Row,
        against: Sequence[str] = (),
    ) -> None:
        """Let runners take turns, keep every row in a log, and print the medians.

        Runners of leconvert have a turn for each of the ``--trees``.
        """
        sync, trees = getattr(self.options, "sync", False), getattr(self.options, "trees", [])
        named = dict(zip(names_of(trees), trees, strict=True))
        each = [
            turn
            for runner in runners
            for turn in (
                [runner.of_tree(name, tree) for name, tree in named.items()]
                if named and runner.is_ours
                else [runner]
            )
        ]
        facts: Row = {"synced": sync, "dataset": dataset, "trees": [commit(tree) for tree in trees]}
        with self.log(scratch, *name, **facts) as keep:
            rows = self.in_turns(keep, each, lambda runner: runner.run(scratch, sync=sync))
        print(f"{conversions_table(rows, against)}\n", flush=True)


@dataclass(frozen=True)
class Runner:
    """One program at one task.

    Attributes:
        name: Its name in the log.
        command: The command that is measured.
        made: Paths that it writes, removed after each repeat with those called ``PATH_*``.
        copied: A tree and a path that the tree is copied to before each repeat, untimed.
        after: A command that follows each repeat, untimed.
        environment: Variables for it.
        is_ours: Whether it is of leconvert, so that other source trees take turns with it.
    """

    name: str
    command: Sequence[object]
    made: Sequence[Path] = ()
    copied: tuple[Path, Path] | None = None
    after: Sequence[object] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = True

    def of_tree(self, name: str, tree: Path) -> Runner:
        """Return the runner of another source tree."""
        environment = {**self.environment, "PYTHONPATH": str(tree.resolve())}
        return replace(self, name=f"{self.name}, {name}", environment=environment)

    def run(self, scratch: Path, *, sync: bool = False) -> Row:
        """Run once and return the measured row."""
        if self.copied is not None:
            run_quietly(["cp", "-r", "--reflink=never", *self.copied])
        os.sync()  # pages of the repeat before it
        load = round(os.getloadavg()[0], 1)
        row = measured([*map(str, self.command)], scratch, self.environment, sync=sync)
        said = (scratch / "last-run.out").read_bytes()
        if said.startswith(b"{") and (stages := json.loads(said).get("stage_seconds")):
            row["stage_seconds"] = stages
        if self.after:
            run_quietly(self.after)
        for made in self.made:
            for path in (made, *made.parent.glob(f"{made.name}_*")):
                shutil.rmtree(path, ignore_errors=True)
        return {"runner": self.name, "load": load, **row}


def names_of(trees: Sequence[Path]) -> list[str]:
    """Return the names of source trees: their folders' names, with numbers if two are alike."""
    names = [tree.resolve().parent.name for tree in trees]
    if len(set(names)) == len(names):
        return names
    return [f"{name} {number}" for number, name in enumerate(names, 1)]


def make_profile(name: str, root: Path, episodes: int | None = None) -> None:
    """Generate a profile's dataset, in a process of its own, and read it once."""
    print(f"{name}: generating ...", flush=True)
    in_own_process(_make_profile, name, root, episodes)
    read_through(root)


def _make_profile(name: str, root: Path, episodes: int | None) -> None:
    from leconvert.testing import PROFILES, make_dataset

    spec = PROFILES[name]
    make_dataset(root, spec if episodes is None else replace(spec, episodes=episodes))


def in_own_process[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a fresh process, whose memory is no part of this one's."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def measured_call(function: Callable[..., Row], *arguments: Any) -> Row:
    """Call a function in a fresh process; add its CPU time and peak memory to what it returns."""
    return in_own_process(_measured_call, function, arguments)


def _measured_call(function: Callable[..., Row], arguments: Sequence[Any]) -> Row:
    begun = time.process_time()
    row = function(*arguments)
    row["cpu_s"] = time.process_time() - begun  # says more than the clock on a busy machine
    row["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def files_below(root: Path) -> list[Path]:
    """Return every file below a folder; none if there is no folder."""
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]


def size_of(root: Path) -> int:
    """Return the bytes of all files below a folder; 0 if it does not exist."""
    return sum(path.stat().st_size for path in files_below(root))


def read_through(root: Path) -> None:
    """Bring every file below a folder into the page cache."""
    for path in files_below(root):
        path.read_bytes()


def dataset_shape(root: Path, profile: str) -> Row:
    """Return what the header says about a dataset."""
    info = json.loads((root / "meta/info.json").read_text("utf-8"))
    kinds = [feature["dtype"] for feature in info["features"].values()]
    return {
        "profile": profile,
        "episodes": info["total_episodes"],
        "frames": info["total_frames"],
        "cameras": kinds.count("video"),
        "images": kinds.count("image"),
        "files": len(files_below(root)),
        "bytes": size_of(root),
        "video_bytes": size_of(root / "videos"),
    }


def measured(
    command: Sequence[str], scratch: Path, environment: Mapping[str, str], *, sync: bool = False
) -> Row:
    """Run a command and return what it took; its output is in ``last-run.out``.

    CPU time is that of the whole process tree, and memory that of its largest process. With
    ``sync`` its time has a ``sync -f``, and the row the new space that the file system counts.
    """
    log, said = scratch / "last-run.log", scratch / "last-run.out"
    used = used_bytes(scratch) if sync else 0
    with log.open("wb") as errors, said.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=os.environ | dict(environment),
            stdout=output, stderr=errors, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        if sync:
            subprocess.run(["sync", "-f", str(scratch)], check=True)
        wall_seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.stderr.write(log.read_text("utf-8", errors="replace")[-4000:])
        raise SystemExit(f"{shown(command, scratch)} ended with {process.returncode}")
    return {
        "command": shown(command, scratch),
        "wall_seconds": round(wall_seconds, 4),
        "user_seconds": round(usage.ru_utime, 4),
        "system_seconds": round(usage.ru_stime, 4),
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        **({"new_bytes": used_bytes(scratch) - used} if sync else {}),
    }


def used_bytes(folder: Path) -> int:
    """Return the bytes in use once a file system no longer works on what was removed.

    Neither XFS nor btrfs frees the blocks of a removed file at once, and nothing tells when they
    have; so it is asked until it answers the same a few times.
    """
    deadline = time.monotonic() + LONGEST_SETTLE_SECONDS
    seen: list[int] = []
    while len(seen) < SETTLE_LOOKS or len(set(seen[-SETTLE_LOOKS:])) > 1:
        if time.monotonic() > deadline:
            raise SystemExit(f"the space in use did not settle in {LONGEST_SETTLE_SECONDS:.0f} s")
        if seen:
            time.sleep(SETTLE_SECONDS)
        run_quietly(["sync", "-f", folder])
        state = os.statvfs(folder)
        seen.append((state.f_blocks - state.f_bfree) * state.f_frsize)
    return seen[-1]


def shown(command: Sequence[str], scratch: Path) -> str:
    """Return a command line without this machine's paths."""
    text = " ".join(command).replace(str(scratch), "$SCRATCH")
    return text.replace(sys.executable, "python").replace(f"{REPOSITORY}/", "")


def run_quietly(command: Sequence[object], **variables: str) -> str:
    """Run a command that is not measured, and return its output; what it says shows if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, env=os.environ | variables, check=False, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise SystemExit(f"{words[0]} is not installed") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-4000:]
        raise SystemExit(f"{' '.join(words)} failed: {said}")
    return done.stdout.strip()


def new_log(folder: Path, *parts: str) -> Path:
    """Return the path of a log that does not exist yet, such as ``2026-11-24-many-tmpfs.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{'-'.join(parts)}.jsonl", 2
    while path.exists():
        path = folder / f"{'-'.join(parts)}-{number}.jsonl"
        number += 1
    return path


def machine(script: str, arguments: Sequence[str], scratch: Path) -> Row:
    """Return what ran when, and on what."""
    from leconvert._version import __version__
    from leconvert.support.machine import allowed_cores, cpu_name

    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join([f"python scripts/{script}", *map(without_path, arguments)]),
        "leconvert": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cores": allowed_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "file_system": file_system_of(scratch),
    }


def without_path(argument: str) -> str:
    """Return an argument, with a word for a place on this machine: ``DIR``, ``NAME=FILE``."""
    name, is_named, value = argument.partition("=")
    if is_named and "/" in value:
        return f"{name}=FILE"
    return "DIR" if argument.startswith(("/", "~")) else argument


def file_system_of(folder: Path) -> str:
    """Return the type of a folder's file system, such as ``tmpfs`` or ``ext4``."""
    name = run_quietly(["stat", "--file-system", "--format=%T", folder])
    return name.replace("ext2/ext3", "ext4").replace("/", "-")


def commit(tree: Path | None = None) -> str:
    """Return the commit of a tree, of the imported one by default; ``-dirty`` if it was changed."""
    import leconvert

    folder = tree or Path(leconvert.__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def version_of(package: str) -> str | None:
    """Return an installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def conversions_table(rows: Iterable[Mapping[str, Any]], against: Sequence[str] = ()) -> str:
    """Return medians of measured commands as a Markdown table, a row a runner."""
    found = []
    for row in rows:
        one = {"runner": row["runner"], "s": row["wall_seconds"]}
        one["CPU s"] = row["user_seconds"] + row["system_seconds"]
        one["peak MB"] = row["peak_rss_bytes"] / 2**20
        stages = row.get("stage_seconds") or {}
        found.append(one | {f"{name} s": stages.get(name) for name in ("plan", "work", "pack")})
    forms = {"s": ".2f", "CPU s": ".2f", "peak MB": ".0f"}
    stage_forms = {f"{name} s": ".2f" for name in ("plan", "work", "pack")}
    return table(found, ("runner",), forms | stage_forms, against)


def table(
    rows: Iterable[Mapping[str, Any]],
    keys: Sequence[str],
    columns: Mapping[str, str],
    against: Sequence[str] = (),
) -> str:
    """Return medians as a Markdown table, a row for all that agree in some keys.

    The first column has the least and the most as well. Rows with an error count where all have it.

    Args:
        rows: The rows of a log.
        keys: The keys whose values tell the groups apart.
        columns: The format of each number's median, by its key; a cell is empty if no row has it.
        against: Names of groups by whose median of the first column each group's is divided.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key, "")) for key in keys), []).append(row)
    first, *_ = columns
    known = [base for base in against if (base,) in groups]
    lines = [[*keys, "runs", f"{first} (least to most)", *list(columns)[1:]]]
    lines[0] += [f"it / `{base}`" for base in known]
    for names, group in groups.items():
        sound = [row for row in group if "error" not in row]
        line = [*names, str(len(sound or group))]
        if not sound:
            why = " ".join(group[0]["error"].split()).replace("|", "\\|")
            line.append(f"fails: {why}")
        for key, form in columns.items() if sound else ():
            values = [row[key] for row in sound if row.get(key) is not None]
            line.append(format(statistics.median(values), form) if values else "")
            if key == first:
                line[-1] += f" ({format(min(values), form)}-{format(max(values), form)})"
        if sound:
            bases = [median(groups[base,], first) for base in known]
            line += [f"{median(sound, first) / base:.2f}" for base in bases]
        lines.append(line + [""] * (len(lines[0]) - len(line)))
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def median(rows: Iterable[Mapping[str, Any]], column: str) -> float:
    """Return the median of a column."""
    return float(statistics.median(row[column] for row in rows))
