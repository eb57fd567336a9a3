"""A fleet of made datasets, some broken: its time beside single conversions, and under kills.

`python scripts/storm_fleet.py --datasets 200 --kills 200 --log bench_logs/FILE` makes datasets of
19 kinds, breaks 15 % of them in the ways of datasets in the wild, adds the datasets of the folder
`--recordings` if that is given, and

1. converts each by a `leconvert convert -j 2` of its own, and keeps the digests and the seconds;
2. converts all by one `leconvert fleet -j 2`: results must have the same digests, and what is set
   aside must be what single conversions refused, each with a finding or an error that says why;
3. does so again with workers that are killed at random, and replaced, until nothing is left;
4. `--rounds` times: lets a user change some results (a card, a key, a file), put datasets beside
   them whose names look like those of what fleets put aside, and replace some sources; then runs
   the fleet under kills, with another list and another policy. **No tree may be lost**: each that
   stood below the results' folder still stands there, under its name or as a former state.

Prints a JSON line each, with what it ran on first. Datasets of a kind are alike, so that
`--alone 1` converts one of each for its digest. `--changes-only` leaves steps 2 and 3 out.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benches import kit
from leconvert import WorkerOptions, convert
from leconvert.fleet import DatasetState, FleetStatus, clean_fleet, fleet_status
from leconvert.support.errors import BatchesFailedError
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)
from leconvert.workdir.records import WorkDir
from storm_driver import LEASE_SECONDS, Member, Storm, digest_of, header, tell

type Facts = dict[str, Any]

STORM_SECONDS = 1800.0


def cameras(*names: str, codec: str = "libx264", **options: Any) -> tuple[CameraSpec, ...]:
    """Return cameras of one codec."""
    keys = [f"observation.images.{name}" for name in names]
    return tuple(CameraSpec(key=key, codec=codec, **options) for key in keys)


SMALL: Facts = {"width": 64, "height": 48}
KINDS = (
    DatasetSpec(episodes=3, frames=20, cameras=()),
    DatasetSpec(episodes=1, frames=7, cameras=cameras("top", **SMALL), seed=1),
    DatasetSpec(episodes=5, frames=30, cameras=cameras("top", **SMALL), seed=2),
    DatasetSpec(episodes=12, frames=15, quantiles=True, seed=3),
    DatasetSpec(episodes=20, frames=25, cameras=cameras("top", codec="libsvtav1"), seed=4),
    DatasetSpec(episodes=6, frames=12, cameras=cameras("top", codec="libx265", **SMALL), seed=5),
    DatasetSpec(episodes=4, frames=9, cameras=cameras("top", codec="mpeg4", **SMALL), seed=6),
    DatasetSpec(episodes=5, frames=10, cameras=cameras("top", codec="libvpx-vp9", **SMALL), seed=7),
    DatasetSpec(episodes=6, frames=10, cameras=(), image_keys=("observation.images.png",), seed=8),
    DatasetSpec(
        episodes=4, frames=8, image_keys=("observation.images.png",), image_size=(32, 32),
        cameras=cameras("top", **SMALL), seed=9,
    ),
    DatasetSpec(episodes=8, frames=40, codebase_version="v2.0", seed=10),
    DatasetSpec(episodes=9, frames=11, codebase_version="v2.0", cameras=(), seed=11),
    DatasetSpec(episodes=60, frames=20, distinct_clips=4, cameras=cameras("a", "b"), seed=12),
    DatasetSpec(
        episodes=120, frames=6, distinct_clips=2, cameras=cameras("a", "b", "c", **SMALL), seed=13
    ),
    DatasetSpec(episodes=300, frames=5, cameras=(), state_dim=14, action_dim=14, seed=14),
    DatasetSpec(episodes=25, frames=8, chunks_size=10, cameras=cameras("top", **SMALL), seed=15),
    DatasetSpec(episodes=6, frames=20, fps="29.97", cameras=cameras("top", **SMALL), seed=16),
    DatasetSpec(
        episodes=7, frames=list(range(5, 40, 5)), state_dim=1, matrix_shape=(3, 2), has_done=True,
        nested_names=True, tasks_per_episode=2, cameras=cameras("top", **SMALL), seed=17,
    ),
    DatasetSpec(episodes=3, frames=50, cameras=cameras("top", gop_size=25), seed=18),
)  # fmt: skip
_WEIGHTS = (9, 9, 9, 6, 3, 5, 5, 5, 5, 5, 4, 6, 1, 1, 2, 4, 6, 6, 6)


def table_of(root: Path) -> Path:
    return root / "data/chunk-000/episode_000000.parquet"


def clips_of(root: Path) -> list[Path]:
    return sorted(root.rglob("*.mp4"))


def cut(path: Path, end: int) -> None:
    """Cut a file off."""
    path.write_bytes(path.read_bytes()[:end])


def late(root: Path) -> None:
    """Time all frames of an episode late, as by a wall clock."""

    def change(table: pa.Table) -> pa.Table:
        times = [value + 0.011 for value in table["timestamp"].to_pylist()]
        return with_column(table, "timestamp", pa.array(times, pa.float32()))

    edit_table(root, 0, change)


def pointers(root: Path) -> None:
    """Leave Git LFS pointers in place of tables."""
    said = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"
    for path in root.rglob("*.parquet"):
        path.write_text(said)


def binary(root: Path) -> None:
    """Store bytes in a column of every table."""
    for path in root.rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(with_column(table, "raw", pa.array([b"\0"] * len(table))), path)
    declare(root, "raw", "binary", 1)


def declare(root: Path, name: str, dtype: str, length: int) -> None:
    """Declare a feature."""
    feature = {"dtype": dtype, "shape": [length], "names": None}
    edit_info(root, lambda info: info["features"].update({name: feature}))


def doubles(root: Path) -> None:
    """Store float64 where ``info.json`` declares float32."""

    def change(table: pa.Table) -> pa.Table:
        values = table["action"].cast(pa.list_(pa.float64()))
        return with_column(table, "action", values)

    edit_table(root, 0, change)


def no_statistics(root: Path) -> None:
    for path in (root / "meta").glob("*stats*"):
        path.unlink()


def elsewhere(root: Path) -> None:
    """Move an episode's files to another chunk than the template says."""
    for path in sorted(root.rglob("episode_000000.*")):
        there = Path(str(path).replace("chunk-000", "chunk-001"))
        there.parent.mkdir(parents=True, exist_ok=True)
        path.rename(there)


DEFECTS: Mapping[str, tuple[int, Callable[[Path], object]]] = {
    "late": (2, late),
    "lacking": (0, lambda root: table_of(root).unlink()),
    "torn": (3, lambda root: cut(table_of(root), 200)),
    "no_info": (0, lambda root: (root / "meta/info.json").write_text("{")),
    "pointers": (8, pointers),
    "no_version": (2, lambda root: edit_info(root, lambda info: info.pop("codebase_version"))),
    "called_v3": (
        5, lambda root: edit_info(root, lambda info: info.update(codebase_version="v3.0"))
    ),
    "no_chunks": (1, lambda root: edit_info(root, lambda info: info.pop("total_chunks"))),
    "undeclared": (
        0,
        lambda root: edit_table(
            root, 0, lambda table: with_column(table, "force", pa.array([0.5] * len(table)))
        ),
    ),
    "phantom": (2, lambda root: declare(root, "observation.phantom", "float32", 2)),
    "binary": (0, binary),
    "doubles": (3, doubles),
    "no_statistics": (2, no_statistics),
    "few_statistics": (
        3, lambda root: edit_lines(root, "episodes_stats", lambda lines: lines.pop())
    ),
    "same_task_twice": (
        0,
        lambda root: edit_lines(
            root, "tasks", lambda lines: lines.append({"task_index": 0, "task": "Else."})
        ),
    ),
    "no_task": (2, lambda root: (root / "meta/tasks.jsonl").unlink()),
    "no_clip": (2, lambda root: clips_of(root)[0].unlink()),
    "torn_clip": (6, lambda root: cut(clips_of(root)[0], -300)),
    "other_clip": (17, lambda root: shutil.copy(clips_of(root)[1], clips_of(root)[0])),
    "wrong_length": (
        0,
        lambda root: edit_lines(
            root, "episodes", lambda lines: lines[0].update(length=lines[0]["length"] + 1)
        ),
    ),
    "stray": (
        2,
        lambda root: shutil.copy(
            table_of(root), table_of(root).with_name("episode_000999.parquet")
        ),
    ),
    "elsewhere": (5, elsewhere),
}  # fmt: skip
"""Faults of datasets in the wild: the kind of the fault, and the function that makes it."""


def made(folder: Path, kind: int) -> Path:
    """Return a dataset of a kind, to be copied."""
    root = folder / "kinds" / str(kind)
    return root if root.exists() else make_dataset(root, KINDS[kind])


def make_all(
    folder: Path, number: int, seed: int, most_kinds: int, recordings: Sequence[Path] = ()
) -> dict[str, str]:
    """Make the datasets; return the kind of each by its name."""
    chance = random.Random(seed)
    kinds = {}
    for n in range(number):
        kind = chance.choices(range(most_kinds), _WEIGHTS[:most_kinds])[0]
        defect, spoil = "whole", None
        if n % 20 in {3, 10, 17}:
            defect = [*DEFECTS][(n // 20 * 3 + n % 20 // 7) % len(DEFECTS)]
            kind, spoil = DEFECTS[defect]
        root = folder / "in" / f"lab{n % 9}" / f"set_{n:05d}"
        real = recordings[n] if n < min(len(recordings), number // 20) else None
        shutil.copytree(real or made(folder, kind), root)
        if spoil is not None and real is None:
            spoil(root)
        kinds[f"lab{n % 9}/{root.name}"] = real.name if real else f"{kind} {defect}"
    return kinds


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def converted_alone(
    folder: Path, kinds: Mapping[str, str], *, of_a_kind: int
) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Convert so many of each kind by a command of its own, all for 0.

    Return the digest that each result must have, None where it must be refused. The seconds of
    those that were not converted are taken to be the mean of their kind.
    """
    known: dict[str, str | None] = {}
    took: dict[str, list[float]] = defaultdict(list)
    cpu = cpu_seconds()
    for name, kind in kinds.items():
        if of_a_kind and len(took[kind]) >= of_a_kind:
            continue
        target = folder / "alone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [*kit.LECONVERT, "convert", folder / "in" / name, target]
        began = time.monotonic()
        done = subprocess.run(
            list(map(str, [*command, "-j", 2, "-q"])), capture_output=True, check=False
        )
        took[kind].append(time.monotonic() - began)
        digest = digest_of(target) if done.returncode == 0 else None
        assert known.setdefault(kind, digest) == digest, f"{name} differs from others of {kind}"
        shutil.rmtree(target, ignore_errors=True)
    of_all = sum(mean(took[kind]) for kind in kinds.values())
    return {name: known[kind] for name, kind in kinds.items()}, {
        "step": "alone",
        "commands": sum(map(len, took.values())),
        "seconds": round(sum(map(sum, took.values())), 1),
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
        "seconds_for_all": round(of_all, 1),
    }


def problems(folder: Path, wanted: Mapping[str, str | None], name: str) -> tuple[list[str], Facts]:
    """Say what is not as single conversions left it, and what was set aside for what reasons."""
    found, aside = [], 0
    status = fleet_status(folder / f"work-{name}")
    for one in status.datasets:
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
    facts = {
        "set_aside": aside,
        "unattended_share": round(1 - aside / len(wanted), 4),
        "why": reasons(status),
    }
    return found + [f"left over: {path}" for path in left], facts


def reasons(status: FleetStatus) -> dict[str, int]:
    """Return how many datasets each code set aside."""
    found: Counter[str] = Counter()
    for code, number, _ in status.why_set_aside():
        found[code] += number
    return dict(found)


def fleet_words(folder: Path, name: str) -> list[str]:
    return [
        *("fleet", str(folder / "list.txt"), "-o", str(folder / f"out-{name}")),
        *("--work-dir", str(folder / f"work-{name}"), "-q"),
        f"--lease-seconds={LEASE_SECONDS}",
    ]


def whole_fleet(folder: Path, wanted: Mapping[str, str | None]) -> dict[str, Any]:
    began, cpu = time.monotonic(), cpu_seconds()
    command = [*kit.LECONVERT, *fleet_words(folder, "quiet"), "-j", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, used = time.monotonic() - began, cpu_seconds() - cpu
    found, facts = problems(folder, wanted, "quiet")
    if done.returncode not in (0, BatchesFailedError.exit_code):
        found.append(f"code {done.returncode}: {done.stderr[-300:]}")
    return {
        "step": "fleet",
        "seconds": round(seconds, 1),
        "cpu_seconds": round(used, 1),
        **facts,
        "problems": found,
    }


def with_policy(folder: Path) -> dict[str, Any]:
    """Convert what was set aside with the policy that the fleet suggests."""
    suggest = [*kit.LECONVERT, "fleet", "suggest", str(folder / "work-quiet")]
    suggested = subprocess.run(suggest, capture_output=True, check=True).stdout
    (folder / "policy.toml").write_bytes(suggested)
    command = [*kit.LECONVERT, *fleet_words(folder, "quiet"), "-j", "2"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--policy", str(folder / "policy.toml")], capture_output=True, check=False
    )
    status = fleet_status(folder / "work-quiet")
    return {
        "step": "policy",
        "seconds": round(time.monotonic() - began, 1),
        "rules": suggested.count(b"[[rule]]"),
        "set_aside": len(status.set_aside),
        "why": reasons(status),
        "problems": [] if done.returncode in (0, 8) else [done.stderr.decode()[-300:]],
    }


def stormy_fleet(
    folder: Path, wanted: Mapping[str, str | None], options: argparse.Namespace
) -> dict[str, Any]:
    """Kill workers until enough were killed and nothing is left to do."""
    began = time.monotonic()
    storm = FleetStorm(folder, fleet_words(folder, "storm"), random.Random(options.seed), options)
    storm.rage()
    found, facts = problems(folder, wanted, "storm")
    found += storm.troubles
    return {
        "step": "storm",
        "seconds": round(time.monotonic() - began, 1),
        "kills": storm.kills,
        "workers": options.workers,
        **facts,
        "problems": found,
    }


class FleetStorm(Storm):
    """A fleet whose workers are killed and replaced until one finds that nothing is left.

    Args:
        folder: Holds the fleet's list and its work dir.
        words: The command line of the fleet.
        chance: Decides who and when.
        options: The options of this script's command line.
    """

    end_signal = signal.SIGTERM

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        chance: random.Random,
        options: argparse.Namespace,
    ) -> None:
        super().__init__(
            folder / "logs",
            chance,
            kills=options.kills,
            pace_seconds=options.pace,
            most_seconds=STORM_SECONDS,
        )
        self._work_dir = WorkDir(folder / "work-storm")
        self._words = words
        self._num_workers = options.workers
        self._done = False

    def begin(self) -> None:
        """Begin the fleet, and wait until workers may join it."""
        before = self._work_dir.current_run_id()
        fleet = self.start(*self._words, "--max-workers", "1")
        while self._work_dir.current_run_id() == before:
            if os.waitpid(fleet, os.WNOHANG)[0]:
                self.members.clear()
                raise SystemExit(f"the fleet could not be begun: {' '.join(self._words)}")
            time.sleep(0.01)  # the fleet's process writes a file, and nothing tells when

    def is_over(self) -> bool:
        """Tell whether a worker found that nothing is left."""
        return self._done

    def fill_up(self) -> None:
        """Have as many workers as were asked for; the fleet's own command is one of them."""
        while len(self.members) < self._num_workers:
            folder, lease = str(self._work_dir.root), f"--lease-seconds={LEASE_SECONDS}"
            self.start("work", folder, lease, "-q")

    def strike(self) -> None:
        """Kill a process."""
        self.kill(self.chance.choice(list(self.members)))

    def ended(self, member: Member, code: int) -> bool:  # noqa: ARG002 - the protocol's
        """Learn that a worker ended, which it does when nothing is left."""
        found_nothing = code in (0, BatchesFailedError.exit_code)
        self._done |= found_nothing
        return found_nothing


def own_card(result: Path) -> None:
    (result / "README.md").write_text("# Of the user's own making\n")


def own_key(result: Path) -> None:
    edit_info(result, lambda info: info.update(license="the user's"))


def own_file(result: Path) -> None:
    (result / "meta/notes.txt").write_text("the user's")


HANDS = (own_card, own_key, own_file)
POLICIES = ("", '[[rule]]\nfindings = "timestamps"\nflags = "--retime"\n')


def trees_below(folder: Path) -> dict[Path, str]:
    """Return the digest of every dataset below a folder, whatever its name."""
    return {
        info.parent.parent: digest_of(info.parent.parent)
        for info in sorted(folder.rglob("meta/info.json"))
    }


def stormy_changes(
    folder: Path, wanted: dict[str, str | None], options: argparse.Namespace
) -> dict[str, Any]:
    """Change results, sources, list and policy between runs that are killed; nothing is lost."""
    began, out = time.monotonic(), folder / "out-storm"
    whole = sorted(name for name, digest in wanted.items() if digest is not None)
    of_kind = {str(kind): digest_of_conversion(folder, kind) for kind in range(options.most_kinds)}
    hands: dict[Path, str] = {}
    found: list[str] = []
    totals: Counter[str] = Counter()
    for number in range(options.rounds):
        chance = random.Random(f"{options.seed}/{number}")
        few = max(1, len(whole) // 8)
        results = [name for name in whole if (out / name).is_dir()]
        for name in chance.sample(results, min(few, len(results))):
            chance.choice(HANDS)(out / name)
            hands[out / name] = digest_of(out / name)
            for own in (out / f"{name}_old", out / f"{name}.former-mine"):
                if not own.exists():
                    shutil.copytree(out / name, own)
                    own_file(own)
                    hands[own] = digest_of(own)
        for name in chance.sample(whole, 2 * few):
            kind = int(
                chance.choice([k for k, made_of in of_kind.items() if made_of != wanted[name]])
            )
            shutil.rmtree(folder / "in" / name)
            shutil.copytree(made(folder, kind), folder / "in" / name)
            wanted[name] = of_kind[str(kind)]
            totals["sources"] += 1
        names = chance.sample(sorted(wanted), max(1, len(wanted) * 4 // 5))
        (folder / "list.txt").write_text("".join(f"in/{n} --name {n}\n" for n in names))
        (folder / "policy.toml").write_text(POLICIES[number // 2 % len(POLICIES)])
        before = trees_below(out) if out.exists() else {}
        words = [*fleet_words(folder, "storm"), "--policy", str(folder / "policy.toml")]
        storm = FleetStorm(folder, words, chance, options)
        storm.rage()
        totals["kills"] += storm.kills
        after = trees_below(out)
        # A source and a policy that both changed set a dataset aside, as docs/howto/fleet.md says.
        aside = {one.name for one in fleet_status(folder / "work-storm").set_aside}
        totals["set_aside"] += len(aside & {*whole})
        lost = [str(path) for path, digest in before.items() if digest not in after.values()]
        found += [f"round {number}: what was {path} is lost" for path in lost]
        found += [
            f"round {number}: the user's {path} is not what it was"
            for path, digest in hands.items()
            if after.get(path) != digest
        ]
        found += [
            f"round {number}: {name} is not the conversion of its source"
            for name in names
            if name in whole
            and name not in aside
            and out / name not in hands
            and after.get(out / name) != wanted[name]
        ]
        found += storm.troubles
    former = sum(".former-2" in path.name for path in after)
    removed = clean_fleet(folder / "work-storm").removed
    after = trees_below(out)
    found += [f"clean: {path} is gone" for path in hands if after.get(path) != hands[path]]
    return {
        "step": "changes",
        "seconds": round(time.monotonic() - began, 1),
        "rounds": options.rounds,
        **totals,
        "hands": len(hands),
        "former_states": former,
        "cleaned": len(removed),
        "problems": found,
    }


def digest_of_conversion(folder: Path, kind: int) -> str:
    target = folder / "of-kind"
    convert(made(folder, kind), output=target, workers=WorkerOptions(max_workers=1))
    digest = digest_of(target)
    shutil.rmtree(target)
    return digest


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="convert a fleet, quietly and under kills")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.3, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", type=int, default=0, help="how many of a kind; default: all")
    parser.add_argument("--rounds", type=int, default=4, help="runs with changes between them")
    parser.add_argument("--most-kinds", type=int, default=len(KINDS), help="the first so many")
    parser.add_argument("--changes-only", action="store_true", help="leave fleets without out")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--recordings", type=Path, help="a folder of further datasets")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="leconvert-fleet-") as name:
        folder = Path(name)
        asked = {"workers": options.workers, "seed": options.seed, "load": os.getloadavg()}
        tell(header("storm_fleet.py", arguments, folder, **asked), options.log)
        real = sorted(options.recordings.iterdir()) if options.recordings else []
        kinds = make_all(folder, options.datasets, options.seed, options.most_kinds, real)
        lines = [f"in/{name} --name {name}\n" for name in kinds]
        (folder / "list.txt").write_text("".join(lines))
        wanted, told = converted_alone(folder, kinds, of_a_kind=options.alone)
        told["refused"] = sum(digest is None for digest in wanted.values())
        rows = [told]
        tell({**told, "datasets": len(kinds)}, options.log)
        if not options.changes_only:
            rows.append(whole_fleet(folder, wanted))
            tell({**rows[-1], "load": os.getloadavg()}, options.log)
            rows.append(with_policy(folder))
            tell(rows[-1], options.log)
            for gone in ("out-quiet", "work-quiet"):
                shutil.rmtree(folder / gone)
            if options.kills:
                rows.append(stormy_fleet(folder, wanted, options))
                tell(rows[-1], options.log)
        if options.rounds:
            rows.append(stormy_changes(folder, wanted, options))
            tell(rows[-1], options.log)
    return 1 if any(row.get("problems") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
