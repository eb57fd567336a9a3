"""A fleet of made datasets, some broken: its time beside single conversions, and under kills.

`python scripts/storm_fleet.py --datasets 200 --kills 200 --log bench_logs/FILE` makes datasets of
some kinds, breaks 15 % of them in five ways, and

1. converts each by a `leconvert convert -j 2` of its own, and keeps the digests and the seconds;
2. converts all by one `leconvert fleet -j 2`: results must have the same digests, and what is set
   aside must be what single conversions refused, each with a finding or an error that says why;
3. does so again with workers that are killed at random, and replaced, until nothing is left.

Prints a JSON line each, with what it ran on first. `--skip-singles` leaves the seconds of the first
step out: datasets of a kind are alike, so that one of each is converted for its digest.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from leconvert.cli import main as leconvert_main
from leconvert.cli import work  # loaded here, so that a forked process has it
from leconvert.errors import BatchesFailedError
from leconvert.fleet import DatasetState, fleet_status
from leconvert.testing import CameraSpec, DatasetSpec, edit_table, make_dataset, with_column
from storm import digest_of, header, tell

LEASE_SECONDS = 0.5
STORM_SECONDS = 1800.0
_ = work

KINDS = (
    DatasetSpec(episodes=3, frames=20, cameras=()),
    DatasetSpec(episodes=5, frames=30, cameras=(CameraSpec(width=64, height=48),), seed=1),
    DatasetSpec(episodes=12, frames=15, quantiles=True, seed=2),
    DatasetSpec(episodes=20, frames=25, cameras=(CameraSpec(codec="libsvtav1"),), seed=3),
    DatasetSpec(episodes=6, frames=10, cameras=(), image_keys=("observation.images.png",), seed=4),
    DatasetSpec(episodes=8, frames=40, codebase_version="v2.0", seed=5),
    DatasetSpec(
        episodes=60, frames=20, distinct_clips=4, seed=6,
        cameras=tuple(CameraSpec(key=f"observation.images.{name}") for name in ("a", "b")),
    ),
)  # fmt: skip


def late(root: Path) -> None:
    """Time all frames of an episode late, as by a wall clock."""

    def change(table: pa.Table) -> pa.Table:
        times = [value + 0.011 for value in table["timestamp"].to_pylist()]
        return with_column(table, "timestamp", pa.array(times, pa.float32()))

    edit_table(root, 1, change)


def lacking(root: Path) -> None:
    """Remove an episode's table."""
    (root / "data/chunk-000/episode_000001.parquet").unlink()


def torn(root: Path) -> None:
    """Cut an episode's table off."""
    path = root / "data/chunk-000/episode_000000.parquet"
    path.write_bytes(path.read_bytes()[:200])


def no_info(root: Path) -> None:
    """Cut ``info.json`` off."""
    (root / "meta/info.json").write_text("{")


def pointers(root: Path) -> None:
    """Leave Git LFS pointers in place of tables."""
    said = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"
    for path in root.rglob("*.parquet"):
        path.write_text(said)


DEFECTS: tuple[Callable[[Path], None], ...] = (late, lacking, torn, no_info, pointers)


def make_all(folder: Path, number: int, seed: int) -> dict[str, str]:
    """Make the datasets; return the kind of each by its name."""
    for kind, spec in enumerate(KINDS):
        make_dataset(folder / "kinds" / str(kind), spec)
    chance = random.Random(seed)
    kinds = {}
    for n in range(number):
        kind = chance.choices(range(len(KINDS)), [6, 6, 4, 2, 3, 3, 1])[0]
        defect = DEFECTS[n // 7 % len(DEFECTS)] if n % 20 in {3, 10, 17} else None
        root = folder / "in" / f"lab{n % 9}" / f"set_{n:05d}"
        shutil.copytree(folder / "kinds" / str(kind), root)
        if defect is not None:
            defect(root)
        said = "whole" if defect is None else defect.__name__
        kinds[f"lab{n % 9}/{root.name}"] = f"{kind} {said}"
    return kinds


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def converted_alone(
    folder: Path, kinds: Mapping[str, str], *, one_of_a_kind: bool
) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Convert each by a command of its own; return each result's digest, None where refused."""
    known: dict[str, str | None] = {}
    found: dict[str, str | None] = {}
    seconds, cpu, commands = 0.0, cpu_seconds(), 0
    for name, kind in kinds.items():
        if one_of_a_kind and kind in known:
            found[name] = known[kind]
            continue
        target = folder / "alone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "leconvert", "convert", folder / "in" / name, target]
        began = time.monotonic()
        done = subprocess.run(
            list(map(str, [*command, "-j", 2, "-q"])), capture_output=True, check=False
        )
        seconds += time.monotonic() - began
        commands += 1
        found[name] = known[kind] = digest_of(target) if done.returncode == 0 else None
        shutil.rmtree(target, ignore_errors=True)
    told = {"step": "alone", "commands": commands, "seconds": round(seconds, 1)}
    return found, {**told, "cpu_seconds": round(cpu_seconds() - cpu, 1)}


def problems(folder: Path, wanted: Mapping[str, str | None], name: str) -> tuple[list[str], int]:
    """Say what is not as single conversions left it, and how many were set aside."""
    found, aside = [], 0
    for one in fleet_status(folder / f"work-{name}").datasets:
        digest = wanted[one.name]
        if digest is None:
            aside += 1
            if one.state is not DatasetState.SET_ASIDE:
                found.append(f"{one.name} is {one.state}, and a single conversion is refused")
            elif not one.message or one.error == "LeconvertError":
                found.append(f"{one.name} does not say why: {one.error} {one.message}")
        elif one.state is DatasetState.SET_ASIDE:
            found.append(f"{one.name} is set aside: {one.message}")
        elif digest_of(Path(one.target)) != digest:
            found.append(f"{one.name} differs from a single conversion")
    left = (folder / f"out-{name}").rglob(".*")
    return found + [f"left over: {path}" for path in left], aside


def fleet_words(folder: Path, name: str) -> list[str]:
    return [
        *("fleet", str(folder / "list.txt"), "-o", str(folder / f"out-{name}")),
        *("--work-dir", str(folder / f"work-{name}"), "-q"),
        f"--lease-seconds={LEASE_SECONDS}",
    ]


def whole_fleet(folder: Path, wanted: Mapping[str, str | None]) -> dict[str, Any]:
    began, cpu = time.monotonic(), cpu_seconds()
    command = [sys.executable, "-m", "leconvert", *fleet_words(folder, "quiet"), "-j", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, used = time.monotonic() - began, cpu_seconds() - cpu
    found, aside = problems(folder, wanted, "quiet")
    if done.returncode not in (0, BatchesFailedError.exit_code):
        found.append(f"code {done.returncode}: {done.stderr[-300:]}")
    return {
        "step": "fleet",
        "seconds": round(seconds, 1),
        "cpu_seconds": round(used, 1),
        "set_aside": aside,
        "problems": found,
    }


def stormy_fleet(
    folder: Path, wanted: Mapping[str, str | None], options: argparse.Namespace
) -> dict[str, Any]:
    """Kill workers until enough were killed and nothing is left to do."""
    began, chance = time.monotonic(), random.Random(options.seed)
    words = fleet_words(folder, "storm")
    # Begins the fleet, and ends at once.
    fleet = _forked([*words, "--max-workers", "1"])
    while not (folder / "work-storm/current").exists():
        time.sleep(0.01)
    members, kills, next_kill = [fleet], 0, time.monotonic()
    codes: list[int] = []
    while time.monotonic() - began < STORM_SECONDS:
        for pid in list(members):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                members.remove(pid)
                codes.append(os.waitstatus_to_exitcode(status))
        if any(code in (0, BatchesFailedError.exit_code) for code in codes):
            break  # a worker ends when nothing is left
        while len(members) < options.workers:
            arguments = [str(folder / "work-storm"), f"--lease-seconds={LEASE_SECONDS}", "-q"]
            members.append(_forked(["work", *arguments]))
        if kills < options.kills and time.monotonic() >= next_kill:
            os.kill(chance.choice(members), signal.SIGKILL)
            kills += 1
            next_kill = time.monotonic() + chance.expovariate(1 / options.pace)
        time.sleep(0.005)  # until a kill is due, or a worker has ended
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    found, aside = problems(folder, wanted, "storm")
    found += [f"a worker ended with {c}" for c in codes if c not in (0, 8, -signal.SIGKILL)]
    return {
        "step": "storm",
        "seconds": round(time.monotonic() - began, 1),
        "kills": kills,
        "workers": options.workers,
        "set_aside": aside,
        "problems": found,
    }


def _forked(arguments: Sequence[str]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            code = leconvert_main(list(arguments))
        finally:
            os._exit(code)
    return pid


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="convert a fleet, quietly and under kills")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.3, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-singles", action="store_true", dest="one_of_a_kind")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="leconvert-fleet-") as name:
        folder = Path(name)
        options.episodes = sum(spec.episodes for spec in KINDS)  # of the kinds, for the head
        head = header(options, arguments, folder)
        head["command"] = head["command"].replace("storm.py", Path(__file__).name)
        tell({**head, "format": "leconvert-storm-fleet", "load": os.getloadavg()}, options.log)
        kinds = make_all(folder, options.datasets, options.seed)
        lines = [f"in/{name} --name {name}\n" for name in kinds]
        (folder / "list.txt").write_text("".join(lines))
        wanted, told = converted_alone(folder, kinds, one_of_a_kind=options.one_of_a_kind)
        told["refused"] = sum(digest is None for digest in wanted.values())
        rows = [told, whole_fleet(folder, wanted)]
        tell({**rows[0], "datasets": len(kinds)}, options.log)
        tell({**rows[1], "load": os.getloadavg()}, options.log)
        if options.kills:
            rows.append(stormy_fleet(folder, wanted, options))
            tell(rows[2], options.log)
    return 1 if any(row.get("problems") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
