"""A fleet of made datasets, some broken: its time beside single conversions, and under kills.

`python scripts/storm_fleet.py --datasets 200 --kills 200` makes datasets
of the kinds of `tests.collection`, 15 % of them unsound, adds the datasets of the folder
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benches import kit
from leconvert import WorkerOptions, convert
from leconvert.fleet import DatasetState, FleetStatus, clean_fleet
from leconvert.fleet import status as fleet_status
from leconvert.support.errors import BatchesFailedError
from leconvert.testing import edit_info
from leconvert.workdir.records import WorkDir
from storm_driver import LEASE_SECONDS, Member, Storm, header, tell

sys.path.insert(0, str(kit.REPOSITORY))

from tests.collection import KINDS
from tests.trees import digest_of

type Facts = dict[str, Any]

STORM_SECONDS = 1800.0
WORKERS = 3
SOUND = [name for name in KINDS if name.startswith("sound")]
UNSOUND = [name for name in KINDS if not name.startswith("sound")]


def made(folder: Path, kind: str) -> Path:
    """Return a dataset of a kind, to be copied."""
    root = folder / "kinds" / str([*KINDS].index(kind))
    if not root.exists():
        KINDS[kind](root, random.Random(kind))
    return root


def make_all(
    folder: Path, number: int, seed: int, most_kinds: int, recordings: Sequence[Path] = ()
) -> dict[str, str]:
    """Make the datasets; return the kind of each by its name."""
    chance = random.Random(seed)
    kinds = {}
    for n in range(number):
        kind = chance.choice(SOUND[:most_kinds])
        if n % 20 in {3, 10, 17}:
            kind = UNSOUND[(n // 20 * 3 + n % 20 // 7) % len(UNSOUND)]
        root = folder / "in" / f"lab{n % 9}" / f"set_{n:05d}"
        real = recordings[n] if n < min(len(recordings), number // 20) else None
        shutil.copytree(real or made(folder, kind), root)
        kinds[f"lab{n % 9}/{root.name}"] = real.name if real else kind
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
        "workers": WORKERS,
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
        while len(self.members) < WORKERS:
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
    of_kind = {kind: digest_of_conversion(folder, kind) for kind in SOUND[: options.most_kinds]}
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
            kind = chance.choice([k for k, made_of in of_kind.items() if made_of != wanted[name]])
            shutil.rmtree(folder / "in" / name)
            shutil.copytree(made(folder, kind), folder / "in" / name)
            wanted[name] = of_kind[kind]
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


def digest_of_conversion(folder: Path, kind: str) -> str:
    target = folder / "of-kind"
    convert(made(folder, kind), output=target, workers=WorkerOptions(max_workers=1))
    digest = digest_of(target)
    shutil.rmtree(target)
    return digest


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="convert a fleet, quietly and under kills")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0.3, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", type=int, default=0, help="how many of a kind; default: all")
    parser.add_argument("--rounds", type=int, default=4, help="runs with changes between them")
    parser.add_argument("--most-kinds", type=int, default=len(SOUND), help="the first sound ones")
    parser.add_argument("--changes-only", action="store_true", help="leave fleets without out")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--recordings", type=Path, help="a folder of further datasets")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="leconvert-fleet-") as name:
        folder = Path(name)
        asked = {"workers": WORKERS, "seed": options.seed, "load": os.getloadavg()}
        tell(header("storm_fleet.py", arguments, folder, **asked))
        real = sorted(options.recordings.iterdir()) if options.recordings else []
        kinds = make_all(folder, options.datasets, options.seed, options.most_kinds, real)
        lines = [f"in/{name} --name {name}\n" for name in kinds]
        (folder / "list.txt").write_text("".join(lines))
        wanted, told = converted_alone(folder, kinds, of_a_kind=options.alone)
        told["refused"] = sum(digest is None for digest in wanted.values())
        rows = [told]
        tell({**told, "datasets": len(kinds)})
        if not options.changes_only:
            rows.append(whole_fleet(folder, wanted))
            tell({**rows[-1], "load": os.getloadavg()})
            for gone in ("out-quiet", "work-quiet"):
                shutil.rmtree(folder / gone)
            if options.kills:
                rows.append(stormy_fleet(folder, wanted, options))
                tell(rows[-1])
        if options.rounds:
            rows.append(stormy_changes(folder, wanted, options))
            tell(rows[-1])
    return 1 if any(row.get("problems") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
