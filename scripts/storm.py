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
Python starts; `--exec` starts `python -m leconvert` instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import leconvert
from leconvert.cli import main as leconvert_main
from leconvert.cli import pack, work  # loaded here, so that a forked process has them
from leconvert.model.values import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir.records import RunPaths, WorkDir

ROOT = Path(__file__).resolve().parent.parent
LEASE_SECONDS = 0.5
LONGEST_STOP_SECONDS = 3 * LEASE_SECONDS
ROUND_SECONDS = 180.0
REFUSED = 12
SMALL_MB = 0.008
KILLS_OF_LINKED_ROUNDS = 20
_ = (pack, work)


@dataclass
class Member:
    """One process.

    Attributes:
        role: ``work`` or ``pack``.
        log: Where its output goes.
        continues_at: When it is continued, on the monotonic clock; None unless it is stopped.
    """

    role: str
    log: Path
    continues_at: float | None = None


@dataclass
class Tally:
    """What happened in a round.

    Attributes:
        kills: Processes killed.
        kills_at_work: Those of them that held a lease or the packer's lock at some time before.
        kills_of_packers: Those of them that were packers.
        stops: Processes stopped and continued.
        refused: Packers that were refused, since another one packed.
        troubles: What should not have happened.
    """

    kills: int = 0
    kills_at_work: int = 0
    kills_of_packers: int = 0
    stops: int = 0
    refused: int = 0
    troubles: list[str] = field(default_factory=list)


class Storm:
    """The processes of one round.

    Args:
        work_dir: A planned work dir.
        chance: Decides who, what and when.
        kills: Kills at most.
        workers: Workers at a time.
        pace_seconds: Mean time between two blows.
        really_exec: Start Python anew for each process.
    """

    def __init__(
        self,
        work_dir: Path,
        chance: random.Random,
        *,
        kills: int,
        workers: int,
        pace_seconds: float,
        really_exec: bool,
    ) -> None:
        self.tally = Tally()
        self._work_dir = work_dir
        self._chance = chance
        self._kills_left = kills
        self._num_workers = workers
        self._pace_seconds = pace_seconds
        self._really_exec = really_exec
        self._members: dict[int, Member] = {}
        self._logs = work_dir.parent / "logs"
        self._logs.mkdir()
        self._packed = False
        self._settled = False

    def rage(self) -> None:
        """Run until the packer has packed and everybody else has ended; nobody outlives it."""
        try:
            self._blow()
        finally:
            # In sessions of their own no Ctrl-C reaches them, and some of them are stopped.
            for pid in self._members:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _blow(self) -> None:
        deadline = time.monotonic() + ROUND_SECONDS
        next_blow = time.monotonic()
        while not self._packed or self._members:
            now = time.monotonic()
            if now > deadline:
                self.tally.troubles.append(f"no end after {ROUND_SECONDS:.0f} s: {self._members}")
                break
            self._reap()
            if not self._packed:
                self._fill_up()
            self._continue_those_due(now)
            if self._kills_left and not self._packed and now >= next_blow:
                self._strike()
                next_blow = now + self._chance.expovariate(1 / self._pace_seconds)
            # Until the next blow, or a death: processes of other kinds end, and nothing else tells.
            time.sleep(0.002)

    def _fill_up(self) -> None:
        roles = Counter(member.role for member in self._members.values())
        if not roles["pack"]:
            self._start("pack")
        for _ in range(0 if self._settled else self._num_workers - roles["work"]):
            self._start("work")

    def _start(self, role: str) -> None:
        log = self._logs / f"{role}-{time.monotonic_ns()}.log"
        arguments = [role, str(self._work_dir)]
        if role == "work":
            arguments.append(f"--lease-seconds={LEASE_SECONDS}")
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setsid()
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                os.dup2(output, 1)
                os.dup2(output, 2)
                if self._really_exec:
                    os.execv(sys.executable, [sys.executable, "-m", "leconvert", *arguments])
                code = leconvert_main(arguments)
                sys.stderr.flush()
            finally:
                os._exit(code)
        self._members[pid] = Member(role, log)

    def _reap(self) -> None:
        for pid in list(self._members):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            member = self._members.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == 0 and member.role == "pack":
                self._packed = True
                for other in self._members.values():
                    other.continues_at = other.continues_at and 0.0
            elif code == 0:
                self._settled = True  # a worker ends when nothing is left for it
            elif code == REFUSED and member.role == "pack":
                self.tally.refused += 1
            elif code != -signal.SIGKILL:
                said = member.log.read_text(errors="replace").strip()
                self.tally.troubles.append(f"{member.role} ended with {code}: {said[-600:]}")

    def _continue_those_due(self, now: float) -> None:
        for pid, member in self._members.items():
            if member.continues_at is not None and now >= member.continues_at:
                member.continues_at = None
                os.kill(pid, signal.SIGCONT)

    def _strike(self) -> None:
        if self._chance.random() < 0.03:
            self._start("pack")  # a second packer, which must be refused or do the work
            return
        pid = self._victim()
        if pid is None:
            return
        member = self._members[pid]
        if member.continues_at is None and self._chance.random() < 0.35:
            os.kill(pid, signal.SIGSTOP)
            member.continues_at = time.monotonic() + self._chance.uniform(0, LONGEST_STOP_SECONDS)
            self.tally.stops += 1
            return
        at_work = pid in self._at_work()
        os.kill(pid, signal.SIGKILL)
        self._kills_left -= 1
        self.tally.kills += 1
        self.tally.kills_at_work += at_work
        self.tally.kills_of_packers += member.role == "pack"

    def _victim(self) -> int | None:
        at_work = self._at_work()
        role = "pack" if self._settled or self._chance.random() < 0.12 else "work"
        living = [pid for pid, member in self._members.items() if member.role == role]
        busy = [pid for pid in living if pid in at_work]
        # Mostly who is at work: a process that only just began has nothing to lose.
        chosen = busy if busy and self._chance.random() < 0.85 else living
        return self._chance.choice(chosen) if chosen else None

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


def digest_of(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


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
    number: int, template: Path, digest: str, folder: Path, options: argparse.Namespace, kills: int
) -> dict[str, Any]:
    """Convert once under blows; odd rounds beside the source, even ones in its place."""
    in_place = number % 2 == 0
    chance = random.Random(f"{options.seed}/{number}")
    folder.mkdir()
    source = Path(shutil.copytree(template, folder / "set"))
    before = digest_of(source)
    target = source if in_place else folder / "out"
    work_dir = folder / "work"
    command = [sys.executable, "-m", "leconvert", "plan", "--root", source, "--work-dir", work_dir]
    if not in_place:
        command += ["--output", target]
    if is_linked(number):
        command += [f"--data-file-size-in-mb={SMALL_MB}", f"--video-file-size-in-mb={SMALL_MB}"]
    else:
        command += ["--episodes-per-batch", "1"]
    planned = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if planned.returncode:
        raise SystemExit(planned.stderr)
    began = time.monotonic()
    storm = Storm(
        work_dir,
        chance,
        kills=kills,
        workers=options.workers,
        pace_seconds=options.pace,
        really_exec=options.really_exec,
    )
    storm.rage()
    tally = storm.tally
    tally.troubles += problems(folder, target, digest, before, in_place=in_place)
    claims = [path.name for path in run_of(work_dir).leases_dir.glob("*/[0-9]*") if not path.suffix]
    row = {
        "round": number,
        "mode": "in-place" if in_place else "output",
        "batches": len(list(run_of(work_dir).leases_dir.iterdir())),
        **asdict(tally),
        "claims": len(claims),
        "take_overs": sum(int(name) > 1 for name in claims),
        "journals": len(list(run_of(work_dir).journal.glob("[0-9]*.json"))),
        "seconds": round(time.monotonic() - began, 2),
        "ok": not tally.troubles,
    }
    if row["ok"] or not options.keep:
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


def header(options: argparse.Namespace, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    find = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(folder)]
    mounts = subprocess.run(find, capture_output=True, text=True, check=False)
    shown = ["PATH" if argument.startswith("/") else argument for argument in arguments]
    return {
        "format": "leconvert-storm",
        "version": 1,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python scripts/storm.py", *shown]),
        "leconvert": leconvert.__version__,
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "file_system": (mounts.stdout.split() or ["unknown"])[-1],
        "workers": options.workers,
        "lease_seconds": LEASE_SECONDS,
        "episodes": options.episodes,
        "seed": options.seed,
    }


def storms_afterwards(options: argparse.Namespace, arguments: Sequence[str], folder: Path) -> int:
    """Kill conversions and let something else happen, until enough were killed."""
    sys.path.insert(0, str(ROOT))
    from tests.faults.afterwards import AFTERWARDS, CASES_AFTERWARDS, Datasets, after_kills
    from tests.faults.trials import CASES, Place, in_a_process, make_templates
    from tests.faults.trials import make_source as make_smallest

    tell(header(options, arguments, folder), options.log)
    cases = [CASES[name] for name in CASES_AFTERWARDS]
    template = make_templates(make_smallest(folder / "template"), cases)
    datasets = Datasets(folder / "datasets", template)
    seconds = []
    for number in range(3):
        began = time.monotonic()
        in_a_process(Place(CASES["in-place"], template, folder / f"quiet-{number}"), None)
        seconds.append(time.monotonic() - began)
    totals: Counter[str] = Counter()
    while totals["kills"] < options.kills:
        began = time.monotonic()
        totals["rounds"] += 1
        chance = random.Random(f"{options.seed}/{totals['rounds']}")
        case, afterwards = chance.choice(CASES_AFTERWARDS), chance.choice([*AFTERWARDS])
        # A swap is the last thing that happens, so that late kills are the more telling ones.
        kills = [min(seconds) * chance.betavariate(3, 2) for _ in range(chance.randint(1, 4))]
        row = after_kills(CASES[case], kills, afterwards, datasets, template, folder / "round")
        if row is None:
            totals["nothing_to_do"] += 1
            continue
        totals["kills"] += row.number
        totals["bad_rounds"] += bool(row.problems)
        told = {
            "round": totals["rounds"],
            "case": case,
            "afterwards": afterwards,
            "kills": row.number,
            "ended": row.ended,
            "troubles": list(row.problems),
            "seconds": round(time.monotonic() - began, 2),
            "ok": not row.problems,
        }
        tell(told, options.log)
    tell(dict(totals), options.log)
    return int(bool(totals["bad_rounds"]))


def storms_over_edits(options: argparse.Namespace, arguments: Sequence[str], folder: Path) -> int:
    """Kill the commands that edit or begin with v3.0 datasets, until enough were killed."""
    sys.path.insert(0, str(ROOT))
    from tests.faults.trials import (
        CASES,
        Place,
        in_a_process,
        kill_trial,
        make_templates,
        quiet_run,
    )
    from tests.faults.trials import make_source as make_smallest

    tell(header(options, arguments, folder), options.log)
    cases = [
        case
        for case in CASES.values()
        if case.command != "convert" or case.begins_with != "template" or case.has_former
    ]
    template = make_templates(make_smallest(folder / "template"), cases)
    quiet, seconds = {}, {}
    for case in cases:
        quiet[case.name] = quiet_run(case, template, folder / f"quiet-{case.name}")
        began = time.monotonic()
        in_a_process(Place(case, template, folder / f"timed-{case.name}"), None)
        seconds[case.name] = time.monotonic() - began
    totals: Counter[str] = Counter()
    while totals["kills"] < options.kills:
        totals["rounds"] += 1
        chance = random.Random(f"{options.seed}/{totals['rounds']}")
        case = chance.choice(cases)
        most = seconds[case.name]
        kills = [most * chance.betavariate(2, 1.5) for _ in range(chance.randint(1, 6))]
        row = kill_trial(case, quiet[case.name], kills, template, folder / "round")
        totals["kills"] += row.number
        totals["bad_rounds"] += bool(row.problems)
        told = {
            "round": totals["rounds"],
            "case": case.name,
            "kills": row.number,
            "troubles": list(row.problems),
            "ok": not row.problems,
        }
        tell(told, options.log)
    tell(dict(totals), options.log)
    return int(bool(totals["bad_rounds"]))


def tell(row: Mapping[str, Any], log: Path | None) -> None:
    """Print a row, and append it to a log if there is one."""
    print(json.dumps(row), flush=True)
    if log is not None:
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=1000, help="go on until so many were killed")
    parser.add_argument("--kills-per-round", type=int, default=40)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--pace", type=float, default=0.03, help="mean seconds between two blows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exec", action="store_true", dest="really_exec")
    parser.add_argument("--afterwards", action="store_true", help="change something after a kill")
    parser.add_argument("--edits", action="store_true", help="kill what edits or begins with v3.0")
    parser.add_argument("--keep", action="store_true", help="keep the folders of bad rounds")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--log", type=Path, help="append the rows here as well")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="storm-", dir=options.folder))
    rows: list[dict[str, Any]] = []
    try:
        if options.edits:
            return storms_over_edits(options, arguments, folder)
        if options.afterwards:
            return storms_afterwards(options, arguments, folder)
        return storms(options, arguments, folder, rows)
    finally:
        if not (options.keep and any(not row["ok"] for row in rows)):
            shutil.rmtree(folder)


def storms(
    options: argparse.Namespace, arguments: Sequence[str], folder: Path, rows: list[dict[str, Any]]
) -> int:
    """Let rounds follow each other until enough were killed, and return the exit code."""
    tell(header(options, arguments, folder), options.log)
    template = make_source(folder / "template", options.episodes)
    whole, small = quiet_digests(template, folder)
    left = options.kills
    while left > 0:
        number = len(rows) + 1
        kills = min(left, options.kills_per_round)
        digest = whole
        if is_linked(number):
            digest, kills = small, min(kills, KILLS_OF_LINKED_ROUNDS)
        rows.append(one_round(number, template, digest, folder / f"{number}", options, kills))
        tell(rows[-1], options.log)
        left -= rows[-1]["kills"]
    names = ("kills", "kills_at_work", "kills_of_packers", "stops", "refused", "take_overs")
    bad = sum(not row["ok"] for row in rows)
    total = {name: sum(row[name] for row in rows) for name in (*names, "journals")}
    seconds = round(sum(row["seconds"] for row in rows), 1)
    tell({"rounds": len(rows), **total, "seconds": seconds, "bad_rounds": bad}, options.log)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
