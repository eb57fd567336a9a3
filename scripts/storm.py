"""Kills and freezes workers and packers at random: `python scripts/storm.py --kills 1000`.

Each round converts one dataset with four workers and a packer. Processes are killed, or stopped and
continued after a while; new ones take the places of the dead. At the end of a round, when everybody
has ended, the result must have the digest of a quiet conversion, the source must be what it was,
and nothing else may be left beside them. Prints a JSON line a round, with what it ran on first.

`--afterwards` kills conversions, and lets something else happen before they run again: the source
changes, options change, a tree is removed, damaged or moved, another conversion of the same target
runs. `tests.faults.afterwards` says what happens and what must hold.

`--edits` kills merges, splits, trims, repairs, undo and conversions of v3.0 datasets, back to v2.1
in their place too, again and again, until one is left alone; the result must have the quiet run's
bytes.

Processes are forked from one that has the program loaded, so that they die at work and not while
Python starts. `--plain` starts `python -m leconvert` instead, on a platform that offers nothing
beyond POSIX (`tests/plain_platform`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from os import kill
from pathlib import Path
from typing import Any

import leconvert
from benches import kit
from leconvert.model.values import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir.records import RunPaths, WorkDir
from storm_driver import LEASE_SECONDS, Member, Storm, header, rounds_until, tell

sys.path.insert(0, str(kit.REPOSITORY))

from tests.trees import digest_of

LONGEST_STOP_SECONDS = 3 * LEASE_SECONDS
ROUND_SECONDS = 180.0
WORKERS = 4
REFUSED = 12
SMALL_MB = 0.008
KILLS_OF_LINKED_ROUNDS = 20
TOLD = ("kills", "kills_at_work", "kills_of_packers", "stops", "refused")


class ConversionStorm(Storm):
    """The packer and the workers of one conversion.

    Attributes:
        kills_at_work: Killed processes that held a lease or the packer's lock at some time before.
        kills_of_packers: Killed processes that were packers.
        stops: Processes stopped and continued.
        refused: Packers that were refused, since another one packed.

    Args:
        work_dir: A planned work dir.
        chance: Decides who, what and when.
        kills: Kills at most.
        options: The options of the command line.
    """

    def __init__(
        self, work_dir: Path, chance: random.Random, kills: int, options: argparse.Namespace
    ) -> None:
        super().__init__(
            work_dir.parent / "logs",
            chance,
            kills=kills,
            pace_seconds=options.pace,
            most_seconds=ROUND_SECONDS,
            really_exec=options.plain,
        )
        self.kills_at_work = self.kills_of_packers = self.stops = self.refused = 0
        self._work_dir = work_dir
        self._packed = False
        self._settled = False

    def is_over(self) -> bool:
        """Tell whether the packer has packed and everybody else has ended."""
        return self._packed and not self.members

    def may_strike(self) -> bool:
        """Tell whether there is still a packer to harm."""
        return not self._packed

    def fill_up(self) -> None:
        """Have a packer and as many workers as were asked for, until nothing is left for them."""
        if self._packed:
            return
        roles = Counter(member.role for member in self.members.values())
        if not roles["pack"]:
            self._start_packer()
        for _ in range(0 if self._settled else WORKERS - roles["work"]):
            self.start("work", str(self._work_dir), f"--lease-seconds={LEASE_SECONDS}")

    def _start_packer(self) -> None:
        self.start("pack", str(self._work_dir))

    def ended(self, member: Member, code: int) -> bool:
        """Learn how a process ended by itself."""
        if code == 0 and member.role == "pack":
            self._packed = True
            for other in self.members.values():
                other.continues_at = other.continues_at and 0.0
        elif code == 0:
            self._settled = True  # a worker ends when nothing is left for it
        elif code == REFUSED and member.role == "pack":
            self.refused += 1
        else:
            return False
        return True

    def strike(self) -> None:
        """Kill or stop a process, or start a second packer."""
        if self.chance.random() < 0.03:
            self._start_packer()  # it must be refused or do the work
            return
        pid = self._victim()
        if pid is None:
            return
        member = self.members[pid]
        if member.continues_at is None and self.chance.random() < 0.35:
            kill(pid, signal.SIGSTOP)
            member.continues_at = time.monotonic() + self.chance.uniform(0, LONGEST_STOP_SECONDS)
            self.stops += 1
            return
        at_work = pid in self._at_work()
        self.kill(pid)
        self.kills_at_work += at_work
        self.kills_of_packers += member.role == "pack"

    def _victim(self) -> int | None:
        at_work = self._at_work()
        role = "pack" if self._settled or self.chance.random() < 0.12 else "work"
        living = [pid for pid, member in self.members.items() if member.role == role]
        busy = [pid for pid in living if pid in at_work]
        # Mostly who is at work, or nobody yet: a process that only just began has nothing to lose.
        chosen = busy if self.chance.random() < 0.85 else living
        return self.chance.choice(chosen) if chosen else None

    def _at_work(self) -> set[int]:
        run = run_of(self._work_dir)
        found = {
            int(match[1])
            for path in run.workers_dir.iterdir()
            if (match := re.search(r"-([0-9]+)-[0-9a-f]{8}\.", path.name))
        }
        with suppress(OSError, ValueError, KeyError):
            holder = run.packer_lock.with_name(f"{run.packer_lock.name}.holder")
            found.add(int(json.loads(holder.read_bytes())["pid"]))
        return found


def run_of(work_dir: Path) -> RunPaths:
    folder = WorkDir(work_dir)
    run_id = folder.current_run_id()
    assert run_id is not None
    return folder.run(run_id)


def make_source(root: Path, episodes: int) -> Path:
    cameras = tuple(
        CameraSpec(key=f"observation.images.{name}", width=64, height=48) for name in ("a", "b")
    )
    spec = DatasetSpec(
        episodes=episodes, frames=20, cameras=cameras, distinct_clips=4,
        extra_files={"README.md": "# A storm\n"},
    )  # fmt: skip
    return make_dataset(root, spec)


def one_round(
    template: Path,
    digest: str,
    folder: Path,
    options: argparse.Namespace,
    chance: random.Random,
    number: int,
    kills: int,
) -> dict[str, Any]:
    """Convert once under blows; odd rounds beside the source, even ones in its place."""
    in_place = number % 2 == 0
    folder.mkdir()
    source = Path(shutil.copytree(template, folder / "set"))
    before = digest_of(source)
    target = source if in_place else folder / "out"
    work_dir = folder / "work"
    command = [*kit.LECONVERT, "plan", "--root", source, "--work-dir", work_dir]
    if not in_place:
        command += ["--output", target]
    if is_linked(number):
        command += [f"--data-file-size-in-mb={SMALL_MB}", f"--video-file-size-in-mb={SMALL_MB}"]
    else:
        command += ["--episodes-per-batch", "1"]
    kit.run_quietly(command)
    storm = ConversionStorm(work_dir, chance, kills, options)
    storm.rage()
    troubles = [*storm.troubles]
    troubles += problems(folder, target, digest, before, in_place=in_place)
    claims = [path.name for path in run_of(work_dir).leases_dir.glob("*/[0-9]*") if not path.suffix]
    row = {
        "mode": "in-place" if in_place else "output",
        "batches": len(list(run_of(work_dir).leases_dir.iterdir())),
        **{name: getattr(storm, name) for name in TOLD},
        "troubles": troubles,
        "claims": len(claims),
        "take_overs": sum(int(name) > 1 for name in claims),
        "journals": len(list(run_of(work_dir).journal.glob("[0-9]*.json"))),
    }
    shutil.rmtree(folder)
    return row


def problems(
    folder: Path, target: Path, digest: str, before: str, *, in_place: bool
) -> Iterator[str]:
    """Say what is not as it should be at the end of a round."""
    if not target.is_dir() or digest_of(target) != digest:
        yield "the result differs from the quiet run's"
    if digest_of(folder / ("set_old" if in_place else "set")) != before:
        yield "the source is not what it was"
    wanted = {"work", "logs", "set", "set_old" if in_place else "out"}
    if left := sorted({path.name for path in folder.iterdir()} - wanted):
        yield f"left over: {left}"
    if run_of(folder / "work").attempts_dir.exists():
        yield "attempts are left in the work dir"


def is_linked(number: int) -> bool:
    """Say whether a round's batches are whole files, which the packer links; else it joins parts.

    There are few of them, so such a round gets fewer kills: a batch whose workers died ten times is
    set aside.
    """
    return number % 3 == 0


def quiet_digests(template: Path, folder: Path) -> tuple[str, str]:
    """Return the digests of a quiet run with the default limits and with the small ones."""
    leconvert.convert(template, output=folder / "whole")
    leconvert.convert(
        template,
        output=folder / "small",
        layout=LayoutOptions(data_file_size_in_mb=SMALL_MB, video_file_size_in_mb=SMALL_MB),
    )
    return digest_of(folder / "whole"), digest_of(folder / "small")


def storms_afterwards(options: argparse.Namespace, folder: Path) -> int:
    """Kill conversions and let something else happen, until enough were killed."""
    from tests.faults.afterwards import (
        AFTERWARDS,
        CASES_AFTERWARDS,
        CHANGES,
        Datasets,
        after_kills,
    )
    from tests.faults.trials import CASES, Place, in_a_process, make_templates
    from tests.faults.trials import make_source as make_smallest

    cases = [CASES[name] for name in CASES_AFTERWARDS]
    template = make_templates(make_smallest(folder / "template"), cases)
    datasets = Datasets(folder / "datasets", template, CHANGES, other_options=True)
    seconds = []
    for number in range(3):
        began = time.monotonic()
        in_a_process(Place(CASES["in-place"], template, folder / f"quiet-{number}"), None)
        seconds.append(time.monotonic() - began)

    def one_round(chance: random.Random, *_: int) -> Mapping[str, Any] | None:
        case, afterwards = chance.choice(CASES_AFTERWARDS), chance.choice([*AFTERWARDS])
        # A swap is the last thing that happens, so that late kills are the more telling ones.
        kills = [min(seconds) * chance.betavariate(3, 2) for _ in range(chance.randint(1, 4))]
        row = after_kills(CASES[case], kills, afterwards, datasets, template, folder / "round")
        return (
            None
            if row is None
            else {
                "case": case,
                "afterwards": afterwards,
                "kills": row.number,
                "ended": row.ended,
                "troubles": list(row.problems),
            }
        )

    return rounds_until(options.kills, options.seed, one_round)


def storms_over_edits(options: argparse.Namespace, folder: Path) -> int:
    """Kill the commands that edit or begin with v3.0 datasets, until enough were killed."""
    from tests.faults.trials import (
        CASES,
        Case,
        Place,
        Quiet,
        in_a_process,
        kill_trial,
        make_templates,
        quiet_run,
    )
    from tests.faults.trials import make_source as make_smallest

    cases = [
        case
        for case in CASES.values()
        if case.command != "convert" or case.begins_with != "template" or case.has_former
    ]
    template = make_templates(make_smallest(folder / "template"), cases)

    @cache
    def undisturbed(case: Case) -> tuple[Quiet, float]:
        quiet = quiet_run(case, template, folder / f"quiet-{case.name}")
        began = time.monotonic()
        in_a_process(Place(case, template, folder / f"timed-{case.name}"), None)
        return quiet, time.monotonic() - began

    def one_round(chance: random.Random, *_: int) -> Mapping[str, Any]:
        case = chance.choice(cases)
        quiet, most = undisturbed(case)
        kills = [most * chance.betavariate(2, 1.5) for _ in range(chance.randint(1, 6))]
        row = kill_trial(case, quiet, kills, template, folder / "round")
        return {"case": case.name, "kills": row.number, "troubles": list(row.problems)}

    return rounds_until(options.kills, options.seed, one_round)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=1000, help="go on until so many were killed")
    parser.add_argument("--kills-per-round", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--pace", type=float, default=0.03, help="mean seconds between two blows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--afterwards", action="store_true", help="change something after a kill")
    parser.add_argument("--edits", action="store_true", help="kill what edits or begins with v3.0")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    if options.plain:
        site = kit.REPOSITORY / "tests" / "plain_platform" / "python"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *sys.path])
    otherwise = storms_over_edits if options.edits else storms
    storm = storms_afterwards if options.afterwards else otherwise
    with tempfile.TemporaryDirectory(prefix="storm-", dir=options.folder) as name:
        folder = Path(name)
        asked = {"workers": WORKERS, "episodes": options.episodes, "seed": options.seed}
        tell(header("storm.py", arguments, folder, lease_seconds=LEASE_SECONDS, **asked))
        return storm(options, folder)


def storms(options: argparse.Namespace, folder: Path) -> int:
    """Kill and stop workers and packers, until enough were killed."""
    template = make_source(folder / "template", options.episodes)
    whole, small = quiet_digests(template, folder)

    def of_number(chance: random.Random, number: int, left: int) -> Mapping[str, Any]:
        kills, digest = min(left, options.kills_per_round), whole
        if is_linked(number):
            digest, kills = small, min(kills, KILLS_OF_LINKED_ROUNDS)
        return one_round(template, digest, folder / f"{number}", options, chance, number, kills)

    return rounds_until(options.kills, options.seed, of_number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
