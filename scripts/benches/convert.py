"""Time conversions: LeRobot's converter, ours in several ways, and a plain copy, alternately.

    python scripts/bench.py convert small mid --repeats 5
    python scripts/bench.py convert big --grid --scratch /mnt/disk
    python scripts/bench.py convert big --layouts
    python scripts/bench.py convert mid --runners default "cp -r" --trees ../before/src src
    python scripts/bench.py convert big --runners default "cp -r" --sync --scratch /mnt/xfs

Every command is a process of its own, as a user would start it, so importing is part of its time.
Untimed, before each: the scratch folder of the previous run is removed, dirty pages are written
back, and a command that works in place, the reference and an overlay, gets a fresh copy of the
source. The source is read once beforehand, so that every command finds it in the page cache.

With ``--sync`` each command's time has a ``sync -f``, and its row the new space that the file
system counts: hardly any for video where it shares extents.

CPU time and memory come from ``wait4``, see `benches.kit`. This module imports next to nothing
before it starts children, as a child's record begins with the memory of its parent.

Raw rows go to ``bench_logs/<date>-<profile>-<file system>.jsonl``: a header line, then one line a
run. In commands ``$SCRATCH`` stands for the scratch folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches import kit

REFERENCE = "reference"
COPY = "cp -r"


@dataclass(frozen=True)
class Runner:
    """One way to convert; ``flags`` are those of ``leconvert convert``, perhaps in place."""

    name: str
    flags: tuple[str, ...] = ()
    in_place: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


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
LAYOUT_RUNNERS = (
    Runner("joined"),
    Runner("episode-files", ("--layout", "episode-files")),
    Runner("overlay", ("--layout", "overlay"), in_place=True),
    Runner(COPY),
)
SETTLE_LOOKS = 3
SETTLE_SECONDS = 0.2
LONGEST_SETTLE_SECONDS = 60.0
GRID_EPISODES = ("25", "50", "75", "100", "auto")
GRID_WORKERS = ("1", "2", "4", "6")


def grid_runners() -> tuple[Runner, ...]:
    """Return LeRobot's converter, every combination of batch size and workers, and a copy."""
    runners = []
    for episodes in GRID_EPISODES:
        batch = () if episodes == "auto" else ("--episodes-per-batch", episodes)
        for workers in GRID_WORKERS:
            flags = ("--orchestrate", "--num-workers", workers, *batch)
            runners.append(Runner(f"batch-{episodes} workers-{workers}", flags))
    return (Runner(REFERENCE), *runners, Runner(COPY))


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
        """Our output and the copy go here; the reference replaces a copy that is there."""
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
        if runner.in_place:
            place = ["--root", str(self.output)]
        work_dir = ["--no-push", "--work-dir", str(self.run_dir / "work")]
        return [*kit.LECONVERT, "convert", "--json", *place, *work_dir, *runner.flags]

    def prepare(self, runner: Runner) -> None:
        """Do what is not timed."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        (self.run_dir / "tmp").mkdir(parents=True)
        if runner.name == REFERENCE or runner.in_place:
            subprocess.run(
                ["cp", "-r", "--reflink=never", str(self.source), str(self.output)], check=True
            )
        os.sync()

    def run(self, runner: Runner) -> kit.Row:
        """Run once and return the measured row.

        Raises:
            SystemExit: The command failed; its output is shown.
        """
        self.prepare(runner)
        before = used_bytes(self.scratch) if self.sync else 0
        environment = {
            "TMPDIR": str(self.run_dir / "tmp"),
            # A cache that survived would save the reference work that a user's first run has.
            "HF_HOME": str(self.run_dir / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            **runner.environment,
        }
        row = kit.measured(self.command(runner), self.scratch, environment, sync=self.sync)
        self.check(runner)
        said = self.scratch / "last-run.out"
        ours = runner.name not in {REFERENCE, COPY}
        return {
            "runner": runner.name,
            **row,
            "output_bytes": kit.size_of(self.output),
            **({"new_bytes": used_bytes(self.scratch) - before} if self.sync else {}),
            **({"stage_seconds": json.loads(said.read_bytes())["stage_seconds"]} if ours else {}),
        }

    def check(self, runner: Runner) -> None:
        """Refuse to count a run that did not do its work."""
        info = json.loads((self.output / "meta/info.json").read_text("utf-8"))
        expected = "v2.1" if runner.name == COPY else "v3.0"
        if info["codebase_version"] != expected:
            raise SystemExit(f"{runner.name} left a dataset of version {info['codebase_version']}")


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
        kit.run_quietly(["sync", "-f", str(folder)])
        state = os.statvfs(folder)
        seen.append((state.f_blocks - state.f_bfree) * state.f_frsize)
    return seen[-1]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return how many times as fast as the reference runners are, and how many times a copy."""
    return kit.table(rows, faster={"reference / it": REFERENCE}, slower={"it / `cp -r`": COPY})


def bench_profile(
    profile: str, scratch: Path, options: argparse.Namespace, arguments: Sequence[str]
) -> None:
    """Generate one profile, run everything on it, write the log and print the table."""
    bench = Bench(scratch, scratch / "source", options.sync)
    kit.make_profile(profile, bench.source, options.episodes)
    shape = kit.dataset_shape(bench.source, profile)
    first = kit.header("bench.py convert", arguments, scratch, shape, synced=options.sync)
    print(f"{profile}: {shape['bytes'] / 1e6:.0f} MB on {first['file_system']}", flush=True)
    runners = grid_runners() if options.grid else RUNNERS
    runners = LAYOUT_RUNNERS if options.layouts else runners
    if options.runners:
        runners = tuple(runner for runner in runners if runner.name in options.runners)
    runners = tuple(kit.of_trees(runners, options.trees, {REFERENCE, COPY}))
    first["trees"] = [kit.commit(tree) for tree in options.trees]
    needed = shape["bytes"] * (3 if any(r.name == REFERENCE for r in runners) else 2)
    if shutil.disk_usage(scratch).free < needed:
        raise SystemExit(f"{options.scratch} has less than {needed / 1e9:.1f} GB left")
    kind = ("grid",) if options.grid else ("layouts",) if options.layouts else ()
    log = kit.new_log(options.log_dir, first, profile, first["file_system"], *kind)
    rows = kit.rows_in_turns(log, first, runners, options.repeats, bench.run)
    print(f"{profile}\n{table(rows)}\n", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("profiles", nargs="+", choices=kit.PROFILE_NAMES)
    parser.add_argument("--grid", action="store_true", help="batch sizes against workers instead")
    parser.add_argument("--layouts", action="store_true", help="one runner a layout instead")
    parser.add_argument("--runners", nargs="+", metavar="NAME", help="only these, by name")
    parser.add_argument("--sync", action="store_true", help="time `sync -f` too, count new space")
    parser.add_argument("--episodes", type=int, help="fewer episodes than the profile's, to try")
    kit.add_trees(parser)
    options = parser.parse_args(arguments)
    for profile in options.profiles:
        with kit.scratch_folder(options.scratch, "bench") as scratch:
            bench_profile(profile, scratch, options, arguments)
    return 0
