"""Kill and freeze processes of leconvert at random, and see that nothing is lost.

    python scripts/storm.py --kills 1000
    python scripts/storm.py afterwards --kills 200
    python scripts/storm.py edits --kills 300
    python scripts/storm.py fleet --datasets 1000 --kills 200

- *conversions*: each round converts one dataset with four workers and a packer. Processes are
  killed, or stopped and continued after a while; new ones take their places. Then the result must
  have the digest of a quiet conversion, the source must be as before, and nothing else may be left.
- *afterwards*: a conversion is killed, and something else happens before it runs again: the source
  or the options change, a tree is removed, damaged or moved, another conversion of the same target
  runs. `tests.faults.afterwards` says what happens and what must hold.
- *edits*: merges, splits, trims, repairs, undo and conversions of v3.0 datasets are killed again
  and again, until one is left alone; the result must have the quiet run's bytes.
- *fleet*: see `Fleet`.

It prints a JSON line a step. Processes are forked from this one, which has the program loaded, so
that they die at work and not while Python starts. ``--plain`` starts ``python -m leconvert``
instead, on a platform that offers nothing beyond POSIX (`tests/plain_platform`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import leconvert
from benches import kit
from leconvert.cli import main as leconvert_main
from leconvert.cli import work  # loaded here, so that a forked process has it
from leconvert.fleet import DatasetState, clean_fleet
from leconvert.fleet import status as fleet_status
from leconvert.model.values import LayoutOptions
from leconvert.run.worker import ShardWriter
from leconvert.support.errors import BatchesFailedError, BusyError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir.records import RunPaths, WorkDir

sys.path.insert(0, str(kit.REPOSITORY))

from tests.collection import KINDS
from tests.faults import afterwards as scenes
from tests.faults import trials
from tests.trees import digest_of

_ = work
type Row = Mapping[str, Any]

LEASE_SECONDS = 0.5
LONGEST_STOP_SECONDS = 3 * LEASE_SECONDS
WORKERS = 4
SMALL_MB = 0.008
KILLS_OF_LINKED_ROUNDS = 20


@dataclass
class Member:
    """One process: its command, its log, and when it is continued if it is stopped."""

    role: str
    log: Path
    continues_at: float | None = None


class Storm:
    """Processes that are killed and replaced until their work is done.

    Attributes:
        members: The living processes by their ids.
        kills: Processes killed.
        stops: Processes stopped and continued.
        troubles: Events that should not have happened.
    """

    seconds = 180.0  # after which a storm is given up
    ending = signal.SIGKILL  # ends the members that are left

    def __init__(self, work_dir: Path, chance: random.Random, options: argparse.Namespace) -> None:
        self.work_dir, self.chance, self.options = work_dir, chance, options
        self.logs = work_dir.parent / "logs"
        self.logs.mkdir(exist_ok=True)
        self.members: dict[int, Member] = {}
        self.kills = self.stops = 0
        self.troubles: list[str] = []

    def is_over(self) -> bool:
        """Tell whether the work is done."""
        raise NotImplementedError

    def fill_up(self) -> None:
        """Start processes in the places of the dead."""
        raise NotImplementedError

    def strike(self) -> None:
        """Do harm to one process."""
        raise NotImplementedError

    def ended(self, member: Member, code: int) -> bool:
        """Learn how a process ended by itself; tell whether it may end like that."""
        raise NotImplementedError

    def rage(self, kills: int) -> None:
        """Strike so often at most, until the work is done; no process outlives this."""
        next_blow = time.monotonic()
        deadline = next_blow + self.seconds
        try:
            while not self._reaped().is_over():
                now = time.monotonic()
                if now > deadline:
                    self.troubles.append(f"no end after {self.seconds:.0f} s: {self.members}")
                    break
                self.fill_up()
                for pid, member in self.members.items():
                    if member.continues_at is not None and now >= member.continues_at:
                        member.continues_at = None
                        os.kill(pid, signal.SIGCONT)
                if self.kills < kills and now >= next_blow:
                    self.strike()
                    next_blow = now + self.chance.expovariate(1 / self.options.pace)
                # Until the next blow, or a death: nothing tells of both.
                time.sleep(0.002)
        finally:
            # In sessions of their own no Ctrl-C reaches them, and some of them are stopped.
            for pid in self.members:
                os.kill(pid, self.ending)
                os.waitpid(pid, 0)

    def start(self, role: str, *arguments: str, before: Callable[[], object] | None = None) -> int:
        """Start ``leconvert ROLE ARGUMENTS``, after a call in its process; return its id."""
        log = self.logs / f"{role}-{time.monotonic_ns()}.log"
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setsid()
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                os.dup2(output, 1)
                os.dup2(output, 2)
                if self.options.plain:
                    os.execv(kit.LECONVERT[0], [*kit.LECONVERT, role, *arguments])
                if before is not None:
                    before()
                code = leconvert_main([role, *arguments])
                sys.stderr.flush()
            finally:
                os._exit(code)
        self.members[pid] = Member(role, log)
        return pid

    def start_worker(self, before: Callable[[], object] | None = None) -> int:
        """Start a worker, after a call in its process; return its id."""
        options = f"--lease-seconds={LEASE_SECONDS}", "-q"
        return self.start("work", str(self.work_dir), *options, before=before)

    def kill(self, pid: int) -> None:
        """Kill a process; it is gone at the next look."""
        os.kill(pid, signal.SIGKILL)
        self.kills += 1

    def stop(self, pid: int, seconds: float) -> None:
        """Stop a process for some seconds, unless it ends before."""
        os.kill(pid, signal.SIGSTOP)
        self.members[pid].continues_at = time.monotonic() + seconds
        self.stops += 1

    def _wake_all(self) -> None:
        for member in self.members.values():
            member.continues_at = member.continues_at and 0.0

    def _reaped(self) -> Storm:
        for pid in list(self.members):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            member = self.members.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code != -signal.SIGKILL and not self.ended(member, code):
                said = member.log.read_text(errors="replace").strip()
                self.troubles.append(f"{member.role} ended with {code}: {said[-600:]}")
        return self


class ConversionStorm(Storm):
    """The packer and the workers of one conversion.

    Attributes:
        kills_at_work: Killed processes that held a lease or the packer's lock at some time before.
        kills_of_packers: Killed processes that were packers.
    """

    kills_at_work = kills_of_packers = 0
    _is_packed = _is_settled = False

    def is_over(self) -> bool:
        """Tell whether the packer has packed and everybody else has ended."""
        return self._is_packed and not self.members

    def fill_up(self) -> None:
        """Have a packer and all workers, until nothing is left for them.

        The first worker stands still with a batch until the result is in place, so that a batch is
        taken over in each round, however fast or slow the machine is.
        """
        if not self._is_begun():
            if not self.members:
                self.start_worker(before=stand_still_with_a_batch)
            [pid] = self.members
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
                self.members[pid].continues_at = math.inf
                self.stops = 1
            return
        roles = Counter(member.role for member in self.members.values())
        if not self._is_packed and not roles["pack"]:
            self.start("pack", str(self.work_dir))
        for _ in range(0 if self._is_packed or self._is_settled else WORKERS - roles["work"]):
            self.start_worker()

    def ended(self, member: Member, code: int) -> bool:
        """Learn that a worker found nothing left, or that a packer packed or was refused."""
        if member.role == "pack" and code == BusyError.exit_code:
            return True  # another one packs
        if code == 0 and member.role == "pack":
            self._is_packed = True
            self._wake_all()
        self._is_settled |= code == 0  # a worker ends when nothing is left for it
        return code == 0

    def strike(self) -> None:
        """Kill or stop a process, or start a second packer, which is refused or does the work."""
        if self._is_packed or not self._is_begun():
            return
        if self.chance.random() < 0.03:
            self.start("pack", str(self.work_dir))
            return
        at_work = self._at_work()
        role = "pack" if self._is_settled or self.chance.random() < 0.12 else "work"
        living = [pid for pid, member in self.members.items() if member.role == role]
        # Mostly who is at work, or nobody yet: a process that only just began has nothing to lose.
        if self.chance.random() < 0.85:
            living = [pid for pid in living if pid in at_work]
        if not living:
            return
        pid = self.chance.choice(living)
        member = self.members[pid]
        if member.continues_at is None and self.chance.random() < 0.35:
            self.stop(pid, self.chance.uniform(0, LONGEST_STOP_SECONDS))
            return
        self.kill(pid)
        self.kills_at_work += pid in at_work
        self.kills_of_packers += role == "pack"

    def _is_begun(self) -> bool:
        return self.stops > 0 or self.options.plain

    def _at_work(self) -> set[int]:
        run = run_of(self.work_dir)
        names = [
            re.search(r"-([0-9]+)-[0-9a-f]{8}\.", path.name) for path in run.workers_dir.iterdir()
        ]
        found = {int(name[1]) for name in names if name}
        with suppress(OSError, ValueError, KeyError):
            holder = run.packer_lock.with_name(f"{run.packer_lock.name}.holder")
            found.add(int(json.loads(holder.read_bytes())["pid"]))
        return found


def stand_still_with_a_batch() -> None:
    """Let this process stop itself right before it writes its first shard."""
    write = ShardWriter.write

    def stopping(*arguments: Any, **options: Any) -> Any:
        ShardWriter.write = write  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGSTOP)
        return write(*arguments, **options)

    ShardWriter.write = stopping  # type: ignore[method-assign]


def run_of(work_dir: Path) -> RunPaths:
    """Return the current run of a work dir."""
    folder = WorkDir(work_dir)
    run_id = folder.current_run_id()
    assert run_id is not None
    return folder.run(run_id)


def conversions(options: argparse.Namespace, folder: Path) -> bool:
    """Kill and stop workers and packers, until enough were killed.

    Odd rounds convert beside the source, even ones in its place. In each third round the batches
    are whole files, which the packer links; in the others it joins parts.
    """
    cameras = [
        CameraSpec(key=f"observation.images.{name}", width=64, height=48) for name in ("a", "b")
    ]
    card = {"README.md": "# A storm\n"}
    spec = DatasetSpec(
        episodes=options.episodes, frames=20, cameras=cameras, distinct_clips=4, extra_files=card
    )
    template = make_dataset(folder / "template", spec)
    small = LayoutOptions(data_file_size_in_mb=SMALL_MB, video_file_size_in_mb=SMALL_MB)
    digests = [
        digest_of(leconvert.convert(template, output=folder / f"quiet-{n}", layout=layout).output)
        for n, layout in enumerate((LayoutOptions(), small))
    ]

    def one_round(chance: random.Random, number: int, left: int) -> Row:
        in_place, is_linked = number % 2 == 0, number % 3 == 0
        place = folder / str(number)
        source = Path(shutil.copytree(template, place / "set"))
        before = digest_of(source)
        target, work_dir = source if in_place else place / "out", place / "work"
        command = [*kit.LECONVERT, "plan", "--root", source, "--work-dir", work_dir]
        command += [] if in_place else ["--output", target]
        command += (
            [f"--data-file-size-in-mb={SMALL_MB}", f"--video-file-size-in-mb={SMALL_MB}"]
            if is_linked
            else ["--episodes-per-batch=1"]
        )
        kit.run_quietly(command)
        storm = ConversionStorm(work_dir, chance, options)
        # A batch whose workers died ten times is set aside, and linked rounds have few batches.
        most = KILLS_OF_LINKED_ROUNDS if is_linked else options.kills_per_round
        storm.rage(min(left, most, options.kills_per_round))
        run = run_of(work_dir)
        left_over = {path.name for path in place.iterdir()}
        left_over -= {"work", "logs", "set", "set_old" if in_place else "out"}
        problems = {
            "the result differs from the quiet run's": (
                not target.is_dir() or digest_of(target) != digests[is_linked]
            ),
            "the source is not what it was": (
                digest_of(place / ("set_old" if in_place else "set")) != before
            ),
            f"left over: {sorted(left_over)}": bool(left_over),
            "attempts are left in the work dir": run.attempts_dir.exists(),
        }
        claims = [path.name for path in run.leases_dir.glob("*/[0-9]*") if not path.suffix]
        row = {
            "mode": "in-place" if in_place else "output",
            "kills": storm.kills,
            "kills_at_work": storm.kills_at_work,
            "kills_of_packers": storm.kills_of_packers,
            "stops": storm.stops,
            "troubles": [*storm.troubles, *(said for said, is_so in problems.items() if is_so)],
            "take_overs": sum(int(name) > 1 for name in claims),
        }
        shutil.rmtree(place)
        return row

    return rounds_until(options, one_round)


def afterwards(options: argparse.Namespace, folder: Path) -> bool:
    """Kill conversions and let something else happen, until enough were killed."""
    cases = [trials.CASES[name] for name in scenes.CASES_AFTERWARDS]
    template = trials.make_templates(trials.make_source(folder / "template"), cases)
    datasets = scenes.Datasets(folder / "datasets", template, scenes.CHANGES, other_options=True)
    case = trials.CASES["in-place"]
    most = min(
        seconds_of(trials.Place(case, template, folder / f"quiet-{number}")) for number in range(3)
    )

    def one_round(chance: random.Random, *_: int) -> Row | None:
        case, then = chance.choice(scenes.CASES_AFTERWARDS), chance.choice([*scenes.AFTERWARDS])
        # A swap is the last thing that happens, so that late kills are the more telling ones.
        kills = [most * chance.betavariate(3, 2) for _ in range(chance.randint(1, 4))]
        row = scenes.after_kills(
            trials.CASES[case], kills, then, datasets, template, folder / "round"
        )
        if row is None:
            return None
        about = {"case": case, "afterwards": then, "kills": row.number, "ended": row.ended}
        return {**about, "troubles": list(row.problems)}

    return rounds_until(options, one_round)


def edits(options: argparse.Namespace, folder: Path) -> bool:
    """Kill the commands that edit or begin with v3.0 datasets, until enough were killed."""
    cases = [
        case
        for case in trials.CASES.values()
        if case.command != "convert" or case.begins_with != "template" or case.has_former
    ]
    template = trials.make_templates(trials.make_source(folder / "template"), cases)

    @cache
    def undisturbed(case: trials.Case) -> tuple[trials.Quiet, float]:
        quiet = trials.quiet_run(case, template, folder / f"quiet-{case.name}")
        return quiet, seconds_of(trials.Place(case, template, folder / f"timed-{case.name}"))

    def one_round(chance: random.Random, *_: int) -> Row:
        case = chance.choice(cases)
        quiet, most = undisturbed(case)
        kills = [most * chance.betavariate(2, 1.5) for _ in range(chance.randint(1, 6))]
        row = trials.kill_trial(case, quiet, kills, template, folder / "round")
        return {"case": case.name, "kills": row.number, "troubles": list(row.problems)}

    return rounds_until(options, one_round)


def seconds_of(place: trials.Place) -> float:
    """Return the seconds that a command takes."""
    began = time.monotonic()
    trials.in_a_process(place, None)
    return time.monotonic() - began


def rounds_until(
    options: argparse.Namespace, one_round: Callable[[random.Random, int, int], Row | None]
) -> bool:
    """Let rounds follow each other until enough were killed; tell each, and return if one was bad.

    A round takes its chance, its number from 1, and the kills that are left. It returns a row with
    its ``kills`` and ``troubles``, whose numbers are added up; None if nothing was to do.
    """
    totals: Counter[str] = Counter()
    while totals["kills"] < options.kills:
        began = time.monotonic()
        totals["rounds"] += 1
        number = totals["rounds"]
        chance = random.Random(f"{options.seed}/{number}")
        row = one_round(chance, number, options.kills - totals["kills"])
        if row is None:
            totals["nothing_to_do"] += 1
            continue
        totals.update({name: count for name, count in row.items() if isinstance(count, int)})
        totals["bad_rounds"] += bool(row["troubles"])
        seconds, is_good = round(time.monotonic() - began, 2), not row["troubles"]
        tell({"round": number, **row, "seconds": seconds, "ok": is_good})
    tell(dict(totals))
    return bool(totals["bad_rounds"])


class FleetStorm(Storm):
    """A fleet whose workers are killed and replaced until one finds that nothing is left.

    The command line of the fleet is the first worker. Some holders of a dataset stand still until
    others may take over; all that live at the end must end by themselves.
    """

    seconds, ending = 1800.0, signal.SIGTERM
    workers = 3

    def __init__(
        self,
        words: Sequence[str],
        work_dir: Path,
        chance: random.Random,
        options: argparse.Namespace,
    ) -> None:
        super().__init__(work_dir, chance, options)
        self._words = words
        self._has_begun = self._is_done = False

    def is_over(self) -> bool:
        """Tell whether a worker found that nothing is left, and everybody else has ended."""
        return self._is_done and not self.members

    def fill_up(self) -> None:
        """Begin the fleet, and wait until workers may join it; then have as many as were asked."""
        if not self._has_begun:
            self._has_begun = True
            folder = WorkDir(self.work_dir)
            before = folder.current_run_id()
            fleet = self.start(*self._words, "--max-workers", "1")
            while folder.current_run_id() == before:
                if os.waitpid(fleet, os.WNOHANG)[0]:
                    self.members.clear()
                    raise SystemExit(f"the fleet could not be begun: {' '.join(self._words)}")
                time.sleep(0.01)  # the fleet's process writes a file, and nothing tells when
        while not self._is_done and len(self.members) < self.workers:
            self.start_worker()

    def strike(self) -> None:
        """Kill a process, or stop the holder of a dataset for longer than its lease."""
        if self._is_done:
            return
        living = [pid for pid, member in self.members.items() if member.continues_at is None]
        holding = sorted(self._holders().intersection(living))
        if holding and self.chance.random() < 0.35:
            seconds = self.chance.uniform(LEASE_SECONDS, LONGEST_STOP_SECONDS)
            self.stop(self.chance.choice(holding), seconds)
        elif living:
            self.kill(self.chance.choice(living))

    def ended(self, member: Member, code: int) -> bool:  # noqa: ARG002 - any may find it
        """Learn that a worker ended, which it does when nothing is left."""
        is_good = code in (0, BatchesFailedError.exit_code)
        if is_good:
            self._is_done = True
            self._wake_all()
        return is_good

    def _holders(self) -> set[int]:
        """Return who claimed last a dataset that is not done."""
        run = run_of(self.work_dir)
        done = {path.stem for path in run.done_dir.iterdir()}
        found = set()
        for folder in run.leases_dir.iterdir():
            claims = [path for path in folder.glob("[0-9]*") if not path.suffix]
            if folder.name not in done and claims:
                found.add(int(json.loads(max(claims).read_bytes())["pid"]))
        return found


POLICIES = ("", '[[rule]]\nfindings = "timestamps"\nflags = "--retime"\n')
SOUND = [name for name in KINDS if name.startswith("sound")]
UNSOUND = [name for name in KINDS if not name.startswith("sound")]


class Fleet:
    """Made datasets of the kinds of `tests.collection`, 15 % of them unsound, and given ones.

    1. One of each kind is converted by a `leconvert convert -j 2` of its own, for the digest and
       the seconds.
    2. One `leconvert fleet -j 2` converts all: results must have the same digests, and what is set
       aside must be what single conversions refused, each with a finding or an error that says why.
    3. The same happens with workers that are killed at random, and replaced, until nothing is left.
    4. ``--rounds`` times a user changes some results (a card, a key, a file), puts datasets beside
       them whose names look like those of what fleets put aside, and replaces some sources; then
       the fleet runs under kills, with another list and another policy. **No tree may be lost**:
       each that stood below the results' folder still stands there, under its name or as a former
       state.

    Attributes:
        kinds: The kind of each dataset by its name.
        wanted: By the same names the digest that a single conversion gives; None if it is refused.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.out = folder / "out-storm"
        self.kinds: dict[str, str] = {}
        self.digests: dict[str, str | None] = {}
        chance = random.Random(options.seed)
        real = sorted(options.recordings.iterdir()) if options.recordings else []
        for n in range(options.datasets):
            kind = chance.choice(SOUND)
            if n % 20 in {3, 10, 17}:
                kind = UNSOUND[(n // 20 * 3 + n % 20 // 7) % len(UNSOUND)]
            given = real[n] if n < min(len(real), options.datasets // 20) else None
            name = f"lab{n % 9}/set_{n:05d}"
            shutil.copytree(given or self.made(kind), folder / "in" / name)
            self.kinds[name] = given.name if given else kind
        self.write_list(self.kinds)

    def made(self, kind: str) -> Path:
        """Return a dataset of a kind, to be copied."""
        root = self.folder / "kinds" / str([*KINDS].index(kind))
        if not root.exists():
            KINDS[kind](root, random.Random(kind))
        return root

    def write_list(self, names: Sequence[str] | Mapping[str, str]) -> None:
        """Write the fleet's list."""
        lines = [f"in/{name} --name {name}\n" for name in names]
        (self.folder / "list.txt").write_text("".join(lines))

    def words(self, name: str, *more: str) -> list[str]:
        """Return the command line of a fleet without the program."""
        folder = self.folder
        return [
            *("fleet", str(folder / "list.txt"), "-o", str(folder / f"out-{name}")),
            *("--work-dir", str(folder / f"work-{name}"), "-q"),
            *(f"--lease-seconds={LEASE_SECONDS}", *more),
        ]

    def alone(self) -> Row:
        """Convert one dataset of each kind by a command of its own."""
        took = {}
        for name, kind in self.kinds.items():
            if kind in took:
                continue
            target = self.folder / "alone"
            command = [*kit.LECONVERT, "convert", str(self.folder / "in" / name), str(target)]
            began = time.monotonic()
            done = subprocess.run([*command, "-j2", "-q"], capture_output=True, check=False)
            took[kind] = time.monotonic() - began
            self.digests[kind] = digest_of(target) if done.returncode == 0 else None
            shutil.rmtree(target, ignore_errors=True)
        self.wanted = {name: self.digests[kind] for name, kind in self.kinds.items()}
        return {
            "datasets": len(self.kinds),
            "commands": len(took),
            "seconds_for_all": round(sum(took[kind] for kind in self.kinds.values()), 1),
            "refused": sum(digest is None for digest in self.wanted.values()),
        }

    def quiet(self) -> Row:
        """Convert all by one command."""
        command = [*kit.LECONVERT, *self.words("quiet", "-j", "2")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        facts, problems = self.compared("quiet")
        if done.returncode not in (0, BatchesFailedError.exit_code):
            problems.append(f"code {done.returncode}: {done.stderr[-300:]}")
        for gone in ("out-quiet", "work-quiet"):
            shutil.rmtree(self.folder / gone)
        return {**facts, "problems": problems}

    def storm(self, chance: random.Random, *words: str) -> FleetStorm:
        """Convert all while workers are killed."""
        storm = FleetStorm(
            self.words("storm", *words), self.folder / "work-storm", chance, self.options
        )
        storm.rage(self.options.kills)
        return storm

    def killed(self) -> Row:
        """Kill workers until enough were killed and nothing is left to do."""
        storm = self.storm(random.Random(self.options.seed))
        facts, problems = self.compared("storm")
        about = {"kills": storm.kills, "stops": storm.stops}
        return {**about, **facts, "problems": problems + storm.troubles}

    def compared(self, name: str) -> tuple[dict[str, Any], list[str]]:
        """Return what a fleet set aside, and what is not as single conversions left it."""
        found = []
        status = fleet_status(self.folder / f"work-{name}")
        for one in status.datasets:
            digest, is_aside = self.wanted[one.name], one.state is DatasetState.SET_ASIDE
            if is_aside != (digest is None):
                found.append(f"{one.name} is {one.state}, unlike by itself: {one.message}")
            elif is_aside and (not one.message or one.error == "LeconvertError"):
                found.append(f"{one.name} does not say why: {one.error} {one.message}")
            elif not is_aside and digest_of(Path(one.target)) != digest:
                found.append(f"{one.name} differs from a single conversion")
        found += [f"left over: {path}" for path in (self.folder / f"out-{name}").rglob(".*")]
        return {"set_aside": len(list(status.set_aside))}, found

    def trees(self) -> dict[Path, str]:
        """Return the digest of every dataset below the results' folder, whatever its name."""
        roots = [info.parent.parent for info in sorted(self.out.rglob("meta/info.json"))]
        return {root: digest_of(root) for root in roots}

    def changes(self) -> Row:
        """Change results, sources, list and policy between runs that are killed."""
        whole = sorted(name for name, digest in self.wanted.items() if digest is not None)
        few = max(1, len(whole) // 8)
        hands: dict[Path, str] = {}  # the user's own trees
        found: list[str] = []
        totals: Counter[str] = Counter()
        for number in range(self.options.rounds):
            chance = random.Random(f"{self.options.seed}/{number}")
            self._change_results(chance, whole, few, hands)
            for name in chance.sample(whole, min(2 * few, len(whole))):
                self._replace_source(chance, name)
            names = chance.sample(sorted(self.wanted), max(1, len(self.wanted) * 4 // 5))
            self.write_list(names)
            policy = self.folder / "policy.toml"
            policy.write_text(POLICIES[number // 2 % len(POLICIES)])
            before = self.trees()
            storm = self.storm(chance, "--policy", str(policy))
            after = self.trees()
            # A source and a policy that both changed set a dataset aside (docs/howto/fleet.md).
            aside = {one.name for one in fleet_status(self.folder / "work-storm").set_aside}
            totals += Counter(kills=storm.kills, stops=storm.stops, set_aside=len(aside & {*whole}))
            kept = {*after.values()}
            lost = [f"what was {path} is lost" for path, d in before.items() if d not in kept]
            wrong = [
                f"{name} is not the conversion of its source"
                for name in {*names} & {*whole} - aside
                if self.out / name not in hands and after.get(self.out / name) != self.wanted[name]
            ]
            said = [*lost, *_changed(hands, after), *wrong, *storm.troubles]
            found += [f"round {number}: {each}" for each in said]
        clean_fleet(self.folder / "work-storm")
        found += [f"clean: {each}" for each in _changed(hands, self.trees())]
        return {
            **totals,
            "hands": len(hands),
            "former_states": sum(".former-2" in path.name for path in after),
            "problems": found,
        }

    def _change_results(
        self, chance: random.Random, whole: Sequence[str], few: int, hands: dict[Path, str]
    ) -> None:
        results = [self.out / name for name in whole if (self.out / name).is_dir()]
        for result in chance.sample(results, min(few, len(results))):
            chance.choice((scenes.own_card, scenes.own_key, scenes.own_file))(result)
            hands[result] = digest_of(result)
            for end in ("_old", ".former-mine"):
                own = result.with_name(result.name + end)
                if not own.exists():
                    shutil.copytree(result, own)
                    scenes.own_file(own)
                    hands[own] = digest_of(own)

    def _replace_source(self, chance: random.Random, name: str) -> None:
        others = [kind for kind in SOUND if self.digests.get(kind) not in (None, self.wanted[name])]
        kind = chance.choice(others)
        shutil.rmtree(self.folder / "in" / name)
        shutil.copytree(self.made(kind), self.folder / "in" / name)
        self.wanted[name] = self.digests[kind]


def _changed(hands: Mapping[Path, str], trees: Mapping[Path, str]) -> Iterator[str]:
    for path, digest in hands.items():
        if trees.get(path) != digest:
            yield f"the user's {path} is not what it was"


def fleet(options: argparse.Namespace, folder: Path) -> bool:
    """Convert a fleet quietly and under kills; tell each step, and return if one was bad."""
    of_all = Fleet(options, folder)
    is_bad = False
    for step, is_wanted in (
        (of_all.alone, True),
        (of_all.quiet, True),
        (of_all.killed, options.kills),
        (of_all.changes, options.rounds),
    ):
        if is_wanted:
            began = time.monotonic()
            row = step()
            is_bad |= bool(row.get("problems"))
            seconds = round(time.monotonic() - began, 1)
            tell({"step": step.__name__, "seconds": seconds, **row, "load": os.getloadavg()})
    return is_bad


def tell(row: Row) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)


def main(arguments: Sequence[str]) -> int:
    storms = {each.__name__: each for each in (conversions, afterwards, edits, fleet)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=storms, default="conversions")
    parser.add_argument("--kills", type=int, default=1000, help="go on until so many were killed")
    parser.add_argument("--kills-per-round", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--pace", type=float, help="mean seconds between two blows (0.03; 0.3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--datasets", type=int, default=200, help="of a fleet")
    parser.add_argument("--rounds", type=int, default=4, help="of changes of a fleet")
    parser.add_argument("--recordings", type=Path, help="a folder of further datasets of a fleet")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder} is no folder")
    options.pace = options.pace or (0.3 if options.what == "fleet" else 0.03)
    if options.plain:
        site = kit.REPOSITORY / "tests" / "plain_platform" / "python"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *sys.path])
    with tempfile.TemporaryDirectory(prefix="storm-", dir=options.folder) as name:
        folder = Path(name)
        about = {"format": "leconvert-storm", "version": 1}
        asked = {"lease_seconds": LEASE_SECONDS, "seed": options.seed, "load": os.getloadavg()}
        tell({**about, **kit.machine("storm.py", arguments, folder), **asked})
        return int(storms[options.what](options, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
