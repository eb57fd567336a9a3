"""The kit of the benchmarks: datasets, measured commands, taking turns, and raw rows.

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
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "scripts/bench.py"
LECONVERT = (sys.executable, "-m", "leconvert")
PROFILE_NAMES = ("small", "mid", "big", "many", "images")
PACKAGES = ("lerobot", "datasets", "pyarrow", "av", "numpy", "pandas")

SETTLE_LOOKS, SETTLE_SECONDS, LONGEST_SETTLE_SECONDS = 3, 0.2, 60.0
WALL, CPU = "wall_seconds", ("user_seconds", "system_seconds")

type Row = dict[str, Any]


def parser(about: str | None, *, repeats: int | None) -> argparse.ArgumentParser:
    """Return a parser of where a benchmark happens, where its log goes, and how often it measures.

    Args:
        about: The case's docstring.
        repeats: How often by default; None for a case that measures once.
    """
    scratch = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path.cwd()
    found = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "--scratch", type=Path, default=scratch, help=f"where it happens ({scratch})"
    )
    if repeats is not None:
        found.add_argument("--repeats", type=int, default=repeats)
    found.add_argument("--log-dir", type=Path, default=REPOSITORY / "bench_logs")
    return found


@contextmanager
def scratch_folder(parent: Path, case: str) -> Iterator[Path]:
    """Have a folder for the length of a ``with`` block."""
    folder = parent / f"leconvert-{case}-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        "files": sum(1 for _ in files_below(root)),
        "bytes": size_of(root),
        "video_bytes": size_of(root / "videos"),
    }


def measured(
    command: Sequence[str],
    scratch: Path,
    environment: Mapping[str, str] | None = None,
    *,
    sync: bool = False,
) -> Row:
    """Run a command and return what it took; its output is in ``last-run.out``.

    CPU time is that of the whole process tree, and memory that of its largest process.

    Args:
        command: The command line.
        scratch: Where its output goes.
        environment: What is changed in its environment.
        sync: Add a ``sync -f`` of that place to its time, and tell the new space that the file
            system counts.

    Raises:
        SystemExit: The command failed; its output is shown.
    """
    log, said = scratch / "last-run.log", scratch / "last-run.out"
    used = used_bytes(scratch) if sync else 0
    with log.open("wb") as errors, said.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=os.environ | dict(environment or {}),
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

    Raises:
        SystemExit: It does not settle.
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
    text = text.replace(sys.executable, "python")
    return text.replace(f"{REPOSITORY}/", "")


def run_quietly(command: Sequence[object], **variables: str) -> str:
    """Run a command that is not measured, and return its output; what it says shows if it fails.

    Raises:
        SystemExit: It is missing or fails.
    """
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


def add_trees(parser: argparse.ArgumentParser) -> None:
    """Let a command line name other source trees, such as those of before and after a change."""
    parser.add_argument(
        "--trees", nargs="+", type=Path, default=[], metavar="DIR",
        help="let leconvert of each of these trees take turns, such as ../before/src src",
    )  # fmt: skip


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


def of_trees(runners: Iterable[Runner], trees: Sequence[Path]) -> list[Runner]:
    """Return each runner of ours once for each source tree, called by the tree's folder.

    Args:
        runners: The runners.
        trees: The trees; none leaves the runners as they are.
    """
    found = []
    for runner in runners:
        for tree in trees if runner.is_ours else ():
            name = f"{runner.name}, {tree.resolve().parent.name}"
            environment = {**runner.environment, "PYTHONPATH": str(tree.resolve())}
            found.append(replace(runner, name=name, environment=environment))
        if not trees or not runner.is_ours:
            found.append(runner)
    return found


def compare(
    case: str,
    name: Sequence[str],
    runners: Sequence[Runner],
    scratch: Path,
    dataset: Row,
    options: argparse.Namespace,
    arguments: Sequence[str],
    **ratios: Mapping[str, str],
) -> None:
    """Let runners take turns, keep every row in a log, and print the medians.

    Args:
        case: The case.
        name: Parts of the log's name.
        runners: The programs.
        scratch: The folder that they work in.
        dataset: The answer of `dataset_shape`.
        options: The options of `parser`, perhaps ``sync`` and those of `add_trees`.
        arguments: The command line.
        ratios: As for `table`.
    """
    sync, trees = getattr(options, "sync", False), getattr(options, "trees", [])
    head = header(f"bench.py {case}", arguments, scratch, dataset, synced=sync)
    head["trees"] = [commit(tree) for tree in trees]
    log = new_log(options.log_dir, head, *name)
    print(f"{log.name}: {dataset['bytes'] / 1e6:,.0f} MB on {head['file_system']}", flush=True)
    run = partial(Runner.run, scratch=scratch, sync=sync)
    rows = rows_in_turns(log, head, of_trees(runners, trees), options.repeats, run)
    print(f"{table(rows, **ratios)}\n", flush=True)


def in_turns[Each](runners: Sequence[Each], repeats: int) -> Iterator[tuple[int, Each]]:
    """Yield every runner in each repeat; nobody always follows the same neighbour."""
    for repeat in range(repeats):
        turn = repeat % len(runners)
        for runner in (*runners[turn:], *runners[:turn]):
            yield repeat, runner


def rows_in_turns[Each](
    log: Path,
    head: Mapping[str, Any],
    runners: Sequence[Each],
    repeats: int,
    run: Callable[[Each], Row],
) -> list[Row]:
    """Measure all runners in turns, keep every row in a log, and return them, a runner's together.

    Args:
        log: A log that does not exist yet.
        head: Its first line.
        runners: The programs that take turns.
        repeats: How often.
        run: Measures one runner.
    """
    found: list[tuple[int, Row]] = []
    with rows_kept(log, head) as keep:
        for repeat, runner in in_turns(runners, repeats):
            row = {"repeat": repeat, **run(runner)}
            keep(row)
            found.append((runners.index(runner), row))
            facts = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "repeat"}
            name = row.get("runner", "")
            print(f"  {repeat} {name:24} {json.dumps(facts)}", flush=True)
    print(f"\n{log.name}", flush=True)
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


@contextmanager
def rows_kept(log: Path, first: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a log with its head, and provide what appends a row; each is on disk before the next."""
    with log.open("w", encoding="utf-8") as file:

        def keep(row: Mapping[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        keep(first)
        yield keep


def new_log(folder: Path, head: Mapping[str, Any], *parts: str) -> Path:
    """Return the path of a log that does not exist yet, such as ``2026-11-24-many-tmpfs.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join([str(head["started"])[:10], *parts])
    path = folder / f"{stem}.jsonl"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}.jsonl"
        number += 1
    return path


def header(
    script: str,
    arguments: Sequence[str],
    scratch: Path,
    dataset: Mapping[str, Any],
    *,
    synced: bool = False,
    packages: Sequence[str] = PACKAGES,
) -> Row:
    """Return the first line of a log.

    Args:
        script: Its name without the folder, and the case, as in ``bench.py convert``.
        arguments: What it was called with.
        scratch: Where it works.
        dataset: What `dataset_shape` says.
        synced: Whether times include a sync.
        packages: Whose versions are noted.
    """
    return {
        "format": "leconvert-bench",
        "version": 1,
        **machine(script, arguments, scratch),
        "packages": {package: version_of(package) for package in packages},
        "synced": synced,
        "dataset": dataset,
    }


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
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return name.replace("ext2/ext3", "ext4").replace("/", "-")


def commit(tree: Path | None = None) -> str:
    """Return the commit of a tree, with ``-dirty`` if it was changed since.

    Args:
        tree: The tree; None for the one that this process imports leconvert from.
    """
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


def by_runner(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each runner, in order of first appearance."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["runner"], []).append(row)
    return found


def median(rows: Iterable[Mapping[str, Any]], *columns: str) -> float:
    """Return the median of the sum of some columns."""
    return float(statistics.median(sum(row[column] for column in columns) for row in rows))


def table(
    rows: Iterable[Mapping[str, Any]],
    *,
    faster: Mapping[str, str] | None = None,
    slower: Mapping[str, str] | None = None,
) -> str:
    """Return medians, spread, memory and ratios of medians as a Markdown table, a row a runner.

    Args:
        rows: The rows of a log.
        faster: By title of a column, the runner whose time is divided by each runner's.
        slower: By title of a column, the runner by whose time each runner's is divided.
    """
    known = by_runner(rows)
    wall = {name: median(group, WALL) for name, group in known.items()}
    faster, slower = faster or {}, slower or {}
    titles = ["", "runs", "s (least to most)", "plan, work, pack s", "CPU s", "peak MB"]
    titles += [*faster, *slower]
    lines = [titles]
    for name, group in known.items():
        stages = [row["stage_seconds"] for row in group if row.get("stage_seconds")]
        parts = [f"{median(stages, part):.2f}" for part in ("plan", "work", "pack") if stages]
        walls = [row[WALL] for row in group]
        line = [name, str(len(group)), f"{wall[name]:.2f} ({min(walls):.2f}-{max(walls):.2f})"]
        line += [", ".join(parts), f"{median(group, *CPU):.2f}"]
        line += [f"{max(row['peak_rss_bytes'] for row in group) / 2**20:.0f}"]
        line += [
            f"{wall[base] / wall[name]:.1f}" if base in wall else "" for base in faster.values()
        ]
        line += [
            f"{wall[name] / wall[base]:.2f}" if base in wall else "" for base in slower.values()
        ]
        lines.append(line)
    return markdown(lines)


def medians(
    rows: Iterable[Mapping[str, Any]], keys: Sequence[str], columns: Mapping[str, str]
) -> str:
    """Return medians as a Markdown table, a row for all that agree in some keys.

    The first column has the least and the most as well. Rows with an error count where all have it.

    Args:
        rows: The rows of a log.
        keys: The keys whose values tell the groups apart.
        columns: The format of each number's median, by its key; a cell is empty if no row has it.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key, "")) for key in keys), []).append(row)
    first, *_ = columns
    lines = [[*keys, "runs", f"{first} (least to most)", *list(columns)[1:]]]
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
        lines.append(line + [""] * (len(lines[0]) - len(line)))
    return markdown(lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first has the titles."""
    titles, *others = rows
    lines = [titles, ["---"] * len(titles), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
